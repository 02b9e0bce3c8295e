// Package postgres keeps an outbox in PostgreSQL 12 or newer, through
// database/sql and github.com/jackc/pgx/v5/stdlib.
//
// It works behind PgBouncer in transaction mode: it keeps no session state
// beyond a transaction. Where the pooler loses prepared statements, errors say
// so and name the remedy, default_query_exec_mode=exec in the DSN; all other
// modes of pgx work as well.
//
// Every statement is written for READ COMMITTED. Transactions the engine opens
// ask for it; single statements run at the session's default, where a higher
// level yields [dialect.Conflict] errors more often and breaks nothing.
package postgres

import (
	"strings"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// engine is PostgreSQL as a dialect.
type engine struct{}

// New returns the PostgreSQL dialect. It is safe for concurrent use.
func New() dialect.Dialect { return engine{} }

// Name returns "postgres".
func (engine) Name() string { return "postgres" }

// Capabilities tells that times keep microseconds, that the server has a clock
// of its own and that sessions can be made read-only.
func (engine) Capabilities() dialect.Capabilities {
	return dialect.Capabilities{TimeStep: time.Microsecond, Skew: true, Restrict: true}
}

// An identifier has at most 63 bytes (NAMEDATALEN - 1); the server cuts a
// longer one silently, which would make two names one. The longest name of the
// schema ends in longestSuffix.
const (
	longestName   = 63
	longestSuffix = len("_parked_scheduled_id")
)

// Bind renders all statements for tables. It refuses names that PostgreSQL
// would cut or cannot hold.
func (engine) Bind(tables dialect.Tables) (dialect.Store, error) {
	if err := tables.Validate(longestName, longestSuffix); err != nil {
		return nil, err
	}
	return &store{tables: tables, sql: render(tables), channel: channel(tables)}, nil
}

// quote quotes an identifier.
func quote(name string) string {
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}
