package oracle

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// Poll returns lanes to claim; one statement that locks nothing.
func (s *store) Poll(ctx context.Context, db dialect.DB, owner string, limit int) (lanes []dialect.Candidate, err error) {
	err = read(ctx, db, func(tx *sql.Tx) error {
		lanes, err = query(ctx, tx, candidate, s.sql.poll, raw(owner), limit)
		return err
	})
	return lanes, err
}

func candidate(c *dialect.Candidate) []any { return []any{&c.Lane, &c.Epoch, &c.Due} }

// Pending tells whether there is work, and whether others are at it.
func (s *store) Pending(ctx context.Context, db dialect.DB, owner string) (work, held bool, err error) {
	err = read(ctx, db, func(tx *sql.Tx) error {
		_, err := query1(ctx, tx, []any{&work, &held}, s.sql.pending, raw(owner))
		return err
	})
	return work, held, err
}

// Claim takes a lane in one transaction, passing by a locked one.
func (s *store) Claim(ctx context.Context, db dialect.DB, lane int, owner string, ttl time.Duration) (epoch int64, ok bool, err error) {
	ok, err = s.inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
		var locked int
		ok, err := query1(ctx, tx, []any{&locked}, s.sql.claim, lane, raw(owner))
		if err != nil || !ok {
			return false, err
		}
		if ok, err = query1(ctx, tx, []any{&epoch}, s.sql.free, lane, raw(owner)); err != nil || !ok {
			return false, err
		}
		return true, exec(ctx, tx, s.sql.own, raw(owner), micros(ttl), lane)
	})
	if !ok {
		return 0, false, err
	}
	return epoch + 1, true, nil
}

// fenced runs do in a transaction that begins with the fence. ok is false when the
// lease is lost.
func (s *store) fenced(ctx context.Context, db dialect.DB, lease dialect.Lease, do func(tx *sql.Tx) error) (ok bool, err error) {
	return s.inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
		var epoch int64
		held, err := query1(ctx, tx, []any{&epoch}, s.sql.fence, lease.Lane, raw(lease.Owner), lease.Epoch)
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

// Release ends a lease behind the fence.
func (s *store) Release(ctx context.Context, db dialect.DB, lease dialect.Lease) error {
	_, err := s.fenced(ctx, db, lease, func(tx *sql.Tx) error {
		return exec(ctx, tx, s.sql.release, lease.Lane)
	})
	return err
}

// surfacedTwice is the reason of a scheduled message that found its id taken.
const surfacedTwice = "a message with this id is ready already"

// An insert waits for another session that has inserted the same id and not ended, and
// the server knows no bound for that wait: the lane would stand still, its renewals with
// it. So Surface inserts surfaceRows at a time and gives up when these take surfaceWait.
const (
	surfaceRows = 20
	surfaceWait = 2 * time.Second
)

// errSurfaceWaits is a [dialect.Conflict].
var errSurfaceWaits = errors.New("a message that is due waits for an open transaction that has inserted its id")

// Surface moves due messages behind the fence. A producer that inserts the same id as
// ready at the same moment makes it fail with a [dialect.Duplicate] error, or with a
// [dialect.Conflict] when it does not end; the next call finds that id taken, or waits
// again. Nothing tells beforehand which id another session has inserted, so what is due
// with it waits as well.
func (s *store) Surface(ctx context.Context, db dialect.DB, lease dialect.Lease, limit int) (moved int, ok bool, err error) {
	// When this ends, so do the statement, the transaction and the connection, which is
	// closed: go-ora may report an interruption once more on it.
	limited, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ok, err = s.fenced(limited, db, lease, func(tx *sql.Tx) error {
		type row struct {
			pos   int64
			id    [16]byte
			taken bool
		}
		due, err := query(limited, tx, func(r *row) []any { return []any{&r.pos, idColumn{&r.id}, &r.taken} },
			s.sql.dueScheduled, lease.Lane, limit)
		if err != nil {
			return err
		}
		var fresh, twice []int64
		var ids [][]byte
		for i := range due {
			if due[i].taken {
				twice = append(twice, due[i].pos)
			} else {
				fresh = append(fresh, due[i].pos)
				ids = append(ids, due[i].id[:])
			}
		}
		if err := array(limited, tx, s.sql.surfacedTwice, repeat(raw(surfacedTwice), len(twice)), twice); err != nil {
			return err
		}
		giveUp := time.AfterFunc(surfaceWait, func() { cancel(errSurfaceWaits) })
		defer giveUp.Stop()
		for some := range slices.Chunk(fresh, surfaceRows) {
			giveUp.Reset(surfaceWait)
			if err := array(limited, tx, s.sql.surface, some); err != nil {
				return err
			}
		}
		giveUp.Stop()
		moved = len(fresh)
		return array(limited, tx, s.sql.deleteParked, repeat(int64(lease.Lane), len(fresh)), fresh, ids)
	})
	switch waits := context.Cause(limited); {
	case err != nil && errors.Is(waits, errSurfaceWaits):
		return 0, false, fmt.Errorf("%w: %w", waits, err)
	case !ok:
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

// Ready finds out how far the limit reaches, and reads the rows up to there. What was
// added in between comes with them, and is cut off where it exceeds the limit.
func (s *store) Ready(ctx context.Context, db dialect.DB, lane int, after int64, limit dialect.Limit) (rows []dialect.Row, err error) {
	err = read(ctx, db, func(tx *sql.Tx) error {
		type choice struct{ seq, size int64 }
		choices, err := query(ctx, tx, func(c *choice) []any { return []any{&c.seq, &c.size} },
			s.sql.chooseReady, lane, after, limit.Rows)
		if err != nil || len(choices) == 0 {
			return err
		}
		b := newBudget(limit)
		last := after
		for i := 0; i < len(choices) && b.left(); i++ {
			last = choices[i].seq
			b.spend(choices[i].size)
		}
		rows, err = query(ctx, tx, readyOf, s.sql.ready, lane, after, last)
		return err
	})
	if err != nil {
		return nil, err
	}
	b := newBudget(limit)
	for i := range rows {
		if !b.left() {
			return rows[:i], nil
		}
		b.spend(int64(len(rows[i].Headers) + len(rows[i].Payload)))
	}
	return rows, nil
}

// place is a parked row as Due chooses it.
type place struct {
	pos, seq int64
	key      sql.Null[int64]
	size     int64
	followed bool // by held rows of its key
}

func placeOf(p *place) []any { return []any{&p.pos, &p.seq, &p.key, &p.size, &p.followed} }

// Due chooses heads and what is behind them, and reads all by one statement. A key whose
// head that does not find as such is left out, and comes with a later call: an operator
// has discarded the head, or put an older row before it, and what was found behind it
// lacks the new one.
func (s *store) Due(ctx context.Context, db dialect.DB, lane int, limit dialect.Limit) (rows []dialect.Row, err error) {
	err = read(ctx, db, func(tx *sql.Tx) error {
		chosen, err := s.chooseDue(ctx, tx, lane, limit)
		if err != nil {
			return err
		}
		var list []int64
		for _, run := range chosen {
			for _, p := range run {
				list = append(list, p.pos)
			}
		}
		found, err := queryList(ctx, tx, parkedOf, s.sql.readParked, nil, list, number1)
		if err != nil {
			return err
		}
		byPos := make(map[int64]*dialect.Parked, len(found))
		for i := range found {
			byPos[found[i].Pos] = &found[i]
		}
		for _, run := range chosen {
			if head := byPos[run[0].pos]; head == nil || head.State != dialect.Retry {
				continue
			}
			for _, p := range run {
				if parked := byPos[p.pos]; parked != nil {
					rows = append(rows, parked.Row)
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// chooseDue returns the rows of Due, those of a key together.
func (s *store) chooseDue(ctx context.Context, tx *sql.Tx, lane int, limit dialect.Limit) (chosen [][]place, err error) {
	heads, err := query(ctx, tx, placeOf, s.sql.dueHeads, lane, limit.Rows)
	if err != nil {
		return nil, err
	}
	b := newBudget(limit)
	rest := limit.Rows - len(heads)
	runs, keys := runsOf(heads)
	for _, run := range runs {
		if head := run[len(run)-1]; head.followed && rest > 0 && b.left() {
			// An even share of what the heads leave, so that what one key does not need
			// goes to those after it.
			held, err := query(ctx, tx, placeOf, s.sql.dueHeld,
				lane, head.key.V, lane, head.key.V, head.seq, max(1, rest/keys))
			if err != nil {
				return nil, err
			}
			rest -= len(held)
			run = append(run, held...)
		}
		if run[0].key.Valid {
			keys--
		}
		n := 0
		for n < len(run) && b.left() {
			b.spend(run[n].size)
			n++
		}
		if n > 0 {
			chosen = append(chosen, run[:n])
		}
	}
	return chosen, nil
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
	return s.fenced(ctx, db, lease, func(tx *sql.Tx) error {
		if err := exec(ctx, tx, s.sql.settle, micros(ttl), lease.Lane); err != nil {
			return err
		}
		return s.move(ctx, tx, lease.Lane, t)
	})
}

// move does what a settlement says, in one lane.
func (s *store) move(ctx context.Context, tx *sql.Tx, lane int, t dialect.Settlement) error {
	keys, err := s.keysOf(ctx, tx, lane, t)
	if err != nil {
		return err
	}
	// What was published, failed or held is all no longer ready.
	left := slices.Concat(t.Published, refsOf(t.Failed), t.Hold)
	for _, step := range []struct {
		needed  bool
		text    string
		columns []any
	}{
		{t.Archive, s.sql.archiveReady, refColumns(lane, t.Published)},
		{t.Archive, s.sql.archiveParked, refColumns(lane, t.PublishedParked)},
		{true, s.sql.deleteParked, refColumns(lane, t.PublishedParked)},
		{true, s.sql.fail, failureColumns(lane, t.Failed)},
		{true, s.sql.failParked, failureColumns(lane, t.FailedParked)},
		{true, s.sql.hold, refColumns(lane, t.Hold)},
		{true, s.sql.deleteReady, refColumns(lane, left)},
	} {
		if !step.needed {
			continue
		}
		if err := array(ctx, tx, step.text, step.columns...); err != nil {
			return err
		}
	}
	return s.promote(ctx, tx, lane, keys)
}

// keysOf returns the keys whose parked rows a settlement changes.
func (s *store) keysOf(ctx context.Context, tx *sql.Tx, lane int, t dialect.Settlement) (keys []int64, err error) {
	for _, look := range []struct {
		q    listed
		rows []dialect.Ref
	}{
		{s.sql.keysOfReady, slices.Concat(refsOf(t.Failed), t.Hold)},
		{s.sql.keysOfParked, slices.Concat(t.PublishedParked, refsOf(t.FailedParked))},
	} {
		type keyed struct {
			dialect.Ref
			key sql.Null[int64]
		}
		found, err := queryList(ctx, tx, func(k *keyed) []any { return []any{&k.Place, idColumn{&k.ID}, &k.key} },
			look.q, []any{lane}, look.rows, func(r dialect.Ref) []any { return []any{r.Place} })
		if err != nil {
			return nil, err
		}
		named := make(map[dialect.Ref]bool, len(look.rows))
		for _, r := range look.rows {
			named[r] = true
		}
		for _, k := range found {
			if k.key.Valid && named[k.Ref] {
				keys = append(keys, k.key.V)
			}
		}
	}
	return keys, nil
}

// promote sees to it that the first row of each key is its head. The caller holds the
// lane row's lock.
func (s *store) promote(ctx context.Context, tx *sql.Tx, lane int, keys []int64) error {
	slices.Sort(keys)
	keys = slices.Compact(keys)
	lanes := repeat(int64(lane), len(keys))
	if err := array(ctx, tx, s.sql.demote, lanes, keys); err != nil {
		return err
	}
	return array(ctx, tx, s.sql.promote, lanes, keys, lanes, keys)
}

func refsOf(list []dialect.Failure) (refs []dialect.Ref) {
	for _, f := range list {
		refs = append(refs, f.Ref)
	}
	return refs
}

// refColumns are the lane, place and id of rows, a slice a column.
func refColumns(lane int, refs []dialect.Ref) []any {
	places, ids := make([]int64, len(refs)), make([][]byte, len(refs))
	for i := range refs {
		places[i], ids[i] = refs[i].Place, refs[i].ID[:]
	}
	return []any{repeat(int64(lane), len(refs)), places, ids}
}

// failureColumns are the arguments of failSQL and failParkedSQL, a slice a column.
func failureColumns(lane int, list []dialect.Failure) []any {
	var (
		attempts, states, blocking []int64
		reasons                    [][]byte
		delays                     []sql.NullInt64
	)
	for _, f := range list {
		attempts = append(attempts, int64(min(f.Attempts, math.MaxInt32)))
		reasons = append(reasons, raw(f.Reason))
		blocking = append(blocking, bit(f.Blocking))
		if f.Dead {
			states = append(states, dead)
		} else {
			states = append(states, retry)
		}
		delays = append(delays, sql.NullInt64{Int64: micros(f.Delay), Valid: !f.Dead})
	}
	return append([]any{attempts, reasons, states, delays, blocking}, refColumns(lane, refsOf(list))...)
}

// The states of a parked row as the table has them.
const (
	scheduled = 1
	retry     = 2
	held      = 3
	dead      = 4
)

// states are the states in words, by number.
var states = [...]string{scheduled: dialect.Scheduled, retry: dialect.Retry, held: dialect.Held, dead: dialect.Dead}

// stateColumn scans a state.
type stateColumn struct{ state *string }

// Scan implements [sql.Scanner].
func (c stateColumn) Scan(value any) error {
	var n sql.Null[int]
	if err := n.Scan(value); err != nil {
		return err
	}
	if n.V < scheduled || n.V > dead {
		return fmt.Errorf("state is %d, which is none", n.V)
	}
	*c.state = states[n.V]
	return nil
}

// readyOf are the destinations of what readySQL reads, parkedOf those of parkedColumns.
func readyOf(r *dialect.Row) []any {
	return append(rowColumns(r), &r.Blocked, emptyColumn{&r.Payload}, payloadColumn{&r.Payload})
}

func parkedOf(p *dialect.Parked) []any {
	return append(rowColumns(&p.Row), stateColumn{&p.State}, &p.Blocking, textColumn{&p.Reason},
		nullMicrosColumn{&p.DueIn}, timeColumn{&p.ParkedAt}, emptyColumn{&p.Payload}, payloadColumn{&p.Payload})
}
