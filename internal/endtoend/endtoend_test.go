package endtoend

import (
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"
	goredis "github.com/redis/go-redis/v9"

	"github.com/outbox-suite/outbox/conformance/containers"
)

func TestMain(m *testing.M) {
	// The driver prints an error for each connection that a restart cuts.
	_ = mysqldriver.SetLogger(log.New(io.Discard, "", 0))
	goredis.SetLogger(quiet{}) // and Redis's for each dial that fails
	if text := os.Getenv(envChild); text != "" {
		if err := childMain(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	status := containers.Main(m)
	if err := removeRabbitMQ(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = max(status, 1)
	}
	os.Exit(status)
}

// seedOf is OUTBOX_SEED, or a new one, and is printed.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(rand.Uint32()) + 1
	if text := os.Getenv("OUTBOX_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("OUTBOX_SEED: %v", err)
		}
	}
	t.Logf("seed: OUTBOX_SEED=%d go test ./internal/endtoend -v -run '^%s$'", seed, t.Name())
	return seed
}

// everyFault is what each pair goes through, in an order that the seed decides.
var everyFault = []fault{relayDies, relayKilled, consumerDies, consumerKilled, handlerFails, brokerKilled, serverKilled}

func sizeOf(restarts bool) scale {
	s := scale{orders: 20, calm: 45, storm: 45, faults: everyFault}
	if os.Getenv("OUTBOX_FULL") != "" {
		s = scale{orders: 50, calm: 500, storm: 200, faults: append(slices.Repeat(everyFault, 3), serverStopped)}
	}
	if !restarts {
		s.faults = slices.DeleteFunc(slices.Clone(s.faults), func(f fault) bool { return f == serverKilled || f == serverStopped })
	}
	return s
}

// TestPairs is the whole way, on every engine and with every broker there is.
func TestPairs(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers and kills processes: left out by -short")
	}
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			for _, b := range brokers {
				if b.with != "" && b.with != e.name && os.Getenv("OUTBOX_FULL") == "" {
					continue
				}
				t.Run(b.name, func(t *testing.T) {
					shop, billing, server := e.databases(t)
					if server == nil {
						t.Logf("the database of %s is not restarted here", e.name)
					}
					r := newTrial(t, e, b, shop, billing, newPlan(seedOf(t), sizeOf(server != nil)))
					r.database = server
					for _, f := range r.run().all {
						t.Errorf("%v", f)
					}
					if t.Failed() {
						return
					}
					t.Logf("%d effects, %d deliveries more by %d faults, in %.1fs", len(r.seen), r.duplicates, len(r.plan.storm), time.Since(r.began).Seconds())
					// A consumer that dies between its commit and its
					// acknowledgement must have met its message again.
					if r.duplicates == 0 {
						t.Error("no message came twice: the faults did not strike")
					}
				})
			}
		})
	}
}
