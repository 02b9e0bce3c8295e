package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// Pending tells whether there is work, and whether others are at it.
func (s *store) Pending(ctx context.Context, db dialect.DB, owner string) (work, held bool, err error) {
	err = read(ctx, db, func(tx *sql.Tx) error {
		_, err := query1(ctx, tx, []any{&work, &held}, s.sql.pending, []byte(owner))
		return err
	})
	return work, held, err
}

// Claim takes a lane in one transaction, passing by a locked one. It is no single
// statement: one that its caller gave up, while a lock of the whole table held it, would
// be applied later and end the next lease of the same owner.
func (s *store) Claim(ctx context.Context, db dialect.DB, lane int, owner string, ttl time.Duration) (epoch int64, ok bool, err error) {
	ok, err = inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
		free, err := query1(ctx, tx, []any{&epoch}, s.sql.claim, lane, []byte(owner))
		if err != nil || !free {
			return false, err
		}
		return true, exec(ctx, tx, s.sql.own, []byte(owner), micros(ttl), lane)
	})
	if !ok {
		return 0, false, err
	}
	s.claimed[lane].Store(epoch + 1)
	return epoch + 1, true, nil
}

// fenced runs do in a transaction that begins with the fence. ok is false when the
// lease is lost.
func (s *store) fenced(ctx context.Context, db dialect.DB, lease dialect.Lease, do func(tx *sql.Tx) error) (ok bool, err error) {
	return inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
		var epoch int64
		held, err := query1(ctx, tx, []any{&epoch}, s.sql.fence, lease.Lane, []byte(lease.Owner), lease.Epoch)
		if err != nil || !held {
			return false, err
		}
		return true, do(tx)
	})
}

// Extend renews a lease behind the fence.
func (s *store) Extend(ctx context.Context, db dialect.DB, lease dialect.Lease, ttl time.Duration) (bool, error) {
	return s.fenced(ctx, db, lease, func(tx *sql.Tx) error {
		return exec(ctx, tx, s.sql.extend, micros(ttl), lease.Lane)
	})
}

// Release ends a lease in one statement, or behind the fence where that passes it by.
func (s *store) Release(ctx context.Context, db dialect.DB, lease dialect.Lease) error {
	done, err := write(ctx, db, s.sql.release, lease.Lane, []byte(lease.Owner), lease.Epoch)
	if done || err != nil && !isOvertaken(err) {
		return err
	}
	_, err = s.fenced(ctx, db, lease, func(tx *sql.Tx) error {
		return exec(ctx, tx, s.sql.end, lease.Lane)
	})
	return err
}

// surfacedTwice is the reason of a scheduled message that found its id taken.
const surfacedTwice = "a message with this id is ready already"

// due is a scheduled message that Surface may move.
type due struct {
	pos   int64
	id    [16]byte
	taken bool // a ready message has its id
}

// dueScheduled are the scheduled messages that are due.
func (s *store) dueScheduled(ctx context.Context, tx *sql.Tx, lane, limit int) ([]due, error) {
	return query(ctx, tx, func(d *due) []any { return []any{&d.pos, idColumn{&d.id}, &d.taken} }, s.sql.dueScheduled, lane, limit)
}

// Surface looks first, locks nothing when nothing is due, and moves due messages
// behind the fence.
//
// A producer that has inserted the same id as ready and not ended must not hold up the
// lane, for the insert would wait for it with the lane row locked. So the first look
// also sees what is not committed, and what is taken by such a row waits for a later
// call. A producer that comes between the two looks makes it wait, at most for the
// server's innodb_lock_wait_timeout, and then fail with a [dialect.Conflict] or
// [dialect.Duplicate] error.
func (s *store) Surface(ctx context.Context, db dialect.DB, lease dialect.Lease, limit int) (moved int, ok bool, err error) {
	open := make(map[[16]byte]bool)
	var held, found bool
	err = readAt(ctx, db, sql.LevelReadUncommitted, func(tx *sql.Tx) error {
		if _, err := query1(ctx, tx, []any{&held}, s.sql.lease, lease.Lane, []byte(lease.Owner), lease.Epoch); err != nil {
			return err
		}
		list, err := s.dueScheduled(ctx, tx, lease.Lane, limit)
		for _, d := range list {
			found = true
			if d.taken {
				open[d.id] = true
			}
		}
		return err
	})
	// Whoever changes the lane row may yet roll back: the fence decides.
	if err != nil || held && !found {
		return 0, err == nil, err
	}
	ok, err = s.fenced(ctx, db, lease, func(tx *sql.Tx) error {
		list, err := s.dueScheduled(ctx, tx, lease.Lane, limit)
		if err != nil {
			return err
		}
		var fresh, twice []int64
		var refs []dialect.Ref
		for _, d := range list {
			switch {
			case d.taken:
				twice = append(twice, d.pos)
			case !open[d.id]:
				fresh = append(fresh, d.pos)
				refs = append(refs, dialect.Ref{Place: d.pos, ID: d.id})
			}
		}
		if len(twice) > 0 {
			if err := exec(ctx, tx, s.sql.surfacedTwice, asJSON(twice), []byte(surfacedTwice)); err != nil {
				return err
			}
		}
		if len(fresh) == 0 {
			return nil
		}
		if err := exec(ctx, tx, s.sql.surface, asJSON(fresh)); err != nil {
			return err
		}
		moved = len(fresh)
		return execRefs(ctx, tx, s.sql.deleteParked, refs, lease.Lane)
	})
	if err != nil || !ok {
		return 0, false, err
	}
	return moved, true, nil
}

// budget is what a read may still return.
type budget struct {
	rows  int
	bytes int64
}

func newBudget(limit dialect.Limit) *budget {
	b := budget{rows: limit.Rows, bytes: limit.Bytes}
	if b.bytes <= 0 {
		b.bytes = math.MaxInt64
	}
	return &b
}

// left tells whether one row more may be read, whatever its size.
func (b *budget) left() bool { return b.rows > 0 && b.bytes > 0 }

func (b *budget) spend(size int64) {
	b.rows--
	b.bytes -= size
}

// What a lane's last read tells of the next one.
const (
	few  = iota // fewer rows than readyAboveRows were ready in all lanes, or none was read yet
	many        // there were more, in all lanes
	full        // the lane's own were as many as were wanted
)

// Ready reads a batch from one snapshot. Where few rows are ready in all lanes, one statement
// finds the lane's among them. Where there are more, a range of the lane is read: it walks over
// what was deleted there and is not yet purged, but, unless it is short, not over what was
// deleted in the other lanes.
func (s *store) Ready(ctx context.Context, db dialect.DB, lane int, after int64, limit dialect.Limit) (rows []dialect.Row, err error) {
	fits := inlined(limit)
	err = read(ctx, db, func(tx *sql.Tx) error {
		last := s.last[lane].Load()
		from, now, there := after+1, int64(0), int64(readyAboveRows)
		count := func() error {
			_, err := query1(ctx, tx, []any{&now, &there}, s.sql.readyCount, after, readyAboveRows)
			return err
		}
		if last == many {
			if err := count(); err != nil {
				return err
			}
		}
		if last == few || there < readyAboveRows {
			u, b := unpacker{lane: lane, few: true, rows: limit.Room[:0]}, newBudget(limit)
			rows, err = u.all(ctx, tx, b, s.sql.readyBodies,
				s.sql.readyFew, lane, fits, fits, fits, after, readyAboveRows, after, readyAboveRows, lane, limit.Rows)
			if err != nil {
				return err
			}
			if len(rows) > 0 {
				from, now, there = rows[0].Seq, u.now, u.there
			} else if last == few {
				if err := count(); err != nil {
					return err
				}
			}
			if there < readyAboveRows || !b.left() {
				s.last[lane].Store(few)
				return nil
			}
		}
		if now == 0 {
			if _, err := query1(ctx, tx, []any{&now}, clockSQL); err != nil {
				return err
			}
		}
		u, b := unpacker{lane: lane, now: now, rows: limit.Room[:0]}, newBudget(limit)
		if last == full {
			u.rows = slices.Grow(u.rows, min(limit.Rows, 1000))
		}
		if rows, err = u.all(ctx, tx, b, s.sql.readyBodies, s.sql.ready, lane, fits, fits, fits, lane, from, limit.Rows); err != nil {
			return err
		}
		if b.left() {
			s.last[lane].Store(many)
		} else {
			s.last[lane].Store(full)
		}
		return nil
	})
	return rows, err
}

// place is a parked row as Due chooses it.
type place struct {
	pos, seq int64
	key      sql.Null[int64]
	blocking bool
	size     int64
}

func placeColumns(p *place) []any { return []any{&p.pos, &p.seq, &p.key, &p.blocking, &p.size} }

// Due reads heads and what is behind them from one snapshot: were the head discarded
// in between, the row that follows it would be a head by then, and missing from the
// result.
func (s *store) Due(ctx context.Context, db dialect.DB, lane int, limit dialect.Limit) (rows []dialect.Row, err error) {
	err = read(ctx, db, func(tx *sql.Tx) error {
		heads, err := query(ctx, tx, placeColumns, s.sql.dueHeads, lane, limit.Rows)
		if err != nil || len(heads) == 0 {
			return err
		}
		var list []int64
		b := newBudget(limit)
		rest := limit.Rows - len(heads)
		runs, keys := runsOf(heads)
		for _, run := range runs {
			if head := run[len(run)-1]; head.key.Valid && rest > 0 && b.left() {
				// An even share of what the heads leave, so that what one key does not
				// need goes to those after it.
				held, err := s.behind(ctx, tx, lane, head, max(1, rest/keys))
				if err != nil {
					return err
				}
				rest -= len(held)
				run = append(run, held...)
			}
			if run[0].key.Valid {
				keys--
			}
			for _, p := range run {
				if !b.left() {
					break
				}
				list = append(list, p.pos)
				b.spend(p.size)
			}
		}
		u := unpacker{lane: lane, parked: true, rows: slices.Grow(limit.Room[:0], len(list))}
		fits := inlined(limit)
		rows, err = u.all(ctx, tx, newBudget(dialect.Limit{Rows: len(list)}), s.sql.parkedBodies,
			s.sql.readParked, fits, fits, fits, asJSON(list))
		return err
	})
	return rows, err
}

// behind returns the first held rows of the head's key, up to the next row that
// blocks the key by itself.
func (s *store) behind(ctx context.Context, tx *sql.Tx, lane int, head place, limit int) ([]place, error) {
	barrier := int64(math.MaxInt64)
	if _, err := query1(ctx, tx, []any{&barrier}, s.sql.dueBarrier, lane, head.key, head.seq); err != nil {
		return nil, err
	}
	return query(ctx, tx, placeColumns, s.sql.dueHeld, lane, head.key, barrier, limit)
}

// runsOf puts the rows of one key together, in order, leaves the others alone, and
// counts the keys. A key has more than one head only when one of them is dead or an
// operator requeued a message while a newer one was on its way.
func runsOf(heads []place) (runs [][]place, keys int) {
	byKey := make(map[int64]int)
	for _, head := range heads {
		if !head.key.Valid {
			runs = append(runs, []place{head})
			continue
		}
		i, ok := byKey[head.key.V]
		if !ok {
			i = len(runs)
			byKey[head.key.V] = i
			runs = append(runs, nil)
		}
		runs[i] = append(runs[i], head)
	}
	for _, run := range runs {
		slices.SortFunc(run, func(a, b place) int { return cmp.Compare(a.seq, b.seq) })
	}
	return runs, len(byKey)
}

// Settle is one transaction behind the fence.
func (s *store) Settle(ctx context.Context, db dialect.DB, lease dialect.Lease, ttl time.Duration, t dialect.Settlement) (bool, error) {
	return inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
		result, err := tx.ExecContext(ctx, s.sql.settle, micros(ttl), micros(ttl), micros(ttl), lease.Lane, []byte(lease.Owner), lease.Epoch)
		if err != nil {
			return false, err
		}
		changed, err := result.RowsAffected()
		if err != nil {
			return false, err
		}
		if changed == 0 {
			// The lease is lost, or its times were those already, in the same microsecond:
			// without clientFoundRows the number does not tell.
			var epoch int64
			if held, err := query1(ctx, tx, []any{&epoch}, s.sql.fence, lease.Lane, []byte(lease.Owner), lease.Epoch); err != nil || !held {
				return false, err
			}
		}
		return true, s.move(ctx, tx, lease.Lane, t)
	})
}

// move does what a settlement says, in one lane.
func (s *store) move(ctx context.Context, tx *sql.Tx, lane int, t dialect.Settlement) error {
	keys, err := s.keysOf(ctx, tx, lane, t)
	if err != nil {
		return err
	}
	if t.Archive {
		if err := execReady(ctx, tx, s.sql.archiveOne, s.sql.archiveReady, t.Published, lane); err != nil {
			return err
		}
		if err := execRefs(ctx, tx, s.sql.archiveParked, t.PublishedParked, lane); err != nil {
			return err
		}
	}
	for part := range slices.Chunk(t.Failed, mostRows) {
		if err := exec(ctx, tx, s.sql.fail, failures(part), lane); err != nil {
			return err
		}
	}
	for part := range slices.Chunk(t.FailedParked, mostRows) {
		if err := exec(ctx, tx, s.sql.failParked, failures(part), lane); err != nil {
			return err
		}
	}
	for _, step := range []struct {
		text string
		refs []dialect.Ref
	}{
		{s.sql.deleteParked, t.PublishedParked},
		{s.sql.hold, t.Hold},
	} {
		if err := execRefs(ctx, tx, step.text, step.refs, lane); err != nil {
			return err
		}
	}
	// What was published, failed or held is all no longer ready.
	if err := execReady(ctx, tx, s.sql.deleteOne, s.sql.deleteReady, slices.Concat(t.Published, refsOf(t.Failed), t.Hold), lane); err != nil {
		return err
	}
	return s.promote(ctx, tx, lane, keys)
}

// keysOf returns the keys whose parked rows a settlement changes. Nothing returns
// them from the changes themselves on both servers.
func (s *store) keysOf(ctx context.Context, tx *sql.Tx, lane int, t dialect.Settlement) (keys []int64, err error) {
	for _, step := range []struct {
		text string
		refs []dialect.Ref
	}{
		{s.sql.keysOfReady, slices.Concat(refsOf(t.Failed), t.Hold)},
		{s.sql.keysOfParked, slices.Concat(t.PublishedParked, refsOf(t.FailedParked))},
	} {
		for part := range slices.Chunk(step.refs, mostRows) {
			more, err := query(ctx, tx, one[int64], step.text, refs(part), lane)
			if err != nil {
				return nil, err
			}
			keys = append(keys, more...)
		}
	}
	return keys, nil
}

// promote sees to it that the first row of each key is its head. The caller holds the
// lane row's lock.
func (s *store) promote(ctx context.Context, tx *sql.Tx, lane int, keys []int64) error {
	if len(keys) == 0 {
		return nil
	}
	slices.Sort(keys)
	list := asJSON(slices.Compact(keys))
	if err := exec(ctx, tx, s.sql.demote, list, lane); err != nil {
		return err
	}
	return exec(ctx, tx, s.sql.promote, list, lane)
}

// execReady runs a statement on ready rows, or that for one.
func execReady(ctx context.Context, tx *sql.Tx, one, many string, list []dialect.Ref, lane int) error {
	if len(list) == 1 {
		return exec(ctx, tx, one, lane, list[0].Place, list[0].ID[:])
	}
	return execRefs(ctx, tx, many, list, lane)
}

// execRefs runs a statement on rows in one lane, with lists that a packet holds.
func execRefs(ctx context.Context, tx *sql.Tx, text string, list []dialect.Ref, lane int) error {
	for part := range slices.Chunk(list, mostRows) {
		if err := exec(ctx, tx, text, refs(part), lane); err != nil {
			return err
		}
	}
	return nil
}

func refsOf(list []dialect.Failure) (refs []dialect.Ref) {
	for _, f := range list {
		refs = append(refs, f.Ref)
	}
	return refs
}

// refs is the list that statements about references take.
func refs(list []dialect.Ref) string {
	const most = len(`[-9223372036854775808,"0123456789abcdef0123456789abcdef"],`)
	text := append(make([]byte, 0, 2+most*len(list)), '[')
	for i, r := range list {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(append(text, '['), r.Place, 10)
		text = append(hex.AppendEncode(append(text, `,"`...), r.ID[:]), `"]`...)
	}
	return string(append(text, ']'))
}

// failures is the list that failSQL and failParkedSQL take.
func failures(list []dialect.Failure) string {
	rows := make([][7]any, len(list))
	for i, f := range list {
		rows[i] = [7]any{
			f.Place, hex.EncodeToString(f.ID[:]),
			min(f.Attempts, math.MaxInt32), bit(f.Dead), bit(f.Blocking), micros(f.Delay), inHex(f.Reason),
		}
	}
	return asJSON(rows)
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}
