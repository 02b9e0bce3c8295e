package relay_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/relay"
)

func TestLog(t *testing.T) {
	const secret = "hunter2"
	m := relay.Message{Message: outbox.Message{
		Topic: "orders", Key: "key-of-ann", Type: "order.placed", Payload: []byte(secret),
		Headers: map[string]string{"Traceparent": "00-trace", "correlation-id": strings.Repeat("c", 200), "authorization": secret},
	}, Lane: 3, Epoch: 7, Seq: 11, Attempt: 2}
	conflict, other := classError(dialect.Conflict), errors.New("no")
	for _, test := range []struct {
		event relay.Event
		level slog.Level
		want  map[string]any
	}{
		{relay.Started{Owner: "relay-a"}, slog.LevelInfo, map[string]any{"msg": "relay started", "engine": "memory", "owner": "relay-a"}},
		{relay.Polled{Lanes: 2}, slog.LevelDebug, map[string]any{"msg": "polled", "lanes": 2.0}},
		{relay.Claimed{Lane: 3, Epoch: 7}, slog.LevelDebug, map[string]any{"lane": 3.0, "epoch": 7.0}},
		{relay.Surfaced{Lane: 3, Messages: 4}, slog.LevelDebug, map[string]any{"messages": 4.0}},
		{relay.Attempted{Lane: 3, Messages: []relay.Message{m, m}}, slog.LevelDebug, map[string]any{"msg": "published", "messages": 2.0}},
		{relay.Failed{Message: m, Err: other}, slog.LevelWarn, map[string]any{
			"topic": "orders", "lane": 3.0, "epoch": 7.0, "seq": 11.0, "attempt": 2.0, "traceparent": "00-trace",
			"correlation-id": strings.Repeat("c", 127) + "…", "key_hash": float64(dialect.KeyHash("key-of-ann")), "error": "no",
		}},
		{relay.Died{Message: m, Err: relay.Permanent(other)}, slog.LevelError, map[string]any{"msg": "message is dead", "kind": "permanent"}},
		{relay.Settled{Lane: 3, Published: 5}, slog.LevelDebug, map[string]any{"published": 5.0}},
		{relay.SettleRetried{Lane: 3, Try: 2, Err: conflict}, slog.LevelWarn, map[string]any{"try": 2.0}},
		{relay.SettleRetried{Lane: 3, Try: 2, Err: other}, slog.LevelError, map[string]any{"try": 2.0}},
		{relay.ArchiveFailed{Lane: 3, Messages: 6, Err: other}, slog.LevelError, map[string]any{"messages": 6.0}},
		{relay.LeaseLost{Lane: 3, Epoch: 7, Accepted: 1}, slog.LevelWarn, map[string]any{"accepted": 1.0}},
		{relay.Released{Lane: 3, Published: 8}, slog.LevelDebug, map[string]any{"published": 8.0}},
		{relay.BreakerOpened{Err: other}, slog.LevelWarn, map[string]any{"msg": "destination is left alone", "destination": nil}},
		{relay.BreakerOpened{Destination: "a", Err: other}, slog.LevelWarn, map[string]any{"destination": "a"}},
		{relay.BreakerOpened{Topic: "orders", Err: other}, slog.LevelWarn, map[string]any{"msg": "topic is left alone", "topic": "orders"}},
		{relay.BreakerClosed{Destination: "a"}, slog.LevelInfo, map[string]any{"destination": "a"}},
		{relay.BreakerClosed{Topic: "orders"}, slog.LevelInfo, map[string]any{"topic": "orders"}},
		{relay.Purged{Messages: 9}, slog.LevelInfo, map[string]any{"messages": 9.0}},
		{relay.Purged{}, slog.LevelDebug, map[string]any{"messages": 0.0}},
		{relay.Erred{Op: "poll", Err: conflict}, slog.LevelWarn, map[string]any{"op": "poll"}},
		{relay.Erred{Op: "poll", Err: classError(dialect.Missing)}, slog.LevelError, map[string]any{"op": "poll"}},
		{relay.Stopping{}, slog.LevelInfo, map[string]any{"msg": "relay is stopping"}},
	} {
		var out bytes.Buffer
		cfg := relay.LogConfig{Logger: slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))}
		o := newMemory(1).open(t)
		relay.NewLog(o, cfg).Observe(test.event)
		var line map[string]any
		if err := json.Unmarshal(out.Bytes(), &line); err != nil {
			t.Fatalf("%T: %v: %s", test.event, err, out.String())
		}
		if line["level"] != test.level.String() {
			t.Errorf("%T is logged at %v, want %v", test.event, line["level"], test.level)
		}
		for name, want := range test.want {
			if line[name] != want {
				t.Errorf("%T: %s is %v, want %v", test.event, name, line[name], want)
			}
		}
		if text := out.String(); strings.Contains(text, secret) || strings.Contains(text, m.Key) {
			t.Errorf("%T: the log shows too much: %s", test.event, text)
		}
		if _, ok := test.event.(relay.Died); ok {
			cfg.Keys = true
			relay.NewLog(o, cfg).Observe(test.event)
			if !strings.Contains(out.String(), `"key":"key-of-ann"`) {
				t.Errorf("the log lacks the key: %s", out.String())
			}
		}
	}
}

// A panic is a mistake in a program, so its stack is logged, once a call.
func TestLogsPanicsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		o := m.open(t)
		m.enqueue(t, o, outbox.Message{Key: "a"}, outbox.Message{Key: "b"})
		calls := 0
		publisher := relay.PublisherFunc(func(context.Context, []relay.Message) []error {
			if calls++; calls == 1 {
				panicsHere()
			}
			return nil
		})
		var out bytes.Buffer
		e := &events{}
		l := relay.NewLog(o, relay.LogConfig{Logger: slog.New(slog.NewJSONHandler(&out, nil))})
		drain(t, o, publisher, relay.Config{PublishConcurrency: 1, Observer: relay.Observers(e, l)})

		attempts := list[relay.Attempted](e)
		if len(attempts) == 0 || len(attempts[0].Errors) != 2 {
			t.Fatalf("attempts are %+v", attempts)
		}
		for _, err := range attempts[0].Errors {
			p, ok := errors.AsType[*relay.PanicError](err)
			if !ok || p.Value != "oh" || err.Error() != "publisher panicked: oh" || !bytes.Contains(p.Stack, []byte("panicsHere")) {
				t.Errorf("the error is %v with the stack %s", err, p.Stack)
			}
		}
		if n := strings.Count(out.String(), `"stack":`); n != 1 || !strings.Contains(out.String(), "panicsHere") {
			t.Errorf("the log has %d stacks: %s", n, out.String())
		}
	})
}

//go:noinline
func panicsHere() { panic("oh") }
