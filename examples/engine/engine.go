// Package engine is an outbox on SQLite, through github.com/ncruces/go-sqlite3. It is
// an example: a dialect that somebody outside of the project has written, in a module of
// its own, from docs/writing-an-engine.md.
//
// SQLite has one writer at a time. Each transaction here that writes says so when it
// begins (BEGIN IMMEDIATE), so it has the lock of every row, sees the newest version of
// each, and a statement in it never meets another writer. On a server with row locks the
// same statements would have to take the locks one by one, the lane's row first.
//
// The clock is that of the machine, in milliseconds; all processes that use a file are
// on that machine, and the file is on a disk of its own, not on a network's.
//
// It was run with SQLite 3.54 on Linux. Not run: other systems, full disks, power cuts.
package engine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/driver"

	"github.com/outbox-suite/outbox/dialect"
)

// Open opens the file as a database, with bounds on waiting and a log that lets readers
// read while one writes.
func Open(file string) (*sql.DB, error) {
	path, err := filepath.Abs(file)
	if err != nil {
		return nil, err
	}
	dsn := url.URL{Scheme: "file", Path: filepath.ToSlash(path), RawQuery: url.Values{
		"_txlock": {"immediate"},
		// The driver sets them in this order: the bound on waiting comes first.
		"_pragma": {"busy_timeout(10000)", "journal_mode(wal)", "synchronous(full)"},
	}.Encode()}
	return driver.Open(dsn.String())
}

// New returns the dialect.
func New() dialect.Dialect { return engine{} }

type engine struct{}

// Name implements [dialect.Dialect].
func (engine) Name() string { return "sqlite-example" }

// Capabilities implements [dialect.Dialect].
func (engine) Capabilities() dialect.Capabilities {
	return dialect.Capabilities{TimeStep: time.Millisecond}
}

// Bind implements [dialect.Dialect].
func (engine) Bind(tables dialect.Tables) (dialect.Store, error) {
	// SQLite has no limit for names. The longest that the schema adds is a table's or an
	// index's.
	if err := tables.Validate(1000, len("_parked_scheduled")); err != nil {
		return nil, err
	}
	if tables.Schema != "" {
		return nil, errors.New("schema is set: a file has no schemas, leave it empty")
	}
	if strings.HasPrefix(strings.ToLower(tables.Prefix), "sqlite_") {
		return nil, fmt.Errorf("prefix is %q: SQLite keeps names that begin with sqlite_ to itself", tables.Prefix)
	}
	return newStore(tables), nil
}

// Classify implements [dialect.Dialect].
func (engine) Classify(err error) dialect.Class {
	is := func(targets ...error) bool {
		for _, target := range targets {
			if errors.Is(err, target) {
				return true
			}
		}
		return false
	}
	switch {
	case err == nil:
		return dialect.Other
	case is(context.Canceled, context.DeadlineExceeded, sqlite3.INTERRUPT, sql.ErrTxDone):
		// ErrTxDone is what a statement meets whose transaction ended with its context.
		return dialect.OutcomeUnknown
	case is(sqlite3.CONSTRAINT_UNIQUE, sqlite3.CONSTRAINT_PRIMARYKEY):
		return dialect.Duplicate
	case is(sqlite3.BUSY, sqlite3.LOCKED):
		return dialect.Conflict
	case is(sqlite3.READONLY):
		return dialect.ReadOnly
	case is(sqlite3.FULL, sqlite3.NOMEM, sqlite3.CANTOPEN):
		return dialect.Transient
	case is(sqlite3.IOERR):
		return dialect.OutcomeUnknown
	case is(sqlite3.ERROR) && missing(err.Error()):
		return dialect.Missing
	}
	return dialect.Other
}

// missing knows what SQLite says of a table or column that is not there, for which it
// has no code.
func missing(text string) bool {
	return strings.Contains(text, "no such table") || strings.Contains(text, "no such column") ||
		strings.Contains(text, "has no column named")
}
