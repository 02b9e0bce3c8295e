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
	"github.com/outbox-suite/outbox/relay"
)

// slow takes so long for each message, and sees whether keys stay in order.
type slow struct {
	each     time.Duration
	mu       sync.Mutex
	last     map[string]int64
	inverted int
}

// Publish accepts all messages, one after the other.
func (s *slow) Publish(_ context.Context, messages []relay.Message) []error {
	time.Sleep(time.Duration(len(messages)) * s.each)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range messages {
		if m := &messages[i]; m.Seq < s.last[m.Key] {
			s.inverted++
		} else {
			s.last[m.Key] = m.Seq
		}
	}
	return nil
}

// disorder is the error of keys that did not stay in order.
func (s *slow) disorder() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inverted == 0 {
		return nil
	}
	return fmt.Errorf("%d messages were published behind a newer one of their key", s.inverted)
}

// slowRate is how relays drain when publishing a message takes each, which they may
// not do out of order: messages a second, and how busy the processors were.
func (r *run) slowRate(n, relays int, each time.Duration, cfg relay.Config) func(context.Context) ([]float64, error) {
	return func(ctx context.Context) ([]float64, error) {
		p := &slow{each: each, last: make(map[string]int64)}
		cfg.Retention, cfg.PublishSize = relay.NoRetention, 1
		figures, err := r.drained(n, small, fleet{relays: relays, publisher: p, config: cfg}, busyRate(n))(ctx)
		return figures, firstOf(err, p.disorder())
	}
}

func slowPublisher(ctx context.Context, r *run) error {
	serial := r.scale.serial
	many := relay.Config{Batch: 1000, Workers: 8, PublishConcurrency: 64}
	loop := func(ctx context.Context) ([]float64, error) {
		t, err := r.filledLoop(ctx, serial, small)
		if err != nil {
			return nil, err
		}
		db, err := r.pool(ctx, 1)
		if err != nil {
			return nil, err
		}
		l := r.loop(db, t, 1000, r.base.Update)
		l.publish = func([]byte) { time.Sleep(time.Millisecond) }
		took, err := l.drain(ctx, serial, 1)
		if err != nil {
			return nil, err
		}
		return []float64{perSecond(serial, took)}, r.drop(ctx, t.loop, t.business)
	}
	got, err := r.rounds(ctx, r.opts.Rounds, "1 ms a message",
		side{"one relay", r.slowRate(r.scale.slow, 1, time.Millisecond, many)},
		side{"two relays", r.slowRate(r.scale.slow, 2, time.Millisecond, many)},
		side{"loop", loop})
	if err != nil {
		return err
	}
	const setting = "8 workers, 64 publishes each"
	r.emit(row{
		what: "1 ms, relays 1", unit: "messages/s", ours: got[0][0], against: "loop with UPDATE", base: got[2][0],
		goal: "slow-publisher/1", fallback: Goal{Text: "≥ 20,000/s, in order", Least: 20_000}, note: setting,
	})
	r.emit(row{
		what: "1 ms, relays 2", unit: "messages/s", ours: got[1][0], against: "loop with UPDATE", base: got[2][0],
		goal: "slow-publisher/2", fallback: Goal{Text: "≥ 30,000/s, in order", Least: 30_000}, note: setting,
	})
	r.emit(row{what: "1 ms, relays 2", unit: "messages/s", ours: got[1][0], against: "one relay", base: got[0][0], note: setting})
	r.emitBusy("1 ms, relays 2", got[1][1], got[0][1])
	chart := Chart{Title: "Drain by relays", X: "relays", Y: "messages/s"}
	r.plot(chart, "relays, publishing takes 1 ms", 1, got[0][0])
	r.plot(chart, "relays, publishing takes 1 ms", 2, got[1][0])

	what := fmt.Sprintf("%d ms, relays 2", slower.Milliseconds())
	got, err = r.rounds(ctx, r.opts.Rounds, fmt.Sprintf("%v a message", slower),
		side{"one relay", r.slowRate(r.scale.slower, 1, slower, relay.Config{})},
		side{"two relays", r.slowRate(r.scale.slower, 2, slower, relay.Config{})})
	if err != nil {
		return err
	}
	r.emit(row{
		what: what, unit: "messages/s", ours: got[1][0], against: "one relay", base: got[0][0],
		goal: "slow-publisher/ratio", fallback: Goal{Text: "≥ 1.5 × one relay, in order", RatioLeast: 1.5}, note: "4 workers, 32 publishes each",
	})
	r.emitBusy(what, got[1][1], got[0][1])
	return nil
}

// slower is how long publishing takes where neither the database nor the processors
// are to be the limit.
const slower = 50 * time.Millisecond

// emitBusy says how busy the processors were, where the system tells.
func (r *run) emitBusy(what string, two, one []float64) {
	if _, ok := used(); ok {
		r.emit(row{what: what + ": processors that were busy", unit: "%", ours: two, against: "one relay", base: one})
	}
}

// pollTimes are the times of idle polls of a relay, in microseconds.
func (r *run) pollTimes(ctx context.Context, o *outbox.Outbox) ([]float64, error) {
	var mu sync.Mutex
	var took []float64
	first, polled := context.WithTimeout(ctx, stalled)
	defer polled()
	stop, err := r.start(ctx, fleet{outbox: o, relays: 1, config: relay.Config{
		PollMin: time.Millisecond, PollMax: time.Millisecond,
		Observer: relay.ObserverFunc(func(e relay.Event) {
			if p, ok := e.(relay.Polled); ok {
				mu.Lock()
				defer mu.Unlock()
				took = append(took, p.Took.Seconds()*1e6)
				polled()
			}
		}),
	}})
	if err != nil {
		return nil, err
	}
	<-first.Done() // however slow the machine is
	wait(ctx, r.scale.polls)
	if err := stop(); err != nil {
		return nil, err
	}
	mu.Lock()
	defer mu.Unlock()
	if len(took) == 0 {
		return nil, errors.New("the relay did not poll")
	}
	return []float64{percentile(took, 50)}, context.Cause(ctx)
}

// loopPolls are those of the loop.
func (r *run) loopPolls(ctx context.Context, t tables) ([]float64, error) {
	db, err := r.pool(ctx, 1)
	if err != nil {
		return nil, err
	}
	l := r.loop(db, t, 1000, r.base.Update)
	var took []float64
	for began := time.Now(); len(took) == 0 || time.Since(began) < r.scale.polls; time.Sleep(time.Millisecond) {
		began := time.Now()
		n, err := l.turn(ctx)
		if err != nil {
			return nil, err
		}
		if n > 0 {
			return nil, fmt.Errorf("%d messages were left", n)
		}
		took = append(took, time.Since(began).Seconds()*1e6)
	}
	return []float64{percentile(took, 50)}, nil
}

// wait waits for so long, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func idlePoll(ctx context.Context, r *run) error {
	empty, err := r.outbox(ctx)
	if err != nil {
		return err
	}
	const chunk = 1_000_000 // so that what is done is all that grows
	full, err := r.outbox(ctx)
	if err != nil {
		return err
	}
	t, err := r.loopTables(ctx)
	if err != nil {
		return err
	}
	db, err := r.pool(ctx, 1)
	if err != nil {
		return err
	}
	chart := Chart{Title: "Idle poll by done messages", X: "done messages, thousands", Y: "µs"}
	have := 0
	for _, done := range r.scale.done {
		for have < done {
			n := min(chunk, done-have)
			r.progress("%d of %d done messages", have, done)
			if err := r.fill(ctx, enqueueIn(full), n, small); err != nil {
				return err
			}
			if _, err := r.drain(ctx, n, fleet{outbox: full, relays: 1, config: relay.Config{Batch: 1000}}); err != nil {
				return err
			}
			if err := r.fill(ctx, r.insertIn(t), n, small); err != nil {
				return err
			}
			if _, err := r.loop(db, t, 1000, r.base.Update).drain(ctx, n, 1); err != nil {
				return err
			}
			have += n
		}
		if err := r.tidy(ctx, append(append(tablesOf(full), tablesOf(empty)...), t.loop)...); err != nil {
			return err
		}
		what := fmt.Sprintf("%s done", number(float64(done)))
		got, err := r.rounds(ctx, r.opts.Rounds, what,
			side{"full", func(ctx context.Context) ([]float64, error) { return r.pollTimes(ctx, full) }},
			side{"empty", func(ctx context.Context) ([]float64, error) { return r.pollTimes(ctx, empty) }},
			side{"loop", func(ctx context.Context) ([]float64, error) { return r.loopPolls(ctx, t) }})
		if err != nil {
			return err
		}
		r.emit(row{
			what: what, unit: "µs", less: true, ours: got[0][0], against: "empty tables", base: got[1][0],
			goal: "idle-poll", fallback: Goal{Text: "≤ 1.2 × empty", RatioMost: 1.2},
		})
		r.emit(row{what: what, unit: "µs", less: true, ours: got[0][0], against: "loop's, a transaction with one SELECT", base: got[2][0]})
		if done == r.scale.done[0] {
			r.plot(chart, "relay", 0, got[1][0])
		}
		r.plot(chart, "relay", float64(done)/1000, got[0][0])
		r.plot(chart, "hand-written loop", float64(done)/1000, got[2][0])
		if err := r.serverTime(ctx, what, full); err != nil {
			return err
		}
	}
	return nil
}

// serverTime is how long the server needs for the poll, where it can tell.
func (r *run) serverTime(ctx context.Context, what string, o *outbox.Outbox) error {
	if r.base.ServerTime == nil {
		return nil
	}
	var c counter
	through := tap(o.DB(), &c)
	defer through.Close() //nolint:errcheck // its connections only
	if _, err := o.Store().Poll(ctx, through, "bench", 8); err != nil {
		return err
	}
	query, args := c.last()
	var took []float64
	for range 20 * r.opts.Rounds {
		d, err := r.base.ServerTime(ctx, o.DB(), query, args)
		if err != nil {
			return fmt.Errorf("server time: %w", err)
		}
		took = append(took, d.Seconds()*1e6)
	}
	r.emit(row{what: what + ": time in the server", unit: "µs", less: true, ours: took, goal: "idle-poll/server"})
	return nil
}

// refuse is a publisher to which one key is poison.
type refuse struct{ key string }

var errPoison = errors.New("poison")

// Publish accepts all messages but the key's.
func (p refuse) Publish(_ context.Context, messages []relay.Message) []error {
	errs := make([]error, len(messages))
	for i := range messages {
		if messages[i].Key == p.key {
			errs[i] = relay.Permanent(errPoison)
		}
	}
	return errs
}

// KeepsOrder returns true: after a failure no later one of the key succeeds.
func (refuse) KeepsOrder() bool { return true }

func blockedKey(ctx context.Context, r *run) error {
	held, n := r.scale.held, r.scale.drain
	const poison = "blocked"
	blocked, err := r.outbox(ctx)
	if err != nil {
		return err
	}
	free, err := r.outbox(ctx)
	if err != nil {
		return err
	}
	// One message dies, and all others of its key are held behind it.
	r.progress("%d messages of a key that is held back", held)
	of := func(ctx context.Context, tx *sql.Tx, messages []outbox.Message) error {
		for i := range messages {
			messages[i].Key = poison
		}
		_, err := blocked.Enqueue(ctx, tx, messages...)
		return err
	}
	if err := r.fill(ctx, of, held, small); err != nil {
		return err
	}
	var parked atomic.Int64
	stop, err := r.start(ctx, fleet{outbox: blocked, relays: 1, publisher: refuse{poison}, config: relay.Config{
		Batch: 1000,
		Observer: relay.ObserverFunc(func(e relay.Event) {
			if s, ok := e.(relay.Settled); ok {
				parked.Add(int64(s.Held + s.Died))
			}
		}),
	}})
	if err != nil {
		return err
	}
	for began := time.Now(); parked.Load() < int64(held) && ctx.Err() == nil && time.Since(began) < 10*stalled; {
		wait(ctx, 5*time.Millisecond)
	}
	if err := firstOf(stop(), context.Cause(ctx)); err != nil {
		return err
	}
	if parked.Load() < int64(held) {
		return fmt.Errorf("%d of %d messages were held", parked.Load(), held)
	}
	refill := func(o *outbox.Outbox) func(context.Context) ([]float64, error) {
		return func(ctx context.Context) ([]float64, error) {
			if err := r.fill(ctx, enqueueIn(o), n, small); err != nil {
				return nil, err
			}
			if err := r.tidy(ctx, tablesOf(o)...); err != nil {
				return nil, err
			}
			took, err := r.drain(ctx, n, fleet{outbox: o, relays: 1, config: relay.Config{Batch: 1000, Retention: relay.NoRetention}})
			return []float64{perSecond(n, took)}, err
		}
	}
	what := number(float64(held)) + " held"
	got, err := r.rounds(ctx, r.opts.Rounds, what, side{"with", refill(blocked)}, side{"without", refill(free)})
	if err != nil {
		return err
	}
	r.emit(row{
		what: what, unit: "messages/s", ours: got[0][0], against: "without", base: got[1][0],
		goal: "blocked-key", fallback: Goal{Text: "≥ 0.95 × without", RatioLeast: 0.95},
	})
	return nil
}

// snapshot opens an old snapshot. end closes it.
func (r *run) snapshot(ctx context.Context, t tables) (end func() error, err error) {
	db, err := r.pool(ctx, 0)
	if err != nil {
		return nil, err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	end = func() error {
		_, err := conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
		return firstOf(err, conn.Close())
	}
	for _, statement := range r.base.Snapshot {
		if _, err := conn.ExecContext(ctx, t.expand(statement)); err != nil {
			_ = conn.Close()
			return nil, fmt.Errorf("snapshot: %w", err)
		}
	}
	return end, nil
}

func oldSnapshot(ctx context.Context, r *run) error {
	const cycles = 4
	n := max(r.scale.snapshot/cycles, 1)
	t, err := r.loopTables(ctx) // its business table is what the snapshot is of
	if err != nil {
		return err
	}
	// A side fills and drains in turns, so that what is drained stays in the way.
	in := func(ctx context.Context, open bool, cycle func() (time.Duration, error)) (float64, error) {
		if open {
			end, err := r.snapshot(ctx, t)
			if err != nil {
				return 0, err
			}
			defer end() //nolint:errcheck // the pool sees to a connection that is broken
		}
		var total time.Duration
		for range cycles {
			took, err := cycle()
			if err != nil {
				return 0, err
			}
			total += took
		}
		return perSecond(cycles*n, total), nil
	}
	// The relay runs all the time, as relays do; a cycle counts from the commit of all
	// its messages.
	ours := func(open bool) func(context.Context) ([]float64, error) {
		return func(ctx context.Context) ([]float64, error) {
			o, err := r.outbox(ctx)
			if err != nil {
				return nil, err
			}
			settled := newTally("message was settled")
			stop, err := r.start(ctx, fleet{
				outbox: o, relays: 1, shared: true, config: relay.Config{Batch: 1000, Retention: relay.NoRetention},
				settled: settled.add,
			})
			if err != nil {
				return nil, err
			}
			var committed int64
			rate, err := in(ctx, open, func() (time.Duration, error) {
				began, err := r.fillAtOnce(ctx, o, n)
				if err != nil {
					return 0, err
				}
				committed += int64(n)
				err = settled.await(ctx, committed)
				return time.Since(began), err
			})
			if err := r.stopped(stop, err); err != nil {
				return nil, err
			}
			return []float64{rate}, r.drop(ctx, tablesOf(o)...)
		}
	}
	loop := func(open bool) func(context.Context) ([]float64, error) {
		return func(ctx context.Context) ([]float64, error) {
			own, err := r.loopTables(ctx)
			if err != nil {
				return nil, err
			}
			db, err := r.pool(ctx, 1)
			if err != nil {
				return nil, err
			}
			rate, err := in(ctx, open, func() (time.Duration, error) {
				if err := r.fill(ctx, r.insertIn(own), n, small); err != nil {
					return 0, err
				}
				return r.loop(db, own, 1000, r.base.Update).drain(ctx, n, 1)
			})
			if err != nil {
				return nil, err
			}
			return []float64{rate}, r.drop(ctx, own.loop, own.business)
		}
	}
	what := fmt.Sprintf("snapshot open for %s messages", number(float64(cycles*n)))
	got, err := r.rounds(ctx, r.few(cycles*n), what,
		side{"with", ours(true)}, side{"without", ours(false)}, side{"loop with", loop(true)}, side{"loop without", loop(false)})
	if err != nil {
		return err
	}
	r.emit(row{
		what: what, unit: "messages/s", ours: got[0][0], against: "without", base: got[1][0],
		goal: "old-snapshot", fallback: Goal{Text: "≥ 0.8 × without", RatioLeast: 0.8},
	})
	r.emit(row{what: what, unit: "messages/s", ours: got[0][0], against: "loop with UPDATE, with the snapshot", base: got[2][0]})
	r.emit(row{what: what + ", the loop alone", unit: "messages/s", ours: got[2][0], against: "loop without", base: got[3][0]})
	return nil
}
