package engine_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"example.com/engine"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/conformance"
	"github.com/outbox-suite/outbox/dialect"
)

func TestMain(m *testing.M) {
	// A relay of the suite may be a process of its own: it is this program again.
	conformance.Child(func(source string) (dialect.Dialect, *sql.DB, error) {
		db, err := engine.Open(source)
		return engine.New(), db, err
	})
	os.Exit(m.Run())
}

func TestConformance(t *testing.T) {
	folder := t.TempDir()
	target := conformance.Target{
		Dialect: engine.New(),
		// Each scenario in a file of its own, so that those that run at the same time do
		// not wait for each other's writes.
		Place: func(_ context.Context, own *conformance.Target, suffix string) (func(context.Context) error, error) {
			reach(own, filepath.Join(folder, suffix+".db"))
			own.Prefix = `odd "name" {lane}`                       // that must be quoted, and is no placeholder
			return func(context.Context) error { return nil }, nil // the folder goes in the end
		},
	}
	reach(&target, filepath.Join(folder, "outbox.db"))
	conformance.Run(t, target)
}

// reach leads a target to a file. There is no server, so there is none to stop, and no
// network; sessions have no time zone, and nothing makes them read-only.
func reach(target *conformance.Target, file string) {
	target.Open = func(context.Context) (*sql.DB, error) { return engine.Open(file) }
	target.Source = file // for relays in other processes
	target.Restore = func(ctx context.Context, _ dialect.Tables) (*conformance.Copy, error) {
		db, err := engine.Open(file)
		if err != nil {
			return nil, err
		}
		defer db.Close()
		backup := file + ".backup"
		if _, err := db.ExecContext(ctx, "VACUUM INTO ?", backup); err != nil {
			return nil, err
		}
		return &conformance.Copy{
			Open:   func(context.Context) (*sql.DB, error) { return engine.Open(backup) },
			Remove: func(context.Context) error { return os.Remove(backup) },
		}, nil
	}
}

// TestClassify meets each error at the database.
func TestClassify(t *testing.T) {
	file := filepath.Join(t.TempDir(), "outbox.db")
	db := open(t, file)
	for _, text := range []string{"CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER UNIQUE CHECK (n > 0))", "INSERT INTO t VALUES (1, 1)"} {
		if _, err := db.ExecContext(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	exec := func(ctx context.Context, db *sql.DB, texts ...string) error {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for _, text := range texts {
			if _, err = conn.ExecContext(ctx, text); err != nil {
				return err
			}
		}
		return nil
	}
	busy := open(t, file)
	tx, err := busy.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	locked := exec(t.Context(), db, "PRAGMA busy_timeout = 1", "INSERT INTO t VALUES (2, 2)")
	waiting := exec(ctx, db, "PRAGMA busy_timeout = 60000", "INSERT INTO t VALUES (2, 2)")
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		err  error
		want dialect.Class
	}{
		{"no error", nil, dialect.Other},
		{"a unique key", exec(t.Context(), db, "INSERT INTO t VALUES (2, 1)"), dialect.Duplicate},
		{"a primary key", exec(t.Context(), db, "INSERT INTO t VALUES (1, 2)"), dialect.Duplicate},
		{"a check", exec(t.Context(), db, "INSERT INTO t VALUES (2, 0)"), dialect.Other},
		{"no table", exec(t.Context(), db, "SELECT * FROM u"), dialect.Missing},
		{"no column", exec(t.Context(), db, "SELECT u FROM t"), dialect.Missing},
		{"no column to insert", exec(t.Context(), db, "INSERT INTO t (u) VALUES (1)"), dialect.Missing},
		{"bad SQL", exec(t.Context(), db, "SELEC"), dialect.Other},
		{"a lock that is not to be had", locked, dialect.Conflict},
		{"the end of the context while it waits for a lock, so nothing was done", waiting, dialect.Conflict},
		{"the end of the context while it works", exec(ctx, db, "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"), dialect.OutcomeUnknown},
		{"a session that only reads", exec(t.Context(), db, "PRAGMA query_only = on", "INSERT INTO t VALUES (2, 2)"), dialect.ReadOnly},
		{"a folder that is not there", open(t, filepath.Join(file, "no.db")).PingContext(t.Context()), dialect.Transient},
	} {
		if got := engine.New().Classify(c.err); got != c.want {
			t.Errorf("%s is %v, not %v: %v", c.what, got, c.want, c.err)
		}
	}
}

func open(t *testing.T, file string) *sql.DB {
	t.Helper()
	db, err := engine.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func TestNamesThatAreRefused(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "outbox.db"))
	for _, cfg := range []outbox.Config{{Schema: "main"}, {Prefix: "SQLite_x"}, {Prefix: "a\x00b"}, {Lanes: 5000}} {
		if _, err := outbox.New(db, engine.New(), cfg); !errors.Is(err, outbox.ErrInvalid) {
			t.Errorf("%+v is answered with %v", cfg, err)
		}
	}
	box, err := outbox.New(db, engine.New(), outbox.Config{Prefix: `odd "name" {ready} {now}`})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := box.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := box.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestFenceLocks has another relay claim the lane at the last moment before a settle
// gets the lock: a fence that was looked at earlier would let both write. The suite has
// no scenario for it, because where that moment is depends on the engine.
func TestFenceLocks(t *testing.T) {
	ctx, db := t.Context(), open(t, filepath.Join(t.TempDir(), "outbox.db"))
	box, err := outbox.New(db, engine.New(), outbox.Config{Lanes: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := box.Migrate(ctx); err != nil {
		t.Fatal(err)
	}
	err = box.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
		_, err := box.Enqueue(ctx, tx, outbox.Message{Topic: "a", Type: "a"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	store := box.Store()
	epoch, ok, err := store.Claim(ctx, db, 0, "old", time.Nanosecond)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	rows, err := store.Ready(ctx, db, 0, 0, dialect.Limit{Rows: 10})
	if err != nil || len(rows) != 1 {
		t.Fatal(rows, err)
	}
	claimed := false
	late := lateDB{db, func() {
		time.Sleep(2 * time.Millisecond) // the old lease ends
		if _, claimed, err = store.Claim(ctx, db, 0, "new", time.Minute); err != nil {
			t.Fatal(err)
		}
	}}
	ok, err = store.Settle(ctx, late, dialect.Lease{Lane: 0, Owner: "old", Epoch: epoch}, time.Minute,
		dialect.Settlement{Published: []dialect.Ref{rows[0].Ref()}})
	if err != nil || ok || !claimed {
		t.Errorf("a settle whose lane was claimed (%v) before it had the lock took effect: %v, %v", claimed, ok, err)
	}
	if s, err := box.Stats(ctx); err != nil || s.Ready != 1 {
		t.Errorf("%d messages are ready instead of 1: %v", s.Ready, err)
	}
}

// lateDB does something before each transaction.
type lateDB struct {
	dialect.DB
	before func()
}

func (d lateDB) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	d.before()
	return d.DB.BeginTx(ctx, opts)
}
