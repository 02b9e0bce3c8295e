package oracle

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// store is the dialect bound to its tables. It is immutable.
type store struct {
	tables dialect.Tables
	sql    statements
}

var _ dialect.Store = (*store)(nil)

// Round trips. go-ora closes the cursor of each statement with one more, also when the
// statement is prepared, and a prepared one would belong to a session. So statements are
// few and take arrays rather than prepared.

// read runs do, which only reads, in a transaction that ends with it. Each query sees one
// state of the database, the newest. Outside a transaction a session at SERIALIZABLE
// would keep the snapshot of its first query.
func read(ctx context.Context, db dialect.DB, do func(tx *sql.Tx) error) error {
	// No options: go-ora refuses any isolation level and ReadOnly.
	tx, err := db.BeginTx(ctx, nil)
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
// commits it if do returns true. A SELECT … FOR UPDATE runs nowhere else: outside a
// transaction go-ora would leave the row locked on a connection of the pool.
//
// After an error nothing but Rollback runs. go-ora sends a rollback under the context of
// BeginTx; when that has ended, database/sql closes the connection, and the server rolls
// back.
func (s *store) inTx(ctx context.Context, db dialect.DB, do func(tx *sql.Tx) (bool, error)) (bool, error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	var ok bool
	if err = exec(ctx, tx, s.sql.readCommitted); err == nil {
		ok, err = do(tx)
	}
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

// exec runs a statement.
func exec(ctx context.Context, tx dialect.Tx, statement string, args ...any) error {
	_, err := tx.ExecContext(ctx, statement, args...)
	return err
}

// mostRows is the most rows of one array.
const mostRows = 1000

// array runs a statement once for each row, in order: in one round trip, and without a
// list that could grow beyond what the server allows. The columns are slices of the same
// length, which go-ora sends as an array. Nothing runs for no rows, because go-ora
// panics at an empty slice, and a single row goes as plain arguments.
//
// go-ora asks for batch errors: the server goes on behind a row that fails, and the error
// is that of the first one that did. All others are done.
func array(ctx context.Context, tx dialect.Tx, statement string, columns ...any) error {
	rows := reflect.ValueOf(columns[0]).Len()
	args := make([]any, len(columns))
	for from := 0; from < rows; from += mostRows {
		to := min(from+mostRows, rows)
		for i, column := range columns {
			if v := reflect.ValueOf(column); to-from == 1 {
				args[i] = v.Index(from).Interface()
			} else {
				args[i] = v.Slice(from, to).Interface()
			}
		}
		if err := exec(ctx, tx, statement, args...); err != nil {
			return err
		}
	}
	return nil
}

// repeat is a column that is the same in all rows.
func repeat[T any](v T, rows int) []T {
	list := make([]T, rows)
	for i := range list {
		list[i] = v
	}
	return list
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

// query runs a statement and scans each row into a new T.
func query[T any](ctx context.Context, tx *sql.Tx, into func(*T) []any, statement string, args ...any) (list []T, err error) {
	rows, err := tx.QueryContext(ctx, statement, args...)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closing := rows.Close(); err == nil {
			err = closing
		}
	}()
	for rows.Next() {
		var row T
		if err := rows.Scan(into(&row)...); err != nil {
			return nil, err
		}
		list = append(list, row)
	}
	return list, rows.Err()
}

// queryList runs a statement for the elements of a list, as often as their number takes.
// An element is as many arguments as the statement's tuples have.
func queryList[T, E any](ctx context.Context, tx *sql.Tx, into func(*T) []any, q listed, before []any, list []E, element func(E) []any) (all []T, err error) {
	for len(list) > 0 {
		n := min(len(list), q.most())
		text, length := q.with(n)
		args := append([]any(nil), before...)
		for i := range length {
			args = append(args, element(list[min(i, n-1)])...)
		}
		rows, err := query(ctx, tx, into, text, args...)
		if err != nil {
			return nil, err
		}
		all = append(all, rows...)
		list = list[n:]
	}
	return all, nil
}

// one scans a row of one column.
func one[T any](v *T) []any { return []any{v} }

// number1 is an element of a list of numbers.
func number1(n int64) []any { return []any{n} }

// micros is a duration as statements take it. It rounds up, so that nothing is due
// early, and ends at what NUMTODSINTERVAL takes, 68 years.
func micros(d time.Duration) int64 {
	const longest = (1<<31 - 1) * time.Second
	d = max(-longest, min(d, longest))
	n := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		n++
	}
	return n
}

// raw is text as statements take it: bytes, which no character set is applied to. An
// empty one is NULL.
func raw(text string) []byte { return []byte(text) }

// bit is a truth as statements take it; SQL has none before version 23.
func bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
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

// textColumn scans text from bytes. NULL is the empty text.
type textColumn struct{ text *string }

// Scan implements [sql.Scanner].
func (c textColumn) Scan(value any) error {
	switch v := value.(type) {
	case nil:
		*c.text = ""
	case []byte:
		*c.text = string(v)
	default:
		return fmt.Errorf("text is a %T, not bytes", value)
	}
	return nil
}

// headersColumn scans headers, of which NULL stands for none.
type headersColumn struct{ text *string }

// Scan implements [sql.Scanner].
func (c headersColumn) Scan(value any) error {
	err := textColumn(c).Scan(value)
	if *c.text == "" {
		*c.text = noHeaders
	}
	return err
}

// noHeaders are headers that are kept as NULL.
const noHeaders = "{}"

// hashColumn scans the hash of a key, which tells whether there is one.
type hashColumn struct{ m *dialect.Message }

// Scan implements [sql.Scanner].
func (c hashColumn) Scan(value any) error {
	if err := c.m.KeyHash.Scan(value); err != nil {
		return err
	}
	c.m.Key.Valid = c.m.KeyHash.Valid
	return nil
}

// emptyColumn scans the mark of an empty payload, and comes before payloadColumn.
type emptyColumn struct{ payload *[]byte }

// Scan implements [sql.Scanner].
func (c emptyColumn) Scan(value any) error {
	var empty sql.Null[bool]
	if err := empty.Scan(value); err != nil {
		return err
	}
	*c.payload = nil
	if empty.V {
		*c.payload = []byte{}
	}
	return nil
}

// payloadColumn scans a payload that is neither absent nor empty.
type payloadColumn struct{ payload *[]byte }

// Scan implements [sql.Scanner].
func (c payloadColumn) Scan(value any) error {
	switch v := value.(type) {
	case nil:
	case []byte:
		if len(v) > 0 {
			*c.payload = bytes.Clone(v)
		}
	default:
		return fmt.Errorf("payload is a %T, not bytes", value)
	}
	return nil
}

// microsColumn scans a number of microseconds as a duration.
type microsColumn struct{ d *time.Duration }

// Scan implements [sql.Scanner].
func (c microsColumn) Scan(value any) error {
	var n sql.Null[int64]
	if err := n.Scan(value); err != nil {
		return err
	}
	*c.d = time.Duration(n.V) * time.Microsecond
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
	var n sql.Null[int64]
	if err := n.Scan(value); err != nil {
		return err
	}
	*c.t = time.UnixMicro(n.V).UTC()
	return nil
}

// rowColumns are the destinations of what ready and parked rows have in common. The server's
// numbers come as text, which [sql.Rows.Scan] turns into numbers.
func rowColumns(r *dialect.Row) []any {
	return []any{
		&r.Seq, &r.Pos, &r.Attempts, &r.Lane,
		idColumn{&r.ID},
		textColumn{&r.Topic},
		textColumn{&r.Key.V},
		hashColumn{&r.Message},
		textColumn{&r.Type},
		textColumn{&r.ContentType},
		timeColumn{&r.CreatedAt},
		&r.Revision, &r.Replay,
		microsColumn{&r.Age},
		headersColumn{&r.Headers},
	}
}
