package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/relay"
	"github.com/outbox-suite/outbox/telemetry"
)

// traces records spans and makes the producers' ones.
type traces struct {
	recorder *tracetest.SpanRecorder
	provider *sdktrace.TracerProvider
}

func newTraces() *traces {
	recorder := tracetest.NewSpanRecorder()
	return &traces{recorder, sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))}
}

// enqueue is a producer's span, and the headers that Config.Inject gives its message.
func (t *traces) enqueue() (trace.SpanContext, map[string]string) {
	ctx, span := t.provider.Tracer("producer").Start(context.Background(), "place order")
	defer span.End()
	headers := make(map[string]string)
	propagation.TraceContext{}.Inject(ctx, propagation.MapCarrier(headers))
	return span.SpanContext(), headers
}

// sent are the spans of the relay, by the id of their message; "" is the call's.
func (t *traces) sent() map[string]sdktrace.ReadOnlySpan {
	spans := make(map[string]sdktrace.ReadOnlySpan)
	for _, s := range t.recorder.Ended() {
		if strings.HasPrefix(s.Name(), "send") {
			spans[attributes(s)["messaging.message.id"]] = s
		}
	}
	return spans
}

func attributes(s sdktrace.ReadOnlySpan) map[string]string {
	all := make(map[string]string)
	for _, kv := range s.Attributes() {
		all[string(kv.Key)] = kv.Value.String()
	}
	return all
}

// Every message's span is in its producer's trace, and linked with the call's.
func TestBatchJoinsTheProducersTraces(t *testing.T) {
	traces := newTraces()
	o := observer(t, telemetry.Config{TracerProvider: traces.provider, System: "nats"})
	var (
		producers []trace.SpanContext
		e         = relay.Attempted{Lane: 3, Took: time.Second}
	)
	for i := range 3 {
		producer, headers := traces.enqueue()
		producers = append(producers, producer)
		e.Messages, e.Errors = append(e.Messages, message("orders", fmt.Sprint("ann", i), headers)), append(e.Errors, nil)
	}
	e.Messages, e.Errors = append(e.Messages, message("orders", "", nil)), append(e.Errors, nil) // nobody's trace
	e.Errors[1] = relay.Permanent(errors.New("too large"))
	o.Observe(e)

	spans := traces.sent()
	call := spans[""]
	if call == nil || len(spans) != 4 {
		t.Fatalf("spans: %v", spans)
	}
	if got := call.EndTime().Sub(call.StartTime()); got != time.Second {
		t.Errorf("the call's span took %v", got)
	}
	if got := attributes(call); got["messaging.batch.message_count"] != "4" || got["messaging.system"] != "nats" || got["outbox.failed_count"] != "1" {
		t.Errorf("the call's attributes: %v", got)
	}
	if call.SpanKind() != trace.SpanKindClient || call.Status().Code != codes.Unset || len(call.Links()) != 3 {
		t.Errorf("the call's span is %v, %v, with %d links", call.SpanKind(), call.Status(), len(call.Links()))
	}
	for i, producer := range producers {
		s := spans[e.Messages[i].ID.String()]
		switch {
		case s == nil:
			t.Fatalf("message %d has no span", i)
		case s.SpanContext().TraceID() != producer.TraceID() || s.Parent().SpanID() != producer.SpanID():
			t.Errorf("message %d's span is not its producer's child", i)
		case s.SpanKind() != trace.SpanKindProducer || s.Name() != "send orders":
			t.Errorf("message %d's span is %q, %v", i, s.Name(), s.SpanKind())
		case len(s.Links()) != 1 || !s.Links()[0].SpanContext.Equal(call.SpanContext()):
			t.Errorf("message %d's span is not linked with the call's", i)
		case !call.Links()[i].SpanContext.Equal(s.SpanContext()):
			t.Errorf("the call's span is not linked with message %d's", i)
		case (s.Status().Code == codes.Error) != (i == 1):
			t.Errorf("message %d's span is %v", i, s.Status())
		}
	}
	got := attributes(spans[e.Messages[1].ID.String()])
	for name, want := range map[string]string{
		"messaging.destination.name": "orders", "messaging.operation.type": "send", "error.type": "permanent",
		"outbox.lane": "3", "outbox.epoch": "7", "outbox.attempt": "1", "outbox.seq": "42", "outbox.type": "order.placed",
		"outbox.key_hash": fmt.Sprint(dialect.KeyHash("ann1")),
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	for _, s := range spans {
		for name, value := range attributes(s) {
			if strings.HasPrefix(value, "ann") || strings.Contains(value, "hunter2") {
				t.Errorf("%s shows %q", name, value)
			}
		}
	}
}

// A message that is alone in its call is one span.
func TestSingleMessage(t *testing.T) {
	traces := newTraces()
	o := observer(t, telemetry.Config{TracerProvider: traces.provider, Keys: true})
	producer, headers := traces.enqueue()
	one := message("orders", "ann", headers)
	o.Observe(relay.Attempted{Messages: []relay.Message{one}, Errors: []error{nil}})
	spans := traces.sent()
	s := spans[one.ID.String()]
	if len(spans) != 1 || s == nil || s.Parent().SpanID() != producer.SpanID() {
		t.Fatalf("spans: %v", spans)
	}
	if got := attributes(s)["outbox.key"]; got != "ann" {
		t.Errorf("with Keys the key is %q", got)
	}
}

// What a producer did not sample is not recorded, and a header that is none does no
// harm.
func TestUnsampled(t *testing.T) {
	traces := newTraces()
	o := observer(t, telemetry.Config{TracerProvider: traces.provider})
	unsampled := message("orders", "", map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"})
	malformed := message("orders", "", map[string]string{"traceparent": "ann"})
	o.Observe(relay.Attempted{Messages: []relay.Message{unsampled, malformed}, Errors: []error{nil, nil}})
	spans := traces.sent()
	if len(spans) != 1 || spans[""] == nil || len(spans[""].Links()) != 0 {
		t.Errorf("spans: %v", spans)
	}
}
