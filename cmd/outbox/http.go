package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/relay"
	"github.com/outbox-suite/outbox/telemetry"
)

// listen opens the address that `outbox relay --http` serves.
func listen(ctx context.Context, address string) (net.Listener, error) {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, usagef("http %s is not an address: write host:port, for example 127.0.0.1:9464", shown(address))
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("http: %w: choose another address, or stop what listens there", err)
	}
	return l, nil
}

// site tells of a running relay over HTTP.
type site struct {
	// mux serves the site's own paths. Others may have "/".
	mux      *http.ServeMux
	observer relay.Observer
	provider *sdkmetric.MeterProvider
	http     *http.Server
	// interrupt ends the contexts of requests.
	interrupt context.CancelFunc
	unwatch   func() error
}

// newSite makes the site of a relay of o. The relay must be given its observer.
func newSite(o *outbox.Outbox, log *slog.Logger, cfg telemetry.Config, quiet, between time.Duration, workers int) (*site, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewDBStatsCollector(o.DB(), "outbox"))
	tellErrors(log)
	provider, err := meterProvider(registry)
	if err != nil {
		return nil, err
	}
	cfg.MeterProvider = provider
	metrics, err := telemetry.New(cfg)
	if err != nil {
		return nil, err
	}
	unwatch, err := telemetry.WatchTables(o, cfg)
	if err != nil {
		return nil, err
	}
	p := newPulse(quiet, between, workers, func(err error) bool { return o.Dialect().Classify(err) == dialect.Conflict })
	c := &checks{pulse: p, check: o.Check}
	s := &site{
		mux:      http.NewServeMux(),
		observer: relay.Observers(p, metrics),
		provider: provider,
		unwatch:  unwatch,
	}
	s.mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}))
	s.mux.HandleFunc("GET /healthz", c.alive)
	s.mux.HandleFunc("GET /readyz", c.ready)
	requests, interrupt := context.WithCancel(context.Background())
	s.interrupt = interrupt
	s.http = newServer(requests, s.mux)
	s.http.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	return s, nil
}

// newServer is a server whose requests have the context requests. It has no ReadTimeout
// and no WriteTimeout: an action of the page that takes longer would lose its context, or
// end without an answer.
func newServer(requests context.Context, handler http.Handler) *http.Server {
	return &http.Server{
		BaseContext: func(net.Listener) context.Context { return requests },
		Handler:     withBody(handler), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
	}
}

const (
	// mostBody is more than any form that is sent here.
	mostBody = 64 << 10
	// bodyTimeout is how long a body may take.
	bodyTimeout = 5 * time.Second
)

// withBody reads a request's body before next sees it, within bodyTimeout. A server waits
// for what was announced even where nobody wants it, for ever without a ReadTimeout, and
// with one it would end the contexts of actions that take longer.
func withBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(time.Now().Add(bodyTimeout)) // every connection of a server has one
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostBody))
		if err != nil {
			// The deadline stays, and ends the wait for the rest.
			w.Header().Set("Connection", "close")
			http.Error(w, "The request's body is too large, or did not arrive in time.", http.StatusBadRequest)
			return
		}
		_ = control.SetReadDeadline(time.Time{})
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

func meterProvider(registry *prometheus.Registry) (*sdkmetric.MeterProvider, error) {
	e, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutScopeInfo(),
		exporter.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes))
	if err != nil {
		return nil, fmt.Errorf("prometheus exporter: %w", err)
	}
	version, _ := build()
	r := resource.NewSchemaless(semconv.ServiceName("outbox"), semconv.ServiceVersion(version))
	return sdkmetric.NewMeterProvider(sdkmetric.WithReader(e), sdkmetric.WithResource(r)), nil
}

// serve serves until close.
func (s *site) serve(l net.Listener, log *slog.Logger) {
	log.Info("http is served", "address", l.Addr().String())
	go func() {
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("http is not served any more", "error", err)
		}
	}()
}

// close lets requests under way finish, for a moment.
func (s *site) close() {
	ctx, cancel := context.WithTimeout(context.Background(), uiGrace)
	defer cancel()
	defer s.interrupt()
	// An action that takes longer ends between two of its steps, and says so in the audit.
	defer time.AfterFunc(uiGrace/2, s.interrupt).Stop()
	if err := s.http.Shutdown(ctx); err != nil {
		_ = s.http.Close() // the rest is cut off
	}
	_, _ = s.unwatch(), s.provider.Shutdown(ctx) // nothing is pending that could be lost
}

// system is the messaging.system of a publisher's URL.
func system(publish string) string {
	scheme, _, _ := strings.Cut(publish, ":")
	switch scheme = strings.ToLower(scheme); scheme {
	case "http", "https":
		return "webhook"
	case "tls":
		return "nats"
	case "rediss":
		return "redis"
	case "amqp", "amqps":
		return "rabbitmq"
	default:
		return scheme
	}
}

// pulse knows from a relay's events whether it gets on.
type pulse struct {
	quiet   time.Duration // the longest time without an event that is no fault
	between time.Duration // the longest time between two failures of one spell
	workers int
	waits   func(error) bool // for somebody's open transaction

	mu       sync.Mutex
	polled   bool
	stopping bool
	dispatch time.Time         // of the dispatcher's last event
	lanes    map[int]time.Time // of the last event of each lane that is worked on
	failing  map[string]spell  // by step: it has failed and not succeeded since
}

// spell is a time in which something failed again and again.
type spell struct{ first, last time.Time }

const (
	// failsFor is how long a step may fail before the relay is not ready.
	failsFor = 30 * time.Second
	// failsEvery is the longest time between two failures of one spell, but for what the
	// flags make longer: the pause after an error, and the time that the next try may take.
	failsEvery = 2 * time.Minute
)

func newPulse(quiet, between time.Duration, workers int, waits func(error) bool) *pulse {
	return &pulse{quiet: quiet, between: between, workers: workers, waits: waits, dispatch: time.Now(), lanes: make(map[int]time.Time), failing: make(map[string]spell)}
}

// Observe notes who did something.
func (p *pulse) Observe(e relay.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := e.(type) {
	case relay.Polled:
		p.polled, p.dispatch = true, time.Now()
		delete(p.failing, "poll")
	case relay.Erred:
		if e.Op == "poll" || e.Op == "claim" {
			p.dispatch = time.Now()
		}
		switch e.Op {
		case "poll", "claim", "read due", "read ready":
			p.failed(e.Op)
		case "surface":
			// Whoever has a transaction open is waited for, which is no fault. Any other
			// error ends the turn before it reads.
			if !p.waits(e.Err) {
				p.failed(e.Op)
			}
		default: // they have their own signs
		}
	case relay.Claimed:
		delete(p.failing, "claim")
		p.lanes[e.Lane] = time.Now()
	case relay.Surfaced:
		delete(p.failing, "surface")
		p.moved(e.Lane)
	case relay.Attempted:
		p.moved(e.Lane)
	case relay.Settled:
		p.moved(e.Lane)
		for _, step := range []string{"settle", "surface", "read due", "read ready"} {
			delete(p.failing, step)
		}
	case relay.SettleRetried:
		p.moved(e.Lane)
		p.failed("settle")
	case relay.Released:
		delete(p.lanes, e.Lane)
		p.dispatch = time.Now()
	case relay.LeaseLost:
		delete(p.lanes, e.Lane)
	case relay.Stopping:
		p.stopping = true
	}
}

// moved notes that something happened in a lane, unless it is lost: the calls of the
// publisher that a lost lease has ended come back after it, and no release does.
func (p *pulse) moved(lane int) {
	if _, ours := p.lanes[lane]; ours {
		p.lanes[lane] = time.Now()
	}
}

// failed notes that a step did.
func (p *pulse) failed(step string) {
	s, now := p.failing[step], time.Now()
	if now.Sub(s.last) > p.between {
		s.first = now
	}
	s.last = now
	p.failing[step] = s
}

// failure says what has failed for too long; "" for nothing.
func (p *pulse) failure() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, step := range slices.Sorted(maps.Keys(p.failing)) {
		s := p.failing[step]
		if s.last.Sub(s.first) >= failsFor && time.Since(s.last) < p.between {
			return fmt.Sprintf("the relay has failed to %s for %v: see its log", step, time.Since(s.first).Round(time.Second))
		}
	}
	return ""
}

// stuck says what has been quiet for too long; "" for nothing.
func (p *pulse) stuck() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for lane, last := range p.lanes {
		if quiet := time.Since(last); quiet > p.quiet {
			return fmt.Sprintf("nothing has happened in lane %d for %v", lane, quiet.Round(time.Second))
		}
	}
	// With all workers busy the dispatcher waits for one of them.
	if quiet := time.Since(p.dispatch); quiet > p.quiet && len(p.lanes) < p.workers {
		return fmt.Sprintf("the relay has not polled for %v", quiet.Round(time.Second))
	}
	return ""
}

func (p *pulse) state() (polled, stopping bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.polled, p.stopping
}

// checks answer probes.
type checks struct {
	pulse *pulse
	check func(context.Context) error // of the database

	mu   sync.Mutex
	last string
	next time.Time
}

const (
	// checkEvery is the least time between two checks of the database, however many
	// probes there are.
	checkEvery   = time.Second
	checkTimeout = 3 * time.Second
)

// alive answers whether the process gets on; if not, it is to be started again.
func (c *checks) alive(w http.ResponseWriter, _ *http.Request) { answer(w, c.pulse.stuck()) }

// ready answers whether the relay delivers: it runs, the database is reachable and has
// what it needs, and the relay's statements get through.
func (c *checks) ready(w http.ResponseWriter, r *http.Request) {
	polled, stopping := c.pulse.state()
	switch {
	case stopping:
		answer(w, "the relay is stopping")
	case !polled:
		answer(w, "the relay has not polled yet")
	default:
		answer(w, cmp.Or(c.database(r.Context()), c.pulse.failure()))
	}
}

// database says what is wrong with it, without what an error of the driver may tell of
// servers and users; the log has that.
func (c *checks) database(ctx context.Context) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Now().Before(c.next) {
		return c.last
	}
	// A probe that was given up must not be the next one's answer.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
	defer cancel()
	switch err := c.check(ctx); {
	case err == nil:
		c.last = ""
	case errors.Is(err, outbox.ErrNotReady):
		c.last = "the database lacks something: see `outbox status`"
	default:
		c.last = "the database does not answer"
	}
	c.next = time.Now().Add(checkEvery)
	return c.last
}

func answer(w http.ResponseWriter, problem string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if problem != "" {
		w.WriteHeader(http.StatusServiceUnavailable)
	} else {
		problem = "ok"
	}
	_, _ = fmt.Fprintln(w, problem) // if the prober is gone, nobody needs it
}
