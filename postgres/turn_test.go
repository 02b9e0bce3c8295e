package postgres_test

import (
	"testing"
	"time"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/postgres"
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
		f.is("done", f.list(`SELECT topic || ' ' || outcome || ' ' || attempts FROM {done} ORDER BY pos`),
			[]string{b + ".1 published 1", b + ".2 published 1", "free published 1"})
		f.is("due", f.due(dialect.Limit{Rows: 10}), []string{a + ".1", a + ".2", a + ".3"})
		f.is("due, two rows", f.due(dialect.Limit{Rows: 2}), []string{a + ".1", a + ".2"})

		// The head and the next go, the third follows.
		f.settle(lease, dialect.Settlement{Archive: true, PublishedParked: []dialect.Ref{f.parkedRef(a + ".1"), f.parkedRef(a + ".2")}})
		f.is("parked", f.parked(), []string{a + ".3:retry*"})
		f.is("done", f.list(`SELECT topic || ' ' || attempts FROM {done} WHERE topic LIKE $1 ORDER BY pos`, a+".%"),
			[]string{a + ".1 2", a + ".2 1"})
		f.settle(lease, dialect.Settlement{PublishedParked: []dialect.Ref{f.parkedRef(a + ".3")}})
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

// A producer that has inserted the id of a scheduled message and does not end
// holds nothing up: surfacing gives way and is repeated later.
func TestSurfaceGivesWay(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		m := message("twin", keyIn(1))
		m.Lane, m.Delay = 1, time.Microsecond
		f.insert(m)
		lease := f.claim(1, "me")
		m.Delay = 0
		producer, err := f.db.BeginTx(t.Context(), nil)
		f.ok(err)
		defer func() { _ = producer.Rollback() }()
		f.ok(f.store.Insert(t.Context(), producer, []dialect.Message{m}))

		_, _, err = f.store.Surface(t.Context(), f.db, lease, 10)
		if class := postgres.New().Classify(err); class != dialect.Conflict {
			t.Errorf("surface beside an open producer: %v (%v), want a conflict", err, class)
		}
		f.is("parked", f.parked(), []string{"twin:scheduled"})
		ok, err := f.store.Extend(t.Context(), f.db, lease, time.Minute)
		f.ok(err)
		f.is("lease kept", ok, true)
		f.ok(producer.Rollback())
		moved, ok, err := f.store.Surface(t.Context(), f.db, lease, 10)
		f.ok(err)
		f.is("moved", moved, 1)
		f.is("lease kept", ok, true)
	})
}

// A time that no program could read does not get in.
func TestInfiniteTimesAreRefused(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		for _, column := range []string{"created_at", "ready_at"} {
			_, err := f.db.ExecContext(t.Context(), f.sql(`INSERT INTO {ready} (lane, id, topic, type, `+column+`)
				VALUES (1, gen_random_uuid(), 't', 'y', 'infinity')`))
			if err == nil {
				t.Errorf("%s took infinity", column)
			}
		}
	})
}
