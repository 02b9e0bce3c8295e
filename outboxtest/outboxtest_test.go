package outboxtest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/outboxtest"
	"github.com/outbox-suite/outbox/relay"
)

func enqueue(t *testing.T, o *outbox.Outbox, messages ...outbox.Message) {
	t.Helper()
	err := o.InTx(t.Context(), nil, func(ctx context.Context, tx *sql.Tx) error {
		_, err := o.Enqueue(ctx, tx, messages...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func drain(t *testing.T, o *outbox.Outbox, p relay.Publisher) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := outboxtest.Drain(ctx, o, p); err != nil {
		t.Fatal(err)
	}
}

// message is the nth of a key.
func message(key string, n int) outbox.Message {
	return outbox.Message{Topic: "orders", Key: key, Type: "order.changed", Payload: fmt.Appendf(nil, "%s/%d", key, n)}
}

func payloads(messages []relay.Message) []string {
	var all []string
	for _, m := range messages {
		all = append(all, string(m.Payload))
	}
	return all
}

func want(t *testing.T, got []relay.Message, want ...string) {
	t.Helper()
	if !slices.Equal(payloads(got), want) {
		t.Errorf("got %q, want %q", payloads(got), want)
	}
}

// TestPlaceOrder is what an application's test looks like.
func TestPlaceOrder(t *testing.T) {
	t.Parallel()
	o := outboxtest.New(t, outbox.Config{})
	if err := placeOrder(t.Context(), o, "order-1"); err != nil {
		t.Fatal(err)
	}
	var broker outboxtest.Publisher
	if err := outboxtest.Drain(t.Context(), o, &broker); err != nil {
		t.Fatal(err)
	}
	if got := broker.ByTopic("mails"); len(got) != 1 || got[0].Type != "mail.wanted" || got[0].Key != "order-1" {
		t.Errorf("mails: %v", got)
	}
}

func TestDrainPublishesInOrder(t *testing.T) {
	t.Parallel()
	o := outboxtest.New(t, outbox.Config{})
	other := message("b", 1)
	other.Topic = "parcels"
	enqueue(t, o, message("a", 1), other, message("a", 2))
	enqueue(t, o, message("a", 3), message("", 1))
	var p outboxtest.Publisher
	drain(t, o, &p)
	want(t, p.ByKey("a"), "a/1", "a/2", "a/3")
	want(t, p.ByTopic("parcels"), "b/1")
	want(t, p.ByKey(""), "/1")
	if got := len(p.Messages()); got != 5 {
		t.Errorf("%d messages", got)
	}
	p.Reset()
	drain(t, o, &p)
	want(t, p.Messages())
}

func TestDrainRetriesAtOnce(t *testing.T) {
	t.Parallel()
	o := outboxtest.New(t, outbox.Config{})
	enqueue(t, o, message("a", 1), message("a", 2))
	var p outboxtest.Publisher
	p.FailNext(3, errors.New("no"))
	drain(t, o, &p)
	want(t, p.Messages(), "a/1", "a/2")
	if got := p.Attempts(); got != 5 {
		t.Errorf("%d attempts", got)
	}
}

func TestDrainEndsWithTheDead(t *testing.T) {
	t.Parallel()
	o := outboxtest.New(t, outbox.Config{})
	enqueue(t, o, message("a", 1), message("a", 2), message("b", 1), message("c", 1))
	var p outboxtest.Publisher
	p.FailIf(func(m relay.Message) error {
		switch string(m.Payload) {
		case "a/1":
			return relay.Permanent(errors.New("never"))
		case "b/1":
			return errors.New("not now")
		}
		return nil
	})
	drain(t, o, &p)
	want(t, p.Messages(), "c/1")
	parked, err := o.Parked(t.Context(), outbox.Filter{}, 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	states := map[string]string{}
	for _, m := range parked {
		states[string(m.Payload)] = m.State
	}
	if states["a/1"] != outbox.Dead || states["a/2"] != outbox.Held || states["b/1"] != outbox.Dead || len(states) != 3 {
		t.Errorf("parked: %v", states)
	}
	p.FailIf(nil)
	if _, err := o.Requeue(t.Context(), outbox.Filter{All: true}, 0); err != nil {
		t.Fatal(err)
	}
	drain(t, o, &p)
	want(t, p.ByKey("a"), "a/1", "a/2")
	want(t, p.ByKey("b"), "b/1")
}

func TestDrainWaitsForTheBroker(t *testing.T) {
	t.Parallel()
	o := outboxtest.New(t, outbox.Config{})
	enqueue(t, o, message("a", 1))
	var p outboxtest.Publisher
	p.FailNext(3, relay.Unavailable(errors.New("away")))
	drain(t, o, &p)
	want(t, p.Messages(), "a/1")

	enqueue(t, o, message("a", 2))
	ctx, cancel := context.WithCancel(t.Context())
	p.FailIf(func(relay.Message) error {
		cancel()
		return relay.Unavailable(errors.New("away"))
	})
	if err := outboxtest.Drain(ctx, o, &p); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestDelayedStaysUntilItIsRequeued(t *testing.T) {
	t.Parallel()
	o := outboxtest.New(t, outbox.Config{})
	later := message("a", 1)
	later.Delay = time.Hour
	enqueue(t, o, later, message("a", 2))
	var p outboxtest.Publisher
	drain(t, o, &p)
	want(t, p.Messages(), "a/2")
	if _, err := o.Requeue(t.Context(), outbox.Filter{States: []string{outbox.Scheduled}}, 0); err != nil {
		t.Fatal(err)
	}
	drain(t, o, &p)
	want(t, p.Messages(), "a/2", "a/1")
}

func TestLoseNextDuplicates(t *testing.T) {
	t.Parallel()
	o := outboxtest.New(t, outbox.Config{})
	enqueue(t, o, message("a", 1))
	var p outboxtest.Publisher
	p.LoseNext(2)
	drain(t, o, &p)
	want(t, p.Messages(), "a/1", "a/1", "a/1")
	all := p.Messages()
	if all[0].ID != all[1].ID || all[1].ID != all[2].ID {
		t.Error("the id changed")
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	o := outboxtest.New(t, outbox.Config{})
	var p outboxtest.Publisher
	r, err := relay.New(o, &p, relay.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer running.Wait()
	defer cancel()
	enqueue(t, o, message("a", 1), message("a", 2), message("a", 3))
	patient, cancelPatient := context.WithTimeout(t.Context(), time.Minute)
	defer cancelPatient()
	got, err := p.Wait(patient, 3)
	if err != nil {
		t.Fatal(err)
	}
	want(t, got, "a/1", "a/2", "a/3")

	over, cancelOver := context.WithCancel(t.Context())
	cancelOver()
	if _, err := p.Wait(over, 4); !errors.Is(err, context.Canceled) || err.Error() != "outboxtest: 3 of 4 messages were published: context canceled" {
		t.Errorf("got %v", err)
	}
}

func TestPublisherKeepsCopies(t *testing.T) {
	t.Parallel()
	var p outboxtest.Publisher
	m := relay.Message{Message: outbox.Message{Payload: []byte("x"), Headers: map[string]string{"a": "1"}}}
	p.Publish(t.Context(), []relay.Message{m})
	m.Payload[0], m.Headers["a"] = 'y', "2"
	first := p.Messages()[0]
	if string(first.Payload) != "x" || first.Headers["a"] != "1" {
		t.Error("a change by the relay reaches what was kept")
	}
	first.Payload[0], first.Headers["a"] = 'z', "3"
	if again := p.Messages()[0]; string(again.Payload) != "x" || again.Headers["a"] != "1" {
		t.Error("a change by the test reaches what was kept")
	}
}

func TestDrainRefusesWhatIsNotReady(t *testing.T) {
	t.Parallel()
	o := outboxtest.New(t, outbox.Config{})
	elsewhere, err := outbox.New(o.DB(), o.Dialect(), outbox.Config{Prefix: "elsewhere"})
	if err != nil {
		t.Fatal(err)
	}
	if err := outboxtest.Drain(t.Context(), elsewhere, &outboxtest.Publisher{}); !errors.Is(err, outbox.ErrNotReady) {
		t.Errorf("got %v", err)
	}
}
