package sqlite

import (
	"context"
	"database/sql"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// Ready implements [dialect.Turn]. Few values are read faster than many: it reads all
// messages in one, or by their columns where that cannot be.
func (s *store) Ready(ctx context.Context, db dialect.DB, lane int, after int64, limit dialect.Limit) ([]dialect.Row, error) {
	if s.unpackable.Add(-1) < 0 {
		rows, ok, err := s.readPacked(ctx, db, lane, after, limit)
		if ok || err != nil {
			return rows, err
		}
		s.unpackable.Store(16) // what comes next is much the same
	}
	return s.readColumns(ctx, db, lane, after, limit)
}

// readColumns reads any messages.
func (s *store) readColumns(ctx context.Context, db dialect.DB, lane int, after int64, limit dialect.Limit) ([]dialect.Row, error) {
	into := newScanner()
	into.row.Lane = lane
	return readRows(ctx, db, newBudget(limit), into, s.sql.ready, lane, after, limit.Rows)
}

// largestPacked is how large the payload and headers of a message may be that is read
// packed. That bounds what is read at once, and the driver's time for a larger one does not
// go by the value.
const largestPacked = 2048

// readPacked returns false if one of the messages is too large, or has a text that only its
// column can tell.
func (s *store) readPacked(ctx context.Context, db dialect.DB, lane int, after int64, limit dialect.Limit) (rows []dialect.Row, ok bool, err error) {
	var (
		p            packed
		complete     bool
		fields       sql.Null[string]
		ids, payload sql.RawBytes
	)
	err = query(ctx, db, func(r *sql.Rows) (bool, error) {
		if err := r.Scan(&complete, &p.now, &fields, &ids, &payload); err != nil {
			return false, err
		}
		p.fields, p.ids, p.payloads = fields.V, ids, payload
		if ok = complete && p.whole(); ok {
			rows, err = p.rows(lane, limit)
		}
		return false, err
	}, s.sql.packed, lane, after, limit.Rows, largestPacked)
	if err != nil {
		return nil, false, err
	}
	return rows, ok, nil
}

// packed are the messages of a row of packedSQL.
type packed struct {
	now           int64
	fields        string
	ids, payloads []byte
}

// fieldsPacked is how many fields a message has.
const fieldsPacked = 12

// whole tells whether all that is between two U+0000 is one field.
func (p *packed) whole() bool {
	n := len(p.ids) / len(id{})
	return n == 0 || strings.Count(p.fields, "\x00") == n*fieldsPacked-1
}

// field takes the next field.
func (p *packed) field() (text string) {
	text, p.fields, _ = strings.Cut(p.fields, "\x00")
	return text
}

// rows are the messages until the budget is spent. What they hold is copied, lest one
// that is kept keeps all.
func (p *packed) rows(lane int, limit dialect.Limit) ([]dialect.Row, error) {
	n := len(p.ids) / len(id{})
	if n == 0 {
		return nil, nil
	}
	all := slices.Grow(limit.Room[:0], n)
	texts := make(map[string]string) // those that many messages share
	shared := func(text string) string {
		known, ok := texts[text]
		if !ok {
			known = strings.Clone(text)
			texts[known] = known
		}
		return known
	}
	var headers string // of the message before
	for b := newBudget(limit); len(all) < n && b.left(); {
		var numbers [6]int64
		for i := range numbers {
			var err error
			if numbers[i], err = strconv.ParseInt(p.field(), 10, 64); err != nil {
				return nil, err
			}
		}
		flags, size := numbers[4], numbers[5]
		row := dialect.Row{Seq: numbers[0], CreatedAt: time.UnixMicro(numbers[1]).UTC(), Age: max(0, micros(p.now-numbers[2])), Blocked: flags&2 != 0}
		row.Lane, row.ID, row.Revision, row.Replay = lane, id(p.ids), numbers[3], int(flags>>2)
		p.ids = p.ids[len(id{}):]
		if hash := p.field(); hash != "" {
			h, err := strconv.ParseInt(hash, 10, 64)
			if err != nil {
				return nil, err
			}
			row.KeyHash = sql.Null[int64]{V: h, Valid: true}
		}
		row.Key = sql.Null[string]{V: strings.Clone(p.field()), Valid: row.KeyHash.Valid}
		row.Topic, row.Type, row.ContentType = shared(p.field()), shared(p.field()), shared(p.field())
		if text := p.field(); text != headers {
			headers = strings.Clone(text)
		}
		row.Headers = headers
		if !row.Blocked && flags&1 == 0 {
			row.Payload = append(make([]byte, 0, size), p.payloads[:size]...)
			p.payloads = p.payloads[size:]
		}
		b.spend(&row)
		all = append(all, row)
	}
	return all, nil
}
