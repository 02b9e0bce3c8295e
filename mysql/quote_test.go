package mysql_test

import (
	"math/rand/v2"
	"testing"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/internal/skeleton"
	"github.com/outbox-suite/outbox/mysql"
)

// FuzzNames finds any names in the statements as names, and nothing else different.
func FuzzNames(f *testing.F) {
	skeleton.Fuzz(f, '`', '`', func(schema, prefix string) (string, bool) {
		store, err := mysql.New().Bind(dialect.Tables{Schema: schema, Prefix: prefix, Lanes: 3})
		if err != nil {
			return "", false
		}
		return mysql.Rendered(store), true
	}, skeleton.Same)
}

// TestNamesComeBack has the server read names as they are quoted.
func TestNamesComeBack(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		source := rand.New(rand.NewPCG(1, 2))
		for range 300 {
			name := "x" + skeleton.Name(source, 20) // an alias loses its leading space
			if _, err := mysql.New().Bind(dialect.Tables{Prefix: name, Lanes: 1}); err != nil {
				continue // it is refused
			}
			rows, err := f.db.QueryContext(t.Context(), "SELECT 1 AS "+mysql.Quote(name)) //nolint:rowserrcheck // no row is read
			f.ok(err)
			columns, err := rows.Columns()
			f.ok(err)
			f.ok(rows.Close()) //nolint:sqlclosecheck // in a loop
			f.is("the column", columns[0], name)
		}
	})
}
