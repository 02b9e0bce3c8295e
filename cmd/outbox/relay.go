package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/publish/cloudevents"
	"github.com/outbox-suite/outbox/publish/file"
	"github.com/outbox-suite/outbox/relay"
	"github.com/outbox-suite/outbox/telemetry"
	"github.com/outbox-suite/outbox/ui"
)

var relayCommand = command{
	name: "relay", summary: "publish messages, until stopped or until there are none",
	help: `
Claims lanes, publishes their messages in order per key and settles them. Any
number of relays may run on any number of machines; they share the lanes, and one
that dies loses its lanes when its lease ends. Publishers:

` + publisherForms + `
With --until-empty it ends when there is nothing left to do. A broker that is away, a
database that goes away, or a right that is missing is waited for: give --timeout where
something must end. Where the database does not answer at the start, it ends with 1.

SIGINT or SIGTERM stops it in order: nothing new is claimed, what is under way is
finished and settled, and the exit code is 0. A second signal stops it at once.

With --http it serves /metrics for Prometheus, /healthz (503: start it again) and
/readyz (503: it does not deliver). They tell numbers, no payload, key or id, and
need no password: choose an address that only those reach who may read them. The page
of outbox ui is there too, on loopback, or elsewhere with OUTBOX_UI_TOKEN.

The log goes to standard error: no payload ever, keys only with --log-keys.
A webhook's requests are signed with the secrets in OUTBOX_WEBHOOK_SECRETS, and
have what is in OUTBOX_WEBHOOK_AUTHORIZATION as their Authorization header.

Example:
  export OUTBOX_DSN=postgres://app:secret@db/shop
  outbox relay --publish file:out.ndjson --workers 8 --until-empty`,
	setup: func(fs *flag.FlagSet) action {
		var c relayRun
		c.flags(fs)
		return c.run
	},
}

type relayRun struct {
	target    target
	cfg       relay.Config
	publish   string
	source    string
	retention retention
	http      string
	topics    string
	tail      bool
	timeout   time.Duration
	log       logFlags
}

func (c *relayRun) flags(fs *flag.FlagSet) {
	c.target.flags(fs)
	number := func(p *int, name, usage string) {
		fs.Func(name, usage, func(s string) error {
			n, err := strconv.Atoi(s)
			if err != nil || n < 1 {
				return errors.New("give a number above 0")
			}
			*p = n
			return nil
		})
	}
	duration := func(p *time.Duration, name, usage string) {
		fs.Func(name, usage, func(s string) error {
			d, err := time.ParseDuration(s)
			if err != nil || d <= 0 {
				return errors.New("give a duration above 0, for example 500ms or 15s")
			}
			*p = d
			return nil
		})
	}
	fs.StringVar(&c.publish, "publish", "", "the `URL` of where messages go, by its scheme: stdout: file: discard: http(s): and those of brokers; docs/cli.md has their options")
	fs.StringVar(&c.source, "source", cloudevents.DefaultSource, "the `URI` reference that every CloudEvent has as its source")
	fs.BoolVar(&c.cfg.UntilEmpty, "until-empty", false, "end when nothing is ready or due, in any lane")
	duration(&c.timeout, "timeout", "with --until-empty, the `duration` after which it gives up, stops in order, which --grace bounds, and exits with 1; default: none")
	fs.StringVar(&c.cfg.Owner, "owner", "", "the `name` of this relay, unique among running ones; default: host, process and a random suffix")
	number(&c.cfg.Workers, "workers", "the `number` of lanes worked on at a time (default 4)")
	number(&c.cfg.Batch, "batch", "the most messages read and settled at a time, as a `number` (default 500)")
	fs.Func("batch-bytes", "the most `bytes` of payload and headers read at a time (default 16777216)", func(s string) error {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 1 {
			return errors.New("give a number of bytes above 0")
		}
		c.cfg.BatchBytes = n
		return nil
	})
	duration(&c.cfg.Lease, "lease", "the `duration`, 1s or more, for which the lanes of a relay that died wait for another (default 15s)")
	duration(&c.cfg.Turn, "turn", "the `duration` of a stay in a lane that does not get empty (default 2s)")
	duration(&c.cfg.PollMin, "poll-min", "the `duration` of the first pause after a poll that found nothing (default 25ms)")
	duration(&c.cfg.PollMax, "poll-max", "the `duration` of the longest pause between polls (default 1s)")
	fs.BoolVar(&c.cfg.Listen, "listen", false, "also wake up at the engine's signals, where it has them")
	fs.BoolVar(&c.tail, "tail", false, "also wake up at every commit that enqueued, by PostgreSQL's write-ahead log; docs/tail.md has what that needs")
	duration(&c.cfg.PublishTimeout, "publish-timeout", "the longest `duration` of one call of the publisher (default 10s)")
	number(&c.cfg.PublishConcurrency, "publish-concurrency", "the most calls of the publisher at a time and per worker, as a `number` (default 32)")
	number(&c.cfg.PublishSize, "publish-size", "the most messages in one call, as a `number` (default 500, webhooks 1)")
	number(&c.cfg.MaxAttempts, "max-attempts", "the `number` of failed attempts after which a message is dead (default 20)")
	duration(&c.cfg.RetryMin, "retry-min", "the `duration` below which the first retry's random delay is; it doubles with each (default 1s)")
	duration(&c.cfg.RetryMax, "retry-max", "the `duration` at which that stops doubling (default 5m)")
	duration(&c.cfg.BreakerMin, "breaker-min", "the `duration` of the first pause after the publisher was unavailable (default 500ms)")
	duration(&c.cfg.BreakerMax, "breaker-max", "the `duration` of the longest such pause (default 30s)")
	fs.Func("on-dead", "`hold or pass`: whether newer messages of a dead message's key wait (default hold)", func(s string) error {
		switch s {
		case "hold":
			c.cfg.OnDead = relay.HoldKey
		case "pass":
			c.cfg.OnDead = relay.PassKey
		default:
			return errors.New("use hold or pass")
		}
		return nil
	})
	fs.Var(&c.retention, "retention", "the `duration` for which published messages are kept in done; 0 deletes them at once (default 24h)")
	duration(&c.cfg.PurgeEvery, "purge-every", "the `duration`, 1s or more, between deletions of what is past the retention (default 1m)")
	duration(&c.cfg.Grace, "grace", "the `duration` for which a stop waits for publishes under way (default 10s)")
	fs.StringVar(&c.http, "http", "", "the `address` on which /metrics, /healthz and /readyz are served, for example 127.0.0.1:9464; default: none")
	fs.StringVar(&c.topics, "metric-topics", "", "the `topics`, with commas between them, that metrics tell apart; default: none")
	c.log.flags(fs)
}

// retention is Config.Retention as a flag, where 0 keeps nothing.
type retention struct{ time.Duration }

func (r *retention) String() string { return "" }

func (r *retention) Set(s string) error {
	d, err := time.ParseDuration(s)
	if s == "0" {
		d, err = 0, nil
	}
	switch {
	case err != nil || d < 0:
		return errors.New("give a duration, for example 72h, or 0 to keep nothing")
	case d == 0:
		d = relay.NoRetention
	}
	r.Duration = d
	return nil
}

func (c *relayRun) run(ctx context.Context, p *process) error {
	log, err := c.log.logger(p.stderr)
	if err != nil {
		return err
	}
	if c.publish == "" {
		c.publish = p.getenv("OUTBOX_PUBLISH")
	}
	if c.http == "" {
		c.http = p.getenv("OUTBOX_HTTP")
	}
	c.cfg.Retention = c.retention.Duration
	if c.timeout > 0 && !c.cfg.UntilEmpty {
		return usagef("timeout is for --until-empty: leave it out, or give both")
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if c.timeout > 0 {
		defer time.AfterFunc(c.timeout, func() { stop(errNotEmpty) }).Stop()
	}
	o, err := c.target.open(ctx, p)
	switch {
	case err != nil && errors.Is(context.Cause(ctx), errNotEmpty):
		return fmt.Errorf("no answer from the database within %v: %w", c.timeout, err)
	case err != nil:
		return err
	}
	defer o.close()
	publisher, err := openPublisher(p, c.publish, c.source, &c.cfg)
	if err != nil {
		return err
	}

	// When the reader of our output goes away, we stop in order instead of dying
	// with our lanes held.
	if s, ok := publisher.(*file.Stream); ok {
		publisher = untilClosed{s, stop}
	}
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)

	tally := new(tally)
	told := relay.Observers(tally, relay.NewLog(o.Outbox, relay.LogConfig{Logger: log, Keys: c.log.keys}))
	c.cfg.Observer = told
	var gauges tailGauges
	export := telemetry.Config{System: system(c.publish)}
	traces, flush, err := tracesTo(ctx, p, log)
	if err != nil {
		return err
	}
	defer flush()
	if traces != nil {
		export.TracerProvider = traces
	}
	switch {
	case c.http != "":
		s, err := c.listen(ctx, p, o.Outbox, log, export)
		if err != nil {
			return err
		}
		defer s.close() //nolint:contextcheck // the relay has ended when it does
		c.cfg.Observer = relay.Observers(told, s.observer)
		if c.tail {
			if err := gauges.export(s.provider); err != nil {
				return err
			}
		}
	case traces != nil:
		t, err := telemetry.New(export) //nolint:contextcheck // measurements are nobody's call
		if err != nil {
			return err
		}
		c.cfg.Observer = relay.Observers(told, t)
	}
	r, err := relay.New(o.Outbox, publisher, c.cfg)
	if err != nil {
		return err
	}
	if c.tail {
		stop, err := tailFrom(ctx, p, o, r.Wake, log, gauges.observe)
		if err != nil {
			return err
		}
		defer stop()
	}
	defer tuneCollector(p.getenv, c.cfg.Workers, c.cfg.BatchBytes)()
	began := time.Now()
	log.Info("database is ready", "engine", o.Dialect().Name(), "server", o.found.Server, "lanes", o.Tables().Lanes)
	if err := r.Run(ctx); err != nil {
		return err
	}
	log.Info("relay stopped", slog.Int64("published", tally.published.Load()), slog.Int64("failed", tally.failed.Load()),
		slog.Int64("dead", tally.died.Load()), slog.Duration("took", time.Since(began).Round(time.Millisecond)))
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errClosed):
		return errClosed
	case errors.Is(cause, errNotEmpty):
		return fmt.Errorf("%w after %v: the log says what failed, `outbox status` what is left", errNotEmpty, c.timeout)
	}
	return nil
}

// listen serves what tells of the relay until the site is closed, which is after the
// relay has ended.
func (c *relayRun) listen(ctx context.Context, p *process, o *outbox.Outbox, log *slog.Logger, cfg telemetry.Config) (*site, error) {
	page, err := c.page(p, o, log)
	if err != nil {
		return nil, err
	}
	l, err := listen(ctx, c.http)
	if err != nil {
		return nil, err
	}
	if c.topics != "" {
		cfg.Topics = strings.Split(c.topics, ",")
	}
	// Calls of the database may take as long as a lease, or a minute, one of the publisher
	// its timeout, and the dispatcher's pauses as long as their flags say.
	quiet := 5*time.Minute + 3*c.cfg.Lease + c.cfg.PublishTimeout + 2*(c.cfg.BreakerMax+c.cfg.PollMax)
	between := failsEvery + c.cfg.Lease + 2*c.cfg.PollMax
	s, err := newSite(o, log, cfg, quiet, between, cmp.Or(c.cfg.Workers, 4)) //nolint:contextcheck // measurements are nobody's call
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	if page != nil {
		s.mux.Handle("/", page)
		go page.Run(ctx)
	}
	s.serve(l, log)
	return s, nil
}

// page is the operator's page, or nil where others could see it without a password.
func (c *relayRun) page(p *process, o *outbox.Outbox, log *slog.Logger) (*ui.Page, error) {
	cfg, err := new(uiAccess).config(p)
	if err != nil {
		return nil, err
	}
	cfg.Path, cfg.Log = "/", log
	page, err := ui.New(o, cfg)
	if err != nil {
		return nil, usageError{err}
	}
	if !page.Acts() && !ui.Loopback(c.http) {
		log.Info("the operator's page is not served, since others than this machine could read messages: set OUTBOX_UI_TOKEN")
		return nil, nil //nolint:nilnil // what else is served needs no password
	}
	return page, nil
}

var (
	errClosed   = errors.New("standard output was closed by its reader")
	errNotEmpty = errors.New("the outbox is not empty")
)

// untilClosed stops the relay when the stream it writes to is closed for good.
type untilClosed struct {
	*file.Stream
	stop context.CancelCauseFunc
}

// Publish publishes.
func (u untilClosed) Publish(ctx context.Context, messages []relay.Message) []error {
	errs := u.Stream.Publish(ctx, messages)
	for _, err := range errs {
		if errors.Is(err, syscall.EPIPE) {
			u.stop(errClosed)
		}
	}
	return errs
}
