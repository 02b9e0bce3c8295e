package postgres

import (
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/outbox-suite/outbox/dialect"
)

// messages runs a statement whose columns are those of rowColumns. These are the
// reads that carry whole batches: where the pool is one of pgx, they take the
// values as they lie in its buffer, which costs a third of what database/sql's
// way through boxed values does; otherwise, say behind a driver that
// instruments, that way is taken.
func messages(ctx context.Context, db dialect.DB, text string, args ...any) ([]dialect.Row, error) {
	pool, ok := db.(*sql.DB)
	if ok {
		_, ok = pool.Driver().(*stdlib.Driver)
	}
	if !ok {
		return query(ctx, db, rowColumns, text, args...)
	}
	var list []dialect.Row
	err := withConn(ctx, pool, func(conn *pgx.Conn) (err error) {
		list, err = binaryRows(ctx, conn, text, args)
		if pgconn.SafeToRetry(err) {
			return errOtherWay // the connection was dead already, which the pool knows to mend
		}
		return err
	})
	if errors.Is(err, errOtherWay) {
		return query(ctx, db, rowColumns, text, args...)
	}
	return list, hint(err)
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

// binaryRows reads rows in PostgreSQL's binary form of each type.
func binaryRows(ctx context.Context, conn *pgx.Conn, text string, args []any) (list []dialect.Row, err error) {
	if conn.Config().DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol {
		return nil, errOtherWay
	}
	rows, err := conn.Query(ctx, text, append([]any{pgx.QueryResultFormats{pgx.BinaryFormatCode}}, args...)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	d := decoder{texts: make(map[string]string, 8)}
	for rows.Next() {
		if list == nil && rows.FieldDescriptions()[0].Format != pgx.BinaryFormatCode {
			return nil, errOtherWay
		}
		list = append(list, dialect.Row{})
		d.values = rows.RawValues()
		if err := d.row(&list[len(list)-1]); err != nil {
			return nil, err
		}
	}
	return list, rows.Err()
}

// decoder decodes rows of the columns of rowColumns.
type decoder struct {
	values [][]byte
	texts  map[string]string
	err    error
}

func (d *decoder) row(r *dialect.Row) error {
	*r = dialect.Row{
		Seq: d.int(0), Pos: d.int(1), Attempts: int(d.int(2)),
		Message: dialect.Message{
			Lane: int(d.int(3)), Topic: d.common(5),
			Key:     sql.Null[string]{V: string(d.values[6]), Valid: d.values[6] != nil},
			KeyHash: sql.Null[int64]{V: d.int(7), Valid: d.values[7] != nil},
			Type:    d.common(8), ContentType: d.common(9), Headers: d.common(11),
			Revision: d.int(13), Replay: int(d.int(14)),
		},
		CreatedAt: time.UnixMicro(d.int(12) + postgresEpoch).UTC(),
		Age:       time.Duration(d.int(15)) * time.Microsecond,
		Blocked:   len(d.values[16]) == 1 && d.values[16][0] != 0,
	}
	if d.values[10] != nil {
		r.Payload = append([]byte{}, d.values[10]...) // the buffer is pgx's
	}
	if copy(r.ID[:], d.values[4]) != len(r.ID) {
		return fmt.Errorf("id has %d bytes, not %d", len(d.values[4]), len(r.ID))
	}
	return d.err
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

// common is a text that many rows of a batch share.
func (d *decoder) common(column int) string {
	v := d.values[column]
	if text, ok := d.texts[string(v)]; ok {
		return text
	}
	text := string(v)
	if len(d.texts) < 64 {
		d.texts[text] = text
	}
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

// rowColumns are the destinations of the columns that readySQL, dueSQL and
// parkedSQL begin with.
func rowColumns(r *dialect.Row) []any {
	return []any{
		&r.Seq, &r.Pos, &r.Attempts, &r.Lane,
		uuidColumn{&r.ID},
		&r.Topic, &r.Key, &r.KeyHash, &r.Type, &r.ContentType,
		&r.Payload, &r.Headers,
		utcColumn{&r.CreatedAt},
		&r.Revision, &r.Replay,
		microsColumn{&r.Age},
		&r.Blocked,
	}
}
