package conformance

import (
	"context"
	"time"
)

// enqueueScenarios: what a producer's transaction does to messages.
var enqueueScenarios = []Scenario{
	{
		Name:    "Enqueue/RollbackLeavesNothing",
		Promise: "a message whose transaction rolled back does not exist, and nothing of it is published",
		run:     rollbackLeavesNothing,
	},
	{
		Name:    "Enqueue/LateCommitIsDelivered",
		Promise: "a transaction that commits after later ones were published is published too, at once",
		lanes:   1,
		run:     lateCommitIsDelivered,
	},
}

func rollbackLeavesNothing(t *trial) {
	// The business row is a row of the inbox: a table that exists anyway.
	w := t.beginOn(t.box) // a service that has an inbox, too
	w.enqueue(t.message("a"), t.message("b"), t.message(""))
	delayed := t.message("c")
	delayed.Delay = 1
	w.enqueue(delayed)
	_, err := t.store().Record(t.ctx, w.tx, "business", "order-1")
	t.must(err, "write the business row")
	w.rollBack()

	if found, err := t.store().Recorded(t.ctx, t.db, "business", "order-1"); err != nil || found {
		t.fail("the business row is there after the rollback: %v %v", found, err)
	}
	if s := t.stats(); s.Ready+s.Scheduled+s.Retry+s.Held+s.Dead != 0 {
		t.fail("after the rollback %d messages are ready and %d scheduled", s.Ready, s.Scheduled)
	}
	// A mix: what commits is delivered, what does not is never seen.
	t.start()
	t.revision = make(map[string]int64)
	t.produce(load{messages: 200, keys: 20, perTx: 5, unkeyed: 10, rollBack: 0.3})
	t.settleDown()
}

func lateCommitIsDelivered(t *trial) {
	t.start()
	late := t.begin()
	first := t.message("late")
	late.enqueue(first)

	if !t.othersMayWrite() {
		// On an engine with one writer nobody can commit in between, so the late
		// one is simply the next.
		late.commit()
		t.enqueue("late", 1)
		t.settleDown()
		return
	}
	// There is one lane, so that a reader's place in it has moved past.
	for range 3 {
		t.enqueue("other", 20)
	}
	t.awaitPublished()
	t.awaitEmpty()
	late.commit()
	t.await("the late transaction's message to be published", func() bool { return t.broker.count(first.ID) == 1 })
	t.settleDown()
}

// othersMayWrite tells whether a second transaction can write while one that has
// written is open.
func (t *trial) othersMayWrite() bool {
	ctx, cancel := context.WithTimeout(t.ctx, time.Second)
	defer cancel()
	tx, err := t.db.BeginTx(ctx, nil)
	if err == nil {
		_, err = t.box.Enqueue(ctx, tx, t.message(""))
		_ = tx.Rollback()
	}
	if err != nil {
		t.note("the engine lets one transaction write at a time: %v", err)
	}
	return err == nil
}
