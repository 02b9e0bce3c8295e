package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/outbox-suite/outbox/conformance"
	"github.com/outbox-suite/outbox/dialect"
)

var conformanceCommand = command{
	name: "conformance", summary: "prove the promises on a server of yours",
	help: `
Runs the conformance suite: every promise of the outbox is tried on the server
that --dsn names, with relays that are killed, connections that are cut and
brokers that misbehave. Every scenario works in tables of its own with a random
name, which it makes and removes; nothing else is touched. The user needs the
right to create tables. It takes a few minutes and keeps the server busy. When
it is interrupted it removes its tables before it ends, and --report tells of what
was done; a second signal does not wait for that.

--soak runs the soak alone, for as long as you say: everything at once, from one
seed. Without a time, as in --scenario '^Soak/', it takes half an hour; as one
scenario among all it takes 20 seconds.

It exits with 3 when a promise is broken; each failure tells what was promised,
what was observed, and the command that runs it again. --report writes what
people can attach to a ticket; it holds no DSN.

Example:
  OUTBOX_DSN=postgres://user@host/test outbox conformance --short
  outbox conformance --dsn sqlite:/tmp/try.db --scenario '^Relay/'
  outbox conformance --soak 10m --report soak.md`,
	setup: func(fs *flag.FlagSet) action {
		var t target
		var c conformity
		fs.StringVar(&t.dsn, "dsn", "", "the database, for example `sqlite:try.db`; better given in OUTBOX_DSN, where no process list shows it")
		fs.StringVar(&t.schema, "schema", "", "the `name` of the schema for the tables; default: the session's")
		scenario := fs.String("scenario", "", "only scenarios whose name matches this regular `expression`")
		fs.Uint64Var(&c.seed, "seed", 0, "the `number` that all random choices come from; default: OUTBOX_SEED, or a random one")
		fs.BoolVar(&c.short, "short", false, "small loads")
		fs.DurationVar(&c.soak, "soak", 0, "run only the soak, for this `time`")
		fs.DurationVar(&c.patience, "patience", 0, "the `time` to wait for what must happen, more for a slow server; default 1m")
		fs.IntVar(&c.parallel, "parallel", 0, "the `number` of scenarios that run at a time; default 3, and 1 for a file")
		list := fs.Bool("list", false, "list the scenarios and their promises, and run none")
		fs.BoolVar(&c.asJSON, "json", false, "print the report as a JSON object, when all is done")
		fs.Func("report", "write the report to this `file`, as Markdown or JSON after its ending .md or .json; may be given more than once", func(path string) error {
			if ending := filepath.Ext(path); ending != ".md" && ending != ".json" {
				return errors.New("the name must end in .md or .json")
			}
			c.reports = append(c.reports, path)
			return nil
		})
		return func(ctx context.Context, p *process) error {
			var err error
			if c.match, err = regexp.Compile(*scenario); err != nil {
				return usagef("scenario is not a regular expression: %w", err)
			}
			switch {
			case c.soak < 0 || c.patience < 0 || c.parallel < 0:
				return usagef("soak, patience and parallel are 0 or more")
			case c.soak > 0 && *scenario != "":
				return usagef("soak and scenario exclude each other: --soak runs the soak and nothing else")
			case c.soak > 0:
				c.match = regexp.MustCompile("^Soak/")
			case onlySoaks(c.match):
				c.soak = conformance.DefaultSoak
			}
			if *list {
				return listScenarios(p, c.match, c.asJSON)
			}
			return conform(ctx, p, t, c)
		}
	},
}

// conformity is what is asked of a run.
type conformity struct {
	match          *regexp.Regexp
	seed           uint64
	short, asJSON  bool
	soak, patience time.Duration
	parallel       int
	reports        []string
}

// onlySoaks tells whether the expression chooses soaks and nothing else.
func onlySoaks(match *regexp.Regexp) bool {
	soaks := 0
	for _, s := range conformance.Scenarios() {
		if match.MatchString(s.Name) {
			if !s.Soak {
				return false
			}
			soaks++
		}
	}
	return soaks > 0
}

// rerun is the command that runs one scenario again as it was run here. The DSN is
// left to the environment, where it says so if it was a flag.
func (c conformity) rerun(t target, getenv func(string) string) func(scenario string, seed uint64) string {
	return func(scenario string, seed uint64) string {
		var b strings.Builder
		if t.dsn != getenv("OUTBOX_DSN") {
			b.WriteString("OUTBOX_DSN=… ")
		}
		fmt.Fprintf(&b, "outbox conformance --seed %d", seed)
		if c.short {
			b.WriteString(" --short")
		}
		if t.schema != "" {
			fmt.Fprintf(&b, " --schema %s", inShell(t.schema))
		}
		if c.patience > 0 {
			fmt.Fprintf(&b, " --patience %v", c.patience)
		}
		if c.soak > 0 {
			fmt.Fprintf(&b, " --soak %v", c.soak)
			return b.String()
		}
		fmt.Fprintf(&b, " --scenario %s", inShell("^"+regexp.QuoteMeta(scenario)+"$"))
		return b.String()
	}
}

// inShell quotes a word for a shell.
func inShell(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

func listScenarios(p *process, match *regexp.Regexp, asJSON bool) error {
	type entry struct {
		Name    string             `json:"name"`
		Promise string             `json:"promise"`
		Needs   []conformance.Need `json:"needs,omitempty"`
	}
	var entries []entry
	rows := [][]string{{"SCENARIO", "PROMISE"}}
	for _, s := range conformance.Scenarios() {
		if match.MatchString(s.Name) {
			entries = append(entries, entry{s.Name, s.Promise, s.Needs})
			rows = append(rows, []string{s.Name, s.Promise})
		}
	}
	if asJSON {
		return writeJSON(p.stdout, entries)
	}
	return table(p.stdout, rows)
}

func conform(ctx context.Context, p *process, t target, c conformity) error {
	if err := t.fromEnv(p.getenv); err != nil {
		return err
	}
	e, err := engineOf(t.dsn)
	if err != nil {
		return err
	}
	// When the reader of our output goes away, the tables are removed all the same.
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)
	width, total := 0, 0
	for _, s := range conformance.Scenarios() {
		if c.match.MatchString(s.Name) {
			width = max(width, len(s.Name))
			total++
		}
	}
	if total == 0 {
		return usagef("no scenario matches %q: --list names them", c.match)
	}
	for _, path := range c.reports { // before half an hour of work
		if err := writable(path); err != nil {
			return usagef("report: %w", err)
		}
	}
	target := conformance.Target{
		Dialect: e.dialect(), Schema: t.schema, Seed: c.seed, Short: c.short, Soak: c.soak, Patience: c.patience,
		Open:    func(context.Context) (*sql.DB, error) { return e.open(t.dsn) },
		Source:  t.dsn,
		Network: network(e, t.dsn),
	}
	opts := conformance.Options{Match: c.match, Parallel: c.parallel, Rerun: c.rerun(t, p.getenv)}
	if e.file != nil && opts.Parallel == 0 {
		opts.Parallel = 1 // writers of one file wait for each other
	}
	var progress progressLine
	if isTerminal(p.stderr) { // for a person only
		progress.w = p.stderr
	}
	done := 0
	progress.show("0 of %d scenarios done …", total)
	opts.OnProgress = func(scenario, how string) { progress.show("%s: %s", scenario, how) }
	opts.OnResult = func(r conformance.Result) {
		done++
		progress.clear()
		if !c.asJSON {
			if err := showResult(p, r, width); err != nil {
				stop(fmt.Errorf("%w: %w", errClosed, err))
			}
		}
		progress.show("%d of %d scenarios done …", done, total)
	}
	report, err := conformance.Check(ctx, target, opts)
	progress.clear()
	if err != nil {
		if len(report.Results) > 0 { // it was interrupted
			err = errors.Join(err, writeReports(c.reports, report))
		}
		return err
	}
	failed := len(report.Failed())
	if c.asJSON {
		err = writeJSON(p.stdout, report)
	} else {
		n := report.Counts()
		_, err = fmt.Fprintf(p.stdout, "\n%s, %s: %d passed, %d failed, %d skipped in %v (seed %d)\n",
			report.Engine, printable(report.Server), n[conformance.Passed], failed, n[conformance.Skipped], report.Took.Round(time.Second), report.Seed)
	}
	if err := errors.Join(err, writeReports(c.reports, report)); err != nil {
		return err
	}
	if failed > 0 {
		return findingError{} // said on stdout
	}
	return nil
}

// writeReports writes the report to each file, in place of what is there.
func writeReports(paths []string, report conformance.Report) error {
	var errs []error
	for _, path := range paths {
		var b bytes.Buffer
		write := report.WriteMarkdown
		if filepath.Ext(path) == ".json" {
			write = func(w io.Writer) error { return writeJSON(w, report) }
		}
		err := write(&b)
		if err == nil {
			err = os.WriteFile(path, b.Bytes(), 0o666) //nolint:gosec // a report, for everybody to read as the umask has it
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// progressLine is one line on a terminal that is written again and again. It is
// safe for concurrent use; without a writer it does nothing.
type progressLine struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *progressLine) show(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.w != nil {
		_, _ = fmt.Fprintf(l.w, clearLine+format, args...)
	}
}

func (l *progressLine) clear() { l.show("") }

const clearLine = "\r\x1b[K"

// showResult prints a line as soon as a scenario is done, and the details of a
// failure below it.
func showResult(p *process, r conformance.Result, width int) error {
	_, err := fmt.Fprintf(p.stdout, "%-7s  %-*s  %8s  %s\n", r.Status, width, r.Name, r.Took.Round(time.Millisecond), r.Reason)
	if r.Status == conformance.Failed && err == nil {
		_, err = fmt.Fprintln(p.stdout, r)
	}
	return err
}

// network is the way to the server of a DSN in the form of a URL; nil when there
// is none, or when the server must prove the name it is reached by.
func network(e engine, dsn string) *conformance.Network {
	u, err := url.Parse(dsn)
	if e.file != nil || err != nil || u.Hostname() == "" || u.Port() == "" {
		return nil
	}
	if u.Query().Get("sslmode") == "verify-full" {
		return nil
	}
	through := func(addr string) string {
		other := *u
		other.Host = addr
		return other.String()
	}
	return &conformance.Network{
		Address: net.JoinHostPort(u.Hostname(), u.Port()),
		Open:    func(_ context.Context, addr string) (*sql.DB, error) { return e.open(through(addr)) },
		Source:  through,
	}
}

// reopen opens the database in a child process of the suite.
func reopen(dsn string) (dialect.Dialect, *sql.DB, error) {
	e, err := engineOf(dsn)
	if err != nil {
		return nil, nil, err
	}
	db, err := e.open(dsn)
	return e.dialect(), db, err
}
