package redis_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	goredis "github.com/redis/go-redis/v9"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/publish/publishtest"
	"github.com/outbox-suite/outbox/publish/redis"
	"github.com/outbox-suite/outbox/relay"
)

func open(addr string, c redis.Config) (relay.Publisher, error) {
	return redis.Connect(&goredis.Options{Addr: addr, Password: password}, c)
}

func TestPublisher(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	publishtest.Run(t, publishtest.Target{
		New:     func(context.Context) (relay.Publisher, error) { return open(b.address(), redis.Config{}) },
		Topic:   func(context.Context) (string, error) { return newTopic(), nil },
		Consume: b.consume,
		Kill:    b.kill, Start: b.start,
		Pause: b.pause, Resume: b.resume,
		Network: &publishtest.Network{
			Address: b.address(),
			New:     func(_ context.Context, addr string) (relay.Publisher, error) { return open(addr, redis.Config{}) },
		},
		KeepsNil: true, Secret: password,
	})
}

// Where streams are made by operators an unknown one is refused.
func TestPublisherNoCreate(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	results, err := publishtest.Check(t.Context(), publishtest.Target{
		New: func(context.Context) (relay.Publisher, error) {
			return open(b.address(), redis.Config{NoCreate: true})
		},
		Topic: func(ctx context.Context) (string, error) {
			c := b.client()
			defer c.Close()
			topic := newTopic()
			return topic, c.XGroupCreateMkStream(ctx, topic, "group", "$").Err()
		},
		Consume: b.consume,
		Unknown: "topic:nowhere", Remedy: "MKSTREAM", Secret: password,
	}, regexp.MustCompile("^(Refuse|Accept)/"))
	if err != nil || len(results) == 0 {
		t.Fatal(results, err)
	}
	for _, r := range results {
		if r.Status == publishtest.Failed {
			t.Errorf("%s: %s", r.Name, r.Got)
		}
	}
}

func message(topic string) relay.Message {
	return relay.Message{
		Message: outbox.Message{ID: uuid.New(), Topic: topic, Key: "key", Type: "tried", ContentType: "application/json", Payload: []byte("{}")},
		Seq:     7, Lane: 3, Epoch: 5, Attempt: 1, CreatedAt: time.Date(2026, 1, 31, 15, 4, 5, 123_456_000, time.UTC),
	}
}

func publish(t *testing.T, p relay.Publisher, ms ...relay.Message) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return p.Publish(ctx, ms)
}

func connect(t *testing.T, b *broker, c redis.Config) relay.Publisher {
	t.Helper()
	p, err := open(b.address(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.(*redis.Publisher).Close() })
	return p
}

// What the server refuses, and why the publisher does not declare that it keeps
// order: it takes what follows.
func TestRefusals(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	c := b.client()
	defer c.Close()
	if err := c.Set(t.Context(), "text", "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	p := connect(t, b, redis.Config{})
	topic := newTopic()
	errs := publish(t, p, message("text"), message(topic), message(""))
	if !relay.IsPermanent(errs[0]) || errs[1] != nil || !relay.IsPermanent(errs[2]) {
		t.Errorf("%v, want the first and the last refused for good", errs)
	}
	if _, ok := p.(relay.Orderer); ok {
		t.Error("it declares that it keeps order")
	}
	if err := c.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if err := publish(t, p, message(topic))[0]; !relay.IsUnavailable(err) || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("a server that is full: %v, want it unavailable", err)
	}
	wrong, err := redis.Connect(&goredis.Options{Addr: b.address(), Password: "sesame"}, redis.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer wrong.Close()
	if err := publish(t, wrong, message(topic))[0]; !relay.IsUnavailable(err) || strings.Contains(err.Error(), "sesame") {
		t.Errorf("a wrong password: %v, want it unavailable", err)
	}
}

func TestStreamAndMaxLen(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	c := b.client()
	defer c.Close()
	p, err := redis.New(c, redis.Config{Stream: func(topic string) string { return "shop:" + topic }, MaxLen: 1000, Source: "/shop"})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		ms := make([]relay.Message, 1000)
		for i := range ms {
			ms[i] = message("orders")
		}
		if err := errors.Join(publish(t, p, ms...)...); err != nil {
			t.Fatal(err)
		}
	}
	n, err := c.XLen(t.Context(), "shop:orders").Result()
	if err != nil || n < 1000 || n > 1500 {
		t.Errorf("the stream has %d entries (%v), want about 1000", n, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Errorf("the caller's client was closed: %v", err)
	}
}

// With Replicas nothing is accepted that a replica does not have.
func TestReplicas(t *testing.T) {
	t.Parallel()
	master := newBroker(t)
	replica := newBroker(t, "--replicaof", fmt.Sprintf("127.0.0.1 %d", master.port))
	p := connect(t, master, redis.Config{Replicas: 1, ReplicaTimeout: 300 * time.Millisecond})
	topic := newTopic()
	deadline := time.Now().Add(time.Minute)
	for { // until the replica has caught up
		err := errors.Join(publish(t, p, message(topic), message(topic))...)
		if err == nil {
			break
		}
		if !relay.IsUnavailable(err) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if got, err := replica.consume(t.Context(), topic); err != nil || len(got) < 2 {
		t.Errorf("2 messages were accepted and the replica has %d: %v", len(got), err)
	}
	if err := replica.kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, err := range publish(t, p, message(topic), message(topic)) {
		if !relay.IsUnavailable(err) || !strings.Contains(err.Error(), "0 of 1 replicas") {
			t.Errorf("without a replica: %v, want it unavailable", err)
		}
	}
	if err := publish(t, connect(t, master, redis.Config{}), message(topic))[0]; err != nil {
		t.Errorf("without Replicas: %v", err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, bad := range []redis.Config{{Source: "a b"}, {MaxLen: -1}, {Replicas: -1}, {ReplicaTimeout: -1}, {ReplicaTimeout: time.Microsecond}} {
		if _, err := open("127.0.0.1:1", bad); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
		if _, err := redis.New(nil, bad); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
	for _, o := range []*goredis.Options{nil, {}} {
		if _, err := redis.Connect(o, redis.Config{}); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}

func TestDecodeForeign(t *testing.T) {
	for _, values := range []map[string]any{nil, {"specversion": "0.3"}, {"specversion": "1.0", "id": "7"}, {"specversion": 1}} {
		if _, err := redis.Decode(values); err == nil {
			t.Errorf("%v is decoded", values)
		}
	}
}

func ExampleDecode() {
	// An entry, as XREADGROUP gives it.
	m, err := redis.Decode(map[string]any{
		"specversion": "1.0", "id": "0199d3c5-6a4e-7c1e-9a53-0d5b8a3f9a11", "source": "/shop", "type": "order.placed", "subject": "42",
		"topic": "orders", "attempt": "2", "headers": `{"X-Tenant":"acme"}`, "data": `{"total":7}`,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(m.ID, m.Key, m.Type, m.Attempt, m.Headers)
	fmt.Printf("%s\n", m.Payload)
	// Output:
	// 0199d3c5-6a4e-7c1e-9a53-0d5b8a3f9a11 42 order.placed 2 map[X-Tenant:acme]
	// {"total":7}
}

// BenchmarkPublish publishes calls of 500 messages, as a relay hands them over, to
// a server that flushes each of them.
func BenchmarkPublish(b *testing.B) {
	server := newBroker(b)
	p, err := open(server.address(), redis.Config{MaxLen: 10_000})
	if err != nil {
		b.Fatal(err)
	}
	ms := make([]relay.Message, 500)
	topic := newTopic()
	for b.Loop() {
		for i := range ms {
			ms[i] = message(topic)
			ms[i].Payload = make([]byte, 200)
		}
		if err := errors.Join(p.Publish(b.Context(), ms)...); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*len(ms))/b.Elapsed().Seconds(), "messages/s")
}
