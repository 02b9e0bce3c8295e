package conformance

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/relay"
)

// faultScenarios: relays that die or lose the database.
var faultScenarios = []Scenario{
	{
		Name:    "Relay/KilledRelayIsTakenOver",
		Promise: "what a relay killed with SIGKILL had claimed is delivered by another within the lease and one poll; only what was in flight may repeat",
		Needs:   []Need{Children},
		run:     killedRelayIsTakenOver,
	},
	{
		Name:    "Relay/PausedRelayIsFenced",
		Promise: "a relay that is stopped past its lease and goes on then changes nothing in the lanes it lost",
		Needs:   []Need{Children, Pausing},
		lanes:   1,
		run:     pausedRelayIsFenced,
	},
	{
		Name:    "Relay/ConnectionLost",
		Promise: "wherever the connection to the database is cut, nothing is lost, and no message repeats unless its lease ran out",
		Needs:   []Need{Networked},
		run:     connectionLost,
	},
	{
		Name:    "Settle/ConflictIsRetriedNotRepublished",
		Promise: "a settle that meets a deadlock, a lock timeout or an unknown outcome is tried again by itself; nothing is published twice",
		run:     conflictIsRetried,
	},
}

func killedRelayIsTakenOver(t *trial) {
	for _, at := range []point{atClaimed, atPublished, inSettle, atSettled} {
		t.produce(load{messages: 200, keys: 40, perTx: 20})
		victim := t.spawn(childWith{stopAt: at})
		victim.awaitStop()
		victim.kill()
		began := time.Now()
		next := t.start()
		t.awaitPublished()
		t.awaitEmpty()
		t.note("killed when %s: taken over after %v", at, time.Since(began).Round(time.Millisecond))
		if took := time.Since(began); !within(took, leaseTime+pollTime) {
			t.error("killed when %s: the messages came after %v, the lease is %v and a poll %v", at, took, leaseTime, pollTime)
		}
		next.stop()
	}
	t.verify()
}

func pausedRelayIsFenced(t *trial) {
	messages := t.enqueue("k", 5)
	// Only the pause is to cost it its lease.
	paused := t.spawn(childWith{stopAt: atPublished, config: func(c *relay.Config) { c.PublishTimeout = time.Minute }})
	paused.awaitStop()
	paused.pause()
	// The next owner is in the middle of its first publish when the old one goes on.
	middle := t.gate()
	again := t.broker.when(anyMessage, after(middle, acceptIt))
	t.start(patient)
	t.await("another relay to claim the lane of the paused one and publish", func() bool { return again.seen() > 0 })
	paused.proceed()
	paused.resume()
	t.await("the paused relay to settle, or to find its lease lost", func() bool { return paused.saw("LeaseLost")+paused.saw("Settled") > 0 })
	if s := t.stats(); s.Ready != int64(len(messages)) {
		t.error("the paused relay's settle took effect: %d of %d messages are ready while their new owner publishes them", s.Ready, len(messages))
	}
	if paused.saw("LeaseLost") == 0 {
		t.error("the paused relay was told that its settle took effect")
	}
	middle.open()
	again.remove()
	t.enqueue("k", 5)
	t.settleDown()
}

func connectionLost(t *trial) {
	p, db := t.proxied()
	// Each statement is one or a few messages to the server. Counting them from
	// the claim on, or in a lane that was kept from the read on, meets every step
	// of a turn; by turns the statement itself is lost, or the answer to it.
	var armed atomic.Int64
	d := hooked(t.target.Dialect, hooks{before: func(_ context.Context, o op) error {
		if o.name == "claim" || o.name == "ready" {
			if n := int(armed.Swap(0)); n > 0 {
				p.CutAt((n+1)/2, n%2 == 0)
			}
		}
		return nil
	}})
	t.startWith(relayWith{db: db, dialect: d, config: func(c *relay.Config) { c.Workers, c.Batch = 1, 20 }})
	for n := 1; n <= t.size(60, 32); n++ {
		armed.Store(int64(n))
		t.produce(load{messages: 30, keys: 10, perTx: 30})
		t.await("the connection to be cut", func() bool { return armed.Load() == 0 && !p.Armed() })
		t.awaitPublished()
		t.awaitEmpty()
	}
	t.note("%d connections were cut", p.Cuts())
	t.settleDown()
}

func conflictIsRetried(t *trial) {
	classes := []dialect.Class{dialect.Conflict, dialect.Transient, dialect.OutcomeUnknown}
	dice := source(t.target.Seed, "conflicts")
	faults := make(map[int]int) // of the settle under way, by lane
	d := hooked(t.target.Dialect, settleFaults(func(lane int, done bool) error {
		if faults[lane] == 4 || dice.IntN(3) == 0 {
			if done {
				faults[lane] = 0
			}
			return nil
		}
		faults[lane]++
		if done { // it took effect, and the relay does not learn of it
			return inject(dialect.OutcomeUnknown, "the answer to the settle was lost")
		}
		return inject(classes[dice.IntN(len(classes))], "the settle was refused")
	}))
	r := t.startWith(relayWith{dialect: d, config: func(c *relay.Config) { patient(c); c.Workers = 1 }})
	t.produce(load{messages: 300, keys: 30, perTx: 30})
	t.settleDown()
	if len(eventsOf[relay.SettleRetried](r)) == 0 {
		t.fail("no settle was tried again, though many were made to fail")
	}
	if lost := eventsOf[relay.LeaseLost](r); len(lost) > 0 {
		t.fail("the lease was lost %d times", len(lost))
	}
}
