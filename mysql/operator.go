package mysql

import (
	"context"
	"database/sql"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// Stats counts in one statement.
func (s *store) Stats(ctx context.Context, db dialect.DB, limit int64) (stats dialect.Stats, err error) {
	err = read(ctx, db, func(tx *sql.Tx) error {
		_, err := query1(ctx, tx, []any{
			&stats.Ready, &stats.Scheduled, &stats.Retry, &stats.Held, &stats.Dead, &stats.BlockedKeys,
			microsColumn{&stats.OldestReady},
			&stats.LanesHeld, &stats.LanesExpired, &stats.LanesTotal,
		}, s.sql.stats, limit, limit, limit, limit, limit, limit)
		return err
	})
	return stats, err
}

// Parked lists in one statement.
func (s *store) Parked(ctx context.Context, db dialect.DB, filter dialect.Filter, after int64, limit int) (list []dialect.Parked, err error) {
	f := s.parkedFilter(filter)
	if f.empty() {
		return nil, nil
	}
	err = read(ctx, db, func(tx *sql.Tx) error {
		list, err = query(ctx, tx, func(p *dialect.Parked) []any {
			return append(rowColumns(&p.Row), &p.State, &p.Blocking, &p.Reason, nullMicrosColumn{&p.DueIn}, timeColumn{&p.ParkedAt})
		}, s.sql.parked.with(&f), f.between([]any{after}, limit)...)
		return err
	})
	return list, err
}

// Requeue works lane by lane, a transaction each.
func (s *store) Requeue(ctx context.Context, db dialect.DB, filter dialect.Filter, limit int) (int, error) {
	return s.laneByLane(ctx, db, filter, limit, s.sql.requeueLanes, s.sql.chooseRequeue, s.requeue)
}

func (s *store) requeue(ctx context.Context, tx *sql.Tx, lane int, rows []parkedRow) error {
	var waiting, unplaced, keyless, keyed, keys []int64
	for _, r := range rows {
		switch {
		case !r.dead:
			waiting = append(waiting, r.pos)
		case !r.placed:
			unplaced = append(unplaced, r.pos)
		case !r.key.Valid:
			keyless = append(keyless, r.pos)
		default:
			keyed = append(keyed, r.pos)
			keys = append(keys, r.key.V)
		}
	}
	for _, step := range []struct {
		rows []int64
		text string
	}{
		{waiting, s.sql.requeueWaiting},
		{unplaced, s.sql.requeueUnplaced},
		{keyless, s.sql.requeueKeyless},
		{keyed, s.sql.requeueKeyed},
	} {
		if len(step.rows) == 0 {
			continue
		}
		if err := exec(ctx, tx, step.text, asJSON(step.rows)); err != nil {
			return err
		}
	}
	return s.promote(ctx, tx, lane, keys)
}

// Discard works lane by lane, a transaction each.
func (s *store) Discard(ctx context.Context, db dialect.DB, filter dialect.Filter, limit int) (int, error) {
	return s.laneByLane(ctx, db, filter, limit, s.sql.discardLanes, s.sql.chooseDiscard, s.discard)
}

func (s *store) discard(ctx context.Context, tx *sql.Tx, lane int, rows []parkedRow) error {
	var gone, keys []int64
	var refs []dialect.Ref
	for _, r := range rows {
		gone = append(gone, r.pos)
		refs = append(refs, dialect.Ref{Place: r.pos, ID: r.id})
		if r.key.Valid {
			keys = append(keys, r.key.V)
		}
	}
	if err := exec(ctx, tx, s.sql.discard, asJSON(gone), lane); err != nil {
		return err
	}
	if err := execRefs(ctx, tx, s.sql.deleteParked, refs, lane); err != nil {
		return err
	}
	return s.promote(ctx, tx, lane, keys)
}

// parkedRow is a parked row that an operator's filter has chosen.
type parkedRow struct {
	pos    int64
	id     [16]byte
	placed bool // it has a place in the order
	key    sql.Null[int64]
	dead   bool
}

// laneByLane finds the lanes that have something to change and runs change on the
// rows chosen in each, under the lock of the lane row, until limit rows are changed.
// When a lane fails, what was done in those before it stands, and is counted.
func (s *store) laneByLane(
	ctx context.Context, db dialect.DB, filter dialect.Filter, limit int, find, choose filtered,
	change func(ctx context.Context, tx *sql.Tx, lane int, rows []parkedRow) error,
) (total int, err error) {
	f := s.parkedFilter(filter)
	if f.empty() {
		return 0, nil
	}
	var lanes []int
	err = read(ctx, db, func(tx *sql.Tx) error {
		lanes, err = query(ctx, tx, one[int], find.with(&f), f.between(nil)...)
		return err
	})
	if err != nil {
		return 0, err
	}
	for _, lane := range lanes {
		if total >= limit {
			break
		}
		var rows []parkedRow
		_, err := inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
			var locked int
			if _, err := query1(ctx, tx, []any{&locked}, s.sql.lockLane, lane); err != nil {
				return false, err
			}
			rows, err = query(ctx, tx, func(r *parkedRow) []any { return []any{&r.pos, idColumn{&r.id}, &r.placed, &r.key, &r.dead} },
				choose.with(&f), f.between([]any{lane}, limit-total)...)
			if err != nil || len(rows) == 0 {
				return false, err
			}
			return true, change(ctx, tx, lane, rows)
		})
		if err != nil {
			return total, err
		}
		total += len(rows)
	}
	return total, nil
}

// Replay chooses done rows and copies them in one transaction. A message that was
// done more than once is replayed once, by its newest row. A producer that inserts the same id at the
// same moment makes it fail with a [dialect.Duplicate] error; repeated, it skips that
// id.
func (s *store) Replay(ctx context.Context, db dialect.DB, filter dialect.Filter, cursor *dialect.Cursor, limit int) (replayed int, next *dialect.Cursor, err error) {
	f := s.doneFilter(filter)
	if f.empty() {
		return 0, nil, nil
	}
	_, err = inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
		var list []doneRow
		list, next, err = s.chooseReplay(ctx, tx, filter, cursor, limit)
		if err != nil || len(list) == 0 {
			return false, err
		}
		replayed = len(list)
		return true, exec(ctx, tx, s.sql.replay, asJSON(list))
	})
	if err != nil {
		return 0, nil, err
	}
	return replayed, next, nil
}

// Replayable chooses as Replay does.
func (s *store) Replayable(ctx context.Context, db dialect.DB, filter dialect.Filter, cursor *dialect.Cursor, limit int) (replayable int, next *dialect.Cursor, err error) {
	f := s.doneFilter(filter)
	if f.empty() {
		return 0, nil, nil
	}
	err = readAt(ctx, db, sql.LevelReadCommitted, func(tx *sql.Tx) error {
		var list []doneRow
		list, next, err = s.chooseReplay(ctx, tx, filter, cursor, limit)
		replayable = len(list)
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	return replayable, next, nil
}

// doneRow names a done row, in microseconds since 1970 and by its pos.
type doneRow [2]int64

// chooseReplay looks at up to limit done rows behind the cursor and returns those whose
// messages do not wait, and the next cursor.
func (s *store) chooseReplay(ctx context.Context, tx *sql.Tx, filter dialect.Filter, cursor *dialect.Cursor, limit int) (list []doneRow, next *dialect.Cursor, err error) {
	var at dialect.Cursor
	if cursor != nil {
		at = *cursor
	} else {
		var now int64
		if _, err := query1(ctx, tx, []any{&now}, clockSQL); err != nil {
			return nil, nil, err
		}
		at = dialect.FirstCursor(filter, now, micros)
	}
	type chosen struct {
		row   doneRow
		waits bool
	}
	f := s.doneFilter(filter)
	rows, err := query(ctx, tx, func(c *chosen) []any { return []any{&c.row[0], &c.row[1], &c.waits} },
		s.sql.chooseReplay.with(&f), f.between([]any{at.DoneAt, at.DoneAt, at.Pos, at.Until, at.Until, at.Begun}, limit)...)
	if err != nil {
		return nil, nil, err
	}
	for _, c := range rows {
		at.DoneAt, at.Pos = c.row[0], c.row[1]
		if !c.waits {
			list = append(list, c.row)
		}
	}
	if len(rows) < limit {
		return list, nil, nil
	}
	return list, &at, nil
}

// Purge deletes a batch in one transaction.
func (s *store) Purge(ctx context.Context, db dialect.DB, olderThan time.Duration, limit int) (n int, err error) {
	_, err = inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
		old, err := query(ctx, tx, func(r *[2]int64) []any { return []any{&r[0], &r[1]} }, s.sql.choosePurge, micros(olderThan), limit)
		if err != nil || len(old) == 0 {
			return false, err
		}
		n = len(old)
		return true, exec(ctx, tx, s.sql.purge, asJSON(old))
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// Purgeable counts in one statement.
func (s *store) Purgeable(ctx context.Context, db dialect.DB, olderThan time.Duration, limit int) (n int, err error) {
	err = read(ctx, db, func(tx *sql.Tx) error {
		_, err := query1(ctx, tx, []any{&n}, s.sql.purgeable, micros(olderThan), limit)
		return err
	})
	return n, err
}

// ClaimPurge marks the time of the purge under the lock of meta's row.
func (s *store) ClaimPurge(ctx context.Context, db dialect.DB, every time.Duration) (bool, error) {
	return inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
		var one int
		due, err := query1(ctx, tx, []any{&one}, s.sql.purgeDue, micros(every))
		if err != nil || !due {
			return false, err
		}
		return true, exec(ctx, tx, s.sql.claimPurge)
	})
}

// Record inserts the message id for the consumer. That it is there is an error of the
// statement alone, which leaves the transaction as it was.
func (s *store) Record(ctx context.Context, tx dialect.Tx, consumer, messageID string) (fresh bool, err error) {
	_, err = tx.ExecContext(ctx, s.sql.record, []byte(consumer), []byte(messageID))
	if isDuplicate(err) {
		return false, nil
	}
	return err == nil, err
}

// Recorded looks the message id up.
func (s *store) Recorded(ctx context.Context, db dialect.DB, consumer, messageID string) (recorded bool, err error) {
	err = read(ctx, db, func(tx *sql.Tx) error {
		_, err := query1(ctx, tx, []any{&recorded}, s.sql.recorded, []byte(consumer), []byte(messageID))
		return err
	})
	return recorded, err
}

// PurgeInbox deletes a batch in one transaction.
func (s *store) PurgeInbox(ctx context.Context, db dialect.DB, olderThan time.Duration, limit int) (n int, err error) {
	_, err = inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
		old, err := query(ctx, tx, func(e *[2]string) []any { return []any{&e[0], &e[1]} },
			s.sql.choosePurgeInbox, micros(olderThan), limit)
		if err != nil || len(old) == 0 {
			return false, err
		}
		n = len(old)
		for i, e := range old {
			old[i] = [2]string{inHex(e[0]), inHex(e[1])}
		}
		for part := range slices.Chunk(old, mostRows) {
			if err := exec(ctx, tx, s.sql.purgeInbox, asJSON(part)); err != nil {
				return false, err
			}
		}
		return true, nil
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// filtered is a statement around the conditions of a filter. It is cut before names
// are filled in, so that no name can be taken for the place.
type filtered struct{ head, tail string }

// with renders the statement with f's conditions.
func (q filtered) with(f *conditions) string {
	var b strings.Builder
	b.WriteString(q.head)
	for _, c := range f.list {
		b.WriteString("\n      AND " + c.text)
	}
	b.WriteString(q.tail)
	return b.String()
}

// conditions are those of a [dialect.Filter] that are set. Only these are written,
// because a condition that is switched off by a parameter would hide the others from
// the indexes.
type conditions struct {
	all  bool
	list []condition
}

type condition struct {
	text string
	args []any
}

// empty tells that the filter matches nothing.
func (f *conditions) empty() bool { return !f.all && len(f.list) == 0 }

// between are the arguments: the statement's before the filter, the conditions', and
// the statement's after it.
func (f *conditions) between(before []any, after ...any) []any {
	args := slices.Clone(before)
	for _, c := range f.list {
		args = append(args, c.args...)
	}
	return append(args, after...)
}

// content are the conditions on content columns.
func (s *store) content(filter dialect.Filter, table string) conditions {
	f := conditions{all: filter.All}
	add := func(text string, args ...any) { f.list = append(f.list, condition{table + "." + text, args}) }
	if len(filter.IDs) > 0 {
		// As literals, so that the index on id serves and their number has no limit.
		ids := make([]string, len(filter.IDs))
		for i, id := range filter.IDs {
			ids[i] = "x'" + hex.EncodeToString(id[:]) + "'"
		}
		add("id IN (" + strings.Join(ids, ", ") + ")")
	}
	if filter.Key.Valid {
		// The key alone would do; lane and hash are what parked_key has.
		hash := dialect.KeyHash(filter.Key.V)
		add("lane = ?", dialect.LaneOfKey(hash, s.tables.Lanes))
		add("key_hash = ?", hash)
		add(quote("key")+" = ?", []byte(filter.Key.V))
	}
	if filter.Topic != "" {
		add("topic = ?", []byte(filter.Topic))
	}
	if filter.Type != "" {
		add("type = ?", []byte(filter.Type))
	}
	return f
}

// parkedFilter are the conditions on parked messages. Times of settling are none.
func (s *store) parkedFilter(filter dialect.Filter) conditions {
	f := s.content(filter, "p")
	if len(filter.States) > 0 {
		args := make([]any, len(filter.States))
		for i, state := range filter.States {
			args[i] = []byte(state)
		}
		f.list = append(f.list, condition{"p.state IN (?" + strings.Repeat(", ?", len(args)-1) + ")", args})
	}
	return f
}

// doneFilter are the conditions on done messages. Times are in the cursor; states are
// none.
func (s *store) doneFilter(filter dialect.Filter) conditions {
	f := s.content(filter, "d")
	f.all = f.all || filter.DoneWithin > 0 || filter.DoneBefore > 0
	return f
}
