package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/outbox-suite/outbox/bench"
)

var benchCommand = command{
	name: "bench", summary: "measure speed on a server of yours, against SQL written by hand",
	help: `
Measures how fast messages are enqueued and drained on the server that --dsn
names, what it costs, and how that grows. Every figure stands beside that of the
plainest SQL one would write by hand, taken in the same run in turns: only the
ratio means anything. There are baselines for PostgreSQL, MySQL, MariaDB and
SQLite.

Commits must survive a crash: a server set up otherwise is refused, with the name
of the setting, unless --not-durable is given. What a relay refuses to run on
stays refused.

It works in tables of its own with random names, which it makes and removes, also
when it is interrupted, unless by a second signal. The machine should do nothing
else meanwhile. The scale quick takes half an hour to an hour, full two to four
hours and 10 GB of disk; tiny only tries that everything works.

--report puts the results into a Markdown document, between two lines that mark
the engine's place, which are added if they are not there; all else in it stays.
--chart draws them. Neither holds a DSN.

Example:
  OUTBOX_DSN=postgres://user@host/test outbox bench --only '^(drain|enqueue)$'
  outbox bench --dsn sqlite:/tmp/try.db --report performance.md --chart performance.svg`,
	setup: func(fs *flag.FlagSet) action {
		var t target
		var b benching
		fs.StringVar(&t.dsn, "dsn", "", "the database, for example `sqlite:try.db`; better given in OUTBOX_DSN, where no process list shows it")
		only := fs.String("only", "", "only measures whose name matches this regular `expression`")
		scale := fs.String("scale", "quick", "`quick`, full or tiny: how much is done for each figure")
		fs.IntVar(&b.options.Rounds, "rounds", 5, "the `number` of rounds that each median is of")
		fs.Uint64Var(&b.options.Seed, "seed", 1, "the `number` that payloads and keys come from")
		fs.BoolVar(&b.options.NotDurable, "not-durable", false, "go on where commits do not survive a crash")
		list := fs.Bool("list", false, "list the measures, and take none")
		fs.BoolVar(&b.asJSON, "json", false, "print the report as a JSON object, when all is done")
		fs.StringVar(&b.report, "report", "", "put the results into this Markdown `file`")
		fs.StringVar(&b.chart, "chart", "", "draw the results into this SVG `file`")
		return func(ctx context.Context, p *process) error {
			var err error
			if b.options.Match, err = regexp.Compile(*only); err != nil {
				return usagef("only is not a regular expression: %w", err)
			}
			if b.options.Scale, err = bench.ScaleNamed(*scale); err != nil {
				return usageError{err}
			}
			switch {
			case b.options.Rounds < 1:
				return usagef("rounds is %d: give a number above 0", b.options.Rounds)
			case b.options.Seed == 0:
				return usagef("seed is 0: give a number above 0")
			case b.report != "" && filepath.Ext(b.report) != ".md":
				return usagef("report: the name must end in .md")
			case b.chart != "" && filepath.Ext(b.chart) != ".svg":
				return usagef("chart: the name must end in .svg")
			}
			if *list {
				return listMeasures(p, b.options.Match, b.asJSON)
			}
			return b.run(ctx, p, t)
		}
	},
}

// benching is what is asked of a run.
type benching struct {
	options       bench.Options
	asJSON        bool
	report, chart string
}

func listMeasures(p *process, match *regexp.Regexp, asJSON bool) error {
	type entry struct {
		Name   string `json:"name"`
		About  string `json:"about"`
		Target string `json:"target,omitempty"`
	}
	var entries []entry
	rows := [][]string{{"MEASURE", "ABOUT", "TARGET"}}
	for _, m := range bench.Measures() {
		if match.MatchString(m.Name) {
			entries = append(entries, entry{m.Name, m.About, m.Target})
			rows = append(rows, []string{m.Name, m.About, m.Target})
		}
	}
	if asJSON {
		return writeJSON(p.stdout, entries)
	}
	return table(p.stdout, rows)
}

func (b *benching) run(ctx context.Context, p *process, t target) error {
	if err := t.fromEnv(p.getenv); err != nil {
		return err
	}
	e, err := engineOf(t.dsn)
	if err != nil {
		return err
	}
	if e.file != nil && e.file(t.dsn) == ":memory:" {
		return usagef("a database in memory is not durable: name a file")
	}
	known := false
	for _, m := range bench.Measures() {
		known = known || b.options.Match.MatchString(m.Name)
	}
	if !known {
		return usagef("no measure matches %q: --list names them", b.options.Match)
	}
	target, err := benchTarget(ctx, e, t.dsn)
	if err != nil {
		return err
	}
	// Before hours of work, what is to be written must be writable.
	if err := b.try(target.Baseline.Name); err != nil {
		return err
	}
	var progress progressLine
	if isTerminal(p.stderr) { // for a person only
		progress.w = p.stderr
	}
	b.options.OnProgress = func(measure, how string) { progress.show("%s: %s", measure, how) }
	b.options.OnRow = func(r bench.Row) {
		progress.clear()
		if !b.asJSON {
			_ = showRow(p, r)
		}
	}
	restore := tuneCollector(p.getenv, 0, 0) // as for the relays of the command
	report, err := bench.Run(ctx, target, b.options)
	restore()
	progress.clear()
	if errors.Is(err, bench.ErrNotDurable) {
		return fmt.Errorf("%w; set it as said, or give --not-durable for figures that tell little", err)
	}
	if err != nil {
		return err
	}
	if b.asJSON {
		err = writeJSON(p.stdout, report)
	} else {
		_, err = fmt.Fprintf(p.stdout, "\n%s: %d comparisons in %v (scale %s, %d rounds, seed %d)\n",
			printable(report.Server), len(report.Rows), report.Took.Round(time.Second), report.Scale, report.Rounds, report.Seed)
		for _, n := range report.Notes {
			_, _ = fmt.Fprintf(p.stdout, "note: %s\n", printable(n))
		}
	}
	if err := errors.Join(err, b.write(report)); err != nil {
		return err
	}
	var failed []error
	for _, f := range report.Failed {
		failed = append(failed, fmt.Errorf("%s: %s", f.Measure, f.Reason))
	}
	return errors.Join(failed...)
}

// try finds out whether the files can be written, and leaves them as they are.
func (b *benching) try(engine string) error {
	if b.chart != "" {
		if err := writable(b.chart); err != nil {
			return usagef("chart: %w", err)
		}
	}
	if b.report == "" {
		return nil
	}
	if err := writable(b.report); err != nil {
		return usagef("report: %w", err)
	}
	text, err := b.document()
	if err != nil {
		return err
	}
	if _, err := bench.Splice(text, engine, ""); err != nil {
		return usagef("report: %w", err)
	}
	return nil
}

// document is the text that the report goes into, which may be new.
func (b *benching) document() (string, error) {
	text, err := os.ReadFile(b.report)
	if errors.Is(err, fs.ErrNotExist) {
		return "# Performance\n", nil
	}
	return string(text), err
}

// writable tries whether a file can be written, and leaves things as they were.
func writable(path string) error {
	_, err := os.Stat(path)
	missing := errors.Is(err, fs.ErrNotExist)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o666) //nolint:gosec // a report, for everybody to read as the umask has it
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil || !missing {
		return err
	}
	return os.Remove(path)
}

// write writes the chart and the report.
func (b *benching) write(report bench.Report) error {
	if b.chart != "" {
		var drawing strings.Builder
		if err := report.WriteSVG(&drawing); err != nil {
			return err
		}
		if err := os.WriteFile(b.chart, []byte(drawing.String()), 0o666); err != nil { //nolint:gosec // as above
			return err
		}
	}
	if b.report == "" {
		return nil
	}
	link := ""
	if b.chart != "" {
		link = b.chart
		if beside, err := filepath.Rel(filepath.Dir(b.report), b.chart); err == nil {
			link = filepath.ToSlash(beside)
		}
	}
	var section strings.Builder
	if err := report.WriteMarkdown(&section, link); err != nil {
		return err
	}
	text, err := b.document() // as it is now: a run takes hours
	if err != nil {
		return err
	}
	if text, err = bench.Splice(text, report.Engine, section.String()); err != nil {
		return err
	}
	return os.WriteFile(b.report, []byte(text), 0o666) //nolint:gosec // as above
}

// showRow prints a comparison as soon as it is known.
func showRow(p *process, r bench.Row) error {
	text := fmt.Sprintf("%-14s  %-44s  %9s %s", r.Measure, r.Case, r.Ours, r.Unit)
	if r.Ratio != nil {
		text += fmt.Sprintf("; %s (%s) × %s (%s)", r.Ratio, r.Ratio.Range(), r.Against, r.Baseline)
	}
	if r.Target != "" {
		text += fmt.Sprintf("; target %s: %s", r.Target, map[string]string{"yes": "met", "no": "missed"}[r.Met])
	}
	_, err := fmt.Fprintln(p.stdout, text)
	return err
}

// benchTarget is the target of a DSN with the baseline of its engine.
func benchTarget(ctx context.Context, e engine, dsn string) (bench.Target, error) {
	db, err := e.open(dsn)
	if err != nil {
		return bench.Target{}, usageError{err}
	}
	defer db.Close() //nolint:errcheck // nothing is written
	baseline, err := baselineOf(ctx, e.name, db)
	if err != nil {
		return bench.Target{}, err
	}
	return bench.Target{
		Dialect: e.dialect(), Baseline: baseline,
		Open:    func(context.Context) (*sql.DB, error) { return e.open(dsn) },
		Process: relayProcess(dsn),
	}, nil
}

// relayProcess starts this program as a relay that throws messages away. The DSN goes
// through the environment, where no process list shows it.
func relayProcess(dsn string) func(ctx context.Context, prefix string, lanes int) (bench.Process, error) {
	return func(ctx context.Context, prefix string, lanes int) (bench.Process, error) {
		program, err := os.Executable()
		if err != nil {
			return bench.Process{}, err
		}
		ctx, cancel := context.WithCancel(ctx)
		c := exec.CommandContext(ctx, program, "relay", "--publish", "discard:", "--prefix", prefix, "--lanes", strconv.Itoa(lanes), //nolint:gosec // it is this program
			"--batch", "1000", "--retention", "0", "--poll-max", bench.PollMax.String(), "--log-level", "debug")
		c.Env = append(os.Environ(), "OUTBOX_DSN="+dsn)
		polled := make(chan struct{})
		said := relayLog{polled: polled}
		c.Stderr = &said
		c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
		c.WaitDelay = 10 * time.Second
		if err := c.Start(); err != nil {
			cancel()
			return bench.Process{}, err
		}
		ended := make(chan error, 1)
		go func() {
			_ = c.Wait()
			if ctx.Err() == nil { // nobody has stopped it
				ended <- fmt.Errorf("a relay's process ended by itself (%v): %s", c.ProcessState, said.last)
			}
			close(ended)
		}()
		return bench.Process{Polled: polled, Ended: ended, Stop: func() {
			cancel()
			for range ended {
			}
		}}, nil
	}
}

// relayLog reads a relay's log, at level debug, which is a few lines a batch.
type relayLog struct {
	polled chan<- struct{} // closed at the first poll, and nil then
	last   []byte          // the end of what was said
}

// Write takes a part of the log.
func (l *relayLog) Write(p []byte) (int, error) {
	const enough = 4 << 10
	l.last = append(l.last, p...)
	if l.polled != nil && bytes.Contains(l.last, []byte("msg=polled")) {
		close(l.polled)
		l.polled = nil
	}
	if over := len(l.last) - enough; over > 0 {
		l.last = append(l.last[:0], l.last[over:]...)
	}
	return len(p), nil
}
