package relay_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/relay"
)

// A broker that asks for a pause gets it, but none longer than RetryMax, and only
// the message waits that it asked for.
func TestRetryAfter(t *testing.T) {
	const poll = 1500 * time.Millisecond // with its jitter
	for _, test := range []struct {
		asked, least, most time.Duration
	}{
		{20 * time.Second, 20 * time.Second, 20*time.Second + poll},
		{time.Hour, 30 * time.Second, 30*time.Second + poll},
		{1<<63 - 1, 30 * time.Second, 30*time.Second + poll},
		{0, 0, 4*time.Second + poll},
		{-time.Hour, 0, 4*time.Second + poll},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory(1)
			o := m.open(t)
			ids := m.enqueue(t, o, outbox.Message{Key: "busy"}, outbox.Message{Key: "other"})
			b := &broker{answer: func(_ context.Context, msg relay.Message) error {
				if msg.ID == ids[0] {
					return fmt.Errorf("busy: %w", relay.RetryAfter(errors.New("429"), test.asked))
				}
				return nil
			}}
			stop := run(t, o, b, relay.Config{MaxAttempts: 3, RetryMin: time.Second, RetryMax: 30 * time.Second})
			time.Sleep(2 * time.Minute)
			m.enqueue(t, o, outbox.Message{Key: "later"})
			time.Sleep(5 * time.Second)
			stop()
			tries := b.times(ids[0])
			if len(tries) != 3 {
				t.Fatalf("asked for %v: %d attempts, want 3: each counts", test.asked, len(tries))
			}
			for i := 1; i < len(tries); i++ {
				if gap := tries[i].Sub(tries[i-1]); gap < test.least || gap > test.most {
					t.Errorf("asked for %v: attempt %d came after %v, want %v to %v", test.asked, i+1, gap, test.least, test.most)
				}
			}
			if state, row := m.state(ids[0]); state != dialect.Dead || row.reason != "busy: 429" {
				t.Errorf("asked for %v: state %s, reason %q", test.asked, state, row.reason)
			}
			if got := b.got(); len(got) != 2 || got[0].ID != ids[1] {
				t.Errorf("asked for %v: %d others were published, want 2", test.asked, len(got))
			}
		})
	}
}

func TestRetryAfterErrors(t *testing.T) {
	cause := errors.New("busy")
	err := relay.RetryAfter(cause, time.Minute)
	if err.Error() != "busy" || !errors.Is(err, cause) || relay.IsPermanent(err) || relay.IsUnavailable(err) {
		t.Errorf("got %v", err)
	}
	if relay.RetryAfter(nil, time.Minute) != nil {
		t.Error("nil does not stay nil")
	}
	for _, test := range []struct {
		err  error
		want time.Duration
	}{
		{err, time.Minute},
		{errors.Join(cause, fmt.Errorf("more: %w", err)), time.Minute},
		{relay.RetryAfter(cause, -1), 0},
		{cause, 0},
		{nil, 0},
	} {
		if got := relay.AskedDelay(test.err); got != test.want {
			t.Errorf("%v: got %v, want %v", test.err, got, test.want)
		}
	}
	if both := relay.Permanent(err); !relay.IsPermanent(both) || relay.AskedDelay(both) != time.Minute {
		t.Error("marks do not stay")
	}
}

// A message that is refused for good is dead, whatever delay is asked for too.
func TestRetryAfterOfPermanent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		o := m.open(t)
		ids := m.enqueue(t, o, outbox.Message{Key: "bad"})
		b := &broker{answer: func(context.Context, relay.Message) error {
			return relay.RetryAfter(relay.Permanent(errors.New("no")), time.Minute)
		}}
		drain(t, o, b, relay.Config{})
		if state, _ := m.state(ids[0]); state != dialect.Dead || len(b.times(ids[0])) != 1 {
			t.Errorf("state %s after %d attempts, want dead after one", state, len(b.times(ids[0])))
		}
	})
}

// A destination that is away and says for how long is left alone for as long, and no
// attempt counts.
func TestRetryAfterOfUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		o := m.open(t)
		ids := m.enqueue(t, o, outbox.Message{Key: "k", Topic: "away"})
		b := &broker{answer: func(context.Context, relay.Message) error {
			return relay.Unavailable(relay.RetryAfter(errors.New("503"), 20*time.Second))
		}}
		stop := run(t, o, fleet{b}, relay.Config{MaxAttempts: 2, BreakerMin: time.Second, BreakerMax: time.Second, RetryMax: 30 * time.Second})
		time.Sleep(2 * time.Minute)
		stop()
		tries := b.times(ids[0])
		if len(tries) < 4 {
			t.Fatalf("%d attempts in two minutes", len(tries))
		}
		for i := 1; i < len(tries); i++ {
			if gap := tries[i].Sub(tries[i-1]); gap < 20*time.Second || gap > 25*time.Second {
				t.Errorf("attempt %d came after %v, want 20 s", i+1, gap)
			}
		}
	})
}
