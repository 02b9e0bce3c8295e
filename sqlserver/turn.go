package sqlserver

import (
	"cmp"
	"context"
	"database/sql"
	"math"
	"slices"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// Poll returns lanes to claim; one statement that waits for nobody's lock.
func (s *store) Poll(ctx context.Context, db dialect.DB, owner string, limit int) (lanes []dialect.Candidate, err error) {
	err = read(ctx, db, func(tx *sql.Tx) error {
		lanes, err = query(ctx, tx, candidate, s.sql.poll, []byte(owner), int64(limit))
		return err
	})
	return lanes, err
}

func candidate(c *dialect.Candidate) []any { return []any{&c.Lane, &c.Epoch, &c.Due} }

// Pending tells whether there is work, and whether others are at it.
func (s *store) Pending(ctx context.Context, db dialect.DB, owner string) (work, held bool, err error) {
	err = read(ctx, db, func(tx *sql.Tx) error {
		_, err := query1(ctx, tx, []any{&work, &held}, s.sql.pending, []byte(owner))
		return err
	})
	return work, held, err
}

// Claim takes a lane in one transaction, passing by a locked one.
func (s *store) Claim(ctx context.Context, db dialect.DB, lane int, owner string, ttl time.Duration) (epoch int64, ok bool, err error) {
	ok, err = inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
		free, err := query1(ctx, tx, []any{&epoch}, s.sql.claim, number(lane), []byte(owner))
		if err != nil || !free {
			return false, err
		}
		return true, exec(ctx, tx, s.sql.own, []byte(owner), micros(ttl), number(lane))
	})
	if !ok {
		return 0, false, err
	}
	return epoch + 1, true, nil
}

// fenced runs do in a transaction that begins with the fence. ok is false when the
// lease is lost.
func (s *store) fenced(ctx context.Context, db dialect.DB, lease dialect.Lease, do func(tx *sql.Tx) error) (ok bool, err error) {
	return inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
		var epoch int64
		held, err := query1(ctx, tx, []any{&epoch}, s.sql.fence, number(lease.Lane), []byte(lease.Owner), lease.Epoch)
		if err != nil || !held {
			return false, err
		}
		return true, do(tx)
	})
}

// lockLane takes the lane row's lock for the rest of the transaction.
func (s *store) lockLane(ctx context.Context, tx *sql.Tx, lane int) error {
	var locked int
	_, err := query1(ctx, tx, []any{&locked}, s.sql.lockLane, number(lane))
	return err
}

// Extend renews a lease behind the fence.
func (s *store) Extend(ctx context.Context, db dialect.DB, lease dialect.Lease, ttl time.Duration) (bool, error) {
	return s.fenced(ctx, db, lease, func(tx *sql.Tx) error {
		return exec(ctx, tx, s.sql.extend, micros(ttl), number(lease.Lane))
	})
}

// Release ends a lease behind the fence.
func (s *store) Release(ctx context.Context, db dialect.DB, lease dialect.Lease) error {
	_, err := s.fenced(ctx, db, lease, func(tx *sql.Tx) error {
		return exec(ctx, tx, s.sql.release, number(lease.Lane))
	})
	return err
}

// surfacedTwice is the reason of a scheduled message that found its id taken.
const surfacedTwice = "a message with this id is ready already"

// Surface moves due messages behind the fence.
//
// A producer that has inserted the same id as ready and not ended must not hold up the
// lane, for the insert would wait for it with the lane row locked. So what has its id
// taken by a row that is there, but locked, waits for a later call. A producer that
// comes between the look and the insert makes it wait, at most for the session's
// LOCK_TIMEOUT, and then fail with a [dialect.Conflict] or [dialect.Duplicate] error.
func (s *store) Surface(ctx context.Context, db dialect.DB, lease dialect.Lease, limit int) (moved int, ok bool, err error) {
	ok, err = s.fenced(ctx, db, lease, func(tx *sql.Tx) error {
		type scheduled struct {
			dialect.Ref
			taken, there bool // a ready message has its id: committed, in any way
		}
		due, err := query(ctx, tx, func(r *scheduled) []any { return []any{&r.Place, idColumn{&r.ID}, &r.taken, &r.there} },
			s.sql.dueScheduled, number(lease.Lane), int64(limit))
		if err != nil {
			return err
		}
		var fresh, twice []dialect.Ref
		for _, r := range due {
			switch {
			case r.taken:
				twice = append(twice, r.Ref)
			case !r.there:
				fresh = append(fresh, r.Ref)
			}
		}
		if len(twice) > 0 {
			if err := exec(ctx, tx, s.sql.surfacedTwice, entries(twice), number(lease.Lane), []byte(surfacedTwice)); err != nil {
				return err
			}
		}
		if len(fresh) == 0 {
			return nil
		}
		if err := exec(ctx, tx, s.sql.surface, entries(fresh), number(lease.Lane)); err != nil {
			return err
		}
		moved = len(fresh)
		return exec(ctx, tx, s.sql.deleteParked, entries(fresh), number(lease.Lane))
	})
	if !ok {
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

// choice is a ready row as Ready chooses it.
type choice struct {
	dialect.Ref
	key              sql.Null[int64]
	headers, payload int64
}

// Ready reads a batch: up to where, which rows there are and how large, which of their
// keys are blocked, and those within the limit. See boundReadySQL for why.
func (s *store) Ready(ctx context.Context, db dialect.DB, lane int, after int64, limit dialect.Limit) (rows []dialect.Row, err error) {
	err = read(ctx, db, func(tx *sql.Tx) error {
		var last sql.Null[int64]
		_, err := query1(ctx, tx, []any{&last}, s.sql.boundReady, number(lane), after, int64(limit.Rows))
		if err != nil || !last.Valid {
			return err
		}
		choices, err := query(ctx, tx, func(c *choice) []any { return []any{&c.Place, idColumn{&c.ID}, &c.key, &c.headers, &c.payload} },
			s.sql.chooseReady, number(lane), after, last.V, int64(limit.Rows))
		if err != nil || len(choices) == 0 {
			return err
		}
		if err := s.lockLane(ctx, tx, lane); err != nil {
			return err
		}
		blocked, err := s.blocked(ctx, tx, lane, choices)
		if err != nil {
			return err
		}
		type blockedEntry struct {
			entry
			Blocked int `json:"b"`
		}
		var list []blockedEntry
		for b := newBudget(limit); len(list) < len(choices) && b.left(); {
			c := choices[len(list)]
			e := blockedEntry{entry: entryOf(len(list), c.Ref)}
			if c.key.Valid && blocked[c.key.V] {
				e.Blocked = 1
				b.spend(c.headers)
			} else {
				b.spend(c.headers + c.payload)
			}
			list = append(list, e)
		}
		rows, err = query(ctx, tx, rowColumns, s.sql.ready, asJSON(list), number(lane))
		return err
	})
	return rows, err
}

// blocked tells which keys of the rows are. The caller holds the lane row's lock.
func (s *store) blocked(ctx context.Context, tx *sql.Tx, lane int, choices []choice) (map[int64]bool, error) {
	var keys []int64
	for _, c := range choices {
		if c.key.Valid {
			keys = append(keys, c.key.V)
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}
	slices.Sort(keys)
	list, err := query(ctx, tx, one[int64], s.sql.blocked, keyEntries(slices.Compact(keys)), number(lane))
	blocked := make(map[int64]bool, len(list))
	for _, key := range list {
		blocked[key] = true
	}
	return blocked, err
}

// place is a parked row as Due chooses it.
type place struct {
	dialect.Ref
	seq      int64
	key      sql.Null[int64]
	blocking bool
	size     int64
}

func placeOf(p *place) []any {
	return []any{&p.Place, idColumn{&p.ID}, &p.seq, &p.key, &p.blocking, &p.size}
}

// Due reads heads and what is behind them under the lane row's lock: were the head
// discarded in between, the row that follows it would be a head by then, and missing
// from the result.
func (s *store) Due(ctx context.Context, db dialect.DB, lane int, limit dialect.Limit) (rows []dialect.Row, err error) {
	err = read(ctx, db, func(tx *sql.Tx) error {
		if err := s.lockLane(ctx, tx, lane); err != nil {
			return err
		}
		heads, err := query(ctx, tx, placeOf, s.sql.dueHeads, number(lane), int64(limit.Rows))
		if err != nil || len(heads) == 0 {
			return err
		}
		var list []dialect.Ref
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
				list = append(list, p.Ref)
				b.spend(p.size)
			}
		}
		rows, err = query(ctx, tx, rowColumns, s.sql.readParked, entries(list), number(lane))
		return err
	})
	return rows, err
}

// behind returns the first held rows of the head's key, up to the next row that
// blocks the key by itself.
func (s *store) behind(ctx context.Context, tx *sql.Tx, lane int, head place, limit int) ([]place, error) {
	barrier := int64(math.MaxInt64)
	if _, err := query1(ctx, tx, []any{&barrier}, s.sql.dueBarrier, number(lane), head.key.V, head.seq); err != nil {
		return nil, err
	}
	return query(ctx, tx, placeOf, s.sql.dueHeld, number(lane), head.key.V, barrier, int64(limit))
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
		if err := exec(ctx, tx, s.sql.settle, micros(ttl), number(lease.Lane)); err != nil {
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
		needed bool
		text   string
		list   func() any
	}{
		{t.Archive && len(t.Published) > 0, s.sql.archiveReady, func() any { return entries(t.Published) }},
		{t.Archive && len(t.PublishedParked) > 0, s.sql.archiveParked, func() any { return entries(t.PublishedParked) }},
		{len(t.PublishedParked) > 0, s.sql.deleteParked, func() any { return entries(t.PublishedParked) }},
		{len(t.Failed) > 0, s.sql.fail, func() any { return failures(t.Failed) }},
		{len(t.FailedParked) > 0, s.sql.failParked, func() any { return failures(t.FailedParked) }},
		{len(t.Hold) > 0, s.sql.hold, func() any { return entries(t.Hold) }},
		{len(left) > 0, s.sql.deleteReady, func() any { return entries(left) }},
	} {
		if !step.needed {
			continue
		}
		if err := exec(ctx, tx, step.text, step.list(), number(lane)); err != nil {
			return err
		}
	}
	return s.promote(ctx, tx, lane, keys)
}

// keysOf returns the keys whose parked rows a settlement changes.
func (s *store) keysOf(ctx context.Context, tx *sql.Tx, lane int, t dialect.Settlement) (keys []int64, err error) {
	if ready := slices.Concat(refsOf(t.Failed), t.Hold); len(ready) > 0 {
		if keys, err = query(ctx, tx, one[int64], s.sql.keysOfReady, entries(ready), number(lane)); err != nil {
			return nil, err
		}
	}
	if parked := slices.Concat(t.PublishedParked, refsOf(t.FailedParked)); len(parked) > 0 {
		more, err := query(ctx, tx, one[int64], s.sql.keysOfParked, entries(parked), number(lane))
		if err != nil {
			return nil, err
		}
		keys = append(keys, more...)
	}
	return keys, nil
}

// promote sees to it that the first row of each key is its head. The caller holds the
// lane row's lock.
func (s *store) promote(ctx context.Context, tx *sql.Tx, lane int, keys []int64) error {
	if len(keys) == 0 {
		return nil
	}
	type firstRow struct {
		key                     int64
		blocking, held, heldPos sql.Null[int64]
		heldID                  []byte
	}
	slices.Sort(keys)
	list, err := query(ctx, tx, func(r *firstRow) []any {
		return []any{&r.key, &r.blocking, &r.held, &r.heldPos, &r.heldID}
	}, s.sql.firstRows, keyEntries(slices.Compact(keys)), number(lane))
	if err != nil {
		return err
	}
	type headEntry struct {
		keyEntry
		Head int64 `json:"h"`
	}
	var demote []headEntry
	var promote []dialect.Ref
	for _, r := range list {
		head := r.blocking.V
		if r.held.Valid && (!r.blocking.Valid || r.held.V < r.blocking.V) {
			head = r.held.V
			promote = append(promote, dialect.Ref{Place: r.heldPos.V, ID: [16]byte(r.heldID)})
		}
		if r.blocking.Valid {
			demote = append(demote, headEntry{keyEntry{r.key}, head})
		}
	}
	if len(demote) > 0 {
		if err := exec(ctx, tx, s.sql.demote, asJSON(demote), number(lane)); err != nil {
			return err
		}
	}
	if len(promote) == 0 {
		return nil
	}
	return exec(ctx, tx, s.sql.promote, entries(promote), number(lane))
}

func refsOf(list []dialect.Failure) (refs []dialect.Ref) {
	for _, f := range list {
		refs = append(refs, f.Ref)
	}
	return refs
}

// failures is the list that failSQL and failParkedSQL take.
func failures(list []dialect.Failure) any {
	type failure struct {
		entry
		Attempts int    `json:"a"`
		Dead     int    `json:"d"`
		Blocking int    `json:"b"`
		Wait     int64  `json:"w"`
		Reason   string `json:"r"`
	}
	rows := make([]failure, len(list))
	for i, f := range list {
		rows[i] = failure{
			entry: entryOf(i, f.Ref), Attempts: min(f.Attempts, math.MaxInt32),
			Dead: bit(f.Dead), Blocking: bit(f.Blocking), Wait: micros(f.Delay), Reason: inHex(f.Reason),
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
