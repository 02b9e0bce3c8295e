package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/metric"

	"github.com/outbox-suite/outbox/postgres"
	"github.com/outbox-suite/outbox/postgres/tail"
)

// tailFrom wakes a relay by the write-ahead log until stop is called, and tells watch.
func tailFrom(ctx context.Context, p *process, o *opened, wake func(), log *slog.Logger, watch func(tail.Event)) (stop func(), err error) {
	if o.Dialect().Name() != "postgres" {
		return nil, usagef("tail is set, but %s has no log that a relay can read: leave it out, polling finds every message", o.Dialect().Name())
	}
	db := o.DB()
	if dsn := p.getenv("OUTBOX_TAIL_DSN"); dsn != "" {
		if db, err = postgres.Open(dsn); err != nil {
			return nil, usagef("OUTBOX_TAIL_DSN: %w", err)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	stop = func() {
		cancel()
		running.Wait()
		if db != o.DB() {
			_ = db.Close()
		}
	}
	t, err := tail.New(db, o.Tables(), wake, tail.Config{Observe: func(e tail.Event) {
		logTail(ctx, log, e)
		watch(e)
	}})
	if err == nil {
		_ = tail.Publish(ctx, o.DB(), o.Tables()) // where that fails, Check tells what it takes
		err = t.Check(ctx)
	}
	if err != nil {
		stop()
		return nil, err
	}
	running.Go(func() { t.Run(ctx) })
	return stop, nil
}

// muchBehind is from how much log on it is worth a warning.
const muchBehind = 64 << 20

func logTail(ctx context.Context, log *slog.Logger, e tail.Event) {
	switch e := e.(type) {
	case tail.Streaming:
		log.Info("log is read", "slot", e.Slot)
	case tail.Lost:
		log.Warn("log is not read, polling goes on", "wait", e.Wait, "error", e.Err)
	case tail.Watched:
		level := slog.LevelDebug
		if e.Behind > muchBehind || e.Status == "unreserved" || e.Status == "lost" {
			level = slog.LevelWarn
		}
		log.Log(ctx, level, "log position", "slot", e.Slot, "behind", e.Behind, "retained", e.Retained, "status", e.Status)
	case tail.Unwatched:
		log.Warn("log position is unknown", "error", e.Err)
	}
}

// tailGauges are what a tail has told last, for metrics.
type tailGauges struct{ streaming, behind, retained atomic.Int64 }

func (g *tailGauges) observe(e tail.Event) {
	switch e := e.(type) {
	case tail.Streaming:
		g.streaming.Store(1)
	case tail.Lost: // and the slot with it
		g.streaming.Store(0)
		g.behind.Store(0)
		g.retained.Store(0)
	case tail.Watched:
		g.behind.Store(e.Behind)
		g.retained.Store(e.Retained)
	case tail.Unwatched:
	}
}

// export makes the metrics of the gauges.
func (g *tailGauges) export(provider metric.MeterProvider) error {
	m := provider.Meter("github.com/outbox-suite/outbox/cmd/outbox")
	for _, v := range []struct {
		name, unit, description string
		value                   *atomic.Int64
	}{
		{"outbox.tail.streaming", "{tail}", "Whether the write-ahead log is read: 1, or 0 while the relay polls alone.", &g.streaming},
		{"outbox.tail.behind", "By", "How much of the log was written and not read yet.", &g.behind},
		{"outbox.tail.retained", "By", "How much of the log the server keeps for the relay's slot.", &g.retained},
	} {
		if _, err := m.Int64ObservableGauge(v.name, metric.WithUnit(v.unit), metric.WithDescription(v.description),
			metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
				o.Observe(v.value.Load())
				return nil
			})); err != nil {
			return fmt.Errorf("metric %s: %w", v.name, err)
		}
	}
	return nil
}
