package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
)

// rowsLocked looks at what a transaction has locked the moment before it commits: the
// settle of a batch of which one message failed, which every engine does in a
// transaction, and a turn of the loop.
func rowsLocked(ctx context.Context, r *run) error {
	if r.base.Locked == nil {
		r.note("rows-locked: the engine locks no rows")
		return nil
	}
	const batch = 1000
	watcher, err := r.pool(ctx, 1)
	if err != nil {
		return err
	}
	ours := func(archive bool) func(ctx context.Context) ([]float64, error) {
		return func(ctx context.Context) ([]float64, error) {
			o, err := r.outbox(ctx)
			if err != nil {
				return nil, err
			}
			settle, err := r.oneSettle(ctx, o, batch, archive)
			if err != nil {
				return nil, err
			}
			n, err := r.lockedBy(ctx, watcher, o.DB(), tablesOf(o), settle)
			return []float64{n}, firstOf(err, r.drop(ctx, tablesOf(o)...))
		}
	}
	sides := []side{{"retention 0", ours(false)}, {"retention 24h", ours(true)}}
	forms := r.forms()
	for _, form := range forms {
		sides = append(sides, side{form.name, func(ctx context.Context) ([]float64, error) {
			t, err := r.filledLoop(ctx, 2*batch, small)
			if err != nil {
				return nil, err
			}
			db, err := r.pool(ctx, 1)
			if err != nil {
				return nil, err
			}
			n, err := r.lockedBy(ctx, watcher, db, []string{t.loop}, func(db *sql.DB) error {
				_, err := r.loop(db, t, batch, form.mark).turn(ctx)
				return err
			})
			return []float64{n}, firstOf(err, r.drop(ctx, t.loop, t.business))
		}})
	}
	got, err := r.rounds(ctx, 1, "a batch of 1,000", sides...)
	if err != nil {
		return err
	}
	for i, keep := range []string{"0", "24h"} {
		for j, form := range forms {
			r.emit(row{
				what: "a batch of 1,000 of which one failed, retention " + keep, unit: "rows", less: true,
				ours: got[i][0], against: form.name, base: got[len(got)-len(forms)+j][0],
			})
		}
	}
	return nil
}

// oneSettle enqueues a batch, claims its lane and returns the settle of it: the last
// message failed, the others were published.
func (r *run) oneSettle(ctx context.Context, o *outbox.Outbox, batch int, archive bool) (func(db *sql.DB) error, error) {
	oneLane := func(ctx context.Context, tx *sql.Tx, messages []outbox.Message) error {
		for i := range messages {
			messages[i].Key = "order"
		}
		return enqueueIn(o)(ctx, tx, messages)
	}
	if err := r.fill(ctx, oneLane, batch, small); err != nil {
		return nil, err
	}
	store, lease := o.Store(), dialect.Lease{Owner: "bench"}
	lanes, err := store.Poll(ctx, o.DB(), lease.Owner, 2)
	if err != nil || len(lanes) != 1 {
		return nil, firstOf(err, fmt.Errorf("the messages are in %d lanes", len(lanes)))
	}
	lease.Lane = lanes[0].Lane
	epoch, ok, err := store.Claim(ctx, o.DB(), lease.Lane, lease.Owner, time.Minute)
	if err != nil || !ok {
		return nil, firstOf(err, errors.New("the lane could not be claimed"))
	}
	lease.Epoch = epoch
	read, err := store.Ready(ctx, o.DB(), lease.Lane, 0, dialect.Limit{Rows: batch})
	if err != nil || len(read) != batch {
		return nil, firstOf(err, fmt.Errorf("the lane has %d messages", len(read)))
	}
	what := dialect.Settlement{Archive: archive}
	for _, m := range read {
		what.Published = append(what.Published, m.Ref())
	}
	last := batch - 1
	what.Failed = []dialect.Failure{{Ref: what.Published[last], Attempts: 1, Delay: time.Hour, Blocking: true, Reason: "measured"}}
	what.Published = what.Published[:last]
	return func(db *sql.DB) error {
		ok, err := store.Settle(ctx, db, lease, time.Minute, what)
		if err == nil && !ok {
			err = errors.New("the settle was refused")
		}
		return err
	}, nil
}

// lockedBy is how many rows are locked before the one commit of what do does, as watcher
// sees it.
func (r *run) lockedBy(ctx context.Context, watcher, db *sql.DB, tables []string, do func(db *sql.DB) error) (float64, error) {
	var rows int64
	var watched error
	commits := 0
	through := tap(db, &counter{committing: func() {
		commits++
		rows, watched = r.base.Locked(ctx, watcher, tables)
	}})
	defer through.Close() //nolint:errcheck // its connections only
	if err := firstOf(do(through), watched); err != nil {
		return 0, err
	}
	if commits != 1 {
		return 0, fmt.Errorf("%d transactions were committed, and not one", commits)
	}
	return float64(rows), nil
}
