package engine_test

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"testing"

	"example.com/engine"

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
	conformance.Run(t, target(filepath.Join(t.TempDir(), "outbox.db")))
}

// target is a file.
func target(file string) conformance.Target {
	return conformance.Target{
		Dialect: engine.New(),
		Open:    func(context.Context) (*sql.DB, error) { return engine.Open(file) },
		Source:  file,
		// Each scenario in a file of its own, so that those that run at the same time do
		// not wait for each other's writes.
		Place: func(_ context.Context, own *conformance.Target, suffix string) (func(context.Context) error, error) {
			file := file + "-" + suffix
			own.Source = file
			own.Open = func(context.Context) (*sql.DB, error) { return engine.Open(file) }
			return func(context.Context) error { return os.Remove(file) }, nil
		},
	}
}
