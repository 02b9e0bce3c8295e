package relay

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// turn is one stay in a lane.
type turn struct {
	*Relay
	lease dialect.Lease
	// stop ends when the relay is to stop; publishing ends when the lease is
	// lost or the grace period is over; work is for the database.
	stop, publishing, work context.Context //nolint:containedctx // they are the turn's three ways to end, and it lives no longer
	probe                  bool
	// free lets the worker go on with another lane. It is called once at most, after
	// the last batch was published.
	free func()

	mu    sync.Mutex
	until time.Time // end of the lease by our own clock
	lost  bool      // another relay has the lane

	published int
	probed    bool // the probe's one message was handed over
	failed    bool // the database refused an operation
	worked    bool // something was surfaced or read
	room      room

	// anew tells that the connection broke, so that the next server may be another
	// one: what was known of ready messages does not count any more.
	anew atomic.Bool
}

// turn works on a lane, and then keeps it or gives it back. It calls free when all that
// is left to do is to wait for the database.
func (r *Relay) turn(stop, work, publish context.Context, l lease, probe bool, free func()) {
	began := time.Now()
	publishing, cancel := context.WithCancelCause(publish)
	defer cancel(nil)
	t := &turn{Relay: r, lease: l.Lease, stop: stop, publishing: publishing, work: work, probe: probe, free: free, until: l.until, published: l.published}
	if probe {
		defer r.down.forgo("") // if it came to no outcome
	}

	renewing, stopRenewing := context.WithCancel(work)
	var renewal sync.WaitGroup
	renewal.Go(func() { t.renew(renewing, cancel) })
	emptied := t.run(&l, began.Add(r.cfg.Turn)) //nolint:contextcheck // its contexts are the turn's
	stopRenewing()
	renewal.Wait()
	switch {
	case t.failed:
		r.lanes.rest(l.Lane, r.cfg.PollMin, restMost)
	case !t.worked:
		// It looked as if there were work: a scheduled message, say, that waits for
		// somebody's open transaction.
		r.lanes.rest(l.Lane, r.cfg.PollMin, r.cfg.PollMax)
	default:
		r.lanes.rest(l.Lane, 0, 0)
	}
	if t.isLost() {
		r.lanes.end(l.Lane)
		return
	}
	l.until, l.published = t.validUntil(), t.published
	lasts := time.Until(l.until) >= r.cfg.Lease/2+r.cfg.keep() // also after the settle
	if emptied && t.worked && lasts && !probe && !r.cfg.UntilEmpty && stop.Err() == nil {
		r.lanes.keep(l)
		return
	}
	r.giveBack(work, []lease{l})
}

// run works until the lane is empty, which it reports, the turn is over, or it cannot go
// on.
// Every read of ready messages begins above the floor, never above the last row
// seen: a message that committed late may stand before it, and a newer one of
// its key behind.
func (t *turn) run(l *lease, end time.Time) (emptied bool) {
	floor := l.floor
	scheduled, due, ready := l.due, l.due, true
	for scheduled || due || ready {
		if scheduled {
			n, ok := t.surface()
			if !ok {
				return false
			}
			scheduled = n == t.cfg.Batch
		}
		if due {
			rows, full, ok := t.read("due", func(ctx context.Context, limit dialect.Limit) ([]dialect.Row, error) {
				return t.store.Due(ctx, t.db, t.lease.Lane, limit)
			})
			if !ok || !t.deliver(rows, true, false) {
				return false
			}
			// What a run of one key left behind it is due at once.
			due = full || len(rows) > 0
		}
		if ready {
			rows, full, ok := t.read("ready", func(ctx context.Context, limit dialect.Limit) ([]dialect.Row, error) {
				if t.anew.Load() {
					floor = 0
				}
				return t.store.Ready(ctx, t.db, t.lease.Lane, floor, limit)
			})
			if !ok || !t.deliver(rows, false, !full && !scheduled && !due) {
				return false
			}
			ready = full
		}
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// surface moves scheduled messages that are due to their place.
func (t *turn) surface() (moved int, ok bool) {
	ctx, cancel := context.WithTimeout(t.publishing, t.cfg.Lease)
	defer cancel()
	moved, held, err := t.store.Surface(ctx, t.db, t.lease, t.cfg.Batch)
	switch {
	case err != nil && t.classify(err) == dialect.Conflict:
		// Somebody else's open transaction is in its way, not in the others'.
		t.observe(Erred{Op: "surface", Err: err})
		return 0, true
	case err != nil:
		t.failed = true
		t.erred(ctx, "surface", err)
		return 0, false
	case !held:
		t.lose(0)
		return 0, false
	}
	if moved > 0 {
		t.worked = true
		t.observe(Surfaced{Lane: t.lease.Lane, Messages: moved})
	}
	return moved, true
}

// read reads a batch. full tells that there may be more.
func (t *turn) read(op string, read func(context.Context, dialect.Limit) ([]dialect.Row, error)) (rows []dialect.Row, full, ok bool) {
	if t.stop.Err() != nil || t.publishing.Err() != nil {
		return nil, false, false
	}
	limit := dialect.Limit{Rows: t.cfg.Batch, Bytes: t.cfg.BatchBytes, Room: t.room.rows[:0]}
	ctx, cancel := context.WithTimeout(t.publishing, t.cfg.Lease)
	defer cancel()
	rows, err := read(ctx, limit)
	if err != nil {
		t.failed = t.publishing.Err() == nil
		t.erred(ctx, "read "+op, err)
		return nil, false, false
	}
	if cap(rows) > cap(t.room.rows) {
		t.room.rows = rows
	}
	t.worked = t.worked || len(rows) > 0
	return rows, len(rows) >= limit.Rows || sizeOf(rows) >= limit.Bytes, true
}

// sizeOf is the size that a limit of bytes counts.
func sizeOf(rows []dialect.Row) (size int64) {
	for i := range rows {
		size += int64(len(rows[i].Payload) + len(rows[i].Headers))
	}
	return size
}

// deliver publishes a batch and settles it. It reports whether the turn may go
// on. The settle of the last one, if it is small, needs no worker.
func (t *turn) deliver(rows []dialect.Row, parked, last bool) bool {
	if len(rows) == 0 {
		return true
	}
	b := t.newBatch(rows, parked)
	defer t.room.sweep(rows)
	b.publish()
	s := b.settlement()
	if last && !t.probe && !t.cfg.UntilEmpty && len(rows) <= t.cfg.Batch/4 && sizeOf(rows) <= t.cfg.BatchBytes/4 {
		t.free()
	}
	ok := s.Empty() || t.settle(s, b)
	// A probe is one message; if it got through, the next turn is a full one.
	return ok && !b.stuck && !t.probed
}

// settle records the outcomes, trying again for as long as the lease may be
// ours: what was accepted must not be published again because the database was
// busy. Settle may be repeated, so an unknown outcome is no matter.
func (t *turn) settle(s dialect.Settlement, b *batch) bool {
	first := time.Now()
	for try := 1; ; try++ {
		// A connection that went silent must not hold the lane for ever, and a
		// slow server must get its time.
		ctx, cancel := context.WithTimeout(t.work, ceiling(try, t.cfg.Lease/3+time.Second, time.Minute))
		began := time.Now()
		ok, err := t.store.Settle(ctx, t.db, t.lease, t.cfg.Lease, s)
		cancel()
		if err == nil {
			if !ok {
				t.lose(len(s.Published) + len(s.PublishedParked))
				return false
			}
			t.extended(began)
			break
		}
		if t.work.Err() != nil || t.isLost() {
			return false
		}
		t.observe(SettleRetried{Lane: t.lease.Lane, Try: try, Err: err})
		t.shake(err)
		t.replaceReadOnly(t.work, err)
		class := t.classify(err)
		if s.Archive && (class == dialect.Other || class == dialect.Missing || class == dialect.Transient && time.Since(first) > t.cfg.Lease) {
			// If it is the archive that fails, the messages must leave all the
			// same: publishing them again and again would be worse. A full disk is
			// Transient, and so is what really passes.
			bare := s
			bare.Archive = false
			ctx, cancel := context.WithTimeout(t.work, t.cfg.Lease)
			ok, bareErr := t.store.Settle(ctx, t.db, t.lease, t.cfg.Lease, bare)
			cancel()
			if bareErr == nil {
				if !ok {
					t.lose(len(s.Published) + len(s.PublishedParked))
					return false
				}
				t.observe(ArchiveFailed{Lane: t.lease.Lane, Messages: len(s.Published) + len(s.PublishedParked), Err: err})
				break
			}
		}
		if !sleep(t.work, retryDelay(try, 10*time.Millisecond, 5*time.Second)) {
			return false
		}
	}
	b.settled(time.Since(first))
	t.published += len(s.Published) + len(s.PublishedParked)
	return true
}

// renew extends the lease until ctx ends, and cancels publishing when it is
// lost, or may be because no renewal got through in time.
func (t *turn) renew(ctx context.Context, cancel context.CancelCauseFunc) {
	every := time.Until(t.validUntil()) / 3 // of a lane that was kept, less than a lease is left
	for sleep(ctx, every) {
		began := time.Now()
		most := t.cfg.Lease / 3 // time enough to connect anew
		if left := time.Until(t.validUntil()); left > 0 {
			most = min(most, left/2) // and to try again
		}
		call, done := context.WithTimeout(ctx, most)
		ok, err := t.store.Extend(call, t.db, t.lease, t.cfg.Lease)
		done()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			t.observe(Erred{Op: "extend", Err: err})
			t.shake(err)
			t.replaceReadOnly(ctx, err)
			every = t.cfg.Lease / 10
			if time.Now().After(t.validUntil()) {
				// Another relay may have the lane by now. Nothing more is published;
				// what was accepted may still be settled, as the fence decides.
				cancel(errLeaseLost)
			}
		case !ok:
			cancel(errLeaseLost)
			t.lose(0)
			return
		default:
			every = t.cfg.Lease / 3
			t.extended(began)
		}
	}
}

// shake has the floor forgotten, here and by the polls, unless the error says that
// the server is there and its data what they were.
func (t *turn) shake(err error) {
	switch t.classify(err) {
	case dialect.Conflict, dialect.Duplicate:
	default:
		t.anew.Store(true)
		t.forget()
	}
}

// lose notes that the fence refused us. It is observed once a turn.
func (t *turn) lose(accepted int) {
	t.mu.Lock()
	was := t.lost
	t.lost = true
	t.mu.Unlock()
	if !was {
		t.observe(LeaseLost{Lane: t.lease.Lane, Epoch: t.lease.Epoch, Accepted: accepted})
	}
}

func (t *turn) isLost() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lost
}

// extended notes a renewal that was asked for at began.
func (t *turn) extended(began time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if until := began.Add(t.cfg.Lease); until.After(t.until) {
		t.until = until
	}
}

func (t *turn) validUntil() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.until
}

// reason is an error's text as it is kept with the message.
func reason(err error) string {
	text := strings.ToValidUTF8(strings.ReplaceAll(err.Error(), "\x00", ""), "�")
	if len(text) > dialect.MaxReason {
		text = strings.ToValidUTF8(text[:dialect.MaxReason], "")
	}
	return text
}

// uncounted tells whether a failure costs no attempt: the broker was away, or
// the relay itself ended the call.
func uncounted(err error) bool {
	return IsUnavailable(err) || errors.Is(err, errLeaseLost) || errors.Is(err, errStopped)
}
