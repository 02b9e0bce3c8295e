package sqlite_test

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

func (e *env) requeue(filter dialect.Filter, limit int) int {
	e.Helper()
	n, err := e.store.Requeue(e.ctx, e.db, filter, limit)
	e.must(err)
	e.invariants()
	return n
}

func (e *env) discard(filter dialect.Filter, limit int) int {
	e.Helper()
	n, err := e.store.Discard(e.ctx, e.db, filter, limit)
	e.must(err)
	e.invariants()
	return n
}

var all = dialect.Filter{All: true}

func TestStats(t *testing.T) {
	e := fresh(t, 4)
	stats := func(limit int64) dialect.Stats {
		t.Helper()
		s, err := e.store.Stats(e.ctx, e.db, limit)
		e.must(err)
		return s
	}
	e.equal(stats(10), dialect.Stats{LanesTotal: 4}, "empty")
	later := e.message("a")
	later.Delay = time.Hour
	e.insert(append(e.messages("a", "a", "a", "b", "b", "c", "d", ""), later)...)
	for lane := range 4 {
		lease := e.claim(lane)
		var s dialect.Settlement
		seen := make(map[string]bool)
		for _, row := range e.ready(lane) {
			switch {
			case seen[row.Key.V]:
				s.Hold = append(s.Hold, row.Ref())
			case row.Key.V == "a":
				s.Failed = append(s.Failed, dialect.Failure{Ref: row.Ref(), Blocking: true, Delay: time.Hour})
			case row.Key.V == "b":
				s.Failed = append(s.Failed, dead(row.Ref()))
			}
			seen[row.Key.V] = true
		}
		e.settle(lease, s)
	}
	e.expire(2)
	e.must(e.store.Release(e.ctx, e.db, dialect.Lease{Lane: 3, Owner: owner, Epoch: 1}))
	e.exec(`UPDATE {ready} SET ready_at = ready_at - 60000000 WHERE key = 'c'`)
	got := stats(10)
	if got.OldestReady < time.Minute || got.OldestReady > 2*time.Minute {
		t.Errorf("the oldest is ready for %v", got.OldestReady)
	}
	got.OldestReady = 0
	e.equal(got, dialect.Stats{
		Ready: 3, Scheduled: 1, Retry: 1, Held: 3, Dead: 1, BlockedKeys: 2, LanesHeld: 2, LanesExpired: 1, LanesTotal: 4,
	}, "counts")
	got = stats(1)
	e.equal([]int64{got.Ready, got.Scheduled, got.Retry, got.Held, got.Dead, got.BlockedKeys}, []int64{1, 1, 1, 1, 1, 1}, "limited")
	for _, overdue := range []string{"retry", "scheduled"} {
		e.exec(`UPDATE {parked} SET available_at = available_at - 2 * 3600000000 WHERE state = ?`, overdue)
		if got := stats(10).OldestReady; got < 59*time.Minute || got > 61*time.Minute {
			t.Errorf("%s: the oldest is overdue by %v", overdue, got)
		}
		e.exec(`UPDATE {parked} SET available_at = available_at + 2 * 3600000000 WHERE state = ?`, overdue)
	}
}

func TestParkedFilters(t *testing.T) {
	e := fresh(t, 4)
	messages := e.messages("a", "a", "A", "", "b")
	messages[1].Topic = "bills"
	messages[2].Type = "order.changed"
	for i := range messages {
		messages[i].Delay = time.Hour
	}
	e.insert(messages...)
	e.exec(`UPDATE {parked} SET state = 'dead', available_at = NULL WHERE key = 'b'`)
	list := func(f dialect.Filter, after int64, limit int) []int64 {
		t.Helper()
		parked, err := e.store.Parked(e.ctx, e.db, f, after, limit)
		e.must(err)
		var pos []int64
		for _, p := range parked {
			pos = append(pos, p.Pos)
		}
		return pos
	}
	key := func(k string) sql.Null[string] { return sql.Null[string]{V: k, Valid: true} }
	for name, test := range map[string]struct {
		filter dialect.Filter
		want   []int64
	}{
		"nothing set":       {dialect.Filter{}, nil},
		"all":               {all, []int64{1, 2, 3, 4, 5}},
		"ids":               {dialect.Filter{IDs: [][16]byte{messages[4].ID, messages[1].ID, {99}}}, []int64{2, 5}},
		"key":               {dialect.Filter{Key: key("a")}, []int64{1, 2}},
		"another case":      {dialect.Filter{Key: key("A")}, []int64{3}},
		"no such key":       {dialect.Filter{Key: key("")}, nil},
		"topic":             {dialect.Filter{Topic: "bills"}, []int64{2}},
		"type":              {dialect.Filter{Type: "order.changed"}, []int64{3}},
		"states":            {dialect.Filter{States: []string{"dead", "held"}}, []int64{5}},
		"key and topic":     {dialect.Filter{Key: key("a"), Topic: "orders"}, []int64{1}},
		"all and topic":     {dialect.Filter{All: true, Topic: "orders"}, []int64{1, 3, 4, 5}},
		"ids and key":       {dialect.Filter{IDs: [][16]byte{messages[0].ID, messages[4].ID}, Key: key("b")}, []int64{5}},
		"only done ones":    {dialect.Filter{DoneWithin: time.Hour}, nil},
		"of done, too":      {dialect.Filter{All: true, DoneBefore: time.Hour}, nil},
		"everything at all": {dialect.Filter{All: true, IDs: [][16]byte{messages[4].ID}, Key: key("b"), Topic: "orders", Type: "order.placed", States: []string{"dead"}}, []int64{5}},
	} {
		e.equal(list(test.filter, 0, 10), test.want, name)
		// The same rows are what is changed.
		tx, err := e.db.BeginTx(e.ctx, nil)
		e.must(err)
		before := e.dump()
		e.must(tx.Rollback())
		if len(test.want) == 0 {
			e.equal(e.discard(test.filter, 10), 0, name+": discarded")
			e.same(before, name)
		}
	}
	e.equal(list(all, 0, 2), []int64{1, 2}, "limited")
	e.equal(list(all, 2, 2), []int64{3, 4}, "the next")
	e.equal(list(all, 5, 2), []int64(nil), "the end")
	e.equal(e.discard(dialect.Filter{IDs: [][16]byte{messages[4].ID, messages[1].ID}}, 10), 2, "discarded by id")
	e.equal(e.discard(dialect.Filter{Key: key("a")}, 10), 1, "discarded by key")
	e.equal(list(all, 0, 10), []int64{3, 4}, "left")
}

// dead2 makes dead messages of a key that let the key pass, and returns the lease.
func (e *env) deadOnes(keys ...string) dialect.Lease {
	e.Helper()
	e.insert(e.messages(keys...)...)
	lease := e.claim(0)
	var s dialect.Settlement
	for _, row := range e.ready(0) {
		s.Failed = append(s.Failed, dialect.Failure{Ref: row.Ref(), Dead: true, Attempts: 7, Reason: "no"})
	}
	e.settle(lease, s)
	return lease
}

func TestRequeue(t *testing.T) {
	e := fresh(t, 1)
	lease := e.deadOnes("a", "b", "a", "a", "")
	e.equal(e.requeue(dialect.Filter{}, 10), 0, "an empty filter")
	e.equal(e.requeue(all, 10), 5, "all")
	e.equal(e.parkedRows(), []string{"/5 retry - 0", "a/1 retry blocking 0", "a/3 held - 0", "a/4 held - 0", "b/2 retry blocking 0"}, "a run keeps its order")
	e.equal(e.requeue(all, 10), 0, "again: there is nothing to do")

	// Newer ones of the key stay behind.
	e.insert(e.messages("a", "")...)
	e.equal(e.ready(0)[0].Blocked, true, "the newer one is blocked")
	e.settle(lease, dialect.Settlement{Hold: refs(e.ready(0)[:1])})
	due := func() string {
		t.Helper()
		keys := make(map[string]string) // heads made due in one millisecond have no order
		for _, row := range e.dueRows(0) {
			keys[row.Key.V] += string(row.Payload) + " "
		}
		return keys["a"] + keys["b"] + keys[""]
	}
	e.equal(due(), "a/1 a/3 a/4 a/6 b/2 /5 ", "due")

	// A retry that waits is due at once, and keeps its attempts.
	e.settle(lease, dialect.Settlement{FailedParked: []dialect.Failure{{
		Ref: e.parkedAt(number(t, e.one(`SELECT pos FROM {parked} WHERE seq = 1`)))[0], Attempts: 3, Delay: time.Hour, Blocking: true,
	}}})
	e.equal(due(), "b/2 /5 ", "while a waits")
	later := e.message("c")
	later.Delay = time.Hour
	e.insert(later)
	e.equal(e.requeue(dialect.Filter{States: []string{dialect.Retry, dialect.Scheduled}}, 10), 2, "retry and scheduled")
	e.equal(e.parkedRows()[1], "a/1 retry blocking 3", "attempts")
	e.equal(due(), "a/1 a/3 a/4 a/6 b/2 /5 ", "due")
	e.equal(e.surface(lease, 10), 1, "surfaced")
}

// TestRequeueInParts: a limit cuts a run, and the rest joins its end.
func TestRequeueInParts(t *testing.T) {
	e := fresh(t, 1)
	e.deadOnes("a", "a", "a", "a", "a")
	e.equal(e.requeue(all, 2), 2, "the first two")
	e.equal(e.parkedRows(), []string{"a/1 retry blocking 0", "a/2 held - 0", "a/3 dead - 7", "a/4 dead - 7", "a/5 dead - 7"}, "after two")
	e.equal(e.requeue(all, 2), 2, "the next two")
	e.equal(e.requeue(all, 2), 1, "the last")
	e.equal(e.requeue(all, 2), 0, "no more")
	e.equal(e.parkedRows(), []string{"a/1 retry blocking 0", "a/2 held - 0", "a/3 held - 0", "a/4 held - 0", "a/5 held - 0"}, "after all")
}

// TestRequeueBefore: what is requeued goes before newer heads of its key, retrying or
// dead, and behind older ones.
func TestRequeueBefore(t *testing.T) {
	byID := func(e *env, n byte) dialect.Filter { return dialect.Filter{IDs: [][16]byte{{3: n}}} }
	for _, dies := range []bool{false, true} {
		e := fresh(t, 1)
		lease := e.deadOnes("a", "a")
		e.insert(e.messages("a", "a", "a")...)
		head := dialect.Failure{Ref: e.at(3)[0], Attempts: 4, Blocking: true, Delay: time.Hour, Dead: dies}
		e.settle(lease, dialect.Settlement{Failed: []dialect.Failure{head}, Hold: e.at(4, 5)})
		e.equal(e.requeue(byID(e, 2), 10), 1, "one before")
		newer := "a/3 held - 4"
		if dies {
			newer = "a/3 dead blocking 4"
		}
		e.equal(e.parkedRows(), []string{"a/1 dead - 7", "a/2 retry blocking 0", newer, "a/4 held - 0", "a/5 held - 0"}, "before the newer head")
		e.equal(e.requeue(byID(e, 1), 10), 1, "one before that")
		e.equal(e.parkedRows()[:2], []string{"a/1 retry blocking 0", "a/2 held - 0"}, "the first is the head")
		want := []string{"a/1", "a/2", "a/3", "a/4", "a/5"}
		if dies {
			want = want[:2]
		}
		e.equal(payloads(e.dueRows(0)), want, "due")
		if dies {
			e.equal(e.requeue(byID(e, 3), 10), 1, "the dead one")
			e.equal(e.parkedRows(), []string{"a/1 retry blocking 0", "a/2 held - 0", "a/3 held - 0", "a/4 held - 0", "a/5 held - 0"}, "in its place")
		}
	}
}

func TestRequeueAcrossLanes(t *testing.T) {
	e := fresh(t, 8)
	for i := range 40 {
		m := e.message("")
		m.Lane = i % 8
		e.insert(m)
	}
	for lane := range 8 {
		lease := e.claim(lane)
		var s dialect.Settlement
		for _, row := range e.ready(lane) {
			s.Failed = append(s.Failed, dead(row.Ref()))
		}
		e.settle(lease, s)
	}
	e.equal(e.requeue(all, 12), 12, "limited over lanes")
	e.equal(e.one(`SELECT count(*) FROM {parked} WHERE state = 'retry'`), "12", "requeued")
	e.equal(e.discard(dialect.Filter{States: []string{dialect.Dead}}, 13), 13, "discarded")
	e.equal(e.requeue(all, 100), 15, "the rest")
	e.equal(e.discard(all, 100), 27, "discarded")
	e.equal(e.one(`SELECT count(*), sum(outcome = 'discarded'), count(DISTINCT id) FROM {done}`), "40 40 40", "done")
}

func TestDiscard(t *testing.T) {
	e := fresh(t, 1)
	e.insert(e.messages("a", "a", "a", "b", "")...)
	later := e.message("c")
	later.Delay = time.Hour
	e.insert(later)
	lease := e.claim(0)
	e.settle(lease, dialect.Settlement{Failed: []dialect.Failure{dead(e.at(1)[0]), retry(e.at(4)[0]), retry(e.at(5)[0])}, Hold: e.at(2, 3)})
	e.equal(e.discard(dialect.Filter{IDs: [][16]byte{{3: 1}, {3: 2}}}, 10), 2, "the head and the next")
	e.equal(e.rows(`SELECT seq, state, blocking FROM {parked} WHERE key = 'a'`), []string{"3 retry 1"}, "the third is promoted")
	e.equal(e.discard(all, 2), 2, "limited")
	e.equal(e.discard(all, 10), 2, "the rest")
	e.equal(e.parkedRows(), []string(nil), "parked")
	e.equal(e.rows(`SELECT CAST(payload AS TEXT), seq, attempts, outcome, reason FROM {done} ORDER BY id`), []string{
		"a/1 1 1 discarded broker says no", "a/2 2 0 discarded <nil>", "a/3 3 0 discarded <nil>",
		"b/4 4 1 discarded broker says no", "/5 5 1 discarded broker says no", "c/6 <nil> 0 discarded <nil>",
	}, "done")
}

func TestReplay(t *testing.T) {
	e := fresh(t, 2)
	keys := make([]string, 10)
	for i := range keys {
		keys[i] = fmt.Sprint("k", i%4)
	}
	messages := e.messages(keys...)
	messages[3].Topic = "bills"
	e.insert(messages...)
	// What is done in the millisecond in which a replay began counts as done before it.
	publish := func() {
		t.Helper()
		began := e.one(`SELECT unixepoch('subsec')`)
		e.await(func() bool { return e.one(`SELECT unixepoch('subsec')`) != began })
		for lane := range 2 {
			e.settle(e.claim(lane), dialect.Settlement{Archive: true, Published: refs(e.ready(lane))})
		}
	}
	replay := func(f dialect.Filter, cursor *dialect.Cursor, limit int) (int, *dialect.Cursor) {
		t.Helper()
		n, next, err := e.store.Replay(e.ctx, e.db, f, cursor, limit)
		e.must(err)
		return n, next
	}
	publish()
	ready := func() string {
		return e.one(`SELECT count(*), ifnull(min(replay), 0), ifnull(max(replay), 0) FROM {ready}`)
	}

	for name, f := range map[string]dialect.Filter{
		"nothing": {}, "states": {All: true, States: []string{dialect.Dead}}, "old": {DoneBefore: time.Hour}, "no topic": {Topic: "none"},
	} {
		if n, next := replay(f, nil, 10); n != 0 || next != nil {
			t.Errorf("%s: %d, %v", name, n, next)
		}
	}
	if n, next := replay(dialect.Filter{Topic: "bills"}, nil, 10); n != 1 || next != nil {
		t.Errorf("topic: %d, %v", n, next)
	}
	e.equal(ready(), "1 1 1", "ready")
	got := append(e.ready(0), e.ready(1)...)[0].Message
	messages[3].Replay = 1
	e.equal(got, messages[3], "the same message, replayed")

	e.exec(`DELETE FROM {ready}`)
	e.exec(`DELETE FROM {done} WHERE topic = 'bills'`)

	// In parts, with what is settled again meanwhile left alone.
	var total, calls int
	var cursor *dialect.Cursor
	for {
		n, next := replay(all, cursor, 3)
		total, calls = total+n, calls+1
		publish()
		if next == nil || calls > 10 {
			break
		}
		cursor = next
	}
	e.equal([]int{total, calls}, []int{9, 4}, "replayed, calls")
	e.equal(e.one(`SELECT count(*), max(replay) FROM {done}`), "18 1", "done")

	// A second replay counts from the first, once an id.
	if n, next := replay(dialect.Filter{Key: messages[0].Key, IDs: [][16]byte{messages[0].ID, messages[1].ID}}, nil, 10); n != 1 || next != nil {
		t.Errorf("key and ids: %d, %v", n, next)
	}
	e.equal(ready(), "1 2 2", "ready")
	e.exec(`UPDATE {done} SET done_at = done_at - 7200000000 WHERE replay = 0`)
	if n, _ := replay(dialect.Filter{DoneWithin: time.Hour}, nil, 100); n != 8 {
		t.Errorf("within, one being ready: %d", n)
	}
	if n, _ := replay(dialect.Filter{DoneBefore: time.Hour}, nil, 100); n != 0 {
		t.Errorf("before, all being ready: %d", n)
	}
}

func TestPurge(t *testing.T) {
	e := fresh(t, 1)
	const insert = `INSERT INTO {done} (lane, seq, id, topic, type, content_type, headers, created_at, replay, attempts, outcome, done_at)
		WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1700)
		SELECT 0, i, randomblob(16), 't', 'y', 'c', '{}', 0, 0, 1, 'published',
			CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000 - i * 3600000000 FROM n`
	e.exec(insert)
	e.insert(e.messages("a", "b")...)
	lease := e.claim(0)
	e.settle(lease, dialect.Settlement{Failed: []dialect.Failure{dead(e.at(1)[0])}})
	e.exec(`UPDATE {ready} SET created_at = 0, ready_at = 0`)
	e.exec(`UPDATE {parked} SET created_at = 0, parked_at = 0`)
	purge := func(olderThan time.Duration, limit int) int {
		t.Helper()
		n, err := e.store.Purge(e.ctx, e.db, olderThan, limit)
		e.must(err)
		return n
	}
	e.equal(purge(1701*time.Hour, 10000), 0, "none is that old")
	e.equal(purge(1600*time.Hour, 30), 30, "limited")
	e.equal(e.one(`SELECT count(*), max(seq) FROM {done}`), "1670 1670", "the oldest went")
	e.equal(purge(1000*time.Hour, 600), 600, "in batches")
	e.equal(purge(1000*time.Hour, 10000), 71, "the rest of those")
	e.equal(purge(0, 10000), 999, "all")
	e.equal(e.one(`SELECT (SELECT count(*) FROM {ready}), (SELECT count(*) FROM {parked}), (SELECT count(*) FROM {done})`), "1 1 0", "left")
}

func TestClaimPurge(t *testing.T) {
	e := fresh(t, 1)
	claim := func(every time.Duration) bool {
		t.Helper()
		ok, err := e.store.ClaimPurge(e.ctx, e.db, every)
		e.must(err)
		return ok
	}
	first := make(chan bool)
	for range 8 {
		go func() {
			ok, err := e.store.ClaimPurge(e.ctx, e.db, time.Hour)
			if err != nil {
				t.Error(err)
			}
			first <- ok
		}()
	}
	n := 0
	for range 8 {
		if <-first {
			n++
		}
	}
	e.equal(n, 1, "of eight")
	e.equal(claim(time.Hour), false, "within the hour")
	e.exec(`UPDATE {meta} SET purge_at = purge_at - 3600000000`)
	e.equal([]bool{claim(time.Hour), claim(time.Hour)}, []bool{true, false}, "after it")

	// Another is first after one has seen that it is time.
	e.exec(`UPDATE {meta} SET purge_at = purge_at - 3600000000`)
	another := bind(t, e.tables)
	late, err := e.store.ClaimPurge(e.ctx, &hook{DB: e.db, before: func() {
		ok, err := another.ClaimPurge(e.ctx, e.db, time.Hour)
		e.must(err)
		e.equal(ok, true, "the first")
	}}, time.Hour)
	e.must(err)
	e.equal(late, false, "the second")
}
