package sqlserver_test

import (
	"testing"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/internal/skeleton"
	"github.com/outbox-suite/outbox/sqlserver"
)

// FuzzNames finds any names in the statements as names, and nothing else different.
func FuzzNames(f *testing.F) {
	skeleton.Fuzz(f, '[', ']', func(schema, prefix string) (string, bool) {
		store, err := sqlserver.New().Bind(dialect.Tables{Schema: schema, Prefix: prefix, Lanes: 3})
		if err != nil {
			return "", false
		}
		return sqlserver.Rendered(store), true
	}, skeleton.Same)
}
