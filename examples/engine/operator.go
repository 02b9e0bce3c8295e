package engine

import (
	"context"
	"database/sql"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// Stats implements [dialect.Operator].
func (s *store) Stats(ctx context.Context, db dialect.DB, limit int64) (st dialect.Stats, err error) {
	var oldest int64
	err = db.QueryRowContext(ctx, s.sql.stats, limit).Scan(&st.Ready, &st.Scheduled, &st.Retry, &st.Held, &st.Dead,
		&st.BlockedKeys, &oldest, &st.LanesHeld, &st.LanesExpired, &st.LanesTotal)
	st.OldestReady = time.Duration(oldest) * time.Microsecond
	return st, err
}

// condition is SQL about a table named m, and its arguments.
type condition struct {
	terms []string
	args  []any
}

func (c *condition) and(term string, args ...any) {
	c.terms, c.args = append(c.terms, term), append(c.args, args...)
}

func (c *condition) String() string { return strings.Join(c.terms, " AND ") }

// where is what the filter says of content and state. A filter that says nothing matches
// nothing, unless it says that it means everything.
func where(f dialect.Filter) (c condition, err error) {
	if len(f.IDs) > 0 {
		ids := make([]string, len(f.IDs))
		for i := range f.IDs {
			ids[i] = hex.EncodeToString(f.IDs[i][:])
		}
		text, err := list(ids)
		if err != nil {
			return c, err
		}
		c.and("m.id IN (SELECT unhex(value) FROM json_each(?))", text)
	}
	if f.Key.Valid {
		c.and("m.key_hash = ? AND m.key = ?", dialect.KeyHash(f.Key.V), f.Key.V)
	}
	if f.Topic != "" {
		c.and("m.topic = ?", f.Topic)
	}
	if f.Type != "" {
		c.and("m.type = ?", f.Type)
	}
	if len(f.States) > 0 {
		text, err := list(f.States)
		if err != nil {
			return c, err
		}
		c.and("m.state IN (SELECT value FROM json_each(?))", text)
	}
	if len(c.terms) == 0 {
		c.and("?", f.All)
	}
	return c, nil
}

// Parked implements [dialect.Operator].
func (s *store) Parked(ctx context.Context, db dialect.DB, filter dialect.Filter, after int64, limit int) ([]dialect.Parked, error) {
	c, err := where(filter)
	if err != nil {
		return nil, err
	}
	c.and("m.pos > ? ORDER BY m.pos LIMIT ?", after, limit)
	return query(ctx, db, func(rows *sql.Rows) (p dialect.Parked, err error) {
		var dueIn sql.Null[int64]
		var parkedAt int64
		err = scanRow(rows, &p.Row, &p.State, &p.Blocking, &p.Reason, &dueIn, &parkedAt)
		p.DueIn = sql.Null[time.Duration]{V: time.Duration(dueIn.V) * time.Microsecond, Valid: dueIn.Valid}
		p.ParkedAt = time.UnixMicro(parkedAt).UTC()
		return p, err
	}, s.sql.parkedWhere+c.String(), c.args...)
}

// choose runs do on the parked rows that match, in a transaction, and promotes behind it.
// With one writer the transaction is the lock of every lane; where lanes are locked one
// by one it would be one lane a transaction.
func (s *store) choose(ctx context.Context, db dialect.DB, c *condition, limit int, do func(tx *sql.Tx, positions string) error) (n int, err error) {
	type chosen struct {
		pos, lane int64
		keyHash   sql.Null[int64]
	}
	c.and("true ORDER BY m.seq, m.pos LIMIT ?", limit)
	err = write(ctx, db, func(tx *sql.Tx) error {
		rows, err := query(ctx, tx, func(rows *sql.Rows) (one chosen, err error) {
			return one, rows.Scan(&one.pos, &one.lane, &one.keyHash)
		}, s.sql.chosenWhere+c.String(), c.args...)
		if err != nil || len(rows) == 0 {
			return err
		}
		var positions []int64
		var keys []key
		for _, one := range rows {
			positions = append(positions, one.pos)
			if one.keyHash.Valid {
				keys = append(keys, key{one.lane, one.keyHash.V})
			}
		}
		text, err := list(positions)
		if err != nil {
			return err
		}
		if err := do(tx, text); err != nil {
			return err
		}
		n = len(rows)
		return s.promote(ctx, tx, keys)
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// exec runs statements with the same arguments.
func exec(ctx context.Context, tx *sql.Tx, args []any, statements ...string) error {
	for _, text := range statements {
		if _, err := tx.ExecContext(ctx, text, args...); err != nil {
			return err
		}
	}
	return nil
}

// Requeue implements [dialect.Operator].
func (s *store) Requeue(ctx context.Context, db dialect.DB, filter dialect.Filter, limit int) (int, error) {
	c, err := where(filter)
	if err != nil {
		return 0, err
	}
	c.and("(m.state = 'dead' OR m.state IN ('retry', 'scheduled') AND m.available_at > " + now + ")")
	return s.choose(ctx, db, &c, limit, func(tx *sql.Tx, positions string) error {
		return exec(ctx, tx, []any{positions}, s.sql.requeueScheduled, s.sql.requeue)
	})
}

// Discard implements [dialect.Operator].
func (s *store) Discard(ctx context.Context, db dialect.DB, filter dialect.Filter, limit int) (int, error) {
	c, err := where(filter)
	if err != nil {
		return 0, err
	}
	return s.choose(ctx, db, &c, limit, func(tx *sql.Tx, positions string) error {
		return exec(ctx, tx, []any{positions}, s.sql.discard, s.sql.remove)
	})
}

// Replay implements [dialect.Operator].
func (s *store) Replay(ctx context.Context, db dialect.DB, filter dialect.Filter, cursor *dialect.Cursor, limit int) (replayed int, next *dialect.Cursor, err error) {
	err = write(ctx, db, func(tx *sql.Tx) error {
		var positions []int64
		positions, next, err = s.chooseReplay(ctx, tx, filter, cursor, limit)
		if err != nil || len(positions) == 0 {
			return err
		}
		text, err := list(positions)
		if err != nil {
			return err
		}
		replayed, err = affected(tx.ExecContext(ctx, s.sql.replay, text))
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	return replayed, next, nil
}

// Replayable implements [dialect.Operator].
func (s *store) Replayable(ctx context.Context, db dialect.DB, filter dialect.Filter, cursor *dialect.Cursor, limit int) (replayable int, next *dialect.Cursor, err error) {
	err = write(ctx, db, func(tx *sql.Tx) error {
		var positions []int64
		positions, next, err = s.chooseReplay(ctx, tx, filter, cursor, limit)
		replayable = len(positions)
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	return replayable, next, nil
}

// chooseReplay looks at up to limit done rows behind the cursor, and returns those
// whose messages neither wait nor were done again since the replay began.
func (s *store) chooseReplay(ctx context.Context, tx *sql.Tx, filter dialect.Filter, cursor *dialect.Cursor, limit int) (positions []int64, next *dialect.Cursor, err error) {
	if filter.DoneWithin > 0 || filter.DoneBefore > 0 {
		// Bounds are a choice, too; where() does not see them.
		filter.All = true
	}
	filter.States = nil // of parked messages only
	c, err := where(filter)
	if err != nil {
		return nil, nil, err
	}
	at := dialect.Cursor{}
	if cursor != nil {
		at = *cursor
	} else {
		var now int64
		if err := tx.QueryRowContext(ctx, s.sql.clock).Scan(&now); err != nil {
			return nil, nil, err
		}
		at = dialect.FirstCursor(filter, now, micros)
	}
	c.and("(m.done_at, m.pos) > (?, ?) AND m.done_at >= ? AND m.done_at < ? ORDER BY m.done_at, m.pos LIMIT ?",
		at.DoneAt, at.Pos, at.From, at.Until, limit)
	read := 0
	if _, err := query(ctx, tx, func(rows *sql.Rows) (_ struct{}, err error) {
		var passed bool
		err = rows.Scan(&at.DoneAt, &at.Pos, &passed)
		if read++; !passed {
			positions = append(positions, at.Pos)
		}
		return struct{}{}, err
	}, s.sql.doneWhere+c.String(), slices.Concat([]any{at.Until, at.Begun}, c.args)...); err != nil {
		return nil, nil, err
	}
	if read < limit {
		return positions, nil, nil
	}
	return positions, &at, nil
}

// Purge implements [dialect.Operator].
func (s *store) Purge(ctx context.Context, db dialect.DB, olderThan time.Duration, limit int) (int, error) {
	return affected(db.ExecContext(ctx, s.sql.purge, micros(olderThan), limit))
}

// Purgeable implements [dialect.Operator].
func (s *store) Purgeable(ctx context.Context, db dialect.DB, olderThan time.Duration, limit int) (n int, err error) {
	err = db.QueryRowContext(ctx, s.sql.purgeable, micros(olderThan), limit).Scan(&n)
	return n, err
}

// ClaimPurge implements [dialect.Operator].
func (s *store) ClaimPurge(ctx context.Context, db dialect.DB, every time.Duration) (bool, error) {
	n, err := affected(db.ExecContext(ctx, s.sql.takePurge, micros(every)))
	return n == 1, err
}

// Record implements [dialect.Inbox].
func (s *store) Record(ctx context.Context, tx dialect.Tx, consumer, messageID string) (fresh bool, err error) {
	n, err := affected(tx.ExecContext(ctx, s.sql.record, consumer, messageID))
	return n == 1, err
}

// Recorded implements [dialect.Inbox].
func (s *store) Recorded(ctx context.Context, db dialect.DB, consumer, messageID string) (found bool, err error) {
	err = db.QueryRowContext(ctx, s.sql.recorded, consumer, messageID).Scan(&found)
	return found, err
}

// PurgeInbox implements [dialect.Inbox].
func (s *store) PurgeInbox(ctx context.Context, db dialect.DB, olderThan time.Duration, limit int) (int, error) {
	return affected(db.ExecContext(ctx, s.sql.purgeInbox, micros(olderThan), limit))
}
