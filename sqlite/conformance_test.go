package sqlite_test

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"testing"

	"github.com/outbox-suite/outbox/conformance"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/sqlite"
)

func TestConformance(t *testing.T) {
	path := filepath.Join(t.TempDir(), "outbox.db")
	conformance.Run(t, conformance.Target{
		Dialect: sqlite.New(),
		Open:    func(context.Context) (*sql.DB, error) { return sqlite.Open(path) },
		Source:  path,
	})
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
