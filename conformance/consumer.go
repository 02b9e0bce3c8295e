package conformance

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/inbox"
)

// consumerScenarios: the inbox. An effect is a message enqueued in the same
// transaction, for that can be counted anywhere.
var consumerScenarios = []Scenario{
	{
		Name:    "Inbox/EffectOnce",
		Promise: "a message handled twice, one after the other or at the same moment, has its effect once",
		run:     effectOnce,
	},
	{
		Name:    "Inbox/RollbackForgets",
		Promise: "when a handler fails, neither its effect nor the message's id remains, and the message is handled when it comes again",
		run:     rollbackForgets,
	},
	{
		Name:    "Inbox/PerConsumer",
		Promise: "two consumers each handle a message of the same id, once; ids and consumers are told apart byte for byte",
		run:     perConsumer,
	},
	{
		Name:    "Inbox/ForgetsNothingTooSoon",
		Promise: "what was handled is forgotten no sooner than the least retention, and not while a consumer that comes back may be handed it again",
		run:     forgetsNothingTooSoon,
	},
	{
		Name:    "Inbox/DuplicateEndsNothing",
		Promise: "a transaction of the consumer's own goes on behind the verdict that a message is a duplicate, and what it writes is committed",
		run:     duplicateEndsNothing,
	},
	{
		Name:    "Inbox/DeadlockIsRunAgain",
		Promise: "when handlers wait for each other in a circle the transaction that loses is run again, and each message has its effect once",
		run:     deadlockIsRunAgain,
	},
	{
		Name:    "Inbox/TooLongIsRefused",
		Promise: "a consumer or an id that is too long is refused before anything is written, never cut short; the longest ones are kept whole",
		run:     tooLongIsRefused,
	},
	{
		Name:    "Inbox/DuplicatesCostNoNumbers",
		Promise: "duplicates use up no numbers of the messages' order",
		lanes:   1,
		run:     duplicatesCostNoNumbers,
	},
}

// inbox returns an inbox over the scenario's tables that may be purged at once.
func (t *trial) inbox(cfg inbox.Config) *inbox.Inbox {
	cfg.Schema, cfg.Prefix = t.tables.Schema, t.tables.Prefix
	in, err := inbox.New(t.target.Dialect, cfg)
	t.must(err, "new inbox")
	t.must(in.Check(t.ctx, t.consumer), "check the inbox")
	return in
}

// effect is a handler's: a message that can be counted.
func (t *trial) effect(ctx context.Context, tx *sql.Tx) error {
	_, err := t.box.Enqueue(ctx, tx, outbox.Message{Topic: "effect", Type: "effect"})
	return err
}

// effects counts them.
func (t *trial) effects() int64 { return t.stats().Ready }

func effectOnce(t *trial) {
	in := t.inbox(inbox.Config{})
	// One after the other.
	for n := range 3 {
		handled, err := in.Handle(t.ctx, t.consumer, "consumer", "sequence", t.effect)
		t.must(err, "handle for time %d", n+1)
		if handled != (n == 0) {
			t.error("handling for time %d is said to have had an effect: %v", n+1, handled)
		}
	}
	if n := t.effects(); n != 1 {
		t.error("a message that came three times had %d effects", n)
	}
	// At the same moment.
	rounds := t.size(30, 8)
	for round := range rounds {
		var handled atomic.Int64
		var all sync.WaitGroup
		start := make(chan struct{})
		for range 4 {
			all.Go(func() {
				<-start
				did, err := in.Handle(t.ctx, t.consumer, "consumer", fmt.Sprint("moment-", round), t.effect)
				if err != nil {
					t.error("handle at the same moment: %v", err)
				}
				if did {
					handled.Add(1)
				}
			})
		}
		close(start)
		all.Wait()
		if n := handled.Load(); n != 1 {
			t.error("of four that handled a message at the same moment %d had an effect", n)
		}
	}
	if n, want := t.effects(), int64(1+rounds); n != want {
		t.error("%d messages had %d effects", want, n)
	}
	// The second comes while the first one's transaction is open and its effect
	// written, and learns of it when that has ended.
	for _, commits := range []bool{true, false} {
		before := t.effects()
		id := fmt.Sprint("open-", commits)
		within, second := make(chan struct{}), make(chan struct{})
		errGiveUp := errors.New("the handler gives up")
		var both sync.WaitGroup
		both.Go(func() {
			handled, err := in.Handle(t.ctx, t.consumer, "consumer", id, func(ctx context.Context, tx *sql.Tx) error {
				err := t.effect(ctx, tx)
				close(within)
				<-second
				if err == nil && !commits {
					return errGiveUp
				}
				return err
			})
			if handled != commits || (!commits && !errors.Is(err, errGiveUp)) {
				t.error("the first of two that handle a message at the same moment (commits: %v): %v, %v", commits, handled, err)
			}
		})
		<-within
		both.Go(func() {
			handled, err := in.Handle(t.ctx, t.consumer, "consumer", id, t.effect)
			if handled == commits || err != nil {
				t.error("the second of two that handle a message at the same moment, the first of which commits (%v): %v, %v", commits, handled, err)
			}
		})
		// Nothing tells that the second waits, on an engine that lets it: a moment
		// is enough for it to get there, and too little shows in nothing.
		began := time.Now()
		t.await("the second to get there", func() bool { return time.Since(began) > 20*time.Millisecond })
		close(second)
		both.Wait()
		if n := t.effects() - before; n != 1 {
			t.error("of two that handled a message at the same moment, the first of which commits (%v), %d had an effect", commits, n)
		}
	}
}

func rollbackForgets(t *trial) {
	in := t.inbox(inbox.Config{})
	errNo := errors.New("the handler's own")
	fails := func(what string, f func(ctx context.Context, tx *sql.Tx) error) {
		id := "message " + what
		before := t.effects()
		func() {
			defer func() { _ = recover() }()
			handled, err := in.Handle(t.ctx, t.consumer, "consumer", id, f)
			if handled || !errors.Is(err, errNo) {
				t.error("%s: handled %v, error %v", what, handled, err)
			}
		}()
		if n := t.effects() - before; n != 0 {
			t.error("%s: %d effects remain", what, n)
		}
		if found, err := in.Recorded(t.ctx, t.consumer, "consumer", id); err != nil || found {
			t.error("%s: the id remains: %v, %v", what, found, err)
		}
		handled, err := in.Handle(t.ctx, t.consumer, "consumer", id, t.effect)
		if !handled || err != nil {
			t.error("%s, and the message comes again: handled %v, error %v", what, handled, err)
		}
		if n := t.effects() - before; n != 1 {
			t.error("%s, and the message comes again: %d effects", what, n)
		}
		if found, err := in.Recorded(t.ctx, t.consumer, "consumer", id); err != nil || !found {
			t.error("%s, and the message comes again: the id is not kept: %v", what, err)
		}
	}
	fails("a handler that fails at once", func(context.Context, *sql.Tx) error { return errNo })
	fails("a handler that fails behind its effect", func(ctx context.Context, tx *sql.Tx) error {
		if err := t.effect(ctx, tx); err != nil {
			return err
		}
		return errNo
	})
	fails("a handler that panics behind its effect", func(ctx context.Context, tx *sql.Tx) error {
		if err := t.effect(ctx, tx); err != nil {
			return err
		}
		panic("the handler's own")
	})
	// In a transaction of the consumer's own.
	before := t.effects()
	tx, err := t.consumer.BeginTx(t.ctx, nil)
	t.must(err, "begin")
	fresh, err := in.Record(t.ctx, tx, "consumer", "own")
	t.must(err, "record")
	again, err := in.Record(t.ctx, tx, "consumer", "own")
	t.must(err, "record again in the same transaction")
	if !fresh || again {
		t.error("recorded for the first time: fresh is %v; for the second: %v", fresh, again)
	}
	t.must(t.effect(t.ctx, tx), "write the effect behind a duplicate")
	t.must(tx.Rollback(), "roll back")
	if found, err := in.Recorded(t.ctx, t.consumer, "consumer", "own"); err != nil || found || t.effects() != before {
		t.error("after the rollback the id remains (%v), and %d effects: %v", found, t.effects()-before, err)
	}
}

func perConsumer(t *trial) {
	in := t.inbox(inbox.Config{})
	// Names that collations, paddings and normal forms hold to be the same.
	consumers := []string{"mail", "Mail", "mail ", "maíl", "mai\u0301l", "billing"}
	ids := []string{"id", "ID", "id ", "i\u0307d", "0", "00"}
	want := int64(0)
	for _, consumer := range consumers {
		for _, id := range ids {
			for n := range 2 {
				handled, err := in.Handle(t.ctx, t.consumer, consumer, id, t.effect)
				if err != nil || handled != (n == 0) {
					t.error("consumer %q, message %q, for time %d: handled %v, error %v", consumer, id, n+1, handled, err)
				}
			}
			want++
		}
	}
	if n := t.effects(); n != want {
		t.error("%d consumers of %d messages had %d effects, not %d", len(consumers), len(ids), n, want)
	}
}

func forgetsNothingTooSoon(t *trial) {
	record := func(in *inbox.Inbox, id string) {
		handled, err := in.Handle(t.ctx, t.consumer, "consumer", id, t.effect)
		t.must(err, "handle")
		if !handled {
			t.error("message %s is new and was taken for a duplicate", id)
		}
	}
	old := t.inbox(inbox.Config{})
	record(old, "old")
	known := func(when string, ids ...string) {
		for _, id := range ids {
			if handled, err := old.Handle(t.ctx, t.consumer, "consumer", id, t.effect); handled || err != nil {
				t.error("%s message %s is handled for a second time (%v): %v", when, id, handled, err)
			}
		}
	}
	// Too short a retention is refused, however long ago the start.
	const least = time.Hour
	ready := t.inbox(inbox.Config{MinRetention: least, ResumeGrace: inbox.NoGrace})
	if _, err := ready.Purge(t.ctx, t.consumer, least-time.Nanosecond, 0); !errors.Is(err, outbox.ErrInvalid) {
		t.error("a purge of what is younger than the least retention is answered with %v", err)
	}
	if _, err := old.Purge(t.ctx, t.consumer, time.Hour, 0); !errors.Is(err, outbox.ErrInvalid) {
		t.error("a purge below the default least retention is answered with %v", err)
	}
	known("after a purge that was refused", "old")
	// What is old enough is kept while the consumer resumes.
	const short = 500 * time.Millisecond
	began := time.Now()
	t.await("the id to be older than the retention", func() bool { return time.Since(began) > 2*short })
	resumed := t.inbox(inbox.Config{MinRetention: short})
	if n, err := resumed.Purge(t.ctx, t.consumer, short, 0); !errors.Is(err, inbox.ErrResuming) || n != 0 {
		t.error("a purge just after the start forgot %d ids: %v", n, err)
	}
	known("after a purge just after the start", "old")
	// After that only what is old goes, and no more than asked for.
	record(old, "older")
	const apart = 5 * time.Second // more than a purge needs from its call to its look at the clock
	began = time.Now()
	t.await("the old ids to be far older than the new", func() bool { return time.Since(began) > apart+t.step() })
	end := time.Now() // old ids are older than this by more than apart, new ones are younger
	for n := range 3 {
		record(old, fmt.Sprint("new-", n))
	}
	purging := t.inbox(inbox.Config{MinRetention: short, ResumeGrace: inbox.NoGrace})
	for range 2 {
		if n, err := purging.Purge(t.ctx, t.consumer, time.Since(end)+apart, 1); n != 1 || err != nil {
			t.error("a purge of at most 1 id took %d: %v", n, err)
		}
	}
	if n, err := purging.Purge(t.ctx, t.consumer, time.Since(end)+apart, 0); n != 0 || err != nil {
		t.error("a purge took %d ids that are younger than its bound: %v", n, err)
	}
	known("after a purge of older ones", "new-0", "new-1", "new-2")
	record(old, "old")
	record(old, "older")
}

func duplicateEndsNothing(t *trial) {
	in := t.inbox(inbox.Config{})
	if handled, err := in.Handle(t.ctx, t.consumer, "consumer", "old", t.effect); !handled || err != nil {
		t.fail("handle: %v, %v", handled, err)
	}
	before := t.effects()
	tx, err := t.consumer.BeginTx(t.ctx, nil)
	t.must(err, "begin")
	t.onCleanup(func() { _ = tx.Rollback() })
	for _, id := range []string{"old", "new", "old", "new", "newer"} {
		fresh, err := in.Record(t.ctx, tx, "consumer", id)
		t.must(err, "record %s", id)
		t.must(t.effect(t.ctx, tx), "write behind the verdict on %s, which is fresh (%v)", id, fresh)
	}
	t.must(tx.Commit(), "commit behind duplicates")
	if n := t.effects() - before; n != 5 {
		t.error("a transaction that wrote behind five verdicts left %d effects", n)
	}
	for _, id := range []string{"new", "newer"} {
		if found, err := in.Recorded(t.ctx, t.consumer, "consumer", id); err != nil || !found {
			t.error("%s is recorded behind a duplicate and not kept: %v", id, err)
		}
	}
}

func deadlockIsRunAgain(t *trial) {
	in := t.inbox(inbox.Config{Tries: 20})
	rounds, runs := t.size(5, 2), atomic.Int64{}
	for round := range rounds {
		// Each takes a row, waits for the other to have taken its own, and wants that.
		// With one writer at a time the other does not come so far.
		var both, arrived sync.WaitGroup
		arrived.Add(2)
		met := make(chan struct{})
		go func() { arrived.Wait(); close(met) }()
		rows := [2]string{fmt.Sprint("left-", round), fmt.Sprint("right-", round)}
		for n := range 2 {
			first := true
			both.Go(func() {
				handled, err := in.Handle(t.ctx, t.consumer, "consumer", fmt.Sprint("message-", round, n), func(ctx context.Context, tx *sql.Tx) error {
					runs.Add(1)
					if err := t.effect(ctx, tx); err != nil {
						return err
					}
					if _, err := t.store().Record(ctx, tx, "row", rows[n]); err != nil {
						return err
					}
					if first {
						first = false
						arrived.Done()
						select {
						case <-met:
						case <-time.After(300 * time.Millisecond):
						}
					}
					_, err := t.store().Record(ctx, tx, "row", rows[1-n])
					return err
				})
				if err != nil || !handled {
					t.error("of two that wait for each other one was not handled: %v, %v", handled, err)
				}
			})
		}
		both.Wait()
	}
	if n, want := t.effects(), int64(2*rounds); n != want {
		t.error("%d messages whose handlers waited for each other had %d effects", want, n)
	}
	t.note("%d handlers were run %d times", 2*rounds, runs.Load())
}

func tooLongIsRefused(t *trial) {
	in := t.inbox(inbox.Config{})
	longest := strings.Repeat("ü", inbox.MaxMessageID/2) + "x" // in bytes
	other := strings.TrimSuffix(longest, "x") + "y"            // told apart by the last one
	for _, names := range [][2]string{{longest, "id"}, {"consumer", longest}, {longest, longest}, {other, "id"}, {"consumer", other}, {other, other}} {
		for n := range 2 {
			if handled, err := in.Handle(t.ctx, t.consumer, names[0], names[1], t.effect); err != nil || handled != (n == 0) {
				t.error("names as long as they may be, for time %d: %v, %v", n+1, handled, err)
			}
		}
	}
	// Those that are equal up to the limit.
	before := t.effects()
	for _, names := range [][2]string{{longest + "a", "id"}, {"consumer", longest + "a"}, {"consumer", longest + "b"}, {longest + longest, longest}} {
		handled, err := in.Handle(t.ctx, t.consumer, names[0], names[1], t.effect)
		if handled || !errors.Is(err, outbox.ErrInvalid) {
			t.error("a name that is too long: handled %v, error %v", handled, err)
		}
		tx, err := t.consumer.BeginTx(t.ctx, nil)
		t.must(err, "begin")
		if fresh, err := in.Record(t.ctx, tx, names[0], names[1]); fresh || !errors.Is(err, outbox.ErrInvalid) {
			t.error("a name that is too long is recorded: fresh %v, error %v", fresh, err)
		}
		t.must(t.effect(t.ctx, tx), "write behind the refusal")
		t.must(tx.Rollback(), "roll back")
	}
	if n := t.effects() - before; n != 0 {
		t.error("names that are too long left %d effects", n)
	}
}

func duplicatesCostNoNumbers(t *trial) {
	in := t.inbox(inbox.Config{})
	t.enqueue("a", 1)
	if _, err := in.Handle(t.ctx, t.consumer, "consumer", "id", func(context.Context, *sql.Tx) error { return nil }); err != nil {
		t.fail("handle: %v", err)
	}
	const many = 300
	for range many {
		if handled, err := in.Handle(t.ctx, t.consumer, "consumer", "id", t.effect); handled || err != nil {
			t.fail("a duplicate was handled (%v): %v", handled, err)
		}
	}
	t.enqueue("a", 1)
	rows := t.ready()
	if gap := rows[1].Seq - rows[0].Seq; gap > many/2 {
		t.error("%d duplicates between two messages have used up %d numbers", many, gap-1)
	}
	// A refused enqueue may use up a number: those of messages are wide.
	duplicate := t.message("a")
	t.enqueueAll(duplicate)
	for range many / 10 {
		w := t.begin()
		if _, err := t.box.Enqueue(t.ctx, w.tx, duplicate); !errors.Is(err, outbox.ErrDuplicateID) {
			t.fail("an id that waits already was enqueued again: %v", err)
		}
		w.rollBack()
	}
	t.enqueue("a", 1)
	t.start()
	t.settleDown()
}
