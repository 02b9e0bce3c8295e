package postgres

import (
	"context"
	"database/sql"

	"github.com/outbox-suite/outbox/dialect"
)

// Insert adds the messages: one statement for the ready ones, one for the
// delayed ones.
func (s *store) Insert(ctx context.Context, tx dialect.Tx, messages []dialect.Message) error {
	var ready, delayed columns
	for i := range messages {
		if m := &messages[i]; m.Delay > 0 {
			delayed.add(m)
			delayed.delay = append(delayed.delay, micros(m.Delay))
		} else {
			ready.add(m)
		}
	}
	switch len(ready.id) {
	case 0:
	case 1:
		if err := run(ctx, tx, s.sql.insert, ready.first()...); err != nil {
			return err
		}
	default:
		if err := run(ctx, tx, s.sql.insertMany, ready.all()...); err != nil {
			return err
		}
	}
	if len(delayed.id) == 0 {
		return nil
	}
	return run(ctx, tx, s.sql.schedule, append(delayed.all(), delayed.delay)...)
}

// run runs a statement that says by an error, and nothing else, how it went.
func run(ctx context.Context, on execer, query string, args ...any) error {
	_, err := on.ExecContext(ctx, query, args...)
	return hint(err)
}

// columns are messages turned on their side, an array a column. A nil pointer
// or payload is NULL.
type columns struct {
	lane, replay         []int32
	id, topic, typ       []string
	contentType, headers []string
	key                  []*string
	keyHash, revision    []*int64
	payload              [][]byte
	delay                []int64
}

func (c *columns) add(m *dialect.Message) {
	c.lane = append(c.lane, int32(m.Lane)) //nolint:gosec // below dialect.MaxLanes
	c.id = append(c.id, uuidText(m.ID))
	c.topic = append(c.topic, m.Topic)
	c.key = append(c.key, nullable(m.Key))
	c.keyHash = append(c.keyHash, nullable(m.KeyHash))
	c.typ = append(c.typ, m.Type)
	c.contentType = append(c.contentType, m.ContentType)
	c.payload = append(c.payload, m.Payload)
	c.headers = append(c.headers, m.Headers)
	c.revision = append(c.revision, nullable(sql.Null[int64]{V: m.Revision, Valid: m.Revision != 0}))
	c.replay = append(c.replay, int32(m.Replay)) //nolint:gosec // counts what people do
}

// all are the arguments of insertManySQL, and of scheduleSQL but for the delay.
func (c *columns) all() []any {
	return []any{c.lane, c.id, c.topic, c.key, c.keyHash, c.typ, c.contentType, c.payload, c.headers, c.revision, c.replay}
}

// first are the arguments of insertSQL.
func (c *columns) first() []any {
	return []any{
		c.lane[0], c.id[0], c.topic[0], c.key[0], c.keyHash[0], c.typ[0], c.contentType[0],
		c.payload[0], c.headers[0], c.revision[0], c.replay[0],
	}
}

// nullable is nil or the value: pointers reach pgx's arrays as NULL or not,
// which sql.Null does not in every mode.
func nullable[T any](v sql.Null[T]) *T {
	if !v.Valid {
		return nil
	}
	return &v.V
}
