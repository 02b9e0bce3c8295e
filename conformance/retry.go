package conformance

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/relay"
)

// retryScenarios: messages that the broker does not take, and what they hold up.
var retryScenarios = []Scenario{
	{
		Name:    "Relay/UnknownOutcomeRetriesSameID",
		Promise: "a message that the broker accepted, but whose answer was lost, is published again under the same id, before any newer one of its key",
		run:     unknownOutcome,
	},
	{
		Name:    "Relay/MarkNeverPrecedesAck",
		Promise: "no message leaves the tables as published before the broker has accepted it and the relay was told so",
		run:     markNeverPrecedesAck,
	},
	{
		Name:    "Relay/KilledInMidPublish",
		Promise: "what a relay killed in the middle of a publish, or of the settle of a batch that failed in parts, had in hand is delivered by another",
		Needs:   []Need{Children},
		run:     killedInMidPublish,
	},
	{
		Name:    "Relay/PoisonIsolated",
		Promise: "a message that cannot be delivered stops its own key alone, is dead after MaxAttempts with its reason, and comes back by a requeue under the same id",
		run:     poisonIsolated,
	},
	{
		Name:    "Relay/DeadLetsItsKeyPass",
		Promise: "with OnDead PassKey a dead message holds nothing back, and a requeue brings it back",
		run:     deadLetsItsKeyPass,
	},
	{
		Name:    "Relay/PoisonAheadIsPassed",
		Promise: "a hundred messages that cannot be sent, at the head of the only lane, neither keep those behind them nor make the relay spin",
		lanes:   1,
		run:     poisonAhead,
	},
	{
		Name:    "Relay/BadRouteParksAlone",
		Promise: "a topic without a route, or one whose publisher panics, parks its own messages; all others of the batch are sent",
		lanes:   1,
		run:     badRoute,
	},
	{
		Name:    "Relay/CorruptHeadersParkAlone",
		Promise: "a row whose headers do not decode is dead by itself; the rest of its batch is sent",
		lanes:   1,
		run:     corruptHeaders,
	},
	{
		Name:    "Relay/HoldIsCheap",
		Promise: "what is held behind a blocked key is moved once and not read again until the key is free; other keys keep their speed",
		lanes:   1,
		run:     holdIsCheap,
	},
	{
		Name:    "Relay/BackoffGrowsWithJitter",
		Promise: "the delay before the next attempt is random below a ceiling that doubles up to its cap, and no attempt comes before it has passed",
		run:     backoffGrows,
	},
	{
		Name:    "Relay/BackoffSurvivesRestart",
		Promise: "a delay is counted from the failure, whatever relay makes the next attempt",
		run:     backoffSurvivesRestart,
	},
	{
		Name:    "Relay/RetriesFollowOneSchedule",
		Promise: "with three relays a failing message is tried as often, and as far apart, as with one",
		lanes:   4,
		run:     retriesFollowOneSchedule,
	},
	{
		Name:    "Relay/BackoffCountsFromFailure",
		Promise: "the delay is counted from the failure, not from the end of the batch that it happened in",
		lanes:   1,
		run:     backoffCountsFromFailure,
	},
}

var errRefused = errors.New("broker: not this message")

// noneWentBack demands that within each key nothing was accepted after something
// newer: stronger than the order of first publishes, for scenarios in which no
// relay dies.
func (t *trial) noneWentBack() {
	took, _ := t.broker.history()
	newest := make(map[string]int64)
	for i := range took {
		a := &took[i]
		if a.keyed && a.revision < newest[a.key] {
			t.error("revision %d of key %.40q was published after revision %d", a.revision, a.key, newest[a.key])
		}
		newest[a.key] = max(newest[a.key], a.revision)
	}
}

// dice is a source for the broker's goroutines.
func (t *trial) dice(name string) func(n int) int {
	var mu sync.Mutex
	r := source(t.target.Seed, name)
	return func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return r.IntN(n)
	}
}

func unknownOutcome(t *trial) {
	dice := t.dice("answers")
	lost := t.broker.when(anyMessage, func(c *call) error {
		if c.message.Attempt < 4 && dice(3) == 0 {
			return loseAnswer(c)
		}
		return acceptIt(c)
	})
	t.startMany(2, patient)
	t.produce(load{messages: t.size(2000, 300), keys: 30, unkeyed: 10})
	t.settleDown()
	t.noneWentBack()
	if t.judge().explained == 0 {
		t.error("of %d messages none was published again, though answers were lost", lost.seen())
	}
}

func markNeverPrecedesAck(t *trial) {
	// What the broker has accepted and told so, by seq: the tables' own name.
	var mu sync.Mutex
	told := make(map[int64]bool)
	dice := t.dice("answers")
	t.broker.when(anyMessage, func(c *call) error {
		switch n := dice(10); {
		case n == 0:
			return loseAnswer(c)
		case n == 1:
			return errRefused
		case n == 2 && c.message.HasKey():
			return relay.Permanent(errRefused)
		default:
			c.accept()
			mu.Lock()
			defer mu.Unlock()
			told[c.message.Seq] = true
			return nil
		}
	})
	var marked atomic.Int64
	d := hooked(t.target.Dialect, hooks{before: func(_ context.Context, o op) error {
		mu.Lock()
		defer mu.Unlock()
		for _, row := range o.settlement.Published {
			marked.Add(1)
			if !told[row.Place] {
				t.error("a settle names seq %d as published, which the broker has not taken", row.Place)
			}
		}
		return nil
	}})
	for range 2 {
		t.startWith(relayWith{dialect: d, config: patient})
	}
	t.produce(load{messages: t.size(2000, 300), keys: 30, unkeyed: 5})
	t.awaitRevived()
	t.settleDown()
	if marked.Load() == 0 {
		t.fail("no settle was seen")
	}
}

func killedInMidPublish(t *trial) {
	// The broker takes some, refuses some and does not answer for others until
	// the relay is gone.
	total := 0
	for _, at := range []point{nowhere, atPublished, inSettle, atSettled} {
		t.produce(load{messages: 60, keys: 20, perTx: 20, unkeyed: 5})
		total += 60
		stuck := t.gate()
		bad := t.broker.when(anyMessage, func(c *call) error {
			switch {
			case c.message.Payload[0]%4 == 0:
				return errRefused
			case at == nowhere && c.message.Payload[0]%4 == 1:
				stuck.pass(c.ctx)
				return loseAnswer(c)
			case at == nowhere && c.message.Payload[0]%4 == 2:
				c.accept()
				stuck.pass(c.ctx)
				return c.ctx.Err()
			}
			return acceptIt(c)
		})
		victim := t.spawn(childWith{stopAt: at, config: func(c *relay.Config) {
			c.PublishSize, c.RetryMin, c.RetryMax = 1, time.Minute, time.Minute
		}})
		if at == nowhere {
			t.await("the relay to wait for the broker", func() bool { return stuck.waiting() > 0 })
		} else {
			victim.awaitStop()
		}
		before := t.broker.distinct()
		victim.kill()
		s := t.stats()
		if left := s.Ready + s.Scheduled + s.Retry + s.Held + s.Dead; left < int64(total-before) {
			t.error("killed (%s): %d messages are left in the tables, though %d of %d were not accepted", at, left, total-before, total)
		}
		bad.remove()
		stuck.open()
		next := t.start()
		t.await("the messages to be published", func() bool {
			_, err := t.operator.Requeue(t.ctx, outbox.Filter{All: true, States: []string{outbox.Retry}}, 0)
			t.must(err, "make retries due")
			return t.allPublished()
		})
		t.awaitEmpty()
		next.stop()
	}
	t.verify()
}

// distinct is how many different messages were accepted.
func (b *broker) distinct() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.times)
}

func poisonIsolated(t *trial) {
	poison := t.enqueue("poison", 4)
	lone, permanent := t.message(""), t.message("permanent")
	t.enqueueAll(lone, permanent)
	never := t.broker.when(ofID(poison[0].ID, lone.ID), refuse(errRefused))
	no := t.broker.when(ofID(permanent.ID), refuse(relay.Permanent(errRefused)))
	const attempts = 3
	t.startMany(2, patient, func(c *relay.Config) { c.MaxAttempts = attempts })
	const others = 300
	t.produce(load{messages: others, keys: 30, unkeyed: 5})
	t.await("the others to be published", func() bool { return t.broker.count() == others })
	t.await("what cannot be delivered to be dead", func() bool { return t.stats().Dead == 3 })
	t.await("everything else to be settled", func() bool { s := t.stats(); return s.Ready == 0 && s.Held == 3 })

	for _, want := range []struct {
		m        outbox.Message
		attempts int
		blocking bool
	}{{poison[0], attempts, true}, {lone, attempts, false}, {permanent, 1, true}} {
		list := t.parked(outbox.Filter{IDs: []uuid.UUID{want.m.ID}})
		if len(list) != 1 {
			t.fail("%d parked messages have the id of the one that cannot be delivered", len(list))
		}
		p := &list[0]
		if p.State != outbox.Dead || p.Attempts != want.attempts || p.Blocking != want.blocking || p.Reason != errRefused.Error() {
			t.error("the dead message is %s after %d attempts, blocking %v, reason %q; not dead after %d, blocking %v, reason %q",
				p.State, p.Attempts, p.Blocking, p.Reason, want.attempts, want.blocking, errRefused)
		}
		if n := t.broker.tried(want.m.ID); n != want.attempts {
			t.error("the message that cannot be delivered was tried %d times instead of %d", n, want.attempts)
		}
	}
	if n := t.stats().BlockedKeys; n != 2 {
		t.error("%d keys are blocked instead of 2", n)
	}
	never.remove()
	no.remove()
	n, err := t.operator.Requeue(t.ctx, outbox.Filter{All: true}, 0)
	t.must(err, "requeue")
	if n != 3 {
		t.error("requeue changed %d of 3 dead messages", n)
	}
	t.settleDown()
	t.noDuplicates()
}

func deadLetsItsKeyPass(t *trial) {
	pass := []outbox.Message{t.message("k"), t.message("k"), t.message("k")}
	bad := t.message("k") // it comes last, though it is enqueued first
	t.enqueueAll(append([]outbox.Message{bad}, pass...)...)
	no := t.broker.when(ofID(bad.ID), refuse(relay.Permanent(errRefused)))
	t.start(patient, func(c *relay.Config) { c.OnDead = relay.PassKey })
	t.await("the dead message to let its key pass", func() bool { return t.broker.count() == len(pass) })
	t.await("the message to be dead", func() bool { s := t.stats(); return s.Dead == 1 && s.Ready+s.Held == 0 })
	if s := t.stats(); s.BlockedKeys != 0 {
		t.error("%d keys are blocked", s.BlockedKeys)
	}
	no.remove()
	n, err := t.operator.Requeue(t.ctx, outbox.Filter{Key: "k"}, 0)
	t.must(err, "requeue")
	if n != 1 {
		t.error("requeue changed %d messages instead of 1", n)
	}
	t.settleDown()
}

func poisonAhead(t *trial) {
	const poison, healthy = 100, 100
	bad := make([]outbox.Message, poison)
	for i := range bad {
		bad[i] = t.message([]string{"", fmt.Sprintf("poison-%d", i)}[i%2])
		bad[i].Topic = "poison"
	}
	t.enqueueAll(bad...)
	t.produce(load{messages: healthy, keys: 10, perTx: healthy, unkeyed: 5})
	no := t.broker.when(ofTopic("poison"), refuse(errRefused))
	const pause = 20 * time.Millisecond
	var polls atomic.Int64
	d := hooked(t.target.Dialect, hooks{before: func(_ context.Context, o op) error {
		if o.name == "poll" {
			polls.Add(1)
		}
		return nil
	}})
	r := t.startWith(relayWith{dialect: d, config: func(c *relay.Config) {
		patient(c)
		// A batch smaller than what stands ahead, and delays that do not end here.
		c.Batch, c.RetryMin, c.RetryMax = 20, 1000*time.Hour, 1000*time.Hour
		c.PollMin, c.PollMax = pause, pause
	}})
	t.await("the messages behind the poison to be published", func() bool { return t.broker.count() == healthy })
	t.await("the poison to be parked", func() bool { s := t.stats(); return s.Ready == 0 && s.Retry == poison })

	// From now on there is nothing to do: polls are a pause apart, and nothing is
	// tried.
	began, before := time.Now(), polls.Load()
	const more = 12
	t.await("some more polls", func() bool { return polls.Load() >= before+more })
	if took, least := time.Since(began), (more-2)*pause*3/4; took < least {
		t.error("with nothing to do %d polls took %v, less than %v", more, took, least)
	}
	if n := no.seen(); n != poison {
		t.error("%d messages were tried %d times before their delays had passed", poison, n)
	}
	no.remove()
	n, err := t.operator.Requeue(t.ctx, outbox.Filter{Topic: "poison", States: []string{outbox.Retry}}, 0)
	t.must(err, "requeue")
	if n != poison {
		t.error("requeue made %d of %d messages due", n, poison)
	}
	t.settleDown()
	if lost := eventsOf[relay.LeaseLost](r); len(lost) > 0 {
		t.error("the lease was lost %d times", len(lost))
	}
}

func badRoute(t *trial) {
	for _, keepsOrder := range []bool{false, true} {
		var bad []outbox.Message
		var others int
		for i := range 40 {
			m := t.message([]string{"", "a", "b", "c"}[i%4])
			if i%8 == 4 { // the key is none
				m.Topic = []string{"nowhere", "broken"}[i/8%2]
				bad = append(bad, m)
			} else {
				others++
			}
			t.enqueueAll(m)
		}
		before := t.broker.count()
		r := t.startWith(relayWith{
			around: func(p publisher) relay.Publisher {
				routes := relay.PublisherFunc(func(ctx context.Context, messages []relay.Message) []error {
					errs := make([]error, len(messages))
					for i := range messages {
						switch messages[i].Topic {
						case "nowhere":
							errs[i] = relay.Permanent(errors.New("there is no route for the topic"))
						case "broken":
							panic("the route is broken")
						default:
							errs[i] = p.Publish(ctx, messages[i:i+1])[0]
						}
					}
					return errs
				})
				if keepsOrder {
					return struct {
						relay.Publisher
						orderKeeper
					}{routes, orderKeeper{}}
				}
				return routes
			},
			config: func(c *relay.Config) {
				patient(c)
				c.MaxAttempts = 3
				if keepsOrder {
					c.PublishSize = 1 // a panic is the failure of the whole call
				}
			},
		})
		t.await("the others to be published", func() bool { return t.broker.count() == before+others })
		t.await("the bad ones to be dead", func() bool { s := t.stats(); return s.Dead == int64(len(bad)) && s.Ready+s.Retry == 0 })
		dead := t.parked(outbox.Filter{All: true})
		for i := range dead {
			if dead[i].Topic == "conformance" || dead[i].Reason == "" {
				t.error("a message of topic %q is %s with the reason %q", dead[i].Topic, dead[i].State, dead[i].Reason)
			}
		}
		r.stop()
		_, err := t.operator.Requeue(t.ctx, outbox.Filter{All: true}, 0)
		t.must(err, "requeue")
		repaired := t.start(patient)
		t.await("the bad ones to be published", func() bool { return t.broker.count() == before+others+len(bad) })
		t.awaitEmpty()
		repaired.stop()
	}
	t.settleDown()
	t.noDuplicates()
}

// orderKeeper makes a publisher of single messages one that keeps order, which
// it does anyway.
type orderKeeper struct{}

// KeepsOrder implements [relay.Orderer].
func (orderKeeper) KeepsOrder() bool { return true }

func corruptHeaders(t *trial) {
	texts := []string{`not JSON`, `{"a":1}`, `["a"]`, `{"a":"b"`, `"a"`, ``}
	t.enqueue("healthy", 3)
	corrupt, refused := 0, 0
	for i, text := range texts {
		key := fmt.Sprintf("corrupt-%d", i)
		m := t.message(key)
		hash := dialect.KeyHash(key)
		row := dialect.Message{
			ID: m.ID, Lane: dialect.LaneOfKey(hash, t.tables.Lanes), Topic: m.Topic, Type: m.Type, ContentType: m.ContentType,
			Payload: m.Payload, Headers: text, Revision: m.Revision,
		}
		row.Key.V, row.Key.Valid = key, true
		row.KeyHash.V, row.KeyHash.Valid = hash, true
		w := t.begin()
		if err := t.store().Insert(t.ctx, w.tx, []dialect.Message{row}); err != nil {
			refused++ // by the engine: just as well
			w.rollBack()
			continue
		}
		w.enqueue(t.message(key))
		w.commit()
		corrupt++
		t.enqueue("healthy", 3)
	}
	t.note("the engine itself refused %d of %d texts", refused, len(texts))
	t.start(patient)
	t.await("the healthy messages to be published", func() bool { return t.broker.count() == 3*(corrupt+1) })
	t.await("the corrupt rows to be dead", func() bool { s := t.stats(); return s.Ready+s.Retry == 0 && s.Dead == int64(corrupt) })
	for _, p := range t.parked(outbox.Filter{All: true, States: []string{outbox.Dead}}) {
		if p.Attempts != 1 || p.Reason == "" {
			t.error("a corrupt row is dead after %d attempts with the reason %q", p.Attempts, p.Reason)
		}
	}
	n, err := t.operator.Discard(t.ctx, outbox.Filter{All: true}, 0)
	t.must(err, "discard")
	if n != corrupt {
		t.error("%d of %d corrupt rows were discarded", n, corrupt)
	}
	t.settleDown()
	t.noDuplicates()
}

func holdIsCheap(t *trial) {
	depth, others := t.size(100_000, 2_000), t.size(10_000, 500)
	var reads atomic.Int64
	var mu sync.Mutex
	held := make(map[int64]int)
	d := hooked(reading(t.target.Dialect, func(_ string, rows []dialect.Row) {
		reads.Add(int64(len(rows)))
	}), hooks{after: func(_ context.Context, o op, ok bool, err error) error {
		if o.name == "settle" && ok && err == nil {
			mu.Lock()
			defer mu.Unlock()
			for _, row := range o.settlement.Hold {
				held[row.Place]++
			}
		}
		return err
	}})
	config := func(c *relay.Config) { patient(c); c.Batch = 500 }

	// How long other keys take: first with nothing else there.
	speed := func() time.Duration {
		before := t.broker.count()
		r := t.startWith(relayWith{dialect: d, config: config})
		began := time.Now()
		t.produce(load{messages: others, keys: 100, perTx: 100})
		t.awaitGrowth("the other keys' messages to be published", int64(before+others), func() int64 { return int64(t.broker.count()) })
		t.await("them to be settled", func() bool { return t.stats().Ready == 0 })
		took := time.Since(began)
		r.stop()
		return took
	}
	alone := speed()

	no := t.broker.when(ofKey("blocked"), refuse(relay.Permanent(errRefused)))
	blocked := []outbox.Message{t.message("blocked")}
	t.enqueueUnseen(blocked...)
	r := t.startWith(relayWith{dialect: d, config: config})
	t.await("the key to be blocked", func() bool { return t.stats().Dead == 1 })
	t.do("enqueued %d messages of the blocked key", depth)
	for len(blocked) <= depth {
		batch := make([]outbox.Message, min(depth+1-len(blocked), 1000))
		for i := range batch {
			batch[i] = t.message("blocked")
		}
		t.enqueueUnseen(batch...)
		blocked = append(blocked, batch...)
	}
	t.awaitGrowth("all messages behind the dead one to be held", int64(depth), func() int64 {
		mu.Lock()
		defer mu.Unlock()
		return int64(len(held))
	})
	r.stop()
	for seq, n := range held {
		if n != 1 {
			t.error("seq %d was moved %d times", seq, n)
		}
	}
	if s := t.stats(); s.Held != int64(depth) || s.Ready != 0 {
		t.error("%d of %d messages are held, %d ready", s.Held, depth, s.Ready)
	}

	// A machine that stands still for a while may hit one of three, not all.
	most := 5*alone + 2*time.Second
	var beside time.Duration
	for range 3 {
		reads.Store(0)
		beside = speed()
		if n := reads.Load(); n != int64(others) {
			t.error("to publish %d messages %d were read while %d were held", others, n, depth)
		}
		if beside <= most {
			break
		}
	}
	t.note("%d messages of other keys took %v alone, %v beside %d held ones", others, alone.Round(time.Millisecond), beside.Round(time.Millisecond), depth)
	if beside > most {
		t.error("%d messages of other keys took %v beside %d held ones, %v alone", others, beside, depth, alone)
	}

	// And out again: each is read and published once, in order.
	no.remove()
	t.record(committed, blocked...)
	reads.Store(0)
	n, err := t.operator.Requeue(t.ctx, outbox.Filter{Key: "blocked"}, 0)
	t.must(err, "requeue")
	if n != 1 {
		t.error("requeue changed %d messages instead of 1", n)
	}
	t.startWith(relayWith{dialect: d, config: config})
	t.settleDown()
	t.noDuplicates()
	if n, most := reads.Load(), int64(depth)*11/10+10; n > most {
		t.error("to publish %d held messages %d were read", depth, n)
	}
}

// enqueueUnseen commits messages that the history is told of later.
func (t *trial) enqueueUnseen(messages ...outbox.Message) {
	err := t.box.InTx(t.ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
		_, err := t.box.Enqueue(ctx, tx, messages...)
		return err
	})
	t.must(err, "enqueue %d messages", len(messages))
}

// awaitGrowth waits until count has reached most. As long as it grows, it is
// patient.
func (t *trial) awaitGrowth(what string, most int64, count func() int64) {
	for n := count(); n < most; {
		began, before := time.Now(), n
		t.await(what, func() bool {
			n = count()
			return n >= most || (n > before && time.Since(began) > t.target.Patience/2)
		})
	}
}

// timetable notes when messages were tried.
type timetable struct {
	mu    sync.Mutex
	tries map[uuid.UUID][]attempt
}

type attempt struct{ began, ended time.Time }

// of is a reaction whose times are noted.
func (tt *timetable) of(react reaction) reaction {
	return func(c *call) error {
		began := time.Now()
		err := react(c)
		tt.mu.Lock()
		defer tt.mu.Unlock()
		if tt.tries == nil {
			tt.tries = make(map[uuid.UUID][]attempt)
		}
		tt.tries[c.message.ID] = append(tt.tries[c.message.ID], attempt{began, time.Now()})
		return err
	}
}

// failures is how many tries were noted of messages that were tried.
func (tt *timetable) failures() (tries, messages int) {
	tt.mu.Lock()
	defer tt.mu.Unlock()
	for _, all := range tt.tries {
		tries += len(all)
	}
	return tries, len(tt.tries)
}

// keepsSchedule demands that no attempt came before the delay had passed that
// the relays say was set after the one before.
func (t *trial) keepsSchedule(tt *timetable, relays ...*process) (checked int) {
	const tolerance = 10 * time.Millisecond
	for _, r := range relays {
		for _, e := range eventsOf[relay.Failed](r) {
			tt.mu.Lock()
			tries := tt.tries[e.ID]
			tt.mu.Unlock()
			if e.Attempt >= len(tries) {
				continue // there was no next one
			}
			checked++
			gap := tries[e.Attempt].began.Sub(tries[e.Attempt-1].ended)
			if gap < e.Delay-tolerance-t.target.Dialect.Capabilities().TimeStep {
				t.error("attempt %d came %v after the failure before it, though the delay was %v", e.Attempt+1, gap, e.Delay)
			}
		}
	}
	return checked
}

func backoffGrows(t *trial) {
	const (
		messages, attempts = 40, 6
		least, most        = 16 * time.Millisecond, 128 * time.Millisecond
	)
	var tt timetable
	t.broker.when(anyMessage, tt.of(refuse(errRefused)))
	for range messages {
		t.enqueueUnseen(t.message(""))
	}
	r := t.start(patient, func(c *relay.Config) { c.MaxAttempts, c.RetryMin, c.RetryMax = attempts, least, most })
	t.await("every message to be dead", func() bool { return t.stats().Dead == messages })
	t.stopRelays()
	if tries, _ := tt.failures(); tries != messages*attempts {
		t.error("%d messages were tried %d times, not %d times each", messages, tries, attempts)
	}
	delays := make([][]time.Duration, attempts)
	for _, e := range eventsOf[relay.Failed](r) {
		delays[e.Attempt] = append(delays[e.Attempt], e.Delay)
	}
	mean := make([]time.Duration, attempts)
	for n := 1; n < attempts; n++ {
		ceiling := min(least<<(n-1), most)
		if len(delays[n]) != messages {
			t.error("attempt %d failed %d times instead of %d", n, len(delays[n]), messages)
			continue
		}
		for _, d := range delays[n] {
			mean[n] += d / messages
		}
		if longest := slices.Max(delays[n]); longest > ceiling+time.Millisecond {
			t.error("after attempt %d a delay was %v, above the ceiling %v", n, longest, ceiling)
		}
		if spread := slices.Max(delays[n]) - slices.Min(delays[n]); spread < ceiling/4 {
			t.error("after attempt %d all %d delays are within %v: there is no jitter", n, messages, spread)
		}
	}
	// Twice is far within what 40 samples tell of eight times.
	if mean[attempts-1] < 2*mean[1] {
		t.error("the mean delay does not grow: %v after the first attempt, %v after the last but one", mean[1], mean[attempts-1])
	}
	if n := t.keepsSchedule(&tt, r); n != messages*(attempts-1) {
		t.error("%d of %d delays could be checked", n, messages*(attempts-1))
	}
}

func backoffSurvivesRestart(t *trial) {
	const messages = 20
	var tt timetable
	t.broker.when(anyMessage, tt.of(refuse(errRefused)))
	t.enqueueAll(t.messages("", messages)...)
	long := func(c *relay.Config) {
		patient(c)
		c.RetryMin, c.RetryMax, c.MaxAttempts = 2*time.Second, 2*time.Second, 1000
	}
	first := t.start(long)
	t.await("every message to have failed", func() bool {
		_, failed := tt.failures()
		return failed == messages && t.stats().Ready == 0
	})
	first.stop()
	t.broker.when(anyMessage, tt.of(acceptIt))
	second := t.start(long)
	t.settleDown()
	t.noDuplicates()
	tries, _ := tt.failures()
	if n := t.keepsSchedule(&tt, first, second); n != tries-messages {
		t.error("%d of %d delays could be checked", n, tries-messages)
	}
	took, _ := t.broker.history()
	for i := range took {
		if n := len(tt.tries[took[i].id]); took[i].attempt != n {
			t.error("after the restart attempt %d was counted as number %d", n, took[i].attempt)
		}
	}
}

func retriesFollowOneSchedule(t *trial) {
	const messages, attempts = 8, 6
	var tt timetable
	t.broker.when(ofTopic("failing"), tt.of(refuse(errRefused)))
	for i := range messages {
		m := t.message([]string{"", fmt.Sprintf("failing-%d", i)}[i%2])
		m.Topic = "failing"
		t.enqueueUnseen(m)
	}
	relays := t.startMany(3, patient, func(c *relay.Config) {
		c.MaxAttempts, c.RetryMin, c.RetryMax, c.PollMax = attempts, 100*time.Millisecond, 400*time.Millisecond, 5*time.Millisecond
	})
	t.produce(load{messages: 100, keys: 20}) // so that all have something to do
	t.await("every failing message to be dead", func() bool { return t.stats().Dead == messages })
	t.settleDown()
	if tries, _ := tt.failures(); tries != messages*attempts {
		t.error("%d messages were tried %d times, not %d times each", messages, tries, attempts)
	}
	if n := t.keepsSchedule(&tt, relays...); n != messages*(attempts-1) {
		t.error("%d of %d delays could be checked", n, messages*(attempts-1))
	}
}

func backoffCountsFromFailure(t *trial) {
	const failing = 10
	slow := 1500 * time.Millisecond
	if raceEnabled {
		slow *= 3
	}
	var tt timetable
	end := t.gate()
	t.broker.when(ofTopic("failing"), tt.of(refuse(errRefused)))
	t.broker.when(ofTopic("slow"), after(end, acceptIt))
	m := t.message("")
	m.Topic = "slow"
	batch := []outbox.Message{m}
	for _, m := range t.messages("", failing) {
		m.Topic = "failing"
		batch = append(batch, m)
	}
	t.enqueueUnseen(batch...)
	r := t.start(patient, func(c *relay.Config) { c.RetryMin, c.RetryMax, c.PublishTimeout = time.Hour, time.Hour, time.Minute })
	t.await("the failing messages of the batch to fail while another is still under way", func() bool {
		failed := 0
		for _, e := range eventsOf[relay.Attempted](r) {
			failed += len(e.Messages)
		}
		return failed == failing && end.waiting() == 1
	})
	known := time.Now() // to the relay, too
	t.await("the batch to be slow", func() bool { return time.Since(known) > slow })
	end.open()
	t.await("the batch to be settled", func() bool { return t.stats().Retry == failing && len(eventsOf[relay.Failed](r)) == failing })
	t.stopRelays()

	delays := make(map[uuid.UUID]time.Duration)
	for _, e := range eventsOf[relay.Failed](r) {
		delays[e.ID] = e.Delay
	}
	asked := time.Now()
	list := t.parked(outbox.Filter{All: true})
	told := time.Now()
	for i := range list {
		p := &list[i]
		at := tt.tries[p.ID][0].ended
		due := delays[p.ID] // from the failure on
		if early := due - told.Sub(at); p.DueIn.V < early-10*time.Millisecond {
			t.error("a message is due in %v, %v too early: its delay was %v and it failed %v ago", p.DueIn.V, early-p.DueIn.V, due, told.Sub(at))
		}
		// One whose time came before the batch was settled is due at once.
		if late := max(0, due-asked.Sub(known)+slow/2); p.DueIn.V > late {
			t.error("a message is due in %v, %v too late: its delay was %v and it failed %v ago", p.DueIn.V, p.DueIn.V-late, due, asked.Sub(known))
		}
	}
	if len(list) != failing {
		t.error("%d of %d messages are parked", len(list), failing)
	}
}

// messages makes n messages of a key.
func (t *trial) messages(key string, n int) []outbox.Message {
	all := make([]outbox.Message, n)
	for i := range all {
		all[i] = t.message(key)
	}
	return all
}
