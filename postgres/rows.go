package postgres

import (
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/outbox-suite/outbox/dialect"
)

// batchOf is how the rows of a batch are read.
type batchOf struct {
	lane    int
	limit   dialect.Limit
	columns func(*dialect.Row) []any
	decode  func(*decoder, *dialect.Row)
}

// messages reads a batch. Where the pool is one of pgx, it takes the values as they lie
// in its buffer, which costs a third of what database/sql's way through boxed values
// does; otherwise, say behind a driver that instruments, that way is taken.
func messages(ctx context.Context, db dialect.DB, b batchOf, text string, args ...any) ([]dialect.Row, error) {
	pool, ok := db.(*sql.DB)
	if ok {
		_, ok = pool.Driver().(*stdlib.Driver)
	}
	if !ok {
		return boxedRows(ctx, db, b, text, args)
	}
	var list []dialect.Row
	err := withConn(ctx, pool, func(conn *pgx.Conn) (err error) {
		list, err = binaryRows(ctx, conn, b, text, args)
		if pgconn.SafeToRetry(err) {
			return errOtherWay // the connection was dead already, which the pool knows to mend
		}
		return err
	})
	if errors.Is(err, errOtherWay) {
		return boxedRows(ctx, db, b, text, args)
	}
	return list, hint(err)
}

// boxedRows reads a batch through database/sql.
func boxedRows(ctx context.Context, db dialect.DB, b batchOf, text string, args []any) ([]dialect.Row, error) {
	list, err := query(ctx, db, b.columns, text, args...)
	for i := range list {
		list[i].Lane = b.lane
	}
	return list, err
}

// withConn does something with a connection of pgx itself.
func withConn(ctx context.Context, pool *sql.DB, do func(conn *pgx.Conn) error) (err error) {
	conn, err := pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if closing := conn.Close(); err == nil {
			err = closing
		}
	}()
	return conn.Raw(func(driven any) error {
		if c, ok := driven.(*stdlib.Conn); ok {
			return do(c.Conn())
		}
		return errOtherWay
	})
}

// errOtherWay tells that rows are to be read through database/sql: nothing was asked
// yet, or the values do not come in their binary form, as in the simple protocol.
var errOtherWay = errors.New("rows are read the other way")

// binaryRows reads a batch in PostgreSQL's binary form of each type.
func binaryRows(ctx context.Context, conn *pgx.Conn, b batchOf, text string, args []any) (list []dialect.Row, err error) {
	if conn.Config().DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol {
		return nil, errOtherWay
	}
	rows, err := conn.Query(ctx, text, append([]any{pgx.QueryResultFormats{pgx.BinaryFormatCode}}, args...)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	d := decoder{texts: make(map[string]string, 8)}
	list = b.limit.Room[:0]
	for rows.Next() {
		if len(list) == 0 && rows.FieldDescriptions()[0].Format != pgx.BinaryFormatCode {
			return nil, errOtherWay
		}
		// A row is large: rather than to double, the list soon has room for all.
		if n := len(list); n == cap(list) {
			list = slices.Grow(list, max(min(8*n+16, b.limit.Rows)-n, 1))
		}
		list = list[:len(list)+1]
		d.values = rows.RawValues()
		r := &list[len(list)-1]
		*r = dialect.Row{}
		r.Lane = b.lane
		d.message(r)
		b.decode(&d, r)
		if d.err != nil {
			return nil, d.err
		}
	}
	return list, rows.Err()
}

// decoder decodes rows whose columns begin with those of messageColumns.
type decoder struct {
	values [][]byte
	texts  map[string]string
	last   [9]string // by column
	room   []byte
	err    error
}

// message decodes the columns of messageColumns into a row that is empty.
func (d *decoder) message(r *dialect.Row) {
	r.Seq = d.int(0)
	if copy(r.ID[:], d.values[1]) != len(r.ID) {
		d.err = fmt.Errorf("id has %d bytes, not %d", len(d.values[1]), len(r.ID))
	}
	r.Topic = d.common(2)
	if d.values[3] != nil {
		r.Key = sql.Null[string]{V: string(d.values[3]), Valid: true}
	}
	if d.values[4] != nil {
		r.KeyHash = sql.Null[int64]{V: d.int(4), Valid: true}
	}
	r.Type, r.ContentType = d.common(5), d.common(6)
	r.Payload = d.bytes(7)
	r.Headers = d.common(8)
	r.CreatedAt = time.UnixMicro(d.int(9) + postgresEpoch).UTC()
	r.Revision, r.Replay = d.int(10), int(d.int(11))
	r.Age = time.Duration(d.int(12)) * time.Microsecond
}

// decodeReady decodes what readyColumns have beyond messageColumns.
func decodeReady(d *decoder, r *dialect.Row) {
	r.Blocked = len(d.values[13]) == 1 && d.values[13][0] != 0
}

// decodeParked decodes what parkedColumns have beyond messageColumns.
func decodeParked(d *decoder, r *dialect.Row) {
	r.Pos, r.Attempts = d.int(13), int(d.int(14))
}

// postgresEpoch is 2000-01-01 UTC, from which timestamps count their microseconds,
// in those since 1970.
const postgresEpoch = 946_684_800_000_000

// int is an integer or a timestamp; 0 for NULL.
func (d *decoder) int(column int) int64 {
	switch v := d.values[column]; len(v) {
	case 0:
		return 0
	case 4:
		return int64(int32(binary.BigEndian.Uint32(v))) //nolint:gosec // two's complement is what it is
	case 8:
		return int64(binary.BigEndian.Uint64(v)) //nolint:gosec // as above
	default:
		d.err = fmt.Errorf("column %d has %d bytes, not 4 or 8", column+1, len(v))
		return 0
	}
}

// Payloads up to fewBytes share pieces of memory of pieceBytes, because it is the number
// of allocations that costs. As long as somebody keeps one, its piece stays.
const (
	fewBytes   = 1 << 10
	pieceBytes = 16 << 10
)

// bytes is a copy of a value: the buffer is pgx's. It is nil for NULL.
func (d *decoder) bytes(column int) []byte {
	v := d.values[column]
	if v == nil || len(v) > fewBytes {
		return slices.Clone(v)
	}
	if d.room == nil || cap(d.room)-len(d.room) < len(v) {
		d.room = make([]byte, 0, max(fewBytes, min(4*cap(d.room), pieceBytes)))
	}
	n := len(d.room)
	d.room = append(d.room, v...)
	return d.room[n:len(d.room):len(d.room)]
}

// common is a text that many rows of a batch share.
func (d *decoder) common(column int) string {
	v, last := d.values[column], &d.last[column]
	if string(v) == *last {
		return *last
	}
	text, ok := d.texts[string(v)]
	if !ok {
		text = string(v)
		if len(d.texts) < 64 {
			d.texts[text] = text
		}
	}
	*last = text
	return text
}

// uuidColumn scans a uuid, which the driver hands over as text.
type uuidColumn struct{ id *[16]byte }

func (u uuidColumn) Scan(value any) error {
	text, ok := value.(string)
	if !ok {
		return fmt.Errorf("id is a %T, not the text of a uuid", value)
	}
	digits := strings.ReplaceAll(text, "-", "")
	if hex.DecodedLen(len(digits)) != len(u.id) {
		return fmt.Errorf("id %q is no uuid", text)
	}
	_, err := hex.Decode(u.id[:], []byte(digits))
	return err
}

// microsColumn scans a number of microseconds as a duration.
type microsColumn struct{ d *time.Duration }

func (m microsColumn) Scan(value any) error {
	n, ok := value.(int64)
	if !ok {
		return fmt.Errorf("duration is a %T, not a number of microseconds", value)
	}
	*m.d = time.Duration(n) * time.Microsecond
	return nil
}

// nullMicrosColumn is microsColumn for a column that may be NULL.
type nullMicrosColumn struct{ d *sql.Null[time.Duration] }

func (m nullMicrosColumn) Scan(value any) error {
	m.d.Valid = value != nil
	if value == nil {
		return nil
	}
	return microsColumn{&m.d.V}.Scan(value)
}

// utcColumn scans a time, which the driver hands over in the local zone.
type utcColumn struct{ t *time.Time }

func (u utcColumn) Scan(value any) error {
	t, ok := value.(time.Time)
	if !ok {
		return fmt.Errorf("time is a %T", value)
	}
	*u.t = t.UTC()
	return nil
}

// zeroColumn scans NULL as zero.
type zeroColumn[T any] struct{ v *T }

func (z zeroColumn[T]) Scan(value any) error {
	var n sql.Null[T]
	err := n.Scan(value)
	*z.v = n.V
	return err
}

// messageColumns are the destinations of the columns that readySQL, dueSQL and
// parkedSQL begin with.
func messageColumns(r *dialect.Row) []any {
	return []any{
		zeroColumn[int64]{&r.Seq},
		uuidColumn{&r.ID},
		&r.Topic, &r.Key, &r.KeyHash, &r.Type, &r.ContentType,
		&r.Payload, &r.Headers,
		utcColumn{&r.CreatedAt},
		zeroColumn[int64]{&r.Revision},
		zeroColumn[int]{&r.Replay},
		microsColumn{&r.Age},
	}
}

// readyColumns are those of readySQL.
func readyColumns(r *dialect.Row) []any {
	return append(messageColumns(r), zeroColumn[bool]{&r.Blocked})
}

// parkedColumns are those of dueSQL, and those that parkedSQL begins with.
func parkedColumns(r *dialect.Row) []any {
	return append(messageColumns(r), &r.Pos, &r.Attempts)
}
