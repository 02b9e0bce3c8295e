package conformance

import (
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

// keepScenarios: what is kept of what is done, and for how long.
var keepScenarios = []Scenario{
	{
		Name:    "Purge/OnlyDone",
		Promise: "a purge removes done messages that are old enough and nothing else, no more at a time than asked for, beside producers and relays",
		lanes:   1,
		run:     purgeOnlyDone,
	},
	{
		Name:    "Purge/OneRelayOfMany",
		Promise: "of all relays one purges in each period",
		run:     purgeOneOfMany,
	},
	{
		Name:    "Purge/ProgressesUnderLoad",
		Promise: "while producers write and relays publish, the purge keeps up, and producers do not wait for it",
		timeout: 10 * time.Minute,
		run:     purgeUnderLoad,
	},
	{
		Name:    "Purge/PartitionsLoseNothing",
		Promise: "done is put into partitions, and partitions are made and dropped, by several at once, beside producers and relays: nothing is lost or published twice, and what is kept is found as before",
		Needs:   []Need{Partitions},
		run:     partitionsLoseNothing,
	},
}

// fill passes n messages through an outbox with one lane, by inserting them and
// settling them as published, kept in the done table or not.
func (t *trial) fill(box *outbox.Outbox, n int, keep bool) {
	const most = 1000
	store, db := box.Store(), box.DB()
	epoch, ok, err := store.Claim(t.ctx, db, 0, holder, 10*time.Minute)
	t.must(err, "claim lane 0")
	if !ok {
		t.fail("lane 0 could not be claimed")
	}
	lease := dialect.Lease{Lane: 0, Owner: holder, Epoch: epoch}
	payload := make([]byte, 100)
	var after int64
	for done := 0; done < n; {
		t.do("passed messages through: %d of %d", done, n)
		batch := make([]outbox.Message, min(most, n-done))
		for i := range batch {
			batch[i] = outbox.Message{Topic: "filled", Type: "filled", Key: fmt.Sprint("key-", i%50), Payload: payload}
		}
		tx, err := db.BeginTx(t.ctx, nil)
		t.must(err, "begin")
		_, err = box.Enqueue(t.ctx, tx, batch...)
		t.must(err, "enqueue")
		t.must(tx.Commit(), "commit")
		rows, err := store.Ready(t.ctx, db, 0, after, dialect.Limit{Rows: most})
		t.must(err, "read ready")
		if len(rows) != len(batch) {
			t.fail("%d of %d messages are ready", len(rows), len(batch))
		}
		after = rows[len(rows)-1].Seq
		ok, err := store.Settle(t.ctx, db, lease, 10*time.Minute, dialect.Settlement{Archive: keep, Published: refs(rows)})
		t.must(err, "settle")
		if !ok {
			t.fail("a settle was refused, and the lease is the lane's")
		}
		done += len(batch)
	}
	t.must(store.Release(t.ctx, db, lease), "release")
}

func purgeOnlyDone(t *trial) {
	old := time.Now()
	n := t.size(20_000, 3000)
	t.fill(t.box, n, true)
	second := t.second() // whose done messages are not the first one's
	t.fill(second, 10, true)
	// One of each state.
	lease := t.hold()
	t.enqueueAll(t.message("retry"), t.message("retry"), t.message("dead"), t.message("dead"), t.message(""))
	rows := t.ready()
	t.settle(lease, dialect.Settlement{
		Hold: []dialect.Ref{rows[1].Ref(), rows[3].Ref()},
		Failed: []dialect.Failure{
			{Ref: rows[0].Ref(), Attempts: 1, Delay: time.Hour, Blocking: true, Reason: "not yet"},
			{Ref: rows[2].Ref(), Attempts: 1, Dead: true, Blocking: true, Reason: "never"},
		},
	})
	delayed := t.message("delayed")
	delayed.Delay = time.Hour
	t.enqueueAll(delayed)
	t.must(t.store().Release(t.ctx, t.db, lease), "release")

	if n, err := t.operator.Purge(t.ctx, time.Since(old)+time.Hour, 0); err != nil || n != 0 {
		t.error("a purge of what is older than anything took %d messages: %v", n, err)
	}
	// Bounded, beside producers that go on and a relay that publishes.
	const most = 200
	r := t.start(patient, func(c *relay.Config) { c.MaxAttempts = 1000 })
	stop := t.keepProducing(10, 5)
	t.await("producers and a relay to be at work", func() bool { return t.broker.count() > 50 })
	purged := 0
	for range n / most / 2 {
		got, err := t.store().Purge(t.ctx, t.db, 0, most)
		t.must(err, "purge")
		if got > most {
			t.fail("a purge of at most %d messages took %d", most, got)
		}
		purged += got
	}
	if purged < n/2-most {
		t.error("purges of at most %d messages took %d, though %d are there", most, purged, n)
	}
	committed, _, _ := stop()
	t.note("%d transactions were committed beside the purges", committed)
	t.awaitAllBut(5)
	r.stop()
	// The rest, at once: only done messages go.
	before := t.snapshot()
	if _, err := t.operator.Purge(t.ctx, 0, 0); err != nil {
		t.error("purge: %v", err)
	}
	if after := t.snapshot(); after != before {
		t.error("a purge changed what waits:\nbefore %s\n after %s", before, after)
	}
	if n, err := t.operator.Replay(t.ctx, everything, 0); err != nil || n != 0 {
		t.error("after everything was purged a replay found %d messages: %v", n, err)
	}
	if n, err := second.Replay(t.ctx, everything, 0); err != nil || n != 10 {
		t.error("a purge of one outbox left %d of the other's 10 done messages: %v", n, err)
	}
	// And what waited is delivered.
	for _, state := range []string{dialect.Dead, dialect.Retry, dialect.Scheduled} {
		_, err := t.operator.Requeue(t.ctx, outbox.Filter{States: []string{state}}, 0)
		t.must(err, "requeue what is %s", state)
	}
	t.start()
	t.settleDown()
}

// awaitAllBut waits until all but n of the committed messages are published and
// nothing is ready.
func (t *trial) awaitAllBut(n int) {
	t.await("all but the parked messages to be published", func() bool {
		t.mu.Lock()
		wrote := 0
		for i := range t.wrote {
			if t.wrote[i].fate == committed {
				wrote++
			}
		}
		t.mu.Unlock()
		return t.broker.count() >= wrote-n && t.stats().Ready == 0
	})
}

func purgeOneOfMany(t *trial) {
	// All ask at the same moment.
	for range t.size(10, 3) {
		var mine atomic.Int64
		var all sync.WaitGroup
		start := make(chan struct{})
		const every = 300 * time.Millisecond
		for range 5 {
			all.Go(func() {
				<-start
				ok, err := t.store().ClaimPurge(t.ctx, t.db, every)
				if err != nil {
					t.error("claim the purge: %v", err)
				}
				if ok {
					mine.Add(1)
				}
			})
		}
		began := time.Now()
		close(start)
		all.Wait()
		took := time.Since(began)
		if n := mine.Load(); n < 1 || n > 1+int64(took/every) {
			t.error("of five that asked at the same moment %d were told to purge", n)
		}
		t.await("the period to be over", func() bool { return time.Since(began) > took+every+t.step() })
	}
	// Relays: each looks about once in a period, and one of them does it.
	began := time.Now()
	relays := t.startMany(3, patient, func(c *relay.Config) { c.PurgeEvery, c.Retention = time.Second, time.Millisecond })
	t.produce(load{messages: 200, keys: 20})
	purges := func() (times, messages int) {
		for _, r := range relays {
			for _, e := range eventsOf[relay.Purged](r) {
				times++
				messages += e.Messages
			}
		}
		return times, messages
	}
	t.awaitPublished()
	t.await("the relays to have purged everything", func() bool { _, n := purges(); return n == 200 })
	t.await("three periods to be over", func() bool { return time.Since(began) > 3*time.Second })
	times, messages := purges()
	// At least half a period lies between two purges.
	if most := 1 + int(time.Since(began)/(time.Second/2)); times > most {
		t.error("three relays purged %d times in %v, once a second is meant", times, time.Since(began).Round(time.Millisecond))
	}
	if messages != 200 {
		t.error("the relays purged %d of 200 messages", messages)
	}
	t.settleDown()
	t.noDuplicates()
}

func purgeUnderLoad(t *trial) {
	r := t.start(patient, func(c *relay.Config) { c.Retention, c.PurgeEvery = 300*time.Millisecond, time.Second })
	enqueued := 0
	phase := func(until func(time.Duration) bool) (took []time.Duration) {
		for began := time.Now(); !until(time.Since(began)); {
			w := t.begin()
			for range 20 {
				w.messages = append(w.messages, t.message(fmt.Sprint("key-", t.rand.IntN(20))))
			}
			before := time.Now()
			_, err := t.box.Enqueue(t.ctx, w.tx, w.messages...)
			t.must(err, "enqueue")
			w.commit()
			took = append(took, time.Since(before))
			enqueued += len(w.messages)
			select { // so that the relay keeps up
			case <-t.ctx.Done():
				t.fail("the time is over")
			case <-time.After(2 * time.Millisecond):
			}
		}
		return took
	}
	purged := func() (n int) {
		for _, e := range eventsOf[relay.Purged](r) {
			n += e.Messages
		}
		return n
	}
	length := max(3, time.Duration(t.size(6, 3))) * time.Second
	quiet := phase(func(d time.Duration) bool { return d > 500*time.Millisecond }) // before the first purge
	// The load goes on until a purge has got through: a slow disk takes its time for one.
	loud := phase(func(d time.Duration) bool { return d > length && purged() > 0 || d > t.target.Patience })
	during := purged()
	if during == 0 {
		t.error("in %v of load nothing was purged, though the retention is 300ms", t.target.Patience)
	}
	t.awaitPublished()
	t.await("the purge to come to its end", func() bool { return purged() == enqueued })
	calm, busy := quantile(quiet, 0.99), quantile(loud, 0.99)
	t.note("%d of %d messages were purged under load; producers' p99 was %v before and %v beside it", during, enqueued, calm.Round(time.Microsecond), busy.Round(time.Microsecond))
	if busy > 10*calm+time.Second/4 {
		t.error("producers' p99 beside the purge was %v, and %v without, which other work on the machine can do, too", busy, calm)
	}
	t.settleDown()
	t.noDuplicates()
}

// quantile is the q-quantile of durations.
func quantile(list []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(list))
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func partitionsLoseNothing(t *trial) {
	kept := func() int {
		n, err := t.operator.ReplayWith(t.ctx, everything, outbox.ReplayOptions{DryRun: true})
		t.must(err, "count what is kept")
		return n
	}
	keep := func() {
		if _, err := t.box.KeepPartitions(t.ctx, time.Hour); err != nil && t.target.Dialect.Classify(err) != dialect.Conflict {
			t.error("keep partitions: %v", err)
		}
	}
	keep() // of a plain table
	relays := t.startMany(2, patient)
	t.produce(load{messages: 200, keys: 10})
	t.awaitPublished()
	stop := t.keepProducing(10, 5)
	t.await("producers and relays to be at work", func() bool { return t.broker.count() > 250 })
	if did, err := t.box.PartitionDone(t.ctx); err != nil || !did {
		t.fail("put done into partitions: %v, %v", did, err)
	}
	if did, err := t.box.PartitionDone(t.ctx); err != nil || did {
		t.error("put done into partitions again: %v, %v", did, err)
	}
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for range t.size(10, 3) {
				keep()
			}
		})
	}
	all.Wait()
	stop()
	t.awaitPublished()
	t.awaitEmpty()
	wrote := t.broker.count()
	for _, r := range relays {
		for _, e := range eventsOf[relay.ArchiveFailed](r) {
			t.error("%d messages were not kept: %v", e.Messages, e.Err)
		}
	}
	if n := kept(); n != wrote {
		t.error("%d of %d messages are kept", n, wrote)
	}
	// Found by id, of the days before and after.
	took, _ := t.broker.history()
	ids := []uuid.UUID{took[0].id, took[len(took)-1].id}
	if n, err := t.operator.Replay(t.ctx, outbox.Filter{IDs: ids}, 0); err != nil || n != 2 {
		t.error("a replay of two messages found %d: %v", n, err)
	}
	t.settleDown()
	t.noDuplicates()
	// A purge is exact.
	if n, err := t.operator.Purgeable(t.ctx, 0); err != nil || n != wrote+2 {
		t.error("%d rows would be purged of %d: %v", n, wrote+2, err)
	}
	if n, err := t.operator.Purgeable(t.ctx, time.Hour); err != nil || n != 0 {
		t.error("%d rows of the last hour: %v", n, err)
	}
	if n, err := t.operator.Purge(t.ctx, 0, 0); err != nil || n != wrote+2 {
		t.error("%d rows were purged of %d: %v", n, wrote+2, err)
	}
}
