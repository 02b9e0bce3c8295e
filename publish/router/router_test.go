package router_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/publish/publishtest"
	"github.com/outbox-suite/outbox/publish/router"
	"github.com/outbox-suite/outbox/relay"
)

// memory is a publisher that keeps what it accepts, and order.
type memory struct {
	mu     sync.Mutex
	topics map[string][]publishtest.Received
	closed int
	// fails, when it is set, is the outcome of a message.
	fails func(m *relay.Message) error
}

const maxPayload = 1 << 20

func (p *memory) KeepsOrder() bool { return true }

func (p *memory) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed++
	return nil
}

func (p *memory) Publish(_ context.Context, messages []relay.Message) []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	errs := make([]error, len(messages))
	failed := make(map[string]bool)
	for i := range messages {
		m := &messages[i]
		switch {
		case p.closed > 0:
			errs[i] = errors.New("closed")
		case m.HasKey() && failed[m.Key]:
			errs[i] = errors.New("one before it failed")
		case len(m.Payload) > maxPayload:
			errs[i] = relay.Permanent(errors.New("too large"))
		case p.fails != nil:
			errs[i] = p.fails(m)
		}
		if errs[i] != nil {
			failed[m.Key] = true
			continue
		}
		if p.topics == nil {
			p.topics = make(map[string][]publishtest.Received)
		}
		p.topics[m.Topic] = append(p.topics[m.Topic], publishtest.Received{Message: m.Message, Replay: m.Replay})
	}
	return errs
}

func (p *memory) arrived(topic string) []publishtest.Received {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.topics[topic])
}

func (p *memory) ids() []uuid.UUID {
	p.mu.Lock()
	defer p.mu.Unlock()
	var ids []uuid.UUID
	for _, got := range p.topics {
		for i := range got {
			ids = append(ids, got[i].ID)
		}
	}
	return ids
}

// The suite, with topics that take turns between two publishers.
func TestPublisher(t *testing.T) {
	var brokers [2]memory
	var mu sync.Mutex
	n := 0
	publishtest.Run(t, publishtest.Target{
		New: func(context.Context) (relay.Publisher, error) {
			return router.New(router.Route{Pattern: "0.*", Publisher: notClosed{&brokers[0]}}, router.Route{Pattern: "1.*", Publisher: notClosed{&brokers[1]}})
		},
		Topic: func(context.Context) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			n++
			return fmt.Sprintf("%d.%d", n%2, n), nil
		},
		Consume: func(_ context.Context, topic string) ([]publishtest.Received, error) {
			return brokers[topic[0]-'0'].arrived(topic), nil
		},
		TooLarge: maxPayload + 1, Unknown: "2.nowhere", Remedy: "add one", KeepsNil: true,
		Known: map[string]string{"Close/AcceptsNothingAfterwards": "the publishers of this test stay open"},
	})
}

// notClosed keeps the suite's Close away from a broker that several publishers
// of the test stand for.
type notClosed struct{ *memory }

func (notClosed) Close() error { return nil }

func TestPrecedence(t *testing.T) {
	p := &memory{}
	r, err := router.New(
		router.Route{Pattern: "*", Publisher: p, Name: "rest"},
		router.Route{Pattern: "orders.*", Publisher: p},
		router.Route{Pattern: "orders.eu.*", Publisher: p, Name: "eu"},
		router.Route{Pattern: "orders.eu.vip", Publisher: p},
		router.Route{Pattern: "orders.", Publisher: p},
	)
	if err != nil {
		t.Fatal(err)
	}
	for topic, want := range map[string]string{
		"orders.eu.vip": "orders.eu.vip", "orders.eu.vip2": "eu", "orders.eu.": "eu", "orders.us": "orders.*", "orders.": "orders.",
		"orders": "rest", "": "rest", "Orders.eu.x": "rest", "[a-z]?": "rest",
	} {
		if got := r.Destination(topic); got != want {
			t.Errorf("topic %q goes to %q, want %q", topic, got, want)
		}
	}
	outer, err := router.New(router.Route{Pattern: "orders.*", Publisher: r, Name: "inner"})
	if err != nil {
		t.Fatal(err)
	}
	if got := outer.Destination("orders.eu.x"); got != "inner/eu" {
		t.Errorf("a router behind a router is %q, want inner/eu", got)
	}
	if got := outer.Destination("other"); got != "" {
		t.Errorf("a topic without a route is %q, want none", got)
	}
}

func TestNewRefuses(t *testing.T) {
	p := &memory{}
	for want, routes := range map[string][]router.Route{
		"there are no routes":         nil,
		"no pattern":                  {{Publisher: p}},
		"one *, at the end":           {{Pattern: "a*b", Publisher: p}},
		"is there twice":              {{Pattern: "a", Publisher: p}, {Pattern: "a", Publisher: p}},
		"no publisher":                {{Pattern: "a"}},
		"stands for two publishers":   {{Pattern: "a", Publisher: p, Name: "x"}, {Pattern: "b", Publisher: &memory{}, Name: "x"}},
		`pattern "**": use one *, at`: {{Pattern: "**", Publisher: p}},
	} {
		if _, err := router.New(routes...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%v) = %v, want %q", routes, err, want)
		}
	}
}

func message(topic, key string) relay.Message {
	return relay.Message{Message: outbox.Message{ID: uuid.New(), Topic: topic, Key: key, Type: "tried"}}
}

// The router keeps order only if all do, and then across publishers: when a
// message of a key fails at one, none behind it goes to another.
func TestOrderAcrossPublishers(t *testing.T) {
	bad := message("a", "k")
	a := &memory{fails: func(m *relay.Message) error {
		if m.ID == bad.ID {
			return errors.New("refused")
		}
		return nil
	}}
	b := &memory{}
	r, err := router.New(router.Route{Pattern: "a", Publisher: a}, router.Route{Pattern: "b", Publisher: b})
	if err != nil {
		t.Fatal(err)
	}
	if !r.KeepsOrder() {
		t.Error("all publishers keep order and the router does not")
	}
	unordered := relay.PublisherFunc(func(context.Context, []relay.Message) []error { return nil })
	mixed, err := router.New(router.Route{Pattern: "a", Publisher: a}, router.Route{Pattern: "b", Publisher: unordered})
	if err != nil {
		t.Fatal(err)
	}
	if mixed.KeepsOrder() {
		t.Error("one publisher does not keep order and the router does")
	}

	messages := []relay.Message{
		message("a", "k"), message("b", "k"), message("a", "k"), message("b", "other"), message("", ""), message("nowhere", "lost"),
		bad, message("b", "k"), message("a", "k"), message("a", "other"), message("b", "lost"), message("a", ""), message("b", ""),
	}
	errs := r.Publish(t.Context(), messages)
	accepted := make(map[uuid.UUID]bool)
	for _, id := range append(a.ids(), b.ids()...) {
		accepted[id] = true
	}
	for i, want := range []bool{true, true, true, true, false, false, false, false, false, true, false, true, true} {
		if (errs[i] == nil) != want || accepted[messages[i].ID] != want {
			t.Errorf("message %d (%s, key %s): %v, arrived %t; want accepted %t", i, messages[i].Topic, messages[i].Key, errs[i], accepted[messages[i].ID], want)
		}
	}
	for i, want := range map[int]bool{4: true, 5: true, 6: false, 7: false, 10: false} {
		if relay.IsPermanent(errs[i]) != want {
			t.Errorf("message %d: %v, want it refused for good: %t", i, errs[i], want)
		}
	}
}

// What one publisher does wrong is no harm to the messages of another.
func TestMisbehaviourStaysApart(t *testing.T) {
	synctest.Test(t, leavesBehind)
}

func leavesBehind(t *testing.T) {
	good := &memory{}
	hang := make(chan struct{})
	defer close(hang)
	for name, bad := range map[string]relay.PublisherFunc{
		"panics": func(context.Context, []relay.Message) []error { panic("oh") },
		"hangs":  func(context.Context, []relay.Message) []error { <-hang; return nil },
		"counts": func(context.Context, []relay.Message) []error { return make([]error, 7) },
	} {
		r, err := router.New(router.Route{Pattern: "good", Publisher: good}, router.Route{Pattern: "bad", Publisher: bad})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		began := time.Now()
		errs := r.Publish(ctx, []relay.Message{message("bad", "a"), message("good", "b")})
		cancel()
		if errs[0] == nil || errs[1] != nil {
			t.Errorf("%s: %v, want the first to fail and the second accepted", name, errs)
		}
		if p, ok := errors.AsType[*relay.PanicError](errs[0]); ok != (name == "panics") || ok && len(p.Stack) == 0 {
			t.Errorf("%s: the error is %v", name, errs[0])
		}
		if took := time.Since(began); took > 900*time.Millisecond {
			t.Errorf("%s: it took %v, and the relay would have given the call up", name, took)
		}
	}
}

func TestCloseOnce(t *testing.T) {
	a, b := &memory{}, &memory{}
	r, err := router.New(
		router.Route{Pattern: "a", Publisher: a, Name: "a"}, router.Route{Pattern: "aa", Publisher: a, Name: "a"}, router.Route{Pattern: "b", Publisher: b},
		router.Route{Pattern: "c", Publisher: relay.PublisherFunc(func(context.Context, []relay.Message) []error { return nil })},
	)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil || a.closed != 1 || b.closed != 1 {
		t.Errorf("Close: %v, closed %d and %d times, want each once", err, a.closed, b.closed)
	}
}

func TestFanOut(t *testing.T) {
	m := outbox.Message{ID: uuid.MustParse("0199d3c5-6a4e-7c1e-9a53-0d5b8a3f9a11"), Key: "42", Type: "order.placed", Headers: map[string]string{"a": "b"}}
	first, again := router.FanOut(m, "billing", "stock", "billing"), router.FanOut(m, "stock", "mail")
	if len(first) != 2 || first[0].Topic != "billing" || first[1].Topic != "stock" || first[0].ID == first[1].ID {
		t.Fatalf("FanOut = %v, want one message for each of two topics", first)
	}
	if first[1].ID != again[0].ID {
		t.Error("the same message and topic have another id the second time")
	}
	if first[0].Key != "42" || first[0].Type != "order.placed" || first[0].Headers["a"] != "b" {
		t.Errorf("%+v: the rest of the message changed", first[0])
	}
	first[0].Headers["a"] = "c"
	if first[1].Headers["a"] != "b" || m.Headers["a"] != "b" {
		t.Error("the copies share their headers")
	}
	fresh := router.FanOut(outbox.Message{}, "a", "b")
	if fresh[0].ID == (uuid.UUID{}) || fresh[0].ID == fresh[1].ID || fresh[0].ID == router.FanOut(outbox.Message{}, "a")[0].ID {
		t.Error("a message without an id has no new one")
	}
}

func ExampleFanOut() {
	placed := outbox.Message{ID: uuid.MustParse("0199d3c5-6a4e-7c1e-9a53-0d5b8a3f9a11"), Key: "42", Type: "order.placed"}
	for _, m := range router.FanOut(placed, "billing", "stock") {
		fmt.Println(m.Topic, m.ID)
	}
	// Output:
	// billing d99bf6aa-9589-5fbe-95cb-11ecb21c5ebf
	// stock d1dfdddc-705c-52dd-8646-da495c4c60e2
}
