package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/publish/publishtest"
	"github.com/outbox-suite/outbox/publish/rabbitmq"
	"github.com/outbox-suite/outbox/relay"
)

// route sends exchange!key where it says, and any other topic to its queue.
func route(topic string) (exchange, key string) {
	if exchange, key, found := strings.Cut(topic, "!"); found {
		return exchange, key
	}
	return "", topic
}

func target(b *broker, queues string) publishtest.Target {
	open := func(addr string) (relay.Publisher, error) {
		return rabbitmq.Connect("amqp://"+user+":"+password+"@"+addr, rabbitmq.Config{Route: route}, amqp.Config{})
	}
	return publishtest.Target{
		New:     func(context.Context) (relay.Publisher, error) { return open(b.address) },
		Topic:   func(context.Context) (string, error) { return b.newTopic(queues) },
		Consume: b.consume,
		Kill:    b.kill, Start: b.start,
		Pause: b.pause, Resume: b.resume,
		Network: &publishtest.Network{
			Address: b.address,
			New:     func(_ context.Context, addr string) (relay.Publisher, error) { return open(addr) },
		},
		TooLarge: 16<<20 + 1,
		Unknown:  "nowhere!key", Remedy: "declare exchange --name nowhere", Unroutable: "amq.topic!nobody",
		KeepsNil: true, Secret: password,
		Patience: time.Minute, // a broker that starts takes several seconds
	}
}

func TestPublisher(t *testing.T) {
	publishtest.Run(t, target(newBroker(t), amqp.QueueTypeQuorum))
}

// Classic queues confirm for other reasons.
func TestClassicQueues(t *testing.T) {
	results, err := publishtest.Check(t.Context(), target(newBroker(t), amqp.QueueTypeClassic), regexp.MustCompile("^(Accept|Outage/Killed|Order/AcrossOutage)"))
	if err != nil || len(results) != 8 {
		t.Fatal(results, err)
	}
	for _, r := range results {
		if r.Status != publishtest.Passed {
			t.Errorf("%s: %s: %s", r.Name, r.Status, r.Got)
		}
	}
}

func message(topic, key string) relay.Message {
	return relay.Message{
		Message: outbox.Message{ID: uuid.New(), Topic: topic, Key: key, Type: "tried", ContentType: "application/json", Payload: []byte("{}")},
		Seq:     7, Lane: 3, Epoch: 5, Attempt: 1, CreatedAt: time.Date(2026, 1, 31, 15, 4, 5, 123_456_000, time.UTC),
	}
}

func publish(tb testing.TB, p relay.Publisher, ms ...relay.Message) []error {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	return p.Publish(ctx, ms)
}

func connect(tb testing.TB, servers string, c rabbitmq.Config) *rabbitmq.Publisher {
	tb.Helper()
	p, err := rabbitmq.Connect(servers, c, amqp.Config{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = p.Close() })
	return p
}

func (b *broker) topic(tb testing.TB, kind string, args amqp.Table) string {
	tb.Helper()
	topic := "topic." + uuid.NewString()
	if err := b.declare(topic, kind, args); err != nil {
		tb.Fatal(err)
	}
	return topic
}

func (b *broker) arrived(tb testing.TB, topic string) map[uuid.UUID]int {
	tb.Helper()
	all, err := b.consume(tb.Context(), topic)
	if err != nil {
		tb.Fatal(err)
	}
	n := make(map[uuid.UUID]int)
	for i := range all {
		n[all[i].ID]++
	}
	return n
}

// What a real server does beyond the suite, on one server.
func TestServer(t *testing.T) {
	b := newBroker(t)
	for _, c := range []struct {
		name string
		run  func(*testing.T, *broker)
	}{
		{"Returns", testReturns},
		{"Refusals", testRefusals},
		{"CreateQueues", testCreateQueues},
		{"ServersOwnLimit", testServersOwnLimit},
		{"FullQueue", testFullQueue},
		{"ExchangeGoes", testExchangeGoes},
		{"Access", testAccess},
		{"Alarm", testAlarm},
		{"ConnectionForced", testConnectionForced},
		{"HungWrite", testHungWrite},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, b) })
	}
}

// Returned messages and others, mixed at random, in many calls at a time: what was
// returned is never accepted, and what was not is.
func testReturns(t *testing.T, b *broker) {
	p := connect(t, b.url(), rabbitmq.Config{})
	there := b.topic(t, amqp.QueueTypeClassic, nil)
	var mu sync.Mutex
	var accepted []uuid.UUID
	var calls sync.WaitGroup
	for range 4 {
		calls.Go(func() {
			for range 4 {
				ms := make([]relay.Message, 600) // more than a wave
				for i := range ms {
					if ms[i] = message(there, ""); ms[i].ID[0]%2 == 0 {
						ms[i].Topic = "nowhere"
					}
				}
				for i, err := range publish(t, p, ms...) {
					if away := ms[i].Topic == "nowhere"; away != relay.IsPermanent(err) || !away && err != nil {
						t.Errorf("topic %s: %v", ms[i].Topic, err)
						return
					}
					if err == nil {
						mu.Lock()
						accepted = append(accepted, ms[i].ID)
						mu.Unlock()
					}
				}
			}
		})
	}
	calls.Wait()
	got := b.arrived(t, there)
	for _, id := range accepted {
		if got[id] != 1 {
			t.Fatalf("an accepted message arrived %d times", got[id])
		}
	}
	if len(got) != len(accepted) {
		t.Errorf("%d messages were accepted and %d arrived", len(accepted), len(got))
	}
}

// The client hands returns and confirms over in two channels. Whatever the order in
// which they are read, no message that was returned is accepted.
func TestReturnIsReadLate(t *testing.T) {
	for range 1000 {
		if got := rabbitmq.Returned([]string{"a", "b"}, 1); got[0] || !got[1] {
			t.Fatalf("of two messages the second was returned: got %v", got)
		}
		if got := rabbitmq.Returned([]string{"a", "a"}, 0); !got[0] || !got[1] {
			t.Fatalf("one of two with the same id was returned: got %v, want none accepted", got)
		}
	}
}

func testRefusals(t *testing.T, b *broker) {
	p := connect(t, b.url(), rabbitmq.Config{Route: route, MaxBytes: 1000})
	there := b.topic(t, amqp.QueueTypeQuorum, nil)
	payload := message(there, "a")
	payload.Payload = make([]byte, 1001)
	large := message(there, "a")
	large.Headers = map[string]string{"a": strings.Repeat("x", 140_000)}
	name := message(there, "b")
	name.Headers = map[string]string{strings.Repeat("x", 250): "v"}
	kind := message(there, "c")
	kind.Type = strings.Repeat("x", 256)
	for _, c := range []struct {
		m    relay.Message
		want string
	}{
		{payload, "at most 1000 are sent"},
		{large, "frame_max"},
		{name, "shorten it"},
		{kind, "shorten them"},
		{message("nobody.declared.it", "d"), "rabbitmqadmin declare queue --name nobody.declared.it"},
		{message("amq.topic!unbound", "e"), "rabbitmqadmin declare binding --source amq.topic"},
		{message("missing!unbound", "e"), "rabbitmqadmin declare exchange --name missing"},
		{message("", "f"), "no name"},
		{message(strings.Repeat("x", 256), "g"), "0 and 256 bytes"},
		{message(strings.Repeat("x", 256)+"!a", "g"), "256 and 1 bytes"},
	} {
		errs := publish(t, p, message(there, "x"), c.m, message(there, "y"))
		if err := errs[1]; !relay.IsPermanent(err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want it refused for good, and %q", err, c.want)
		}
		if err := errs[1]; err != nil && strings.Contains(err.Error(), "channel closed") {
			t.Errorf("it was sent, and the server closed the channel: %v", err)
		}
		if errs[0] != nil || errs[2] != nil {
			t.Errorf("%q: the others: %v", c.want, errs)
		}
	}
	if _, ok := relay.Publisher(p).(relay.Orderer); ok {
		t.Error("it declares that it keeps order")
	}
}

func testCreateQueues(t *testing.T, b *broker) {
	p := connect(t, b.url(), rabbitmq.Config{CreateQueues: true, Source: "/shop"})
	fresh := "fresh." + uuid.NewString()
	classic := b.topic(t, amqp.QueueTypeClassic, nil)
	if err := errors.Join(publish(t, p, message(fresh, "a"), message(classic, "a"))...); err != nil {
		t.Fatal(err)
	}
	if got := b.arrived(t, fresh); len(got) != 1 {
		t.Errorf("%d messages arrived at the new queue", len(got))
	}
	if err := b.declare(fresh, amqp.QueueTypeQuorum, nil); err != nil {
		t.Errorf("the new queue is no durable quorum queue: %v", err)
	}
	ch, err := b.channel()
	if err != nil {
		t.Fatal(err)
	}
	defer ch.Close()
	if _, err := ch.QueueDelete(fresh, false, false, false); err != nil {
		t.Fatal(err)
	}
	m := message(fresh, "a")
	if err := publish(t, p, m)[0]; err == nil || relay.IsPermanent(err) || relay.IsUnavailable(err) {
		t.Errorf("when the queue was deleted: %v, want it tried again", err)
	}
	if err := publish(t, p, m)[0]; err != nil {
		t.Errorf("at the next attempt: %v", err)
	}
}

// A limit of the server that is lower than the publisher's ends the channel. The
// message that is to blame is found, alone.
func testServersOwnLimit(t *testing.T, b *broker) {
	b.control(t, "eval", "persistent_term:put(max_message_size, 20000).")
	defer b.control(t, "eval", "persistent_term:put(max_message_size, 16777216).")
	p := connect(t, b.url(), rabbitmq.Config{})
	there := b.topic(t, amqp.QueueTypeQuorum, nil)
	var ms []relay.Message
	for i := range 40 {
		ms = append(ms, message(there, fmt.Sprintf("key-%d", i)))
	}
	ms[7].Payload, ms[31].Payload = make([]byte, 20001), make([]byte, 30000)
	var calls sync.WaitGroup
	calls.Go(func() { // of another channel
		if err := errors.Join(publish(t, p, ms[8:31]...)...); err != nil {
			t.Error(err)
		}
	})
	for i, err := range publish(t, p, ms...) {
		if bad := i == 7 || i == 31; bad && (!relay.IsPermanent(err) || !strings.Contains(err.Error(), "raise the server's max_message_size")) || !bad && err != nil {
			t.Errorf("message %d: %v", i, err)
		}
	}
	calls.Wait()
	got := b.arrived(t, there)
	if len(got) != 38 || got[ms[7].ID] != 0 {
		t.Errorf("%d messages arrived, want 38", len(got))
	}
}

func testFullQueue(t *testing.T, b *broker) {
	p := connect(t, b.url(), rabbitmq.Config{})
	full := b.topic(t, amqp.QueueTypeClassic, amqp.Table{amqp.QueueMaxLenArg: 1, amqp.QueueOverflowArg: amqp.QueueOverflowRejectPublish})
	var errs []error
	for range 3 {
		errs = append(errs, publish(t, p, message(full, "a"))...)
	}
	if err := errs[2]; errs[0] != nil || err == nil || relay.IsPermanent(err) || relay.IsUnavailable(err) || !strings.Contains(err.Error(), "nack") {
		t.Errorf("%v, want the last tried again, at the cost of an attempt", errs)
	}
}

// An exchange that was there and is deleted ends the channel.
func testExchangeGoes(t *testing.T, b *broker) {
	p := connect(t, b.url(), rabbitmq.Config{Route: route})
	ch, err := b.channel()
	if err != nil {
		t.Fatal(err)
	}
	defer ch.Close()
	there := b.topic(t, amqp.QueueTypeQuorum, nil)
	declare := func() {
		if err := errors.Join(ch.ExchangeDeclare("gone", "fanout", true, false, false, false, nil), ch.QueueBind(there, "", "gone", false, nil)); err != nil {
			t.Fatal(err)
		}
	}
	declare()
	if err := publish(t, p, message("gone!a", "a"))[0]; err != nil {
		t.Fatal(err)
	}
	if err := ch.ExchangeDelete("gone", false, false); err != nil {
		t.Fatal(err)
	}
	errs := publish(t, p, message(there, "b"), message("gone!a", "a"), message(there, "c"))
	if errs[0] != nil || errs[2] != nil || !relay.IsPermanent(errs[1]) || !strings.Contains(errs[1].Error(), "declare the exchange") {
		t.Errorf("%v, want the second refused for good and the others accepted", errs)
	}
	declare()
	if err := publish(t, p, message("gone!a", "a"))[0]; err != nil {
		t.Errorf("when the exchange is back: %v", err)
	}
}

// Of a server that lets nobody in, or not everywhere, an error says why, without
// what is used to get in.
func testAccess(t *testing.T, b *broker) {
	b.control(t, "add_user", "reader", "sesame")
	b.control(t, "set_permissions", "reader", "", "^allowed$", ".*")
	for _, c := range []struct {
		url, topic, want string
		unavailable      bool
	}{
		{"amqp://app:sesame@" + b.address, "x", "username or password not allowed", true},
		{"amqp://app:hunter2@" + b.address + "/elsewhere", "x", "elsewhere", true},
		{"amqps://app:hunter2@" + b.address, "x", "tls", true},
		{"amqp://reader:sesame@" + b.address, "amq.topic!x", "permission", false},
	} {
		err := publish(t, connect(t, c.url, rabbitmq.Config{Route: route}), message(c.topic, "a"))[0]
		if err == nil || relay.IsPermanent(err) || relay.IsUnavailable(err) != c.unavailable || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "sesame") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v, want it unavailable: %t, and %q", err, c.unavailable, c.want)
		}
	}
	// The first server is of no use, the second one is.
	p := connect(t, "amqp://127.0.0.1:1,"+b.url(), rabbitmq.Config{})
	if err := publish(t, p, message(b.topic(t, amqp.QueueTypeQuorum, nil), "a"))[0]; err != nil {
		t.Error(err)
	}
}

// The memory alarm blocks publishers: the call that meets it ends with its context,
// the next ones at once, and all goes on when it is over.
func testAlarm(t *testing.T, b *broker) {
	p := connect(t, b.url(), rabbitmq.Config{})
	there := b.topic(t, amqp.QueueTypeQuorum, nil)
	if err := publish(t, p, message(there, "a"))[0]; err != nil {
		t.Fatal(err)
	}
	b.control(t, "set_vm_memory_high_watermark", "absolute", "1MB")
	defer b.control(t, "set_vm_memory_high_watermark", "0.6")
	ms := make([]relay.Message, 40)
	for i := range ms {
		ms[i] = message(there, fmt.Sprintf("key-%d", i))
		ms[i].Payload = make([]byte, 200_000) // more than the buffers on the way hold
	}
	for n := range 3 {
		limit := 2 * time.Second
		if n > 0 {
			limit = time.Minute // of which nothing is used
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		began := time.Now()
		errs := p.Publish(ctx, ms)
		took, over := time.Since(began), ctx.Err() != nil
		cancel()
		if err := errs[len(errs)-1]; !relay.IsUnavailable(err) || !strings.Contains(err.Error(), "blocks publishers") {
			t.Errorf("call %d: %v, want it unavailable", n, err)
		}
		if took > 30*time.Second || n > 0 && over {
			t.Errorf("call %d took %v", n, took)
		}
	}
	b.control(t, "set_vm_memory_high_watermark", "0.6")
	for deadline := time.Now().Add(time.Minute); ; {
		err := errors.Join(publish(t, p, ms...)...)
		if err == nil {
			break
		}
		if relay.IsPermanent(err) || time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	if got := b.arrived(t, there); len(got) != len(ms)+1 {
		t.Errorf("%d messages arrived, want %d", len(got), len(ms)+1)
	}
}

// An operator closes connections while many publish.
func testConnectionForced(t *testing.T, b *broker) {
	p := connect(t, b.url(), rabbitmq.Config{})
	there := b.topic(t, amqp.QueueTypeQuorum, nil)
	over := make(chan struct{})
	var accepted []uuid.UUID
	var calls sync.WaitGroup
	calls.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-over:
				return
			default:
			}
			ms := []relay.Message{message(there, "a"), message(there, "b")}
			for i, err := range publish(t, p, ms...) {
				switch {
				case err == nil:
					accepted = append(accepted, ms[i].ID)
				case !relay.IsUnavailable(err):
					t.Errorf("%v, want it unavailable", err)
				}
			}
		}
	})
	for range 2 {
		b.control(t, "close_all_connections", "maintenance")
	}
	close(over)
	calls.Wait()
	got := b.arrived(t, there)
	for _, id := range accepted {
		if got[id] == 0 {
			t.Fatal("an accepted message did not arrive")
		}
	}
	if len(accepted) == 0 {
		t.Error("nothing was accepted")
	}
}

// watched is a connection whose end shows.
type watched struct {
	net.Conn
	closed func()
}

func (w watched) Close() error {
	w.closed()
	return w.Conn.Close()
}

// A server takes no more bytes and is silent: when the connection is given up, what
// hangs in a write to it is freed, or it would stay until the system ends it.
func testHungWrite(t *testing.T, b *broker) {
	closed := make(chan struct{})
	note := sync.OnceFunc(func() { close(closed) })
	p, err := rabbitmq.Connect(b.url(), rabbitmq.Config{}, amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(t.Context(), network, addr)
		return watched{conn, note}, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	there := b.topic(t, amqp.QueueTypeQuorum, nil)
	if err := publish(t, p, message(there, "a"))[0]; err != nil {
		t.Fatal(err)
	}
	if err := b.pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.resume(context.Background()) }()
	ms := make([]relay.Message, 80)
	for i := range ms {
		ms[i] = message(there, fmt.Sprintf("key-%d", i))
		ms[i].Payload = make([]byte, 200_000)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := p.Publish(ctx, ms)[0]; err == nil || relay.IsPermanent(err) {
		t.Errorf("%v, want it tried again", err)
	}
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Error("the connection was not closed")
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, bad := range []rabbitmq.Config{{Source: "a b"}, {MaxBytes: -1}, {Channels: -1}} {
		if _, err := rabbitmq.Connect("amqp://h", bad, amqp.Config{}); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
	for _, bad := range []string{"", "amqp://h,", "http://h", "amqp://app:hunter2@h:port", "amqp://app:hunter2%zz@h", "amqp://app:hunter/2@h"} {
		if _, err := rabbitmq.Connect(bad, rabbitmq.Config{}, amqp.Config{}); err == nil || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%q: %v, want an error without the password", bad, err)
		}
	}
}

// BenchmarkPublish publishes calls of 500 messages, as a relay hands them over.
func BenchmarkPublish(b *testing.B) {
	server := newBroker(b)
	for _, kind := range []string{amqp.QueueTypeQuorum, amqp.QueueTypeClassic} {
		b.Run(kind, func(b *testing.B) {
			topic := server.topic(b, kind, nil)
			p := connect(b, server.url(), rabbitmq.Config{})
			ms := make([]relay.Message, 500)
			for b.Loop() {
				for i := range ms {
					ms[i] = message(topic, fmt.Sprintf("key-%d", i))
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
