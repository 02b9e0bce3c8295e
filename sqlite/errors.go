package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"

	"modernc.org/sqlite"
	code "modernc.org/sqlite/lib"

	"github.com/outbox-suite/outbox/dialect"
)

// Classify implements [dialect.Dialect]. The facts are those of
// https://www.sqlite.org/rescode.html and of the driver's source.
func (Dialect) Classify(err error) dialect.Class {
	var failure *sqlite.Error
	switch {
	case err == nil:
		return dialect.Other
	case errors.As(err, &failure):
		return classify(failure)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		// The driver says so of a statement that had its effect, too.
		return dialect.OutcomeUnknown
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone):
		// In process nothing gets lost on the way: it was not begun.
		return dialect.Transient
	}
	return dialect.Other
}

// hint adds the remedy where the file cannot be opened.
func hint(err error) error {
	if e := new(sqlite.Error); errors.As(err, &e) && e.Code()&0xff == code.SQLITE_CANTOPEN {
		return fmt.Errorf("%w: check that the file's folder exists, and that this process may read and write both", err)
	}
	return err
}

func classify(err *sqlite.Error) dialect.Class {
	switch err.Code() {
	case code.SQLITE_CONSTRAINT_UNIQUE, code.SQLITE_CONSTRAINT_PRIMARYKEY, code.SQLITE_CONSTRAINT_ROWID:
		return dialect.Duplicate
	}
	switch err.Code() & 0xff { // the primary code
	case code.SQLITE_BUSY, code.SQLITE_LOCKED:
		return dialect.Conflict
	case code.SQLITE_READONLY:
		return dialect.ReadOnly
	case code.SQLITE_FULL, code.SQLITE_NOMEM, code.SQLITE_CANTOPEN, code.SQLITE_PROTOCOL:
		return dialect.Transient
	case code.SQLITE_INTERRUPT, code.SQLITE_IOERR:
		// Of a commit that could not be synced nobody knows what the disk has.
		return dialect.OutcomeUnknown
	case code.SQLITE_ERROR:
		// SQLite has no code of its own for these.
		for _, missing := range []string{"no such table: ", "no such column: ", " has no column named "} {
			if strings.Contains(err.Error(), missing) {
				return dialect.Missing
			}
		}
	}
	return dialect.Other
}
