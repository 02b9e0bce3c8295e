package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/outbox-suite/outbox/conformance"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/sqlite"
)

func TestConformance(t *testing.T) {
	folder := t.TempDir()
	at := func(target *conformance.Target, path string) {
		target.Open = func(context.Context) (*sql.DB, error) { return sqlite.Open(path) }
		target.Source = path
		target.Restore = func(ctx context.Context, _ dialect.Tables) (*conformance.Copy, error) {
			copied := path + ".copy"
			db, err := sqlite.Open(path)
			if err != nil {
				return nil, err
			}
			_, err = db.ExecContext(ctx, "VACUUM INTO ?", copied)
			return &conformance.Copy{
				Open:   func(context.Context) (*sql.DB, error) { return sqlite.Open(copied) },
				Remove: func(context.Context) error { return os.Remove(copied) },
			}, errors.Join(err, db.Close())
		}
	}
	target := conformance.Target{
		Dialect: sqlite.New(),
		// A file of its own for each scenario: writers of one file wait for each other.
		Place: func(_ context.Context, own *conformance.Target, suffix string) (func(context.Context) error, error) {
			at(own, filepath.Join(folder, suffix+".db"))
			return func(context.Context) error { return nil }, nil
		},
	}
	at(&target, filepath.Join(folder, "outbox.db"))
	conformance.Run(t, target)
}

// reopen opens the file in a child process of the suite.
func reopen(path string) (dialect.Dialect, *sql.DB, error) {
	db, err := sqlite.Open(path)
	return sqlite.New(), db, err
}

func TestMain(m *testing.M) {
	conformance.Child(reopen)
	os.Exit(m.Run())
}
