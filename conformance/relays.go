package conformance

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/relay"
)

// leaseTime is the lease of the scenarios' relays, the shortest there is, and
// pollTime the longest pause between their polls.
const (
	leaseTime = time.Second
	pollTime  = 50 * time.Millisecond
)

// quick is a relay's configuration with which little time passes unused.
func quick(owner string) relay.Config {
	return relay.Config{
		Owner: owner, Workers: 2, Batch: 100, Lease: leaseTime,
		PollMin: 2 * time.Millisecond, PollMax: pollTime,
		PublishTimeout: 5 * time.Second, RetryMin: 5 * time.Millisecond, RetryMax: 50 * time.Millisecond,
		BreakerMin: 10 * time.Millisecond, BreakerMax: 100 * time.Millisecond,
		MaxAttempts: 5, Grace: 2 * time.Second, PurgeEvery: time.Hour,
	}
}

// relayWith says what a relay of a scenario is made of. The zero value is the
// target's dialect, a pool of its own and the scenario's broker.
type relayWith struct {
	dialect   dialect.Dialect // see hooked
	tables    *dialect.Tables // see trial.second
	db        *sql.DB         // see tap and trial.proxied
	publisher relay.Publisher // instead of the scenario's broker
	// around makes the relay's publisher of what it has otherwise; see orderly
	// and byTopic.
	around func(p publisher) relay.Publisher
	config func(c *relay.Config)
}

// process is a relay in this process.
type process struct {
	t    *trial
	name string
	box  *outbox.Outbox
	db   *sql.DB

	cancel context.CancelFunc
	grace  time.Duration // what a stop leaves it, see relay.Config
	done   chan struct{}
	polled chan struct{} // closed when it polls for the first time
	first  sync.Once

	mu     sync.Mutex
	dead   bool
	err    error
	events []relay.Event
	idle   []time.Duration // what polls took that found nothing
	calls  sync.WaitGroup
}

// name returns a relay's name, unique in the scenario.
func (t *trial) nextName() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.serial++
	return fmt.Sprintf("relay-%d", t.serial)
}

// start runs a relay in this process until the scenario ends, or stop or kill.
func (t *trial) start(config ...func(c *relay.Config)) *process {
	return t.startWith(relayWith{config: func(c *relay.Config) {
		for _, f := range config {
			f(c)
		}
	}})
}

// startWith is start with other parts.
func (t *trial) startWith(with relayWith) *process {
	p := &process{t: t, name: t.nextName(), db: with.db, done: make(chan struct{}), polled: make(chan struct{})}
	if p.db == nil {
		p.db = t.as(cmp.Or(with.tables, &t.tables), Relay)
	}
	if with.dialect == nil {
		with.dialect = t.target.Dialect
	}
	switch own := (publisher{t.broker, p.name}); {
	case with.around != nil:
		with.publisher = with.around(own)
	case with.publisher == nil:
		with.publisher = own
	}
	p.box = t.boxOf(cmp.Or(with.tables, &t.tables), p.db, with.dialect)
	cfg := quick(p.name)
	if t.target.Beside != nil {
		cfg.PollMax = 0
	}
	if with.config != nil {
		with.config(&cfg)
	}
	cfg.Observer, p.grace = relay.ObserverFunc(p.observe), cfg.Grace
	r, err := relay.New(p.box, mortal(p, with.publisher), cfg)
	t.must(err, "new relay")
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(context.WithoutCancel(t.ctx))
	stopWake := t.wakeUps(ctx, p.box, r)
	go func() {
		defer close(p.done)
		defer stopWake()
		err := r.Run(ctx)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.err = err
	}()
	t.mu.Lock()
	t.relays = append(t.relays, p)
	t.mu.Unlock()
	return p
}

// wakeUps has the relay over box woken until stop is called, which ends with ctx at the
// latest.
func (t *trial) wakeUps(ctx context.Context, box *outbox.Outbox, r *relay.Relay) (stop func()) {
	if t.target.Beside == nil {
		return t.onWake(r.Wake) // a relay must see the producers' wake-ups of the scenario
	}
	ctx, cancel := context.WithCancel(ctx)
	var beside sync.WaitGroup
	beside.Go(func() { t.target.Beside(ctx, box.DB(), box.Tables(), r.Wake) })
	return func() {
		cancel()
		beside.Wait()
	}
}

// onWake calls wake when one of the scenario's outboxes wakes its relays.
func (t *trial) onWake(wake func()) (stop func()) {
	boxes := map[*outbox.Outbox]bool{t.box: true, t.producer: true, t.operator: true} // which may be the same
	var stops []func()
	for box := range boxes {
		stops = append(stops, box.OnWake(wake))
	}
	return func() {
		for _, f := range stops {
			f()
		}
	}
}

// startMany starts n relays.
func (t *trial) startMany(n int, config ...func(c *relay.Config)) []*process {
	all := make([]*process, n)
	for i := range all {
		all[i] = t.start(config...)
	}
	return all
}

func (p *process) observe(e relay.Event) {
	switch e := e.(type) {
	case relay.Settled:
		p.t.broker.settled(p.name, e.Lane)
	case relay.LeaseLost:
		p.t.broker.fault(p.name, e.Lane)
	case relay.Attempted:
		e.Messages, e.Errors = slices.Clone(e.Messages), slices.Clone(e.Errors)
		p.keep(e)
		return
	case relay.Polled:
		p.first.Do(func() { close(p.polled) })
		if e.Lanes == 0 {
			p.mu.Lock()
			p.idle = append(p.idle, e.Took)
			p.mu.Unlock()
		}
		return // too many to keep
	}
	p.keep(e)
}

func (p *process) keep(e relay.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, e)
}

// stop stops the relay gracefully and waits for it.
func (p *process) stop() {
	began := time.Now()
	p.cancel()
	<-p.done
	// It gives up a settle that the database has not answered by then, as one that dies.
	if time.Since(began) > 2*p.grace {
		p.t.broker.died(p.name)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// A relay may be stopped while it still checks the database at its start.
	if p.err != nil && !p.dead && !errors.Is(p.err, context.Canceled) {
		p.t.error("relay %s ended with an error: %v", p.name, p.err)
	}
}

// kill makes an end of the relay as a crash would, as far as this is possible
// within the process: from now on nothing it does reaches the database or the
// broker. What it had not settled may repeat. See trial.spawn for the real thing.
func (p *process) kill() {
	p.mu.Lock()
	p.dead = true
	p.mu.Unlock()
	_ = p.db.Close()
	p.cancel()
	<-p.done
	p.calls.Wait()
	p.t.broker.died(p.name)
}

// ended tells whether the relay's Run has returned.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// mortal refuses publishes of a relay that was killed.
func mortal(p *process, inner relay.Publisher) relay.Publisher {
	f := relay.PublisherFunc(func(ctx context.Context, messages []relay.Message) []error {
		p.calls.Add(1)
		defer p.calls.Done()
		p.mu.Lock()
		dead := p.dead
		p.mu.Unlock()
		if dead {
			errs := make([]error, len(messages))
			for i := range errs {
				errs[i] = inject(dialect.Other, "the relay is dead")
			}
			return errs
		}
		return inner.Publish(ctx, messages)
	})
	// The optional interfaces show through.
	o, isOrderer := inner.(relay.Orderer)
	d, isDestinations := inner.(relay.Destinations)
	switch {
	case isOrderer && isDestinations:
		return struct {
			relay.Publisher
			relay.Orderer
			relay.Destinations
		}{f, o, d}
	case isOrderer:
		return struct {
			relay.Publisher
			relay.Orderer
		}{f, o}
	case isDestinations:
		return struct {
			relay.Publisher
			relay.Destinations
		}{f, d}
	default:
		return f
	}
}

// idlePolls returns how long each poll took that found nothing.
func (p *process) idlePolls() []time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.idle
}

// eventsOf returns what the relay observed of one type, in order.
func eventsOf[E relay.Event](p *process) []E {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []E
	for _, e := range p.events {
		if e, ok := e.(E); ok {
			all = append(all, e)
		}
	}
	return all
}

// eventName is the type's name without its package.
func eventName(e relay.Event) string { return reflect.TypeOf(e).Name() }
