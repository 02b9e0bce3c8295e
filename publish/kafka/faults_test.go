package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/publish/kafka"
	"github.com/outbox-suite/outbox/relay"
)

// newCluster is kfake in the test's own process, for faults inside the broker.
func newCluster(tb testing.TB, options ...kfake.Opt) (*kfake.Cluster, reader) {
	tb.Helper()
	c, err := kfake.NewCluster(options...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c, reader{addr: c.ListenAddrs()[0]}
}

// eachWay runs a test without transactions, with them, and with them as brokers before
// Kafka 4 have them.
func eachWay(t *testing.T, test func(t *testing.T, c kafka.Config, options ...kfake.Opt)) {
	t.Parallel()
	t.Run("plain", func(t *testing.T) { t.Parallel(); test(t, kafka.Config{}) })
	t.Run("transactions", func(t *testing.T) { t.Parallel(); test(t, kafka.Config{TransactionalID: "shop"}) })
	t.Run("transactions of 3.8", func(t *testing.T) {
		t.Parallel()
		test(t, kafka.Config{TransactionalID: "shop"}, kfake.MaxVersions(kversion.V3_8_0()))
	})
}

func connect(tb testing.TB, r reader, c kafka.Config, options ...kgo.Opt) *kafka.Publisher {
	tb.Helper()
	p, err := kafka.Connect(r.addr, c, options...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = p.Close() })
	return p
}

func topic(tb testing.TB, r reader, partitions int32, config map[string]string) string {
	tb.Helper()
	name, err := r.newTopic(tb.Context(), partitions, config)
	if err != nil {
		tb.Fatal(err)
	}
	return name
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

// seeded is randomness whose seed is printed.
func seeded(tb testing.TB) *rand.Rand {
	tb.Helper()
	seed := rand.Uint64()
	tb.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// The broker refuses batches with a record that is bad. Whatever the runs, only
// bad messages are refused for good, nothing of a key arrives after one, and all
// else is accepted and arrives once, in order.
func TestRefusedBatches(t *testing.T) { eachWay(t, testRefusedBatches) }

func testRefusedBatches(t *testing.T, c kafka.Config, options ...kfake.Opt) {
	t.Helper()
	cluster, r := newCluster(t, append(options, kfake.NumBrokers(2))...)
	cluster.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		p := req.(*kmsg.ProduceRequest)
		bad := false
		resp := p.ResponseKind().(*kmsg.ProduceResponse)
		for _, pt := range p.Topics {
			rt := kmsg.NewProduceResponseTopic()
			rt.Topic, rt.TopicID = pt.Topic, pt.TopicID
			for _, pp := range pt.Partitions {
				rp := kmsg.NewProduceResponseTopicPartition()
				rp.Partition = pp.Partition
				if strings.Contains(string(pp.Records), "POISON") {
					bad = true
					rp.ErrorCode = kerr.InvalidRecord.Code
				} else {
					rp.ErrorCode = kerr.NotLeaderForPartition.Code // it comes again
				}
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, bad
	})
	random := seeded(t)
	p := connect(t, r, c, kgo.ProducerBatchCompression(kgo.NoCompression()))
	for range 8 {
		topics := []string{topic(t, r, 3, nil), topic(t, r, 1, nil)}
		ms := make([]relay.Message, 1+random.IntN(60))
		for i := range ms {
			key := ""
			if n := random.IntN(6); n > 0 {
				key = fmt.Sprintf("key-%d", n)
			}
			ms[i] = message(topics[random.IntN(2)], key)
			if random.IntN(20) == 0 {
				ms[i].Payload = []byte(`"POISON"`)
			}
		}
		errs := publish(t, p, ms...)
		checkRuns(t, r, topics, ms, errs)
	}
}

func checkRuns(t *testing.T, r reader, topics []string, ms []relay.Message, errs []error) {
	t.Helper()
	at := make(map[uuid.UUID]int)
	for _, name := range topics {
		got, err := r.consume(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		last := make(map[string]int)
		for n := range got {
			i := slices.IndexFunc(ms, func(m relay.Message) bool { return m.ID == got[n].ID })
			at[got[n].ID]++
			if key := got[n].Key; key != "" {
				if i < last[key] {
					t.Errorf("message %d of key %s arrived after message %d", i, key, last[key])
				}
				last[key] = i
			}
		}
	}
	failed := make(map[string]bool)
	for i, err := range errs {
		m := &ms[i]
		bad := string(m.Payload) == `"POISON"`
		switch after := m.HasKey() && failed[m.Key]; {
		case after && err == nil:
			t.Errorf("message %d was accepted after a failure of its key", i)
		case !after && bad != relay.IsPermanent(err), !after && !bad && err != nil:
			t.Errorf("message %d, bad: %t, ended with %v", i, bad, err)
		case err == nil && at[m.ID] != 1, err != nil && at[m.ID] != 0:
			t.Errorf("message %d ended with %v and arrived %d times", i, err, at[m.ID])
		}
		failed[m.Key] = failed[m.Key] || err != nil
	}
}

// A topic whose limit is lower than the publisher's.
func TestTopicsOwnLimit(t *testing.T) { eachWay(t, testTopicsOwnLimit) }

func testTopicsOwnLimit(t *testing.T, c kafka.Config, options ...kfake.Opt) {
	t.Helper()
	_, r := newCluster(t, append(options, kfake.NumBrokers(1))...)
	p := connect(t, r, c, kgo.ProducerBatchCompression(kgo.NoCompression()))
	small := topic(t, r, 1, map[string]string{"max.message.bytes": "4000"})
	var ms []relay.Message
	for i := range 40 {
		ms = append(ms, message(small, fmt.Sprintf("key-%d", i%4)))
	}
	ms[21].Payload = make([]byte, 5000)
	errs := publish(t, p, ms...)
	for i, err := range errs {
		switch {
		case i == 21:
			if !relay.IsPermanent(err) || !strings.Contains(err.Error(), "max.message.bytes") {
				t.Errorf("the large message: %v, want it refused for good, with the remedy", err)
			}
		case i > 21 && i%4 == 1:
			if err == nil || relay.IsPermanent(err) || relay.IsUnavailable(err) {
				t.Errorf("message %d, after it and of its key: %v", i, err)
			}
		case err != nil:
			t.Errorf("message %d: %v", i, err)
		}
	}
	if got, err := r.consume(t.Context(), small); err != nil || len(got) != 35 {
		t.Errorf("%d messages arrived (%v), want 35", len(got), err)
	}
}

// Leaders move from broker to broker, and one request in ten times out after it was
// taken, while runs are published: nothing is lost, and the order is kept.
func TestLeadersMove(t *testing.T) { eachWay(t, testLeadersMove) }

func testLeadersMove(t *testing.T, c kafka.Config, options ...kfake.Opt) {
	t.Helper()
	cluster, r := newCluster(t, append(options, kfake.NumBrokers(3))...)
	p := connect(t, r, c)
	name := topic(t, r, 6, nil)
	random := seeded(t)
	var mu sync.Mutex
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.RequestTimedOut, Count: -1, When: func(kmsg.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		return random.IntN(10) == 0
	}})
	stop := make(chan struct{})
	moved := make(chan struct{})
	go func() {
		defer close(moved)
		for {
			select {
			case <-stop:
				return
			case <-time.After(3 * time.Millisecond):
				cluster.ShufflePartitionLeaders()
			}
		}
	}()
	const runs, each, keys = 20, 100, 7
	var all []relay.Message
	for range runs {
		var ms []relay.Message
		for i := range each {
			ms = append(ms, message(name, fmt.Sprintf("key-%d", i%keys)))
		}
		all = append(all, ms...)
		for deadline := time.Now().Add(time.Minute); len(ms) > 0; {
			var left []relay.Message
			var last error
			for i, err := range publish(t, p, ms...) {
				if err != nil {
					left, last = append(left, ms[i]), err
				}
			}
			if ms = left; relay.IsPermanent(last) || last != nil && time.Now().After(deadline) {
				t.Fatal(last)
			}
		}
	}
	close(stop)
	<-moved
	got, err := r.consume(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[uuid.UUID]bool)
	var arrived []string
	for i := range got {
		if id := got[i].ID; !seen[id] {
			seen[id] = true
			arrived = append(arrived, got[i].Key+id.String())
		}
	}
	var sent []string
	for i := range all {
		sent = append(sent, all[i].Key+all[i].ID.String())
	}
	byKey := func(a, b string) int { return strings.Compare(a[:len("key-0")], b[:len("key-0")]) }
	slices.SortStableFunc(arrived, byKey)
	slices.SortStableFunc(sent, byKey)
	if !slices.Equal(arrived, sent) {
		t.Errorf("%d messages were sent and %d arrived, or not in order", len(sent), len(arrived))
	}
}

// What the broker says of a topic or a partition, and what it costs.
func TestAnswers(t *testing.T) { eachWay(t, testAnswers) }

func testAnswers(t *testing.T, config kafka.Config, options ...kfake.Opt) {
	t.Helper()
	for _, c := range []struct {
		err         *kerr.Error
		unavailable bool
		want        string
	}{
		{kerr.TopicAuthorizationFailed, false, "permission to write"},
		{kerr.ClusterAuthorizationFailed, false, "IdempotentWrite"},
		{kerr.InvalidTimestamp, false, "INVALID_TIMESTAMP"},
		{kerr.NotEnoughReplicas, true, "NOT_ENOUGH_REPLICAS"},
	} {
		t.Run(c.err.Message, func(t *testing.T) {
			t.Parallel()
			cluster, r := newCluster(t, append(options, kfake.NumBrokers(1))...)
			p := connect(t, r, config)
			name, other := topic(t, r, 1, nil), topic(t, r, 1, nil)
			if err := publish(t, p, message(name, "a"), message(other, "b")); errors.Join(err...) != nil {
				t.Fatal(err)
			}
			keys := []kmsg.Key{kmsg.Produce}
			if c.err == kerr.TopicAuthorizationFailed {
				keys = append(keys, kmsg.AddPartitionsToTxn)
			}
			h := cluster.Fault(kfake.Fault{Keys: keys, Topic: name, Err: c.err, Count: -1})
			errs := publish(t, p, message(name, "a"), message(other, "b"))
			if err := errs[0]; err == nil || relay.IsPermanent(err) || relay.IsUnavailable(err) != c.unavailable || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want it unavailable: %t, and %q", err, c.unavailable, c.want)
			}
			if errs[1] != nil {
				t.Errorf("another topic: %v", errs[1])
			}
			h.Remove()
			if err := publish(t, p, message(name, "a"))[0]; err != nil {
				t.Errorf("when it is over: %v", err)
			}
		})
	}
}

// A broker that lets nobody in says why, without what is used to get in.
func TestWrongPassword(t *testing.T) {
	t.Parallel()
	_, r := newCluster(t, kfake.NumBrokers(1), kfake.EnableSASL(), kfake.Superuser("PLAIN", user, password))
	p := connect(t, r, kafka.Config{}, kgo.SASL(plain.Auth{User: user, Pass: "sesame"}.AsMechanism()))
	err := publish(t, p, message("topic", "key"))[0]
	if !relay.IsUnavailable(err) || !strings.Contains(err.Error(), "another user or password") || strings.Contains(err.Error(), "sesame") {
		t.Errorf("%v, want it unavailable, and why", err)
	}
}

func TestTopics(t *testing.T) {
	t.Parallel()
	_, r := newCluster(t, kfake.NumBrokers(1), kfake.AllowAutoTopicCreation())
	p := connect(t, r, kafka.Config{Topic: func(topic string) string { return "shop." + topic }, CreateTopics: true, Source: "/shop"})
	if err := publish(t, p, message("orders", "a"))[0]; err != nil {
		t.Fatal(err)
	}
	got, err := r.records(t.Context(), "shop.orders")
	if err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	if age := time.Since(got[0].Timestamp); age < -time.Second || age > time.Minute {
		t.Errorf("the record's timestamp is %v, want now", got[0].Timestamp)
	}
	for _, bad := range []string{"a b", "a/b", "ü", "a\x00", strings.Repeat("a", 250)} {
		if err := publish(t, p, message(bad, "a"))[0]; !relay.IsPermanent(err) {
			t.Errorf("topic %q: %v, want it refused for good", bad, err)
		}
	}
	if err := publish(t, connect(t, r, kafka.Config{}), message("nowhere", "a"))[0]; !relay.IsPermanent(err) {
		t.Errorf("without CreateTopics: %v, want it refused for good", err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, bad := range []kafka.Config{{Source: "a b"}, {MaxBytes: 1}, {MaxBytes: 1 << 30}, {Clients: -1}} {
		if _, err := kafka.Connect("h", bad); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
	for _, bad := range []string{"", "a,,b"} {
		if _, err := kafka.Connect(bad, kafka.Config{}); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestDecodeForeign(t *testing.T) {
	for _, h := range [][]kgo.RecordHeader{
		nil,
		{{Key: "ce_specversion", Value: []byte("0.3")}},
		{{Key: "ce_specversion", Value: []byte("1.0")}, {Key: "ce_id", Value: []byte("7")}},
	} {
		if _, err := kafka.Decode(&kgo.Record{Headers: h}); err == nil {
			t.Errorf("%v is decoded", h)
		}
	}
}

func ExampleDecode() {
	header := func(name, value string) kgo.RecordHeader { return kgo.RecordHeader{Key: name, Value: []byte(value)} }
	m, err := kafka.Decode(&kgo.Record{
		Key: []byte("42"), Value: []byte(`{"total":7}`),
		Headers: []kgo.RecordHeader{
			header("ce_specversion", "1.0"), header("ce_id", "0199d3c5-6a4e-7c1e-9a53-0d5b8a3f9a11"), header("ce_source", "/shop"),
			header("ce_type", "order.placed"), header("ce_subject", "42"), header("ce_topic", "orders"), header("ce_attempt", "2"),
			header("content-type", "application/json"), header("ce_headers", `{"X-Tenant":"acme"}`),
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(m.ID, m.Key, m.Type, m.ContentType, m.Attempt, m.Headers)
	fmt.Printf("%s\n", m.Payload)
	// Output:
	// 0199d3c5-6a4e-7c1e-9a53-0d5b8a3f9a11 42 order.placed application/json 2 map[X-Tenant:acme]
	// {"total":7}
}

// BenchmarkPublish publishes calls of 500 messages, as a relay hands them over,
// of many keys and of one.
func BenchmarkPublish(b *testing.B) {
	server := newBroker(b)
	r := reader{server.address(), []kgo.Opt{auth()}}
	p := connect(b, r, kafka.Config{}, auth())
	name := topic(b, r, 6, nil)
	for _, keys := range []int{1, 100} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			ms := make([]relay.Message, 500)
			for b.Loop() {
				for i := range ms {
					ms[i] = message(name, fmt.Sprintf("key-%d", i%keys))
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
