package relay_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/relay"
)

// A topic that alone is unavailable costs no attempts either where there is little to
// do: nothing else is under way when its message is tried, so that at first the
// destination seems to be unavailable.
func TestQuietTopicUnavailableAlone(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory(1)
			o := m.open(t)
			var sick atomic.Bool
			sick.Store(true)
			b := &broker{ordered: ordered, answer: func(_ context.Context, msg relay.Message) error {
				time.Sleep(10 * time.Millisecond)
				if sick.Load() && msg.Topic == "sick" {
					return relay.Unavailable(errors.New("not enough replicas"))
				}
				return nil
			}}
			e := &events{}
			observer := relay.ObserverFunc(func(ev relay.Event) {
				if _, ok := ev.(relay.Settled); ok {
					time.Sleep(time.Millisecond) // the database's: the next call begins later
				}
				e.Observe(ev)
			})
			defer run(t, o, b, relay.Config{MaxAttempts: 3, PublishConcurrency: 1, PublishSize: 1, Observer: observer})()
			id := m.enqueue(t, o, outbox.Message{Key: "s", Topic: "sick"})[0]
			for i := range 600 {
				time.Sleep(time.Second)
				m.enqueue(t, o, outbox.Message{Key: fmt.Sprint(i), Topic: "well"})
			}
			time.Sleep(time.Second)
			if state, row := m.state(id); state != dialect.Retry || row.Attempts != 0 {
				t.Errorf("ordered=%v: state %s after %d attempts while the topic is unavailable, want retry after 0", ordered, state, row.Attempts)
			}
			if n := len(b.got()); n != 600 {
				t.Errorf("ordered=%v: %d of 600 messages of the other topic published", ordered, n)
			}
			// The destination is left alone until it is clear that it is the topic.
			e.mu.Lock()
			destinations := 0
			for _, ev := range e.list {
				if opened, ok := ev.(relay.BreakerOpened); ok && opened.Topic == "" {
					destinations++
				}
			}
			e.mu.Unlock()
			if destinations > 40 {
				t.Errorf("ordered=%v: the destination was left alone %d times for one topic, want some tries", ordered, destinations)
			}
			sick.Store(false)
			time.Sleep(time.Minute)
			if state, _ := m.state(id); state != "done" {
				t.Errorf("ordered=%v: state %s when the topic is back, want done", ordered, state)
			}
		})
	}
}

// An outage costs no attempts, not even a message that was alone in failing before.
func TestOutageOfSuspect(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory(1)
			o := m.open(t)
			id := m.enqueue(t, o, outbox.Message{Key: "suspect"})[0]
			var away, well atomic.Bool
			b := &broker{ordered: ordered, answer: func(_ context.Context, msg relay.Message) error {
				if away.Load() || msg.ID == id && !well.Load() {
					return relay.Unavailable(errors.New("connection reset"))
				}
				return nil
			}}
			defer run(t, o, b, relay.Config{MaxAttempts: 8, RetryMax: time.Second})()
			others := 0
			for {
				time.Sleep(time.Second)
				if _, row := m.state(id); row.Attempts > 0 {
					break
				}
				if others++; others > 300 {
					t.Fatalf("ordered=%v: no attempt counted while %d others got through", ordered, others)
				}
				m.enqueue(t, o, outbox.Message{Key: fmt.Sprint(others)})
			}
			away.Store(true)
			time.Sleep(10 * time.Second) // what got through until now may count once
			_, before := m.state(id)
			time.Sleep(10 * time.Minute)
			if state, row := m.state(id); row.Attempts != before.Attempts || state == dialect.Dead {
				t.Errorf("ordered=%v: state %s after %d attempts in an outage, want %d as before", ordered, state, row.Attempts, before.Attempts)
			}
			well.Store(true)
			away.Store(false)
			time.Sleep(2 * time.Minute)
			if state, _ := m.state(id); state != "done" {
				t.Errorf("ordered=%v: state %s after the outage, want done", ordered, state)
			}
		})
	}
}

// A parked message for which alone the broker is unavailable keeps no ready one of its
// lane waiting, though it is read before them.
func TestUnavailableForOneParkedMessage(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory(1)
			o := m.open(t)
			id := m.enqueue(t, o, outbox.Message{Key: "poison"})[0]
			first := true
			b := &broker{ordered: ordered}
			b.answer = func(_ context.Context, msg relay.Message) error {
				b.mu.Lock()
				defer b.mu.Unlock()
				switch {
				case msg.ID != id:
					return nil
				case first:
					first = false
					return errors.New("not now")
				}
				return relay.Unavailable(errors.New("connection reset"))
			}
			stop := run(t, o, b, relay.Config{MaxAttempts: 5, RetryMax: 2 * time.Second})
			time.Sleep(10 * time.Second)
			for i := range 600 {
				m.enqueue(t, o, outbox.Message{Key: fmt.Sprint(i)})
				time.Sleep(time.Second)
			}
			stop()
			if n := len(b.got()); n != 600 {
				t.Errorf("ordered=%v: %d of 600 others published in ten minutes", ordered, n)
			}
			if state, row := m.state(id); state != dialect.Dead {
				t.Errorf("ordered=%v: the poison is %s after %d attempts, want dead", ordered, state, row.Attempts)
			}
		})
	}
}
