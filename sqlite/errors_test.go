package sqlite_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/sqlite"
)

// TestClassify makes the driver's real errors.
func TestClassify(t *testing.T) {
	e := fresh(t, 1)
	m := e.message("k")
	later := e.message("k")
	later.Delay = time.Hour
	e.insert(m, later)
	insert := func(m dialect.Message) error {
		tx, err := e.db.BeginTx(e.ctx, nil)
		e.must(err)
		defer func() { _ = tx.Rollback() }()
		return e.store.Insert(e.ctx, tx, []dialect.Message{m})
	}
	exec := func(db *sql.DB, statement string) error {
		_, err := db.ExecContext(e.ctx, e.text(statement))
		return err
	}
	uri, err := sqlite.DSN(e.path)
	e.must(err)
	impatient := openDSN(t, e.path+"?_txlock=immediate")
	otherPrefix := bind(t, dialect.Tables{Prefix: "other", Lanes: 1})

	const write = `UPDATE {meta} SET purge_at = purge_at + 1`
	tests := map[string]struct {
		err  error
		want dialect.Class
	}{
		"nil":                    {nil, dialect.Other},
		"unknown":                {errors.New("no such table: of a stranger"), dialect.Other},
		"ready id":               {insert(m), dialect.Duplicate},
		"scheduled id":           {insert(later), dialect.Duplicate},
		"primary key":            {exec(e.db, `INSERT INTO {lane} (lane) VALUES (0)`), dialect.Duplicate},
		"check":                  {exec(e.db, `UPDATE {ready} SET lane = 1`), dialect.Other},
		"not null":               {exec(e.db, `UPDATE {ready} SET topic = NULL`), dialect.Other},
		"strict type":            {exec(e.db, `UPDATE {ready} SET id = 'sixteen letters!'`), dialect.Other},
		"syntax":                 {exec(e.db, `UPDATE`), dialect.Other},
		"no table":               {exec(e.db, `SELECT * FROM nowhere`), dialect.Missing},
		"no column":              {exec(e.db, `SELECT nowhere FROM {ready}`), dialect.Missing},
		"no column to insert in": {exec(e.db, `INSERT INTO {ready} (nowhere) VALUES (1)`), dialect.Missing},
		"no outbox": {func() error {
			_, err := otherPrefix.Poll(e.ctx, e.db, owner, 1)
			return err
		}(), dialect.Missing},
		"busy": {func() error {
			tx, err := e.db.BeginTx(e.ctx, nil)
			e.must(err)
			defer func() { _ = tx.Rollback() }()
			_, err = e.store.Extend(e.ctx, impatient, dialect.Lease{}, time.Minute)
			return err
		}(), dialect.Conflict},
		"busy at begin": {func() error {
			tx, err := e.db.BeginTx(e.ctx, nil)
			e.must(err)
			defer func() { _ = tx.Rollback() }()
			_, err = impatient.BeginTx(e.ctx, nil)
			return err
		}(), dialect.Conflict},
		"snapshot": {func() error {
			tx, err := e.db.BeginTx(e.ctx, &sql.TxOptions{ReadOnly: true}) // BEGIN DEFERRED
			e.must(err)
			defer func() { _ = tx.Rollback() }()
			e.must2(read(e.ctx, txDB{tx}, e.text(`SELECT count(*) FROM {lane}`)))
			e.must(exec(impatient, write))
			_, err = tx.ExecContext(e.ctx, e.text(write))
			return err
		}(), dialect.Conflict},
		"query_only": {exec(openDSN(t, e.path+"?_query_only=1"), write), dialect.ReadOnly},
		"mode=ro":    {exec(openDSN(t, uri+"&mode=ro"), write), dialect.ReadOnly},
		"full": {func() error {
			db := open(t, e.path)
			db.SetMaxOpenConns(1)
			e.must(exec(db, `PRAGMA max_page_count = 1`)) // means: not one page more
			return exec(db, `INSERT INTO {inbox} (consumer, message_id) VALUES ('c', hex(zeroblob(1000000)))`)
		}(), dialect.Transient},
		"no directory":   {exec(open(t, filepath.Join(t.TempDir(), "none", "a.db")), `SELECT 1`), dialect.Transient},
		"not a database": {exec(open(t, noDatabase(t)), `SELECT 1`), dialect.Other},
		"cancelled": {func() error {
			ctx, cancel := context.WithCancel(e.ctx)
			cancel()
			_, err := e.store.Extend(ctx, e.db, dialect.Lease{}, time.Minute)
			return err
		}(), dialect.OutcomeUnknown},
		"deadline while waiting for the writer": {func() error {
			tx, err := e.db.BeginTx(e.ctx, nil)
			e.must(err)
			defer func() { _ = tx.Rollback() }()
			ctx, cancel := context.WithTimeout(e.ctx, 20*time.Millisecond)
			defer cancel()
			_, err = e.store.Extend(ctx, e.db, dialect.Lease{}, time.Minute)
			return err
		}(), dialect.OutcomeUnknown},
		"interrupted": {func() error {
			ctx, cancel := context.WithTimeout(e.ctx, 20*time.Millisecond)
			defer cancel()
			_, err := e.db.ExecContext(ctx, endlessSQL)
			return err
		}(), dialect.OutcomeUnknown},
		"bad connection":    {driver.ErrBadConn, dialect.Transient},
		"closed connection": {sql.ErrConnDone, dialect.Transient},
	}
	for name, test := range tests {
		if test.err == nil && name != "nil" {
			t.Errorf("%s: no error", name)
		}
		for _, err := range []error{test.err, fmt.Errorf("wrapped: %w", test.err)} {
			if test.err == nil {
				err = nil
			}
			if got := sqlite.New().Classify(err); got != test.want {
				t.Errorf("%s: %v is %v, want %v", name, err, got, test.want)
			}
		}
	}
}

// endlessSQL runs until it is interrupted.
const endlessSQL = `WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n`

// txDB lets a test read in a transaction.
type txDB struct{ *sql.Tx }

func (txDB) BeginTx(context.Context, *sql.TxOptions) (*sql.Tx, error) {
	return nil, errors.New("it is a transaction")
}

func noDatabase(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "no.db")
	if err := os.WriteFile(path, make([]byte, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("this file is text, and long enough to be looked at as a database: "+
		"one hundred bytes are what the header of SQLite has"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
