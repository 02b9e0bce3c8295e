package telemetry_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/inbox"
	"github.com/outbox-suite/outbox/outboxtest"
	"github.com/outbox-suite/outbox/relay"
	"github.com/outbox-suite/outbox/sqlite"
	"github.com/outbox-suite/outbox/telemetry"
)

// metrics reads what was measured.
type metrics struct {
	t        *testing.T
	reader   *sdkmetric.ManualReader
	provider *sdkmetric.MeterProvider
}

func newMetrics(t *testing.T) *metrics {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	return &metrics{t, reader, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))}
}

// read returns the values by name and attributes, name{a=1,b=2}; of a histogram the
// number and the sum of its values.
func (m *metrics) read() (map[string]float64, error) {
	m.t.Helper()
	var all metricdata.ResourceMetrics
	err := m.reader.Collect(m.t.Context(), &all)
	values := make(map[string]float64)
	for _, scope := range all.ScopeMetrics {
		for _, one := range scope.Metrics {
			name := func(set attribute.Set) string {
				var list []string
				for _, kv := range set.ToSlice() {
					list = append(list, string(kv.Key)+"="+kv.Value.String())
				}
				return one.Name + "{" + strings.Join(list, ",") + "}"
			}
			switch data := one.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					values[name(p.Attributes)] = float64(p.Value)
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					values[name(p.Attributes)] = float64(p.Value)
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					values[name(p.Attributes)] = p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					values[name(p.Attributes)+" count"] = float64(p.Count)
					values[name(p.Attributes)+" sum"] = p.Sum
				}
			default:
				m.t.Fatalf("%s is a %T", one.Name, data)
			}
		}
	}
	return values, err
}

// want compares some of the values.
func (m *metrics) want(want map[string]float64) {
	m.t.Helper()
	got, err := m.read()
	if err != nil {
		m.t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if v, ok := got[name]; !ok || v != want[name] {
			m.t.Errorf("%s is %v (there: %v), want %v; all: %v", name, v, ok, want[name], got)
		}
	}
}

func observer(t *testing.T, cfg telemetry.Config) *telemetry.Observer {
	t.Helper()
	o, err := telemetry.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func message(topic, key string, headers map[string]string) relay.Message {
	return relay.Message{
		Message: outbox.Message{ID: uuid.New(), Topic: topic, Key: key, Type: "order.placed", Payload: []byte("hunter2"), Headers: headers},
		Lane:    3, Epoch: 7, Attempt: 1, Seq: 42,
	}
}

func TestAttempts(t *testing.T) {
	m := newMetrics(t)
	o := observer(t, telemetry.Config{MeterProvider: m.provider, System: "kafka", Topics: []string{"orders"}})
	orders, secret := message("orders", "k", nil), message("customer-ann", "k", nil)
	orders.Age = 2 * time.Second
	o.Observe(relay.Attempted{
		Messages: []relay.Message{orders, secret, secret},
		Errors:   []error{nil, relay.Permanent(errors.New("no")), relay.Unavailable(errors.New("away"))},
		Waited:   time.Second, Took: 500 * time.Millisecond,
	})
	const common = "messaging.operation.name=send,messaging.system=kafka}"
	m.want(map[string]float64{
		"messaging.client.sent.messages{messaging.destination.name=orders," + common:                        1,
		"messaging.client.sent.messages{error.type=permanent,messaging.destination.name=_OTHER," + common:   1,
		"messaging.client.sent.messages{error.type=unavailable,messaging.destination.name=_OTHER," + common: 1,
		"messaging.client.operation.duration{error.type=permanent," + common + " sum":                       0.5,
		"outbox.publish.latency{messaging.destination.name=orders," + common + " count":                     1,
		"outbox.publish.latency{messaging.destination.name=orders," + common + " sum":                       3.5,
	})
	all, err := m.read()
	if err != nil {
		t.Fatal(err)
	}
	for name := range all {
		if strings.Contains(name, "customer-ann") {
			t.Errorf("a topic nobody named is an attribute: %s", name)
		}
	}
}

// Without Topics there is no attribute for the topic, however many there are.
func TestTopicsAreNotCounted(t *testing.T) {
	m := newMetrics(t)
	o := observer(t, telemetry.Config{MeterProvider: m.provider})
	for i := range 1000 {
		o.Observe(relay.Attempted{Messages: []relay.Message{message(fmt.Sprint("topic-", i), "", nil)}, Errors: []error{nil}})
		o.Observe(relay.BreakerOpened{Topic: fmt.Sprint("topic-", i)})
		o.Observe(relay.BreakerOpened{Destination: fmt.Sprint("destination-", i)})
	}
	m.want(map[string]float64{
		"messaging.client.sent.messages{messaging.operation.name=send,messaging.system=outbox}": 1000,
		"outbox.relay.breakers.open{topic=_OTHER}":                                              1000,
		"outbox.relay.breakers.open{destination=destination-0}":                                 1,
		"outbox.relay.breakers.open{destination=_OTHER}":                                        1000 - 64,
	})
	all, err := m.read()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) > 100 {
		t.Errorf("%d series", len(all))
	}
}

func TestEventsAreCounted(t *testing.T) {
	m := newMetrics(t)
	o := observer(t, telemetry.Config{MeterProvider: m.provider})
	zero := map[string]float64{
		"outbox.relay.polls{}": 0, "outbox.relay.leases.lost{}": 0, "outbox.relay.lanes{}": 0, "outbox.relay.breakers.open{}": 0,
		"outbox.relay.messages.unsettled{}": 0, "outbox.relay.messages.unarchived{}": 0, "outbox.relay.messages.purged{}": 0,
		"outbox.relay.messages{outcome=published}": 0, "outbox.relay.messages{outcome=held}": 0,
	}
	m.want(zero)
	for _, e := range []relay.Event{
		relay.Polled{},
		relay.Polled{},
		relay.Claimed{Lane: 1},
		relay.Claimed{Lane: 2},
		relay.Claimed{Lane: 3},
		relay.Claimed{Lane: 4},
		relay.Released{Lane: 1},
		relay.LeaseLost{Lane: 2, Accepted: 5},
		relay.Failed{Message: message("t", "k", nil), Err: errors.New("no")},
		relay.Died{Message: message("t", "k", nil), Err: relay.Permanent(errors.New("no"))},
		relay.Settled{Published: 3, Held: 2, Failed: 1, Died: 1, Took: 250 * time.Millisecond},
		relay.SettleRetried{Err: errors.New("no")},
		relay.Erred{Op: "poll", Err: errors.New("no")},
		relay.ArchiveFailed{Messages: 4},
		relay.BreakerOpened{Destination: "a"},
		relay.BreakerOpened{Destination: "a"},
		relay.BreakerOpened{Destination: "b"},
		relay.BreakerClosed{Destination: "b"},
		relay.BreakerClosed{Destination: "c"},
		relay.Purged{Messages: 9},
		relay.Surfaced{Messages: 1},
		relay.Started{},
		relay.Stopping{},
	} {
		o.Observe(e)
	}
	m.want(map[string]float64{
		"outbox.relay.polls{}": 2, "outbox.relay.leases.lost{}": 1, "outbox.relay.lanes{}": 2,
		"outbox.relay.messages.unsettled{}": 5, "outbox.relay.messages.unarchived{}": 4, "outbox.relay.messages.purged{}": 9,
		"outbox.relay.messages{outcome=published}":                 3,
		"outbox.relay.messages{outcome=held}":                      2,
		"outbox.relay.messages{error.type=refused,outcome=retry}":  1,
		"outbox.relay.messages{error.type=permanent,outcome=dead}": 1,
		"outbox.relay.settle.duration{} sum":                       0.25,
		"outbox.relay.database.errors{operation=settle}":           1,
		"outbox.relay.database.errors{operation=poll}":             1,
		"outbox.relay.breakers.open{destination=a}":                1,
		"outbox.relay.breakers.open{destination=b}":                0,
	})
}

// A relay that delivers leaves nothing open in the metrics.
func TestRelay(t *testing.T) {
	m := newMetrics(t)
	ob := outboxtest.New(t, outbox.Config{})
	enqueue(t, ob, 20)
	var broker outboxtest.Publisher
	broker.FailNext(1, relay.Permanent(errors.New("no")))
	r, err := relay.New(ob, &broker, relay.Config{UntilEmpty: true, OnDead: relay.PassKey, Observer: observer(t, telemetry.Config{MeterProvider: m.provider})})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	const common = "messaging.operation.name=send,messaging.system=outbox}"
	m.want(map[string]float64{
		"outbox.relay.messages{outcome=published}":                      19,
		"outbox.relay.messages{error.type=permanent,outcome=dead}":      1,
		"messaging.client.sent.messages{" + common:                      19,
		"messaging.client.sent.messages{error.type=permanent," + common: 1,
		"outbox.publish.latency{" + common + " count":                   19,
		"outbox.relay.lanes{}":                                          0,
	})
}

func enqueue(t *testing.T, ob *outbox.Outbox, n int) {
	t.Helper()
	err := ob.InTx(t.Context(), nil, func(ctx context.Context, tx *sql.Tx) error {
		for i := range n {
			if _, err := ob.Enqueue(ctx, tx, outbox.Message{Topic: "orders", Key: fmt.Sprint(i % 5), Type: "order.placed"}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestTables(t *testing.T) {
	m := newMetrics(t)
	ob := outboxtest.New(t, outbox.Config{Lanes: 8})
	enqueue(t, ob, 3)
	stop, err := telemetry.WatchTables(ob, telemetry.Config{MeterProvider: m.provider, StatsEvery: time.Nanosecond, StatsLimit: 4})
	if err != nil {
		t.Fatal(err)
	}
	m.want(map[string]float64{
		"outbox.messages{state=ready}": 3, "outbox.messages{state=scheduled}": 0, "outbox.messages{state=retry}": 0,
		"outbox.messages{state=held}": 0, "outbox.messages{state=dead}": 0, "outbox.blocked.keys{}": 0,
		"outbox.lanes{state=held}": 0, "outbox.lanes{state=expired}": 0, "outbox.lanes{state=free}": 8,
	})
	enqueue(t, ob, 3)
	for { // the first counting's twentieth of the time
		all, err := m.read()
		if err != nil {
			t.Fatal(err)
		}
		if all["outbox.oldest.age{}"] <= 0 {
			t.Fatalf("the oldest age is %v", all["outbox.oldest.age{}"])
		}
		if all["outbox.messages{state=ready}"] == 4 {
			break // not 6: the limit
		}
		time.Sleep(time.Millisecond)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if all, err := m.read(); err != nil || len(all) != 0 {
		t.Errorf("after stop: %v, %v", all, err)
	}
}

// However often metrics are read, the tables are counted once in StatsEvery; and when
// that fails the metrics are absent.
func TestTablesAreCountedSeldom(t *testing.T) {
	m := newMetrics(t)
	ob := outboxtest.New(t, outbox.Config{})
	if _, err := telemetry.WatchTables(ob, telemetry.Config{MeterProvider: m.provider, StatsEvery: time.Hour}); err != nil {
		t.Fatal(err)
	}
	m.want(map[string]float64{"outbox.messages{state=ready}": 0})
	enqueue(t, ob, 1)
	m.want(map[string]float64{"outbox.messages{state=ready}": 0})

	broken := newMetrics(t)
	missing, err := outbox.New(ob.DB(), sqlite.New(), outbox.Config{Prefix: "missing"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := telemetry.WatchTables(missing, telemetry.Config{MeterProvider: broken.provider}); err != nil {
		t.Fatal(err)
	}
	if all, err := broken.read(); err == nil || len(all) != 0 {
		t.Errorf("without tables: %v, %v", all, err)
	}
}

func TestInbox(t *testing.T) {
	m := newMetrics(t)
	ob := outboxtest.New(t, outbox.Config{})
	plain, err := inbox.New(sqlite.New(), inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	in, err := telemetry.NewInbox(plain, telemetry.Config{MeterProvider: m.provider})
	if err != nil {
		t.Fatal(err)
	}
	ctx, ok := t.Context(), func(context.Context, *sql.Tx) error { return nil }
	for _, id := range []string{"m1", "m2", "m1"} {
		if _, err := in.Handle(ctx, ob.DB(), "billing", id, ok); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := in.Handle(ctx, ob.DB(), "billing", "m3", func(context.Context, *sql.Tx) error { return errors.New("no") }); err == nil {
		t.Fatal("the handler's error is gone")
	}
	for _, revision := range []int64{1, 1, 3} {
		if _, err := in.HandleNext(ctx, ob.DB(), "stock", "k", revision, ok); err != nil && !errors.Is(err, inbox.ErrGap) {
			t.Fatal(err)
		}
	}
	err = ob.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
		_, err := in.Record(ctx, tx, "mail", "m1")
		_, errNext := in.RecordNext(ctx, tx, "mail", "k", 1)
		return errors.Join(err, errNext)
	})
	if err != nil {
		t.Fatal(err)
	}
	m.want(map[string]float64{
		"outbox.inbox.messages{messaging.consumer.group.name=billing,outcome=handled}":   2,
		"outbox.inbox.messages{messaging.consumer.group.name=billing,outcome=duplicate}": 1,
		"outbox.inbox.messages{messaging.consumer.group.name=billing,outcome=failed}":    1,
		"outbox.inbox.messages{messaging.consumer.group.name=stock,outcome=handled}":     1,
		"outbox.inbox.messages{messaging.consumer.group.name=stock,outcome=duplicate}":   1,
		"outbox.inbox.messages{messaging.consumer.group.name=stock,outcome=gap}":         1,
		"outbox.inbox.messages{messaging.consumer.group.name=mail,outcome=handled}":      2,
	})
}

func TestInvalidConfig(t *testing.T) {
	ob := outboxtest.New(t, outbox.Config{})
	for name, err := range map[string]error{
		"stats every":   second(telemetry.New(telemetry.Config{StatsEvery: -1})),
		"stats timeout": second(telemetry.WatchTables(ob, telemetry.Config{StatsTimeout: -1})),
		"stats limit":   second(telemetry.WatchTables(ob, telemetry.Config{StatsLimit: -1})),
		"outbox":        second(telemetry.WatchTables(nil, telemetry.Config{})),
		"inbox":         second(telemetry.NewInbox(nil, telemetry.Config{})),
	} {
		if !errors.Is(err, outbox.ErrInvalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// What a message costs with metrics alone, in batches of 100.
func BenchmarkAttempted(b *testing.B) {
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	o, err := telemetry.New(telemetry.Config{MeterProvider: provider})
	if err != nil {
		b.Fatal(err)
	}
	e := relay.Attempted{Errors: make([]error, 100)}
	for range e.Errors {
		e.Messages = append(e.Messages, message("orders", "k", nil))
	}
	b.ReportAllocs()
	for b.Loop() {
		o.Observe(e)
	}
}
