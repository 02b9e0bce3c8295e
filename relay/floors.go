package relay

import (
	"context"
	"errors"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// floors keeps polls and reads away from what was settled long ago, where the
// engine needs that (see [dialect.Sweeper]). The floor only ever rises to a seq
// below which nothing is ready and no transaction can add anything: a message
// that commits late must not be passed by a newer one of its key. It is a hint:
// it is forgotten at every error, and when seqs go back, since the next server may
// be another one, and a sweep from the start checks it. Only the dispatcher uses it.
type floors struct {
	floor   int64
	pending *dialect.Horizon // not yet reached
	// look is when the next horizon is due, sweep when the next one is to begin
	// from the start.
	look, sweep time.Time
}

const (
	// horizonEvery is the least time between two horizons, so also between a
	// transaction's being given a seq and that seq's being below the floor.
	horizonEvery = 250 * time.Millisecond
	// sweepEvery is the least time between two looks from the start.
	sweepEvery = 30 * time.Second
	// lookShare bounds the time that goes into looking: it is done the less often
	// the longer it takes.
	lookShare = 20
)

// look lets the floor follow when it is time to, ahead of a poll and in time of its
// own: a horizon that takes longer than a lease must not cost the poll its time, or
// nothing would be claimed any more.
func (r *Relay) look(ctx context.Context) {
	sweeper, ok := r.store.(dialect.Sweeper)
	if !ok {
		return
	}
	f := &r.floors
	if r.shaken.Swap(false) {
		*f = floors{look: f.look}
	}
	began := time.Now()
	if began.Before(f.look) {
		return
	}
	call, cancel := context.WithTimeout(ctx, r.cfg.Lease)
	defer cancel()
	err := f.raise(call, sweeper, r.db)
	if err == nil {
		return
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		*f = floors{} // polls from the start do without it
	}
	f.pending = nil
	f.look = time.Now().Add(max(sweepEvery, lookShare*time.Since(began)))
	f.sweep = f.look
	r.lanes.shake()
	if ctx.Err() == nil { // a stop is no error
		r.observe(Erred{Op: "horizon", Err: err})
	}
}

// poll looks for lanes with work. Ready messages are looked for above the floor
// returned.
func (r *Relay) poll(ctx context.Context, limit int) (lanes []dialect.Candidate, floor int64, err error) {
	sweeper, ok := r.store.(dialect.Sweeper)
	if !ok {
		lanes, err = r.store.Poll(ctx, r.db, r.cfg.Owner, limit)
		return lanes, 0, err
	}
	floor = r.floors.floor
	lanes, err = sweeper.PollAbove(ctx, r.db, r.cfg.Owner, floor, limit)
	return lanes, floor, err
}

// raise takes a horizon and lets the floor follow.
func (f *floors) raise(ctx context.Context, sweeper dialect.Sweeper, db dialect.DB) error {
	began := time.Now()
	sweeps := began.After(f.sweep)
	from := f.floor
	if sweeps {
		from = 0
	}
	now, err := sweeper.Horizon(ctx, db, from)
	if err != nil {
		return err
	}
	if now.Newest < f.floor || f.pending != nil && now.Newest < f.pending.Newest {
		// Seqs went back, so this is another server, or one that lost its last
		// commits. What is known of the one before does not count.
		f.floor, f.pending = 0, nil
	}
	if f.pending != nil && now.Running >= f.pending.Begun {
		f.floor = max(f.floor, f.pending.Newest)
		f.pending = nil
	}
	if now.Oldest > 0 {
		f.floor = min(f.floor, now.Oldest-1)
	}
	if f.pending == nil {
		f.pending = &now
	}
	pause := lookShare * time.Since(began)
	f.look = time.Now().Add(max(horizonEvery, pause))
	if sweeps {
		f.sweep = time.Now().Add(max(sweepEvery, pause))
	}
	return nil
}
