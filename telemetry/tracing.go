package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/relay"
)

// tracing makes spans of finished calls of a publisher.
type tracing struct {
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
	common     []attribute.KeyValue
	keys       bool
}

func newTracing(cfg Config) tracing {
	return tracing{
		tracer:     cfg.TracerProvider.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL)),
		propagator: cfg.Propagator,
		common: []attribute.KeyValue{
			semconv.MessagingSystemKey.String(cfg.System), semconv.MessagingOperationTypeSend, semconv.MessagingOperationName("send"),
		},
		keys: cfg.Keys,
	}
}

// attempted makes a span for a call and one for each of its messages that has a trace,
// linked both ways. A call with one message is that message's span alone.
func (t tracing) attempted(ctx context.Context, e relay.Attempted) {
	end := time.Now()
	began := end.Add(-e.Took)
	if len(e.Messages) == 1 {
		t.message(t.parent(ctx, &e.Messages[0]), &e.Messages[0], e.Errors[0], began, end)
		return
	}
	_, call := t.tracer.Start(ctx, "send", trace.WithTimestamp(began), trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(t.common...), trace.WithAttributes(
			semconv.MessagingBatchMessageCount(len(e.Messages)), attribute.Int("outbox.lane", e.Lane)))
	defer call.End(trace.WithTimestamp(end))
	failed := 0
	for i := range e.Messages {
		if e.Errors[i] != nil {
			failed++
		}
		parent := t.parent(ctx, &e.Messages[i])
		if !trace.SpanContextFromContext(parent).IsValid() {
			continue
		}
		span := t.message(parent, &e.Messages[i], e.Errors[i], began, end, trace.Link{SpanContext: call.SpanContext()})
		if span.IsSampled() && call.IsRecording() {
			call.AddLink(trace.Link{SpanContext: span})
		}
	}
	if failed > 0 {
		call.SetAttributes(attribute.Int("outbox.failed_count", failed))
		if failed == len(e.Messages) {
			call.SetStatus(codes.Error, "no message was accepted")
		}
	}
}

// parent is the context in which the message was enqueued.
func (t tracing) parent(ctx context.Context, m *relay.Message) context.Context {
	if len(m.Headers) == 0 {
		return ctx
	}
	return t.propagator.Extract(ctx, propagation.MapCarrier(m.Headers))
}

// message makes the span of an attempt.
func (t tracing) message(ctx context.Context, m *relay.Message, err error, began, end time.Time, links ...trace.Link) trace.SpanContext {
	_, span := t.tracer.Start(ctx, "send "+m.Topic, trace.WithTimestamp(began), trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithLinks(links...), trace.WithAttributes(t.common...))
	defer span.End(trace.WithTimestamp(end))
	if !span.IsRecording() {
		return span.SpanContext()
	}
	span.SetAttributes(
		semconv.MessagingDestinationName(m.Topic), semconv.MessagingMessageID(m.ID.String()),
		attribute.String("outbox.type", m.Type), attribute.Int("outbox.lane", m.Lane), attribute.Int64("outbox.epoch", m.Epoch),
		attribute.Int64("outbox.seq", m.Seq), attribute.Int("outbox.attempt", m.Attempt),
	)
	if m.HasKey() {
		span.SetAttributes(attribute.Int64("outbox.key_hash", dialect.KeyHash(m.Key)))
		if t.keys {
			span.SetAttributes(attribute.String("outbox.key", m.Key))
		}
	}
	if m.Replay > 0 {
		span.SetAttributes(attribute.Int("outbox.replay", m.Replay))
	}
	if err != nil {
		span.SetAttributes(semconv.ErrorTypeKey.String(relay.ErrorKind(err)))
		span.SetStatus(codes.Error, err.Error())
	}
	return span.SpanContext()
}
