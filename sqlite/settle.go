package sqlite

import (
	"context"
	"database/sql"
	"slices"
	"sync"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// settlement is one call of Settle.
type settlement struct {
	ctx     context.Context //nolint:containedctx // it is the call's, and lives no longer
	db      dialect.DB
	lease   dialect.Lease
	ttl     time.Duration
	outcome dialect.Settlement

	done chan struct{} // closed when the rest is set
	ok   bool
	err  error
}

// settlements are the calls that wait for the writer's place.
type settlements struct {
	mu      sync.Mutex
	waiting []*settlement
}

func (w *settlements) add(one *settlement) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = append(w.waiting, one)
}

// remove takes a call back. It returns false when somebody is at it.
func (w *settlements) remove(one *settlement) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.Index(w.waiting, one)
	if i >= 0 {
		w.waiting = slices.Delete(w.waiting, i, i+1)
	}
	return i >= 0
}

// mostTogether is how many rows are settled together: a large batch of each of the lanes
// that a schema has by default. Their rows stand on the same pages, which are so written
// once instead of by every batch. Rows that are archived count as several: theirs are other
// pages, and producers wait meanwhile.
const mostTogether, archived = 4000, 4

// take hands over one, if it still waits, and others that wait with its pool.
func (w *settlements) take(one *settlement) (group []*settlement) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Contains(w.waiting, one) {
		return nil
	}
	rows := one.rows()
	w.waiting = slices.DeleteFunc(w.waiting, func(other *settlement) bool {
		switch {
		case other == one:
		case other.db != one.db || rows+other.rows() > mostTogether:
			return false
		default:
			rows += other.rows()
		}
		group = append(group, other)
		return true
	})
	return group
}

// rows is how many rows count.
func (one *settlement) rows() int {
	o := &one.outcome
	published := len(o.Published) + len(o.PublishedParked)
	if o.Archive {
		published *= archived
	}
	return published + len(o.Hold) + len(o.Failed) + len(o.FailedParked)
}

// Settle implements [dialect.Turn]. A file has one writer, and each commit waits for the
// disk. So the settlements that came while another one ran are settled together, each
// behind its own fence: who gets the writer's place does it for all of them.
func (s *store) Settle(ctx context.Context, db dialect.DB, lease dialect.Lease, ttl time.Duration, outcome dialect.Settlement) (bool, error) {
	one := &settlement{ctx: ctx, db: db, lease: lease, ttl: ttl, outcome: outcome, done: make(chan struct{})}
	s.settlements.add(one)
	select {
	case s.writing <- struct{}{}:
		s.settle(one)
		s.unlock()
	case <-one.done:
	case <-ctx.Done():
		if s.settlements.remove(one) {
			return false, ctx.Err()
		}
	}
	select {
	case <-one.done:
		return one.ok, one.err
	case <-ctx.Done():
		return false, ctx.Err() // the outcome is unknown, and the call may be repeated
	}
}

// settle does one settlement and what can be done with it, with the writer's place held.
// Together first: if anything is wrong with one of them, each by itself.
func (s *store) settle(one *settlement) {
	group := s.settlements.take(one)
	group = slices.DeleteFunc(group, func(one *settlement) bool {
		if one.err = one.ctx.Err(); one.err != nil {
			close(one.done) // nobody waits for it any more
		}
		return one.err != nil
	})
	if len(group) > 1 && s.settleTogether(one.ctx, one.db, group) == nil {
		for _, one := range group {
			close(one.done)
		}
		return
	}
	for _, one := range group {
		one.err = s.transaction(one.ctx, one.db, func(tx *sql.Tx) (err error) {
			one.ok, err = s.settleOne(one.ctx, tx, one)
			return err
		})
		one.ok = one.ok && one.err == nil
		close(one.done)
	}
}

// settleTogether is all or nothing. It ends with the time of the call that does it for
// the others, and not with that call: they have nothing to do with it.
func (s *store) settleTogether(ctx context.Context, db dialect.DB, group []*settlement) error {
	together := context.WithoutCancel(ctx)
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		together, cancel = context.WithDeadline(together, end)
		defer cancel()
	}
	return s.transaction(together, db, func(tx *sql.Tx) (err error) {
		for _, one := range group {
			if one.ok, err = s.settleOne(together, tx, one); err != nil {
				return err
			}
		}
		return nil
	})
}

// settleOne settles behind the fence.
func (s *store) settleOne(ctx context.Context, tx *sql.Tx, one *settlement) (ok bool, err error) {
	ok, err = fence(ctx, tx, s.sql.settle, one.lease, one.ttl.Microseconds())
	if err != nil || !ok {
		return false, err
	}
	return true, s.move(ctx, tx, one.lease.Lane, one.outcome)
}
