package endtoend

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/relay"
)

// lease is short, so that the lanes of a relay that is killed are soon taken over.
const lease = 2 * time.Second

// runRelay is a relay process.
func runRelay(ctx context.Context, p *parent, s spec) error {
	e := engineNamed(s.Engine)
	db, err := e.open(s.DSN)
	if err != nil {
		return err
	}
	defer db.Close()
	o, err := outbox.New(db, e.dialect(), outbox.Config{})
	if err != nil {
		return err
	}
	sound, err := brokerNamed(s.Broker).publisher(s.URL)
	if err != nil {
		return err
	}
	var publisher relay.Publisher = &mortal{sound, p}
	switch s.Broken {
	case acceptsAll:
		publisher = relay.PublisherFunc(func(ctx context.Context, messages []relay.Message) []error {
			if err := errors.Join(sound.Publish(ctx, messages)...); err != nil {
				p.fault("publish", err)
			}
			return nil
		})
	case settlesFirst:
		publisher = relay.PublisherFunc(func(_ context.Context, messages []relay.Message) []error {
			later := append([]relay.Message(nil), messages...)
			time.AfterFunc(500*time.Millisecond, func() { sound.Publish(context.Background(), later) })
			return nil
		})
	case publishesTwice:
		publisher = relay.PublisherFunc(func(ctx context.Context, messages []relay.Message) []error {
			sound.Publish(ctx, messages)
			return sound.Publish(ctx, messages)
		})
	case reverses:
		publisher = &reverser{Publisher: sound}
	}
	r, err := relay.New(o, publisher, relay.Config{
		Owner: s.Name, Workers: 2, Batch: 20, Lease: lease, PollMax: 100 * time.Millisecond,
		PublishTimeout: 2 * time.Second, MaxAttempts: 1000,
		RetryMin: 10 * time.Millisecond, RetryMax: 200 * time.Millisecond,
		BreakerMin: 50 * time.Millisecond, BreakerMax: 200 * time.Millisecond,
		Observer: relay.ObserverFunc(p.observe),
	})
	if err != nil {
		return err
	}
	p.say("ready", "", "")
	return r.Run(ctx)
}

func (p *parent) observe(e relay.Event) {
	switch e := e.(type) {
	case relay.Settled:
		if e.Published > 0 {
			p.say("settled", "", "")
		}
	case relay.Failed:
		p.fault("publish", e.Err)
	case relay.BreakerOpened:
		p.fault("broker", e.Err)
	case relay.LeaseLost:
		p.fault("lease", nil)
	case relay.Erred:
		p.fault("database", fmt.Errorf("%s: %w", e.Op, e.Err))
	}
}

// mortal dies, when it is told to, with messages that the broker has accepted and
// nobody has settled.
type mortal struct {
	relay.Publisher
	parent *parent
}

func (m *mortal) Publish(ctx context.Context, messages []relay.Message) []error {
	errs := m.Publisher.Publish(ctx, messages)
	accepted := errs == nil
	for _, err := range errs {
		accepted = accepted || err == nil
	}
	if accepted && m.parent.take(tellDie) {
		die()
	}
	return errs
}

func (m *mortal) KeepsOrder() bool {
	o, ok := m.Publisher.(relay.Orderer)
	return ok && o.KeepsOrder()
}

// reverser says that it keeps order, and does the opposite.
type reverser struct {
	relay.Publisher
	mu sync.Mutex
}

func (r *reverser) KeepsOrder() bool { return true }

func (r *reverser) Publish(ctx context.Context, messages []relay.Message) []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	errs := make([]error, len(messages))
	for i := len(messages) - 1; i >= 0; i-- {
		if got := r.Publisher.Publish(ctx, messages[i:i+1]); got != nil {
			errs[i] = got[0]
		}
	}
	return errs
}
