package tail_test

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/conformance"
	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/postgres"
	"github.com/outbox-suite/outbox/postgres/tail"
)

// TestConformance runs what the suite says of relays with a tail beside each of them that
// is the only one to wake it.
func TestConformance(t *testing.T) {
	servers := containers.Servers(t, "postgres")
	server := servers[len(servers)-1] // which can be restarted, if there is such a one
	u, err := url.Parse(server.DSN)
	if err != nil {
		t.Fatal("the server's DSN is no URL") // which may hold a password
	}
	through := func(addr string) string {
		other := *u
		other.Host = addr
		return other.String()
	}
	owner, err := postgres.Open(server.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	var streams, wakes atomic.Int64
	var names sync.Map
	target := conformance.Target{
		Dialect: postgres.New(),
		Open:    func(context.Context) (*sql.DB, error) { return postgres.Open(server.DSN) },
		Source:  server.DSN,
		Network: &conformance.Network{
			Address: net.JoinHostPort(u.Hostname(), u.Port()),
			Open:    func(_ context.Context, addr string) (*sql.DB, error) { return postgres.Open(through(addr)) },
			Source:  through,
		},
		Prefix: "tailed", Short: true, Soak: 5 * time.Second,
		Beside: func(ctx context.Context, db *sql.DB, tables dialect.Tables, wake func()) {
			if err := tail.Publish(ctx, owner, tables); err != nil {
				if ctx.Err() == nil {
					t.Error(err)
				}
				return
			}
			names.Store(tables.Prefix, true)
			beside, err := tail.New(db, tables, func() { wakes.Add(1); wake() }, tail.Config{
				RetryMin: 10 * time.Millisecond, RetryMax: time.Second,
				Observe: func(e tail.Event) {
					if _, ok := e.(tail.Streaming); ok {
						streams.Add(1)
					}
				},
			})
			if err != nil {
				t.Error(err)
				return
			}
			beside.Run(ctx)
		},
	}
	if server.CanRestart() {
		target.Stop, target.Start, target.Kill = server.Stop, server.Start, server.Kill
	}
	report, err := conformance.Check(t.Context(), target, conformance.Options{
		Match: regexp.MustCompile("^(Relay/|Soak/|Enqueue/(CommitIsFound|LateCommitIsDelivered)$|Operator/InvariantHoldsUnderRaces$)"),
		OnResult: func(r conformance.Result) {
			if r.Status == conformance.Failed {
				t.Errorf("%v", r)
			}
		},
	})
	if err != nil {
		t.Error(err)
	}
	t.Logf("%d scenarios, %d streams, %d wake-ups", len(report.Results), streams.Load(), wakes.Load())
	if streams.Load() == 0 || wakes.Load() <= 2*streams.Load() {
		t.Errorf("%d streams and %d wake-ups: the tails had no part in it", streams.Load(), wakes.Load())
	}
	names.Range(func(prefix, _ any) bool {
		if _, err := owner.ExecContext(context.WithoutCancel(t.Context()), fmt.Sprintf("DROP PUBLICATION %q", fmt.Sprint(prefix, "_tail"))); err != nil {
			t.Error(err)
		}
		return true
	})
}
