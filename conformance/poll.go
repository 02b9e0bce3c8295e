package conformance

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/relay"
)

// pollScenarios: what looking for work costs.
var pollScenarios = []Scenario{
	{
		Name:     "Poll/IdleCostFlat",
		Promise:  "with very many done messages a poll, a claim and a batch cost what they cost with none",
		alone:    true,
		measures: true,
		lanes:    1,
		timeout:  10 * time.Minute,
		run:      idleCostFlat,
	},
	{
		Name:     "Poll/OldSnapshotOpen",
		Promise:  "while a reader's snapshot stays open and very many messages pass, the drain keeps at least 80% of its rate and a poll its cost",
		alone:    true,
		measures: true,
		timeout:  15 * time.Minute,
		run:      oldSnapshotOpen,
	},
}

// measured is one way to use an outbox, to be timed beside another outbox.
type measured struct {
	name string
	// times is how often it is done for one figure, so that the figure is long
	// enough to be told from the clock's steps.
	times int
	do    func(box *outbox.Outbox)
}

// compare returns the median times of m on two outboxes, done by turns, so that
// whatever else the machine does meets both.
func (t *trial) compare(m measured, a, b *outbox.Outbox) (medianA, medianB time.Duration) {
	const rounds = 21
	var took [2][]time.Duration
	for range rounds {
		for i, box := range []*outbox.Outbox{a, b} {
			began := time.Now()
			for range m.times {
				m.do(box)
			}
			took[i] = append(took[i], time.Since(began)/time.Duration(m.times))
		}
	}
	return quantile(took[0], 0.5), quantile(took[1], 0.5)
}

func idleCostFlat(t *trial) {
	empty, full := t.second(), t.box
	n := t.size(500_000, 20_000)
	// The same passes through both, so that what has only just been deleted, which
	// some engines clean up later, is there in both.
	const parts = 10
	for range parts {
		t.fill(full, n/parts, true)
		t.fill(empty, n/parts, false)
	}
	t.do("measured")
	one := t.message("one") // content for the batches
	poll := func(box *outbox.Outbox) {
		lanes, err := box.Store().Poll(t.ctx, box.DB(), "idle", 10)
		t.must(err, "poll")
		if len(lanes) > 0 {
			t.fail("a poll offers %v, and there is nothing to do", lanes)
		}
	}
	lease := func(box *outbox.Outbox) dialect.Lease {
		epoch, ok, err := box.Store().Claim(t.ctx, box.DB(), 0, holder, time.Minute)
		t.must(err, "claim")
		if !ok {
			t.fail("the lane could not be claimed")
		}
		return dialect.Lease{Lane: 0, Owner: holder, Epoch: epoch}
	}
	for _, m := range []measured{
		{"an idle poll", 20, poll},
		{"a look at whether anything is pending", 20, func(box *outbox.Outbox) {
			_, _, err := box.Store().Pending(t.ctx, box.DB(), "idle")
			t.must(err, "pending")
		}},
		{"a claim and an empty turn", 5, func(box *outbox.Outbox) {
			l := lease(box)
			_, err := box.Store().Due(t.ctx, box.DB(), 0, dialect.Limit{Rows: 100})
			t.must(err, "due")
			_, err = box.Store().Ready(t.ctx, box.DB(), 0, 0, dialect.Limit{Rows: 100})
			t.must(err, "ready")
			t.must(box.Store().Release(t.ctx, box.DB(), l), "release")
		}},
		{"a turn with ten messages", 2, func(box *outbox.Outbox) {
			batch := make([]outbox.Message, 10)
			for i := range batch {
				batch[i] = one
				batch[i].ID = t.newID(t.rand)
			}
			t.must(box.InTx(t.ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
				_, err := box.Enqueue(ctx, tx, batch...)
				return err
			}), "enqueue")
			l := lease(box)
			rows, err := box.Store().Ready(t.ctx, box.DB(), 0, 0, dialect.Limit{Rows: 100})
			t.must(err, "ready")
			if len(rows) != len(batch) {
				t.fail("%d of %d messages are ready", len(rows), len(batch))
			}
			ok, err := box.Store().Settle(t.ctx, box.DB(), l, time.Minute, dialect.Settlement{Archive: true, Published: refs(rows)})
			t.must(err, "settle")
			if !ok {
				t.fail("a settle was refused, and the lease is the lane's")
			}
			t.must(box.Store().Release(t.ctx, box.DB(), l), "release")
		}},
		{"the counts of an operator", 5, func(box *outbox.Outbox) {
			_, err := box.Stats(t.ctx)
			t.must(err, "stats")
		}},
	} {
		// A cost that grows with the table is dozens of times as high; a machine
		// that is busy in the wrong moment may show half as much again.
		var without, with time.Duration
		var ratio float64
		for range 3 {
			without, with = t.compare(m, empty, full)
			if ratio = float64(with) / float64(without); ratio <= 1.5 {
				break
			}
		}
		t.note("%s: %v with none, %v with %d done (ratio %.2f)", m.name, without.Round(time.Microsecond), with.Round(time.Microsecond), n, ratio)
		if ratio > 1.5 {
			t.error("%s costs %v with %d done messages and %v with none, %.2f times as much", m.name, with, n, without, ratio)
		}
	}
}

// rows counts the rows of all tables as tx sees them.
func (t *trial) rows(tx *sql.Tx) (all int) {
	for _, step := range t.box.Schema() {
		for _, m := range createTable.FindAllStringSubmatch(step.SQL, -1) {
			var n int
			t.must(tx.QueryRowContext(t.ctx, "SELECT COUNT(*) FROM "+m[1]).Scan(&n), "read in the snapshot")
			all += n
		}
	}
	return all
}

// openSnapshot opens a transaction that goes on seeing what is there now, as a
// report or a backup does, and returns what ends it.
func (t *trial) openSnapshot() (end func()) {
	db := t.open()
	// Serializable comes last: some engines take a lock for it that nobody can write beside.
	for _, level := range []sql.IsolationLevel{sql.LevelSnapshot, sql.LevelRepeatableRead, sql.LevelDefault, sql.LevelSerializable} {
		tx, err := db.BeginTx(t.ctx, &sql.TxOptions{Isolation: level, ReadOnly: true})
		if err != nil {
			continue
		}
		before := t.rows(tx)
		sees := func() bool { return t.rows(tx) != before }
		// A snapshot is one that does not see what comes later.
		t.enqueue("later", 1)
		if sees() {
			_ = tx.Rollback()
			t.drainOnce(t.db)
			continue
		}
		t.drainOnce(t.db)
		return func() {
			if sees() {
				t.error("the snapshot was lost meanwhile")
			}
			_ = tx.Rollback()
		}
	}
	t.fail("the engine offers no isolation level that keeps a snapshot")
	return nil
}

// drainOnce has a relay publish what is there.
func (t *trial) drainOnce(db *sql.DB) {
	r := t.startWith(relayWith{db: db, config: func(c *relay.Config) {
		patient(c)
		c.UntilEmpty, c.Batch = true, 500
	}})
	select {
	case <-r.done:
	case <-t.ctx.Done():
		t.fail("the time was over while a relay drained")
	}
}

func oldSnapshotOpen(t *trial) {
	chunk := t.size(10_000, 2000)
	passing := t.size(200_000, 20_000)
	// One relay for all of it, as people have it: what it learns of the messages that
	// it leaves behind is a part of what is measured.
	r := t.startWith(relayWith{config: func(c *relay.Config) {
		patient(c)
		c.Batch, c.PollMin, c.PollMax = 500, time.Millisecond, 5*time.Millisecond
	}})
	// pass lets messages through, a chunk at a time, and returns the rate of each
	// chunk in messages a second: of the drain only, which begins when all of the
	// chunk is there.
	pass := func(n int) (rates []float64) {
		for done := 0; done < n; done += chunk {
			whole := t.gate()
			held := t.broker.when(anyMessage, after(whole, acceptIt))
			t.produce(load{messages: chunk, keys: 500, perTx: 500})
			t.do("drained message %d of %d", done, n)
			began := time.Now()
			whole.open()
			t.awaitPublished()
			rates = append(rates, float64(chunk)/time.Since(began).Seconds())
			held.remove()
		}
		return rates
	}
	// idle is the median of the relay's next polls that find nothing.
	idle := func(polls int) time.Duration {
		t.awaitEmpty()
		seen := len(r.idlePolls())
		t.await("polls that find nothing", func() bool { return len(r.idlePolls()) >= seen+polls })
		return quantile(slices.Clone(r.idlePolls()[seen:]), 0.5)
	}
	median := func(rates []float64) float64 {
		return slices.Sorted(slices.Values(rates))[len(rates)/2]
	}
	pass(chunk) // what is cold
	var kept, costs float64
	for try := range 3 {
		before := append(pass(2*chunk), pass(chunk)...)
		idleBefore := idle(101)
		end := t.openSnapshot()
		during := pass(passing)
		// The relay may need a while until it knows that nothing can come any more
		// where it has been.
		var idleDuring time.Duration
		passed := time.Now()
		for {
			idleDuring = idle(51)
			if idleDuring <= 3*idleBefore || time.Since(passed) > 2*t.target.Patience {
				break
			}
		}
		known := time.Since(passed)
		end()
		// The last of them have everything behind them that has passed.
		late := during[len(during)-min(5, len(during)/2):]
		kept = median(late) / median(before)
		costs = float64(idleDuring) / float64(idleBefore)
		t.note("drained %.0f messages/s before and %.0f behind %d messages under an open snapshot: %.0f%%; an idle poll took %v and, %v after the last message, %v",
			median(before), median(late), passing, 100*kept, idleBefore.Round(time.Microsecond), known.Round(time.Second), idleDuring.Round(time.Microsecond))
		if kept >= 0.8 && costs <= 3 {
			break
		}
		if try < 2 {
			t.note("tried again, for the machine may have been busy with something else")
		}
	}
	if kept < 0.8 {
		t.error("the drain kept %.0f%% of its rate under an open snapshot", 100*kept)
	}
	if costs > 3 {
		t.error("an idle poll took %.1f times as long under an open snapshot", costs)
	}
	t.settleDown()
	t.noDuplicates()
}
