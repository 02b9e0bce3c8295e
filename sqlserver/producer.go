package sqlserver

import (
	"context"
	"database/sql"
	"encoding/hex"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/outbox-suite/outbox/dialect"
)

// An insert is cut into statements of at most these many rows and, unless a row alone
// has more, bytes. A row takes a lock in each index, and locks escalate from 5,000 a
// statement unless LOCK_ESCALATION is DISABLE, as it is here.
const (
	mostRows  = 1000
	mostBytes = 4 << 20
)

// Insert adds the messages, mostly one statement for the ready ones and one for the
// delayed ones. Bytes travel in hexadecimal, twice their size.
func (s *store) Insert(ctx context.Context, tx dialect.Tx, messages []dialect.Message) error {
	ready, delayed := batch{text: s.sql.insert}, batch{text: s.sql.schedule}
	for i := range messages {
		m := &messages[i]
		size := len(m.Payload) + len(m.Headers)
		b := &ready
		if m.Delay > 0 {
			b = &delayed
		}
		if b.full(size) {
			if err := b.send(ctx, tx); err != nil {
				return err
			}
		}
		b.add(m, size)
	}
	if err := ready.send(ctx, tx); err != nil {
		return err
	}
	return delayed.send(ctx, tx)
}

// batch are the messages of one statement.
type batch struct {
	text  string
	rows  []row
	bytes int
}

// row is a message in a list; see messageList. A nil pointer is NULL.
type row struct {
	N           int     `json:"n"`
	Lane        int     `json:"lane"`
	ID          string  `json:"id"`
	Topic       string  `json:"topic"`
	Key         *string `json:"key"`
	Hash        *int64  `json:"hash"`
	Type        string  `json:"type"`
	ContentType string  `json:"content_type"`
	Payload     *string `json:"payload"`
	Headers     string  `json:"headers"`
	Revision    *int64  `json:"revision"`
	Replay      int     `json:"replay"`
	Delay       int64   `json:"delay"`
}

// full tells that a message of that size needs another statement.
func (b *batch) full(size int) bool {
	return len(b.rows) == mostRows || len(b.rows) > 0 && b.bytes+size > mostBytes
}

func (b *batch) add(m *dialect.Message, size int) {
	r := row{
		N: len(b.rows), Lane: m.Lane, ID: hex.EncodeToString(m.ID[:]),
		Topic: inHex(m.Topic), Type: inHex(m.Type), ContentType: inHex(m.ContentType), Headers: inHex(m.Headers),
		Hash: pointer(m.KeyHash), Replay: m.Replay, Delay: micros(m.Delay),
		Revision: pointer(sql.Null[int64]{V: m.Revision, Valid: m.Revision != 0}),
		Key:      pointer(sql.Null[string]{V: inHex(m.Key.V), Valid: m.Key.Valid}),
		Payload:  pointer(sql.Null[string]{V: hex.EncodeToString(m.Payload), Valid: m.Payload != nil}),
	}
	b.rows = append(b.rows, r)
	b.bytes += size
}

// send inserts what is in the batch and empties it. The list goes as varchar(max), half
// of what nvarchar would be on the wire.
func (b *batch) send(ctx context.Context, tx dialect.Tx) error {
	if len(b.rows) == 0 {
		return nil
	}
	_, err := tx.ExecContext(ctx, b.text, mssql.VarCharMax(marshal(b.rows)))
	b.rows, b.bytes = nil, 0
	return err
}

func pointer[T any](v sql.Null[T]) *T {
	if !v.Valid {
		return nil
	}
	return &v.V
}

// inHex is text as statements take it in a list.
func inHex(text string) string { return hex.EncodeToString([]byte(text)) }
