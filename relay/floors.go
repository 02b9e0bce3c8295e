package relay

import (
	"context"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// floors keeps polls and reads away from what was settled long ago, where the
// engine needs that (see [dialect.Sweeper]). A floor is used when it is a sweep
// old, so that only a transaction that was open for longer can have added a
// message below it, and that one is found by the next sweep. Only the dispatcher
// uses it.
type floors struct {
	now  int64 // in use
	next int64 // found by the last sweep
	// due is when the next sweep is.
	due time.Time
}

const (
	// sweepEvery is the least time between sweeps.
	sweepEvery = 5 * time.Second
	// sweepShare bounds the time that goes into sweeps: they come the less often
	// the longer they take.
	sweepShare = 20
)

// sweepNow makes the next poll a sweep, without moving the floor.
func (f *floors) sweepNow() { f.due = time.Time{} }

// poll looks for lanes with work. Ready messages are looked for above the floor
// returned, which is 0 in a sweep.
func (r *Relay) poll(ctx context.Context, limit int) (lanes []int, floor int64, err error) {
	sweeper, ok := r.store.(dialect.Sweeper)
	if !ok {
		lanes, err = r.store.Poll(ctx, r.db, r.cfg.Owner, limit)
		return lanes, 0, err
	}
	f := &r.floors
	began := time.Now()
	if began.Before(f.due) {
		lanes, err = sweeper.PollAbove(ctx, r.db, r.cfg.Owner, f.now, limit)
		return lanes, f.now, err
	}
	lanes, err = r.store.Poll(ctx, r.db, r.cfg.Owner, limit)
	if err != nil {
		return nil, 0, err
	}
	next, err := sweeper.Floor(ctx, r.db)
	if err != nil {
		return nil, 0, err
	}
	if !f.due.IsZero() {
		f.now = f.next
	}
	f.next = next
	f.due = time.Now().Add(max(sweepEvery, sweepShare*time.Since(began)))
	return lanes, 0, nil
}
