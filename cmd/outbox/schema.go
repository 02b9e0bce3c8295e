package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"strings"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
)

var schemaCommand = command{
	name: "schema", summary: "print the DDL of the tables",
	help: `
Prints what migrate runs, one step a schema version, for a DBA to read or run.
It connects to nothing: the engine is taken from the DSN's scheme, or --engine.
With --grants it prints the statements that give the least privileges to four
roles instead: producer, relay, operator and consumer. With --partition-done day it
prints what keeps done in partitions behind the other steps.

Example:
  outbox schema --engine postgres --schema shop --lanes 32 > outbox.sql
  outbox schema --engine mysql --grants`,
	setup: func(fs *flag.FlagSet) action {
		var t target
		t.flags(fs)
		name := fs.String("engine", "", "the `engine`: "+strings.Join(engineNames(), ", ")+"; default: that of the DSN")
		grants := fs.Bool("grants", false, "print the GRANT statements instead")
		partition := partitionFlag(fs)
		asJSON := fs.Bool("json", false, "print a JSON array of steps: version, name, sql")
		return func(_ context.Context, p *process) error { return schema(p, t, *name, *grants, *partition, *asJSON) }
	},
}

func schema(p *process, t target, name string, grants, partition, asJSON bool) error {
	if err := t.fromEnv(p.getenv); err != nil {
		return err
	}
	if name == "" && t.dsn == "" {
		return usagef("no engine: give --engine %s; or a database, whose engine is taken", strings.Join(engineNames(), ", "))
	}
	e, err := engineNamed(name)
	if name == "" {
		e, err = engineOf(t.dsn)
	}
	if err != nil {
		return err
	}
	store, err := bound(e, dialect.Tables{Schema: t.schema, Prefix: t.prefix, Lanes: t.lanes})
	if err != nil {
		return err
	}
	if grants {
		return printGrants(p, e, store, asJSON)
	}
	steps := store.Steps()
	if partition {
		partitioner, ok := store.(dialect.Partitioner)
		if !ok {
			return errNoPartitions(e.name)
		}
		steps = append(steps, dialect.Step{Version: steps[len(steps)-1].Version, Name: "done in partitions", SQL: partitioner.PartitionSQL()})
	}
	if asJSON {
		type step struct {
			Version int    `json:"version"`
			Name    string `json:"name"`
			SQL     string `json:"sql"`
		}
		all := make([]step, len(steps))
		for i, s := range steps {
			all[i] = step(s)
		}
		return writeJSON(p.stdout, all)
	}
	for i, s := range steps {
		title := fmt.Sprintf("version %d", s.Version)
		if i > 0 && s.Version == steps[i-1].Version {
			title = "behind " + title
		}
		if _, err := fmt.Fprintf(p.stdout, "-- %s: %s\n\n%s\n", title, s.Name, s.SQL); err != nil {
			return err
		}
	}
	return nil
}

func printGrants(p *process, e engine, store dialect.Store, asJSON bool) error {
	granter, ok := store.(dialect.Granter)
	if !ok {
		return usagef("%s has no users to grant anything to: who may read and write the file is for the system to say", e.name)
	}
	if asJSON {
		return writeJSON(p.stdout, map[string]string{"sql": granter.Grants()})
	}
	_, err := fmt.Fprint(p.stdout, granter.Grants())
	return err
}

// bound binds an engine to tables without a database.
func bound(e engine, tables dialect.Tables) (dialect.Store, error) {
	if tables.Prefix == "" {
		tables.Prefix = "outbox"
	}
	if tables.Lanes == 0 {
		tables.Lanes = cmp.Or(e.dialect().Capabilities().Lanes, dialect.DefaultLanes)
	}
	store, err := e.dialect().Bind(tables)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", outbox.ErrInvalid, err)
	}
	return store, nil
}
