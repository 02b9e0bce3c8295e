package postgres

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// store is the dialect bound to its tables. It is immutable.
type store struct {
	tables  dialect.Tables
	sql     statements
	channel string
}

var (
	_ dialect.Store   = (*store)(nil)
	_ dialect.Waker   = (*store)(nil)
	_ dialect.Sweeper = (*store)(nil)
)

// querier runs statements: a pool, a connection or a transaction.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// execer is what a caller's transaction has of it.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// exec runs a statement and returns the number of rows it changed.
func exec(ctx context.Context, on execer, query string, args ...any) (int64, error) {
	result, err := on.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, hint(err)
	}
	n, err := result.RowsAffected()
	return n, hint(err)
}

// query1 runs a statement that returns one row and scans it. It returns false
// when there is none.
func query1(ctx context.Context, on querier, into []any, query string, args ...any) (bool, error) {
	err := on.QueryRowContext(ctx, query, args...).Scan(into...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, hint(err)
}

// query runs a statement and scans each row into a T: every field of it, for it is used
// again for the next row.
func query[T any](ctx context.Context, on querier, into func(*T) []any, text string, args ...any) (list []T, err error) {
	rows, err := on.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, hint(err)
	}
	defer func() {
		if closing := rows.Close(); err == nil {
			err = hint(closing)
		}
	}()
	var row T
	columns := into(&row)
	for rows.Next() {
		if err := rows.Scan(columns...); err != nil {
			return nil, hint(err)
		}
		list = append(list, row)
	}
	return list, hint(rows.Err())
}

// one scans a row of one column.
func one[T any](v *T) []any { return []any{v} }

// inTx runs do in a READ COMMITTED transaction, whatever the session's default,
// and commits it if do returns true.
func inTx(ctx context.Context, db dialect.DB, do func(tx *sql.Tx) (bool, error)) (bool, error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return false, hint(err)
	}
	ok, err := do(tx)
	if err != nil || !ok {
		undone := tx.Rollback()
		if err == nil && undone != nil {
			err = undone
		}
		return false, ended(ctx, err)
	}
	if err := tx.Commit(); err != nil {
		return false, ended(ctx, hint(err))
	}
	return true, nil
}

// ended gives the context's error where database/sql only says that the
// transaction is over, because the context has ended it.
func ended(ctx context.Context, err error) error {
	if errors.Is(err, sql.ErrTxDone) && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

// micros is a duration as statements take it. It rounds up, so that nothing is
// due early.
func micros(d time.Duration) int64 {
	n := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		n++
	}
	return n
}

// uuidText is an id as statements take it: pgx cannot infer that 16 bytes are
// a uuid in every mode.
func uuidText(id [16]byte) string { return hex.EncodeToString(id[:]) }
