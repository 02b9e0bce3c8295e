package oracle_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/oracle"
)

// fail parks ready messages of lane 1, blocking their keys.
func (f *fixture) fail(lease dialect.Lease, dead bool, topics ...string) {
	f.Helper()
	var s dialect.Settlement
	for _, topic := range topics {
		s.Failed = append(s.Failed, dialect.Failure{Ref: f.ref(topic), Attempts: 3, Dead: dead, Blocking: true, Reason: "no"})
	}
	f.settle(lease, s)
}

func (f *fixture) requeue(filter dialect.Filter, limit int) int {
	f.Helper()
	n, err := f.store.Requeue(f.Context(), f.db, filter, limit)
	f.ok(err)
	f.invariant()
	return n
}

func (f *fixture) discard(filter dialect.Filter, limit int) int {
	f.Helper()
	n, err := f.store.Discard(f.Context(), f.db, filter, limit)
	f.ok(err)
	f.invariant()
	return n
}

func byTopic(topic string) dialect.Filter { return dialect.Filter{Topic: topic} }

// TestSettleRepeated settles the same twice, as after an unknown outcome.
func TestSettleRepeated(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		a, b := keyIn(0), keyIn(1)
		f.run(a, 4)
		f.run(b, 4)
		lease := f.claim(1, "me")
		f.fail(lease, false, a+".1", b+".1")
		f.settle(lease, dialect.Settlement{Hold: f.refs(a+".2", b+".2")})
		s := dialect.Settlement{
			Archive:         true,
			Published:       f.refs(a + ".3"),
			PublishedParked: f.parkedRefs(a + ".1"),
			Hold:            f.refs(b+".3", b+".4"),
			Failed:          []dialect.Failure{{Ref: f.ref(a + ".4"), Attempts: 1, Dead: true, Blocking: true, Reason: "x"}},
			FailedParked:    []dialect.Failure{{Ref: f.parkedRef(b + ".1"), Attempts: 4, Delay: time.Hour, Blocking: true, Reason: "y"}},
		}
		f.settle(lease, s)
		before := f.messages()
		f.settle(lease, s)
		f.is("state", f.messages(), before)
		f.is("parked", f.parked(), []string{a + ".2:retry*", a + ".4:dead*", b + ".1:retry*", b + ".2:held", b + ".3:held", b + ".4:held"})
		// What waits behind the second head does not go with the first.
		f.is("due", f.due(dialect.Limit{Rows: 9}), []string{a + ".2"})
	})
}

// TestSettleOthersPlace settles rows whose places have been given to other messages, as
// by a server that came back without its last commits: they are passed over.
func TestSettleOthersPlace(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		a, b := keyIn(0), keyIn(1)
		f.run(a, 4)
		f.run(b, 3)
		lease := f.claim(1, "me")
		f.fail(lease, false, a+".1", b+".1")
		f.settle(lease, dialect.Settlement{Hold: f.refs(a + ".2")})
		others := func(list ...dialect.Ref) []dialect.Ref {
			for i := range list {
				list[i].ID[15]++
			}
			return list
		}
		failures := func(refs []dialect.Ref, dead bool) (list []dialect.Failure) {
			for _, r := range refs {
				list = append(list, dialect.Failure{Ref: r, Attempts: 9, Dead: dead, Blocking: true, Reason: "no"})
			}
			return list
		}
		before := f.messages()
		s := dialect.Settlement{
			Archive:         true,
			Published:       others(f.refs(b + ".2")...),
			PublishedParked: others(f.parkedRefs(a + ".1")...),
			Hold:            others(f.refs(a + ".3")...),
			Failed:          failures(others(f.refs(a+".4", b+".3")...), true),
			FailedParked:    failures(others(f.parkedRefs(b+".1")...), true),
		}
		for _, s.Archive = range []bool{true, false} {
			f.settle(lease, s)
			f.is("messages", f.messages(), before)
		}

		// With one that is still there among them, that one alone goes.
		s.Published = append(s.Published, f.ref(b+".3"))
		s.Failed = s.Failed[:1]
		f.settle(lease, s)
		f.is("ready", f.readyTopics(), []string{a + ".3", a + ".4", b + ".2"})
		f.is("parked", f.parked(), []string{a + ".1:retry*", a + ".2:held", b + ".1:retry*"})
		f.is("done", f.count(`SELECT COUNT(*) FROM {done}`), 0)
	})
}

// TestSettleMany settles more rows than one statement takes, with the longest reasons.
func TestSettleMany(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		const n = 2500
		lease := f.claim(1, "me")
		reason := strings.Repeat("ä", dialect.MaxReason/2)
		read := func() (refs []dialect.Ref) {
			rows, err := f.store.Ready(t.Context(), f.db, 1, 0, dialect.Limit{Rows: 2 * n})
			f.ok(err)
			for _, r := range rows {
				refs = append(refs, dialect.Ref{Place: r.Seq, ID: r.ID})
			}
			f.is("rows", len(refs), n)
			return refs
		}
		f.fill(1, n)
		f.settle(lease, dialect.Settlement{Archive: true, Published: read()})
		f.is("done", f.count(`SELECT COUNT(*) FROM {done}`), n)
		f.fill(1, n)
		var failed []dialect.Failure
		for _, ref := range read() {
			failed = append(failed, dialect.Failure{Ref: ref, Attempts: 1, Reason: reason})
		}
		f.settle(lease, dialect.Settlement{Failed: failed})
		f.is("parked", f.count(`SELECT COUNT(*) FROM {parked} WHERE reason = ?`, reason), n)
		rows, err := f.store.Due(t.Context(), f.db, 1, dialect.Limit{Rows: 2 * n})
		f.ok(err)
		failed, parked := nil, []dialect.Ref(nil)
		for _, r := range rows {
			parked = append(parked, dialect.Ref{Place: r.Pos, ID: r.ID})
			failed = append(failed, dialect.Failure{Ref: parked[len(parked)-1], Attempts: 2, Delay: -time.Second, Reason: reason[2:]})
		}
		f.settle(lease, dialect.Settlement{FailedParked: failed})
		f.is("failed again", f.count(`SELECT COUNT(*) FROM {parked} WHERE attempts = 2 AND reason = ?`, reason[2:]), n)
		f.settle(lease, dialect.Settlement{Archive: true, PublishedParked: parked})
		f.is("done", f.count(`SELECT COUNT(*) FROM {done}`), 2*n)
	})
}

// TestDue bounds what it returns, in rows and bytes, and shares it out.
func TestDue(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		a, b, c := keyIn(0), keyIn(1), keyIn(2)
		for _, key := range []string{a, b, c} {
			f.run(key, 5)
		}
		f.insert(message("free", ""))
		lease := f.claim(1, "me")
		f.fail(lease, false, a+".1")
		f.fail(lease, false, b+".1")
		f.fail(lease, false, "free")
		f.settle(lease, dialect.Settlement{Failed: []dialect.Failure{{Ref: f.ref(c + ".1"), Attempts: 1, Delay: time.Hour, Blocking: true}}})
		f.settle(lease, dialect.Settlement{Hold: f.refs(f.readyTopics()...)})
		for rows, want := range map[int][]string{
			1: {a + ".1"},
			3: {a + ".1", b + ".1", "free"},
			4: {a + ".1", a + ".2", b + ".1", "free"},
			5: {a + ".1", a + ".2", b + ".1", b + ".2", "free"},
			6: {a + ".1", a + ".2", b + ".1", b + ".2", b + ".3", "free"}, // 3 by 2 is 1, and the other 2 are left
			7: {a + ".1", a + ".2", a + ".3", b + ".1", b + ".2", b + ".3", "free"},
			99: {
				a + ".1", a + ".2", a + ".3", a + ".4", a + ".5", b + ".1", b + ".2", b + ".3", b + ".4", b + ".5", "free",
			},
		} {
			f.is(fmt.Sprintf("%d rows", rows), f.due(dialect.Limit{Rows: rows}), want)
		}
		size := int64(len(`{"a":1}`) + len(`{}`))
		for bytes, want := range map[int64]int{1: 1, size: 1, size + 1: 2, 2 * size: 2, 1 << 40: 11} {
			f.is(fmt.Sprintf("%d bytes", bytes), len(f.due(dialect.Limit{Rows: 99, Bytes: bytes})), want)
		}
		f.exec(`UPDATE {parked} SET available_at = TIMESTAMP '1970-01-01 00:00:00' WHERE topic = ?`, b+".1")
		f.is("the longest due first", f.due(dialect.Limit{Rows: 2}), []string{b + ".1", a + ".1"})
	})
}

// TestReady bounds what it returns, and tells which keys are blocked.
func TestReady(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		a, b := keyIn(0), keyIn(1)
		f.run(a, 3)
		f.run(b, 2)
		f.fail(f.claim(1, "me"), true, a+".1")
		read := func(after int64, limit dialect.Limit) (list []string) {
			rows, err := f.store.Ready(t.Context(), f.db, 1, after, limit)
			f.ok(err)
			for _, r := range rows {
				list = append(list, fmt.Sprintf("%s %t %d", r.Topic, r.Blocked, len(r.Payload)))
			}
			return list
		}
		all := []string{a + ".2 true 7", a + ".3 true 7", b + ".1 false 7", b + ".2 false 7"}
		f.is("all", read(0, dialect.Limit{Rows: 9}), all)
		f.is("after", read(f.seq(a+".3"), dialect.Limit{Rows: 9}), all[2:])
		f.is("rows", read(0, dialect.Limit{Rows: 2}), all[:2])
		for bytes, want := range map[int64]int{1: 1, 9: 1, 10: 2, 18: 2, 19: 3, 27: 3, 28: 4} {
			f.is(fmt.Sprint(bytes, " bytes"), read(0, dialect.Limit{Rows: 9, Bytes: bytes}), all[:want])
		}
		rows, err := f.store.Ready(t.Context(), f.db, 2, 0, dialect.Limit{Rows: 9})
		f.ok(err)
		f.is("another lane", len(rows), 0)
	})
}

// TestPoll orders by when a lane was served, and sees each kind of work.
func TestPoll(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		poll := func(owner string, limit int) []int {
			list, err := f.store.Poll(t.Context(), f.db, owner, limit)
			f.ok(err)
			return lanesOf(list)
		}
		pending := func(owner string) string {
			work, held, err := f.store.Pending(t.Context(), f.db, owner)
			f.ok(err)
			return fmt.Sprint(work, held)
		}
		f.is("nothing", fmt.Sprint(poll("me", 9), " ", pending("me")), "[] false false")
		for lane, delay := range []time.Duration{0, time.Nanosecond, time.Hour} {
			m := message("x", "")
			m.Lane, m.Delay = lane, delay
			f.insert(m)
		}
		m := message("retry", "")
		m.Lane = 3
		f.insert(m)
		lease := f.claim(3, "me")
		f.settle(lease, dialect.Settlement{Failed: []dialect.Failure{{Ref: f.ref("retry"), Attempts: 1}}})
		f.ok(f.store.Release(t.Context(), f.db, lease))
		list, err := f.store.Poll(t.Context(), f.db, "me", 9)
		f.ok(err)
		f.is("ready, scheduled and retry", list, []dialect.Candidate{{Lane: 0}, {Lane: 1, Due: true}, {Lane: 3, Epoch: 1, Due: true}})
		f.is("limit", poll("me", 2), []int{0, 1})
		lease = f.claim(0, "me")
		f.settle(lease, dialect.Settlement{})
		f.is("served last", poll("me", 9), []int{1, 3, 0})
		// The clock was set back after lane 1 was served.
		f.exec(`UPDATE {lane} SET served_at = SYS_EXTRACT_UTC(SYSTIMESTAMP) + INTERVAL '1' HOUR WHERE lane = 1`)
		f.exec(`UPDATE {lane} SET served_at = SYS_EXTRACT_UTC(SYSTIMESTAMP) - INTERVAL '1' HOUR WHERE lane = 3`)
		f.is("served in a time to come", poll("me", 9), []int{1, 3, 0})
		f.is("leased", poll("you", 9), []int{1, 3})
		f.is("pending", pending("me")+" "+pending("you"), "true false true true")
		f.exec(`DELETE FROM {ready}`)
		f.exec(`UPDATE {parked} SET available_at = SYS_EXTRACT_UTC(SYSTIMESTAMP) + INTERVAL '1' HOUR`)
		f.is("later", fmt.Sprint(poll("me", 9), " ", pending("you")), "[] false true")
		f.exec(`UPDATE {parked} SET state = 4, available_at = NULL, seq = 1`)
		f.is("dead", fmt.Sprint(poll("me", 9), " ", pending("me")), "[] false false")
	})
}

// lanesOf are the lanes of candidates.
func lanesOf(list []dialect.Candidate) (lanes []int) {
	for _, c := range list {
		lanes = append(lanes, c.Lane)
	}
	return lanes
}

// TestSurface keeps the order in which messages became due and created_at, and
// parks a message whose id is ready.
func TestSurface(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		var messages []dialect.Message
		for _, delay := range []time.Duration{3 * time.Minute, time.Minute, 2 * time.Minute, time.Hour} {
			m := message(fmt.Sprint(delay), keyIn(0))
			m.Delay = delay
			messages = append(messages, m)
		}
		twin := messages[1]
		twin.Topic, twin.Delay = "twin", 0
		f.insert(append(messages, twin)...)
		f.exec(`UPDATE {parked} SET created_at = TIMESTAMP '2001-01-01 00:00:00', available_at = available_at - INTERVAL '4' MINUTE`)
		lease := f.claim(1, "me")
		moved, ok, err := f.store.Surface(t.Context(), f.db, lease, 2)
		f.ok(err)
		f.is("moved", fmt.Sprint(moved, ok), "1 true")
		moved, ok, err = f.store.Surface(t.Context(), f.db, lease, 9)
		f.ok(err)
		f.is("moved", fmt.Sprint(moved, ok), "1 true")
		f.is("ready", f.readyTopics(), []string{"twin", "2m0s", "3m0s"})
		f.is("parked", f.parked(), []string{"1m0s:dead", "1h0m0s:scheduled"})
		f.is("reason", f.list(`SELECT {text reason} FROM {parked} WHERE state = 4`), []string{oracle.SurfacedTwice})
		f.is("created", f.count(`SELECT count(*) FROM {ready} WHERE created_at = TIMESTAMP '2001-01-01 00:00:00'`), 2)
		f.is("age", f.count(`SELECT count(*) FROM {ready} WHERE ready_at < TIMESTAMP '2002-01-01 00:00:00'`), 0)

		// The dead one comes back like any other.
		f.is("requeued", f.requeue(dialect.Filter{All: true, States: []string{dialect.Dead}}, 9), 1)
		f.is("parked", f.parked(), []string{"1m0s:scheduled", "1h0m0s:scheduled"})
		// Its twin is still ready, so it dies again; once that has gone, it surfaces.
		moved, _, err = f.store.Surface(t.Context(), f.db, lease, 9)
		f.ok(err)
		f.is("moved", moved, 0)
		f.settle(lease, dialect.Settlement{Published: f.refs("twin")})
		f.is("requeued", f.requeue(dialect.Filter{All: true, States: []string{dialect.Dead}}, 9), 1)
		moved, _, err = f.store.Surface(t.Context(), f.db, lease, 9)
		f.ok(err)
		f.is("moved", moved, 1)
	})
}

// TestSurfaceOpenProducer lets a producer that has inserted the id of a message that is
// due stay open: Surface does not wait long for it, and leaves the lane's row free.
func TestSurfaceOpenProducer(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		due := message("due", keyIn(0))
		due.Delay = time.Nanosecond
		f.insert(due)
		lease := f.claim(1, "me")
		twin := due
		twin.Topic, twin.Delay = "twin", 0
		producer := f.begin()
		f.ok(f.store.Insert(t.Context(), producer, []dialect.Message{twin}))
		start := time.Now()
		moved, ok, err := f.store.Surface(t.Context(), f.db, lease, 9)
		if !errors.Is(err, oracle.ErrSurfaceWaits) || oracle.New().Classify(err) != dialect.Conflict {
			t.Fatalf("surfaced %d, %t, %v", moved, ok, err)
		}
		if took := time.Since(start); took > 4*oracle.SurfaceWait {
			t.Errorf("it took %v", took)
		}
		ok, err = f.store.Extend(t.Context(), f.db, lease, time.Hour)
		f.ok(err)
		f.is("extended", ok, true)
		f.is("parked", f.parked(), []string{"due:scheduled"})
		f.ok(producer.Commit())
		moved, ok, err = f.store.Surface(t.Context(), f.db, lease, 9)
		f.ok(err)
		f.is("surfaced", fmt.Sprint(moved, ok), "0 true")
		f.is("parked", f.parked(), []string{"due:dead"})

		// Without the lease nothing is surfaced.
		lease.Epoch++
		_, ok, err = f.store.Surface(t.Context(), f.db, lease, 9)
		f.ok(err)
		f.is("surfaced", ok, false)
	})
}

// TestRequeue keeps a run in order and before newer messages.
func TestRequeue(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		a := keyIn(0)
		f.run(a, 6)
		lease := f.claim(1, "me")
		// 1 to 3 died and let the key pass; 4 is retried, 5 waits, 6 is ready.
		for i := 1; i <= 3; i++ {
			f.settle(lease, dialect.Settlement{Failed: []dialect.Failure{{Ref: f.ref(fmt.Sprintf("%s.%d", a, i)), Attempts: 9, Dead: true}}})
		}
		f.settle(lease, dialect.Settlement{
			Failed: []dialect.Failure{{Ref: f.ref(a + ".4"), Attempts: 2, Delay: time.Hour, Blocking: true}},
			Hold:   f.refs(a + ".5"),
		})
		f.is("parked", f.parked(), []string{a + ".1:dead", a + ".2:dead", a + ".3:dead", a + ".4:retry*", a + ".5:held"})

		f.is("zero filter", f.requeue(dialect.Filter{}, 9), 0)
		f.is("held", f.requeue(dialect.Filter{All: true, States: []string{dialect.Held}}, 9), 0)
		f.is("two of three", f.requeue(dialect.Filter{All: true, States: []string{dialect.Dead}}, 2), 2)
		f.is("parked", f.parked(), []string{a + ".1:retry*", a + ".2:held", a + ".3:dead", a + ".4:held", a + ".5:held"})
		f.is("attempts", f.list(`SELECT attempts FROM {parked} ORDER BY seq`), []string{"0", "0", "9", "2", "0"})
		f.is("the third", f.requeue(dialect.Filter{Key: message("", a).Key}, 9), 1)
		f.is("again", f.requeue(dialect.Filter{All: true}, 9), 0)
		f.is("due", f.due(dialect.Limit{Rows: 9}), []string{a + ".1", a + ".2", a + ".3", a + ".4", a + ".5"})
	})
}

// TestRequeueBehindAnother puts a message behind a head that is before it, and
// before one that is after it.
func TestRequeueBehindAnother(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		a := keyIn(0)
		f.run(a, 4)
		lease := f.claim(1, "me")
		f.fail(lease, true, a+".1", a+".2", a+".3")
		f.settle(lease, dialect.Settlement{Hold: f.refs(a + ".4")})
		f.is("the second", f.requeue(byTopic(a+".2"), 9), 1)
		f.is("parked", f.parked(), []string{a + ".1:dead*", a + ".2:held", a + ".3:dead*", a + ".4:held"})
		f.is("due", f.due(dialect.Limit{Rows: 9}), []string{})
		f.is("the first", f.requeue(byTopic(a+".1"), 9), 1)
		f.is("parked", f.parked(), []string{a + ".1:retry*", a + ".2:held", a + ".3:dead*", a + ".4:held"})
		f.is("due", f.due(dialect.Limit{Rows: 9}), []string{a + ".1", a + ".2"})
		f.settle(lease, dialect.Settlement{PublishedParked: f.parkedRefs(a + ".1")})
		f.is("parked", f.parked(), []string{a + ".2:retry*", a + ".3:dead*", a + ".4:held"})
		f.settle(lease, dialect.Settlement{PublishedParked: f.parkedRefs(a + ".2")})
		f.is("parked", f.parked(), []string{a + ".3:dead*", a + ".4:held"})
		f.is("the third", f.discard(byTopic(a+".3"), 9), 1)
		f.is("parked", f.parked(), []string{a + ".4:retry*"})
	})
}

// TestRequeueScheduled makes a delayed message due, and messages without a key
// each for itself.
func TestRequeueScheduled(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		later := message("later", keyIn(0))
		later.Delay = time.Hour
		other := message("other", "")
		other.Lane = 3
		f.insert(later, message("x", ""), message("y", ""), other)
		f.fail(f.claim(1, "me"), true, "x", "y")
		f.fail(f.claim(3, "me"), false, "other")
		f.exec(`UPDATE {parked} SET available_at = SYS_EXTRACT_UTC(SYSTIMESTAMP) + INTERVAL '1' HOUR WHERE topic = ?`, "other")
		f.is("requeued", f.requeue(dialect.Filter{All: true}, 9), 4)
		f.is("parked", f.parked(), []string{"x:retry", "y:retry", "other:retry", "later:scheduled"})
		f.is("attempts", f.list(`SELECT attempts FROM {parked} WHERE seq IS NOT NULL ORDER BY seq`), []string{"0", "0", "3"})
		f.is("due", f.count(`SELECT count(*) FROM {parked} WHERE available_at <= SYS_EXTRACT_UTC(SYSTIMESTAMP)`), 4)
	})
}

// TestDiscard records what was given up, and lets go what waited behind it.
func TestDiscard(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		a := keyIn(0)
		f.run(a, 3)
		later, other := message("later", ""), message("other", "")
		later.Delay, later.Lane, other.Lane = time.Hour, 2, 3
		f.insert(later, other)
		lease := f.claim(1, "me")
		f.fail(lease, true, a+".1")
		f.settle(lease, dialect.Settlement{Hold: f.refs(a+".2", a+".3")})
		f.is("zero filter", f.discard(dialect.Filter{DoneWithin: time.Hour}, 9), 0)
		f.is("head", f.discard(dialect.Filter{States: []string{dialect.Dead}}, 9), 1)
		f.is("parked", f.parked(), []string{a + ".2:retry*", a + ".3:held", "later:scheduled"})
		f.is("done", f.list(`SELECT {text topic} || ' ' || outcome || ' ' || attempts || ' ' || {text reason} FROM {done}`), []string{a + ".1 discarded 3 no"})
		// The relay had read the key as blocked, and a message of it as ready.
		f.insert(message(a+".4", a))
		f.is("all of it", f.discard(dialect.Filter{Key: message("", a).Key}, 9), 2)
		f.settle(lease, dialect.Settlement{Hold: f.refs(a + ".4")})
		f.is("parked", f.parked(), []string{a + ".4:retry*", "later:scheduled"})
		f.is("one of two", f.discard(dialect.Filter{All: true}, 1), 1)
		f.is("the rest", f.discard(dialect.Filter{All: true}, 9), 1)
		f.is("ready", f.readyTopics(), []string{"other"})
	})
}

// TestOperatorWaitsForTheLane starts a command while a settle is under way,
// and finds what the settle has left.
func TestOperatorWaitsForTheLane(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		a := keyIn(0)
		f.run(a, 3)
		lease := f.claim(1, "me")
		f.fail(lease, true, a+".1")
		f.settle(lease, dialect.Settlement{Hold: f.refs(a + ".2")})
		first := f.begin()
		_, err := first.ExecContext(t.Context(), f.sql(`UPDATE {lane} SET served_at = SYS_EXTRACT_UTC(SYSTIMESTAMP) WHERE lane = 1`))
		f.ok(err)
		done := make(chan error, 1)
		go func() {
			_, err := f.store.Discard(context.WithoutCancel(t.Context()), f.db, dialect.Filter{All: true}, 9)
			done <- err
		}()
		f.blocked(1)
		for _, text := range []string{
			`INSERT INTO {parked} (lane, seq, id, topic, key, key_hash, type, state) SELECT lane, seq, id, topic, key, key_hash, type, 3 FROM {ready}`,
			`DELETE FROM {ready}`,
		} {
			_, err = first.ExecContext(t.Context(), f.sql(text))
			f.ok(err)
		}
		f.ok(first.Commit())
		f.ok(<-done)
		f.is("discarded", f.count(`SELECT count(*) FROM {done}`), 3)
		f.is("parked", f.parked(), []string{})
	})
}

// TestReplay brings done messages back, oldest first, and comes to an end
// though they are settled again meanwhile.
func TestReplay(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		a := keyIn(0)
		f.run(a, 5)
		lease := f.claim(1, "me")
		all := f.readyTopics()
		f.settle(lease, dialect.Settlement{Archive: true, Published: f.refs(all...)})
		f.exec(`UPDATE {done} SET created_at = TIMESTAMP '2001-01-01 00:00:00'`)
		var cursor *dialect.Cursor
		var got []string
		for calls := 1; ; calls++ {
			n, next, err := f.store.Replay(t.Context(), f.db, dialect.Filter{All: true}, cursor, 2)
			f.ok(err)
			f.is("replayed", n, []int{0, 2, 2, 1}[calls])
			ready := f.readyTopics()
			got = append(got, ready...)
			f.is("marked", f.count(`SELECT count(*) FROM {ready} WHERE replay = 1 AND created_at = TIMESTAMP '2001-01-01 00:00:00' AND ready_at > TIMESTAMP '2002-01-01 00:00:00'`), len(ready))
			f.settle(lease, dialect.Settlement{Archive: true, Published: f.refs(ready...)})
			if next == nil {
				f.is("calls", calls, 3)
				break
			}
			cursor = next
		}
		f.is("order", got, all)
		f.is("done", f.count(`SELECT count(*) FROM {done}`), 10)

		// Each id stands in done twice now, and is ready once.
		n, next, err := f.store.Replay(t.Context(), f.db, dialect.Filter{Key: message("", a).Key}, nil, 100)
		f.ok(err)
		f.is("replayed", fmt.Sprint(n, next), "5 <nil>")
		n, _, err = f.store.Replay(t.Context(), f.db, dialect.Filter{All: true}, nil, 100)
		f.ok(err)
		f.is("ready already", n, 0)
		n, _, err = f.store.Replay(t.Context(), f.db, dialect.Filter{States: []string{dialect.Dead}}, nil, 100)
		f.ok(err)
		f.is("zero filter", n, 0)
	})
}

// TestReplayNewestRow replays an id that was done several times once, whatever the
// limit, by the newest of the rows that the filter's times leave.
func TestReplayNewestRow(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		lease := f.claim(1, "me")
		m := message("first", "")
		for i, topic := range []string{"first", "second", "third"} {
			m.Topic = topic
			f.insert(m)
			f.settle(lease, dialect.Settlement{Archive: true, Published: f.refs(topic)})
			f.exec(`UPDATE {done} SET done_at = SYS_EXTRACT_UTC(SYSTIMESTAMP) - NUMTODSINTERVAL(?, 'HOUR') WHERE topic = ?`, 3-i, topic)
		}
		for before, want := range map[time.Duration]string{0: "third", 90 * time.Minute: "second"} {
			f.exec(`DELETE FROM {ready}`)
			total, cursor := 0, (*dialect.Cursor)(nil)
			for {
				n, next, err := f.store.Replay(t.Context(), f.db, dialect.Filter{All: true, DoneBefore: before}, cursor, 1)
				f.ok(err)
				total += n
				if cursor = next; cursor == nil {
					break
				}
			}
			f.is("replayed", total, 1)
			f.is(fmt.Sprint("before ", before), f.readyTopics(), []string{want})
		}
	})
}

// TestReplayBounds selects by age.
func TestReplayBounds(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		for _, hours := range []int{1, 3, 5} {
			f.insert(message(fmt.Sprint(hours), ""))
			f.settle(f.claim(1, "me"), dialect.Settlement{Archive: true, Published: f.refs(fmt.Sprint(hours))})
			f.exec(`UPDATE {done} SET done_at = SYS_EXTRACT_UTC(SYSTIMESTAMP) - NUMTODSINTERVAL(?, 'HOUR') WHERE topic = ?`, hours, fmt.Sprint(hours))
		}
		for _, c := range []struct {
			within, before time.Duration
			want           []string
		}{
			{4 * time.Hour, 0, []string{"3", "1"}},
			{0, 4 * time.Hour, []string{"5"}},
			{4 * time.Hour, 2 * time.Hour, []string{"3"}},
			{24 * time.Hour, 0, []string{"5", "3", "1"}},
			{time.Minute, 0, []string{}},
			{1<<63 - 1, time.Nanosecond, []string{"5", "3", "1"}},
		} {
			f.exec(`DELETE FROM {ready}`)
			_, _, err := f.store.Replay(t.Context(), f.db, dialect.Filter{DoneWithin: c.within, DoneBefore: c.before}, nil, 100)
			f.ok(err)
			f.is(fmt.Sprintf("within %v, before %v", c.within, c.before), f.readyTopics(), c.want)
		}
	})
}

// TestPurge deletes the oldest, no more than asked, and passes by locked rows.
func TestPurge(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.run(keyIn(0), 6)
		f.settle(f.claim(1, "me"), dialect.Settlement{Archive: true, Published: f.refs(f.readyTopics()...)})
		f.exec(`UPDATE {done} SET done_at = done_at - NUMTODSINTERVAL(10 - pos, 'HOUR')`)
		purge := func(olderThan time.Duration, limit int) int {
			n, err := f.store.Purge(t.Context(), f.db, olderThan, limit)
			f.ok(err)
			return n
		}
		f.is("none so old", purge(24*time.Hour, 9), 0)
		tx := f.begin()
		_, err := tx.ExecContext(t.Context(), f.sql(`SELECT pos FROM {done} WHERE pos = 1 FOR UPDATE`))
		f.ok(err)
		f.is("two", purge(0, 2), 2)
		f.is("left", f.list(`SELECT pos FROM {done} ORDER BY pos`), []string{"1", "4", "5", "6"})
		f.ok(tx.Rollback())
		f.is("three", purge(5*time.Hour-time.Minute, 9), 3)
		f.is("left", f.list(`SELECT pos FROM {done} ORDER BY pos`), []string{"6"})
	})
}

// TestHistory runs random operations and checks after each that every key has
// its head where it belongs, that no message is lost or doubled, and that what
// is due comes in order.
func TestHistory(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		r := rand.New(rand.NewPCG(seed, 0))
		keys := []string{keyIn(0), keyIn(1), ""}
		lease := f.claim(1, "me")
		inserted := 0
		failure := func(row dialect.Ref) dialect.Failure {
			dead := r.IntN(3) == 0
			return dialect.Failure{Ref: row, Attempts: r.IntN(5), Dead: dead, Delay: -time.Second, Blocking: !dead || r.IntN(2) == 0, Reason: "no"}
		}
		filters := []dialect.Filter{
			{All: true},
			{Key: message("", keys[0]).Key},
			{States: []string{dialect.Dead}},
			{States: []string{dialect.Retry, dialect.Held}},
		}
		for range 60 {
			switch r.IntN(7) {
			case 0, 1:
				for range r.IntN(4) + 1 {
					inserted++
					m := message(fmt.Sprint(inserted), keys[r.IntN(len(keys))])
					m.Delay = time.Duration(r.IntN(2))
					f.insert(m)
				}
				_, _, err := f.store.Surface(t.Context(), f.db, lease, 100)
				f.ok(err)
			case 2, 3:
				// As a relay: behind a failure the rest of a key is held.
				rows, err := f.store.Ready(t.Context(), f.db, 1, 0, dialect.Limit{Rows: r.IntN(6) + 1})
				f.ok(err)
				s := dialect.Settlement{Archive: true}
				failed := map[int64]bool{}
				for _, row := range rows {
					ref := dialect.Ref{Place: row.Seq, ID: row.ID}
					switch {
					case row.Blocked || failed[row.KeyHash.V]:
						s.Hold = append(s.Hold, ref)
					case r.IntN(2) == 0:
						s.Published = append(s.Published, ref)
					default:
						x := failure(ref)
						failed[row.KeyHash.V] = x.Blocking && row.KeyHash.Valid
						s.Failed = append(s.Failed, x)
					}
				}
				f.settle(lease, s)
			case 4:
				rows, err := f.store.Due(t.Context(), f.db, 1, dialect.Limit{Rows: r.IntN(6) + 1})
				f.ok(err)
				s := dialect.Settlement{Archive: true}
				failed, last, closed := map[int64]bool{}, map[int64]int64{}, map[int64]bool{}
				previous := int64(0)
				for _, row := range rows {
					if k := row.KeyHash.V; row.KeyHash.Valid {
						if row.Seq <= last[k] || (closed[k] && previous != k) {
							t.Fatalf("due: key %d is out of order or in two places: %v", k, topics(rows))
						}
						last[k], closed[k] = row.Seq, true
					}
					previous = row.KeyHash.V
					ref := dialect.Ref{Place: row.Pos, ID: row.ID}
					switch {
					case failed[row.KeyHash.V]:
					case r.IntN(2) == 0:
						s.PublishedParked = append(s.PublishedParked, ref)
					default:
						x := failure(ref)
						failed[row.KeyHash.V] = x.Blocking && row.KeyHash.Valid
						s.FailedParked = append(s.FailedParked, x)
					}
				}
				f.settle(lease, s)
			case 5:
				f.requeue(filters[r.IntN(len(filters))], r.IntN(4)+1)
			case 6:
				if r.IntN(3) == 0 {
					f.discard(filters[r.IntN(len(filters))], r.IntN(2)+1)
				}
			}
			f.invariant()
			topics := f.list(`SELECT {text topic} FROM {ready} UNION ALL SELECT {text topic} FROM {parked} UNION ALL SELECT {text topic} FROM {done}`)
			f.is("messages", len(topics), inserted)
			slices.Sort(topics)
			f.is("distinct messages", len(slices.Compact(topics)), inserted)
		}
	})
}
