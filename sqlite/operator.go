package sqlite

import (
	"context"
	"database/sql"
	"encoding/hex"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// Stats implements [dialect.Operator]. All counts are of one moment.
func (s *store) Stats(ctx context.Context, db dialect.DB, limit int64) (stats dialect.Stats, err error) {
	var oldest int64
	err = db.QueryRowContext(ctx, s.sql.stats, limit).Scan(
		&stats.Ready, &stats.Scheduled, &stats.Retry, &stats.Held, &stats.Dead, &stats.BlockedKeys,
		&oldest, &stats.LanesHeld, &stats.LanesExpired, &stats.LanesTotal)
	stats.OldestReady = micros(oldest)
	return stats, err
}

// condition is a filter as SQL, to be appended to a WHERE clause.
type condition struct {
	text string
	args []any
}

func (c *condition) and(text string, args ...any) {
	c.text += text
	c.args = append(c.args, args...)
}

// content adds what a filter says about the content of a message, and tells
// whether that was anything.
func (s *store) content(filter dialect.Filter) (c condition, set bool) {
	if len(filter.IDs) > 0 {
		ids := make([]string, len(filter.IDs))
		for i, id := range filter.IDs {
			ids[i] = hex.EncodeToString(id[:])
		}
		c.and(hasIDSQL, texts(ids))
	}
	if filter.Key.Valid {
		hash := dialect.KeyHash(filter.Key.V)
		c.and(hasKeySQL, dialect.LaneOfKey(hash, s.tables.Lanes), hash, filter.Key.V)
	}
	if filter.Topic != "" {
		c.and(hasTopicSQL, filter.Topic)
	}
	if filter.Type != "" {
		c.and(hasTypeSQL, filter.Type)
	}
	return c, filter.All || c.text != ""
}

// ofParked is a filter on parked messages. ok is false when nothing can match: no
// field is set, or one that only done messages have.
func (s *store) ofParked(filter dialect.Filter) (c condition, ok bool) {
	c, ok = s.content(filter)
	if len(filter.States) > 0 {
		c.and(hasStateSQL, texts(filter.States))
		ok = true
	}
	return c, ok && filter.DoneWithin == 0 && filter.DoneBefore == 0
}

// ofDone is a filter on done messages but for its bounds of time. ok is false when
// nothing can match: no field is set, or one that only parked messages have.
func (s *store) ofDone(filter dialect.Filter) (c condition, ok bool) {
	c, ok = s.content(filter)
	return c, (ok || filter.DoneWithin > 0 || filter.DoneBefore > 0) && len(filter.States) == 0
}

// Parked implements [dialect.Operator].
func (s *store) Parked(ctx context.Context, db dialect.DB, filter dialect.Filter, after int64, limit int) ([]dialect.Parked, error) {
	where, ok := s.ofParked(filter)
	if !ok {
		return nil, nil
	}
	var all []dialect.Parked
	args := append(append([]any{after}, where.args...), limit)
	var p dialect.Parked
	var due sql.Null[int64]
	var parked int64
	into := parkedScanner()
	into.into = append(into.into, &p.State, &p.Blocking, &p.Reason, &due, &parked)
	err := query(ctx, db, func(rows *sql.Rows) (bool, error) {
		if err := into.scan(rows); err != nil {
			return false, err
		}
		p.Row = into.row
		p.DueIn = sql.Null[time.Duration]{V: micros(due.V), Valid: due.Valid}
		p.ParkedAt = time.UnixMicro(parked).UTC()
		all = append(all, p)
		return true, nil
	}, s.sql.parked+where.text+parkedOrderSQL, args...)
	if err != nil {
		return nil, err
	}
	return all, nil
}

// Requeue implements [dialect.Operator]. It passes over what it would not change,
// rows that are due already and held ones, so that repeating it comes to an end.
// A row with an older one of its key before it waits behind that one.
func (s *store) Requeue(ctx context.Context, db dialect.DB, filter dialect.Filter, limit int) (int, error) {
	where, ok := s.ofParked(filter)
	if !ok {
		return 0, nil
	}
	where.and(requeueableSQL)
	return s.eachLane(ctx, db, filter, where, limit, s.requeue)
}

func (s *store) requeue(ctx context.Context, tx *sql.Tx, lane int, rows string) (int, error) {
	unplaced, err := affected(tx.ExecContext(ctx, s.sql.requeueUnplaced, rows))
	if err != nil {
		return 0, err
	}
	keyless, err := affected(tx.ExecContext(ctx, s.sql.requeueKeyless, rows))
	if err != nil {
		return 0, err
	}
	var keys keys
	keyed, err := keys.of(ctx, tx, s.sql.requeueKeyed, rows)
	if err != nil {
		return 0, err
	}
	return unplaced + keyless + keyed, s.promote(ctx, tx, lane, keys)
}

// Discard implements [dialect.Operator].
func (s *store) Discard(ctx context.Context, db dialect.DB, filter dialect.Filter, limit int) (int, error) {
	where, ok := s.ofParked(filter)
	if !ok {
		return 0, nil
	}
	return s.eachLane(ctx, db, filter, where, limit, s.discard)
}

func (s *store) discard(ctx context.Context, tx *sql.Tx, lane int, rows string) (int, error) {
	if _, err := tx.ExecContext(ctx, s.sql.discard, lane, rows); err != nil {
		return 0, err
	}
	var keys keys
	n, err := keys.of(ctx, tx, s.sql.deleteParked, lane, rows)
	if err != nil {
		return 0, err
	}
	return n, s.promote(ctx, tx, lane, keys)
}

// eachLane runs change on the rows that match, in one transaction for each lane
// that has any, until limit rows have changed. When a lane fails, what was done in
// those before it stands, and is counted.
func (s *store) eachLane(
	ctx context.Context, db dialect.DB, filter dialect.Filter, where condition, limit int,
	change func(ctx context.Context, tx *sql.Tx, lane int, rows string) (int, error),
) (int, error) {
	find, choose := s.sql.lanesOf+where.text+")", s.sql.selectParked+where.text+selectOrderSQL
	if len(filter.IDs) > 0 {
		find, choose = s.sql.lanesOfIDs+where.text, s.sql.selectParkedOfIDs+where.text+selectOrderSQL
	}
	lanes, err := values[int](ctx, db, find, where.args...)
	if err != nil {
		return 0, err
	}
	total := 0
	for _, lane := range lanes {
		if total >= limit {
			break
		}
		var n int
		err := s.write(ctx, db, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, s.sql.lockLane, lane); err != nil {
				return err
			}
			args := append(append([]any{lane}, where.args...), limit-total)
			rows, err := values[int64](ctx, tx, choose, args...)
			if err != nil || len(rows) == 0 {
				return err
			}
			n, err = change(ctx, tx, lane, list(rows))
			return err
		})
		if err != nil {
			return total, err
		}
		total += n
	}
	return total, nil
}

// Replay implements [dialect.Operator]. What it selects and what it inserts are two
// statements: a done row that is purged in between is passed over. A message that
// was done more than once is replayed once, with a count above that of all its
// rows, so that a second replay differs from the first.
func (s *store) Replay(ctx context.Context, db dialect.DB, filter dialect.Filter, cursor *dialect.Cursor, limit int) (int, *dialect.Cursor, error) {
	rows, next, err := s.chooseReplay(ctx, db, filter, cursor, limit)
	if err != nil || len(rows) == 0 {
		return 0, next, err
	}
	replayed, err := s.exec(ctx, db, s.sql.replay, list(rows))
	if err != nil {
		return 0, nil, err
	}
	return replayed, next, nil
}

// Replayable chooses rows as Replay does.
func (s *store) Replayable(ctx context.Context, db dialect.DB, filter dialect.Filter, cursor *dialect.Cursor, limit int) (int, *dialect.Cursor, error) {
	rows, next, err := s.chooseReplay(ctx, db, filter, cursor, limit)
	return len(rows), next, err
}

// chooseReplay looks at up to limit done rows behind the cursor and returns those whose
// messages do not wait, and the next cursor.
func (s *store) chooseReplay(ctx context.Context, db dialect.DB, filter dialect.Filter, cursor *dialect.Cursor, limit int) (rows []int64, next *dialect.Cursor, err error) {
	where, ok := s.ofDone(filter)
	if !ok {
		return nil, nil, nil
	}
	if cursor == nil {
		first, err := s.firstCursor(ctx, db, filter)
		if err != nil {
			return nil, nil, err
		}
		cursor = &first
	}
	choose := s.sql.selectDone
	if len(filter.IDs) > 0 {
		choose = s.sql.selectDoneOfIDs
	}
	at, read := *cursor, 0
	args := append([]any{at.DoneAt, at.Pos, at.Until, at.Begun}, where.args...)
	err = query(ctx, db, func(r *sql.Rows) (bool, error) {
		var waits bool
		err := r.Scan(&at.DoneAt, &at.Pos, &waits)
		if read++; !waits {
			rows = append(rows, at.Pos)
		}
		return true, err
	}, choose+where.text+selectDoneOrderSQL, append(args, limit)...)
	if err != nil || read < limit {
		return rows, nil, err
	}
	return rows, &at, nil
}

// firstCursor is the beginning of the done rows that are within the filter's bounds
// of time at this moment.
func (s *store) firstCursor(ctx context.Context, db dialect.DB, filter dialect.Filter) (dialect.Cursor, error) {
	var now int64
	if err := db.QueryRowContext(ctx, s.sql.now).Scan(&now); err != nil {
		return dialect.Cursor{}, err
	}
	return dialect.FirstCursor(filter, now, time.Duration.Microseconds), nil
}

// Purge implements [dialect.Operator].
func (s *store) Purge(ctx context.Context, db dialect.DB, olderThan time.Duration, limit int) (int, error) {
	return s.purge(ctx, db, s.sql.purgeNeeded, s.sql.purgeDone, olderThan, limit)
}

// Purgeable implements [dialect.Operator].
func (s *store) Purgeable(ctx context.Context, db dialect.DB, olderThan time.Duration, limit int) (n int, err error) {
	err = db.QueryRowContext(ctx, s.sql.purgeable, olderThan.Microseconds(), limit).Scan(&n)
	return n, err
}

// purge deletes in batches, each a transaction of its own, so that producers get
// their turns in between. When one fails, those before it stand, and are counted.
func (s *store) purge(ctx context.Context, db dialect.DB, needed, statement string, olderThan time.Duration, limit int) (int, error) {
	const most = 500 // rows a batch: a few milliseconds
	total := 0
	for total < limit {
		var some bool
		if err := db.QueryRowContext(ctx, needed, olderThan.Microseconds()).Scan(&some); err != nil || !some {
			return total, err
		}
		n, err := s.exec(ctx, db, statement, olderThan.Microseconds(), min(most, limit-total))
		if err != nil {
			return total, err
		}
		total += n
	}
	return total, nil
}

// ClaimPurge implements [dialect.Operator].
func (s *store) ClaimPurge(ctx context.Context, db dialect.DB, every time.Duration) (bool, error) {
	var due bool
	if err := db.QueryRowContext(ctx, s.sql.claimPurgeNeeded).Scan(&due); err != nil || !due {
		return false, err
	}
	n, err := s.exec(ctx, db, s.sql.claimPurge, every.Microseconds())
	return n == 1, err
}
