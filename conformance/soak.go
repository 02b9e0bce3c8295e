package conformance

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/internal/proxy"
	"github.com/outbox-suite/outbox/relay"
)

// soakScenarios: everything at once, for as long as one likes.
var soakScenarios = []Scenario{{
	Name:    "Soak/EverythingAtOnce",
	Promise: "while producers roll back, commit late, delay and replay, relays die, connections break, the broker fails and whatever else the target offers happens, no promise is broken",
	Soak:    true,
	alone:   true, // it may restart the server
	timeout: 4 * time.Minute,
	run:     everythingAtOnce,
}}

// DefaultSoak is how long a soak is run when somebody asks for one; ShortSoak how
// long it is as one scenario among the others.
const (
	DefaultSoak = 30 * time.Minute
	ShortSoak   = 20 * time.Second
)

// soak is the state of one run.
type soak struct {
	*trial
	until time.Time
	proxy *proxy.Proxy // nil without a network
	// outage and calm are the broker's mood: it takes nothing, or everything.
	outage, calm atomic.Bool
	// became counts the producers' transactions by fate, faults what was done to
	// whom.
	became [3]atomic.Int64
	faults map[string]int
	// resident are the relays in this process, children those in others.
	resident []*process
	children []*child
	replayed map[uuid.UUID]bool
}

func everythingAtOnce(t *trial) {
	s := &soak{trial: t, faults: make(map[string]int), replayed: make(map[uuid.UUID]bool)}
	length := cmp.Or(t.target.Soak, ShortSoak)
	began := time.Now()
	s.until = began.Add(length)
	if t.target.Network != nil {
		s.proxy = t.newProxy()
	}
	t.broker.when(anyMessage, s.moody())

	var producers sync.WaitGroup
	ctx, stop := context.WithDeadline(t.ctx, s.until)
	defer stop()
	t.onStop(func() { stop(); producers.Wait() })
	for i := range 6 {
		// Every other one has its connections cut with those of the relays.
		db := t.as(&t.tables, Producer)
		if i%2 == 0 {
			db = s.pool(Producer)
		}
		dice := source(t.target.Seed, fmt.Sprintf("soak producer %d", i))
		producers.Go(func() { s.producer(ctx, i, db, dice) })
	}
	for range 2 {
		s.resident = append(s.resident, s.newResident())
		if t.target.Source != "" {
			s.children = append(s.children, s.newChild())
		}
	}

	events := s.events()
	for time.Now().Before(s.until) {
		e := events[t.rand.IntN(len(events))]
		t.do("was at %s, %v after the beginning", e.name, time.Since(began).Round(time.Second))
		e.happen()
		s.faults[e.name]++
		t.progress("%v of %v: %d published, %d faults", time.Since(began).Round(time.Second), length, t.broker.count(), s.count())
		s.pause(50*time.Millisecond, 600*time.Millisecond)
	}
	producers.Wait()

	// From here on nothing goes wrong any more, and everything must leave.
	s.calm.Store(true)
	s.outage.Store(false)
	s.requeueUntilEmpty()
	t.note("in %v: %d transactions committed, %d rolled back or refused, %d in doubt; %d publishes accepted; seed %d",
		length, s.became[committed].Load(), s.became[rolledBack].Load(), s.became[inDoubt].Load(), t.broker.count(), t.target.Seed)
	for _, l := range []struct {
		lacks bool
		what  string
	}{
		{t.target.Source == "", "relays in processes of their own (Target.Source)"},
		{t.target.Network == nil, "cut, slow and silent connections (Target.Network)"},
		{t.target.Start == nil || t.target.Stop == nil && t.target.Kill == nil, "restarts of the server (Target.Start, Stop, Kill)"},
	} {
		if l.lacks {
			t.note("not tried, because the target does not offer it: %s", l.what)
		}
	}
	var happened []string
	for _, name := range slices.Sorted(maps.Keys(s.faults)) {
		happened = append(happened, fmt.Sprintf("%s %d times", name, s.faults[name]))
	}
	t.note("%s", strings.Join(happened, ", "))
	if s.became[committed].Load() == 0 || t.broker.count() == 0 {
		t.fail("nothing was committed, or nothing published: the soak tried nothing")
	}
	t.settleDown()
}

func (s *soak) count() (n int) {
	for _, times := range s.faults {
		n += times
	}
	return n
}

// pool is a pool whose connections can be cut, where that is possible.
func (s *soak) pool(role Role) *sql.DB {
	if s.proxy == nil {
		return s.as(&s.tables, role)
	}
	db, err := s.target.Network.Open(s.ctx, s.proxy.Addr())
	s.must(err, "open through the proxy")
	return s.adopt(db)
}

// newResident starts a relay and waits until it polls: one that is cut off while it
// checks its tables ends with an error, as it should.
func (s *soak) newResident() *process {
	p := s.startWith(relayWith{db: s.pool(Relay), config: soaked})
	select {
	case <-p.polled:
	case <-p.done:
	case <-s.ctx.Done():
	}
	return p
}

// newChild is newResident in a process of its own.
func (s *soak) newChild() *child {
	with := childWith{config: soaked}
	if s.proxy != nil && s.target.Network.Source != nil {
		with.source = s.target.Network.Source(s.proxy.Addr())
	}
	c := s.spawn(with)
	s.await("a relay in a process of its own to poll", func() bool {
		select {
		case <-c.gone:
			return true
		default:
			return c.saw("Polled") > 0
		}
	})
	return c
}

// soaked makes a relay that has few attempts, so that messages die and are requeued.
func soaked(c *relay.Config) { c.MaxAttempts = 3 }

// pause waits for a random time.
func (s *soak) pause(least, most time.Duration) {
	s.sleep(s.ctx, least+time.Duration(s.rand.Int64N(int64(most-least))))
}

func (s *soak) sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// event is one thing that goes wrong, or that an operator does.
type event struct {
	name   string
	happen func()
}

// events are those that the target has the means for; the frequent ones are there
// more than once.
func (s *soak) events() []event {
	all := []event{
		{"relay replaced", s.replaceResident},
		{"relay crashed in its process", s.crashResident},
		{"broker outage", s.brokerOutage},
		{"dead messages requeued", s.requeueSome},
		{"messages replayed", s.replaySome},
		{"purge", s.purgeSome},
	}
	if len(s.children) > 0 {
		all = append(all, event{"process killed", s.killChild}, event{"process killed", s.killChild})
		if canPause {
			all = append(all, event{"process paused", s.pauseChild}, event{"process paused", s.pauseChild})
		}
	}
	if s.proxy != nil {
		all = append(
			all,
			event{"connections cut", func() { s.proxy.Cut() }},
			event{"connections cut", func() { s.proxy.Cut() }},
			event{"connection cut in the middle", func() {
				s.proxy.CutAt(1+s.rand.IntN(8), s.rand.IntN(2) == 0)
				s.pause(50*time.Millisecond, 300*time.Millisecond)
				s.proxy.CutAt(0, false) // a relay that starts checks its tables once
			}},
			event{"connections half closed", s.proxy.HalfClose},
			event{"network silent", func() { s.proxy.Silence(true); s.pause(100*time.Millisecond, 2*leaseTime); s.proxy.Silence(false) }},
			event{"network slow", func() {
				s.proxy.Delay(20 * time.Millisecond)
				s.pause(200*time.Millisecond, time.Second)
				s.proxy.Delay(0)
			}},
		)
	}
	if s.target.Start != nil && s.target.Stop != nil {
		all = append(all, event{"server restarted", func() { s.restart(s.target.Stop) }})
	}
	if s.target.Start != nil && s.target.Kill != nil {
		all = append(all, event{"server crashed", func() { s.restart(s.target.Kill) }})
	}
	return all
}

func (s *soak) replaceResident() {
	i := s.rand.IntN(len(s.resident))
	s.resident[i].stop()
	s.resident[i] = s.newResident()
}

func (s *soak) crashResident() {
	i := s.rand.IntN(len(s.resident))
	s.resident[i].kill()
	s.resident[i] = s.newResident()
}

func (s *soak) killChild() {
	i := s.rand.IntN(len(s.children))
	s.children[i].kill()
	s.children[i] = s.newChild()
}

// pauseChild stops a process for a time that may be longer than its lease.
func (s *soak) pauseChild() {
	c := s.children[s.rand.IntN(len(s.children))]
	c.pause()
	s.pause(50*time.Millisecond, 5*leaseTime/2)
	c.proceed()
}

func (s *soak) restart(down func(context.Context) error) {
	began := false
	s.onStop(func() { // whatever happens, the server must be there afterwards
		if began {
			_ = s.target.Start(context.WithoutCancel(s.ctx))
		}
	})
	began = true
	s.must(down(s.ctx), "take the server down")
	s.must(s.target.Start(s.ctx), "start the server")
	began = false
}

func (s *soak) brokerOutage() {
	s.outage.Store(true)
	s.pause(100*time.Millisecond, 3*leaseTime/2)
	s.outage.Store(false)
}

// operate runs an operator's call. It goes past the proxy and never while the server
// is away, so an error is one.
func (s *soak) operate(doing string, call func() error) {
	if err := call(); err != nil && s.ctx.Err() == nil {
		s.fail("%s: %v", doing, err)
	}
}

func (s *soak) requeueSome() {
	s.operate("requeue", func() error {
		_, err := s.operator.Requeue(s.ctx, outbox.Filter{States: []string{dialect.Dead}}, 1+s.rand.IntN(20))
		return err
	})
}

// replaySome replays some of the last messages published, each at most once: two
// replays of a message that wait at the same time are one for the broker.
func (s *soak) replaySome() {
	took, _ := s.broker.history()
	var ids []uuid.UUID
	for _, a := range took[max(0, len(took)-500):] {
		if len(ids) < 10 && !s.replayed[a.id] && s.rand.IntN(20) == 0 {
			s.replayed[a.id] = true
			ids = append(ids, a.id)
		}
	}
	if len(ids) > 0 {
		s.operate("replay", func() error {
			_, err := s.operator.Replay(s.ctx, outbox.Filter{IDs: ids}, 0)
			return err
		})
	}
}

func (s *soak) purgeSome() {
	s.operate("purge", func() error {
		_, err := s.operator.Purge(s.ctx, 10*time.Second, 0)
		return err
	})
}

// requeueUntilEmpty is the operator who clears up.
func (s *soak) requeueUntilEmpty() {
	s.await("everything to leave, dead messages after a requeue", func() bool {
		s.requeueSome()
		st := s.stats()
		return st.Ready+st.Scheduled+st.Retry+st.Held+st.Dead == 0
	})
}

// moody is a broker that fails in every way it can, until it is calm.
func (s *soak) moody() reaction {
	var mu sync.Mutex
	dice := source(s.target.Seed, "soak broker")
	roll := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return dice.IntN(n)
	}
	return func(c *call) error {
		switch {
		case s.calm.Load():
			return acceptIt(c)
		case s.outage.Load():
			return relay.Unavailable(errors.New("broker: away"))
		case poisonous(c.message.ID) && s.broker.tried(c.message.ID) <= 2:
			return relay.Permanent(errors.New("broker: never this one"))
		}
		switch n := roll(1000); {
		case n < 20:
			return errors.New("broker: not now")
		case n < 30:
			return loseAnswer(c)
		case n < 32:
			s.sleep(c.ctx, time.Duration(roll(300))*time.Millisecond)
			if c.ctx.Err() != nil {
				return context.Cause(c.ctx)
			}
		}
		return acceptIt(c)
	}
}

// poisonous chooses one message in two hundred.
func poisonous(id uuid.UUID) bool {
	h := fnv.New32a()
	_, _ = h.Write(id[:])
	return h.Sum32()%200 == 0
}

// producer writes transactions until ctx ends. Its keys are its own, so that those
// of one key are committed one after the other.
func (s *soak) producer(ctx context.Context, number int, db *sql.DB, dice *rand.Rand) {
	box := s.newBox(db, s.target.Dialect)
	var generation [8]int
	for ctx.Err() == nil {
		var used []int
		messages := make([]outbox.Message, 1+dice.IntN(8))
		for i := range messages {
			switch dice.IntN(20) {
			case 0: // without a key
				messages[i] = s.messageFrom(dice, "")
			case 1: // delayed; no other has its key, because it takes its place when it is due
				messages[i] = s.messageFrom(dice, "delayed-"+s.newID(dice).String())
				messages[i].Delay = time.Duration(dice.IntN(2000)) * time.Millisecond
			default:
				k := dice.IntN(len(generation))
				used = append(used, k)
				messages[i] = s.messageFrom(dice, fmt.Sprintf("key-%d-%d-%d", number, k, generation[k]))
			}
		}
		became := s.transaction(ctx, box, dice, messages)
		s.became[became].Add(1)
		s.record(became, messages...)
		pause := time.Duration(1+dice.IntN(20)) * time.Millisecond
		switch became {
		case committed:
			s.box.Wake() //nolint:contextcheck // the signal outlives the call
		case inDoubt:
			// The server may still commit it, so what comes next must not be of its
			// keys.
			for _, k := range used {
				generation[k]++
			}
			pause = 50 * time.Millisecond
		case rolledBack:
		}
		s.sleep(ctx, pause)
	}
}

// transaction is one business transaction. One in ten is rolled back, one in ten
// commits late. It is finished when ctx ends in the middle.
//
//nolint:contextcheck // the transaction's context is the scenario's
func (s *soak) transaction(ctx context.Context, box *outbox.Outbox, dice *rand.Rand, messages []outbox.Message) fate {
	rollBack, late := dice.IntN(10) == 0, time.Duration(0)
	if dice.IntN(10) == 0 {
		late = time.Duration(dice.IntN(400)) * time.Millisecond
	}
	tx, err := box.DB().BeginTx(s.ctx, nil)
	if err != nil {
		return rolledBack
	}
	defer tx.Rollback() // after a commit it does nothing
	if _, err := box.Enqueue(s.ctx, tx, messages...); err != nil {
		return rolledBack
	}
	s.sleep(ctx, late)
	if rollBack {
		return rolledBack
	}
	if err := tx.Commit(); err != nil {
		return inDoubt
	}
	return committed
}
