package telemetry

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"

	"github.com/outbox-suite/outbox/relay"
)

// Observer is a [relay.Observer] that makes metrics and spans of one relay's events.
// It is safe for concurrent use.
type Observer struct {
	cfg     Config
	tracing tracing

	sent, outcomes, polls, lost, unsettled, unarchived, purged, errors metric.Int64Counter
	lanes, open                                                        metric.Int64UpDownCounter
	calls, latency, settling                                           metric.Float64Histogram

	attributes sync.Map // of a measurement's, by class

	mu     sync.Mutex
	broken map[breaker]bool // the breakers that are open
	named  map[string]bool  // the destinations that have attributes of their own
}

// class is what tells the measurements of messages apart.
type class struct{ topic, errorType string }

// breaker names one, as its attributes do.
type breaker struct{ destination, topic string }

// New returns an observer for one relay. It checks cfg and makes the instruments.
func New(cfg Config) (*Observer, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("new telemetry: %w", err)
	}
	m := cfg.meter()
	o := &Observer{
		cfg: cfg, tracing: newTracing(cfg),
		broken: make(map[breaker]bool), named: make(map[string]bool),

		sent:       m.counter("messaging.client.sent.messages", "{message}", "Attempts to publish a message."),
		outcomes:   m.counter("outbox.relay.messages", "{message}", "Outcomes of messages recorded in the database."),
		polls:      m.counter("outbox.relay.polls", "{poll}", "Polls for lanes with work that the database answered."),
		lost:       m.counter("outbox.relay.leases.lost", "{lease}", "Lanes that another relay took, or may have taken."),
		unsettled:  m.counter("outbox.relay.messages.unsettled", "{message}", "Messages accepted by the broker and not recorded because the lease was lost; they are published again."),
		unarchived: m.counter("outbox.relay.messages.unarchived", "{message}", "Messages that were published and could not be kept in done."),
		purged:     m.counter("outbox.relay.messages.purged", "{message}", "Messages removed from done after the retention."),
		errors:     m.counter("outbox.relay.database.errors", "{error}", "Operations on the database that failed."),
		lanes:      m.upDown("outbox.relay.lanes", "{lane}", "Lanes that this relay works on."),
		open:       m.upDown("outbox.relay.breakers.open", "{breaker}", "Destinations and topics that are left alone as unavailable, and topics as too slow."),
		calls:      m.histogram("messaging.client.operation.duration", "Calls of the publisher.", 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
		latency:    m.histogram("outbox.publish.latency", "From the enqueue of a message, or when it became due, to the broker's acknowledgement.", 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600),
		settling:   m.histogram("outbox.relay.settle.duration", "Recordings of outcomes in the database, with their repetitions.", 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
	}
	if m.err != nil {
		return nil, fmt.Errorf("new telemetry: %w", m.err)
	}
	// What has not happened yet is 0, not unknown: the first one must be seen as a change.
	ctx := context.Background()
	for _, c := range []metric.Int64Counter{o.polls, o.lost, o.unsettled, o.unarchived, o.purged} {
		c.Add(ctx, 0)
	}
	for _, outcome := range []metric.MeasurementOption{published, held} {
		o.outcomes.Add(ctx, 0, outcome)
	}
	o.lanes.Add(ctx, 0)
	o.open.Add(ctx, 0)
	return o, nil
}

const (
	outcomeKey   = attribute.Key("outcome")
	operationKey = attribute.Key("operation")
)

var (
	published = with(outcomeKey.String("published"))
	held      = with(outcomeKey.String("held"))
)

// Observe counts the event, and makes spans of a call of the publisher.
func (o *Observer) Observe(e relay.Event) {
	ctx := context.Background()
	switch e := e.(type) {
	case relay.Polled:
		o.polls.Add(ctx, 1)
	case relay.Claimed:
		o.lanes.Add(ctx, 1)
	case relay.Released:
		o.lanes.Add(ctx, -1)
	case relay.LeaseLost:
		o.lanes.Add(ctx, -1)
		o.lost.Add(ctx, 1)
		o.unsettled.Add(ctx, int64(e.Accepted))
	case relay.Attempted:
		o.attempted(ctx, e)
		o.tracing.attempted(ctx, e)
	case relay.Failed:
		o.outcome(ctx, "retry", e.Err)
	case relay.Died:
		o.outcome(ctx, "dead", e.Err)
	case relay.Settled:
		o.outcomes.Add(ctx, int64(e.Published), published)
		o.outcomes.Add(ctx, int64(e.Held), held)
		o.settling.Record(ctx, e.Took.Seconds())
	case relay.SettleRetried:
		o.failed(ctx, "settle")
	case relay.ArchiveFailed:
		o.unarchived.Add(ctx, int64(e.Messages))
	case relay.BreakerOpened:
		o.breaker(ctx, breaker{e.Destination, e.Topic}, true)
	case relay.BreakerClosed:
		o.breaker(ctx, breaker{e.Destination, e.Topic}, false)
	case relay.Purged:
		o.purged.Add(ctx, int64(e.Messages))
	case relay.Erred:
		o.failed(ctx, e.Op)
	}
}

// attempted counts a call's messages by class and times those accepted.
func (o *Observer) attempted(ctx context.Context, e relay.Attempted) {
	counts := make(map[class]int64, 1)
	first := class{topic: o.topic(e.Messages[0].Topic)}
	var accepted class
	var of []metric.RecordOption // accepted's; nearly always all are of one class
	for i := range e.Messages {
		c := class{o.topic(e.Messages[i].Topic), relay.ErrorKind(e.Errors[i])}
		counts[c]++
		if c.errorType == "" {
			if of == nil || c != accepted {
				accepted, of = c, []metric.RecordOption{o.of(c)}
			}
			o.latency.Record(ctx, (e.Messages[i].Age + e.Waited + e.Took).Seconds(), of...)
		}
		if first.errorType == "" {
			first.errorType = c.errorType
		}
		if first.topic != c.topic {
			first.topic = ""
		}
	}
	for c, n := range counts {
		o.sent.Add(ctx, n, o.of(c))
	}
	o.calls.Record(ctx, e.Took.Seconds(), o.of(first))
}

// topic is a topic's attribute: none without Config.Topics.
func (o *Observer) topic(topic string) string {
	switch {
	case len(o.cfg.Topics) == 0:
		return ""
	case slices.Contains(o.cfg.Topics, topic):
		return topic
	default:
		return other
	}
}

// of are the attributes of a class. There are few classes, so they are made once.
func (o *Observer) of(c class) metric.MeasurementOption {
	if known, ok := o.attributes.Load(c); ok {
		return known.(metric.MeasurementOption) //nolint:forcetypeassert // nothing else is stored
	}
	attributes := []attribute.KeyValue{semconv.MessagingSystemKey.String(o.cfg.System), semconv.MessagingOperationName("send")}
	if c.topic != "" {
		attributes = append(attributes, semconv.MessagingDestinationName(c.topic))
	}
	if c.errorType != "" {
		attributes = append(attributes, semconv.ErrorTypeKey.String(c.errorType))
	}
	made := with(attributes...)
	o.attributes.Store(c, made)
	return made
}

func (o *Observer) outcome(ctx context.Context, outcome string, err error) {
	o.outcomes.Add(ctx, 1, with(outcomeKey.String(outcome), semconv.ErrorTypeKey.String(relay.ErrorKind(err))))
}

func (o *Observer) failed(ctx context.Context, op string) {
	o.errors.Add(ctx, 1, with(operationKey.String(op)))
}

// maxDestinations is how many destinations have attributes of their own.
const maxDestinations = 64

// breaker notes that one opened, perhaps again, or closed.
func (o *Observer) breaker(ctx context.Context, b breaker, open bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.broken[b] == open {
		return // a probe failed
	}
	n := int64(1)
	if open {
		o.broken[b] = true
	} else {
		delete(o.broken, b)
		n = -1
	}
	var attributes []attribute.KeyValue
	if b.destination != "" {
		attributes = append(attributes, attribute.String("destination", o.destination(b.destination)))
	}
	if b.topic != "" {
		attributes = append(attributes, attribute.String("topic", cmp.Or(o.topic(b.topic), other)))
	}
	o.open.Add(ctx, n, with(attributes...))
}

// destination is a destination's attribute: the first few have their names.
func (o *Observer) destination(name string) string {
	if !o.named[name] {
		if len(o.named) == maxDestinations {
			return other
		}
		o.named[name] = true
	}
	return name
}
