package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

func (e *env) surface(lease dialect.Lease, limit int) int {
	e.Helper()
	moved, ok, err := e.store.Surface(e.ctx, e.db, lease, limit)
	e.must(err)
	if !ok {
		e.Fatal("the lease is lost")
	}
	return moved
}

func TestSurface(t *testing.T) {
	e := fresh(t, 1)
	var messages []dialect.Message
	for i, delay := range []time.Duration{30 * time.Minute, 10 * time.Minute, 20 * time.Minute, 48 * time.Hour} {
		m := e.message("k")
		m.Delay, m.Revision, m.Replay = delay, int64(i), i
		messages = append(messages, m)
	}
	e.insert(messages...)
	lease := e.claim(0)
	e.equal(e.surface(lease, 10), 0, "none is due")
	e.due() // by a day
	e.exec(`UPDATE {parked} SET created_at = created_at - 3600000000`)
	e.insert(e.message("k")) // it was there first
	e.equal(e.surface(lease, 2), 2, "limited")
	e.equal(e.surface(lease, 2), 1, "the rest")
	e.equal(e.surface(lease, 2), 0, "none is left")
	rows := e.ready(0)
	e.equal(payloads(rows), []string{"k/5", "k/2", "k/3", "k/1"}, "in the order they became due")
	e.equal(seqs(rows), []int64{1, 2, 3, 4}, "fresh places")
	messages[1].Delay = 0
	e.equal(rows[1].Message, messages[1], "content")
	if age := rows[0].CreatedAt.Sub(rows[1].CreatedAt); age < 59*time.Minute || rows[1].Age > time.Minute {
		t.Errorf("created %v before the other, ready for %v", age, rows[1].Age)
	}
	e.equal(e.parkedRows(), []string{"k/4 scheduled - 0"}, "left")

	// In one batch, too.
	for _, delay := range []time.Duration{3, 1, 2} {
		m := e.message("k")
		m.Delay = delay * time.Hour
		e.insert(m)
	}
	e.due()
	e.equal(e.surface(lease, 10), 4, "all")
	e.equal(payloads(e.ready(0))[4:], []string{"k/7", "k/8", "k/6", "k/4"}, "in the order they became due")
}

// TestSurfaceIsFenced: the lease is stolen after Surface has seen it.
func TestSurfaceIsFenced(t *testing.T) {
	e := fresh(t, 1)
	m := e.message("k")
	m.Delay = time.Hour
	e.insert(m)
	e.due()
	lease := e.claim(0)
	before := e.dump()
	moved, ok, err := e.store.Surface(e.ctx, &hook{DB: e.db, before: func() {
		e.expire(0)
		e.must2(read(e.ctx, e.db, e.text(`UPDATE {lane} SET owner = 'thief', epoch = epoch + 1 RETURNING epoch`)))
	}}, lease, 10)
	if moved != 0 || ok || err != nil {
		t.Errorf("surfaced %d, %t, %v", moved, ok, err)
	}
	e.same(before, "a stale Surface")
}

func TestSurfaceTwin(t *testing.T) {
	e := fresh(t, 1)
	m := e.message("k")
	e.insert(m)
	m.Delay = time.Hour
	fine := e.message("k")
	fine.Delay = time.Hour
	e.insert(m, fine)
	e.due()
	lease := e.claim(0)
	e.equal(e.surface(lease, 10), 1, "moved")
	e.equal(e.parkedRows(), []string{"k/1 dead - 0"}, "the twin")
	parked, err := e.store.Parked(e.ctx, e.db, dialect.Filter{All: true}, 0, 10)
	e.must(err)
	if !strings.Contains(parked[0].Reason, "same id") {
		t.Errorf("reason is %q", parked[0].Reason)
	}
	// It holds nothing back, and is scheduled again when it is requeued.
	e.equal(e.ready(0)[0].Blocked, false, "blocked")
	e.settle(lease, dialect.Settlement{Published: refs(e.ready(0))})
	n, err := e.store.Requeue(e.ctx, e.db, dialect.Filter{All: true}, 10)
	e.must(err)
	e.equal(n, 1, "requeued")
	e.equal(e.surface(lease, 10), 1, "moved, its twin being gone")
	e.equal(payloads(e.ready(0)), []string{"k/1"}, "ready")

	// Two dead of one id: one of them can be scheduled.
	for range 2 {
		e.insert(m)
		e.due()
		e.equal(e.surface(lease, 10), 0, "moved")
	}
	e.settle(lease, dialect.Settlement{Published: refs(e.ready(0))})
	for _, want := range []int{1, 0} {
		n, err = e.store.Requeue(e.ctx, e.db, dialect.Filter{All: true}, 10)
		e.must(err)
		e.equal(n, want, "requeued")
	}
	e.equal(e.surface(lease, 10), 1, "moved")
	e.equal(e.parkedRows(), []string{"k/1 dead - 0"}, "the other")
}

func TestReady(t *testing.T) {
	e := fresh(t, 2)
	var keys []string // of lane 0
	for i := 0; len(keys) < 3; i++ {
		if key := fmt.Sprint("k", i); dialect.LaneOfKey(dialect.KeyHash(key), 2) == 0 {
			keys = append(keys, key)
		}
	}
	a, b, c := keys[0], keys[1], keys[2]
	other := e.message("")
	other.Lane = 1
	none := e.message("")
	none.Lane = 0
	e.insert(append(e.messages(a, b, a, c), other, none)...)
	lease := e.claim(0)
	e.settle(lease, dialect.Settlement{Failed: []dialect.Failure{retry(e.at(1)[0])}})
	rows := e.ready(0)
	e.equal(seqs(rows), []int64{2, 3, 4, 6}, "places")
	for i, want := range []bool{false, true, false, false} {
		if rows[i].Blocked != want {
			t.Errorf("row %d is blocked: %t", i, rows[i].Blocked)
		}
		if want == (rows[i].Payload != nil) {
			t.Errorf("row %d has payload %q", i, rows[i].Payload)
		}
	}
	read := func(after int64, limit dialect.Limit) []int64 {
		t.Helper()
		rows, err := e.store.Ready(e.ctx, e.db, 0, after, limit)
		e.must(err)
		return seqs(rows)
	}
	size := int64(len(rows[0].Payload) + len(rows[0].Headers))
	e.equal(read(0, dialect.Limit{Rows: 2}), []int64{2, 3}, "two rows")
	e.equal(read(2, dialect.Limit{Rows: 2}), []int64{3, 4}, "two rows after")
	e.equal(read(6, dialect.Limit{Rows: 2}), []int64(nil), "after the last")
	e.equal(read(0, dialect.Limit{Rows: 9, Bytes: 1}), []int64{2}, "at least one")
	e.equal(read(0, dialect.Limit{Rows: 9, Bytes: size}), []int64{2}, "exactly one")
	e.equal(read(0, dialect.Limit{Rows: 9, Bytes: size + 1}), []int64{2, 3}, "one more")
	e.equal(read(0, dialect.Limit{Rows: 9, Bytes: 1 << 40}), []int64{2, 3, 4, 6}, "all")
}

func TestSettleMoves(t *testing.T) {
	for _, archive := range []bool{false, true} {
		e := fresh(t, 1)
		e.insert(e.messages("a", "a", "b", "", "c", "c", "c")...)
		lease := e.claim(0)
		e.settle(lease, dialect.Settlement{
			Archive: archive, Published: e.at(1, 4), Hold: e.at(7, 6),
			Failed: []dialect.Failure{
				{Ref: e.at(5)[0], Attempts: 3, Delay: time.Hour, Blocking: true, Reason: `<"ünï" & '\u0000'>`},
				{Ref: e.at(3)[0], Attempts: 9, Dead: true, Delay: time.Hour, Blocking: true, Reason: "dead"},
			},
		})
		e.equal(payloads(e.ready(0)), []string{"a/2"}, "ready")
		parked, err := e.store.Parked(e.ctx, e.db, dialect.Filter{All: true}, 0, 10)
		e.must(err)
		var got []string
		for _, p := range parked {
			got = append(got, fmt.Sprintf("%s %s %t %d %d %t %s", p.Payload, p.State, p.Blocking, p.Attempts, p.Seq, p.DueIn.Valid, p.Reason))
			if p.ParkedAt.Before(p.CreatedAt) || p.ParkedAt.Location() != time.UTC {
				t.Errorf("parked at %v, created at %v", p.ParkedAt, p.CreatedAt)
			}
			if d := p.DueIn.V; p.DueIn.Valid && (d > time.Hour || d < 59*time.Minute) {
				t.Errorf("due in %v", d)
			}
		}
		e.equal(got, []string{
			"b/3 dead true 9 3 false dead",
			`c/5 retry true 3 5 true <"ünï" & '\u0000'>`,
			"c/6 held false 0 6 false ",
			"c/7 held false 0 7 false ",
		}, "parked, failed before held, in order")
		done := []string{"a/1 1 1 published", "/4 4 1 published"}
		if !archive {
			done = nil
		}
		const doneRows = `SELECT CAST(payload AS TEXT), seq, attempts, outcome FROM {done} ORDER BY pos`
		e.equal(e.rows(doneRows), done, "done")

		e.due()
		e.settle(lease, dialect.Settlement{Archive: archive, PublishedParked: refs(e.dueRows(0)[:1])})
		if archive {
			done = append(done, "c/5 5 4 published")
		}
		e.equal(e.rows(doneRows), done, "done, with attempts before and the last")
		e.equal(e.parkedRows(), []string{"c/6 retry blocking 0", "c/7 held - 0", "b/3 dead blocking 9"}, "promoted")
		rows := e.dueRows(0)
		e.equal(payloads(rows), []string{"c/6", "c/7"}, "due at once")
		// All of a key: it is unblocked.
		e.settle(lease, dialect.Settlement{Archive: archive, PublishedParked: refs(rows)})
		e.equal(e.parkedRows(), []string{"b/3 dead blocking 9"}, "left")
	}
}

func TestSettleRepeatedIsNoOp(t *testing.T) {
	e := fresh(t, 1)
	e.insert(e.messages("a", "a", "a", "b", "b", "", "c", "c")...)
	lease := e.claim(0)
	first := dialect.Settlement{
		Archive: true, Published: e.at(4, 6), Hold: e.at(2, 3, 8),
		Failed: []dialect.Failure{retry(e.at(1)[0]), dead(e.at(7)[0]), {Ref: e.at(5)[0], Attempts: 2, Delay: time.Minute}},
	}
	e.settle(lease, first)
	before := e.dump()
	e.settle(lease, first)
	e.same(before, "the same settlement again")

	rows := e.dueRows(0)
	e.equal(payloads(rows), []string{"a/1", "a/2", "a/3"}, "due")
	second := dialect.Settlement{Archive: true, PublishedParked: []dialect.Ref{rows[0].Ref()}, FailedParked: []dialect.Failure{dead(rows[1].Ref())}}
	e.settle(lease, second)
	before = e.dump()
	e.settle(lease, second)
	e.same(before, "the same settlement again")

	// Rows of another lane, and rows that never were, are passed over.
	two := fresh(t, 2)
	in := func(lane int) dialect.Message {
		m := two.message("")
		m.Lane = lane
		return m
	}
	two.insert(in(0), in(1), in(1))
	one := two.claim(1)
	two.settle(one, dialect.Settlement{Failed: []dialect.Failure{retry(two.at(3)[0])}})
	zero := two.claim(0)
	before = two.dump()
	two.settle(zero, dialect.Settlement{
		Archive: true, Published: two.at(2, 99), Hold: two.at(2), PublishedParked: two.parkedAt(1, 77),
		Failed: []dialect.Failure{retry(two.at(2)[0])}, FailedParked: []dialect.Failure{dead(two.parkedAt(1)[0]), dead(two.parkedAt(55)[0])},
	})
	two.same(before, "a settlement of rows of another lane")
}

func TestStaleLeaseChangesNothing(t *testing.T) {
	e := fresh(t, 2)
	e.insert(e.messages("a", "a", "b", "b")...)
	later := e.message("c")
	later.Delay = time.Hour
	e.insert(later)
	e.due()
	lane := dialect.LaneOfKey(dialect.KeyHash("a"), 2)
	stale := e.claim(lane)
	rows := e.ready(lane)
	e.settle(stale, dialect.Settlement{Failed: []dialect.Failure{retry(rows[0].Ref())}, Hold: []dialect.Ref{rows[1].Ref()}})
	due := e.dueRows(lane)
	e.expire(lane)
	epoch, ok, err := e.store.Claim(e.ctx, e.db, lane, "thief", time.Minute)
	e.must(err)
	e.equal(ok, true, "claimed")

	before, lanes := e.dump(), e.rows(`SELECT * FROM {lane}`)
	for name, lease := range map[string]dialect.Lease{
		"stale":         stale,
		"stale epoch":   {Lane: lane, Owner: "thief", Epoch: epoch - 1},
		"epoch to come": {Lane: lane, Owner: "thief", Epoch: epoch + 1},
		"stolen epoch":  {Lane: lane, Owner: owner, Epoch: epoch},
		"another lane":  {Lane: 1 - lane, Owner: "thief", Epoch: epoch},
		"no such lane":  {Lane: 5, Owner: "thief", Epoch: epoch},
		"nobody":        {Lane: lane},
	} {
		for _, s := range []dialect.Settlement{
			{},
			{
				Archive: true, Published: refs(e.ready(lane)), PublishedParked: refs(due), Hold: refs(e.ready(lane)),
				FailedParked: []dialect.Failure{dead(due[0].Ref())},
			},
		} {
			ok, err := e.store.Settle(e.ctx, e.db, lease, time.Hour, s)
			if ok || err != nil {
				t.Errorf("%s: settled %t, %v", name, ok, err)
			}
		}
		if moved, ok, err := e.store.Surface(e.ctx, e.db, lease, 10); ok || moved != 0 || err != nil {
			t.Errorf("%s: surfaced %d, %t, %v", name, moved, ok, err)
		}
		if ok, err := e.store.Extend(e.ctx, e.db, lease, time.Hour); ok || err != nil {
			t.Errorf("%s: extended %t, %v", name, ok, err)
		}
		if err := e.store.Release(e.ctx, e.db, lease); err != nil {
			t.Errorf("%s: released %v", name, err)
		}
	}
	e.same(before, "a stale lease")
	e.equal(e.rows(`SELECT * FROM {lane}`), lanes, "lanes")
}

// TestFenceWaitsForTheThief settles while the thief's claim is not yet committed.
func TestFenceWaitsForTheThief(t *testing.T) {
	e := fresh(t, 1)
	e.insert(e.messages("a")...)
	lease := e.claim(0)
	for _, commits := range []bool{false, true} {
		thief, err := e.db.BeginTx(e.ctx, nil)
		e.must(err)
		e.must2(thief.ExecContext(e.ctx, e.text(`UPDATE {lane} SET owner = 'thief', epoch = epoch + 1`)))
		type result struct {
			ok  bool
			err error
		}
		settled := make(chan result)
		go func() {
			ok, err := e.store.Settle(e.ctx, e.db, lease, time.Minute, dialect.Settlement{Published: e.at(1)})
			settled <- result{ok, err}
		}()
		end, want := thief.Rollback, true
		if commits {
			end, want = thief.Commit, false
		}
		select {
		case r := <-settled:
			t.Fatalf("it did not wait: %v", r)
		default:
		}
		e.must(end())
		if r := <-settled; r.err != nil || r.ok != want {
			t.Errorf("after the thief's end (commit %t): settled %t, %v", commits, r.ok, r.err)
		}
	}
}

// TestSettlePromotes goes through what an operator may do meanwhile.
func TestSettlePromotes(t *testing.T) {
	e := fresh(t, 1)
	e.insert(e.messages("a", "a", "a", "a")...)
	lease := e.claim(0)
	e.settle(lease, dialect.Settlement{Failed: []dialect.Failure{dead(e.at(1)[0])}})

	// The head is discarded while the relay believes the key blocked.
	n, err := e.store.Discard(e.ctx, e.db, dialect.Filter{All: true}, 10)
	e.must(err)
	e.equal(n, 1, "discarded")
	e.settle(lease, dialect.Settlement{Hold: e.at(2, 3)})
	e.equal(e.parkedRows(), []string{"a/2 retry blocking 0", "a/3 held - 0"}, "the first held is the head")
	e.equal(payloads(e.dueRows(0)), []string{"a/2", "a/3"}, "due at once")

	// A dead head that lets its key pass, with rows held behind it.
	e.settle(lease, dialect.Settlement{FailedParked: []dialect.Failure{{Ref: e.dueRows(0)[0].Ref(), Dead: true, Attempts: 5}}})
	e.equal(e.parkedRows(), []string{"a/2 dead - 5", "a/3 retry blocking 0"}, "the next one is the head")

	// Failed without blocking, and held in the same settlement.
	e.settle(lease, dialect.Settlement{PublishedParked: refs(e.dueRows(0))})
	e.insert(e.message("a"))
	e.settle(lease, dialect.Settlement{Failed: []dialect.Failure{{Ref: e.at(4)[0], Dead: true, Attempts: 1}}, Hold: e.at(5)})
	e.equal(e.parkedRows(), []string{"a/2 dead - 5", "a/4 dead - 1", "a/5 retry blocking 0"}, "nobody is left behind")

	// Without a key nothing blocks.
	e.insert(e.message(""))
	e.settle(lease, dialect.Settlement{Failed: []dialect.Failure{retry(e.at(6)[0])}})
	e.equal(e.rows(`SELECT blocking FROM {parked} WHERE key IS NULL`), []string{"0"}, "blocking")
}

// TestRequeuedWhileInFlight: the key passed a dead message, an operator requeues it,
// and a newer one that was on its way fails.
func TestRequeuedWhileInFlight(t *testing.T) {
	e := fresh(t, 1)
	e.insert(e.messages("a", "a", "a", "a")...)
	lease := e.claim(0)
	e.settle(lease, dialect.Settlement{Failed: []dialect.Failure{{Ref: e.at(1)[0], Dead: true, Attempts: 1}}})
	e.equal(e.ready(0)[0].Blocked, false, "the key goes on")
	n, err := e.store.Requeue(e.ctx, e.db, dialect.Filter{All: true}, 10)
	e.must(err)
	e.equal(n, 1, "requeued")
	e.settle(lease, dialect.Settlement{Failed: []dialect.Failure{retry(e.at(2)[0])}, Hold: e.at(3)})
	e.equal(e.parkedRows(), []string{"a/1 retry blocking 0", "a/2 held - 1", "a/3 held - 0"}, "one head")
	e.equal(payloads(e.dueRows(0)), []string{"a/1", "a/2", "a/3"}, "in order")

	// Had it died, it would hold back what is behind it.
	e.settle(lease, dialect.Settlement{FailedParked: []dialect.Failure{dead(e.dueRows(0)[1].Ref())}})
	e.equal(e.parkedRows(), []string{"a/1 retry blocking 0", "a/2 dead blocking 1", "a/3 held - 0"}, "two that block")
	e.equal(payloads(e.dueRows(0)), []string{"a/1"}, "due, but not what is behind the dead one")
	e.settle(lease, dialect.Settlement{PublishedParked: refs(e.dueRows(0))})
	e.equal(len(e.dueRows(0)), 0, "due")
	e.equal(e.ready(0)[0].Blocked, true, "blocked by the dead one")
}

func TestDue(t *testing.T) {
	e := fresh(t, 1)
	// Heads of a, b and c, 5 rows behind each, and one without a key; c is first due.
	for range 6 {
		e.insert(e.messages("a", "b", "c")...)
	}
	e.insert(e.message(""))
	lease := e.claim(0)
	rows := e.ready(0)
	e.settle(lease, dialect.Settlement{Hold: refs(rows[3:18]), Failed: []dialect.Failure{
		{Ref: e.at(1)[0], Blocking: true, Delay: 3 * time.Hour},
		{Ref: e.at(2)[0], Blocking: true, Delay: 2 * time.Hour},
		{Ref: e.at(3)[0], Blocking: true, Delay: time.Hour},
		{Ref: e.at(19)[0], Delay: 90 * time.Minute},
	}})
	e.equal(len(e.dueRows(0)), 0, "none is due")
	e.exec(`UPDATE {parked} SET available_at = available_at - 9000000000 WHERE state = 'retry'`) // 2.5 hours
	due := func(limit dialect.Limit) string {
		t.Helper()
		rows, err := e.store.Due(e.ctx, e.db, 0, limit)
		e.must(err)
		return strings.Join(payloads(rows), " ")
	}
	all := "c/3 c/6 c/9 c/12 c/15 c/18 /19 b/2 b/5 b/8 b/11 b/14 b/17"
	e.equal(due(dialect.Limit{Rows: 100}), all, "all")
	e.equal(due(dialect.Limit{Rows: 1}), "c/3", "the first head")
	e.equal(due(dialect.Limit{Rows: 2}), "c/3 /19", "two heads")
	e.equal(due(dialect.Limit{Rows: 3}), "c/3 /19 b/2", "the heads")
	e.equal(due(dialect.Limit{Rows: 4}), "c/3 c/6 /19 b/2", "one behind")
	e.equal(due(dialect.Limit{Rows: 5}), "c/3 c/6 /19 b/2 b/5", "evenly")
	e.equal(due(dialect.Limit{Rows: 8}), "c/3 c/6 c/9 /19 b/2 b/5 b/8 b/11", "what is left over goes on")
	e.equal(due(dialect.Limit{Rows: 100, Bytes: 1}), "c/3", "at least one")
	e.equal(due(dialect.Limit{Rows: 100, Bytes: 80}), "c/3 c/6 c/9 c/12 c/15 /19 b/2", "bytes")
	if due(dialect.Limit{Rows: 13}) != all || due(dialect.Limit{Rows: 100, Bytes: 1 << 40}) != all {
		t.Error("exact limits cut")
	}
}

// TestDueSeesOneState: between the heads and what is behind them nothing changes.
func TestDueSeesOneState(t *testing.T) {
	e := fresh(t, 1)
	e.insert(e.messages("a", "a", "a")...)
	lease := e.claim(0)
	e.settle(lease, dialect.Settlement{Failed: []dialect.Failure{retry(e.at(1)[0])}, Hold: e.at(2, 3)})
	between := &hook{DB: e.db, after: func() {
		e.must2(e.store.Discard(e.ctx, e.db, dialect.Filter{IDs: [][16]byte{e.dueRows(0)[0].ID}}, 1))
	}}
	rows, err := e.store.Due(e.ctx, between, 0, dialect.Limit{Rows: 10})
	e.must(err)
	e.equal(payloads(rows), []string{"a/1", "a/2", "a/3"}, "one state")
	e.equal(payloads(e.dueRows(0)), []string{"a/2", "a/3"}, "the next")
}

// hook runs something before a write, or after a transaction has begun and read.
type hook struct {
	dialect.DB
	before, after func()
}

func (h *hook) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	if h.before != nil {
		h.before()
	}
	tx, err := h.DB.BeginTx(ctx, opts)
	if err != nil || h.after == nil {
		return tx, err
	}
	if _, err := read(ctx, txDB{tx}, `SELECT count(*) FROM sqlite_schema`); err != nil { // the snapshot
		return nil, err
	}
	h.after()
	return tx, nil
}

func (h *hook) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if h.before != nil {
		h.before()
	}
	return h.DB.ExecContext(ctx, query, args...)
}
