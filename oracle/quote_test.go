package oracle_test

import (
	"strings"
	"testing"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/internal/skeleton"
	"github.com/outbox-suite/outbox/oracle"
)

// FuzzNames finds any names in the statements as names, and nothing else different.
func FuzzNames(f *testing.F) {
	skeleton.Fuzz(f, '"', '"', func(schema, prefix string) (string, bool) {
		store, err := oracle.New().Bind(dialect.Tables{Schema: schema, Prefix: prefix, Lanes: 3})
		if err != nil {
			return "", false
		}
		return oracle.Rendered(store), true
	}, strings.EqualFold)
}
