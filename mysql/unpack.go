package mysql

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// mostInlined is how many bytes of headers and payload come with the rest of a message.
const mostInlined = 32 << 10

// inlined is how many bytes of headers and payload a row may bring: all rows together
// no more than the limit, whatever is in the tables.
func inlined(limit dialect.Limit) int64 {
	if limit.Bytes <= 0 {
		return mostInlined
	}
	return min(mostInlined, limit.Bytes/int64(limit.Rows))
}

// unpacker reads the messages of a lane. What it keeps of them it copies into few pieces
// of memory for many messages: whoever holds on to a key, to headers or to a payload
// keeps up to a chunk of others.
type unpacker struct {
	lane int
	// parked rows tell their place, their attempts and their age; of ready ones it
	// follows from now, in microseconds since 1970 by the server's clock.
	parked bool
	now    int64
	// few rows each bring now, and there, the number of ready rows of all lanes that
	// were looked at.
	few   bool
	there int64
	rows  []dialect.Row
	// names are the topics and types there were, each once.
	names map[string]string
	// text holds the keys and headers of the rows from fresh on, and sizes how long.
	text  []byte
	sizes [][2]int
	fresh int
	// payloads is room for payloads.
	payloads []byte
	// missing are the rows, by number, whose headers and payload did not come.
	missing []int
}

// chunk is the size of the pieces.
const chunk = 64 << 10

// packedRow are the destinations of the columns that a message is read by. What the
// driver has as a number stays as it is.
type packedRow struct {
	seq, blocked, missing, hash, revision, replay, created, later, pos, attempts, now, there any

	headers, payload, idTopic, key, kind, content sql.RawBytes
}

func (p *packedRow) columns(parked, few bool) []any {
	columns := []any{
		&p.seq, &p.blocked,
		&p.missing, &p.headers, &p.payload, &p.idTopic, &p.key, &p.hash, &p.kind, &p.content, &p.revision, &p.replay, &p.created,
		&p.later,
	}
	if parked {
		columns = append(columns, &p.pos, &p.attempts)
	}
	if few {
		columns = append(columns, &p.now, &p.there)
	}
	return columns
}

// all runs a statement that returns such columns and returns the messages within the
// budget. What did not come with them is read by the statement bodies.
func (u *unpacker) all(ctx context.Context, tx *sql.Tx, b *budget, bodies, statement string, args ...any) ([]dialect.Row, error) {
	if err := u.read(ctx, tx, b, statement, args...); err != nil {
		return nil, err
	}
	if len(u.missing) > 0 {
		if err := u.readBodies(ctx, tx, bodies); err != nil {
			return nil, err
		}
	}
	return u.rows, nil
}

func (u *unpacker) read(ctx context.Context, tx *sql.Tx, b *budget, statement string, args ...any) (err error) {
	rows, err := tx.QueryContext(ctx, statement, args...)
	if err != nil {
		return err
	}
	defer func() {
		if closing := rows.Close(); err == nil {
			err = closing
		}
	}()
	var row packedRow
	columns := row.columns(u.parked, u.few)
	u.names = make(map[string]string)
	for b.left() && rows.Next() {
		if err := rows.Scan(columns...); err != nil {
			return err
		}
		size, err := u.add(&row)
		if err != nil {
			return err
		}
		b.spend(size)
	}
	u.flush()
	return rows.Err()
}

// add takes a row and returns the size that counts against a limit.
func (u *unpacker) add(p *packedRow) (size int64, err error) {
	var failed error
	number := func(value any) int64 {
		if n, ok := value.(int64); ok {
			return n
		}
		var n sql.NullInt64
		if err := n.Scan(value); err != nil && failed == nil {
			failed = err
		}
		return n.Int64
	}
	u.rows = append(u.rows, dialect.Row{})
	row := &u.rows[len(u.rows)-1]
	row.Lane, row.Seq = u.lane, number(p.seq)
	row.Blocked = number(p.blocked) != 0
	row.Revision, row.Replay = number(p.revision), int(number(p.replay))
	created, later := number(p.created), number(p.later)
	if u.few {
		u.now, u.there = number(p.now), number(p.there)
	}
	row.CreatedAt = time.UnixMicro(created).UTC()
	if u.parked {
		row.Pos, row.Attempts = number(p.pos), int(number(p.attempts))
		row.Age = time.Duration(later) * time.Microsecond
	} else {
		// The time is from a moment before the read.
		row.Age = max(0, time.Duration(u.now-created-later)*time.Microsecond)
	}
	if len(p.idTopic) < len(row.ID) {
		return 0, fmt.Errorf("id and topic have %d bytes, fewer than an id", len(p.idTopic))
	}
	row.Topic = u.name(p.idTopic[copy(row.ID[:], p.idTopic):])
	row.Type = u.name(p.kind)
	row.ContentType = "application/json"
	if p.content != nil {
		row.ContentType = u.name(p.content)
	}
	if p.key != nil {
		row.Key.Valid = true
		row.KeyHash = sql.Null[int64]{V: number(p.hash), Valid: true}
	}
	switch {
	case p.missing != nil:
		u.missing = append(u.missing, len(u.rows)-1)
		sizes := number(p.missing)
		if size = sizes % (1 << 24); !row.Blocked {
			size += sizes >> 24
		}
	case p.headers == nil:
		row.Headers = "{}"
		size = int64(len(row.Headers))
	default:
		size = int64(len(p.headers))
	}
	u.text = append(append(u.text, p.key...), p.headers...)
	u.sizes = append(u.sizes, [2]int{len(p.key), len(p.headers)})
	if p.payload != nil && !row.Blocked {
		size += int64(len(p.payload))
		row.Payload = u.keep(p.payload)
	}
	if len(u.text) >= chunk/2 {
		u.flush()
	}
	return size, failed
}

// name is a text that many messages have.
func (u *unpacker) name(text []byte) string {
	if known, ok := u.names[string(text)]; ok {
		return known
	}
	name := string(text)
	u.names[name] = name
	return name
}

// flush gives the fresh rows their keys and headers.
func (u *unpacker) flush() {
	text := string(u.text)
	for i, size := range u.sizes {
		row := &u.rows[u.fresh+i]
		row.Key.V, text = text[:size[0]], text[size[0]:]
		if size[1] > 0 {
			row.Headers, text = text[:size[1]], text[size[1]:]
		}
	}
	u.fresh, u.text, u.sizes = len(u.rows), u.text[:0], u.sizes[:0]
}

// keep copies a payload.
func (u *unpacker) keep(payload []byte) []byte {
	if len(payload) > chunk/4 {
		return bytes.Clone(payload)
	}
	if u.payloads == nil || len(u.payloads)+len(payload) > cap(u.payloads) {
		u.payloads = make([]byte, 0, chunk)
	}
	begin := len(u.payloads)
	u.payloads = append(u.payloads, payload...)
	return u.payloads[begin:len(u.payloads):len(u.payloads)]
}

// readBodies reads the headers and payloads that are missing. The payload of a blocked
// row stays where it is.
func (u *unpacker) readBodies(ctx context.Context, tx *sql.Tx, statement string) error {
	list := make([][2]int64, len(u.missing))
	rows := make(map[int64]*dialect.Row, len(u.missing))
	for i, n := range u.missing {
		row := &u.rows[n]
		place := row.Ref().Place
		list[i] = [2]int64{place, int64(1 - bit(row.Blocked))}
		rows[place] = row
	}
	type body struct {
		place   int64
		headers string
		payload []byte
	}
	bodies, err := query(ctx, tx, func(b *body) []any { return []any{&b.place, &b.headers, &b.payload} }, statement, asJSON(list), u.lane)
	if err != nil {
		return err
	}
	if len(bodies) != len(list) {
		return fmt.Errorf("%d of %d messages have gone while they were read", len(list)-len(bodies), len(list))
	}
	for _, b := range bodies {
		rows[b.place].Headers, rows[b.place].Payload = b.headers, b.payload
	}
	return nil
}
