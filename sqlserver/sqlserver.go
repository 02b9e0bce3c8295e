// Package sqlserver keeps an outbox in SQL Server 2017 or newer, or in Azure SQL
// Database or Managed Instance, through database/sql and
// github.com/microsoft/go-mssqldb.
//
// It was never executed where it was written: no SQL Server could be had there. Its
// statements are checked against a grammar and against rules of their own; whoever has a
// server runs OUTBOX_TEST_SQLSERVER_DSN='sqlserver://…' go test ./sqlserver
//
// Nothing depends on whether READ_COMMITTED_SNAPSHOT is ON, on the isolation level that
// a pooled session was left at, on XACT_ABORT or NOCOUNT, on triggers, on a collation or
// on a time zone: everything the engine does by itself runs in a READ COMMITTED
// transaction of its own, reads included, text is stored as bytes, times are computed by
// the server in UTC and leave it as numbers, and no decision rests on a number of changed
// rows. What a producer or consumer runs in the caller's transaction works at any level.
package sqlserver

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/outbox-suite/outbox/dialect"
)

// engine is SQL Server as a dialect.
type engine struct{}

// New returns the dialect of SQL Server. It is safe for concurrent use.
func New() dialect.Dialect { return engine{} }

// Name returns "sqlserver".
func (engine) Name() string { return "sqlserver" }

// Capabilities tells that times keep microseconds and that the server has a clock of
// its own. A single session cannot be made read-only.
func (engine) Capabilities() dialect.Capabilities {
	return dialect.Capabilities{TimeStep: time.Microsecond, Skew: true}
}

// An identifier has at most 128 characters ("Database identifiers"). Counting bytes
// instead refuses some that would fit, and none that would not. The longest name of the
// schema ends in longestSuffix.
const (
	longestName   = 128
	longestSuffix = len("_parked_key_has_hash")
)

// Bind renders all statements for tables. It refuses names that are not valid UTF-8 and
// those that end in a space, which the server would not tell from the same without it.
func (engine) Bind(tables dialect.Tables) (dialect.Store, error) {
	if err := tables.Validate(longestName, longestSuffix); err != nil {
		return nil, err
	}
	if err := errors.Join(checkName("schema", tables.Schema), checkName("prefix", tables.Prefix)); err != nil {
		return nil, err
	}
	return &store{tables: tables, sql: render(tables)}, nil
}

func checkName(field, name string) error {
	switch {
	case !utf8.ValidString(name):
		return fmt.Errorf("%s is not valid UTF-8: choose another", field)
	case strings.HasSuffix(name, " "):
		return fmt.Errorf("%s ends in a space, which the engine does not compare: remove it", field)
	case strings.HasPrefix(name, "#") || strings.HasPrefix(name, "@"):
		return fmt.Errorf("%s begins with %q, which is for temporary tables and variables: choose another", field, name[:1])
	}
	return nil
}

// quote quotes an identifier.
func quote(name string) string {
	return "[" + strings.ReplaceAll(name, "]", "]]") + "]"
}
