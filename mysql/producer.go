package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/outbox-suite/outbox/dialect"
)

// An insert is cut into statements of at most these many rows and, unless a row alone
// has more, bytes. The rows stay below the 65,535 placeholders of a statement, the
// bytes, which may double on the way, below the defaults of max_allowed_packet: 16 MiB
// on MariaDB, 64 MiB on MySQL. Whether the server's is smaller is asked when there are
// more bytes than askedBytes.
const (
	mostRows   = 1000
	mostBytes  = 4 << 20
	askedBytes = 256 << 10
)

// Insert adds the messages, mostly one statement for the ready ones and one for the
// delayed ones.
//
// A message that no packet of the server can hold is refused with
// [mysql.ErrPktTooLarge] before anything of it is sent: the server would close the
// connection in the middle of the caller's transaction.
func (s *store) Insert(ctx context.Context, tx dialect.Tx, messages []dialect.Message) error {
	most, err := mostOf(ctx, tx, messages)
	if err != nil {
		return err
	}
	var ready, delayed batch
	for i := range messages {
		m := &messages[i]
		b, text, row := &ready, s.sql.insert, insertRow
		if m.Delay > 0 {
			b, text, row = &delayed, s.sql.schedule, scheduleRow
		}
		if b.full(m, most) {
			if err := b.send(ctx, tx, text, row); err != nil {
				return err
			}
		}
		b.add(m, sql.Null[int64]{V: m.Revision, Valid: m.Revision != 0})
	}
	if err := ready.send(ctx, tx, s.sql.insert, insertRow); err != nil {
		return err
	}
	return delayed.send(ctx, tx, s.sql.schedule, scheduleRow)
}

// mostOf is how many bytes a statement may have for the messages, or why none may have
// one of them.
func mostOf(ctx context.Context, tx dialect.Tx, messages []dialect.Message) (int, error) {
	total, largest := 0, 0
	for i := range messages {
		total += sizeOf(&messages[i])
		largest = max(largest, sizeOf(&messages[i]))
	}
	if total <= askedBytes {
		return mostBytes, nil
	}
	packet, err := largestPacket(ctx, tx)
	if err != nil {
		return 0, err
	}
	const rest = 16 << 10 // for the statement, and what of a row is escaped
	if packet > 0 && largest+rest > packet {
		return 0, fmt.Errorf("a message has %d bytes and the server's max_allowed_packet is %d: raise it, "+
			"or store the payload elsewhere and send a reference: %w", largest, packet, mysql.ErrPktTooLarge)
	}
	if packet > 0 {
		return min(mostBytes, packet/4), nil
	}
	return mostBytes, nil
}

// sizeOf is about what a message takes in a packet.
func sizeOf(m *dialect.Message) int {
	const numbers = 128 // id, lane, hash, revision, times and what stands between
	return len(m.Payload) + len(m.Headers) + len(m.Topic) + len(m.Key.V) + len(m.Type) + len(m.ContentType) + numbers
}

// largestPacket asks the server for its max_allowed_packet; 0 when the transaction
// cannot ask.
func largestPacket(ctx context.Context, tx dialect.Tx) (largest int, err error) {
	asks, ok := tx.(interface {
		QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	})
	if !ok {
		return 0, nil
	}
	err = asks.QueryRowContext(ctx, largestPacketSQL).Scan(&largest)
	return largest, err
}

// batch are the messages of one statement.
type batch struct {
	rows, bytes int
	args        []any
}

// full tells that the message needs another statement.
func (b *batch) full(m *dialect.Message, most int) bool {
	return b.rows == mostRows || b.rows > 0 && b.bytes+sizeOf(m) > most
}

// add adds a message, whose revision takes these arguments.
func (b *batch) add(m *dialect.Message, revision ...any) {
	b.rows++
	b.bytes += sizeOf(m)
	// Text goes as bytes, which no character set is applied to. A nil slice is NULL.
	b.args = append(b.args, m.Lane, m.ID[:], []byte(m.Topic), nullBytes(m.Key), m.KeyHash, []byte(m.Type),
		[]byte(m.ContentType), m.Payload, []byte(m.Headers))
	b.args = append(append(b.args, revision...), m.Replay)
	if m.Delay > 0 {
		b.args = append(b.args, micros(m.Delay))
	}
}

func nullBytes(text sql.Null[string]) []byte {
	if !text.Valid {
		return nil
	}
	return []byte(text.V)
}

// send inserts what is in the batch and empties it.
func (b *batch) send(ctx context.Context, tx dialect.Tx, text, row string) error {
	if b.rows == 0 {
		return nil
	}
	_, err := tx.ExecContext(ctx, text+row+strings.Repeat(", "+row, b.rows-1), b.args...)
	*b = batch{}
	return err
}
