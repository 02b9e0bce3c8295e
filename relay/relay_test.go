package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/relay"
)

// broker is a publisher that records what it accepted.
type broker struct {
	mu      sync.Mutex
	ordered bool
	// answer decides on a message; nil accepts all. It may block on ctx.
	answer   func(ctx context.Context, m relay.Message) error
	accepted []relay.Message
	tries    map[uuid.UUID][]time.Time
	calls    int
}

func (b *broker) KeepsOrder() bool { return b.ordered }

func (b *broker) Publish(ctx context.Context, messages []relay.Message) []error {
	b.mu.Lock()
	b.calls++
	b.mu.Unlock()
	errs := make([]error, len(messages))
	failed := map[string]bool{}
	for i, m := range messages {
		b.mu.Lock()
		if b.tries == nil {
			b.tries = map[uuid.UUID][]time.Time{}
		}
		b.tries[m.ID] = append(b.tries[m.ID], time.Now())
		b.mu.Unlock()
		if b.ordered && m.HasKey() && failed[m.Key] {
			errs[i] = errors.New("an earlier message of the key failed")
			continue
		}
		if b.answer != nil {
			errs[i] = b.answer(ctx, m)
		}
		if errs[i] != nil {
			failed[m.Key] = true
			continue
		}
		b.mu.Lock()
		b.accepted = append(b.accepted, m)
		b.mu.Unlock()
	}
	return errs
}

func (b *broker) got() []relay.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.accepted)
}

// published compares the accepted messages of a key, in order, with ids.
func (b *broker) published(t *testing.T, key string, ids []uuid.UUID) {
	t.Helper()
	var order []uuid.UUID
	for _, msg := range b.got() {
		if msg.Key == key {
			order = append(order, msg.ID)
		}
	}
	if !slices.Equal(order, ids) {
		t.Errorf("the key's messages were published in the order %v, want %v", order, ids)
	}
}

func (b *broker) times(id uuid.UUID) []time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.tries[id])
}

// events records what a relay tells.
type events struct {
	mu   sync.Mutex
	list []relay.Event
}

func (e *events) Observe(ev relay.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, ev)
}

func count[E relay.Event](e *events) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, ev := range e.list {
		if _, ok := ev.(E); ok {
			n++
		}
	}
	return n
}

// run starts a relay and returns a function that stops it and waits.
func run(t *testing.T, o *outbox.Outbox, p relay.Publisher, cfg relay.Config) (stop func()) {
	t.Helper()
	r, err := relay.New(o, p, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

// drain runs a relay until nothing is left.
func drain(t *testing.T, o *outbox.Outbox, p relay.Publisher, cfg relay.Config) {
	t.Helper()
	cfg.UntilEmpty = true
	r, err := relay.New(o, p, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(t.Context()); err != nil {
		t.Fatalf("Run: %v", err)
	}
}

// Both ways of handing messages over must keep the order of keys whatever
// fails, and publish everything once.
func TestOrderPerKey(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		t.Run(fmt.Sprintf("ordered=%v", ordered), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				seed := rand.Uint64()
				t.Logf("seed %d", seed)
				rng := rand.New(rand.NewPCG(seed, 0))
				m := newMemory(4)
				o := m.open(t)
				next := map[string]int64{}
				for range 2000 {
					key := fmt.Sprint(rng.IntN(60))
					next[key]++
					m.enqueue(t, o, outbox.Message{Key: key, Revision: next[key]})
				}
				var mu sync.Mutex
				b := &broker{ordered: ordered, answer: func(ctx context.Context, _ relay.Message) error {
					mu.Lock()
					fails, pause := rng.IntN(20) == 0, time.Duration(rng.IntN(5))*time.Millisecond
					mu.Unlock()
					time.Sleep(pause)
					if fails {
						return errors.New("not now")
					}
					return nil
				}}
				drainDelayed(t, m, o, b, relay.Config{Batch: 100, PublishSize: 7, MaxAttempts: 100, RetryMax: 2 * time.Second})
				seen := map[string]int64{}
				for _, msg := range b.got() {
					if msg.Revision != seen[msg.Key]+1 {
						t.Fatalf("key %s: revision %d published after %d", msg.Key, msg.Revision, seen[msg.Key])
					}
					seen[msg.Key] = msg.Revision
				}
				for key, n := range next {
					if seen[key] != n {
						t.Errorf("key %s: %d of %d published", key, seen[key], n)
					}
				}
			})
		})
	}
}

// drainDelayed runs a relay until even what waits for a time is gone.
func drainDelayed(t *testing.T, m *memory, o *outbox.Outbox, p relay.Publisher, cfg relay.Config) {
	t.Helper()
	stop := run(t, o, p, cfg)
	defer stop()
	for range 100_000 {
		m.mu.Lock()
		left := len(m.ready) + len(m.parked)
		m.mu.Unlock()
		if left == 0 {
			return
		}
		time.Sleep(100 * time.Millisecond) // the bubble's clock
	}
	t.Fatal("messages are left")
}

func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		o := m.open(t)
		ids := m.enqueue(t, o, outbox.Message{Key: "bad"}, outbox.Message{Key: "bad"}, outbox.Message{Key: "good"})
		b := &broker{answer: func(_ context.Context, msg relay.Message) error {
			if msg.ID == ids[0] {
				return errors.New("no")
			}
			return nil
		}}
		e := &events{}
		stop := run(t, o, b, relay.Config{MaxAttempts: 5, RetryMin: time.Second, RetryMax: 4 * time.Second, Observer: e})
		time.Sleep(time.Minute)
		stop()
		tries := b.times(ids[0])
		if len(tries) != 5 {
			t.Fatalf("got %d attempts, want MaxAttempts 5", len(tries))
		}
		for i := 1; i < len(tries); i++ {
			// The ceiling; a pause between polls, which may be a quarter longer; rounding.
			most := min(time.Second<<(i-1), 4*time.Second) + 1250*time.Millisecond + 10*time.Millisecond
			if gap := tries[i].Sub(tries[i-1]); gap > most {
				t.Errorf("attempt %d came %v after the one before, want at most %v", i+1, gap, most)
			}
		}
		if state, row := m.state(ids[0]); state != dialect.Dead || row.Attempts != 5 || row.reason != "no" {
			t.Errorf("bad message: state %s, attempts %d, reason %q", state, row.Attempts, row.reason)
		}
		if state, _ := m.state(ids[1]); state != dialect.Held {
			t.Errorf("message behind it: state %s, want held", state)
		}
		if state, _ := m.state(ids[2]); state != "done" {
			t.Errorf("other key: state %s, want done", state)
		}
		if n := count[relay.Died](e); n != 1 {
			t.Errorf("got %d Died events, want 1", n)
		}
	})
}

func TestPermanentAndPassKey(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory(1)
			o := m.open(t)
			ids := m.enqueue(t, o, outbox.Message{Key: "k"}, outbox.Message{Key: "k"}, outbox.Message{Key: "k"})
			b := &broker{ordered: ordered, answer: func(_ context.Context, msg relay.Message) error {
				if msg.ID == ids[0] {
					return fmt.Errorf("refused: %w", relay.Permanent(errors.New("too large")))
				}
				return nil
			}}
			drain(t, o, b, relay.Config{OnDead: relay.PassKey})
			if n := len(b.times(ids[0])); n != 1 {
				t.Errorf("ordered=%v: permanent error: %d attempts, want 1", ordered, n)
			}
			if state, _ := m.state(ids[0]); state != dialect.Dead {
				t.Errorf("ordered=%v: state %s, want dead", ordered, state)
			}
			got := b.got()
			if len(got) != 2 || got[0].ID != ids[1] || got[1].ID != ids[2] {
				t.Errorf("ordered=%v: the key did not pass in order: %v", ordered, got)
			}
			if got[0].Epoch != 1 || got[1].Epoch != 1 {
				t.Errorf("ordered=%v: what followed the dead message had to wait for another turn", ordered)
			}
			if got[0].Attempt != 1 || got[1].Attempt != 1 {
				t.Errorf("ordered=%v: a message refused only because of the dead one lost an attempt", ordered)
			}
		})
	}
}

// What a run refused because of a dead message before it goes out before what is in the
// next run of the batch.
func TestPassKeyAcrossRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		o := m.open(t)
		ids := m.enqueue(t, o, outbox.Message{Key: "k"}, outbox.Message{Key: "k"}, outbox.Message{Key: "k"}, outbox.Message{Key: "k"})
		b := &broker{ordered: true, answer: func(_ context.Context, msg relay.Message) error {
			if msg.ID == ids[0] {
				return relay.Permanent(errors.New("too large"))
			}
			return nil
		}}
		drain(t, o, b, relay.Config{OnDead: relay.PassKey, PublishSize: 2})
		b.published(t, "k", ids[1:])
	})
}

// What a run refused because of a dead message stays before what is behind it, also where
// nothing more may be published and what is behind it waits for its destination.
func TestPassKeyStopsBehindTheDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		o := m.open(t)
		ctx, cancel := context.WithCancel(t.Context())
		b := &broker{ordered: true}
		b.answer = func(_ context.Context, msg relay.Message) error {
			switch {
			case msg.Key == "other" && ctx.Err() == nil:
				return relay.Unavailable(errors.New("connection refused"))
			case msg.Revision == 1:
				cancel()
				return relay.Permanent(errors.New("too large"))
			}
			return nil
		}
		m.enqueue(t, o, outbox.Message{Topic: "b", Key: "other"})
		cfg := relay.Config{OnDead: relay.PassKey, BreakerMin: time.Minute, BreakerMax: time.Minute}
		r, err := relay.New(o, fleet{b}, cfg)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		time.Sleep(10 * time.Second) // the destination of b is down
		ids := m.enqueue(t, o, outbox.Message{Topic: "a", Key: "k", Revision: 1}, outbox.Message{Topic: "a", Key: "k"}, outbox.Message{Topic: "b", Key: "k"})
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		drain(t, o, fleet{b}, cfg)
		b.published(t, "k", ids[1:])
	})
}

// A broker that is away costs no attempts, is left alone with growing pauses,
// and the backlog goes out when it is back.
func TestUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(4)
		o := m.open(t)
		var ids []uuid.UUID
		for i := range 300 {
			ids = append(ids, m.enqueue(t, o, outbox.Message{Key: fmt.Sprint(i)})...)
		}
		away := true
		var mu sync.Mutex
		b := &broker{answer: func(context.Context, relay.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if away {
				return relay.Unavailable(errors.New("connection refused"))
			}
			return nil
		}}
		e := &events{}
		stop := run(t, o, b, relay.Config{MaxAttempts: 2, PublishConcurrency: 3, PublishSize: 1, Observer: e})
		time.Sleep(10 * time.Minute)
		b.mu.Lock()
		calls := b.calls
		b.mu.Unlock()
		// 500ms doubling to 30s, less a quarter: up to 32 probes in ten minutes,
		// and the calls of four workers that were under way at first.
		if most := 32 + 4*3; calls > most {
			t.Errorf("%d calls to an unavailable broker in 10 minutes, want at most %d", calls, most)
		}
		mu.Lock()
		away = false
		mu.Unlock()
		time.Sleep(40 * time.Second)
		stop()
		for _, id := range ids {
			if state, row := m.state(id); state != "done" || row.Attempts != 0 {
				t.Fatalf("state %s after %d attempts, want done after 0", state, row.Attempts)
			}
		}
		if count[relay.BreakerOpened](e) == 0 || count[relay.BreakerClosed](e) != 1 {
			t.Errorf("breaker opened %d, closed %d", count[relay.BreakerOpened](e), count[relay.BreakerClosed](e))
		}
	})
}

// Behind a probe that got through batches are full again at once.
func TestProbeIsOneMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		o := m.open(t)
		for range 1000 {
			m.enqueue(t, o, outbox.Message{})
		}
		var away atomic.Bool
		away.Store(true)
		b := &broker{answer: func(context.Context, relay.Message) error {
			if away.Load() {
				return relay.Unavailable(errors.New("connection refused"))
			}
			return nil
		}}
		e := &events{}
		stop := run(t, o, b, relay.Config{Batch: 100, Observer: e})
		time.Sleep(time.Minute)
		away.Store(false)
		time.Sleep(time.Minute)
		stop()
		if n := len(b.got()); n != 1000 {
			t.Errorf("%d of 1000 messages published", n)
		}
		if n := count[relay.Settled](e); n > 12 {
			t.Errorf("%d settles for 1000 messages in batches of 100, want the probe's and 10", n)
		}
	})
}

// A topic that alone is unavailable stops no other one, and costs few calls; when the
// broker is away as a whole, it is left alone as a whole.
func TestTopicUnavailableAlone(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory(8)
			o := m.open(t)
			var away, sick atomic.Bool
			sick.Store(true)
			b := &broker{ordered: ordered, answer: func(_ context.Context, msg relay.Message) error {
				if away.Load() || sick.Load() && msg.Topic == "sick" {
					return relay.Unavailable(errors.New("not enough replicas"))
				}
				return nil
			}}
			e := &events{}
			defer run(t, o, b, relay.Config{MaxAttempts: 3, Observer: e})()
			calls := func() int {
				b.mu.Lock()
				defer b.mu.Unlock()
				return b.calls
			}
			well, all := 0, 0
			some := func() {
				for i := range 100 {
					topic := "sick"
					if i%10 > 0 {
						topic = "well"
						well++
					}
					all++
					m.enqueue(t, o, outbox.Message{Key: fmt.Sprint(all), Topic: topic})
				}
			}
			for range 10 {
				some()
				time.Sleep(2 * time.Minute)
				if n := len(b.got()); n != well {
					t.Fatalf("ordered=%v: %d messages published beside the topic that is unavailable, want %d", ordered, n, well)
				}
			}
			if n := count[relay.Died](e); n > 0 {
				t.Errorf("ordered=%v: %d messages died of a topic that is unavailable", ordered, n)
			}
			away.Store(true)
			before := calls()
			some()
			time.Sleep(10 * time.Minute)
			// Some thirty probes of the broker and as many of the topic, and first calls.
			if n := calls() - before; n > 150 {
				t.Errorf("ordered=%v: %d calls while the broker was away, want a probe now and then", ordered, n)
			}
			away.Store(false)
			sick.Store(false)
			time.Sleep(2 * time.Minute)
			if n := len(b.got()); n != all {
				t.Errorf("ordered=%v: %d of %d messages published in the end", ordered, n, all)
			}
		})
	}
}

// fleet is a publisher with a destination a topic.
type fleet struct{ *broker }

func (fleet) Destination(topic string) string { return topic }

func TestOneDestinationAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		o := m.open(t)
		var away, up []uuid.UUID
		for i := range 100 {
			away = append(away, m.enqueue(t, o, outbox.Message{Topic: "away", Key: fmt.Sprint("a", i%10)})...)
		}
		up = m.enqueue(t, o, outbox.Message{Topic: "up", Key: "u1"}, outbox.Message{Topic: "up", Key: "u2"})
		var back atomic.Bool
		b := &broker{answer: func(_ context.Context, msg relay.Message) error {
			if msg.Topic == "away" && !back.Load() {
				return relay.Unavailable(errors.New("connection refused"))
			}
			return nil
		}}
		stop := run(t, o, fleet{b}, relay.Config{Batch: 10, MaxAttempts: 1})
		time.Sleep(time.Second)
		for _, id := range up {
			if state, _ := m.state(id); state != "done" {
				t.Errorf("message of the other destination: state %s, want done", state)
			}
		}
		for i := range 60 { // the other destination stays busy
			m.enqueue(t, o, outbox.Message{Topic: "up", Key: fmt.Sprint("more", i)})
			time.Sleep(time.Second)
		}
		for _, id := range away {
			if state, row := m.state(id); row.Attempts != 0 || (state != dialect.Retry && state != dialect.Held) {
				t.Fatalf("message of the destination that is away: state %s, attempts %d", state, row.Attempts)
			}
		}
		back.Store(true)
		time.Sleep(2 * time.Minute)
		stop()
		if len(b.got()) != 162 {
			t.Errorf("%d messages published, want 162", len(b.got()))
		}
	})
}

// A topic whose publishes hang holds the others up once, not again and again.
func TestSlowTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		o := m.open(t)
		for i := range 50 {
			m.enqueue(t, o, outbox.Message{Topic: "slow", Key: fmt.Sprint("s", i)})
		}
		var fast []uuid.UUID
		for i := range 50 {
			fast = append(fast, m.enqueue(t, o, outbox.Message{Topic: "fast", Key: fmt.Sprint("f", i)})...)
		}
		b := &broker{answer: func(ctx context.Context, msg relay.Message) error {
			if msg.Topic == "slow" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}}
		stop := run(t, o, b, relay.Config{Batch: 20, PublishTimeout: 5 * time.Second})
		began := time.Now()
		for {
			time.Sleep(10 * time.Millisecond)
			if n := len(b.got()); n == 50 {
				break
			}
			if time.Since(began) > time.Minute {
				t.Fatalf("%d of 50 messages of the fast topic published in a minute", len(b.got()))
			}
		}
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("the fast topic took %v, want about one publish timeout of 5s", took)
		}
		for _, id := range fast {
			if len(b.times(id)) != 1 {
				t.Error("a message of the fast topic was published twice")
			}
		}
		stop()
	})
}

func TestBrokenPublishers(t *testing.T) {
	for name, p := range map[string]relay.PublisherFunc{
		"panics":              func(context.Context, []relay.Message) []error { panic("oops") },
		"too few results":     func(_ context.Context, m []relay.Message) []error { return make([]error, len(m)-1) },
		"ignores its context": func(context.Context, []relay.Message) []error { time.Sleep(time.Hour); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory(1)
				o := m.open(t)
				id := m.enqueue(t, o, outbox.Message{Key: "a"}, outbox.Message{Key: "b"})[0]
				stop := run(t, o, p, relay.Config{MaxAttempts: 1})
				time.Sleep(20 * time.Second)
				stop()
				time.Sleep(2 * time.Hour) // let what was left behind return
				if state, row := m.state(id); state != dialect.Dead || row.reason == "" {
					t.Errorf("state %s, reason %q, want dead with a reason", state, row.reason)
				}
			})
		})
	}
}

func TestCorruptHeadersParkOneMessage(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory(1)
			o := m.open(t)
			ids := m.enqueue(t, o, outbox.Message{Key: "a"}, outbox.Message{Key: "b"}, outbox.Message{Key: "b"}, outbox.Message{Key: "c"})
			m.ready[1].Headers = `{"n": 1}`
			b := &broker{ordered: ordered}
			drain(t, o, b, relay.Config{})
			want := []string{"done", dialect.Dead, dialect.Held, "done"}
			for i, id := range ids {
				if state, _ := m.state(id); state != want[i] {
					t.Errorf("ordered=%v: message %d: state %s, want %s", ordered, i, state, want[i])
				}
			}
		})
	}
}

// A settle that fails is tried again by itself: nothing is published twice.
func TestSettleIsRetried(t *testing.T) {
	for _, class := range []dialect.Class{dialect.Conflict, dialect.Transient, dialect.OutcomeUnknown, dialect.Other} {
		t.Run(class.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory(2)
				o := m.open(t)
				for i := range 20 {
					m.enqueue(t, o, outbox.Message{Key: fmt.Sprint(i)})
				}
				tries := 0
				m.fail = func(op string) error {
					if strings.HasPrefix(op, "settle") {
						if tries++; tries%5 != 0 {
							return classError(class)
						}
					}
					return nil
				}
				b, e := &broker{}, &events{}
				drain(t, o, b, relay.Config{Observer: e})
				if len(b.got()) != 20 {
					t.Errorf("%d publishes of 20 messages", len(b.got()))
				}
				if count[relay.SettleRetried](e) == 0 {
					t.Error("no SettleRetried event")
				}
			})
		})
	}
}

// When only the archive fails, messages leave the outbox all the same, loudly.
func TestArchiveFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		o := m.open(t)
		id := m.enqueue(t, o, outbox.Message{Key: "a"})[0]
		m.fail = func(op string) error {
			if op == "settle and archive" {
				return classError(dialect.Missing)
			}
			return nil
		}
		b, e := &broker{}, &events{}
		drain(t, o, b, relay.Config{Observer: e})
		if state, _ := m.state(id); state != "gone" || len(b.got()) != 1 {
			t.Errorf("state %s after %d publishes, want gone after 1", state, len(b.got()))
		}
		if count[relay.ArchiveFailed](e) != 1 {
			t.Errorf("%d ArchiveFailed events, want 1", count[relay.ArchiveFailed](e))
		}
	})
}

// A disk that is full says so as what may pass. Where it has not for a lease, and is in the
// way of the archive alone, messages leave as well.
func TestArchiveIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		o := m.open(t)
		id := m.enqueue(t, o, outbox.Message{Key: "a"})[0]
		m.fail = func(op string) error {
			if op == "settle and archive" {
				return classError(dialect.Transient)
			}
			return nil
		}
		b, e := &broker{}, &events{}
		stop := run(t, o, b, relay.Config{Lease: 15 * time.Second, Observer: e})
		time.Sleep(10 * time.Second)
		if n := count[relay.ArchiveFailed](e); n > 0 {
			t.Errorf("%d ArchiveFailed events after 10s of what may pass, want none yet", n)
		}
		time.Sleep(time.Minute)
		stop()
		if state, _ := m.state(id); state != "gone" || len(b.got()) != 1 {
			t.Errorf("state %s after %d publishes, want gone after 1", state, len(b.got()))
		}
		if n := count[relay.ArchiveFailed](e); n != 1 {
			t.Errorf("%d ArchiveFailed events, want 1", n)
		}
	})
}

// When another relay takes the lane in the middle of a publish, the publish is
// cancelled and nothing is settled.
func TestLeaseLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		o := m.open(t)
		ids := m.enqueue(t, o, outbox.Message{Key: "a"}, outbox.Message{Key: "b"}, outbox.Message{Key: "b"})
		var cancelled atomic.Bool
		b := &broker{answer: func(ctx context.Context, msg relay.Message) error {
			if msg.ID == ids[0] {
				return nil
			}
			<-ctx.Done()
			cancelled.Store(true)
			return ctx.Err()
		}}
		e := &events{}
		stop := run(t, o, b, relay.Config{Lease: 15 * time.Second, PublishTimeout: time.Minute, Observer: e})
		time.Sleep(time.Second)
		m.mu.Lock()
		m.lanes[0] = memoryLane{owner: "thief", epoch: m.lanes[0].epoch + 1, until: time.Now().Add(time.Hour)}
		m.mu.Unlock()
		began := time.Now()
		for count[relay.LeaseLost](e) == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("noticed after %v, want the next renewal, within 5s", took)
		}
		synctest.Wait()
		if !cancelled.Load() {
			t.Error("the publish under way was not cancelled")
		}
		time.Sleep(time.Minute)
		stop()
		for _, id := range ids {
			if state, row := m.state(id); state != "ready" || row.Attempts != 0 {
				t.Errorf("state %s, attempts %d: the stale owner changed something", state, row.Attempts)
			}
		}
		if n := count[relay.LeaseLost](e); n != 1 {
			t.Errorf("%d LeaseLost events, want 1", n)
		}
	})
}

// When no renewal gets through, publishing ends with the lease, and what was
// accepted is settled once the database answers, if the lane is still ours.
func TestRenewalFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		o := m.open(t)
		ids := m.enqueue(t, o, outbox.Message{Key: "a"}, outbox.Message{Key: "b"})
		cancelled := make(chan time.Duration, 1)
		began := time.Now()
		b := &broker{answer: func(ctx context.Context, msg relay.Message) error {
			if msg.ID == ids[0] {
				return nil
			}
			<-ctx.Done()
			select {
			case cancelled <- time.Since(began):
			default:
			}
			return ctx.Err()
		}}
		away := func(string) error {
			if time.Since(began) < time.Minute {
				return classError(dialect.Transient)
			}
			return nil
		}
		stop := run(t, o, b, relay.Config{PublishTimeout: time.Hour})
		time.Sleep(time.Second)
		m.mu.Lock()
		m.fail = away
		m.mu.Unlock()
		if after := <-cancelled; after < 15*time.Second || after > 17*time.Second {
			t.Errorf("publish cancelled after %v, want the end of the lease, 15s", after)
		}
		time.Sleep(2 * time.Minute)
		if state, _ := m.state(ids[0]); state != "done" || len(b.times(ids[0])) != 1 {
			t.Errorf("accepted message: state %s after %d publishes, want done after 1", state, len(b.times(ids[0])))
		}
		stop()
	})
}

// A stop in mid-batch settles exactly what was accepted and frees the lane.
func TestGracefulStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		o := m.open(t)
		var ids []uuid.UUID
		for i := range 100 {
			ids = append(ids, m.enqueue(t, o, outbox.Message{Key: fmt.Sprint(i)})...)
		}
		b := &broker{answer: func(ctx context.Context, msg relay.Message) error {
			for i, id := range ids {
				if id == msg.ID && i < 10 {
					return nil
				}
			}
			<-ctx.Done()
			return ctx.Err()
		}}
		stop := run(t, o, b, relay.Config{PublishConcurrency: 100, PublishTimeout: time.Hour, Grace: 3 * time.Second})
		time.Sleep(time.Second)
		began := time.Now()
		stop()
		if took := time.Since(began); took < 3*time.Second || took > 4*time.Second {
			t.Errorf("stop took %v, want the grace period of 3s", took)
		}
		for i, id := range ids {
			want := "ready"
			if i < 10 {
				want = "done"
			}
			if state, row := m.state(id); state != want || row.Attempts != 0 {
				t.Errorf("message %d: state %s, attempts %d, want %s, 0", i, state, row.Attempts, want)
			}
		}
		if m.lanes[0].owner != "" {
			t.Error("the lane was not released")
		}
	})
}

// After a stop nothing more is handed to the publisher.
func TestStopPublishesNothingMore(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory(1)
			o := m.open(t)
			for i := range 100 {
				m.enqueue(t, o, outbox.Message{Key: fmt.Sprint(i)})
			}
			b := &broker{ordered: ordered, answer: func(context.Context, relay.Message) error {
				time.Sleep(time.Second)
				return nil
			}}
			stop := run(t, o, b, relay.Config{PublishConcurrency: 1, PublishSize: 1, Grace: time.Minute})
			time.Sleep(3500 * time.Millisecond)
			stop()
			if n := len(b.got()); n != 4 || len(m.done) != 4 {
				t.Errorf("ordered=%v: %d accepted, %d settled, want 4: three before the stop and the one under way", ordered, n, len(m.done))
			}
		})
	}
}

// Behind a full batch the next follows at once, and an idle relay polls less
// and less but never less than every PollMax.
func TestPolling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		o := m.open(t)
		for range 1000 {
			m.enqueue(t, o, outbox.Message{})
		}
		b := &broker{}
		began := time.Now()
		drain(t, o, b, relay.Config{Batch: 10, Turn: time.Hour})
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("100 full batches took %v of pauses", took)
		}
		e := &events{}
		stop := run(t, o, b, relay.Config{PollMax: time.Second, Observer: e})
		time.Sleep(time.Minute)
		if n := count[relay.Polled](e); n < 48 || n > 90 {
			t.Errorf("%d polls in an idle minute, want about 60", n)
		}
		id := m.enqueue(t, o, outbox.Message{})[0]
		began = time.Now()
		o.Wake()
		synctest.Wait()
		if tries := b.times(id); len(tries) != 1 || tries[0].Sub(began) > 0 {
			t.Errorf("wake-up did not publish at once: %v", tries)
		}
		stop()
	})
}

// Polls and reads stay above a floor, and no message that commits late is ever
// below it: it is published at once and before the next one of its key.
func TestFloorIsBelowLateCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		running := int64(0) // the number of the transaction that is open
		begun := int64(1)
		m.horizon = func() dialect.Horizon {
			h := dialect.Horizon{Newest: m.seq, Begun: begun, Running: begun}
			if running > 0 {
				h.Running = running
			}
			return h
		}
		o := m.open(t)
		b := &broker{}
		stop := run(t, o, b, relay.Config{})
		for range 30 {
			m.mu.Lock()
			begun++
			m.mu.Unlock()
			m.enqueue(t, o, outbox.Message{Key: "other"})
			time.Sleep(time.Second)
		}
		m.mu.Lock()
		high := slices.Max(m.floors)
		m.mu.Unlock()
		if high < 25 {
			t.Errorf("the floor rose to %d of 30", high)
		}
		for round := range 20 {
			id := m.enqueue(t, o, outbox.Message{Key: "late"})[0]
			m.mu.Lock()
			row := m.ready[len(m.ready)-1]
			m.ready = m.ready[:len(m.ready)-1] // not yet committed
			running = begun
			begun++
			m.mu.Unlock()
			for range round {
				m.enqueue(t, o, outbox.Message{Key: "other"})
				time.Sleep(700 * time.Millisecond)
			}
			m.mu.Lock()
			m.ready = append(m.ready, row)
			slices.SortFunc(m.ready, func(a, b memoryRow) int { return int(a.Seq - b.Seq) })
			running = 0
			m.mu.Unlock()
			next := m.enqueue(t, o, outbox.Message{Key: "late"})[0]
			o.Wake()
			synctest.Wait()
			// Of other keys one may come between them.
			got := slices.DeleteFunc(b.got(), func(m relay.Message) bool { return m.Key != "late" })
			if len(got) < 2 || got[len(got)-2].ID != id || got[len(got)-1].ID != next {
				t.Fatalf("round %d: a message that committed late was not published before the next of its key", round)
			}
		}
		stop()
	})
}

// Within a turn, too, a message that commits late comes before the next of its
// key, though rows behind it were read already.
func TestLateCommitWithinATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		o := m.open(t)
		late := m.enqueue(t, o, outbox.Message{Key: "late"})[0]
		row := m.ready[0]
		m.ready = nil
		for range 10 {
			m.enqueue(t, o, outbox.Message{Key: "other"})
		}
		var next uuid.UUID
		committed := false
		m.after = func(op string) {
			if !strings.HasPrefix(op, "settle") || committed {
				return
			}
			committed = true
			m.mu.Lock()
			m.ready = append([]memoryRow{row}, m.ready...)
			m.mu.Unlock()
			next = m.enqueue(t, o, outbox.Message{Key: "late"})[0]
		}
		b := &broker{}
		drain(t, o, b, relay.Config{Batch: 5, Turn: time.Hour})
		var order []uuid.UUID
		for _, msg := range b.got() {
			if msg.Key == "late" {
				order = append(order, msg.ID)
			}
		}
		if !slices.Equal(order, []uuid.UUID{late, next}) {
			t.Errorf("published %v, want the late one %v and then the next %v", order, late, next)
		}
	})
}

// A horizon is only a help: without the right to look at it messages go out.
func TestHorizonMayFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		m.fail = func(op string) error {
			if op == "horizon" {
				return classError(dialect.Other)
			}
			return nil
		}
		o := m.open(t)
		m.enqueue(t, o, outbox.Message{Key: "a"})
		b := &broker{}
		drain(t, o, b, relay.Config{})
		if len(b.got()) != 1 {
			t.Error("not published")
		}
	})
}

// A horizon that takes longer than a lease costs the poll none of its time.
func TestSlowHorizonStarvesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		horizons := 0
		m.fail = func(op string) error {
			if op != "horizon" {
				return nil
			}
			horizons++
			time.Sleep(20 * time.Second)
			return context.DeadlineExceeded
		}
		o := m.open(t)
		b := &broker{}
		stop := run(t, o, b, relay.Config{Lease: 15 * time.Second})
		m.enqueue(t, o, outbox.Message{Key: "a"})
		time.Sleep(time.Minute)
		if len(b.got()) != 1 {
			t.Error("not published, because looking for a horizon took too long")
		}
		stop()
		if horizons > 2 {
			t.Errorf("%d slow horizons in a minute", horizons)
		}
	})
}

// A server that came back without its last commits gives seqs again that are below
// the floor.
func TestFloorFollowsSeqsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		begun := int64(1)
		m.horizon = func() dialect.Horizon { return dialect.Horizon{Newest: m.seq, Begun: begun, Running: begun} }
		o := m.open(t)
		b := &broker{}
		stop := run(t, o, b, relay.Config{})
		for range 40 { // between two sweeps
			m.mu.Lock()
			begun++
			m.mu.Unlock()
			m.enqueue(t, o, outbox.Message{Key: "a"})
			time.Sleep(time.Second)
		}
		m.mu.Lock()
		high := slices.Max(m.floors)
		m.seq = 5
		m.mu.Unlock()
		if high < 35 {
			t.Fatalf("the floor rose to %d of 40", high)
		}
		m.enqueue(t, o, outbox.Message{Key: "a"})
		time.Sleep(3 * time.Second)
		if n := len(b.got()); n != 41 {
			t.Errorf("%d of 41 are published, the last one below the floor", n)
		}
		stop()
	})
}

// A lane whose work cannot be done yet is not claimed again at once.
func TestLaneThatComesToNothingRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		m.fail = func(op string) error {
			if strings.HasPrefix(op, "surface") {
				return classError(dialect.Conflict) // somebody else's open transaction
			}
			return nil
		}
		o := m.open(t)
		m.enqueue(t, o, outbox.Message{Key: "a", Delay: time.Second})
		e := &events{}
		stop := run(t, o, &broker{}, relay.Config{Workers: 1, Observer: e})
		time.Sleep(time.Minute)
		stop()
		if n := count[relay.Claimed](e); n == 0 || n > 200 {
			t.Errorf("%d claims in a minute for a lane in which nothing can be done", n)
		}
	})
}

// A lane that cannot be read is left alone for growing pauses, and the others go
// on.
func TestUnreadableLaneRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(2)
		o := m.open(t)
		for i := range 20 {
			m.enqueue(t, o, outbox.Message{Key: fmt.Sprint(i)})
		}
		bad := m.ready[0].Lane
		m.unreadable = func(lane int) bool { return lane == bad }
		b, e := &broker{}, &events{}
		stop := run(t, o, b, relay.Config{Workers: 1, Observer: e})
		time.Sleep(time.Minute)
		stop()
		if n := count[relay.Claimed](e); n > 40 {
			t.Errorf("%d claims in a minute for a lane that cannot be read", n)
		}
		for _, msg := range b.got() {
			if msg.Lane == bad {
				t.Error("the bad lane was read")
			}
		}
		if len(b.got()) == 0 {
			t.Error("the good lane stood still")
		}
	})
}

// A message for which alone the broker is unavailable is found out and dies; the
// others are published.
func TestUnavailableForOneMessage(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory(1)
			o := m.open(t)
			ids := m.enqueue(t, o, outbox.Message{Key: "poison"})
			for i := range 200 {
				m.enqueue(t, o, outbox.Message{Key: fmt.Sprint(i)})
			}
			b := &broker{ordered: ordered, answer: func(_ context.Context, msg relay.Message) error {
				if msg.ID == ids[0] {
					return relay.Unavailable(errors.New("connection reset"))
				}
				return nil
			}}
			stop := run(t, o, b, relay.Config{MaxAttempts: 3, RetryMax: 2 * time.Second})
			for i := range 600 {
				time.Sleep(time.Second)
				m.enqueue(t, o, outbox.Message{Key: fmt.Sprint(1000 + i)})
			}
			stop()
			if n := len(b.got()); n < 700 {
				t.Errorf("ordered=%v: %d of 800 others published in ten minutes", ordered, n)
			}
			if state, row := m.state(ids[0]); state != dialect.Dead {
				t.Errorf("ordered=%v: the poison is %s after %d attempts, want dead", ordered, state, row.Attempts)
			}
		})
	}
}

// What was tried and stays where it is keeps what is behind it there, whatever
// other calls and workers find out about the destination meanwhile.
func TestUnavailableKeepsItsKey(t *testing.T) {
	for _, second := range []error{nil, errors.New("not now")} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory(1)
			o := m.open(t)
			ids := m.enqueue(t, o,
				outbox.Message{Topic: "a", Key: "k"}, outbox.Message{Topic: "b", Key: "other"},
				outbox.Message{Topic: "a", Key: "k"}, outbox.Message{Topic: "a", Key: "k"})
			first := true
			b := &broker{ordered: true}
			b.answer = func(_ context.Context, msg relay.Message) error {
				b.mu.Lock()
				defer b.mu.Unlock()
				if msg.ID == ids[0] && first {
					first = false
					return relay.Unavailable(errors.New("connection reset"))
				}
				if msg.ID == ids[1] {
					return second
				}
				return nil
			}
			stop := run(t, o, b, relay.Config{PublishSize: 2, MaxAttempts: 3, OnDead: relay.PassKey, RetryMax: time.Second})
			time.Sleep(5 * time.Minute)
			stop()
			var order []uuid.UUID
			for _, msg := range b.got() {
				if msg.Key == "k" {
					order = append(order, msg.ID)
				}
			}
			if !slices.Equal(order, []uuid.UUID{ids[0], ids[2], ids[3]}) {
				t.Errorf("the key's messages were published in the order %v, want %v", order, ids)
			}
		})
	}
}

type badError struct{ text string }

func (e *badError) Error() string { return e.text }

func TestTypedNilError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		o := m.open(t)
		id := m.enqueue(t, o, outbox.Message{Key: "a"})[0]
		drain(t, o, relay.PublisherFunc(func(context.Context, []relay.Message) []error {
			var none *badError
			return []error{none}
		}), relay.Config{MaxAttempts: 1})
		if state, row := m.state(id); state != dialect.Dead || !strings.Contains(row.reason, "badError") {
			t.Errorf("state %s, reason %q, want dead for an unusable error", state, row.reason)
		}
	})
}

// The probe of a broker that is back does not wait behind a blocked key's rows.
func TestProbeBehindBlockedKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		o := m.open(t)
		ids := m.enqueue(t, o, outbox.Message{Key: "dead"})
		var away atomic.Bool
		b := &broker{answer: func(_ context.Context, msg relay.Message) error {
			switch {
			case away.Load():
				return relay.Unavailable(errors.New("connection refused"))
			case msg.ID == ids[0]:
				return relay.Permanent(errors.New("no"))
			}
			return nil
		}}
		e := &events{}
		stop := run(t, o, b, relay.Config{Batch: 50, Observer: e})
		time.Sleep(time.Second)
		away.Store(true)
		m.enqueue(t, o, outbox.Message{Key: "trigger"})
		time.Sleep(5 * time.Second)
		for range 1000 {
			m.enqueue(t, o, outbox.Message{Key: "dead"})
		}
		last := m.enqueue(t, o, outbox.Message{Key: "last"})[0]
		away.Store(false)
		time.Sleep(40 * time.Second)
		stop()
		if state, _ := m.state(last); state != "done" {
			t.Errorf("state %s, want done", state)
		}
		if n := count[relay.Claimed](e); n > 60 {
			t.Errorf("%d claims, want a few", n)
		}
	})
}

func TestScheduledIsNotEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		o := m.open(t)
		began := time.Now()
		ids := m.enqueue(t, o, outbox.Message{Key: "k", Delay: 10 * time.Second}, outbox.Message{Key: "k"})
		b := &broker{}
		stop := run(t, o, b, relay.Config{})
		time.Sleep(20 * time.Second)
		stop()
		if late := b.times(ids[0])[0].Sub(began); late < 10*time.Second || late > 11*time.Second+250*time.Millisecond {
			t.Errorf("published after %v, want 10s and at most a poll", late)
		}
		if late := b.times(ids[1])[0].Sub(began); late > 2*time.Second {
			t.Errorf("the message behind it waited %v", late)
		}
	})
}

func TestPurgeIsOneRelaysTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		o := m.open(t)
		var stops []func()
		for range 3 {
			stops = append(stops, run(t, o, &broker{}, relay.Config{PurgeEvery: time.Minute}))
		}
		time.Sleep(time.Hour)
		for _, stop := range stops {
			stop()
		}
		if m.purges < 55 || m.purges > 125 {
			t.Errorf("%d purges in an hour by three relays, want one or two a minute", m.purges)
		}
	})
}

// A relay that is stopped while it checks the database has stopped, not failed.
func TestStopAtStart(t *testing.T) {
	m := newMemory(1)
	ctx, cancel := context.WithCancel(t.Context())
	m.inspect = func() error { cancel(); return ctx.Err() }
	e := &events{}
	r, err := relay.New(m.open(t), &broker{}, relay.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(ctx); err != nil {
		t.Errorf("Run: %v, want nil", err)
	}
	m.inspect = func() error { return errors.New("no such host") }
	if err := r.Run(t.Context()); !errors.Is(err, outbox.ErrInvalid) {
		t.Errorf("a second Run: %v, want ErrInvalid", err)
	}
	if r, err = relay.New(m.open(t), &broker{}, relay.Config{Observer: e}); err != nil {
		t.Fatal(err)
	}
	if err := r.Run(t.Context()); err == nil || count[relay.Started](e) > 0 {
		t.Errorf("Run began without a database: %v", err)
	}
}

// Started is observed once, and Stopping before Run returns and only at a stop.
func TestStartAndStopAreObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 20 {
			e := &events{}
			run(t, newMemory(1).open(t), &broker{}, relay.Config{Owner: "one", Observer: e})()
			if n := count[relay.Stopping](e); n != 1 {
				t.Errorf("%d Stopping events at a stop, want 1", n)
			}
			if n := count[relay.Started](e); n != 1 || e.list[0] != (relay.Started{Owner: "one"}) {
				t.Errorf("%d Started events, and the first event is %#v; want one, by its owner", n, e.list[0])
			}
			e = &events{}
			drain(t, newMemory(1).open(t), &broker{}, relay.Config{Observer: e})
			if n := count[relay.Stopping](e); n != 0 {
				t.Errorf("%d Stopping events without a stop", n)
			}
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	o := newMemory(1).open(t)
	_, err := relay.New(o, &broker{}, relay.Config{Workers: -1, Lease: time.Millisecond, Retention: -5, Listen: true})
	for _, field := range []string{"workers", "lease", "retention"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("error %v does not name %s", err, field)
		}
	}
	if !errors.Is(err, outbox.ErrInvalid) {
		t.Errorf("error %v is not ErrInvalid", err)
	}
}

// TestPurgeKeepsPartitions drops those past the retention, and deletes one by one only
// what they leave behind.
func TestPurgeKeepsPartitions(t *testing.T) {
	for name, c := range map[string]struct {
		kept   dialect.Partitions
		err    error
		purged time.Duration
	}{
		"Plain":       {purged: time.Hour},
		"Partitioned": {kept: dialect.Partitions{Partitioned: true, Dropped: 2, Made: 1}, purged: 26 * time.Hour},
		"Failing":     {kept: dialect.Partitions{Partitioned: true}, err: errors.New("busy"), purged: 26 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &partitioned{memory: newMemory(1), kept: c.kept, err: c.err}
				o, err := outbox.New(new(sql.DB), p, outbox.Config{Lanes: 1})
				if err != nil {
					t.Fatal(err)
				}
				var mu sync.Mutex
				dropped, failed := 0, 0
				stop := run(t, o, &broker{}, relay.Config{
					PurgeEvery: time.Minute, Retention: time.Hour,
					Observer: relay.ObserverFunc(func(e relay.Event) {
						mu.Lock()
						defer mu.Unlock()
						switch e := e.(type) {
						case relay.Purged:
							dropped = e.Partitions
						case relay.Erred:
							if e.Op == "partition" && errors.Is(e.Err, c.err) {
								failed++
							}
						}
					}),
				})
				time.Sleep(5 * time.Minute)
				stop()
				if p.age != time.Hour || p.purgedAge != c.purged || dropped != c.kept.Dropped || (failed > 0) != (c.err != nil) {
					t.Errorf("partitions of %v and messages of %v were purged, %d dropped, %d errors told", p.age, p.purgedAge, dropped, failed)
				}
			})
		})
	}
}

// A relay that finds nothing leaves a server that is slow in peace, but not
// for long.
func TestSlowPollsAreRare(t *testing.T) {
	for name, c := range map[string]struct {
		took, pollMax time.Duration
		least, most   int // polls in ten seconds
	}{
		"fast":   {0, time.Second, 200, 400},
		"quick":  {4 * time.Millisecond, 10 * time.Millisecond, 600, 1100},
		"slow":   {15 * time.Millisecond, time.Second, 90, 120},
		"slower": {100 * time.Millisecond, 50 * time.Millisecond, 28, 60},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory(16)
				m.after = func(op string) {
					if op == "poll" {
						time.Sleep(c.took)
					}
				}
				o, e := m.open(t), &events{}
				stop := run(t, o, &broker{}, relay.Config{Observer: e, PollMin: 5 * time.Millisecond, PollMax: c.pollMax})
				for range 50 {
					o.Wake() // for what another relay was faster at
					time.Sleep(200 * time.Millisecond)
				}
				stop()
				if n := count[relay.Polled](e); n < c.least || n > c.most {
					t.Errorf("%d polls in ten seconds, want %d to %d", n, c.least, c.most)
				}
			})
		})
	}
}
