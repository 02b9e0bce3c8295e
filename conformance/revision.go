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
	"github.com/outbox-suite/outbox/inbox"
)

// revisionScenarios: order that can be proved, where it is written and where it is
// handled.
var revisionScenarios = []Scenario{
	{
		Name:    "Revision/GapFree",
		Promise: "with many producers of the same keys at once, some of which roll back, every committed message has the next revision of its key, without gap or repeat, and is published in that order",
		Needs:   []Need{Revisions},
		run:     gapFree,
	},
	{
		Name:    "Revision/ProducersTakeTurns",
		Promise: "a producer of a key waits for another one's open transaction, and its messages come behind, or take the place of those that were rolled back",
		Needs:   []Need{Revisions},
		lanes:   1,
		run:     producersTakeTurns,
	},
	{
		Name:    "Revision/RollbackLeavesNoGap",
		Promise: "a transaction that is rolled back, for whatever reason, uses up no revision",
		Needs:   []Need{Revisions},
		lanes:   1,
		run:     rollbackLeavesNoGap,
	},
	{
		Name:    "Revision/CallersIsChecked",
		Promise: "a revision that the caller gives is refused unless it is the next of its key, with the one that is; nothing is written then and the transaction can go on",
		Needs:   []Need{Revisions},
		lanes:   1,
		run:     callersIsChecked,
	},
	{
		Name:    "Revision/LastIsTold",
		Promise: "a producer is told the revision that a key's last message got in its transaction, and what is committed when that was rolled back",
		Needs:   []Need{Revisions},
		lanes:   1,
		run:     lastIsTold,
	},
	{
		Name:    "Inbox/RevisionsInTurn",
		Promise: "a consumer handles the next revision of a key, takes an old one for a duplicate and refuses one that is further ahead, which leaves everything as it was",
		Needs:   []Need{Revisions},
		run:     revisionsInTurn,
	},
	{
		Name:    "Inbox/RevisionsAtOnce",
		Promise: "of deliveries of a revision at the same moment one is handled, and those of a later one do not come before it",
		Needs:   []Need{Revisions},
		run:     revisionsAtOnce,
	},
}

// revising is box with revisions.
func (t *trial) revising(box *outbox.Outbox) *outbox.Outbox {
	tables := box.Tables()
	revising, err := outbox.New(box.DB(), t.target.Dialect, outbox.Config{
		Schema: tables.Schema, Prefix: tables.Prefix, Lanes: tables.Lanes, Revisions: true,
	})
	t.must(err, "new outbox with revisions")
	return revising
}

// numbered makes a message whose revision is for the outbox to give.
func (t *trial) numbered(key string) outbox.Message {
	return outbox.Message{ID: uuid.New(), Topic: "conformance", Key: key, Type: "tried", Payload: []byte(key)}
}

// given makes a message with a revision.
func (t *trial) given(key string, revision int64) outbox.Message {
	m := t.numbered(key)
	m.Revision = revision
	return m
}

func gapFree(t *trial) {
	box := t.revising(t.producer)
	const producers, keys = 6, 4
	var mu sync.Mutex
	var wrote []outbox.Message
	var conflicts, undone atomic.Int64
	errNo := errors.New("rolled back on purpose")
	t.startMany(2, patient)
	t.do("had %d producers enqueue", producers)
	var all sync.WaitGroup
	for n := range producers {
		from := source(t.target.Seed, fmt.Sprint(t.name, n))
		all.Go(func() {
			for done := 0; done < t.size(60, 12) && t.ctx.Err() == nil; {
				var batch []outbox.Message
				for range 1 + from.IntN(4) {
					batch = append(batch, t.numbered(fmt.Sprint("key-", from.IntN(keys))))
				}
				if from.IntN(3) == 0 {
					batch = append(batch, t.numbered(""))
				}
				keep := from.IntN(3) > 0
				err := box.InTx(t.ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
					_, err := box.Enqueue(ctx, tx, batch...)
					if err == nil && !keep {
						err = errNo
					}
					return err
				})
				switch {
				case err == nil:
					mu.Lock()
					wrote = append(wrote, batch...)
					mu.Unlock()
					done++
				case errors.Is(err, errNo):
					undone.Add(1)
				case t.target.Dialect.Classify(err) == dialect.Conflict:
					conflicts.Add(1) // undone by the server, and to be run again
				default:
					t.error("a producer: %v", err)
					return
				}
			}
		})
	}
	all.Wait()
	t.await("all messages to be published", func() bool { return t.broker.distinct() >= len(wrote) })
	took, _ := t.broker.history()
	got := make(map[uuid.UUID]int64)
	last := make(map[string]int64)
	for i := range took {
		a := &took[i]
		if _, again := got[a.id]; again {
			continue
		}
		got[a.id] = a.revision
		if !a.keyed {
			if a.revision != 0 {
				t.error("a message without a key has revision %d", a.revision)
			}
			continue
		}
		if a.revision != last[a.key]+1 {
			t.error("of key %q revision %d is published after %d", a.key, a.revision, last[a.key])
		}
		last[a.key] = a.revision
	}
	for i := range wrote {
		wrote[i].Revision = got[wrote[i].ID]
	}
	t.record(committed, wrote...)
	t.note("%d messages over %d keys, %d transactions rolled back, %d conflicts", len(wrote), keys, undone.Load(), conflicts.Load())
	t.settleDown()
}

// hasRevisions compares the ready rows of lane 0 of a key with what they should be:
// the messages in this order, numbered from 1.
func (t *trial) hasRevisions(what, key string, messages ...outbox.Message) {
	var got []string
	var want []string
	for _, row := range t.ready() {
		if row.Key.V == key {
			got = append(got, fmt.Sprint(row.Revision, " ", uuid.UUID(row.ID)))
		}
	}
	for i := range messages {
		want = append(want, fmt.Sprint(1+i, " ", messages[i].ID))
	}
	if !slices.Equal(got, want) {
		t.error("%s: the messages of key %q are, in order, %q, and should be %q", what, key, got, want)
	}
}

func producersTakeTurns(t *trial) {
	box := t.revising(t.producer)
	for _, commits := range []bool{true, false} {
		key := fmt.Sprint("key-", commits)
		before := t.numbered(key)
		t.must(box.InTx(t.ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
			_, err := box.Enqueue(ctx, tx, before)
			return err
		}), "enqueue")
		mine := []outbox.Message{t.numbered(key), t.numbered(key), t.numbered(key)}
		tx, err := box.DB().BeginTx(t.ctx, nil)
		t.must(err, "begin")
		t.onCleanup(func() { _ = tx.Rollback() })
		_, err = box.Enqueue(t.ctx, tx, mine[0])
		t.must(err, "enqueue")
		manyWriters := t.othersMayWrite()

		theirs := []outbox.Message{t.numbered(key), t.numbered(key)}
		var through atomic.Bool
		var second sync.WaitGroup
		second.Go(func() {
			err := box.InTx(t.ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
				_, err := box.Enqueue(ctx, tx, theirs...)
				through.Store(true)
				return err
			})
			if err != nil {
				t.error("the second producer: %v", err)
			}
		})
		if manyWriters { // a producer of another key goes on
			other := t.numbered(key + "-other")
			err := box.InTx(t.ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
				_, err := box.Enqueue(ctx, tx, other)
				return err
			})
			t.must(err, "enqueue for another key beside an open transaction")
			t.hasRevisions("beside an open transaction", other.Key, other)
		}
		// Nothing tells that the second waits: a moment is enough for it to get there,
		// and too little shows in nothing.
		began := time.Now()
		t.await("the second producer to get there", func() bool { return time.Since(began) > 50*time.Millisecond })
		if through.Load() {
			t.error("a second producer of the key has not waited for the first")
		}
		_, err = box.Enqueue(t.ctx, tx, mine[1:]...)
		t.must(err, "enqueue once more")
		want := slices.Concat([]outbox.Message{before}, mine, theirs)
		if commits {
			t.must(tx.Commit(), "commit")
		} else {
			t.must(tx.Rollback(), "roll back")
			want = slices.Concat([]outbox.Message{before}, theirs)
		}
		second.Wait()
		t.hasRevisions(fmt.Sprintf("behind a transaction that commits (%v)", commits), key, want...)
	}
}

func rollbackLeavesNoGap(t *trial) {
	box := t.revising(t.producer)
	const key = "key"
	undo := func(what string, messages ...outbox.Message) {
		tx, err := box.DB().BeginTx(t.ctx, nil)
		t.must(err, "begin")
		_, err = box.Enqueue(t.ctx, tx, messages...)
		t.must(err, "enqueue %s", what)
		t.must(tx.Rollback(), "roll back")
	}
	var kept []outbox.Message
	keep := func(messages ...outbox.Message) {
		t.must(box.InTx(t.ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
			_, err := box.Enqueue(ctx, tx, messages...)
			return err
		}), "enqueue")
		kept = append(kept, messages...)
		t.hasRevisions("behind a rollback", key, kept...)
	}
	undo("a key's first", t.numbered(key))
	undo("a key's first, given", t.given(key, 1), t.given(key, 2))
	keep(t.numbered(key))
	undo("several", t.numbered(key), t.numbered(key), t.numbered("other"))
	keep(t.given(key, 2), t.numbered(key))
	undo("one given", t.given(key, 4))
	keep(t.given(key, 4))
	// An id that waits already ends the transaction.
	tx, err := box.DB().BeginTx(t.ctx, nil)
	t.must(err, "begin")
	if _, err := box.Enqueue(t.ctx, tx, t.numbered(key), kept[0]); !errors.Is(err, outbox.ErrRevision) && !errors.Is(err, outbox.ErrDuplicateID) {
		t.error("an id that waits is enqueued again: %v", err)
	}
	t.must(tx.Rollback(), "roll back")
	tx, err = box.DB().BeginTx(t.ctx, nil)
	t.must(err, "begin")
	again := t.numbered(key)
	again.ID = kept[0].ID
	if _, err := box.Enqueue(t.ctx, tx, t.numbered(key), again); !errors.Is(err, outbox.ErrDuplicateID) {
		t.error("an id that waits is enqueued again: %v", err)
	}
	t.must(tx.Rollback(), "roll back")
	keep(t.numbered(key), t.numbered(key))
}

func callersIsChecked(t *trial) {
	box := t.revising(t.producer)
	var kept []outbox.Message
	const key = "key"
	tx, err := box.DB().BeginTx(t.ctx, nil)
	t.must(err, "begin")
	t.onCleanup(func() { _ = tx.Rollback() })
	keep := func(messages ...outbox.Message) {
		_, err := box.Enqueue(t.ctx, tx, messages...)
		t.must(err, "enqueue what is next")
		for _, m := range messages {
			if m.Key == key {
				kept = append(kept, m)
			}
		}
	}
	refused := func(what string, index int, expected int64, messages ...outbox.Message) {
		_, err := box.Enqueue(t.ctx, tx, messages...)
		var wrong *outbox.RevisionError
		if !errors.As(err, &wrong) || !errors.Is(err, outbox.ErrRevision) {
			t.error("%s is answered with %v", what, err)
			return
		}
		want := outbox.RevisionError{Index: index, Key: key, Expected: expected, Given: messages[index].Revision}
		if *wrong != want {
			t.error("%s is refused with %+v, not %+v", what, *wrong, want)
		}
	}
	refused("a new key's second", 0, 1, t.given(key, 2))
	keep(t.given(key, 1))
	refused("a repeat", 0, 2, t.given(key, 1))
	refused("a gap", 0, 2, t.given(key, 3))
	refused("a gap among others", 2, 2, t.numbered(""), t.given("other", 1), t.given(key, 3))
	refused("a gap behind one", 1, 4, t.given(key, 3), t.given(key, 5))
	refused("a gap behind others", 3, 3, t.given("one", 1), t.given("two", 1), t.numbered(key), t.given(key, 7), t.numbered("one"))
	keep(t.given(key, 2), t.given("other", 1), t.numbered("one"), t.numbered(key), t.given(key, 4), t.numbered(""))
	t.must(tx.Commit(), "commit behind refusals")
	tx, err = box.DB().BeginTx(t.ctx, nil)
	t.must(err, "begin")
	refused("a repeat of what is committed", 0, 5, t.given(key, 4))
	refused("a gap behind what is committed", 0, 5, t.given(key, 6))
	keep(t.given(key, 5), t.given("two", 1), t.given("one", 2))
	t.must(tx.Commit(), "commit behind refusals")
	t.hasRevisions("behind refusals", key, kept...)
	rows := t.ready()
	if want := len(kept) + 5; len(rows) != want {
		t.error("behind refusals %d messages are ready, not %d", len(rows), want)
	}
	// Keys are told apart byte by byte.
	for _, key := range []string{"Key", "key ", "ke\u0301y", "kéy"} {
		t.must(box.InTx(t.ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
			_, err := box.Enqueue(ctx, tx, t.given(key, 1))
			return err
		}), "enqueue the first of %q", key)
	}
}

func lastIsTold(t *trial) {
	box := t.revising(t.producer)
	const key = "key"
	var kept []outbox.Message
	for _, commits := range []bool{false, true, false, true} {
		tx, err := box.DB().BeginTx(t.ctx, nil)
		t.must(err, "begin")
		t.onCleanup(func() { _ = tx.Rollback() })
		last := func(key string, want int) {
			got, err := box.LastRevision(t.ctx, tx, key)
			if err != nil || got != int64(want) {
				t.error("the last revision of %q is said to be %d, not %d: %v", key, got, want, err)
			}
		}
		var mine []outbox.Message
		enqueue := func(messages ...outbox.Message) {
			_, err := box.Enqueue(t.ctx, tx, messages...)
			t.must(err, "enqueue")
			for _, m := range messages {
				if m.Key == key {
					mine = append(mine, m)
				}
			}
			last(key, len(kept)+len(mine))
		}
		last(key, len(kept))
		enqueue(t.numbered(key), t.numbered("other"), t.numbered(""), t.numbered(key))
		enqueue(t.numbered(key))
		enqueue(t.numbered("other"))
		last("Key", 0)
		if _, err := box.Enqueue(t.ctx, tx, t.given(key, 99)); !errors.Is(err, outbox.ErrRevision) {
			t.error("a gap is answered with %v", err)
		}
		last(key, len(kept)+len(mine))
		if !commits {
			t.must(tx.Rollback(), "roll back")
			continue
		}
		t.must(tx.Commit(), "commit")
		kept = append(kept, mine...)
		t.hasRevisions("behind what was told", key, kept...)
	}
	if _, err := t.producer.LastRevision(t.ctx, nil, key); !errors.Is(err, errors.ErrUnsupported) {
		t.error("an outbox without revisions is asked for one, and answers %v", err)
	}
}

// next hands a revision to a consumer.
type next struct {
	t  *trial
	in *inbox.Inbox
}

// is wants the revision to be handled, or to be a duplicate.
func (n next) is(handled bool, consumer, key string, revision int64) {
	before := n.t.effects()
	got, err := n.in.HandleNext(n.t.ctx, n.t.consumer, consumer, key, revision, n.t.effect)
	effects := n.t.effects() - before
	if err != nil || got != handled || (effects == 1) != handled {
		n.t.error("revision %d of %q for %q: handled %v with %d effects, error %v; it should be %v", revision, key, consumer, got, effects, err, handled)
	}
}

// isGap wants a revision of "key" to be refused.
func (n next) isGap(expected int64, consumer string, revision int64) {
	const key = "key"
	before := n.t.effects()
	handled, err := n.in.HandleNext(n.t.ctx, n.t.consumer, consumer, key, revision, n.t.effect)
	n.t.isGap(err, inbox.GapError{Consumer: consumer, Key: key, Expected: expected, Given: revision})
	if effects := n.t.effects() - before; handled || effects != 0 {
		n.t.error("a revision ahead of the next: handled %v, %d effects", handled, effects)
	}
	if last, err := n.in.Progress(n.t.ctx, n.t.consumer, consumer, key); err != nil || last != expected-1 {
		n.t.error("behind a gap the last revision is %d, not %d: %v", last, expected-1, err)
	}
}

func (t *trial) isGap(err error, want inbox.GapError) {
	var gap *inbox.GapError
	if !errors.As(err, &gap) || !errors.Is(err, inbox.ErrGap) || *gap != want {
		t.error("a revision ahead of the next is answered with %v, not %v", err, &want)
	}
}

func revisionsInTurn(t *trial) {
	in := t.inbox(inbox.Config{})
	n := next{t, in}
	n.isGap(1, "mail", 2)
	n.is(true, "mail", "key", 1)
	n.is(false, "mail", "key", 1)
	n.isGap(2, "mail", 3)
	n.is(true, "mail", "key", 2)
	n.is(true, "mail", "key", 3)
	n.is(false, "mail", "key", 1)
	n.is(false, "mail", "key", 3)
	// Each consumer and key for itself, byte by byte.
	for _, consumer := range []string{"billing", "Mail", "mail "} {
		n.is(true, consumer, "key", 1)
	}
	n.isGap(2, "billing", 3)
	for _, key := range []string{"", "Key", "key ", "kéy", "ke\u0301y"} {
		n.is(true, "mail", key, 1)
		n.is(false, "mail", key, 1)
	}
	n.is(true, "mail", "key", 4)
	// A handler that fails.
	errNo := errors.New("the handler's own")
	before := t.effects()
	handled, err := in.HandleNext(t.ctx, t.consumer, "mail", "key", 5, func(ctx context.Context, tx *sql.Tx) error {
		if err := t.effect(ctx, tx); err != nil {
			return err
		}
		return errNo
	})
	if handled || !errors.Is(err, errNo) || t.effects() != before {
		t.error("a handler that fails: handled %v, %d effects, error %v", handled, t.effects()-before, err)
	}
	n.isGap(5, "mail", 6)
	n.is(true, "mail", "key", 5)
	// In a transaction of the consumer's own, which goes on behind any verdict.
	tx, err := t.consumer.BeginTx(t.ctx, nil)
	t.must(err, "begin")
	t.onCleanup(func() { _ = tx.Rollback() })
	record := func(revision int64, want bool) {
		fresh, err := in.RecordNext(t.ctx, tx, "mail", "key", revision)
		if fresh != want || err != nil {
			t.error("revision %d in a transaction: fresh %v, error %v", revision, fresh, err)
		}
	}
	record(5, false)
	_, err = in.RecordNext(t.ctx, tx, "mail", "key", 8)
	t.isGap(err, inbox.GapError{Consumer: "mail", Key: "key", Expected: 6, Given: 8})
	_, err = in.RecordNext(t.ctx, tx, "mail", "new", 2)
	t.isGap(err, inbox.GapError{Consumer: "mail", Key: "new", Expected: 1, Given: 2})
	record(6, true)
	record(6, false)
	before = t.effects()
	t.must(t.effect(t.ctx, tx), "write the effect behind every verdict")
	t.must(tx.Commit(), "commit behind every verdict")
	if n := t.effects() - before; n != 1 {
		t.error("a transaction behind every verdict left %d effects, not 1", n)
	}
	// What never comes is passed over.
	n.isGap(7, "mail", 10)
	tx, err = t.consumer.BeginTx(t.ctx, nil)
	t.must(err, "begin")
	t.onCleanup(func() { _ = tx.Rollback() })
	t.must(in.Skip(t.ctx, tx, "mail", "key", 9), "skip")
	t.must(in.Skip(t.ctx, tx, "late", "key", 9), "skip at the beginning")
	t.must(tx.Commit(), "commit")
	for _, consumer := range []string{"mail", "late"} {
		n.is(false, consumer, "key", 9)
		n.is(true, consumer, "key", 10)
	}
}

func revisionsAtOnce(t *trial) {
	in := t.inbox(inbox.Config{})
	rounds := int64(t.size(25, 8))
	for round := int64(1); round <= rounds; round++ {
		var handled, ahead atomic.Int64
		var all sync.WaitGroup
		start := make(chan struct{})
		for n := range 4 {
			all.Go(func() {
				<-start
				revision := round
				if n == 3 {
					revision++ // the next but one may come first
				}
				did, err := in.HandleNext(t.ctx, t.consumer, "consumer", "key", revision, t.effect)
				switch {
				case revision > round && errors.Is(err, inbox.ErrGap):
				case err != nil:
					t.error("handle at the same moment: %v", err)
				case did && revision > round:
					ahead.Add(1)
				case did:
					handled.Add(1)
				}
			})
		}
		close(start)
		all.Wait()
		if n := handled.Load(); n != 1 {
			t.error("of three that handled a revision at the same moment %d had an effect", n)
		}
		if ahead.Load() == 1 {
			round++ // it came behind the other
		}
	}
	last, err := in.Progress(t.ctx, t.consumer, "consumer", "key")
	t.must(err, "progress")
	if n := t.effects(); n != last || last < rounds {
		t.error("up to revision %d, of %d handed in, there are %d effects", last, rounds, n)
	}
}
