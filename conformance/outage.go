package conformance

import (
	"errors"
	"fmt"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/relay"
)

// outageScenarios: a broker that is away, as a whole or in part.
var outageScenarios = []Scenario{
	{
		Name:    "Relay/OutageConsumesNoAttempts",
		Promise: "while the broker is away no message loses an attempt or leaves its place, it is probed with pauses between, and when it is back everything is delivered",
		run:     outageConsumesNoAttempts,
	},
	{
		Name:    "Relay/OutageOfOneDestination",
		Promise: "while one destination is away the others flow, and its own messages lose no attempt",
		run:     outageOfOneDestination,
	},
	{
		Name:    "Relay/OutageInMidBatch",
		Promise: "when the broker goes away in the middle of a batch, for longer than lease and timeouts, or the relay is stopped there, exactly what was accepted is settled",
		lanes:   1,
		run:     outageInMidBatch,
	},
	{
		Name:    "Relay/SlowTopicDelaysOnlyItself",
		Promise: "a topic whose publishes time out holds up the others by one publish timeout, and not again",
		lanes:   1,
		run:     slowTopic,
	},
}

var errAway = errors.New("broker: connection refused")

// noAttemptLost demands that each message was accepted at its first attempt.
func (t *trial) noAttemptLost() {
	took, _ := t.broker.history()
	for i := range took {
		if took[i].attempt != 1 {
			t.error("a message was accepted at attempt %d, though only an outage stood in its way", took[i].attempt)
		}
	}
}

func outageConsumesNoAttempts(t *trial) {
	const messages, probes, mostPause = 200, 5, 80 * time.Millisecond
	away := t.broker.when(anyMessage, refuse(relay.Unavailable(errAway)))
	relays := t.startMany(2, patient, func(c *relay.Config) { c.MaxAttempts, c.BreakerMax = 2, mostPause })
	t.produce(load{messages: messages, keys: 20, unkeyed: 5})
	opened := func() (all int, each bool) {
		each = true
		for _, r := range relays {
			n := len(eventsOf[relay.BreakerOpened](r))
			all, each = all+n, each && n >= probes
		}
		return all, each
	}
	t.await("every relay to know of the outage", func() bool { _, each := opened(); return each })
	// From now on each call is a probe with one message.
	marks := make([]int, len(relays))
	for i, r := range relays {
		marks[i] = len(eventsOf[relay.Attempted](r))
	}
	began := time.Now() // before the count, or some would be had for nothing
	before, _ := opened()
	t.await("some more probes", func() bool { all, _ := opened(); return all >= before+2*probes })
	// They are a pause apart, of which the first may have been under way.
	if took, least := time.Since(began), (probes-1)*mostPause*3/4; took < least {
		t.error("during the outage two relays made %d probes in %v, less than %v", 2*probes, took, least)
	}
	for i, r := range relays {
		for _, e := range eventsOf[relay.Attempted](r)[marks[i]:] {
			if len(e.Messages) != 1 {
				t.error("during the outage %d messages were tried at a time", len(e.Messages))
			}
		}
	}
	if s := t.stats(); s.Ready != messages || s.Retry+s.Held+s.Dead != 0 {
		t.error("during the outage %d of %d messages are ready, %d wait for a retry, %d are held and %d dead", s.Ready, messages, s.Retry, s.Held, s.Dead)
	}
	away.remove()
	t.settleDown()
	t.noDuplicates()
	t.noAttemptLost()
	for _, r := range relays {
		if len(eventsOf[relay.LeaseLost](r)) > 0 {
			t.error("a lease was lost during the outage")
		}
	}
}

func outageOfOneDestination(t *trial) {
	const messages = 200
	away := t.broker.when(ofTopic("away"), refuse(relay.Unavailable(errAway)))
	r := t.startWith(relayWith{
		around: func(p publisher) relay.Publisher { return byTopic{p} },
		config: func(c *relay.Config) { patient(c); c.MaxAttempts = 2 },
	})
	t.produce(load{messages: messages, keys: 20, topics: []string{"here", "away"}})
	t.await("what goes elsewhere to be published", func() bool {
		s := t.stats()
		return t.broker.count() > 0 && s.Ready == 0 && int64(t.broker.count())+s.Retry+s.Held+s.Dead == messages
	})
	t.await("the destination to be probed again and again", func() bool { return len(eventsOf[relay.BreakerOpened](r)) >= 5 })
	for _, p := range t.parked(outbox.Filter{All: true}) {
		if p.Attempts != 0 || p.State == outbox.Dead || p.Topic != "away" {
			t.error("during the outage a message of topic %q is %s after %d attempts: %s", p.Topic, p.State, p.Attempts, p.Reason)
		}
	}
	away.remove()
	t.settleDown()
	t.noDuplicates()
	t.noAttemptLost()
}

func outageInMidBatch(t *trial) {
	const taken, all = 10, 100
	lease := leaseTime
	if raceEnabled {
		lease *= 3 // it must not be lost before the outage
	}
	for _, way := range []struct {
		name string
		away reaction
		stop bool
	}{
		{"the broker is away", refuse(relay.Unavailable(errAway)), false},
		{"the broker is away and the relay is stopped", refuse(relay.Unavailable(errAway)), true},
		{"the broker does not answer and the relay is stopped", hang, true},
	} {
		before := t.broker.count()
		away := t.broker.when(anyMessage, way.away)
		t.broker.first(taken, anyMessage, acceptIt)
		batch := make([]outbox.Message, all)
		for i := range batch {
			batch[i] = t.message(fmt.Sprintf("key-%d", i))
		}
		t.enqueueAll(batch...)
		r := t.start(func(c *relay.Config) {
			c.Workers, c.Batch, c.PublishConcurrency, c.PublishSize, c.Lease = 1, all, 1, 1, lease
			c.PublishTimeout, c.Grace = 100*time.Millisecond, 100*time.Millisecond
			if way.stop {
				// Only the stop ends it, within the grace, and only it frees the lane. A
				// second grace is all that the settle has.
				c.PublishTimeout, c.Lease, c.Grace = time.Minute, time.Minute, 5*time.Second
			}
		})
		t.await("the broker to go away in the middle of the batch", func() bool { return away.seen() > 0 })
		if way.stop {
			r.stop()
		} else {
			began := time.Now()
			t.await("the outage to outlast lease and timeouts", func() bool { return time.Since(began) > lease*3/2 })
			t.await("what was accepted to be settled", func() bool { return t.stats().Ready < all })
		}
		if n := t.broker.count() - before; n != taken {
			t.error("%s: the broker took %d messages instead of %d", way.name, n, taken)
		}
		s := t.stats()
		if s.Ready != all-taken || s.Retry+s.Held+s.Dead != 0 {
			t.error("%s: after %d of %d were accepted %d are ready, %d wait for a retry, %d are held, %d dead", way.name, taken, all, s.Ready, s.Retry, s.Held, s.Dead)
		}
		if way.stop && s.LanesHeld+s.LanesExpired != 0 {
			t.error("%s: %d lanes are still leased", way.name, s.LanesHeld+s.LanesExpired)
		}
		r.stop()
		away.remove()
		next := t.start(patient)
		t.awaitPublished()
		t.awaitEmpty()
		next.stop()
		t.noAttemptLost()
	}
	t.verify()
	t.noDuplicates()
}

func slowTopic(t *trial) {
	const rounds, timeout = 12, time.Second
	hung := t.broker.when(ofTopic("slow"), hang)
	slow := func(n int) []outbox.Message {
		all := make([]outbox.Message, n)
		for i := range all {
			all[i] = t.message([]string{"", fmt.Sprintf("slow-%d-%d", t.broker.count(), i)}[i%2])
			all[i].Topic = "slow"
		}
		return all
	}
	t.enqueueAll(slow(50)...)
	r := t.start(patient, func(c *relay.Config) {
		c.Workers, c.PublishTimeout, c.BreakerMin, c.BreakerMax = 1, timeout, time.Hour, time.Hour
	})
	t.await("the slow topic to hang", func() bool { return hung.seen() > 0 })
	began, first := time.Now(), 0
	for round := range rounds {
		t.enqueueAll(append(slow(2), t.message(""), t.message("healthy"))...)
		t.await("the other topic's messages to be published", func() bool { return t.broker.count() == 2*(round+1) })
		if round == 1 {
			first = hung.seen()
		}
	}
	took := time.Since(began)
	if !within(took, timeout) {
		t.error("%d times two messages took %v beside a slow topic", rounds, took)
	}
	if n := hung.seen(); n != first {
		t.error("the slow topic was tried again %d times, though it is to be left alone", n-first)
	}
	t.note("%d times two messages took %v, with a publish timeout of %v", rounds, took.Round(time.Millisecond), timeout)
	r.stop()
	hung.remove()
	t.start(patient)
	t.await("the slow topic's messages to be published", func() bool {
		_, err := t.operator.Requeue(t.ctx, outbox.Filter{Topic: "slow", States: []string{outbox.Retry}}, 0)
		t.must(err, "requeue")
		return t.allPublished()
	})
	t.settleDown()
}
