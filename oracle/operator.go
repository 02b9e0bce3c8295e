package oracle

import (
	"context"
	"database/sql"
	"slices"
	"strings"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// Stats counts in one statement.
func (s *store) Stats(ctx context.Context, db dialect.DB, limit int64) (stats dialect.Stats, err error) {
	var oldest, overdue time.Duration
	err = read(ctx, db, func(tx *sql.Tx) error {
		_, err := query1(ctx, tx, []any{
			&stats.Ready, &stats.Scheduled, &stats.Retry, &stats.Held, &stats.Dead, &stats.BlockedKeys,
			microsColumn{&oldest},
			microsColumn{&overdue},
			&stats.LanesHeld, &stats.LanesExpired, &stats.LanesTotal,
		}, s.sql.stats, limit, limit, limit, limit, limit, limit)
		return err
	})
	stats.OldestReady = max(oldest, overdue, 0)
	return stats, err
}

// Parked lists in one statement.
func (s *store) Parked(ctx context.Context, db dialect.DB, filter dialect.Filter, after int64, limit int) (list []dialect.Parked, err error) {
	f := s.parkedFilter(filter)
	if f.empty() {
		return nil, nil
	}
	err = read(ctx, db, func(tx *sql.Tx) error {
		list, err = query(ctx, tx, parkedOf, s.sql.parked.with(&f), f.between([]any{after}, limit)...)
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
		if err := array(ctx, tx, step.text, step.rows); err != nil {
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
	var ids [][]byte
	for i := range rows {
		gone = append(gone, rows[i].pos)
		ids = append(ids, rows[i].id[:])
		if rows[i].key.Valid {
			keys = append(keys, rows[i].key.V)
		}
	}
	if err := array(ctx, tx, s.sql.discard, gone); err != nil {
		return err
	}
	if err := array(ctx, tx, s.sql.deleteParked, repeat(int64(lane), len(gone)), gone, ids); err != nil {
		return err
	}
	return s.promote(ctx, tx, lane, keys)
}

// parkedRow is a parked row that an operator's filter has chosen.
type parkedRow struct {
	pos    int64
	id     [16]byte
	key    sql.Null[int64]
	placed bool // it has a place in the order
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
		_, err := s.inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
			var locked int
			if _, err := query1(ctx, tx, []any{&locked}, s.sql.lockLane, lane); err != nil {
				return false, err
			}
			rows, err = query(ctx, tx, func(r *parkedRow) []any { return []any{&r.pos, idColumn{&r.id}, &r.key, &r.placed, &r.dead} },
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

// Replay chooses done rows and copies them in one transaction. A message that was done
// more than once is replayed once. It waits for a producer that has inserted the same id
// and not ended, and fails with a [dialect.Duplicate] error when that commits; repeated,
// it skips that id.
func (s *store) Replay(ctx context.Context, db dialect.DB, filter dialect.Filter, cursor *dialect.Cursor, limit int) (replayed int, next *dialect.Cursor, err error) {
	f := s.doneFilter(filter)
	if f.empty() {
		return 0, nil, nil
	}
	_, err = s.inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
		var list []int64
		list, next, err = s.chooseReplay(ctx, tx, filter, cursor, limit)
		if err != nil || len(list) == 0 {
			return false, err
		}
		replayed = len(list)
		return true, array(ctx, tx, s.sql.replay, list)
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
	err = read(ctx, db, func(tx *sql.Tx) error {
		var list []int64
		list, next, err = s.chooseReplay(ctx, tx, filter, cursor, limit)
		replayable = len(list)
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	return replayable, next, nil
}

// chooseReplay looks at up to limit done rows behind the cursor and returns those whose
// messages do not wait, and the next cursor.
func (s *store) chooseReplay(ctx context.Context, tx *sql.Tx, filter dialect.Filter, cursor *dialect.Cursor, limit int) (list []int64, next *dialect.Cursor, err error) {
	var at dialect.Cursor
	if cursor != nil {
		at = *cursor
	} else {
		var now int64
		if _, err := query1(ctx, tx, []any{&now}, s.sql.clock); err != nil {
			return nil, nil, err
		}
		at = dialect.FirstCursor(filter, now, micros)
	}
	f := s.doneFilter(filter)
	type chosen struct {
		doneAt, pos int64
		waits       bool
	}
	rows, err := query(ctx, tx, func(r *chosen) []any { return []any{&r.doneAt, &r.pos, &r.waits} },
		s.sql.chooseReplay.with(&f), f.between([]any{at.DoneAt, at.DoneAt, at.Pos, at.Until}, at.Until, at.Begun, limit)...)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range rows {
		at.DoneAt, at.Pos = r.doneAt, r.pos
		if !r.waits {
			list = append(list, r.pos)
		}
	}
	if len(rows) < limit {
		return list, nil, nil
	}
	return list, &at, nil
}

// Purge deletes a batch in one transaction: it chooses rows, locks those that are free,
// and looks further for as many as are locked.
func (s *store) Purge(ctx context.Context, db dialect.DB, olderThan time.Duration, limit int) (n int, err error) {
	_, err = s.inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
		type doneRow struct{ doneAt, pos int64 }
		var last doneRow
		var list []int64
		for more := true; more && len(list) < limit; {
			old, err := query(ctx, tx, func(r *doneRow) []any { return []any{&r.doneAt, &r.pos} },
				s.sql.choosePurge, last.doneAt, last.doneAt, last.pos, micros(olderThan), limit-len(list))
			if err != nil {
				return false, err
			}
			more = len(old) == limit-len(list)
			if len(old) == 0 {
				break
			}
			last = old[len(old)-1]
			chosen := make([]int64, len(old))
			for i, r := range old {
				chosen[i] = r.pos
			}
			free, err := queryList(ctx, tx, one[int64], s.sql.lockPurge, nil, chosen, number1)
			if err != nil {
				return false, err
			}
			list = append(list, free...)
		}
		n = len(list)
		if n == 0 {
			return false, nil
		}
		return true, array(ctx, tx, s.sql.purge, list)
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
	return s.inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
		var one int
		due, err := query1(ctx, tx, []any{&one}, s.sql.purgeDue, micros(every))
		if err != nil || !due {
			return false, err
		}
		return true, exec(ctx, tx, s.sql.claimPurge)
	})
}

// Record inserts the message id for the consumer. That it is there is an error of the
// statement alone (ORA-00001), which the server undoes, and leaves the transaction as it
// was. The server knows no bound for the wait for another transaction that has recorded
// the same: the context is one.
func (s *store) Record(ctx context.Context, tx dialect.Tx, consumer, messageID string) (fresh bool, err error) {
	err = exec(ctx, tx, s.sql.record, raw(consumer), raw(messageID))
	if isDuplicate(err) {
		return false, nil
	}
	return err == nil, err
}

// Recorded looks the message id up.
func (s *store) Recorded(ctx context.Context, db dialect.DB, consumer, messageID string) (recorded bool, err error) {
	err = read(ctx, db, func(tx *sql.Tx) error {
		_, err := query1(ctx, tx, []any{&recorded}, s.sql.recorded, raw(consumer), raw(messageID))
		return err
	})
	return recorded, err
}

// PurgeInbox deletes a batch in one transaction. What another session has locked it
// leaves to that.
func (s *store) PurgeInbox(ctx context.Context, db dialect.DB, olderThan time.Duration, limit int) (n int, err error) {
	type entry struct{ consumer, messageID []byte }
	columns := func(e *entry) []any { return []any{&e.consumer, &e.messageID} }
	_, err = s.inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
		old, err := query(ctx, tx, columns, s.sql.choosePurgeInbox, micros(olderThan), limit)
		if err != nil || len(old) == 0 {
			return false, err
		}
		free, err := queryList(ctx, tx, columns, s.sql.lockPurgeInbox, nil, old,
			func(e entry) []any { return []any{e.consumer, e.messageID} })
		if err != nil || len(free) == 0 {
			return false, err
		}
		n = len(free)
		var consumers, messageIDs [][]byte
		for _, e := range free {
			consumers = append(consumers, e.consumer)
			messageIDs = append(messageIDs, e.messageID)
		}
		return true, array(ctx, tx, s.sql.purgeInbox, consumers, messageIDs)
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// conditions are those of a [dialect.Filter] that are set. Only these are written,
// because a condition that is switched off by a bind would hide the others from the
// indexes.
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
	add := func(text string, args ...any) { f.list = append(f.list, condition{text, args}) }
	if len(filter.IDs) > 0 {
		var lists []string
		var args []any
		for ids := range slices.Chunk(filter.IDs, mostInList) {
			lists = append(lists, table+".id IN (?"+strings.Repeat(", ?", len(ids)-1)+")")
			for i := range ids {
				args = append(args, ids[i][:])
			}
		}
		add("("+strings.Join(lists, " OR ")+")", args...)
	}
	if filter.Key.Valid {
		// lane and hash are what parked_key has.
		hash := dialect.KeyHash(filter.Key.V)
		add(table+".lane = ?", dialect.LaneOfKey(hash, s.tables.Lanes))
		add(table+".key_hash = ?", hash)
		if filter.Key.V == "" {
			add(table + ".key IS NULL") // nothing equals an empty text
		} else {
			add(table+".key = ?", raw(filter.Key.V))
		}
	}
	if filter.Topic != "" {
		add(table+".topic = ?", raw(filter.Topic))
	}
	if filter.Type != "" {
		add(table+".type = ?", raw(filter.Type))
	}
	return f
}

// parkedFilter are the conditions on parked messages. Times of settling are none.
func (s *store) parkedFilter(filter dialect.Filter) conditions {
	f := s.content(filter, "p")
	if len(filter.States) > 0 {
		args := make([]any, len(filter.States))
		for i, state := range filter.States {
			// A word that is no state becomes -1, which none has.
			args[i] = slices.Index(states[:], state)
			if state == "" {
				args[i] = -1
			}
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
