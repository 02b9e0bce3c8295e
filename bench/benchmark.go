package bench

import (
	"context"
	"testing"
	"time"
)

// Benchmark takes the most telling measures as Go benchmarks, each beside its
// baseline, for `go test -bench` and benchstat: what [Run] does in rounds the
// benchmark repeats as often as it likes.
func Benchmark(b *testing.B, target Target, scale Scale) {
	b.Helper()
	r, err := start(b.Context(), target, Options{Scale: scale, NotDurable: true})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(r.close)

	n := scale.drain
	for _, keep := range []string{"0", "24h"} {
		b.Run("drain/retention="+keep, func(b *testing.B) {
			cfg := retention(keep)
			cfg.Batch = 1000
			repeat(b, n, func(ctx context.Context) (func() (time.Duration, error), []string, error) {
				o, err := r.filled(ctx, n, small)
				if err != nil {
					return nil, nil, err
				}
				return func() (time.Duration, error) {
					return r.drain(ctx, n, fleet{outbox: o, relays: 1, config: cfg})
				}, tablesOf(o), nil
			}, r)
		})
	}
	b.Run("drain/loop", func(b *testing.B) {
		repeat(b, n, func(ctx context.Context) (func() (time.Duration, error), []string, error) {
			t, err := r.filledLoop(ctx, n, small)
			if err != nil {
				return nil, nil, err
			}
			db, err := r.pool(ctx, 1)
			return func() (time.Duration, error) {
				return r.loop(db, t, 1000, r.base.Update).drain(ctx, n, 1)
			}, []string{t.loop, t.business}, err
		}, r)
	})
	benchmarkEnqueue(b, r)
}

// repeat prepares, out of the time, and times, again and again.
func repeat(b *testing.B, n int, prepare func(ctx context.Context) (timed func() (time.Duration, error), made []string, err error), r *run) {
	b.Helper()
	for b.Loop() {
		b.StopTimer()
		timed, made, err := prepare(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if _, err := timed(); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := r.drop(b.Context(), made...); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(perSecond(n*b.N, b.Elapsed()), "messages/s")
}

func benchmarkEnqueue(b *testing.B, r *run) {
	b.Helper()
	ctx := b.Context()
	db, err := r.pool(ctx, 0)
	if err != nil {
		b.Fatal(err)
	}
	o, err := r.outbox(ctx)
	if err != nil {
		b.Fatal(err)
	}
	t, err := r.loopTables(ctx)
	if err != nil {
		b.Fatal(err)
	}
	for _, way := range []struct {
		name   string
		insert inserter
	}{{"enqueue/outbox", enqueueIn(o)}, {"enqueue/insert", r.insertIn(t)}, {"enqueue/bare", nil}} {
		b.Run(way.name, func(b *testing.B) {
			src := r.source(0, small)
			for i := 0; b.Loop(); i++ {
				messages, err := src.next(1)
				if err == nil {
					err = r.business(b.Context(), db, t, i, way.insert, messages)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("idle-poll", func(b *testing.B) {
		empty, err := r.outbox(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if lanes, err := empty.Store().Poll(b.Context(), db, "bench", 8); err != nil || len(lanes) > 0 {
				b.Fatalf("poll: %v, %v", lanes, err)
			}
		}
	})
}
