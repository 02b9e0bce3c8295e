package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
)

var schemaCommand = command{
	name: "schema", summary: "print the DDL of the tables",
	help: `
Prints what migrate runs, one step a schema version, for a DBA to read or run.
It connects to nothing: the engine is taken from the DSN's scheme, or --engine.

Example:
  outbox schema --engine postgres --schema shop --lanes 32 > outbox.sql`,
	setup: func(fs *flag.FlagSet) action {
		var t target
		t.flags(fs)
		name := fs.String("engine", "", "the `engine`: postgres or sqlite; default: that of the DSN")
		asJSON := fs.Bool("json", false, "print a JSON array of steps: version, name, sql")
		return func(_ context.Context, p *process) error { return schema(p, t, *name, *asJSON) }
	},
}

func schema(p *process, t target, name string, asJSON bool) error {
	if err := t.fromEnv(p.getenv); err != nil {
		return err
	}
	e, err := engineNamed(name)
	if name == "" {
		e, err = engineOf(t.dsn)
	}
	if err != nil {
		return err
	}
	tables := dialect.Tables{Schema: t.schema, Prefix: t.prefix, Lanes: t.lanes}
	steps, err := steps(e, tables)
	if err != nil {
		return err
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
	for _, s := range steps {
		if _, err := fmt.Fprintf(p.stdout, "-- version %d: %s\n\n%s\n", s.Version, s.Name, s.SQL); err != nil {
			return err
		}
	}
	return nil
}

// steps renders the schema without a database.
func steps(e engine, tables dialect.Tables) ([]dialect.Step, error) {
	if tables.Prefix == "" {
		tables.Prefix = "outbox"
	}
	if tables.Lanes == 0 {
		tables.Lanes = 16
	}
	store, err := e.dialect().Bind(tables)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", outbox.ErrInvalid, err)
	}
	return store.Steps(), nil
}
