package telemetry_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/publish/discard"
	"github.com/outbox-suite/outbox/relay"
	"github.com/outbox-suite/outbox/sqlite"
	"github.com/outbox-suite/outbox/telemetry"
)

// A publish is in the trace of the request that enqueued the message.
func Example() {
	ctx := context.Background()
	spans := tracetest.NewInMemoryExporter()
	traces := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))

	db, err := sqlite.Open(":memory:")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	ob, err := outbox.New(db, sqlite.New(), outbox.Config{
		Inject: func(ctx context.Context, headers map[string]string) {
			propagation.TraceContext{}.Inject(ctx, propagation.MapCarrier(headers))
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := ob.Migrate(ctx); err != nil {
		log.Fatal(err)
	}

	request, span := traces.Tracer("shop").Start(ctx, "POST /orders")
	err = ob.InTx(request, nil, func(ctx context.Context, tx *sql.Tx) error {
		_, err := ob.Enqueue(ctx, tx, outbox.Message{Topic: "orders", Key: "42", Type: "order.placed"})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	span.End()

	observer, err := telemetry.New(telemetry.Config{TracerProvider: traces})
	if err != nil {
		log.Fatal(err)
	}
	r, err := relay.New(ob, discard.New(), relay.Config{UntilEmpty: true, Observer: observer})
	if err != nil {
		log.Fatal(err)
	}
	if err := r.Run(ctx); err != nil {
		log.Fatal(err)
	}
	for _, s := range spans.GetSpans() {
		fmt.Println(s.Name, "in the request's trace:", s.SpanContext.TraceID() == span.SpanContext().TraceID())
	}
	// Output:
	// POST /orders in the request's trace: true
	// send orders in the request's trace: true
}
