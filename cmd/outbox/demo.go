package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"text/tabwriter"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/internal/demo"
)

var demoCommand = command{
	name: "demo", summary: "watch the main job, with a relay killed on the way",
	help: `
Runs the whole of it: a shop whose writers change orders and enqueue messages in
the same transactions, some of which roll back and some commit late; two relays,
each a process of its own, that publish to a file they share; a consumer that
removes duplicates with the inbox and crashes once. One relay is killed with
SIGKILL on the way and another takes its place. In the end the databases and the
file are read back and compared. It exits with 3 if a promise did not hold.

With --publish the relays publish to a broker, to something of the demo's own with a
random name, which it removes. What the broker has in the end is read back and
compared instead of the file. The URL is one that relay takes, of nats, without
options that say where messages go.

Without --dsn it needs nothing: it uses an embedded database in a temporary
folder. With --dsn it uses tables of its own with a random name, which it
removes; the user needs the right to create tables.

Example:
  outbox demo
  outbox demo --publish nats://127.0.0.1:4222
  OUTBOX_DSN=postgres://user:password@host/test outbox demo --dsn env --orders 1000`,
	setup: func(fs *flag.FlagSet) action {
		cfg := demo.Config{Orders: 100, Writers: 4}
		positive := func(p *int, most int) func(string) error {
			return func(s string) error {
				n, err := strconv.Atoi(s)
				if err != nil || n < 1 || n > most {
					return fmt.Errorf("give a number from 1 to %d", most)
				}
				*p = n
				return nil
			}
		}
		fs.StringVar(&cfg.DSN, "dsn", "", "run on this database, for example `postgres://…`; env takes it from OUTBOX_DSN; default: an embedded one")
		fs.Func("orders", "how many orders there are, a `number`; each is changed five times or so (default 100)", positive(&cfg.Orders, 100_000))
		fs.Func("writers", "how many writers are at work, a `number` (default 4)", positive(&cfg.Writers, 64))
		fs.Uint64Var(&cfg.Seed, "seed", 0, "the `number` that all random choices come from; default: a random one")
		fs.BoolVar(&cfg.Keep, "keep", false, "keep tables and files, and say where they are")
		publish := fs.String("publish", "", "publish to this broker, for example `nats://…`; env takes it from OUTBOX_PUBLISH; default: a file")
		asJSON := fs.Bool("json", false, "print the report as a JSON object")
		return func(ctx context.Context, p *process) error { return showMainJob(ctx, p, cfg, *publish, *asJSON) }
	},
}

func showMainJob(ctx context.Context, p *process, cfg demo.Config, publish string, asJSON bool) error {
	if publish == "env" {
		if publish = p.getenv("OUTBOX_PUBLISH"); publish == "" {
			return usagef("publish is taken from the environment, but OUTBOX_PUBLISH is not set")
		}
	}
	if publish != "" {
		b, err := demoBroker(p, publish)
		if err != nil {
			return usageError{err}
		}
		defer b.close()
		cfg.Broker = b
		cfg.Environ = demoAccess(p)
	}
	if cfg.DSN == "env" {
		if cfg.DSN = p.getenv("OUTBOX_DSN"); cfg.DSN == "" {
			return usagef("dsn is taken from the environment, but OUTBOX_DSN is not set")
		}
	}
	if cfg.DSN != "" {
		if _, err := engineOf(cfg.DSN); err != nil {
			return err
		}
	}
	if cfg.Seed == 0 {
		cfg.Seed = uint64(rand.Uint32()) + 1
	}
	var err error
	if cfg.Program, err = os.Executable(); err != nil {
		return err
	}
	cfg.Embedded = func(path string) string { return "sqlite:" + path }
	cfg.Open = func(dsn string) (*sql.DB, dialect.Dialect, error) {
		e, err := engineOf(dsn)
		if err != nil {
			return nil, nil, err
		}
		db, err := e.open(dsn)
		return db, e.dialect(), err
	}
	cfg.Progress = io.Discard
	if isTerminal(p.stderr) {
		cfg.Progress = p.stderr
	}
	r, err := demo.Run(ctx, cfg)
	if err != nil {
		if ctx.Err() == nil {
			err = fmt.Errorf("%w (seed %d)", err, cfg.Seed)
		}
		return err
	}
	if asJSON {
		err = writeJSON(p.stdout, r)
	} else {
		err = printDemo(p.stdout, r)
	}
	if err == nil && !r.OK {
		return findingError{} // said on stdout
	}
	return err
}

func printDemo(w io.Writer, r demo.Report) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	var errs []error
	line := func(n any, format string, args ...any) {
		_, err := fmt.Fprintf(tw, "%v\t  %s\n", n, fmt.Sprintf(format, args...))
		errs = append(errs, err)
	}
	line(r.Committed, "transactions committed")
	line(r.RolledBack, "rolled back")
	line(r.RelaysKilled, "relay killed by SIGKILL")
	line(r.Published, "messages published")
	line(r.Duplicates, "duplicates, of which %d without a fault to explain them", r.Unexplained)
	line(r.Effects, "effects applied by the consumer")
	line(r.Lost, "lost")
	line(r.Unexpected, "unexpected")
	line(r.OrderViolations, "order violations")
	line(r.EffectsLost+r.EffectsRepeated+r.EffectsUnexpected+r.EffectsOutOfOrder, "effects lost, repeated, unexpected or out of order")
	line(r.Altered, "altered")
	line(r.Left, "left in the outbox")
	errs = append(errs, tw.Flush())
	say := func(format string, args ...any) {
		_, err := fmt.Fprintf(w, format+"\n", args...)
		errs = append(errs, err)
	}
	for _, b := range r.Broken {
		say("BROKEN: %s", b)
	}
	if r.Folder != "" {
		say("kept: folder %s, tables %s…", r.Folder, r.Prefix)
	}
	if r.Topic != "" {
		say("kept: %s of the broker", r.Topic)
	}
	verdict := "every promise held"
	if !r.OK {
		verdict = "A PROMISE DID NOT HOLD"
	}
	say("%s: %d orders, %d writers, %s, %.1fs, seed %d", verdict, r.Orders, r.Writers, r.Engine, r.Seconds, r.Seed)
	return errors.Join(errs...)
}
