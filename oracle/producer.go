package oracle

import (
	"context"
	"database/sql"

	driver "github.com/sijms/go-ora/v2"

	"github.com/outbox-suite/outbox/dialect"
)

// Insert adds the messages, one array for the ready ones and one for the delayed ones.
// The server gives each row of an array its seq in turn.
//
// An array does not stop at a message whose id is taken: all others are inserted, and go
// with the caller's rollback.
//
// A payload or headers of more than 2,000 bytes cost four round trips more each: they go
// as a temporary LOB.
func (s *store) Insert(ctx context.Context, tx dialect.Tx, messages []dialect.Message) error {
	var ready, delayed batch
	for i := range messages {
		m := &messages[i]
		if m.Delay > 0 {
			delayed.add(m)
			delayed.delay = append(delayed.delay, micros(m.Delay))
		} else {
			ready.add(m)
		}
	}
	for from := 0; from < len(ready.lane); from += mostRows {
		if err := array(ctx, tx, s.sql.insert, ready.columns(from)...); err != nil {
			return err
		}
	}
	for from := 0; from < len(delayed.lane); from += mostRows {
		if err := array(ctx, tx, s.sql.schedule, delayed.columns(from)...); err != nil {
			return err
		}
	}
	return nil
}

// batch are messages on their side, a slice a column.
type batch struct {
	lane, replay, empty, delay        []int64
	id, topic, key, kind, contentType [][]byte
	keyHash, revision                 []sql.NullInt64
	headers, payload                  [][]byte
}

func (b *batch) add(m *dialect.Message) {
	b.lane = append(b.lane, int64(m.Lane))
	// A slice: go-ora takes an array of 16 bytes for 16 rows.
	b.id = append(b.id, m.ID[:])
	b.topic = append(b.topic, raw(m.Topic))
	var key []byte
	if m.Key.Valid {
		key = raw(m.Key.V)
	}
	b.key = append(b.key, key)
	b.keyHash = append(b.keyHash, sql.NullInt64{Int64: m.KeyHash.V, Valid: m.KeyHash.Valid})
	b.kind = append(b.kind, raw(m.Type))
	b.contentType = append(b.contentType, raw(m.ContentType))
	b.revision = append(b.revision, sql.NullInt64{Int64: m.Revision, Valid: m.Revision != 0})
	b.replay = append(b.replay, int64(m.Replay))
	b.empty = append(b.empty, bit(m.Payload != nil && len(m.Payload) == 0))
	var headers []byte
	if m.Headers != noHeaders {
		headers = raw(m.Headers)
	}
	b.headers = append(b.headers, headers)
	b.payload = append(b.payload, m.Payload)
}

// columns are the arguments of insertSQL, or of scheduleSQL where there are delays, for
// the rows of one array.
func (b *batch) columns(from int) []any {
	to := min(from+mostRows, len(b.lane))
	list := []any{
		b.lane[from:to], b.id[from:to], b.topic[from:to], b.key[from:to], b.keyHash[from:to], b.kind[from:to],
		b.contentType[from:to], b.revision[from:to], b.replay[from:to], b.empty[from:to],
	}
	if b.delay != nil {
		list = append(list, b.delay[from:to])
	}
	return append(list, blobs(b.headers[from:to]), blobs(b.payload[from:to]))
}

// mostRaw is the most bytes that go as RAW: what the type holds in SQL everywhere. More
// would become LONG RAW, and a column of both has the type of its last row.
const mostRaw = 2000

// blobs is a column of bytes: RAW, which the server turns into a BLOB, unless one of them
// has too many. Then all are LOBs, so that the column has one type. nil and empty are
// NULL either way.
func blobs(list [][]byte) any {
	large := false
	for _, data := range list {
		large = large || len(data) > mostRaw
	}
	if !large {
		return list
	}
	all := make([]driver.Blob, len(list))
	for i, data := range list {
		all[i] = driver.Blob{Data: data, Valid: data != nil}
	}
	return all
}
