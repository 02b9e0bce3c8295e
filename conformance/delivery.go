package conformance

import (
	"time"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/relay"
)

// deliveryScenarios: what relays do when nothing fails but themselves.
var deliveryScenarios = []Scenario{
	{
		Name:    "Relay/PublishedOnceWithoutFaults",
		Promise: "with four relays and no fault every committed message is published exactly once",
		run:     publishedOnce,
	},
	{
		Name:    "Relay/OrderPerKeyWithManyRelays",
		Promise: "with four relays, while producers write, the first publishes of each key are in the order of its revisions, one at a time",
		run:     orderPerKey,
	},
	{
		Name:    "Relay/StaleOwnerChangesNothing",
		Promise: "once another relay has claimed the lane, the first owner's settle, extend, surface and release change nothing",
		lanes:   1,
		run:     staleOwner,
	},
}

// patient gives relays so much time that on a busy machine none loses its lease, a
// publish that is held back, or what it has to settle when it is stopped.
func patient(c *relay.Config) {
	c.Lease, c.PublishTimeout, c.Grace = time.Minute, time.Minute, time.Minute
}

// noDuplicates demands that no message was published twice, whatever happened.
func (t *trial) noDuplicates() {
	if f := t.judge(); f.explained > 0 {
		t.fail("%d messages were published twice, though no relay died and no answer was lost", f.explained)
	}
}

func publishedOnce(t *trial) {
	t.produce(load{messages: t.size(50_000, 2_000), keys: t.size(1_000, 100), perTx: 500, unkeyed: 20, rollBack: 0.05})
	t.startMany(4, patient)
	t.settleDown()
	t.noDuplicates()
}

func orderPerKey(t *trial) {
	// Two publish keys in parallel, two hand over whole runs.
	relays := t.startMany(2, patient)
	for range 2 {
		relays = append(relays, t.startWith(relayWith{
			around: func(p publisher) relay.Publisher { return orderly{p} }, config: patient,
		}))
	}
	t.produce(load{messages: t.size(20_000, 2_000), keys: t.size(500, 50), perTx: 100, rollBack: 0.05})
	t.settleDown()
	t.noDuplicates()
	busy := 0
	for _, r := range relays {
		for _, e := range eventsOf[relay.Settled](r) {
			if e.Published > 0 {
				busy++
				break
			}
		}
	}
	t.note("%d of %d relays published", busy, len(relays))
}

func staleOwner(t *trial) {
	messages := t.enqueue("k", 4)
	later := t.message("k")
	later.Delay = time.Millisecond
	t.enqueueAll(later)

	old := t.claim("old")
	rows, err := t.store().Ready(t.ctx, t.db, 0, 0, dialect.Limit{Rows: 10})
	t.must(err, "read ready")
	if len(rows) != len(messages) {
		t.fail("%d of %d messages are ready", len(rows), len(messages))
	}
	t.await("the lease to end and another relay to claim the lane", func() bool {
		_, ok, err := t.store().Claim(t.ctx, t.db, 0, "new", time.Minute)
		t.must(err, "claim")
		return ok
	})
	before := t.snapshot()

	fails := func(what string, ok bool, err error) {
		if err != nil {
			t.error("the old owner's %s: %v", what, err)
		}
		if ok {
			t.error("the old owner (epoch %d) was told that its %s took effect", old.Epoch, what)
		}
		if after := t.snapshot(); after != before {
			t.error("the old owner's %s changed the tables:\nbefore %s\n after %s", what, before, after)
			before = after
		}
	}
	one, two, three, four := rows[0].Ref(), rows[1].Ref(), rows[2].Ref(), rows[3].Ref()
	for _, s := range []struct {
		what       string
		settlement dialect.Settlement
	}{
		{"settle of a published message", dialect.Settlement{Archive: true, Published: []dialect.Ref{one}}},
		{"settle without archive", dialect.Settlement{Published: []dialect.Ref{one, two}}},
		{"hold", dialect.Settlement{Hold: []dialect.Ref{two}}},
		{"retry", dialect.Settlement{Failed: []dialect.Failure{{Ref: three, Attempts: 1, Delay: time.Hour, Blocking: true, Reason: "stale"}}}},
		{"dead", dialect.Settlement{Failed: []dialect.Failure{{Ref: four, Attempts: 1, Dead: true, Blocking: true, Reason: "stale"}}}},
	} {
		ok, err := t.store().Settle(t.ctx, t.db, old, time.Minute, s.settlement)
		fails(s.what, ok, err)
	}
	ok, err := t.store().Extend(t.ctx, t.db, old, time.Minute)
	fails("extend", ok, err)
	_, ok, err = t.store().Surface(t.ctx, t.db, old, 10)
	fails("surface", ok, err)
	fails("release", false, t.store().Release(t.ctx, t.db, old))
	if _, ok, err := t.store().Claim(t.ctx, t.db, 0, "third", time.Second); err != nil || ok {
		t.error("after the old owner's release a third relay claimed the lane: %v, %v", ok, err)
	}
}
