package sqlite_test

import (
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/internal/skeleton"
	"github.com/outbox-suite/outbox/sqlite"
)

// rendered are all statements of a store.
func rendered(store dialect.Store) string {
	var b strings.Builder
	for _, step := range store.Steps() {
		b.WriteString(step.SQL)
	}
	for _, s := range sqlite.Statements(store) {
		b.WriteString(s.Text + "\n")
	}
	return b.String()
}

// FuzzNames finds any names in the statements as names, and nothing else different.
func FuzzNames(f *testing.F) {
	skeleton.Fuzz(f, '"', '"', func(schema, prefix string) (string, bool) {
		store, err := sqlite.New().Bind(dialect.Tables{Schema: schema, Prefix: prefix, Lanes: 3})
		if err != nil {
			return "", false
		}
		return rendered(store), true
	}, skeleton.Same)
}

// TestNamesComeBack has SQLite read names as they are quoted.
func TestNamesComeBack(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "names.db"))
	source := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		name := skeleton.Name(source, 20)
		if _, err := sqlite.New().Bind(dialect.Tables{Prefix: name, Lanes: 1}); err != nil {
			continue // it is refused
		}
		rows, err := db.QueryContext(t.Context(), "SELECT 1 AS "+sqlite.Quote(name)) //nolint:rowserrcheck // no row is read
		if err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		columns, err := rows.Columns()
		if err != nil || rows.Close() != nil || columns[0] != name { //nolint:sqlclosecheck // in a loop
			t.Errorf("%q came back as %q, %v", name, columns, err)
		}
	}
}
