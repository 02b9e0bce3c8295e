package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"

	"github.com/outbox-suite/outbox/dialect"
)

var migrateCommand = command{
	name: "migrate", summary: "make the tables or bring them up to date",
	help: `
Makes the tables, or brings them to this version's schema, and checks the result.
It is safe to run at every start and by several processes at once. The number of
lanes is fixed when the tables are made: it is the most lanes that relays can work
on at a time.

With --partition-done day, done is in partitions, one a day (UTC), also where it was not
before: what is in it stays. Relays drop the days that are past their retention whole,
which returns their space. docs/retention.md says what that takes.

Example:
  OUTBOX_DSN=postgres://app:secret@db/shop outbox migrate --lanes 32`,
	setup: func(fs *flag.FlagSet) action {
		var t target
		t.flags(fs)
		partition := partitionFlag(fs)
		asJSON := fs.Bool("json", false, "print a JSON object: applied, version, lanes, and with --partition-done partitioned")
		return func(ctx context.Context, p *process) error { return migrate(ctx, p, t, *partition, *asJSON) }
	},
}

// partitionFlag tells whether done is to be in partitions.
func partitionFlag(fs *flag.FlagSet) *bool {
	partition := new(bool)
	fs.Func("partition-done", "`day`: keep done in partitions, one a day; where the engine can", func(s string) error {
		if *partition = s == "day"; !*partition {
			return errors.New("use day")
		}
		return nil
	})
	return partition
}

// errNoPartitions refuses --partition-done.
func errNoPartitions(e string) error {
	return usagef("partition-done: done is one table on %s: leave it out, old messages are deleted in small steps", e)
}

func migrate(ctx context.Context, p *process, t target, partition, asJSON bool) error {
	if partition { // asked before there is a database, which some engines make by looking
		if err := t.fromEnv(p.getenv); err != nil {
			return err
		}
		e, err := engineOf(t.dsn)
		if err != nil {
			return err
		}
		store, err := bound(e, dialect.Tables{Schema: t.schema, Prefix: t.prefix, Lanes: t.lanes})
		if err != nil {
			return err
		}
		if _, ok := store.(dialect.Partitioner); !ok {
			return errNoPartitions(e.name)
		}
	}
	o, err := t.inspect(ctx, p)
	if err != nil {
		return err
	}
	defer o.close()
	applied, err := o.Migrate(ctx)
	if err != nil {
		return err
	}
	partitioned := false
	if partition {
		if partitioned, err = o.PartitionDone(ctx); err != nil {
			return err
		}
	}
	if err := o.Check(ctx); err != nil {
		return err
	}
	steps := o.Schema()
	version, lanes := steps[len(steps)-1].Version, o.Tables().Lanes
	if asJSON {
		if applied == nil {
			applied = []int{}
		}
		result := map[string]any{"applied": applied, "version": version, "lanes": lanes}
		if partition {
			result["partitioned"] = partitioned
		}
		return writeJSON(p.stdout, result)
	}
	what := "up to date already"
	if len(applied) > 0 {
		what = "applied " + strings.Trim(fmt.Sprint(applied), "[]")
	}
	switch {
	case partitioned:
		what += "; done is in partitions now, one a day"
	case partition:
		what += "; done was in partitions"
	}
	_, err = fmt.Fprintf(p.stdout, "schema version %d, %d lanes: %s\n", version, lanes, what)
	return err
}
