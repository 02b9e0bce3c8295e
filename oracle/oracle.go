// Package oracle keeps an outbox in Oracle Database 19c or newer, up to 26ai, through
// database/sql and github.com/sijms/go-ora/v2.
//
// No statement of this package has been executed: no server was to be had. What runs it
// is OUTBOX_TEST_ORACLE_DSN='oracle://user:password@host:1521/service' go test ./oracle
//
// Nothing depends on the options of the DSN or on what a session is set to: times are
// computed by the server in UTC and read as numbers, whatever TIME_ZONE and the NLS
// formats are; text is stored as the bytes of its UTF-8, so that neither the database's
// character set nor NLS_COMP and NLS_SORT touch it; an empty text, key or payload comes
// back as it was, though the server takes it for NULL; and what locks rows does so in a
// transaction of its own at READ COMMITTED, whatever ISOLATION_LEVEL the session has.
// Reads run in a transaction, too, which ends with them: a session at SERIALIZABLE would
// keep its first snapshot for good.
//
// # Names
//
// Names are quoted in all statements. A name that may be written without quotes, that is
// of ASCII letters, digits, _, $ and # and begins with a letter, is folded to upper case
// first, as the server would: the prefix outbox names OUTBOX, OUTBOX_PARKED and so on,
// which every tool finds without quotes. A reserved word is folded as well: the prefix
// order names ORDER, which has to be quoted by whoever writes SQL, and ORDER_PARKED, which
// has not. Every other name is kept as it is given, and must be quoted by everybody. A
// name has at most 128 bytes, and cannot contain a double quote.
//
// The schema is the user who owns the tables; without one it is the session's. Nothing
// here makes a user.
package oracle

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/outbox-suite/outbox/dialect"
)

// engine is Oracle as a dialect.
type engine struct{}

// New returns the dialect of Oracle. It is safe for concurrent use.
func New() dialect.Dialect { return engine{} }

// Name returns "oracle".
func (engine) Name() string { return "oracle" }

// Capabilities tells that times keep microseconds and that the server has a clock of its
// own. Sessions cannot be forced to be read-only before version 23.
func (engine) Capabilities() dialect.Capabilities {
	return dialect.Capabilities{TimeStep: time.Microsecond, Skew: true}
}

// An identifier has at most 128 bytes, since 12.2. The longest name of the schema ends in
// longestSuffix.
const (
	longestName   = 128
	longestSuffix = len("_parked_scheduled_id")
)

// Bind renders all statements for tables. It refuses names that the server cannot hold:
// those with a double quote.
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
	case strings.Contains(name, `"`):
		return fmt.Errorf("%s has a double quote, which the engine's names cannot hold: choose another", field)
	}
	return nil
}

// plain is a name that may be written without quotes, were it not reserved.
var plain = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_$#]*$`)

// fold returns the name as the server keeps it.
func fold(name string) string {
	if plain.MatchString(name) {
		return strings.ToUpper(name)
	}
	return name
}

// quote quotes an identifier.
func quote(name string) string { return `"` + fold(name) + `"` }
