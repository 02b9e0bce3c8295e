package nats_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/publish/nats"
	"github.com/outbox-suite/outbox/publish/publishtest"
	"github.com/outbox-suite/outbox/relay"
)

func open(addr string) (relay.Publisher, error) {
	return nats.Connect("nats://"+addr, nats.Config{}, natsgo.UserInfo(user, password),
		natsgo.ReconnectWait(50*time.Millisecond), natsgo.PingInterval(time.Second))
}

func TestPublisher(t *testing.T) {
	t.Parallel()
	b := single(t)
	js := connect(t, b.address())
	target := publishtest.Target{
		New:   func(context.Context) (relay.Publisher, error) { return open(b.address()) },
		Topic: func(ctx context.Context) (string, error) { return newTopic(ctx, js, jetstream.StreamConfig{}) },
		Consume: func(ctx context.Context, topic string) ([]publishtest.Received, error) {
			return consume(ctx, js, topic)
		},
		Kill: b.kill, Start: b.start,
		Pause: b.pause, Resume: b.resume,
		Network: &publishtest.Network{
			Address: b.address(),
			New:     func(_ context.Context, addr string) (relay.Publisher, error) { return open(addr) },
		},
		TooLarge: 1 << 20, // with the headers it is more than the server takes
		Unknown:  "topic.nowhere", Remedy: "nats stream add", Unroutable: "no topic.*",
		Deduplicates: true, KeepsNil: true, Secret: password,
	}
	publishtest.Run(t, target)
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

// What the server refuses for reasons of its configuration.
func TestRefusals(t *testing.T) {
	b := single(t)
	js := connect(t, b.address())
	connectWith := func(c nats.Config) relay.Publisher {
		p, err := nats.Connect(b.address(), c, natsgo.UserInfo(user, password))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
		return p
	}
	topic := func(c jetstream.StreamConfig) string {
		topic, err := newTopic(t.Context(), js, c)
		if err != nil {
			t.Fatal(err)
		}
		return topic
	}
	small := topic(jetstream.StreamConfig{MaxMsgSize: 2000})
	full := topic(jetstream.StreamConfig{MaxMsgs: 1, Discard: jetstream.DiscardNew})
	silent := topic(jetstream.StreamConfig{NoAck: true})
	sealed := topic(jetstream.StreamConfig{})
	if _, err := js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: sealed[len("topic."):], Subjects: []string{sealed}, Storage: jetstream.FileStorage, Sealed: true}); err != nil {
		t.Fatal(err)
	}
	p := connectWith(nats.Config{})
	large := message(small)
	large.Payload = make([]byte, 3000)
	headers := message(small)
	headers.Headers = map[string]string{"a": strings.Repeat("ü", 20_000)}

	// The server takes what follows a refused message of the same key, which is
	// why the publisher does not declare that it keeps order.
	errs := publish(t, p, large, message(small), headers)
	if !relay.IsPermanent(errs[0]) || errs[1] != nil || !relay.IsPermanent(errs[2]) {
		t.Errorf("too large for the stream: %v, want the first and the last refused for good", errs)
	}
	if _, ok := p.(relay.Orderer); ok {
		t.Error("it declares that it keeps order")
	}
	errs = publish(t, p, message(full), message(full))
	if errs[0] != nil || errs[1] == nil || relay.IsPermanent(errs[1]) || relay.IsUnavailable(errs[1]) {
		t.Errorf("a full stream: %v, want the second tried again, at the cost of an attempt", errs)
	}
	if err := publish(t, p, message(sealed))[0]; !relay.IsPermanent(err) {
		t.Errorf("a sealed stream: %v, want it refused for good", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := p.Publish(ctx, []relay.Message{message(silent)})[0]; !errors.Is(err, context.DeadlineExceeded) || relay.IsPermanent(err) {
		t.Errorf("a stream without acknowledgements: %v, want the end of the context", err)
	}
	if n := p.(*nats.Publisher).UnderWay(); n != 0 {
		t.Errorf("%d messages hold a place of the window when all calls have returned", n)
	}
	if err := publish(t, connectWith(nats.Config{Stream: "OTHER"}), message(small))[0]; !relay.IsPermanent(err) || !strings.Contains(err.Error(), "OTHER") {
		t.Errorf("another stream than configured: %v, want it refused for good", err)
	}
	mapped := connectWith(nats.Config{Subject: func(topic string) string { return "topic." + topic }, Stream: small[len("topic."):], Window: 1})
	if errs := publish(t, mapped, message(small[len("topic."):]), message(small[len("topic."):])); errors.Join(errs...) != nil {
		t.Errorf("a mapped topic: %v", errs)
	}
	for _, bad := range []string{"", "a b", "a..b", ".a", "a.", "a.*", "a.>", "$JS.API.INFO", "_INBOX.x", "a\r\nPUB b 1", "a\xff"} {
		err := publish(t, p, message(bad))[0]
		if !relay.IsPermanent(err) {
			t.Errorf("topic %q: %v, want it refused for good", bad, err)
		}
	}
}

// Of a server that is reached but of no use, an error says why, without what is
// used to get in.
func TestUnusableServer(t *testing.T) {
	b := newBroker(t, serverConfig{Name: "bare", Port: freePort(t), NoStreams: true})
	for name, c := range map[string]struct {
		password, want string
	}{
		"no JetStream":   {password, "enable it"},
		"wrong password": {"sesame", "Authorization Violation"},
	} {
		p, err := nats.Connect("nats://"+user+":"+c.password+"@"+b.address(), nats.Config{})
		if err != nil {
			t.Fatal(err)
		}
		deadline := time.Now().Add(time.Minute)
		for {
			err = publish(t, p, message("topic"))[0]
			if err != nil && strings.Contains(err.Error(), c.want) || time.Now().After(deadline) {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		if !relay.IsUnavailable(err) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), c.password) {
			t.Errorf("%s: %v, want it unavailable and %q", name, err, c.want)
		}
		_ = p.Close()
	}
	for _, bad := range []string{"nats://app:hunter2@[::1", "nats://app:hunter2@host:port"} {
		if _, err := nats.Connect(bad, nats.Config{}); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Connect: %v, want an error without the password", err)
		}
	}
}

// The caller's connection stays open.
func TestNew(t *testing.T) {
	b := single(t)
	js := connect(t, b.address())
	topic, err := newTopic(t.Context(), js, jetstream.StreamConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		p, err := nats.New(js.Conn(), nats.Config{Source: "/shop"})
		if err != nil {
			t.Fatal(err)
		}
		if err := publish(t, p, message(topic))[0]; err != nil {
			t.Error(err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []nats.Config{{Source: "a b"}, {Window: -1}} {
		if _, err := nats.New(js.Conn(), bad); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

// BenchmarkPublish publishes calls of 500 messages, as a relay hands them over,
// to a server with file storage, with and without waiting for each other.
func BenchmarkPublish(b *testing.B) {
	server := single(b)
	js := connect(b, server.address())
	topic, err := newTopic(b.Context(), js, jetstream.StreamConfig{})
	if err != nil {
		b.Fatal(err)
	}
	for _, window := range []int{1, 1024} {
		b.Run(fmt.Sprintf("window=%d", window), func(b *testing.B) {
			p, err := nats.Connect(server.address(), nats.Config{Window: window}, natsgo.UserInfo(user, password))
			if err != nil {
				b.Fatal(err)
			}
			defer p.Close()
			ms := make([]relay.Message, 500)
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
		})
	}
}
