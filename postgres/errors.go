package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-suite/outbox/dialect"
)

// Classify says what an error means; see [dialect.Class]. Codes are those of
// appendix A of the PostgreSQL manual.
func (engine) Classify(err error) dialect.Class {
	switch {
	case err == nil:
		return dialect.Other
	// No connection, so nothing was sent, whatever else the error holds.
	case errors.As(err, new(*pgconn.ConnectError)):
		if pg := new(pgconn.PgError); errors.As(err, &pg) && (strings.HasPrefix(pg.Code, "28") || pg.Code == "3D000") {
			return dialect.Other // wrong user, password or database
		}
		return dialect.Transient
	}
	if pg := new(pgconn.PgError); errors.As(err, &pg) {
		return classifyServer(pg)
	}
	switch {
	// The server ran ROLLBACK when it was asked to COMMIT.
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return dialect.Conflict
	// pgx v5.12 says "conn closed", and that it is safe to retry, also when the
	// connection broke while it waited for the answer to a statement without
	// arguments, which COMMIT is: MultiResultReader.NextResult drops the first
	// error and meets the closed connection. ErrBadConn is what its database/sql
	// driver makes of that.
	case errors.Is(err, pgconn.ErrConnClosed), errors.Is(err, driver.ErrBadConn):
		return dialect.OutcomeUnknown
	case pgconn.SafeToRetry(err), errors.Is(err, sql.ErrConnDone):
		return dialect.Transient // nothing was sent
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.As(err, new(net.Error)):
		return dialect.OutcomeUnknown
	}
	return dialect.Other
}

// classifyServer classifies what the server, or a pooler in its place, has
// reported.
func classifyServer(err *pgconn.PgError) dialect.Class {
	switch err.Code {
	case "23505": // unique_violation
		return dialect.Duplicate
	case "40001", // serialization_failure
		"40P01", // deadlock_detected
		"55P03": // lock_not_available
		return dialect.Conflict
	case "25006": // read_only_sql_transaction
		return dialect.ReadOnly
	case "42P01", // undefined_table
		"42703", // undefined_column
		"3F000": // invalid_schema_name
		return dialect.Missing
	case "23514": // check_violation
		// Also the code for a row that fits no partition, which names no
		// constraint.
		if err.ConstraintName == "" && err.TableName != "" {
			return dialect.Missing
		}
		return dialect.Other
	case "57014", // query_canceled: by the server's own timeout
		"25P04", // transaction_timeout
		"57P03", // cannot_connect_now
		"25P03", // idle_in_transaction_session_timeout
		"57P05", // idle_session_timeout: it was idle, so nothing ran
		"26000", // invalid_sql_statement_name: a pooler; see hint
		"42P05": // duplicate_prepared_statement: the same
		return dialect.Transient
	case "57P01", // admin_shutdown
		"57P02", // crash_shutdown
		"40003": // statement_completion_unknown
		return dialect.OutcomeUnknown
	}
	switch err.Code[:min(2, len(err.Code))] {
	case "53": // insufficient resources: connections, memory, disk
		return dialect.Transient
	case "08": // connection exception
		return dialect.OutcomeUnknown
	}
	return dialect.Other
}

// hint adds the remedy where the server's words have none.
func hint(err error) error {
	if err == nil {
		return nil
	}
	pg := new(pgconn.PgError)
	if !errors.As(err, &pg) {
		return err
	}
	switch pg.Code {
	case "26000", "42P05": // invalid_sql_statement_name, duplicate_prepared_statement
		return fmt.Errorf("%w: a pooler between here and the server mixes up prepared statements: "+
			"add default_query_exec_mode=exec to the DSN", err)
	case "42501": // insufficient_privilege
		return fmt.Errorf("%w: `outbox schema --grants` prints what each role needs", err)
	}
	return err
}
