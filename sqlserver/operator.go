package sqlserver

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
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
		}, s.sql.stats, limit)
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
		}, s.sql.parked.with(&f, 2), f.after(after, int64(limit))...)
		return err
	})
	return list, err
}

// Requeue works lane by lane, a transaction each.
func (s *store) Requeue(ctx context.Context, db dialect.DB, filter dialect.Filter, limit int) (int, error) {
	return s.laneByLane(ctx, db, filter, limit, s.sql.requeueLanes, s.sql.chooseRequeue, s.requeue)
}

func (s *store) requeue(ctx context.Context, tx *sql.Tx, lane int, rows []chosen) error {
	var waiting, unplaced, keyless, keyed []dialect.Ref
	var keys []int64
	for _, r := range rows {
		switch {
		case !r.dead:
			waiting = append(waiting, r.Ref)
		case !r.placed:
			unplaced = append(unplaced, r.Ref)
		case !r.key.Valid:
			keyless = append(keyless, r.Ref)
		default:
			keyed = append(keyed, r.Ref)
			keys = append(keys, r.key.V)
		}
	}
	for _, step := range []struct {
		rows []dialect.Ref
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
		if err := exec(ctx, tx, step.text, entries(step.rows), number(lane)); err != nil {
			return err
		}
	}
	return s.promote(ctx, tx, lane, keys)
}

// Discard works lane by lane, a transaction each.
func (s *store) Discard(ctx context.Context, db dialect.DB, filter dialect.Filter, limit int) (int, error) {
	return s.laneByLane(ctx, db, filter, limit, s.sql.discardLanes, s.sql.chooseDiscard, s.discard)
}

func (s *store) discard(ctx context.Context, tx *sql.Tx, lane int, rows []chosen) error {
	var gone []dialect.Ref
	var keys []int64
	for _, r := range rows {
		gone = append(gone, r.Ref)
		if r.key.Valid {
			keys = append(keys, r.key.V)
		}
	}
	if err := exec(ctx, tx, s.sql.discard, entries(gone), number(lane)); err != nil {
		return err
	}
	if err := exec(ctx, tx, s.sql.deleteParked, entries(gone), number(lane)); err != nil {
		return err
	}
	return s.promote(ctx, tx, lane, keys)
}

// chosen is a parked row that an operator's filter has chosen.
type chosen struct {
	dialect.Ref
	placed bool // it has a place in the order
	key    sql.Null[int64]
	dead   bool
}

// laneByLane finds the lanes that have something to change and runs change on the
// rows chosen in each, under the lock of the lane row, until limit rows are changed.
// When a lane fails, what was done in those before it stands, and is counted.
func (s *store) laneByLane(
	ctx context.Context, db dialect.DB, filter dialect.Filter, limit int, find, choose filtered,
	change func(ctx context.Context, tx *sql.Tx, lane int, rows []chosen) error,
) (total int, err error) {
	f := s.parkedFilter(filter)
	if f.empty() {
		return 0, nil
	}
	var lanes []int
	err = read(ctx, db, func(tx *sql.Tx) error {
		lanes, err = query(ctx, tx, one[int], find.with(&f, 0), f.after()...)
		return err
	})
	if err != nil {
		return 0, err
	}
	for _, lane := range lanes {
		if total >= limit {
			break
		}
		var rows []chosen
		_, err := inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
			if err := s.lockLane(ctx, tx, lane); err != nil {
				return false, err
			}
			rows, err = query(ctx, tx, func(r *chosen) []any {
				return []any{&r.Place, idColumn{&r.ID}, &r.placed, &r.key, &r.dead}
			}, choose.with(&f, 2), f.after(number(lane), int64(limit-total))...)
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

// doneEntry names a done row in a list; see doneList.
type doneEntry struct {
	N      int   `json:"n"`
	DoneAt int64 `json:"t"`
	Pos    int64 `json:"p"`
}

// Replay chooses done rows and copies them in one transaction. A message that was
// done more than once is replayed once. A producer that inserts the same id at the
// same moment makes it fail with a [dialect.Duplicate] error; repeated, it skips that
// id.
func (s *store) Replay(ctx context.Context, db dialect.DB, filter dialect.Filter, cursor *dialect.Cursor, limit int) (replayed int, next *dialect.Cursor, err error) {
	f := s.doneFilter(filter)
	if f.empty() {
		return 0, nil, nil
	}
	_, err = inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
		var list []doneEntry
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
	err = read(ctx, db, func(tx *sql.Tx) error {
		var list []doneEntry
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
func (s *store) chooseReplay(ctx context.Context, tx *sql.Tx, filter dialect.Filter, cursor *dialect.Cursor, limit int) (list []doneEntry, next *dialect.Cursor, err error) {
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
		id          [16]byte
		waits       bool
	}
	rows, err := query(ctx, tx, func(r *chosen) []any { return []any{&r.doneAt, &r.pos, idColumn{&r.id}, &r.waits} },
		s.sql.chooseReplay.with(&f, 5), f.after(at.DoneAt, at.Pos, at.Until, int64(limit), at.Begun)...)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range rows {
		at.DoneAt, at.Pos = r.doneAt, r.pos
		if !r.waits {
			list = append(list, doneEntry{len(list), r.doneAt, r.pos})
		}
	}
	if len(rows) < limit {
		return list, nil, nil
	}
	return list, &at, nil
}

// purgeRows is the most rows that one statement of a purge deletes. Each takes a lock
// in each of two indexes; from 5,000 a statement on locks would escalate to one on the
// table if LOCK_ESCALATION were not DISABLE.
const purgeRows = 1000

// Purge deletes a batch in one transaction, some rows a statement.
func (s *store) Purge(ctx context.Context, db dialect.DB, olderThan time.Duration, limit int) (int, error) {
	return purge(ctx, db, limit, func(tx *sql.Tx, n int) (int, error) {
		old, err := query(ctx, tx, func(e *doneEntry) []any { return []any{&e.DoneAt, &e.Pos} },
			s.sql.choosePurge, -micros(olderThan), int64(n))
		if err != nil || len(old) == 0 {
			return 0, err
		}
		return len(old), exec(ctx, tx, s.sql.purge, asJSON(old))
	})
}

// purge runs some, which deletes up to n rows and says how many, until limit is
// reached or there are no more.
func purge(ctx context.Context, db dialect.DB, limit int, some func(tx *sql.Tx, n int) (int, error)) (total int, err error) {
	_, err = inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
		for total < limit {
			most := min(limit-total, purgeRows)
			n, err := some(tx, most)
			if err != nil {
				return false, err
			}
			total += n
			if n < most {
				break
			}
		}
		return total > 0, nil
	})
	if err != nil {
		return 0, err
	}
	return total, nil
}

// Purgeable counts in one statement.
func (s *store) Purgeable(ctx context.Context, db dialect.DB, olderThan time.Duration, limit int) (n int, err error) {
	err = read(ctx, db, func(tx *sql.Tx) error {
		_, err := query1(ctx, tx, []any{&n}, s.sql.purgeable, -micros(olderThan), int64(limit))
		return err
	})
	return n, err
}

// ClaimPurge marks the time of the purge under the lock of meta's row.
func (s *store) ClaimPurge(ctx context.Context, db dialect.DB, every time.Duration) (bool, error) {
	return inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
		var one int
		due, err := query1(ctx, tx, []any{&one}, s.sql.purgeDue, -micros(every))
		if err != nil || !due {
			return false, err
		}
		return true, exec(ctx, tx, s.sql.claimPurge)
	})
}

// hash is the key of a text in the inbox.
func hash(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	return sum[:]
}

// Record inserts the message id for the consumer. That it is there is an error of the
// statement alone, which leaves the transaction as it was.
func (s *store) Record(ctx context.Context, tx dialect.Tx, consumer, messageID string) (fresh bool, err error) {
	_, err = tx.ExecContext(ctx, s.sql.record, hash(consumer), hash(messageID), []byte(consumer), []byte(messageID))
	if isDuplicate(err) {
		return false, nil
	}
	return err == nil, err
}

// Recorded looks the message id up.
func (s *store) Recorded(ctx context.Context, db dialect.DB, consumer, messageID string) (recorded bool, err error) {
	err = read(ctx, db, func(tx *sql.Tx) error {
		_, err := query1(ctx, tx, []any{&recorded}, s.sql.recorded, hash(consumer), hash(messageID))
		return err
	})
	return recorded, err
}

// PurgeInbox deletes a batch in one transaction, some rows a statement.
func (s *store) PurgeInbox(ctx context.Context, db dialect.DB, olderThan time.Duration, limit int) (int, error) {
	type inboxEntry struct {
		Consumer string `json:"c"`
		Message  string `json:"m"`
	}
	return purge(ctx, db, limit, func(tx *sql.Tx, n int) (int, error) {
		old, err := query(ctx, tx, func(e *inboxEntry) []any { return []any{hexColumn{&e.Consumer}, hexColumn{&e.Message}} },
			s.sql.choosePurgeInbox, -micros(olderThan), int64(n))
		if err != nil || len(old) == 0 {
			return 0, err
		}
		return len(old), exec(ctx, tx, s.sql.purgeInbox, asJSON(old))
	})
}

// hexColumn scans bytes as hexadecimal.
type hexColumn struct{ text *string }

// Scan implements [sql.Scanner].
func (c hexColumn) Scan(value any) error {
	b, ok := value.([]byte)
	if !ok {
		return fmt.Errorf("hash is a %T, not bytes", value)
	}
	*c.text = hex.EncodeToString(b)
	return nil
}

// filtered is a statement around the conditions of a filter. It is cut before names
// are filled in, so that no name can be taken for the place.
type filtered struct{ head, tail string }

// with renders the statement with f's conditions, whose parameters follow the
// statement's own.
func (q filtered) with(f *conditions, own int) string {
	var b strings.Builder
	b.WriteString(q.head)
	for _, c := range f.list {
		text := c.text
		if c.arg != nil {
			own++
			text = strings.ReplaceAll(text, "@p", fmt.Sprint("@p", own))
		}
		b.WriteString("\n      AND " + text)
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
	text string // with @p where its parameter stands
	arg  any    // nil when it has none
}

// empty tells that the filter matches nothing.
func (f *conditions) empty() bool { return !f.all && len(f.list) == 0 }

// after are the arguments: the statement's own, then the conditions'.
func (f *conditions) after(own ...any) []any {
	args := slices.Clone(own)
	for _, c := range f.list {
		if c.arg != nil {
			args = append(args, c.arg)
		}
	}
	return args
}

// content are the conditions on content columns.
func (s *store) content(filter dialect.Filter, table string) conditions {
	f := conditions{all: filter.All}
	add := func(text string, arg any) {
		f.list = append(f.list, condition{strings.ReplaceAll(text, "{t}", table), arg})
	}
	if len(filter.IDs) > 0 {
		ids := make([]entry, len(filter.IDs))
		for i, id := range filter.IDs {
			ids[i].ID = hex.EncodeToString(id[:])
		}
		add(`{t}.id IN (SELECT CONVERT(binary(16), i.id, 2) FROM OPENJSON(@p) WITH (id varchar(32) '$.i') AS i)`, asJSON(ids))
	}
	if filter.Key.Valid {
		// The key alone would do; lane and hash are what parked_key has.
		hash := dialect.KeyHash(filter.Key.V)
		add(`{t}.lane = @p`, number(dialect.LaneOfKey(hash, s.tables.Lanes)))
		add(`{t}.key_hash = @p`, hash)
		add(`{t}.[key] = @p AND DATALENGTH({t}.[key]) = DATALENGTH(@p)`, []byte(filter.Key.V))
	}
	if filter.Topic != "" {
		add(`{t}.topic = @p AND DATALENGTH({t}.topic) = DATALENGTH(@p)`, []byte(filter.Topic))
	}
	if filter.Type != "" {
		add(`{t}.type = @p AND DATALENGTH({t}.type) = DATALENGTH(@p)`, []byte(filter.Type))
	}
	return f
}

// parkedFilter are the conditions on parked messages. Times of settling are none.
func (s *store) parkedFilter(filter dialect.Filter) conditions {
	f := s.content(filter, "p")
	if len(filter.States) > 0 {
		f.list = append(f.list, condition{text: statesText(filter.States)})
	}
	return f
}

// statesText is the condition on the state, in literals: the collation of the column
// meets no other. A state that is none matches nothing.
func statesText(states []string) string {
	var list []string
	for _, state := range states {
		switch state {
		case dialect.Scheduled, dialect.Retry, dialect.Held, dialect.Dead:
			list = append(list, "'"+state+"'")
		}
	}
	if len(list) == 0 {
		return "1 = 0"
	}
	return "p.state IN (" + strings.Join(list, ", ") + ")"
}

// doneFilter are the conditions on done messages. Times are in the cursor; states are
// none.
func (s *store) doneFilter(filter dialect.Filter) conditions {
	f := s.content(filter, "d")
	f.all = f.all || filter.DoneWithin > 0 || filter.DoneBefore > 0
	return f
}
