package conformance

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/relay"
)

// turnScenarios: how a relay begins, ends and goes on, and what waits for its time.
var turnScenarios = []Scenario{
	{
		Name:    "Relay/GracefulStop",
		Promise: "a relay that is stopped in the middle of a batch publishes nothing more, settles what is accepted, and frees its lanes at once",
		run:     gracefulStop,
	},
	{
		Name:    "Relay/BackToWorkAtOnce",
		Promise: "as long as there is work the next batch follows without a pause, and a wake-up ends the pause",
		lanes:   2, // fewer than workers, so that a worker that is done finds others idle
		run:     backToWork,
	},
	{
		Name:    "Relay/LaneMovesInMidBatch",
		Promise: "when a lane's ownership moves in the middle of a batch, the order of first publishes holds within each key, even when the first owner's last publish comes late",
		lanes:   1,
		run:     laneMoves,
	},
	{
		Name:    "Relay/NewIsClaimableAtOnce",
		Promise: "a new message is found by the next poll, and what is due at once is due in the next statement, which the poll tells",
		lanes:   1,
		run:     claimableAtOnce,
	},
	{
		Name:    "Relay/ReadsIntoRoom",
		Promise: "what is read is the same whatever the memory holds that it is read into, and the next read does not change it",
		lanes:   1,
		run:     readsIntoRoom,
	},
	{
		Name:    "Relay/Delayed",
		Promise: "a delayed message is not early; a keyed one blocks nothing before it is due, and has its place in the order from then on",
		run:     delayed,
	},
	{
		Name:    "Relay/DelayedTwinIsSetAside",
		Promise: "a delayed message that finds its id ready when it is due is dead with a reason, and the ready one is published once",
		lanes:   1,
		run:     delayedTwin,
	},
}

func gracefulStop(t *trial) {
	const messages, workers, calls = 200, 2, 4
	t.enqueueAll(t.messages("", messages)...)
	hold := t.gate()
	held := t.broker.when(anyMessage, after(hold, acceptIt))
	r := t.start(patient, func(c *relay.Config) {
		c.Workers, c.PublishConcurrency, c.PublishSize, c.Grace, c.PublishTimeout = workers, calls, 1, time.Minute, time.Minute
	})
	t.await("as many publishes to be under way as there may be", func() bool { return hold.waiting() == workers*calls })
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		r.stop()
	}()
	t.await("the relay to take note of the stop", func() bool { return len(eventsOf[relay.Stopping](r)) > 0 })
	hold.open()
	t.await("the relay to stop", func() bool {
		select {
		case <-stopped:
			return true
		default:
			return false
		}
	})
	if n := held.seen(); n != workers*calls {
		t.error("%d messages were published, of which %d were under way when the relay was stopped", n, workers*calls)
	}
	if s := t.stats(); s.Ready != messages-workers*calls || s.Retry+s.Held+s.Dead != 0 {
		t.error("after the stop %d messages are ready and %d wait for a retry, though %d of %d were accepted", s.Ready, s.Retry, workers*calls, messages)
	} else if s.LanesHeld+s.LanesExpired != 0 {
		t.error("after the stop %d lanes are leased and %d expired", s.LanesHeld, s.LanesExpired)
	}

	// Stopped while a claim is under way, which takes effect.
	var claiming *process
	started := make(chan struct{})
	d := hooked(t.target.Dialect, hooks{after: func(ctx context.Context, o op, ok bool, err error) error {
		if o.name != "claim" || !ok || err != nil {
			return err
		}
		<-started
		claiming.cancel()
		return ctx.Err() // what a driver says whose context ended meanwhile
	}})
	claiming = t.startWith(relayWith{dialect: d, config: patient})
	close(started)
	t.await("a relay to be stopped while it claims", claiming.ended)
	if s := t.stats(); s.LanesHeld+s.LanesExpired != 0 {
		t.error("after a stop in the middle of a claim %d lanes are leased and %d expired", s.LanesHeld, s.LanesExpired)
	}
	t.start(patient)
	t.settleDown()
	t.noDuplicates()
}

func backToWork(t *trial) {
	var polls atomic.Int64
	d := hooked(t.target.Dialect, hooks{after: func(_ context.Context, o op, _ bool, err error) error {
		if o.name == "poll" {
			polls.Add(1)
		}
		return err
	}})
	const pause = 4 * time.Minute
	t.startWith(relayWith{dialect: d, config: func(c *relay.Config) {
		patient(c)
		// Many small batches, and a turn that is over after each.
		c.Workers, c.Batch, c.Turn, c.PollMin, c.PollMax = 3, 10, time.Millisecond, pause, pause
	}})
	t.await("the relay to have found nothing", func() bool { return polls.Load() > 0 })
	began := time.Now()
	t.produce(load{messages: t.size(2000, 300), keys: 50, perTx: 100})
	t.awaitPublished()
	if took := time.Since(began); took > pause/4 {
		t.error("the messages took %v: the relay waited for a tick", took)
	}
	t.settleDown()
	t.noDuplicates()
}

func laneMoves(t *trial) {
	for round := range t.size(3, 2) {
		// The third message of a key comes to the broker late, when it has had it
		// from the next owner.
		keys := []string{"a", "b", "c", "d"}
		var stuck uuid.UUID
		for n := range 6 {
			for _, key := range keys {
				m := t.message(key)
				if n == 2 && key == keys[round%len(keys)] {
					stuck = m.ID
				}
				t.enqueueAll(m)
			}
		}
		var cut atomic.Bool // the first owner's way to the database
		d := hooked(t.target.Dialect, hooks{before: func(_ context.Context, o op) error {
			if cut.Load() && (o.name == "extend" || o.name == "settle") {
				return inject(dialect.Transient, "no connection")
			}
			return nil
		}})
		var last atomic.Int64 // what the broker had taken with the late publish
		t.broker.first(1, ofID(stuck), func(c *call) error {
			cut.Store(true)
			<-c.ctx.Done()
			// The relay leaves it behind after a second.
			for late := time.Now(); t.broker.count(stuck) == 0 && time.Since(late) < t.target.Patience; {
				time.Sleep(poll)
			}
			c.accept()
			last.Store(int64(t.broker.count()))
			return nil // as if all was well
		})
		old := t.startWith(relayWith{dialect: d, config: func(c *relay.Config) { c.Workers, c.PublishTimeout = 1, time.Minute }})
		t.await("the first owner to lose its way to the database in the middle of a batch", cut.Load)
		next := t.start()
		t.awaitPublished()
		t.await("the lane to be empty", func() bool { return t.stats().Ready == 0 })
		cut.Store(false)
		t.await("the first owner to find its lease lost", func() bool { return len(eventsOf[relay.LeaseLost](old)) > 0 })
		t.await("the late publish to come in", func() bool { return last.Load() > 0 })
		old.stop()
		next.stop()
		took, _ := t.broker.history()
		for _, a := range took[last.Load():] {
			if a.relay == old.name {
				t.error("after its lease was over the first owner went on with revision %d of key %q", a.revision, a.key)
			}
		}
	}
	t.verify()
}

// pollsDue sees to it that a poll offers the one lane, and says that something is due.
func (t *trial) pollsDue(what string) {
	lanes, err := t.store().Poll(t.ctx, t.db, "hand", 1)
	t.must(err, "poll")
	if len(lanes) != 1 || !lanes[0].Due {
		t.error("%s is due, and the poll does not say so: %+v", what, lanes)
	}
}

func readsIntoRoom(t *trial) {
	var all []outbox.Message
	for i := range 10 {
		full, plain, long := t.message(fmt.Sprint("full ", i)), t.message(fmt.Sprint("plain ", i)), t.message("")
		full.Headers = map[string]string{"a": "b"}
		long.Payload = slices.Repeat(long.Payload, 4<<10)
		all = append(all, full, outbox.Message{ID: t.newID(t.rand), Topic: "bare", Type: "bare"}, plain, long)
	}
	t.enqueueAll(all...)
	lease := t.claim("hand")
	rows, err := t.store().Ready(t.ctx, t.db, 0, 0, dialect.Limit{Rows: len(all)})
	t.must(err, "read ready")
	if len(rows) != len(all) {
		t.fail("the lane has %d messages and %d are read", len(all), len(rows))
	}
	var tried dialect.Settlement
	for _, row := range rows[len(rows)/2:] {
		tried.Failed = append(tried.Failed, dialect.Failure{Ref: row.Ref(), Attempts: 1, Blocking: row.KeyHash.Valid, Reason: "tried"})
	}
	ok, err := t.store().Settle(t.ctx, t.db, lease, leaseTime, tried)
	t.must(err, "settle")
	if !ok {
		t.fail("the lease was lost")
	}
	// What was there before may show in nothing that is read.
	other := dialect.Row{Message: rows[0].Message, Seq: -1, Pos: -1, Attempts: 77, CreatedAt: time.Unix(1, 0), Age: time.Hour, Blocked: true}
	other.Key, other.KeyHash = sql.Null[string]{V: "other", Valid: true}, sql.Null[int64]{V: 77, Valid: true}
	other.Payload, other.Headers, other.Revision, other.Replay, other.Lane = []byte("other"), `{"other":"x"}`, 77, 77, 77
	for _, name := range []string{"ready", "due"} {
		read := func(limit dialect.Limit) ([]dialect.Row, error) {
			if name == "due" {
				return t.store().Due(t.ctx, t.db, 0, limit)
			}
			return t.store().Ready(t.ctx, t.db, 0, 0, limit)
		}
		for _, size := range []int{1, 5, len(all), 2 * len(all)} {
			room := slices.Repeat([]dialect.Row{other}, size)
			var before []dialect.Row
			for again := range 3 {
				limit := dialect.Limit{Rows: len(all), Bytes: 1 << 20}
				want, err := read(limit)
				t.must(err, "read %s", name)
				limit.Room = room
				got, err := read(limit)
				t.must(err, "read %s into memory for %d", name, size)
				if len(want) == 0 || len(got) != len(want) {
					t.fail("%d %s messages are read, and %d into memory for %d, the time %d", len(want), name, len(got), size, again)
				}
				for i := range want {
					got[i].Age = want[i].Age // which grows
					if !reflect.DeepEqual(got[i], want[i]) {
						t.fail("message %d of those that are %s is not the same when it is read into memory for %d", i, name, size)
					}
					if before != nil && !bytes.Equal(before[i].Payload, want[i].Payload) {
						t.fail("the payload of message %d of those that are %s changed with the next read", i, name)
					}
				}
				before = slices.Clone(got) // a publisher may keep what it was given
			}
		}
	}
	t.must(t.store().Release(t.ctx, t.db, lease), "release")
}

func claimableAtOnce(t *trial) {
	db, store := t.db, t.store()
	for range 20 {
		t.enqueueUnseen(t.message("k"))
		lanes, err := store.Poll(t.ctx, db, "hand", 1)
		t.must(err, "poll")
		if len(lanes) != 1 {
			t.fail("the poll right after a commit offers no lane")
		}
		if lanes[0].Due {
			t.error("the poll says that a parked message is due, and there is none")
		}
		before := lanes[0].Epoch
		lease := t.claim("hand")
		lanes, err = store.Poll(t.ctx, db, "hand", 1)
		t.must(err, "poll")
		if len(lanes) != 1 || lanes[0].Epoch != lease.Epoch || lease.Epoch <= before {
			t.error("the claim has epoch %d, after %d, and the poll says %+v", lease.Epoch, before, lanes)
		}
		rows, err := store.Ready(t.ctx, db, 0, 0, dialect.Limit{Rows: 10})
		t.must(err, "read ready")
		if len(rows) != 1 {
			t.fail("the read right after a commit finds %d messages instead of 1", len(rows))
		}
		if rows[0].Age < 0 || rows[0].Age > t.target.Patience {
			t.error("a new message is %v old", rows[0].Age)
		}
		ok, err := store.Settle(t.ctx, db, lease, time.Minute, dialect.Settlement{
			Failed: []dialect.Failure{{Ref: rows[0].Ref(), Attempts: 1, Blocking: true, Reason: "tried"}},
		})
		t.must(err, "settle")
		due, err := store.Due(t.ctx, db, 0, dialect.Limit{Rows: 10})
		t.must(err, "read due")
		if !ok || len(due) != 1 {
			t.fail("a retry without a delay is not due in the next statement")
		}
		t.pollsDue("a retry")
		ok, err = store.Settle(t.ctx, db, lease, time.Minute, dialect.Settlement{
			Archive: true, PublishedParked: []dialect.Ref{due[0].Ref()},
		})
		t.must(err, "settle")
		if !ok {
			t.fail("the lease was lost")
		}
		t.must(store.Release(t.ctx, db, lease), "release")
	}
	soon := t.message("")
	soon.Delay = time.Microsecond
	t.enqueueAll(soon)
	t.await("a scheduled message to be due", func() bool {
		lanes, err := store.Poll(t.ctx, db, "hand", 1)
		t.must(err, "poll")
		return len(lanes) > 0
	})
	t.pollsDue("a scheduled message")
	// A ready message beside it must not hide it.
	t.enqueue("beside", 1)
	t.pollsDue("a scheduled message beside a ready one")
	// A hundred within a moment, each in a transaction of its own, and a hundred
	// that come due at the same time.
	for range 100 {
		t.enqueue("same moment", 1)
	}
	same := t.messages("due together", 100)
	for i := range same {
		same[i].Delay = time.Millisecond
	}
	t.enqueueAll(same...)
	t.start(patient)
	t.settleDown()
	t.noDuplicates()
}

func delayed(t *trial) {
	var tt timetable
	t.broker.when(anyMessage, tt.of(acceptIt))
	t.startMany(2, patient)
	const delay = 400 * time.Millisecond
	asked := make(map[uuid.UUID]time.Time)
	delays := make(map[uuid.UUID]time.Duration)
	enqueue := func(messages ...outbox.Message) {
		at := time.Now()
		t.enqueueAll(messages...)
		for i := range messages {
			asked[messages[i].ID], delays[messages[i].ID] = at, messages[i].Delay
		}
	}
	// The delayed one is enqueued first and is the third in the order.
	direct := t.messages("k", 2)
	late := t.message("k")
	late.Delay = delay
	enqueue(late, direct[0], direct[1])
	// One whose key is blocked when it is due waits behind.
	blocked := t.message("blocked")
	no := t.broker.when(ofID(blocked.ID), refuse(errRefused))
	behind := t.message("blocked")
	behind.Delay = time.Millisecond
	enqueue(behind, blocked)
	for range 20 {
		m := t.message("")
		m.Delay = time.Duration(t.rand.IntN(int(delay)))
		enqueue(m)
	}
	t.await("the delayed message to be published", func() bool { return t.broker.count(late.ID) == 1 })
	enqueue(t.message("k"))
	t.await("the message behind the blocked one to be held", func() bool { return t.stats().Held == 1 })
	no.remove()
	t.await("the blocked message to come back, by a requeue if it died", func() bool {
		_, err := t.operator.Requeue(t.ctx, outbox.Filter{Key: "blocked"}, 0)
		t.must(err, "requeue")
		return t.allPublished()
	})
	t.settleDown()
	t.noDuplicates()
	// Both clocks run alike; the database's may round.
	tolerance := t.target.Dialect.Capabilities().TimeStep + 2*time.Millisecond
	for id, at := range asked {
		if waited := tt.tries[id][0].began.Sub(at); waited < delays[id]-tolerance {
			t.error("a message delayed by %v was published after %v", delays[id], waited)
		}
	}
}

func delayedTwin(t *trial) {
	m := t.message("k")
	t.enqueueAll(m)
	twin := m
	twin.Delay = time.Millisecond
	t.enqueueUnseen(twin)
	lease := t.claim("hand")
	t.await("the delayed one to be set aside", func() bool {
		moved, ok, err := t.store().Surface(t.ctx, t.db, lease, 10)
		t.must(err, "surface")
		if moved != 0 || !ok {
			t.fail("surface moved %d messages under an id that is ready (lease held: %v)", moved, ok)
		}
		return t.stats().Dead == 1
	})
	t.must(t.store().Release(t.ctx, t.db, lease), "release")
	for _, p := range t.parked(outbox.Filter{All: true}) {
		if p.State != outbox.Dead || p.Reason == "" || p.ID != [16]byte(m.ID) {
			t.error("the delayed one is %s with the reason %q", p.State, p.Reason)
		}
	}
	t.start(patient)
	t.await("the ready one to be published", func() bool { return t.broker.count(m.ID) == 1 })
	n, err := t.operator.Discard(t.ctx, outbox.Filter{IDs: []uuid.UUID{m.ID}}, 0)
	t.must(err, "discard")
	if n != 1 {
		t.error("discard removed %d messages instead of 1", n)
	}
	t.enqueue("k", 2)
	t.settleDown()
	t.noDuplicates()
	if len(t.parked(outbox.Filter{All: true})) != 0 {
		t.error("something is left parked: %s", fmt.Sprint(t.stats()))
	}
}
