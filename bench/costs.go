package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/outbox-suite/outbox/relay"
)

// allocated is what the process has allocated so far: objects and bytes.
func allocated() (objects, bytes uint64) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs, m.TotalAlloc
}

// heap is what is in use after a collection, in bytes.
func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

func memory(ctx context.Context, r *run) error {
	n := r.scale.drain
	cfg := relay.Config{Batch: 1000, Retention: relay.NoRetention}
	each := func(do func() (time.Duration, error)) ([]float64, error) {
		runtime.GC()
		objects, bytes := allocated()
		_, err := do()
		objectsAfter, bytesAfter := allocated()
		return []float64{float64(objectsAfter-objects) / float64(n), float64(bytesAfter-bytes) / float64(n)}, err
	}
	got, err := r.rounds(ctx, r.opts.Rounds, "batch 1000, 200 B",
		side{"relay", r.drained(n, small, fleet{relays: 1, config: cfg}, each)},
		side{"loop", r.loopDrained(n, small, 1000, 1, r.base.Update, each)})
	if err != nil {
		return err
	}
	r.emit(row{
		what: "allocations", unit: "a message", less: true, ours: got[0][0], against: "loop with UPDATE", base: got[1][0],
		goal: "memory/allocations", fallback: Goal{Text: "≤ 12", Most: 12},
	})
	r.emit(row{what: "bytes allocated, 200 B of payload", unit: "B a message", less: true, ours: got[0][1], against: "loop with UPDATE", base: got[1][1]})
	return r.heapGrowth(ctx, cfg)
}

// heapGrowth compares the heap in the course of a long drain.
func (r *run) heapGrowth(ctx context.Context, cfg relay.Config) error {
	n := r.scale.memory
	r.progress("%d messages in one drain", n)
	o, err := r.filled(ctx, n, small)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var at [2]float64 // after a tenth and after nine
	f := fleet{outbox: o, relays: 1, config: cfg, settled: func(total int64) {
		mu.Lock()
		defer mu.Unlock()
		for i, part := range []int64{1, 9} {
			if at[i] == 0 && total >= int64(n)*part/10 {
				at[i] = heap() / (1 << 20)
			}
		}
	}}
	if _, err := r.drain(ctx, n, f); err != nil {
		return err
	}
	r.emit(row{
		what: fmt.Sprintf("heap after 90%% of %s messages", number(float64(n))), unit: "MiB", less: true,
		ours: at[1:], against: "after 10%", base: at[:1],
		goal: "memory/flat", fallback: Goal{Text: "flat (≤ 1.25 ×)", RatioMost: 1.25},
	})
	return r.drop(ctx, tablesOf(o)...)
}

func roundTrips(ctx context.Context, r *run) error {
	for _, batch := range []int{100, 1000} {
		n := r.scale.batch(batch, small)
		ours := func(keep string) func(context.Context) ([]float64, error) {
			return func(ctx context.Context) ([]float64, error) {
				var c counter
				cfg := retention(keep)
				cfg.Batch = batch
				f := fleet{relays: 1, config: cfg, wrap: func(db *sql.DB) *sql.DB { return tap(db, &c) }}
				_, err := r.drainRate(n, small, f)(ctx)
				return []float64{float64(c.asked.Load()) / float64(n) * 1000}, err
			}
		}
		loop := func(ctx context.Context) ([]float64, error) {
			t, err := r.filledLoop(ctx, n, small)
			if err != nil {
				return nil, err
			}
			db, err := r.pool(ctx, 1)
			if err != nil {
				return nil, err
			}
			var c counter
			through := tap(db, &c)
			defer through.Close() //nolint:errcheck // its connections only
			if _, err := r.loop(through, t, batch, r.base.Update).drain(ctx, n, 1); err != nil {
				return nil, err
			}
			return []float64{float64(c.asked.Load()) / float64(n) * 1000}, r.drop(ctx, t.loop, t.business)
		}
		what := fmt.Sprintf("batch %d", batch)
		got, err := r.rounds(ctx, 1, what, side{"retention 0", ours("0")}, side{"retention 24h", ours("24h")}, side{"loop", loop})
		if err != nil {
			return err
		}
		for i, keep := range []string{"0", "24h"} {
			r.emit(row{
				what: what + ", retention " + keep, unit: "for 1,000 messages", less: true,
				ours: got[i][0], against: "loop with UPDATE", base: got[2][0], note: "from start to stop",
			})
		}
	}
	return nil
}

func logBytes(ctx context.Context, r *run) error {
	if r.base.LogBytes == nil {
		r.note("log-bytes: the engine does not tell how much it writes to its log")
		return nil
	}
	n := r.scale.drain
	db, err := r.pool(ctx, 0)
	if err != nil {
		return err
	}
	// Both parts count, and the tidying between them does not.
	parts := func(fill, between, drain func() error) ([]float64, error) {
		var figures []float64
		for _, part := range []func() error{fill, drain} {
			before, err := r.base.LogBytes(ctx, db)
			if err != nil {
				return nil, err
			}
			if err := part(); err != nil {
				return nil, err
			}
			after, err := r.base.LogBytes(ctx, db)
			if err != nil {
				return nil, err
			}
			figures = append(figures, float64(after-before)/float64(n))
			if err := between(); err != nil {
				return nil, err
			}
		}
		return figures, nil
	}
	ours := func(keep string) func(context.Context) ([]float64, error) {
		return func(ctx context.Context) ([]float64, error) {
			o, err := r.outbox(ctx)
			if err != nil {
				return nil, err
			}
			cfg := retention(keep)
			cfg.Batch = 1000
			figures, err := parts(
				func() error { return r.fill(ctx, enqueueIn(o), n, small) },
				func() error { return r.tidy(ctx, tablesOf(o)...) },
				func() error {
					_, err := r.drain(ctx, n, fleet{outbox: o, relays: 1, config: cfg})
					return err
				})
			return figures, firstOf(err, r.drop(ctx, tablesOf(o)...))
		}
	}
	sides := []side{{"retention 0", ours("0")}, {"retention 24h", ours("24h")}}
	forms := r.forms()
	for _, form := range forms {
		sides = append(sides, side{form.name, func(ctx context.Context) ([]float64, error) {
			t, err := r.loopTables(ctx)
			if err != nil {
				return nil, err
			}
			own, err := r.pool(ctx, 1)
			if err != nil {
				return nil, err
			}
			figures, err := parts(
				func() error { return r.fill(ctx, r.insertIn(t), n, small) },
				func() error { return r.tidy(ctx, t.loop) },
				func() error {
					_, err := r.loop(own, t, 1000, form.mark).drain(ctx, n, 1)
					return err
				})
			return figures, firstOf(err, r.drop(ctx, t.loop, t.business))
		}})
	}
	got, err := r.rounds(ctx, min(r.opts.Rounds, fewRounds), "batch 1000, 200 B", sides...)
	if err != nil {
		return err
	}
	const unit = "B a message"
	r.emit(row{what: "enqueue, 500 a transaction", unit: unit, less: true, ours: got[0][0], against: "hand-written INSERT", base: got[2][0]})
	for i, keep := range []string{"0", "24h"} {
		for j, form := range forms {
			r.emit(row{what: "drain, retention " + keep, unit: unit, less: true, ours: got[i][1], against: form.name, base: got[2+j][1]})
		}
	}
	return nil
}

func idleCPU(ctx context.Context, r *run) error {
	if _, ok := processTime(); !ok {
		r.note("idle-cpu: this system does not tell the processor time")
		return nil
	}
	o, err := r.outbox(ctx)
	if err != nil {
		return err
	}
	t, err := r.loopTables(ctx)
	if err != nil {
		return err
	}
	// used is the processor time in milliseconds a minute, when things have calmed
	// down.
	used := func(ctx context.Context) ([]float64, error) {
		wait(ctx, r.scale.idle/10)
		debug.FreeOSMemory() // or the runtime gives it back bit by bit meanwhile
		before, _ := processTime()
		began := time.Now()
		wait(ctx, r.scale.idle)
		after, ok := processTime()
		if !ok {
			return nil, errors.New("this system does not tell the processor time")
		}
		return []float64{(after - before).Seconds() * 1e3 / time.Since(began).Minutes()}, context.Cause(ctx)
	}
	ours := func(ctx context.Context) ([]float64, error) {
		stop, err := r.start(ctx, fleet{outbox: o, relays: 1})
		if err != nil {
			return nil, err
		}
		figures, err := used(ctx)
		return figures, firstOf(err, stop())
	}
	loop := func(ctx context.Context) ([]float64, error) {
		db, err := r.pool(ctx, 1)
		if err != nil {
			return nil, err
		}
		following, cancel := context.WithCancel(ctx)
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- r.loop(db, t, 1000, r.base.Update).follow(following, 1000) }()
		figures, err := used(ctx)
		cancel()
		return figures, firstOf(err, <-ended)
	}
	got, err := r.rounds(ctx, 1, fmt.Sprintf("over %v", r.scale.idle), side{"relay", ours}, side{"loop", loop})
	if err != nil {
		return err
	}
	r.emit(row{
		what: fmt.Sprintf("over %v", r.scale.idle), unit: "ms of processor time a minute", less: true,
		ours: got[0][0], against: "loop every 100 ms", base: got[1][0],
	})
	return nil
}
