package main

import (
	"context"
	"flag"
	"fmt"
	"strings"
)

var migrateCommand = command{
	name: "migrate", summary: "make the tables or bring them up to date",
	help: `
Makes the tables, or brings them to this version's schema, and checks the result.
It is safe to run at every start and by several processes at once. The number of
lanes is fixed when the tables are made: it is the most lanes that relays can work
on at a time.

Example:
  OUTBOX_DSN=postgres://app:secret@db/shop outbox migrate --lanes 32`,
	setup: func(fs *flag.FlagSet) action {
		var t target
		t.flags(fs)
		asJSON := fs.Bool("json", false, "print a JSON object: applied, version, lanes")
		return func(ctx context.Context, p *process) error { return migrate(ctx, p, t, *asJSON) }
	},
}

func migrate(ctx context.Context, p *process, t target, asJSON bool) error {
	o, err := t.inspect(ctx, p)
	if err != nil {
		return err
	}
	defer o.close()
	applied, err := o.Migrate(ctx)
	if err != nil {
		return err
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
		return writeJSON(p.stdout, map[string]any{"applied": applied, "version": version, "lanes": lanes})
	}
	what := "up to date already"
	if len(applied) > 0 {
		what = "applied " + strings.Trim(fmt.Sprint(applied), "[]")
	}
	_, err = fmt.Fprintf(p.stdout, "schema version %d, %d lanes: %s\n", version, lanes, what)
	return err
}
