package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
)

// traceGrace is how long the end of a relay waits for its last spans to be taken.
const traceGrace = 5 * time.Second

// tracesTo sends spans to where OpenTelemetry's own environment says, which the exporter
// and the SDK read for themselves; nil where it says nothing. flush sends what is left.
func tracesTo(ctx context.Context, p *process, log *slog.Logger) (provider *sdktrace.TracerProvider, flush func(), err error) {
	const endpoint, ofTraces = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	if p.getenv(endpoint) == "" && p.getenv(ofTraces) == "" || strings.EqualFold(p.getenv("OTEL_SDK_DISABLED"), "true") {
		return nil, func() {}, nil
	}
	switch exporter := p.getenv("OTEL_TRACES_EXPORTER"); exporter {
	case "", "otlp":
	case "none":
		return nil, func() {}, nil
	default:
		return nil, nil, usagef("OTEL_TRACES_EXPORTER is %s: use otlp or none", shown(exporter))
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"} {
		if protocol := p.getenv(name); protocol != "" && protocol != "http/protobuf" {
			return nil, nil, usagef("%s is %s: use http/protobuf, usually on port 4318", name, shown(protocol))
		}
	}
	tellErrors(log) // before anything reads the environment
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("traces: %w", err)
	}
	version, _ := build()
	r, err := resource.New(ctx, resource.WithAttributes(semconv.ServiceName("outbox"), semconv.ServiceVersion(version)), resource.WithFromEnv())
	if err != nil {
		return nil, nil, usagef("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	provider = sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(r))
	return provider, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), traceGrace)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			log.Warn("the last traces are lost", "error", err)
		}
	}, nil
}

// tellErrors has OpenTelemetry's errors in our log, and its own log, which quotes headers
// that it cannot read, nowhere.
func tellErrors(log *slog.Logger) {
	otel.SetLogger(logr.Discard())
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Warn("telemetry is incomplete", "error", err)
	}))
}
