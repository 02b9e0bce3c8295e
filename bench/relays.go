package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/relay"
)

// accept is a publisher that throws everything away, as discard: does.
type accept struct{}

// Publish accepts all messages.
func (accept) Publish(context.Context, []relay.Message) []error { return nil }

// KeepsOrder returns true: nothing ever fails.
func (accept) KeepsOrder() bool { return true }

// fleet are relays in this process, each with a pool of its own.
type fleet struct {
	outbox    *outbox.Outbox
	relays    int
	config    relay.Config
	publisher relay.Publisher
	// wrap, when set, is put around each pool.
	wrap func(*sql.DB) *sql.DB
	// settled, when set, is told how many messages are settled so far.
	settled func(total int64)
	// shared relays use the outbox itself, whose wake-ups they get.
	shared bool
	// polled, when set, is told how many relays have polled.
	polled func(relays int64)
}

// start starts the relays. stop ends them and returns the first error of any kind
// that they met.
func (r *run) start(ctx context.Context, f fleet) (stop func() error, err error) {
	if f.publisher == nil {
		f.publisher = accept{}
	}
	ctx, cancel := context.WithCancel(ctx)
	var (
		group sync.WaitGroup
		total atomic.Int64
		began atomic.Int64
		mu    sync.Mutex
		first error
		taps  []*sql.DB
	)
	note := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if first == nil && ctx.Err() == nil { // what a stop cuts off is no error
			first = err
		}
	}
	stop = func() error {
		cancel()
		group.Wait()
		for _, db := range taps {
			_ = db.Close()
		}
		mu.Lock()
		defer mu.Unlock()
		return first
	}
	other := f.config.Observer
	f.config.Observer = relay.ObserverFunc(func(e relay.Event) {
		switch e := e.(type) {
		case relay.Settled:
			n := total.Add(int64(e.Published))
			if f.settled != nil {
				f.settled(n)
			}
		case relay.Erred:
			note(fmt.Errorf("relay: %s: %w", e.Op, e.Err))
		case relay.ArchiveFailed:
			note(fmt.Errorf("relay: archive: %w", e.Err))
		}
		if other != nil {
			other.Observe(e)
		}
	})
	for i := range f.relays {
		o := f.outbox
		if !f.shared {
			if o, err = r.again(ctx, f.outbox, i+1); err != nil {
				_ = stop() // what was wrong is known
				return nil, err
			}
		}
		if f.wrap != nil {
			db := f.wrap(o.DB())
			taps = append(taps, db)
			if o, err = outbox.New(db, r.target.Dialect, outbox.Config{Prefix: o.Tables().Prefix, Lanes: o.Tables().Lanes}); err != nil {
				_ = stop() // what was wrong is known
				return nil, err
			}
		}
		cfg := f.config
		if f.polled != nil {
			var once sync.Once
			cfg.Observer = relay.ObserverFunc(func(e relay.Event) {
				if _, ok := e.(relay.Polled); ok {
					once.Do(func() { f.polled(began.Add(1)) })
				}
				f.config.Observer.Observe(e)
			})
		}
		rl, err := relay.New(o, f.publisher, cfg)
		if err != nil {
			_ = stop() // as above
			return nil, err
		}
		group.Go(func() {
			if err := rl.Run(ctx); err != nil {
				note(err)
			}
		})
	}
	return stop, nil
}

// stalled is how long a drain may go without a settle.
const stalled = 2 * time.Minute

// tally counts what relays have settled, or the relays themselves.
type tally struct {
	what  string // is missing when nothing moves
	total atomic.Int64
	moved chan struct{} // holds one when the total has grown
}

func newTally(what string) *tally { return &tally{what: what, moved: make(chan struct{}, 1)} }

// add is told the total so far, in any order.
func (t *tally) add(total int64) {
	for was := t.total.Load(); total > was && !t.total.CompareAndSwap(was, total); {
		was = t.total.Load()
	}
	select {
	case t.moved <- struct{}{}:
	default: // whoever waits will look
	}
}

// await waits until the total is n.
func (t *tally) await(ctx context.Context, n int64) error {
	quiet := time.NewTimer(stalled)
	defer quiet.Stop()
	for t.total.Load() < n {
		select {
		case <-t.moved:
			quiet.Reset(stalled)
		case <-quiet.C:
			return fmt.Errorf("no %s for %v", t.what, stalled)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// drain starts the relays, waits until n messages are settled, and returns how long
// that took, from before the start.
func (r *run) drain(ctx context.Context, n int, f fleet) (time.Duration, error) {
	settled := f.tally()
	began := time.Now()
	stop, err := r.start(ctx, f)
	if err != nil {
		return 0, err
	}
	err = settled.await(ctx, int64(n))
	took := time.Since(began)
	return took, r.stopped(stop, err)
}

// tally is told what is settled, beside who is told already.
func (f *fleet) tally() *tally {
	settled := newTally("message was settled")
	other := f.settled
	f.settled = func(total int64) {
		if other != nil {
			other(total)
		}
		settled.add(total)
	}
	return settled
}

// starter starts relays on an outbox. polled waits until each of them has polled; stop ends
// them, with the first error of any kind that they met. A relay that ends by itself calls fail.
type starter func(ctx context.Context, o *outbox.Outbox, fail context.CancelCauseFunc) (polled, stop func() error, err error)

// standing is the drain rate of relays that have been running for a while. Until each has
// polled, all lanes are held by the bench. Then they drain as many messages once before, which
// does not count: a session's first statements cost the server much more than all that
// follow. The lanes are held again while the tables are filled anew, and the clock runs from
// before the first is let go until nothing is ready.
func (r *run) standing(n int, start starter) func(ctx context.Context) ([]float64, error) {
	return func(ctx context.Context) (_ []float64, err error) {
		ctx, fail := context.WithCancelCause(ctx)
		defer fail(nil)
		o, err := r.outbox(ctx)
		if err != nil {
			return nil, err
		}
		letGo, err := r.hold(ctx, o)
		if err != nil {
			return nil, err
		}
		polled, stop, err := start(ctx, o, fail)
		if err != nil {
			return nil, err
		}
		took, err := func() (took time.Duration, err error) {
			if err := polled(); err != nil {
				return 0, err
			}
			for _, last := range []bool{false, true} {
				if last {
					if letGo, err = r.hold(ctx, o); err != nil {
						return 0, err
					}
				}
				if err := r.fill(ctx, enqueueIn(o), n, small); err != nil {
					return 0, err
				}
				if err := r.tidy(ctx, tablesOf(o)...); err != nil {
					return 0, err
				}
				began := time.Now()
				if err := letGo(); err != nil {
					return 0, err
				}
				if err := r.emptied(ctx, o, n); err != nil {
					return 0, err
				}
				took = time.Since(began)
			}
			return took, nil
		}()
		if err := r.stopped(stop, err); err != nil {
			return nil, err
		}
		return []float64{perSecond(n, took)}, r.drop(ctx, tablesOf(o)...)
	}
}

// emptied waits until nothing of n messages is ready.
func (r *run) emptied(ctx context.Context, o *outbox.Outbox, n int) error {
	began := time.Now()
	for {
		work, _, err := o.Store().Pending(ctx, o.DB(), benchOwner)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil || !work:
			return err
		case time.Since(began) > stalled+time.Duration(n)*time.Millisecond:
			return fmt.Errorf("%d messages were not drained in %v", n, time.Since(began))
		}
		wait(ctx, 5*time.Millisecond)
	}
}

// inProcess starts relays in this process.
func (r *run) inProcess(relays int) starter {
	return func(ctx context.Context, o *outbox.Outbox, _ context.CancelCauseFunc) (polled, stop func() error, err error) {
		all := newTally("relay polled")
		stop, err = r.start(ctx, fleet{
			outbox: o, relays: relays, polled: all.add,
			config: relay.Config{Batch: 1000, Retention: relay.NoRetention, PollMax: PollMax},
		})
		return func() error { return all.await(ctx, int64(relays)) }, stop, err
	}
}

// asProcesses starts relays that are each a process.
func (r *run) asProcesses(relays int) starter {
	return func(ctx context.Context, o *outbox.Outbox, fail context.CancelCauseFunc) (polled, stop func() error, err error) {
		var running []Process
		stop = func() error {
			for _, p := range running {
				p.Stop()
			}
			return nil
		}
		for range relays {
			p, err := r.target.Process(ctx, o.Tables().Prefix, o.Tables().Lanes)
			if err != nil {
				_ = stop() // what was wrong is known
				return nil, nil, err
			}
			running = append(running, p)
			go func() {
				if err, early := <-p.Ended; early {
					fail(err)
				}
			}()
		}
		return func() error {
			for _, p := range running {
				select {
				case <-p.Polled:
				case <-ctx.Done():
					return context.Cause(ctx)
				case <-time.After(stalled):
					return fmt.Errorf("a process did not poll for %v", stalled)
				}
			}
			return nil
		}, stop, nil
	}
}

// benchOwner holds lanes in the bench's name.
const benchOwner = "bench"

// hold claims all lanes, beside each other where the engine has that, and waits for those that
// a relay still keeps. letGo releases them through the same connections.
func (r *run) hold(ctx context.Context, o *outbox.Outbox) (letGo func() error, err error) {
	const long = time.Hour
	began := time.Now()
	epochs := make([]int64, o.Tables().Lanes)
	each := func(do func(ctx context.Context, lane int) error) error {
		if r.base.OneWriter {
			for lane := range epochs {
				if err := do(ctx, lane); err != nil {
					return err
				}
			}
			return nil
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		var group sync.WaitGroup
		for lane := range epochs {
			group.Go(func() {
				if err := do(ctx, lane); err != nil {
					cancel(err)
				}
			})
		}
		group.Wait()
		return context.Cause(ctx)
	}
	err = each(func(ctx context.Context, lane int) (err error) {
		for ok := false; !ok; wait(ctx, time.Millisecond) {
			epochs[lane], ok, err = o.Store().Claim(ctx, o.DB(), lane, benchOwner, long)
			switch {
			case err != nil || ok:
				return err
			case time.Since(began) > stalled:
				return fmt.Errorf("lane %d could not be held", lane)
			}
		}
		return nil
	})
	return func() error {
		return each(func(ctx context.Context, lane int) error {
			return o.Store().Release(ctx, o.DB(), dialect.Lease{Lane: lane, Owner: benchOwner, Epoch: epochs[lane]})
		})
	}, err
}

// stopped stops relays after they did what was waited for, or err if they did not. What
// they met on the way is noted, or said with err.
func (r *run) stopped(stop func() error, err error) error {
	met := stop()
	switch {
	case met == nil || errors.Is(err, context.Canceled):
		return err
	case err != nil:
		return fmt.Errorf("%w (first error: %w)", err, met)
	}
	r.note("a relay met an error and went on: " + met.Error())
	return nil
}

// perSecond is a rate.
func perSecond(n int, took time.Duration) float64 {
	return float64(n) / max(took, time.Nanosecond).Seconds()
}

// filled is a fresh outbox with n messages, tidied up.
func (r *run) filled(ctx context.Context, n, size int) (*outbox.Outbox, error) {
	o, err := r.outbox(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.fill(ctx, enqueueIn(o), n, size); err != nil {
		return nil, err
	}
	return o, r.tidy(ctx, tablesOf(o)...)
}

// filledLoop is a fresh table of the loop with n messages, tidied up.
func (r *run) filledLoop(ctx context.Context, n, size int) (tables, error) {
	t, err := r.loopTables(ctx)
	if err != nil {
		return t, err
	}
	if err := r.fill(ctx, r.insertIn(t), n, size); err != nil {
		return t, err
	}
	return t, r.tidy(ctx, t.loop)
}

// gauge takes figures of a drain, which do does.
type gauge func(do func() (time.Duration, error)) ([]float64, error)

// rate is the gauge of messages a second.
func rate(n int) gauge {
	return func(do func() (time.Duration, error)) ([]float64, error) {
		took, err := do()
		return []float64{perSecond(n, took)}, err
	}
}

// drained fills fresh tables, drains them and removes them. The drain is what is gauged.
func (r *run) drained(n, size int, f fleet, g gauge) func(ctx context.Context) ([]float64, error) {
	return func(ctx context.Context) ([]float64, error) {
		o, err := r.filled(ctx, n, size)
		if err != nil {
			return nil, err
		}
		f := f
		f.outbox = o
		figures, err := g(func() (time.Duration, error) { return r.drain(ctx, n, f) })
		if err != nil {
			return nil, err
		}
		return figures, r.drop(ctx, tablesOf(o)...)
	}
}

// drainRate is drained with the rate.
func (r *run) drainRate(n, size int, f fleet) func(ctx context.Context) ([]float64, error) {
	return r.drained(n, size, f, rate(n))
}

// loopRate is the same by hand.
func (r *run) loopRate(n, size, batch, loops int, mark func([]int64) (string, []any)) func(ctx context.Context) ([]float64, error) {
	return r.loopDrained(n, size, batch, loops, mark, rate(n))
}

func (r *run) loopDrained(n, size, batch, loops int, mark func([]int64) (string, []any), g gauge) func(ctx context.Context) ([]float64, error) {
	return func(ctx context.Context) ([]float64, error) {
		t, err := r.filledLoop(ctx, n, size)
		if err != nil {
			return nil, err
		}
		db, err := r.pool(ctx, 1)
		if err != nil {
			return nil, err
		}
		figures, err := g(func() (time.Duration, error) { return r.loop(db, t, batch, mark).drain(ctx, n, loops) })
		if err != nil {
			return nil, err
		}
		return figures, r.drop(ctx, t.loop, t.business)
	}
}
