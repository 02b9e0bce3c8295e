package telemetry

import (
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/outbox-suite/outbox"
)

// scope names the instrumentation.
const scope = "github.com/outbox-suite/outbox/telemetry"

// other stands for every topic and destination that is not named.
const other = "_OTHER"

// Config configures what the package makes. The zero value works.
type Config struct {
	// TracerProvider makes the spans. Default: the global one.
	TracerProvider trace.TracerProvider
	// MeterProvider makes the instruments. Default: the global one.
	MeterProvider metric.MeterProvider
	// Propagator finds a message's trace context in its headers. Default: the one of
	// W3C, traceparent.
	Propagator propagation.TextMapPropagator
	// System is the attribute messaging.system, for example kafka or rabbitmq.
	// Default: outbox.
	System string
	// Topics are those that metrics tell apart; all others are together. Each
	// multiplies the series of two counters and two histograms. Default: none, and no
	// attribute for the topic.
	Topics []string
	// Keys puts keys into traces; they may be personal data. Default: their hashes.
	Keys bool
	// StatsEvery is the least time between two countings of the tables, however
	// often metrics are read. They are further apart when they take long: at most a
	// twentieth of the time goes into counting, unless it fails. Default: 15s.
	StatsEvery time.Duration
	// StatsTimeout bounds one counting. Default: 5s.
	StatsTimeout time.Duration
	// StatsLimit is where counting stops, for each state. Default: 100000, which keeps
	// it cheap with any backlog.
	StatsLimit int64
}

const (
	defaultSystem       = "outbox"
	defaultStatsEvery   = 15 * time.Second
	defaultStatsTimeout = 5 * time.Second
	defaultStatsLimit   = 100_000
)

func (c Config) withDefaults() (Config, error) {
	var errs []error
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	if c.Propagator == nil {
		c.Propagator = propagation.TraceContext{}
	}
	if c.System == "" {
		c.System = defaultSystem
	}
	duration := func(name string, v *time.Duration, def time.Duration) {
		if *v == 0 {
			*v = def
		}
		if *v < 0 {
			errs = append(errs, fmt.Errorf("%s is %v: give a duration above 0", name, *v))
		}
	}
	duration("stats every", &c.StatsEvery, defaultStatsEvery)
	duration("stats timeout", &c.StatsTimeout, defaultStatsTimeout)
	if c.StatsLimit == 0 {
		c.StatsLimit = defaultStatsLimit
	}
	if c.StatsLimit < 0 {
		errs = append(errs, fmt.Errorf("stats limit is %d: give a number above 0", c.StatsLimit))
	}
	if err := errors.Join(errs...); err != nil {
		return c, fmt.Errorf("%w: %w", outbox.ErrInvalid, err)
	}
	return c, nil
}

func (c Config) meter() meter {
	return meter{Meter: c.MeterProvider.Meter(scope, metric.WithSchemaURL(semconv.SchemaURL))}
}

// meter makes instruments and keeps the errors.
type meter struct {
	metric.Meter
	err error
}

func (m *meter) counter(name, unit, description string) metric.Int64Counter {
	c, err := m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
	m.err = errors.Join(m.err, err)
	return c
}

func (m *meter) upDown(name, unit, description string) metric.Int64UpDownCounter {
	c, err := m.Int64UpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	m.err = errors.Join(m.err, err)
	return c
}

func (m *meter) histogram(name, description string, bounds ...float64) metric.Float64Histogram {
	h, err := m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description), metric.WithExplicitBucketBoundaries(bounds...))
	m.err = errors.Join(m.err, err)
	return h
}

func (m *meter) gauge(name, unit, description string) metric.Int64ObservableGauge {
	g, err := m.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
	m.err = errors.Join(m.err, err)
	return g
}

// with is a set of attributes, made once and used for many measurements.
func with(attributes ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attributes...))
}
