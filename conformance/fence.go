package conformance

import (
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// fenceScenarios: what a lease is worth while it is being used.
var fenceScenarios = []Scenario{{
	Name:    "Settle/FenceHoldsTheLane",
	Promise: "once a settle has found its lease nobody else gets the lane until it has ended; and when somebody got it before, the settle changes nothing",
	lanes:   1,
	run:     fenceHoldsTheLane,
}}

// fenceHoldsTheLane has another owner claim the lane of a lease that is over, before
// the first, second … step of a settle under it. A fence that looks at the lease and
// does not lock it lets both have their way.
func fenceHoldsTheLane(t *trial) {
	for _, c := range []struct {
		name       string
		settlement func(rows []dialect.Row) dialect.Settlement
	}{
		{"published", func(rows []dialect.Row) dialect.Settlement {
			return dialect.Settlement{Archive: true, Published: refs(rows)}
		}},
		{"all outcomes", func(rows []dialect.Row) dialect.Settlement {
			return dialect.Settlement{
				Archive: true, Published: refs(rows[:1]), Hold: refs(rows[2:]),
				Failed: []dialect.Failure{{Ref: rows[1].Ref(), Attempts: 1, Delay: time.Hour, Blocking: true, Reason: "refused"}},
			}
		}},
	} {
		step := 1
		for t.claimedBefore(step, c.name, c.settlement) {
			step++
		}
	}
}

// claimedBefore settles, with another owner's claim before a step, and tells whether
// there was such a step.
func (t *trial) claimedBefore(step int, name string, settlement func(rows []dialect.Row) dialect.Settlement) bool {
	messages := t.enqueue("k", 3)
	began := time.Now()
	epoch, ok, err := t.store().Claim(t.ctx, t.db, 0, "old", time.Millisecond)
	t.must(err, "claim")
	chance := max(250*time.Millisecond, 4*time.Since(began)) // for a claim that nothing holds up, here
	if !ok {
		t.fail("the lane is not to be had")
	}
	old := dialect.Lease{Lane: 0, Owner: "old", Epoch: epoch}
	t.await("the lease to end", func() bool {
		lanes, err := t.store().Poll(t.ctx, t.db, "new", 1)
		t.must(err, "poll")
		return len(lanes) == 1
	})
	rows := t.ready()
	if len(rows) != len(messages) {
		t.fail("%d rows are ready, not %d", len(rows), len(messages))
	}

	// Not the same store, which may have writers stand in a line of its own.
	other := t.newBox(t.open(), t.target.Dialect)
	type claim struct {
		epoch int64
		ok    bool
		err   error
	}
	claimed := make(chan claim, 1)
	var early *claim // what came of it before the settle went on
	steps := 0
	db := t.adopt(tap(t.open(), wire{before: func(statement) error {
		if steps++; steps != step {
			return nil
		}
		go func() {
			epoch, ok, err := other.Store().Claim(t.ctx, other.DB(), 0, "new", time.Minute)
			claimed <- claim{epoch, ok, err}
		}()
		select {
		case c := <-claimed:
			early = &c
		case <-time.After(chance): // it waits for the settle, as it may
		}
		return nil
	}}))
	settled, err := t.store().Settle(t.ctx, db, old, time.Millisecond, settlement(rows))
	if err != nil && t.target.Dialect.Classify(err) != dialect.Conflict {
		t.fail("%s, another's claim before step %d: settle: %v", name, step, err)
	}
	settled = settled && err == nil
	if steps < step {
		t.clearLane(old)
		return false
	}
	late := early == nil
	if late {
		c := <-claimed
		early = &c
	}
	t.must(early.err, "claim as another owner before step %d of a settle", step)
	if early.ok && !late && settled {
		t.fail("%s: another owner claimed the lane before step %d of a settle, and the settle took effect all the same: the fence does not hold", name, step)
	}
	if left := len(t.ready()); settled != (left == 0) {
		t.fail("%s, another's claim before step %d: the settle returned %t, and %d of %d rows are ready", name, step, settled, left, len(rows))
	}
	if early.ok {
		old = dialect.Lease{Lane: 0, Owner: "new", Epoch: early.epoch}
	}
	t.clearLane(old)
	return true
}

// clearLane discards what is in the lane and frees it.
func (t *trial) clearLane(lease dialect.Lease) {
	t.must(t.store().Release(t.ctx, t.db, lease), "release")
	epoch, ok, err := t.store().Claim(t.ctx, t.db, 0, "clear", time.Minute)
	t.must(err, "claim")
	if !ok {
		t.fail("the lane is not to be had though it was released")
	}
	own := dialect.Lease{Lane: 0, Owner: "clear", Epoch: epoch}
	ok, err = t.store().Settle(t.ctx, t.db, own, time.Minute, dialect.Settlement{Archive: true, Published: refs(t.ready())})
	t.must(err, "settle what is left")
	if !ok {
		t.fail("the lease of a lane just claimed is lost")
	}
	_, err = t.box.Discard(t.ctx, everything, 0)
	t.must(err, "discard what is parked")
	t.must(t.store().Release(t.ctx, t.db, own), "release")
}
