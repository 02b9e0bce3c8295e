// Package outboxtest helps an application test what it enqueues and what becomes
// of it.
//
// [New] makes an outbox on an embedded database that lives as long as the test: a
// service whose code takes an *outbox.Outbox and a *sql.DB runs against it with
// nothing installed. [Publisher] is a broker that remembers, fails and loses
// answers as it is told. [Drain] runs a relay until everything that can go has
// gone.
//
//	o := outboxtest.New(t, outbox.Config{})
//	// ... the service under test enqueues through o ...
//	var broker outboxtest.Publisher
//	if err := outboxtest.Drain(ctx, o, &broker); err != nil {
//		t.Fatal(err)
//	}
//	if got := broker.ByKey("order-1"); len(got) != 2 { ... }
//
// A test on another database makes its outbox itself and uses Publisher and Drain
// alone.
package outboxtest

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/relay"
	"github.com/outbox-suite/outbox/sqlite"
)

// New returns an outbox on a fresh SQLite database, with its tables made, that is
// closed and removed when the test ends. The application's own tables go into
// [outbox.Outbox.DB]. Tests that call New share nothing and may run in parallel.
// A failure ends the test.
//
// The database is a file in the test's temporary folder, because one in memory
// has a single connection: a query beside an open transaction would wait forever.
func New(tb testing.TB, cfg outbox.Config) *outbox.Outbox {
	tb.Helper()
	db, err := sqlite.Open(filepath.Join(tb.TempDir(), "outbox.db"))
	if err != nil {
		tb.Fatalf("outboxtest: %v", err)
	}
	tb.Cleanup(func() {
		if err := db.Close(); err != nil {
			tb.Errorf("outboxtest: close: %v", err)
		}
	})
	o, err := outbox.New(db, sqlite.New(), cfg)
	if err != nil {
		tb.Fatalf("outboxtest: %v", err)
	}
	if _, err := o.Migrate(tb.Context()); err != nil {
		tb.Fatalf("outboxtest: %v", err)
	}
	return o
}

// Drain runs a relay of o with p until nothing is left that can go: every message
// that is ready or due is published, and one that failed is tried again at once
// until it is published or dead. What stays is parked: messages delayed to a later
// time, dead ones, and what is held behind those; see [outbox.Outbox.Parked]. To
// publish delayed messages without waiting, requeue them first:
//
//	o.Requeue(ctx, outbox.Filter{States: []string{outbox.Scheduled}}, 0)
//
// A publisher that stays unavailable keeps Drain waiting, so give ctx a timeout.
// Drain returns the context's error when that ends, and an error when the database
// is not ready. For other settings, make a relay with relay.Config.UntilEmpty.
func Drain(ctx context.Context, o *outbox.Outbox, p relay.Publisher) error {
	var erred lastError
	r := relay.Config{
		PollMin: time.Millisecond, PollMax: 10 * time.Millisecond,
		RetryMin: time.Millisecond, RetryMax: time.Millisecond,
		BreakerMin: time.Millisecond, BreakerMax: 10 * time.Millisecond,
		UntilEmpty: true, Observer: &erred,
	}
	for {
		run, err := relay.New(o, p, r)
		if err != nil {
			return fmt.Errorf("drain: %w", err)
		}
		if err := run.Run(ctx); err != nil {
			return fmt.Errorf("drain: %w", err)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("drain: %w%s", context.Cause(ctx), erred.text())
		}
		// Retries that were not due yet when the rest was published, by this relay's
		// delays or the longer ones of another.
		retry := outbox.Filter{All: true, States: []string{outbox.Retry}}
		waiting, err := o.Parked(ctx, retry, 0, 1)
		if err != nil {
			return fmt.Errorf("drain: %w", err)
		}
		if len(waiting) == 0 {
			return nil
		}
		if _, err := o.Requeue(ctx, retry, 0); err != nil {
			return fmt.Errorf("drain: %w", err)
		}
	}
}

// lastError keeps the last failed operation on the database.
type lastError struct {
	mu    sync.Mutex
	event *relay.Erred
}

// Observe implements [relay.Observer].
func (l *lastError) Observe(e relay.Event) {
	if erred, ok := e.(relay.Erred); ok {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.event = &erred
	}
}

func (l *lastError) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.event == nil {
		return ""
	}
	return fmt.Sprintf(" (last error of the relay: %s: %v)", l.event.Op, l.event.Err)
}
