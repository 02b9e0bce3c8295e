package sqlserver

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/outbox-suite/outbox/dialect"
)

// store is the dialect bound to its tables. It is immutable.
type store struct {
	tables dialect.Tables
	sql    statements
}

var (
	_ dialect.Store   = (*store)(nil)
	_ dialect.Granter = (*store)(nil)
)

// read runs do in a transaction that only reads, at an isolation level of its own
// whatever the session's. It sees no one state of the database where that has
// READ_COMMITTED_SNAPSHOT OFF; what needs one takes the lane row's lock.
func read(ctx context.Context, db dialect.DB, do func(tx *sql.Tx) error) error {
	_, err := inTx(ctx, db, func(tx *sql.Tx) (bool, error) { return false, do(tx) })
	return err
}

// inTx runs do in a READ COMMITTED transaction, whatever the session's level, and
// commits it if do returns true.
//
// After an error nothing but Rollback runs: a deadlock, or any error of a session with
// XACT_ABORT ON, has ended the transaction already.
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
// is over, because the context has ended it.
func ended(ctx context.Context, err error) error {
	if errors.Is(err, sql.ErrTxDone) && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

// exec runs a statement. The number of rows it changed is of no use: triggers add to
// it, and NOCOUNT takes it away.
func exec(ctx context.Context, tx *sql.Tx, statement string, args ...any) error {
	_, err := tx.ExecContext(ctx, statement, args...)
	return err
}

// query1 runs a statement that returns at most one row and scans it. It returns false
// when there is none.
func query1(ctx context.Context, tx *sql.Tx, into []any, statement string, args ...any) (found bool, err error) {
	err = each(ctx, tx, func(rows *sql.Rows) error {
		found = true
		return rows.Scan(into...)
	}, statement, args...)
	return found && err == nil, err
}

// query runs a statement and scans each row into a new T.
func query[T any](ctx context.Context, tx *sql.Tx, into func(*T) []any, statement string, args ...any) (list []T, err error) {
	err = each(ctx, tx, func(rows *sql.Rows) error {
		var row T
		if err := rows.Scan(into(&row)...); err != nil {
			return err
		}
		list = append(list, row)
		return nil
	}, statement, args...)
	return list, err
}

// each reads a result to its end, also past the last row: an error may come after it,
// and to close a result before its end sends the server a cancellation, which ends the
// transaction of a session with XACT_ABORT ON. So it is not [sql.Tx.QueryRowContext].
func each(ctx context.Context, tx *sql.Tx, row func(*sql.Rows) error, statement string, args ...any) (err error) {
	rows, err := tx.QueryContext(ctx, statement, args...)
	if err != nil {
		return err
	}
	defer func() {
		if closing := rows.Close(); err == nil {
			err = closing
		}
	}()
	for rows.Next() {
		if err := row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// one scans a row of one column.
func one[T any](v *T) []any { return []any{v} }

// asJSON is a list as the statements take it, always of type nvarchar(max), so that its
// length does not make another plan.
func asJSON[T any](list []T) mssql.NVarCharMax { return mssql.NVarCharMax(marshal(list)) }

// marshal is a list in ASCII: numbers, and bytes in hexadecimal.
func marshal[T any](list []T) string {
	text, err := json.Marshal(list)
	if err != nil {
		panic(fmt.Sprintf("sqlserver: numbers and hexadecimal always marshal: %v", err))
	}
	return string(text)
}

// entry names a row in a list; see refList.
type entry struct {
	N  int    `json:"n"`
	P  int64  `json:"p"`
	ID string `json:"i"`
}

func entryOf(n int, ref dialect.Ref) entry {
	return entry{N: n, P: ref.Place, ID: hex.EncodeToString(ref.ID[:])}
}

// entries is the list of rows that most statements take.
func entries(refs []dialect.Ref) mssql.NVarCharMax {
	list := make([]entry, len(refs))
	for i, ref := range refs {
		list[i] = entryOf(i, ref)
	}
	return asJSON(list)
}

// keyEntry names a key in a list; see keyList.
type keyEntry struct {
	Key int64 `json:"k"`
}

func keyEntries(keys []int64) mssql.NVarCharMax {
	list := make([]keyEntry, len(keys))
	for i, key := range keys {
		list[i].Key = key
	}
	return asJSON(list)
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

// number is a lane, or a number of lanes, as its column has it.
func number(n int) int32 { return int32(n) } //nolint:gosec // at most dialect.MaxLanes

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
