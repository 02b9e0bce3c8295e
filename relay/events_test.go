package relay_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/relay"
)

func list[E relay.Event](e *events) (all []E) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.list {
		if ev, ok := ev.(E); ok {
			all = append(all, ev)
		}
	}
	return all
}

func TestFailuresTellTheMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(4)
		o := m.open(t)
		ids := m.enqueue(t, o, outbox.Message{Topic: "orders", Key: "k", Headers: map[string]string{"traceparent": "t"}})
		b := &broker{answer: func(context.Context, relay.Message) error { return errors.New("no") }}
		e := &events{}
		stop := run(t, o, b, relay.Config{MaxAttempts: 2, Observer: e})
		time.Sleep(time.Minute)
		stop()
		failed, died := list[relay.Failed](e), list[relay.Died](e)
		if len(failed) != 1 || len(died) != 1 {
			t.Fatalf("%d failed, %d died", len(failed), len(died))
		}
		for attempt, got := range map[int]relay.Message{1: failed[0].Message, 2: died[0].Message} {
			if got.ID != ids[0] || got.Key != "k" || got.Headers["traceparent"] != "t" || got.Epoch == 0 || got.Attempt != attempt {
				t.Errorf("attempt %d is told of %+v", attempt, got)
			}
		}
	})
}

// From a message's age at its read, how long it waited for the call, and the call, one
// knows when it was accepted.
func TestAttemptedTellsHowLongMessagesWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		o := m.open(t)
		m.enqueue(t, o, outbox.Message{Key: "a"}, outbox.Message{Key: "b"}, outbox.Message{Key: "c"})
		b := &broker{answer: func(context.Context, relay.Message) error {
			time.Sleep(2 * time.Second)
			return nil
		}}
		e := &events{}
		drain(t, o, b, relay.Config{PublishConcurrency: 1, PublishSize: 1, Observer: e})
		for i, got := range list[relay.Attempted](e) {
			if want := time.Duration(i) * 2 * time.Second; got.Waited != want || got.Took != 2*time.Second {
				t.Errorf("call %d: waited %v, took %v; want %v and 2s", i, got.Waited, got.Took, want)
			}
		}
	})
}

func TestBreakersTellTopicsFromDestinations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		o := m.open(t)
		m.enqueue(t, o, outbox.Message{Topic: "slow"}, outbox.Message{Topic: "away"})
		calls := map[string]int{}
		b := &broker{answer: func(ctx context.Context, msg relay.Message) error {
			if calls[msg.Topic]++; calls[msg.Topic] > 1 {
				return nil
			}
			if msg.Topic == "away" {
				return relay.Unavailable(errors.New("no"))
			}
			<-ctx.Done()
			return ctx.Err()
		}}
		e := &events{}
		stop := run(t, o, fleet{b}, relay.Config{PublishConcurrency: 1, Observer: e})
		time.Sleep(5 * time.Minute)
		stop()
		got := map[string]int{}
		for _, ev := range list[relay.BreakerOpened](e) {
			got[fmt.Sprint("opened ", ev.Destination, "/", ev.Topic)]++
		}
		for _, ev := range list[relay.BreakerClosed](e) {
			got[fmt.Sprint("closed ", ev.Destination, "/", ev.Topic)]++
		}
		want := map[string]int{"opened /slow": 1, "closed /slow": 1, "opened away/": 1, "closed away/": 1}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("breakers: %v, want %v", got, want)
		}
	})
}

func TestErrorKind(t *testing.T) {
	for want, err := range map[string]error{
		"":                    nil,
		relay.KindPermanent:   fmt.Errorf("wrapped: %w", relay.Permanent(errors.New("no"))),
		relay.KindUnavailable: relay.Unavailable(errors.New("no")),
		relay.KindRefused:     relay.RetryAfter(errors.New("no"), time.Second),
	} {
		if got := relay.ErrorKind(err); got != want {
			t.Errorf("%v is %q, want %q", err, got, want)
		}
	}
	// What the relay itself ends.
	for want, d := range map[string]time.Duration{relay.KindTimeout: time.Second, relay.KindInterrupted: time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory(1)
			o := m.open(t)
			m.enqueue(t, o, outbox.Message{})
			b := &broker{answer: func(ctx context.Context, _ relay.Message) error {
				<-ctx.Done()
				return ctx.Err()
			}}
			e := &events{}
			stop := run(t, o, b, relay.Config{PublishTimeout: d, Observer: e})
			time.Sleep(1500 * time.Millisecond)
			stop()
			attempts := list[relay.Attempted](e)
			if len(attempts) == 0 {
				t.Fatal("nothing was tried")
			}
			if got := relay.ErrorKind(attempts[0].Errors[0]); got != want {
				t.Errorf("%v is %q, want %q", attempts[0].Errors[0], got, want)
			}
		})
	}
}
