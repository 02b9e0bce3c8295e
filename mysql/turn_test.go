package mysql_test

import (
	"testing"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

func TestTurn(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		a, b := keyIn(0), keyIn(1)
		f.run(a, 3)
		f.run(b, 2)
		f.insert(message("free", ""))

		got, err := f.store.Poll(t.Context(), f.db, "me", 10)
		f.ok(err)
		f.is("lanes with work", got, []dialect.Candidate{{Lane: 1}})
		lease := f.claim(1, "me")

		rows, err := f.store.Ready(t.Context(), f.db, 1, 0, dialect.Limit{Rows: 10})
		f.ok(err)
		f.is("ready", topics(rows), []string{a + ".1", a + ".2", a + ".3", b + ".1", b + ".2", "free"})

		// The first of a fails, the rest of it is held; all else is published.
		f.settle(lease, dialect.Settlement{
			Archive:   true,
			Published: f.refs(b+".1", b+".2", "free"),
			Failed:    []dialect.Failure{{Ref: f.ref(a + ".1"), Attempts: 1, Blocking: true, Reason: "no"}},
			Hold:      f.refs(a+".2", a+".3"),
		})
		f.is("ready after", f.readyTopics(), []string{})
		f.is("parked", f.parked(), []string{a + ".1:retry*", a + ".2:held", a + ".3:held"})
		f.is("done", f.list(`SELECT CONCAT_WS(' ', topic, outcome, attempts) FROM {done} ORDER BY pos`),
			[]string{b + ".1 published 1", b + ".2 published 1", "free published 1"})
		f.is("due", f.due(dialect.Limit{Rows: 10}), []string{a + ".1", a + ".2", a + ".3"})
		f.is("due, two rows", f.due(dialect.Limit{Rows: 2}), []string{a + ".1", a + ".2"})

		// The head and the next go, the third follows.
		f.settle(lease, dialect.Settlement{Archive: true, PublishedParked: f.parkedRefs(a+".1", a+".2")})
		f.is("parked", f.parked(), []string{a + ".3:retry*"})
		f.is("done", f.list(`SELECT CONCAT_WS(' ', topic, attempts) FROM {done} WHERE topic LIKE ? ORDER BY pos`, a+".%"),
			[]string{a + ".1 2", a + ".2 1"})
		f.settle(lease, dialect.Settlement{PublishedParked: f.parkedRefs(a + ".3")})
		f.is("parked", f.parked(), []string{})
		f.is("done", f.count(`SELECT count(*) FROM {done}`), 5)

		_, held, err := f.store.Pending(t.Context(), f.db, "other")
		f.ok(err)
		f.is("held", held, true)
		f.ok(f.store.Release(t.Context(), f.db, lease))
		ok, err := f.store.Extend(t.Context(), f.db, lease, time.Hour)
		f.ok(err)
		f.is("extended after release", ok, false)
	})
}

// TestOutdatedPoll: a look outside a transaction may have come to a replica that has not seen
// the claim; one in a transaction comes to the server that was claimed from.
func TestOutdatedPoll(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.run(keyIn(0), 1)
		db := f.open(f.dsn)
		db.SetMaxOpenConns(1) // its session counts what it begins
		begun := func() (n int64) {
			var name string
			f.ok(db.QueryRowContext(t.Context(), `SHOW SESSION STATUS LIKE 'Com_begin'`).Scan(&name, &n))
			return n
		}
		poll := func() (transactions int64) {
			before := begun()
			lanes, err := f.store.Poll(t.Context(), db, "me", 10)
			f.ok(err)
			f.is("lanes", len(lanes), 1)
			return begun() - before
		}
		f.claim(1, "me")
		f.await("a poll alone, as soon after one in a transaction", func() bool { return poll() == 0 })
		f.exec(`UPDATE {lane} SET epoch = 0 WHERE lane = 1`)
		f.is("transactions for a lane as it was before the claim", poll(), int64(1))
	})
}

// TestLaneBeyond: a poll tells of the lanes that the table has, which may be more by now than
// the relay was told of.
func TestLaneBeyond(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		rows, err := f.store.Ready(t.Context(), f.db, dialect.MaxLanes-1, 0, dialect.Limit{Rows: 10})
		f.ok(err)
		f.is("rows", len(rows), 0)
	})
}
