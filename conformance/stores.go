package conformance

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/relay"
)

// storeScenarios: tables that are missing, doubled or looked away from.
var storeScenarios = []Scenario{
	{
		Name:    "Relay/NoTransactionWhilePublishing",
		Promise: "while a broker stalls, the relay has no transaction, no open read and no session in use, and nobody waits for it",
		lanes:   1,
		run:     noTransactionWhilePublishing,
	},
	{
		Name:    "Relay/LostWakeUps",
		Promise: "when every wake-up is lost, a message leaves within one poll interval",
		run:     lostWakeUps,
	},
	{
		Name:    "Store/TwoDatabases",
		Promise: "relays of two outboxes with the same ids, owners and lanes settle each its own; a lease of one is refused by the other",
		lanes:   1,
		run:     twoDatabases,
	},
	{
		Name:    "Settle/ExactlyTheRowsNamed",
		Promise: "a settle changes the rows it names and no other, whatever stands between them",
		lanes:   1,
		run:     exactlyTheRowsNamed,
	},
	{
		Name:    "Settle/OnlyTheMessageThatWasRead",
		Promise: "a row whose place another message has taken is passed over, whatever the settle says of the one that was read there",
		lanes:   1,
		run:     onlyTheMessageThatWasRead,
	},
	{
		Name:    "Settle/ArchiveFails",
		Promise: "when what was published cannot be kept, it leaves the outbox all the same, once, and the relay says so",
		lanes:   1,
		run:     archiveFails,
	},
}

func noTransactionWhilePublishing(t *trial) {
	t.broker.first(1, ofKey("dead"), refuse(relay.Permanent(errors.New("never"))))
	// One worker and one lane: while that worker publishes, nothing but a renewal,
	// twenty minutes away, is a reason to use the database.
	r := t.start(patient, func(c *relay.Config) { c.Workers, c.Lease, c.PublishTimeout = 1, time.Hour, time.Hour })
	t.enqueue("dead", 2)
	t.await("a dead message", func() bool { return t.stats().Dead == 1 })
	middle := t.gate()
	stalled := t.broker.when(anyMessage, after(middle, acceptIt))
	messages := make([]outbox.Message, 10)
	for i := range messages {
		messages[i] = t.message(string(rune('a' + i)))
	}
	t.enqueueAll(messages...)
	t.await("the publishes to stall", func() bool { return stalled.seen() == len(messages) })
	used := func() int { return r.db.Stats().InUse }
	t.await("the relay to leave the database alone while the broker stalls", func() bool { return used() == 0 })

	// The others go on at once: nothing is locked.
	atOnce := func(what string, do func(ctx context.Context) error) {
		ctx, cancel := context.WithTimeout(t.ctx, t.target.Patience)
		defer cancel()
		if err := do(ctx); err != nil {
			t.error("while the broker stalls, %s: %v", what, err)
		}
		if n := used(); n != 0 {
			t.error("while the broker stalls, the relay uses %d sessions", n)
		}
	}
	atOnce("a producer", func(ctx context.Context) error {
		m := t.message("a")
		err := t.box.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
			_, err := t.box.Enqueue(ctx, tx, m)
			return err
		})
		t.record(committed, m)
		return err
	})
	atOnce("an operator's requeue in the same lane", func(ctx context.Context) error {
		n, err := t.operator.Requeue(ctx, everything, 0)
		if err == nil && n != 1 {
			t.error("while the broker stalls, a requeue found %d messages, not 1", n)
		}
		return err
	})
	atOnce("another relay's claim", func(ctx context.Context) error {
		_, _, err := t.store().Claim(ctx, t.db, 0, "other", time.Second)
		return err
	})
	atOnce("a migration", func(ctx context.Context) error {
		_, err := t.box.Migrate(ctx)
		return err
	})
	middle.open()
	t.settleDown()
	t.noDuplicates()
}

// isDone chooses the done table.
func isDone(name string) bool { return strings.HasSuffix(strings.TrimRight(name, "\"`]"), "_done") }

func lostWakeUps(t *trial) {
	const interval = 400 * time.Millisecond
	d := t.target.Dialect
	_, listens := t.store().(dialect.Waker)
	if listens {
		d = deaf{d}
	}
	r := t.startWith(relayWith{dialect: d, config: func(c *relay.Config) {
		c.PollMin, c.PollMax, c.Listen = interval, interval, listens
	}})
	// Wake-ups go to the relays of the outbox that the producer has, and this one
	// has none.
	deafened := t.newBox(t.db, t.target.Dialect)
	var longest time.Duration
	for range t.size(20, 6) {
		w := t.beginOn(deafened)
		w.enqueue(t.message("a"), t.message("b"), t.message(""))
		w.commit()
		began := time.Now()
		t.awaitPublished()
		longest = max(longest, time.Since(began))
		t.awaitEmpty()
	}
	// The interval is jittered by a quarter.
	if !within(longest, interval*5/4) {
		t.error("with all wake-ups lost a message waited %v, the poll interval is %v", longest, interval)
	}
	t.note("the longest wait was %v with a poll interval of %v", longest.Round(time.Millisecond), interval)
	if r.ended() {
		t.fail("the relay has ended")
	}
	t.settleDown()
}

// deaf is a dialect whose listeners hear nothing.
type deaf struct{ dialect.Dialect }

// Bind implements [dialect.Dialect].
func (d deaf) Bind(tables dialect.Tables) (dialect.Store, error) {
	s, err := d.Dialect.Bind(tables)
	return deafStore{s}, err
}

type deafStore struct{ dialect.Store }

// Wake implements [dialect.Waker].
func (deafStore) Wake(context.Context, dialect.DB) error { return nil }

// Listen implements [dialect.Waker].
func (deafStore) Listen(ctx context.Context, _ *sql.DB, _ func()) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// second makes a second set of tables beside the scenario's own, dropped after it.
func (t *trial) second() *outbox.Outbox {
	tables := t.tables
	tables.Prefix += "_b"
	box := t.boxOf(&tables, t.db, t.target.Dialect)
	t.migrate(box)
	return box
}

func twoDatabases(t *trial) {
	other := t.second()
	tables := other.Tables()
	otherBroker := newBroker()

	// The same ids in both; what the brokers got is counted for each.
	messages := make([]outbox.Message, 200)
	for i := range messages {
		messages[i] = t.message(string(rune('a' + i%20)))
	}
	enqueue := func(box *outbox.Outbox) {
		t.must(box.InTx(t.ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
			_, err := box.Enqueue(ctx, tx, messages...)
			return err
		}), "enqueue")
	}
	enqueue(t.box)
	t.record(committed, messages...)
	enqueue(other)

	// By hand: the same lane, owner and rows, and another epoch.
	t.claim("same")
	mine := t.claim("same") // one epoch more than in the other
	epoch, ok, err := other.Store().Claim(t.ctx, t.db, 0, "same", time.Minute)
	t.must(err, "claim")
	if !ok || epoch == mine.Epoch {
		t.fail("the other's lane is claimed with epoch %d (%v), the first one's with %d", epoch, ok, mine.Epoch)
	}
	rows := t.ready()
	ok, err = other.Store().Settle(t.ctx, t.db, mine, time.Minute, dialect.Settlement{Published: refs(rows)})
	t.must(err, "settle in the other")
	if s, err := other.Stats(t.ctx); ok || err != nil || s.Ready != int64(len(messages)) {
		t.error("a settle under a lease of the first outbox was answered by the second with %v, and left %d of %d messages: %v", ok, s.Ready, len(messages), err)
	}
	theirs := dialect.Lease{Lane: 0, Owner: "same", Epoch: epoch}
	t.must(other.Store().Release(t.ctx, t.db, theirs), "release")
	t.must(t.store().Release(t.ctx, t.db, mine), "release")
	// A settle of rows that are gone changes no other ones, and a lease that is
	// gone is reported.
	ok, err = t.store().Settle(t.ctx, t.db, mine, time.Minute, dialect.Settlement{Published: refs(rows)})
	if err != nil || ok || t.stats().Ready != int64(len(messages)) {
		t.error("a settle after the release was answered with %v, and left %d of %d messages: %v", ok, t.stats().Ready, len(messages), err)
	}

	// By relays of the same name.
	same := func(c *relay.Config) { c.Owner = "same" }
	first := t.start(patient, same)
	t.awaitPublished()
	t.awaitEmpty()
	if s, err := other.Stats(t.ctx); err != nil || s.Ready != int64(len(messages)) || otherBroker.count() != 0 {
		t.error("the relay of the first outbox left %d of the second's %d messages: %v", s.Ready, len(messages), err)
	}
	second := t.startWith(relayWith{tables: &tables, publisher: publisher{otherBroker, "second"}, config: func(c *relay.Config) { patient(c); same(c) }})
	t.await("the second outbox to be empty", func() bool {
		s, err := other.Stats(t.ctx)
		t.must(err, "stats")
		return s.Ready == 0 && otherBroker.count() >= len(messages)
	})
	// Restarted relays find nothing that was settled in the wrong place.
	first.stop()
	second.stop()
	t.start(patient, same)
	t.startWith(relayWith{tables: &tables, publisher: publisher{otherBroker, "second again"}, config: func(c *relay.Config) { patient(c); same(c) }})
	more := t.message("a")
	w := t.beginOn(other)
	w.enqueue(more)
	t.must(w.tx.Commit(), "commit") // the history is the first outbox's
	w.over = true
	t.await("the second outbox's relay to go on", func() bool { return otherBroker.count(more.ID) == 1 })
	t.enqueue("a", 1)
	t.settleDown()
	t.noDuplicates()
	for i := range messages {
		if n := otherBroker.count(messages[i].ID); n != 1 {
			t.error("%v was published %d times from the second outbox", messages[i].ID, n)
		}
	}
}

func exactlyTheRowsNamed(t *trial) {
	for _, archive := range []bool{true, false} {
		// Every second one, so that each that is named has others on both sides; and
		// one that is not there.
		for i := range 20 {
			t.enqueue(fmt.Sprint("key-", i), 1)
		}
		lease := t.hold()
		rows := t.ready()
		var named, others []dialect.Ref
		for i := range rows {
			if i%2 == 1 && i < len(rows)-1 {
				named = append(named, rows[i].Ref())
			} else {
				others = append(others, rows[i].Ref())
			}
		}
		gone := []dialect.Ref{{Place: rows[len(rows)-1].Seq + 1_000_000, ID: uuid.New()}}
		t.settle(lease, dialect.Settlement{Archive: archive, Published: slices.Concat(named[:6], gone), Failed: []dialect.Failure{
			{Ref: named[6], Attempts: 1, Delay: time.Hour, Blocking: true, Reason: "once"},
			{Ref: named[7], Attempts: 1, Dead: true, Blocking: true, Reason: "never"},
		}, Hold: named[8:]})
		if left := refs(t.ready()); !slices.Equal(left, others) {
			t.error("a settle of every second row (archive %v) left %v, not %v", archive, left, others)
		}
		if n := len(t.parkedOf(t.box)); n != 3 {
			t.error("a settle that parks three rows (archive %v) parked %d", archive, n)
		}
		// The same among parked ones.
		due := t.due()
		t.settle(lease, dialect.Settlement{Archive: archive, PublishedParked: []dialect.Ref{due[0].Ref()}})
		if n := len(t.parkedOf(t.box)); n != 2 {
			t.error("a settle of one parked row (archive %v) left %d of 3", archive, n)
		}
		want := 0
		if archive {
			want = 7
		}
		if n, err := t.operator.Replay(t.ctx, everything, 0); err != nil || n != want {
			t.error("a settle of seven published messages (archive %v) kept %d: %v", archive, n, err)
		}
		t.clear()
		_, err := t.operator.Purge(t.ctx, 0, 0)
		t.must(err, "purge")
	}
}

func onlyTheMessageThatWasRead(t *trial) {
	var lease dialect.Lease
	var ready, parked []dialect.Ref
	// Five ready rows, and four parked ones that are due: a head and what waits
	// behind it, and two heads more.
	fill := func(enqueue func(messages ...outbox.Message)) {
		lease = t.hold()
		enqueue(t.message("p"), t.message("p"), t.message("q"), t.message("r"))
		first := refs(t.ready())
		if len(first) != 4 {
			t.fail("%d of 4 messages are ready", len(first))
		}
		once := func(row dialect.Ref) dialect.Failure {
			return dialect.Failure{Ref: row, Attempts: 1, Blocking: true, Reason: "once"}
		}
		t.settle(lease, dialect.Settlement{
			Hold: first[1:2], Failed: []dialect.Failure{once(first[0]), once(first[2]), once(first[3])},
		})
		enqueue(t.message("a"), t.message("b"), t.message("c"), t.message("c"), t.message(""))
		due := t.due()
		slices.SortFunc(due, func(a, b dialect.Row) int { return cmp.Compare(a.Seq, b.Seq) })
		if ready, parked = refs(t.ready()), refs(due); len(ready) != 5 || len(parked) != 4 {
			t.fail("%d of 5 messages are ready and %d of 4 are due", len(ready), len(parked))
		}
	}
	settlement := func(archive bool, ready, parked []dialect.Ref) dialect.Settlement {
		retry := func(row dialect.Ref) dialect.Failure {
			return dialect.Failure{Ref: row, Attempts: 7, Delay: time.Hour, Blocking: true, Reason: "again"}
		}
		dead := func(row dialect.Ref) dialect.Failure {
			return dialect.Failure{Ref: row, Attempts: 8, Dead: true, Blocking: true, Reason: "never"}
		}
		return dialect.Settlement{
			Archive:   archive,
			Published: ready[:2], Failed: []dialect.Failure{retry(ready[2]), dead(ready[4])}, Hold: ready[3:4],
			PublishedParked: parked[:2], FailedParked: []dialect.Failure{retry(parked[2]), dead(parked[3])},
		}
	}
	// One outcome alone, and all in one.
	changesNothing := func(whose string, s dialect.Settlement) {
		before := t.snapshot()
		for _, alone := range []struct {
			what string
			dialect.Settlement
		}{
			{"published", dialect.Settlement{Archive: s.Archive, Published: s.Published}},
			{"held", dialect.Settlement{Hold: s.Hold}},
			{"failed", dialect.Settlement{Failed: s.Failed}},
			{"published from parked", dialect.Settlement{Archive: s.Archive, PublishedParked: s.PublishedParked}},
			{"failed again", dialect.Settlement{FailedParked: s.FailedParked}},
			{"in all outcomes", s},
		} {
			t.settle(lease, alone.Settlement)
			if after := t.snapshot(); after != before {
				t.fail("a settle of rows under %s ids, %s (archive %v), changed the tables:\nbefore %s\n after %s", whose, alone.what, s.Archive, before, after)
			}
		}
		if n, err := t.box.Replay(t.ctx, everything, 0); err != nil || n != 0 {
			t.fail("a settle of rows under %s ids (archive %v) kept %d: %v", whose, s.Archive, n, err)
		}
	}
	foreign := func(rows []dialect.Ref) []dialect.Ref {
		rows = slices.Clone(rows)
		for i := range rows {
			rows[i].ID = uuid.New()
		}
		return rows
	}
	// Ids that are there, each at the place of another outcome, too.
	turned := func(rows []dialect.Ref) []dialect.Ref {
		other := slices.Clone(rows)
		for i := range rows {
			other[i].ID = rows[(i+1)%len(rows)].ID
		}
		return other
	}
	for _, archive := range []bool{true, false} {
		fill(t.enqueueUnseen)
		changesNothing("foreign", settlement(archive, foreign(ready), foreign(parked)))
		changesNothing("each other's", settlement(archive, turned(ready), turned(parked)))
		// Some of it right: that is done. Then the rest.
		t.settle(lease, settlement(archive,
			slices.Concat(ready[:1], foreign(ready[1:])), slices.Concat(foreign(parked[:3]), parked[3:])))
		if s := t.stats(); s.Ready != 4 || s.Dead != 1 || s.Retry != 2 || s.Held != 1 {
			t.error("a settle with one right id among five ready rows and one among four parked ones (archive %v) left %d ready, %d dead, %d retry, %d held",
				archive, s.Ready, s.Dead, s.Retry, s.Held)
		}
		t.settle(lease, settlement(archive, ready, parked))
		if s := t.stats(); s.Ready != 0 || s.Dead != 2 || s.Retry != 2 || s.Held != 1 {
			t.error("the right settle behind it (archive %v) left %d ready, %d dead, %d retry, %d held", archive, s.Ready, s.Dead, s.Retry, s.Held)
		}
		want := 0
		if archive {
			want = 4
		}
		if n, err := t.box.Replay(t.ctx, everything, 0); err != nil || n != want {
			t.error("the settles of four published messages (archive %v) kept %d: %v", archive, n, err)
		}
		t.clear()
		_, err := t.box.Purge(t.ctx, 0, 0)
		t.must(err, "purge")
	}
	// What was passed over is delivered.
	fill(t.enqueueAll)
	changesNothing("foreign", settlement(true, foreign(ready), foreign(parked)))
	t.must(t.store().Release(t.ctx, t.db, lease), "release")
	t.start(patient)
	t.settleDown()
	t.noDuplicates()
}

func archiveFails(t *trial) {
	r := t.start(patient)
	t.produce(load{messages: 50, keys: 10})
	t.awaitPublished()
	t.awaitEmpty()
	t.drop(t.ctx, t.box, isDone)

	// A batch with nothing but successes, then one with every outcome.
	t.produce(load{messages: 100, keys: 10})
	t.awaitPublished()
	t.awaitEmpty()
	t.broker.first(1, ofKey("retry"), refuse(errors.New("not now")))
	dead := t.broker.first(1, ofKey("dead"), refuse(relay.Permanent(errors.New("never"))))
	t.enqueueAll(t.message("retry"), t.message("retry"), t.message("dead"), t.message("dead"), t.message("fine"), t.message(""))
	t.await("the dead message", func() bool { return dead.seen() == 1 && t.stats().Dead == 1 })
	if n, err := t.operator.Requeue(t.ctx, everything, 0); err != nil || n != 1 {
		t.error("requeue without a done table: %d, %v", n, err)
	}
	t.settleDown()
	t.noDuplicates()
	told := 0
	for _, e := range eventsOf[relay.ArchiveFailed](r) {
		told += e.Messages
		if c := t.target.Dialect.Classify(e.Err); c != dialect.Missing {
			t.error("the missing table is reported as %v: %v", c, e.Err)
		}
	}
	if want := 106; told != want {
		t.error("the relay told of %d messages that were not kept, %d were not", told, want)
	}
}
