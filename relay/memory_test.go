package relay_test

import (
	"context"
	"database/sql"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
)

// memory is an engine in memory with the clock of the test's bubble, so that
// the relay's timing can be tested to the millisecond. What it keeps true is
// the seam's contract; engines are tested by the conformance suite.
type memory struct {
	mu     lock
	seq    int64
	pos    int64
	lanes  []memoryLane
	ready  []memoryRow
	parked []memoryRow
	done   []memoryRow
	// fail is asked before every operation and may return its error.
	fail func(op string) error
	// after runs behind every operation, outside the lock.
	after   func(op string)
	inspect func() error
	horizon func() dialect.Horizon
	// unreadable makes reads of ready rows of a lane fail.
	unreadable func(lane int) bool
	floors     []int64 // those polled above
	purgedAt   time.Time
	purges     int
	purgedAge  time.Duration
}

type memoryLane struct {
	owner  string
	epoch  int64
	until  time.Time
	served time.Time
}

type memoryRow struct {
	dialect.Row
	state    string
	blocking bool
	due      time.Time
	reason   string
	outcome  string
}

func newMemory(lanes int) *memory {
	return &memory{mu: make(lock, 1), lanes: make([]memoryLane, lanes)}
}

// lock is a mutex that the bubble's clock passes by: a bubble stands still for ever while
// one of its goroutines waits for a sync.Mutex whose owner sleeps, as an operation may
// that fails late.
type lock chan struct{}

func (l lock) Lock()   { l <- struct{}{} }
func (l lock) Unlock() { <-l }

// dialect

func (m *memory) Name() string { return "memory" }

func (m *memory) Capabilities() dialect.Capabilities                 { return dialect.Capabilities{} }
func (m *memory) Bind(dialect.Tables) (dialect.Store, error)         { return m, nil }
func (m *memory) Steps() []dialect.Step                              { return []dialect.Step{{Version: 1}} }
func (m *memory) Migrate(context.Context, dialect.DB) ([]int, error) { return nil, nil }

func (m *memory) Classify(err error) dialect.Class {
	if c, ok := err.(classError); ok { //nolint:errorlint // the tests' own error, never wrapped
		return dialect.Class(c)
	}
	return dialect.Other
}

// classError is an error of a class.
type classError dialect.Class

func (c classError) Error() string { return "injected: " + dialect.Class(c).String() }

func (m *memory) Inspect(context.Context, dialect.DB) (dialect.Inspection, error) {
	if m.inspect != nil {
		if err := m.inspect(); err != nil {
			return dialect.Inspection{}, err
		}
	}
	return dialect.Inspection{Version: 1, Lanes: len(m.lanes)}, nil
}

// begin locks and asks fail; the caller unlocks by end.
func (m *memory) begin(op string) error {
	m.mu.Lock()
	if m.fail != nil {
		return m.fail(op)
	}
	return nil
}

func (m *memory) end(op string) {
	m.mu.Unlock()
	if m.after != nil {
		m.after(op)
	}
}

func (m *memory) Insert(_ context.Context, _ dialect.Tx, messages []dialect.Message) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, msg := range messages {
		row := memoryRow{Row: dialect.Row{Message: msg, CreatedAt: time.Now()}}
		if msg.Delay > 0 {
			m.pos++
			row.Pos, row.state, row.due = m.pos, dialect.Scheduled, time.Now().Add(msg.Delay)
			m.parked = append(m.parked, row)
			continue
		}
		m.seq++
		row.Seq = m.seq
		m.ready = append(m.ready, row)
	}
	return nil
}

func (m *memory) work(lane int, floor int64) bool {
	return slices.ContainsFunc(m.ready, func(r memoryRow) bool { return r.Lane == lane && r.Seq > floor }) || m.due(lane)
}

func (m *memory) due(lane int) bool {
	now := time.Now()
	return slices.ContainsFunc(m.parked, func(r memoryRow) bool {
		return r.Lane == lane && (r.state == dialect.Scheduled || r.state == dialect.Retry) && !r.due.After(now)
	})
}

func (m *memory) free(lane int, owner string) bool {
	l := m.lanes[lane]
	return !l.until.After(time.Now()) || l.owner == owner
}

func (m *memory) Poll(ctx context.Context, db dialect.DB, owner string, limit int) ([]dialect.Candidate, error) {
	return m.PollAbove(ctx, db, owner, 0, limit)
}

// Horizon is far away unless the test makes it a sweeper's.
func (m *memory) Horizon(_ context.Context, _ dialect.DB, floor int64) (dialect.Horizon, error) {
	defer m.end("horizon")
	if err := m.begin("horizon"); err != nil {
		return dialect.Horizon{}, err
	}
	if m.horizon == nil {
		return dialect.Horizon{Begun: 1}, nil
	}
	h := m.horizon()
	for _, r := range m.ready {
		if r.Seq > floor && (h.Oldest == 0 || r.Seq < h.Oldest) {
			h.Oldest = r.Seq
		}
	}
	return h, nil
}

func (m *memory) PollAbove(ctx context.Context, _ dialect.DB, owner string, floor int64, limit int) ([]dialect.Candidate, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	defer m.end("poll")
	if err := m.begin("poll"); err != nil {
		return nil, err
	}
	m.floors = append(m.floors, floor)
	var lanes []dialect.Candidate
	for lane := range m.lanes {
		if m.free(lane, owner) && m.work(lane, floor) {
			lanes = append(lanes, dialect.Candidate{Lane: lane, Epoch: m.lanes[lane].epoch, Due: m.due(lane)})
		}
	}
	slices.SortStableFunc(lanes, func(a, b dialect.Candidate) int {
		return m.lanes[a.Lane].served.Compare(m.lanes[b.Lane].served)
	})
	return lanes[:min(limit, len(lanes))], nil
}

func (m *memory) Pending(_ context.Context, _ dialect.DB, owner string) (work, held bool, err error) {
	defer m.end("pending")
	if err := m.begin("pending"); err != nil {
		return false, false, err
	}
	for lane := range m.lanes {
		work = work || m.work(lane, 0)
		held = held || !m.free(lane, owner)
	}
	return work, held, nil
}

func (m *memory) Claim(_ context.Context, _ dialect.DB, lane int, owner string, ttl time.Duration) (int64, bool, error) {
	defer m.end("claim")
	if err := m.begin("claim"); err != nil {
		return 0, false, err
	}
	if !m.free(lane, owner) {
		return 0, false, nil
	}
	l := &m.lanes[lane]
	l.owner, l.epoch, l.until, l.served = owner, l.epoch+1, time.Now().Add(ttl), time.Now()
	return l.epoch, true, nil
}

func (m *memory) owns(lease dialect.Lease) *memoryLane {
	if l := &m.lanes[lease.Lane]; l.owner == lease.Owner && l.epoch == lease.Epoch {
		return l
	}
	return nil
}

func (m *memory) Extend(_ context.Context, _ dialect.DB, lease dialect.Lease, ttl time.Duration) (bool, error) {
	defer m.end("extend")
	if err := m.begin("extend"); err != nil {
		return false, err
	}
	l := m.owns(lease)
	if l == nil {
		return false, nil
	}
	l.until = time.Now().Add(ttl)
	return true, nil
}

func (m *memory) Release(_ context.Context, _ dialect.DB, lease dialect.Lease) error {
	defer m.end("release")
	if err := m.begin("release"); err != nil {
		return err
	}
	if l := m.owns(lease); l != nil {
		l.owner, l.until = "", time.Time{}
	}
	return nil
}

func (m *memory) Surface(_ context.Context, _ dialect.DB, lease dialect.Lease, _ int) (int, bool, error) {
	defer m.end("surface")
	if err := m.begin("surface"); err != nil {
		return 0, false, err
	}
	if m.owns(lease) == nil {
		return 0, false, nil
	}
	moved := 0
	m.parked = slices.DeleteFunc(m.parked, func(r memoryRow) bool {
		if r.Lane != lease.Lane || r.state != dialect.Scheduled || r.due.After(time.Now()) {
			return false
		}
		m.seq++
		r.Seq, r.Pos = m.seq, 0
		m.ready = append(m.ready, r)
		moved++
		return true
	})
	return moved, true, nil
}

func (m *memory) Due(_ context.Context, _ dialect.DB, lane int, limit dialect.Limit) ([]dialect.Row, error) {
	defer m.end("due")
	if err := m.begin("due"); err != nil {
		return nil, err
	}
	var rows []dialect.Row
	for _, head := range m.parked {
		if head.Lane != lane || head.state != dialect.Retry || head.due.After(time.Now()) {
			continue
		}
		rows = append(rows, head.Row)
		if !head.KeyHash.Valid {
			continue
		}
		for _, r := range m.parked {
			if r.state == dialect.Held && r.KeyHash == head.KeyHash {
				rows = append(rows, r.Row)
			}
		}
	}
	return rows[:min(limit.Rows, len(rows))], nil
}

func (m *memory) blocked(key sql.Null[int64]) bool {
	return key.Valid && slices.ContainsFunc(m.parked, func(r memoryRow) bool { return r.blocking && r.KeyHash == key })
}

func (m *memory) Ready(_ context.Context, _ dialect.DB, lane int, after int64, limit dialect.Limit) ([]dialect.Row, error) {
	defer m.end("ready")
	if err := m.begin("ready"); err != nil {
		return nil, err
	}
	if m.unreadable != nil && m.unreadable(lane) {
		return nil, classError(dialect.Other)
	}
	var rows []dialect.Row
	for _, r := range m.ready {
		if r.Lane == lane && r.Seq > after && len(rows) < limit.Rows {
			r.Blocked = m.blocked(r.KeyHash)
			rows = append(rows, r.Row)
		}
	}
	return rows, nil
}

func (m *memory) Settle(_ context.Context, _ dialect.DB, lease dialect.Lease, ttl time.Duration, s dialect.Settlement) (bool, error) {
	op := "settle"
	if s.Archive {
		op = "settle and archive"
	}
	defer m.end(op)
	if err := m.begin(op); err != nil {
		return false, err
	}
	l := m.owns(lease)
	if l == nil {
		return false, nil
	}
	l.until, l.served = time.Now().Add(ttl), time.Now()
	publish := func(r memoryRow) {
		if s.Archive {
			r.outcome = dialect.Published
			m.done = append(m.done, r)
		}
	}
	take := func(from *[]memoryRow, match func(memoryRow) bool, do func(memoryRow)) {
		*from = slices.DeleteFunc(*from, func(r memoryRow) bool {
			if !match(r) {
				return false
			}
			do(r)
			return true
		})
	}
	take(&m.ready, func(r memoryRow) bool { return slices.Contains(s.Published, r.Ref()) }, publish)
	take(&m.parked, func(r memoryRow) bool { return slices.Contains(s.PublishedParked, r.Ref()) }, publish)
	for _, f := range s.Failed {
		take(&m.ready, func(r memoryRow) bool { return r.Ref() == f.Ref }, func(r memoryRow) {
			m.pos++
			r.Pos = m.pos
			r.apply(f)
			m.parked = append(m.parked, r)
		})
	}
	for _, f := range s.FailedParked {
		for i := range m.parked {
			if m.parked[i].Ref() == f.Ref {
				m.parked[i].apply(f)
			}
		}
	}
	take(&m.ready, func(r memoryRow) bool { return slices.Contains(s.Hold, r.Ref()) }, func(r memoryRow) {
		m.pos++
		r.Pos, r.state = m.pos, dialect.Held
		m.parked = append(m.parked, r)
	})
	for i := range m.parked { // promote; rows of a key lie in seq order here
		if r := &m.parked[i]; r.state == dialect.Held && !m.blocked(r.KeyHash) {
			r.state, r.blocking, r.due = dialect.Retry, true, time.Now()
		}
	}
	return true, nil
}

func (r *memoryRow) apply(f dialect.Failure) {
	r.Attempts, r.reason, r.blocking = f.Attempts, f.Reason, f.Blocking
	r.state, r.due = dialect.Retry, time.Now().Add(f.Delay)
	if f.Dead {
		r.state = dialect.Dead
	}
}

func (m *memory) Purge(_ context.Context, _ dialect.DB, olderThan time.Duration, _ int) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.purges++
	m.purgedAge = olderThan
	return 0, nil
}

// partitioned is a memory whose done table is in partitions, or is not.
type partitioned struct {
	*memory
	kept dialect.Partitions
	err  error
	age  time.Duration
}

// Bind implements [dialect.Dialect].
func (p *partitioned) Bind(dialect.Tables) (dialect.Store, error) { return p, nil }

func (p *partitioned) PartitionSQL() string { panic("unused") }

func (p *partitioned) PartitionDone(context.Context, dialect.DB) (bool, error) { panic("unused") }

func (p *partitioned) KeepPartitions(_ context.Context, _ dialect.DB, olderThan time.Duration) (dialect.Partitions, error) {
	p.age = olderThan
	return p.kept, p.err
}

func (m *memory) ClaimPurge(_ context.Context, _ dialect.DB, every time.Duration) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.purgedAt) < every {
		return false, nil
	}
	m.purgedAt = time.Now()
	return true, nil
}

// What a relay does not use.

func (m *memory) Stats(context.Context, dialect.DB, int64) (dialect.Stats, error) { panic("unused") }

func (m *memory) Parked(context.Context, dialect.DB, dialect.Filter, int64, int) ([]dialect.Parked, error) {
	panic("unused")
}

func (m *memory) Requeue(context.Context, dialect.DB, dialect.Filter, int) (int, error) {
	panic("unused")
}

func (m *memory) Discard(context.Context, dialect.DB, dialect.Filter, int) (int, error) {
	panic("unused")
}

func (m *memory) Replay(context.Context, dialect.DB, dialect.Filter, *dialect.Cursor, int) (int, *dialect.Cursor, error) {
	panic("unused")
}

func (m *memory) Replayable(context.Context, dialect.DB, dialect.Filter, *dialect.Cursor, int) (int, *dialect.Cursor, error) {
	panic("unused")
}

func (m *memory) Purgeable(context.Context, dialect.DB, time.Duration, int) (int, error) {
	panic("unused")
}

func (m *memory) Record(context.Context, dialect.Tx, string, string) (bool, error) { panic("unused") }

func (m *memory) Recorded(context.Context, dialect.DB, string, string) (bool, error) {
	panic("unused")
}

func (m *memory) PurgeInbox(context.Context, dialect.DB, time.Duration, int) (int, error) {
	panic("unused")
}

// open returns an outbox over the engine. The pool is never connected.
func (m *memory) open(t *testing.T) *outbox.Outbox {
	t.Helper()
	o, err := outbox.New(new(sql.DB), m, outbox.Config{Lanes: len(m.lanes)})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// enqueue adds messages and returns their ids.
func (m *memory) enqueue(t *testing.T, o *outbox.Outbox, messages ...outbox.Message) []uuid.UUID {
	t.Helper()
	for i := range messages {
		if messages[i].Topic == "" {
			messages[i].Topic = "orders"
		}
		messages[i].Type = "test"
	}
	ids, err := o.Enqueue(t.Context(), new(sql.Tx), messages...)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// state is where a message stands: "ready", a parked state, "done" or "gone".
func (m *memory) state(id uuid.UUID) (state string, row memoryRow) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.ready {
		if r.ID == id {
			return "ready", r
		}
	}
	for _, r := range m.parked {
		if r.ID == id {
			return r.state, r
		}
	}
	for _, r := range m.done {
		if r.ID == id {
			return "done", r
		}
	}
	return "gone", memoryRow{}
}
