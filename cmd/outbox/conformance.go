package main

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"regexp"
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
it is interrupted it removes its tables before it ends.

It exits with 3 when a promise is broken; each failure tells what was promised,
what was observed, and the command that runs it again.

Example:
  OUTBOX_DSN=postgres://user@host/test outbox conformance --short
  outbox conformance --dsn sqlite:/tmp/try.db --scenario '^Relay/'`,
	setup: func(fs *flag.FlagSet) action {
		var t target
		fs.StringVar(&t.dsn, "dsn", "", "the database, for example `sqlite:try.db`; better given in OUTBOX_DSN, where no process list shows it")
		fs.StringVar(&t.schema, "schema", "", "the `name` of the schema for the tables; default: the session's")
		scenario := fs.String("scenario", "", "only scenarios whose name matches this regular `expression`")
		seed := fs.Uint64("seed", 0, "the `number` that all random choices come from; default: OUTBOX_SEED, or a random one")
		short := fs.Bool("short", false, "small loads, and no scenario that only shows under a long one")
		list := fs.Bool("list", false, "list the scenarios and their promises, and run none")
		asJSON := fs.Bool("json", false, "print the report as a JSON object, when all is done")
		return func(ctx context.Context, p *process) error {
			match, err := regexp.Compile(*scenario)
			if err != nil {
				return usagef("scenario is not a regular expression: %w", err)
			}
			if *list {
				return listScenarios(p, match, *asJSON)
			}
			return conform(ctx, p, t, match, *seed, *short, *asJSON)
		}
	},
}

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

func conform(ctx context.Context, p *process, t target, match *regexp.Regexp, seed uint64, short, asJSON bool) error {
	if err := t.fromEnv(p.getenv); err != nil {
		return err
	}
	e, err := engineOf(t.dsn)
	if err != nil {
		return err
	}
	target := conformance.Target{
		Dialect: e.dialect(), Schema: t.schema, Seed: seed, Short: short,
		Open:    func(context.Context) (*sql.DB, error) { return e.open(t.dsn) },
		Source:  t.dsn,
		Network: network(e, t.dsn),
	}
	opts := conformance.Options{
		Match: match,
		Rerun: func(name string, seed uint64) string {
			return fmt.Sprintf("outbox conformance --seed %d --scenario '^%s$'", seed, regexp.QuoteMeta(name))
		},
	}
	if e.file != nil {
		opts.Parallel = 1 // writers of one file wait for each other
	}
	width, total, done := 0, 0, 0
	for _, s := range conformance.Scenarios() {
		if match.MatchString(s.Name) {
			width = max(width, len(s.Name))
			total++
		}
	}
	progress := io.Discard // to a person only
	if isTerminal(p.stderr) {
		progress = p.stderr
	}
	_, _ = fmt.Fprintf(progress, "0 of %d scenarios done …", total)
	opts.OnResult = func(r conformance.Result) {
		if ctx.Err() != nil {
			return // it was interrupted, which says nothing of the promise
		}
		done++
		_, _ = fmt.Fprint(progress, clearLine)
		if !asJSON {
			_ = showResult(p, r, width)
		}
		_, _ = fmt.Fprintf(progress, "%d of %d scenarios done …", done, total)
	}
	report, err := conformance.Check(ctx, target, opts)
	_, _ = fmt.Fprint(progress, clearLine)
	if err != nil {
		return err
	}
	failed := len(report.Failed())
	if asJSON {
		err = writeJSON(p.stdout, report)
	} else {
		passed := 0
		for _, r := range report.Results {
			if r.Status == conformance.Passed {
				passed++
			}
		}
		_, err = fmt.Fprintf(p.stdout, "\n%s, %s: %d passed, %d failed, %d skipped in %v (seed %d)\n",
			report.Engine, printable(report.Server), passed, failed, len(report.Results)-passed-failed, report.Took.Round(time.Second), report.Seed)
	}
	if err == nil && failed > 0 {
		return findingError{} // said on stdout
	}
	return err
}

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
