package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// Stats counts in one statement.
func (s *store) Stats(ctx context.Context, db dialect.DB, limit int64) (stats dialect.Stats, err error) {
	_, err = query1(ctx, db, []any{
		&stats.Ready, &stats.Scheduled, &stats.Retry, &stats.Held, &stats.Dead, &stats.BlockedKeys,
		microsColumn{&stats.OldestReady},
		&stats.LanesHeld, &stats.LanesExpired, &stats.LanesTotal,
	}, s.sql.stats, limit)
	return stats, err
}

// Parked lists in one statement.
func (s *store) Parked(ctx context.Context, db dialect.DB, filter dialect.Filter, after int64, limit int) ([]dialect.Parked, error) {
	f := s.parkedFilter(filter)
	if f.empty() {
		return nil, nil
	}
	return query(ctx, db, func(p *dialect.Parked) []any {
		return append(parkedColumns(&p.Row), &p.Lane, &p.State, &p.Blocking, &p.Reason, nullMicrosColumn{&p.DueIn}, utcColumn{&p.ParkedAt})
	}, s.sql.parked.with(&f, 2), f.after(after, limit)...)
}

// Requeue works lane by lane, a transaction each.
func (s *store) Requeue(ctx context.Context, db dialect.DB, filter dialect.Filter, limit int) (int, error) {
	return s.laneByLane(ctx, db, filter, limit, s.sql.requeueLanes, s.sql.requeue)
}

// Discard works lane by lane, a transaction each.
func (s *store) Discard(ctx context.Context, db dialect.DB, filter dialect.Filter, limit int) (int, error) {
	return s.laneByLane(ctx, db, filter, limit, s.sql.discardLanes, s.sql.discard)
}

// laneByLane finds the lanes that have something to change and runs change in
// each, under the lock of the lane row, until limit rows are changed.
func (s *store) laneByLane(ctx context.Context, db dialect.DB, filter dialect.Filter, limit int, find, change filtered) (int, error) {
	f := s.parkedFilter(filter)
	if f.empty() {
		return 0, nil
	}
	lanes, err := query(ctx, db, one[int], find.with(&f, 0), f.after()...)
	if err != nil {
		return 0, err
	}
	total := 0
	for _, lane := range lanes {
		if total >= limit {
			break
		}
		n := 0
		_, err := inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
			if _, err := exec(ctx, tx, s.sql.lockLane, lane); err != nil {
				return false, err
			}
			var keys []int64
			counts, err := query(ctx, tx, func(k *keyCount) []any { return []any{&k.key, &k.rows} },
				change.with(&f, 2), f.after(lane, limit-total)...)
			if err != nil {
				return false, err
			}
			for _, k := range counts {
				n += k.rows
				if k.key.Valid {
					keys = append(keys, k.key.V)
				}
			}
			return true, s.promote(ctx, tx, lane, keys)
		})
		if err != nil {
			return total, err
		}
		total += n
	}
	return total, nil
}

// keyCount is how many rows of a key were changed.
type keyCount struct {
	key  sql.Null[int64]
	rows int
}

// Replay copies a batch in one statement; the first call reads the server's
// clock before, to bound all calls.
func (s *store) Replay(ctx context.Context, db dialect.DB, filter dialect.Filter, cursor *dialect.Cursor, limit int) (int, *dialect.Cursor, error) {
	return s.replay(ctx, db, s.sql.replay, filter, cursor, limit)
}

// Replayable counts a batch in one statement.
func (s *store) Replayable(ctx context.Context, db dialect.DB, filter dialect.Filter, cursor *dialect.Cursor, limit int) (int, *dialect.Cursor, error) {
	return s.replay(ctx, db, s.sql.replayable, filter, cursor, limit)
}

func (s *store) replay(ctx context.Context, db dialect.DB, statement filtered, filter dialect.Filter, cursor *dialect.Cursor, limit int) (int, *dialect.Cursor, error) {
	f := s.doneFilter(filter)
	if f.empty() {
		return 0, nil, nil
	}
	var next dialect.Cursor
	if cursor != nil {
		next = *cursor
	} else {
		var now int64
		if _, err := query1(ctx, db, []any{&now}, s.sql.clock); err != nil {
			return 0, nil, err
		}
		next = dialect.FirstCursor(filter, now, micros)
	}
	var messages, read int
	var last dialect.Cursor
	_, err := query1(ctx, db, []any{&messages, &read, &last.DoneAt, &last.Pos},
		statement.with(&f, 5), f.after(next.DoneAt, next.Pos, next.Until, limit, next.Begun)...)
	if err != nil || read < limit {
		return messages, nil, err
	}
	if read > 0 {
		next.DoneAt, next.Pos = last.DoneAt, last.Pos
	}
	return messages, &next, nil
}

// Purge deletes a batch in one statement.
func (s *store) Purge(ctx context.Context, db dialect.DB, olderThan time.Duration, limit int) (int, error) {
	n, err := exec(ctx, db, s.sql.purge, micros(olderThan), limit)
	return int(n), err
}

// Purgeable counts in one statement.
func (s *store) Purgeable(ctx context.Context, db dialect.DB, olderThan time.Duration, limit int) (n int, err error) {
	_, err = query1(ctx, db, []any{&n}, s.sql.purgeable, micros(olderThan), limit)
	return n, err
}

// ClaimPurge marks the time of the purge in one statement.
func (s *store) ClaimPurge(ctx context.Context, db dialect.DB, every time.Duration) (bool, error) {
	n, err := exec(ctx, db, s.sql.claimPurge, micros(every))
	return n == 1, err
}

// Record inserts the message id for the consumer.
func (s *store) Record(ctx context.Context, tx dialect.Tx, consumer, messageID string) (fresh bool, err error) {
	n, err := exec(ctx, tx, s.sql.record, consumer, messageID)
	return n == 1, err
}

// Recorded looks the message id up.
func (s *store) Recorded(ctx context.Context, db dialect.DB, consumer, messageID string) (recorded bool, err error) {
	_, err = query1(ctx, db, []any{&recorded}, s.sql.recorded, consumer, messageID)
	return recorded, err
}

// PurgeInbox deletes a batch in one statement.
func (s *store) PurgeInbox(ctx context.Context, db dialect.DB, olderThan time.Duration, limit int) (int, error) {
	n, err := exec(ctx, db, s.sql.purgeInbox, micros(olderThan), limit)
	return int(n), err
}

// filtered is a statement around the conditions of a filter. It is cut before
// names are filled in, so that no name can be taken for the place.
type filtered struct{ head, tail string }

func split(text string, expand func(string) string) filtered {
	head, tail, _ := strings.Cut(text, "{filter}")
	return filtered{expand(head), expand(tail)}
}

// with renders the statement with f's conditions, whose parameters follow the
// statement's own.
func (q filtered) with(f *conditions, own int) string {
	var b strings.Builder
	b.WriteString(q.head)
	for _, c := range f.list {
		own++
		fmt.Fprintf(&b, "\n      AND "+c.text, own)
	}
	b.WriteString(q.tail)
	return b.String()
}

// conditions are those of a [dialect.Filter] that are set. Only these are
// written, because a condition that is switched off by a parameter would hide
// the others from the indexes.
type conditions struct {
	all  bool
	list []condition
}

type condition struct {
	text string // with one %d for the number of its parameter
	arg  any
}

// empty tells that the filter matches nothing.
func (f *conditions) empty() bool { return !f.all && len(f.list) == 0 }

// after are the arguments: the statement's own, then the conditions'.
func (f *conditions) after(own ...any) []any {
	for _, c := range f.list {
		own = append(own, c.arg)
	}
	return own
}

// The conditions. Each takes one parameter.
const (
	byIDs     = "id = ANY ($%d::text[]::uuid[])"
	byLane    = "lane = $%d::int"
	byKeyHash = "key_hash = $%d::bigint"
	byKey     = "key = $%d::text"
	byTopic   = "topic = $%d::text"
	byType    = "type = $%d::text"
	byStates  = "state = ANY ($%d::text[])"
)

// content are the conditions on content columns.
func (s *store) content(filter dialect.Filter, table string) conditions {
	f := conditions{all: filter.All}
	add := func(text string, arg any) { f.list = append(f.list, condition{table + "." + text, arg}) }
	if len(filter.IDs) > 0 {
		ids := make([]string, len(filter.IDs))
		for i, id := range filter.IDs {
			ids[i] = uuidText(id)
		}
		add(byIDs, ids)
	}
	if filter.Key.Valid {
		// The key alone would do; lane and hash are what parked_key has.
		hash := dialect.KeyHash(filter.Key.V)
		add(byLane, dialect.LaneOfKey(hash, s.tables.Lanes))
		add(byKeyHash, hash)
		add(byKey, filter.Key.V)
	}
	if filter.Topic != "" {
		add(byTopic, filter.Topic)
	}
	if filter.Type != "" {
		add(byType, filter.Type)
	}
	return f
}

// parkedFilter are the conditions on parked messages. Times of settling are
// none.
func (s *store) parkedFilter(filter dialect.Filter) conditions {
	f := s.content(filter, "p")
	if len(filter.States) > 0 {
		f.list = append(f.list, condition{"p." + byStates, filter.States})
	}
	return f
}

// doneFilter are the conditions on done messages. Times are in the cursor;
// states are none.
func (s *store) doneFilter(filter dialect.Filter) conditions {
	f := s.content(filter, "d")
	f.all = f.all || filter.DoneWithin > 0 || filter.DoneBefore > 0
	return f
}
