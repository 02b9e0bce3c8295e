package telemetry

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
)

// WatchTables has the metrics of the tables counted whenever metrics are read, but
// not more often than Config.StatsEvery: what is read between two countings is the
// earlier one. When counting fails its error is the reader's and the metrics are
// absent, not stale. stop ends it.
//
// Any program that reaches the database can, relay or not. All that watch the same
// tables say the same, so take the largest of them, not the sum.
func WatchTables(o *outbox.Outbox, cfg Config) (stop func() error, err error) {
	if o == nil {
		return nil, fmt.Errorf("watch tables: %w: outbox is required", outbox.ErrInvalid)
	}
	cfg, err = cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("watch tables: %w", err)
	}
	m := cfg.meter()
	messages := m.gauge("outbox.messages", "{message}", fmt.Sprintf("Messages in the tables by state, each counted up to %d.", cfg.StatsLimit))
	keys := m.gauge("outbox.blocked.keys", "{key}", fmt.Sprintf("Keys that are held back by a message that failed, counted up to %d.", cfg.StatsLimit))
	lanes := m.gauge("outbox.lanes", "{lane}", "Lanes by state: held by a relay; expired, whose relay neither renewed nor released; free.")
	oldest, err := m.Float64ObservableGauge("outbox.oldest.age", metric.WithUnit("s"),
		metric.WithDescription("How long the oldest ready message has waited, or a retry is overdue; 0 when there is none."))
	if err := errors.Join(m.err, err); err != nil {
		return nil, fmt.Errorf("watch tables: %w", err)
	}
	t := &tables{outbox: o, cfg: cfg}
	registration, err := m.RegisterCallback(func(ctx context.Context, observer metric.Observer) error {
		s, err := t.stats(ctx)
		if err != nil {
			return err
		}
		for _, of := range []struct {
			gauge metric.Int64ObservableGauge
			state string
			n     int64
		}{
			{messages, "ready", s.Ready},
			{messages, dialect.Scheduled, s.Scheduled},
			{messages, dialect.Retry, s.Retry},
			{messages, dialect.Held, s.Held},
			{messages, dialect.Dead, s.Dead},
			{lanes, "held", int64(s.LanesHeld)},
			{lanes, "expired", int64(s.LanesExpired)},
			{lanes, "free", int64(s.LanesTotal - s.LanesHeld - s.LanesExpired)},
		} {
			observer.ObserveInt64(of.gauge, of.n, with(stateKey.String(of.state)))
		}
		observer.ObserveInt64(keys, s.BlockedKeys)
		observer.ObserveFloat64(oldest, s.OldestReady.Seconds())
		return nil
	}, messages, keys, lanes, oldest)
	if err != nil {
		return nil, fmt.Errorf("watch tables: %w", err)
	}
	return registration.Unregister, nil
}

const stateKey = attribute.Key("state")

// tables keeps the last counting.
type tables struct {
	outbox *outbox.Outbox
	cfg    Config

	mu   sync.Mutex
	last outbox.Stats
	err  error
	next time.Time
}

// statsShare bounds the time that goes into counting: it is done the less often the
// longer it takes.
const statsShare = 20

func (t *tables) stats(ctx context.Context) (outbox.Stats, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	began := time.Now()
	if began.Before(t.next) {
		return t.last, t.err
	}
	// A reader that gives up must not be the next one's answer.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.cfg.StatsTimeout)
	defer cancel()
	t.last, t.err = t.outbox.Store().Stats(ctx, t.outbox.DB(), t.cfg.StatsLimit)
	pause := t.cfg.StatsEvery
	if t.err != nil {
		// Soon again, however long it took: whoever watches sees nothing meanwhile.
		t.err = fmt.Errorf("count the messages of the outbox: %w", t.err)
	} else {
		pause = max(pause, statsShare*time.Since(began))
	}
	t.next = time.Now().Add(pause)
	return t.last, t.err
}
