package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/mysql"
	"github.com/outbox-suite/outbox/oracle"
	"github.com/outbox-suite/outbox/postgres"
	"github.com/outbox-suite/outbox/sqlite"
	"github.com/outbox-suite/outbox/sqlserver"
)

// engine says which DSNs are an engine's. It is the one place that maps schemes
// to engines.
type engine struct {
	name    string
	schemes []string
	form    string // of its DSNs, for the help
	dialect func() dialect.Dialect
	open    func(dsn string) (*sql.DB, error)
	// file returns the path of an embedded database; nil for a server.
	file func(dsn string) string
}

var engines = []engine{
	{ //nolint:gosec // a form, not a password
		name: "postgres", schemes: []string{"postgres", "postgresql"}, form: "postgres://user:password@host:5432/database?option=value",
		dialect: postgres.New, open: lowered(postgres.Open),
	},
	{
		name: "sqlite", schemes: []string{"sqlite"}, form: "sqlite:path/to/file.db",
		dialect: func() dialect.Dialect { return sqlite.New() },
		open:    func(dsn string) (*sql.DB, error) { return sqlite.Open(sqlitePath(dsn)) },
		file:    sqlitePath,
	},
	{ //nolint:gosec // a form, not a password
		name: "mysql", schemes: []string{"mysql", "mariadb"}, form: "mysql://user:password@host:3306/database?option=value",
		dialect: mysql.New, open: lowered(mysql.Open),
	},
	{
		name: "sqlserver", schemes: []string{"sqlserver"}, form: "sqlserver://user:password@host:1433?database=name&option=value",
		dialect: sqlserver.New, open: lowered(sqlserver.Open),
	},
	{ //nolint:gosec // a form, not a password
		name: "oracle", schemes: []string{"oracle"}, form: "oracle://user:password@host:1521/service?option=value",
		dialect: oracle.New, open: lowered(oracle.Open),
	},
}

// lowered opens a DSN whose scheme may be in capitals, which the drivers do not take.
func lowered(open func(dsn string) (*sql.DB, error)) func(dsn string) (*sql.DB, error) {
	return func(dsn string) (*sql.DB, error) {
		scheme, rest, _ := strings.Cut(dsn, ":")
		return open(strings.ToLower(scheme) + ":" + rest)
	}
}

// sqlitePath is what stands behind sqlite: or, as some write it, sqlite://.
func sqlitePath(dsn string) string {
	_, path, _ := strings.Cut(dsn, ":")
	return strings.TrimPrefix(path, "//")
}

func dsnForms() string {
	var b strings.Builder
	for _, e := range engines {
		fmt.Fprintf(&b, "  %s\n", e.form)
	}
	return b.String()
}

// engineOf finds the engine of a DSN. No error shows the DSN.
func engineOf(dsn string) (engine, error) {
	scheme, _, found := strings.Cut(dsn, ":")
	if dsn == "" {
		return engine{}, usagef("no database: set OUTBOX_DSN or give --dsn, for example sqlite:orders.db")
	}
	if !found {
		return engine{}, usagef("dsn has no scheme: write a file as sqlite:path/to/file.db, a server as one of\n%s", dsnForms())
	}
	for _, e := range engines {
		for _, s := range e.schemes {
			if strings.EqualFold(scheme, s) {
				return e, nil
			}
		}
	}
	return engine{}, usagef("dsn does not begin with a scheme this program knows: write it as one of\n%s", dsnForms())
}

func engineNamed(name string) (engine, error) {
	for _, e := range engines {
		if e.name == name || slices.Contains(e.schemes, name) {
			return e, nil
		}
	}
	return engine{}, usagef("engine %s is unknown: use one of %s", shown(name), strings.Join(engineNames(), ", "))
}

func engineNames() (names []string) {
	for _, e := range engines {
		names = append(names, e.name)
	}
	return names
}

// target are the flags that say which outbox is meant.
type target struct {
	dsn, schema, prefix string
	lanes               int
	limits              outbox.Limits
	revisions           bool
}

func (t *target) flags(fs *flag.FlagSet) {
	fs.Func("dsn", "the database, for example `sqlite:orders.db`; better given in OUTBOX_DSN, where no process list shows it", func(s string) error {
		if t.dsn = s; s == "" {
			return errors.New("it is empty: give a database, or leave the flag out and set OUTBOX_DSN")
		}
		return nil
	})
	fs.StringVar(&t.schema, "schema", "", "the `name` of the schema that holds the tables; default: the session's")
	fs.StringVar(&t.prefix, "prefix", "", "the `name` that the tables begin with; default: outbox")
	fs.Func("lanes", "the `number` of lanes of the schema; default: what the database says; a new schema has 8, on SQLite 4", func(s string) error {
		var err error
		t.lanes, err = parseLanes(s)
		return err
	})
}

func parseLanes(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > dialect.MaxLanes {
		return 0, fmt.Errorf("give a number from 1 to %d", dialect.MaxLanes)
	}
	return n, nil
}

// fromEnv fills in what no flag gave.
func (t *target) fromEnv(getenv func(string) string) error {
	for _, v := range []struct {
		name  string
		value *string
	}{{"OUTBOX_DSN", &t.dsn}, {"OUTBOX_SCHEMA", &t.schema}, {"OUTBOX_PREFIX", &t.prefix}} {
		if *v.value == "" {
			*v.value = getenv(v.name)
		}
	}
	if s := getenv("OUTBOX_LANES"); t.lanes == 0 && s != "" {
		n, err := parseLanes(s)
		if err != nil {
			return usagef("OUTBOX_LANES: %w", err)
		}
		t.lanes = n
	}
	return nil
}

// opened is an outbox and what stands in its database.
type opened struct {
	*outbox.Outbox
	found dialect.Inspection
}

// close closes the database. Nothing is pending then, so nothing can be lost.
func (o *opened) close() { _ = o.DB().Close() }

// inspect opens the outbox with as many lanes as it has, whatever the state of
// the database.
func (t *target) inspect(ctx context.Context, p *process) (*opened, error) {
	if err := t.fromEnv(p.getenv); err != nil {
		return nil, err
	}
	e, err := engineOf(t.dsn)
	if err != nil {
		return nil, err
	}
	db, err := e.open(t.dsn)
	if err != nil {
		return nil, usageError{err}
	}
	if e.file != nil && e.file(t.dsn) == ":memory:" {
		return nil, usagef("a database in memory is gone when the command ends: name a file")
	}
	o, err := t.bind(ctx, db, e)
	if err != nil {
		_ = db.Close()
		return nil, err
	}
	return o, nil
}

// bind makes the outbox and looks at the database.
func (t *target) bind(ctx context.Context, db *sql.DB, e engine) (*opened, error) {
	cfg := outbox.Config{Schema: t.schema, Prefix: t.prefix, Lanes: t.lanes, Limits: t.limits, Revisions: t.revisions}
	o, err := outbox.New(db, e.dialect(), cfg)
	if err != nil {
		return nil, err
	}
	found, err := o.Inspect(ctx)
	if err != nil {
		return nil, err
	}
	if t.lanes == 0 && found.Version > 0 && found.Lanes > 0 && found.Lanes != o.Tables().Lanes {
		cfg.Lanes = found.Lanes
		if o, err = outbox.New(db, e.dialect(), cfg); err != nil {
			return nil, err
		}
	}
	return &opened{Outbox: o, found: found}, nil
}

// open opens an outbox whose database is ready.
func (t *target) open(ctx context.Context, p *process) (*opened, error) {
	if err := t.exists(p); err != nil {
		return nil, err
	}
	o, err := t.inspect(ctx, p)
	if err != nil {
		return nil, err
	}
	if err := o.Check(ctx); err != nil {
		o.close()
		return nil, err
	}
	return o, nil
}

// exists refuses the file of an embedded database that is not there, since
// opening it would make an empty one.
func (t *target) exists(p *process) error {
	if err := t.fromEnv(p.getenv); err != nil {
		return err
	}
	e, err := engineOf(t.dsn)
	if err != nil {
		return err
	}
	if e.file == nil {
		return nil
	}
	if _, err := os.Stat(e.file(t.dsn)); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the database file does not exist: run `outbox migrate`, or check the path in the dsn")
	}
	return nil
}
