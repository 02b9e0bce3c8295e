package mysql

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// store is the dialect bound to its tables.
type store struct {
	tables dialect.Tables
	sql    statements
	// asked is when a poll last was a transaction, by monotonic; 0 where sessions do not
	// commit by themselves.
	asked atomic.Int64
	// last tells what the last read of each lane found, and claimed the epoch of its last
	// claim here. Of any lane, for somebody may give the schema more of them.
	last    [dialect.MaxLanes]atomic.Int32
	claimed [dialect.MaxLanes]atomic.Int64
}

var (
	_ dialect.Store   = (*store)(nil)
	_ dialect.Sweeper = (*store)(nil)
)

// read runs do in a transaction that only reads and sees one state of the database,
// whatever the session's default. It is not declared READ ONLY: proxies send such
// transactions to replicas, which may show rows that are gone.
func read(ctx context.Context, db dialect.DB, do func(tx *sql.Tx) error) error {
	return readAt(ctx, db, sql.LevelRepeatableRead, do)
}

// readAt is read at another isolation level.
func readAt(ctx context.Context, db dialect.DB, level sql.IsolationLevel, do func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
	if err != nil {
		return err
	}
	err = do(tx)
	undone := tx.Rollback()
	if err == nil {
		err = undone
	}
	return ended(ctx, err)
}

// inTx runs do in a READ COMMITTED transaction, whatever the session's default, and
// commits it if do returns true.
//
// After an error nothing but Rollback runs: a deadlock has ended the transaction
// already, so that the next statement would commit by itself, and Commit would
// report success.
func inTx(ctx context.Context, db dialect.DB, do func(tx *sql.Tx) (bool, error)) (bool, error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return false, err
	}
	ok, err := do(tx)
	if err != nil || !ok {
		undone := tx.Rollback()
		if err == nil {
			err = undone
		}
		return false, ended(ctx, err)
	}
	if err := tx.Commit(); err != nil {
		return false, ended(ctx, err)
	}
	return true, nil
}

// ended gives the context's error where database/sql only says that the transaction
// is over, because the context has ended it, and the remedy where a privilege lacks.
func ended(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, sql.ErrTxDone) && ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	case isDenied(err):
		return fmt.Errorf("%w: `outbox schema --grants` prints what each role needs", err)
	}
	return err
}

// exec runs a statement. The number of rows it changed is of no use: clientFoundRows
// makes it another one.
func exec(ctx context.Context, tx *sql.Tx, statement string, args ...any) error {
	_, err := tx.ExecContext(ctx, statement, args...)
	return err
}

// query1 runs a statement that returns one row and scans it. It returns false when
// there is none.
func query1(ctx context.Context, tx *sql.Tx, into []any, statement string, args ...any) (bool, error) {
	err := tx.QueryRowContext(ctx, statement, args...).Scan(into...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// querier is a transaction, or one session outside of any.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// query runs a statement and scans each row into a T: every field of it, for it is used
// again for the next row.
func query[T any](ctx context.Context, on querier, into func(*T) []any, statement string, args ...any) (list []T, err error) {
	rows, err := on.QueryContext(ctx, statement, args...)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closing := rows.Close(); err == nil {
			err = closing
		}
	}()
	var row T
	columns := into(&row)
	for rows.Next() {
		if err := rows.Scan(columns...); err != nil {
			return nil, err
		}
		list = append(list, row)
	}
	return list, rows.Err()
}

// one scans a row of one column.
func one[T any](v *T) []any { return []any{v} }

// asJSON is a list as the statements take it, in ASCII: numbers, and text in
// hexadecimal, so that no character set is in question.
func asJSON[T any](list []T) string {
	text, err := json.Marshal(list)
	if err != nil {
		panic(fmt.Sprintf("mysql: numbers and hexadecimal always marshal: %v", err))
	}
	return string(text)
}

// micros is a duration as statements take it. It rounds up, so that nothing is due
// early.
func micros(d time.Duration) int64 {
	n := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		n++
	}
	return n
}

// idColumn scans the 16 bytes of an id.
type idColumn struct{ id *[16]byte }

// Scan implements [sql.Scanner].
func (c idColumn) Scan(value any) error {
	b, ok := value.([]byte)
	if !ok || len(b) != len(c.id) {
		return fmt.Errorf("id is a %T of %d bytes, not 16 bytes", value, len(b))
	}
	copy(c.id[:], b)
	return nil
}

// microsColumn scans a number of microseconds as a duration.
type microsColumn struct{ d *time.Duration }

// Scan implements [sql.Scanner].
func (c microsColumn) Scan(value any) error {
	var n sql.NullInt64
	if err := n.Scan(value); err != nil {
		return err
	}
	*c.d = time.Duration(n.Int64) * time.Microsecond
	return nil
}

// nullMicrosColumn is microsColumn for a column that may be NULL.
type nullMicrosColumn struct{ d *sql.Null[time.Duration] }

// Scan implements [sql.Scanner].
func (c nullMicrosColumn) Scan(value any) error {
	c.d.Valid = value != nil
	return microsColumn{&c.d.V}.Scan(value)
}

// timeColumn scans microseconds since 1970 as a time.
type timeColumn struct{ t *time.Time }

// Scan implements [sql.Scanner].
func (c timeColumn) Scan(value any) error {
	var n sql.NullInt64
	if err := n.Scan(value); err != nil {
		return err
	}
	*c.t = time.UnixMicro(n.Int64).UTC()
	return nil
}

// rowColumns are the destinations of the columns that messages are read by.
func rowColumns(r *dialect.Row) []any {
	return []any{
		&r.Seq, &r.Pos, &r.Attempts, &r.Lane,
		idColumn{&r.ID},
		&r.Topic, &r.Key, &r.KeyHash, &r.Type, &r.ContentType,
		&r.Payload, &r.Headers,
		timeColumn{&r.CreatedAt},
		&r.Revision, &r.Replay,
		microsColumn{&r.Age},
		&r.Blocked,
	}
}

// inHex is text as statements take it in a list.
func inHex(text string) string { return hex.EncodeToString([]byte(text)) }
