package tail_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/conformance"
	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/postgres"
	"github.com/outbox-suite/outbox/postgres/tail"
)

func TestMain(m *testing.M) {
	conformance.Child(func(dsn string) (dialect.Dialect, *sql.DB, error) {
		db, err := postgres.Open(dsn)
		return postgres.New(), db, err
	})
	os.Exit(containers.Main(m))
}

// patience is how long a test waits for what must happen.
const patience = time.Minute

// fixture is an outbox of its own on one server, with its publication.
type fixture struct {
	*testing.T
	server *containers.Server
	db     *sql.DB
	box    *outbox.Outbox
	tables dialect.Tables
}

// onEach runs test on every server, with an outbox made for it whose names must be
// quoted.
func onEach(t *testing.T, test func(f *fixture)) {
	t.Helper()
	for _, server := range containers.Servers(t, "postgres") {
		t.Run(server.Version, func(t *testing.T) { test(made(t, server)) })
	}
}

func made(t *testing.T, server *containers.Server) *fixture {
	t.Helper()
	f := &fixture{T: t, server: server}
	f.db = f.open(server.DSN)
	var err error
	f.box, err = outbox.New(f.db, postgres.New(), outbox.Config{Schema: `Tail's "x" ` + random(), Prefix: `out'"box`, Lanes: 4})
	f.ok(err)
	f.tables = f.box.Tables()
	_, err = f.box.Migrate(t.Context())
	f.ok(err)
	f.ok(tail.Publish(t.Context(), f.db, f.tables))
	t.Cleanup(func() {
		for _, statement := range []string{"DROP PUBLICATION IF EXISTS " + f.publication(), "DROP SCHEMA {schema} CASCADE"} {
			if _, err := f.db.ExecContext(context.Background(), f.sql(statement)); err != nil {
				t.Errorf("%s: %v", statement, err)
			}
		}
	})
	return f
}

func random() string {
	b := make([]byte, 6)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// publication is the quoted name of the publication.
func (f *fixture) publication() string {
	return quote(f.tables.Schema + "." + f.tables.Prefix + "_tail")
}

// sql fills the names of the tables into a text.
func (f *fixture) sql(text string) string { return dialect.Expand(text, f.tables, quote) }

func (f *fixture) open(dsn string) *sql.DB {
	f.Helper()
	db, err := postgres.Open(dsn)
	f.ok(err)
	f.Cleanup(func() { _ = db.Close() })
	return db
}

func (f *fixture) ok(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) exec(text string, args ...any) {
	f.Helper()
	if _, err := f.db.ExecContext(f.Context(), f.sql(text), args...); err != nil {
		f.Fatalf("%s: %v", text, err)
	}
}

// holds tells whether a query of one truth value says so.
func (f *fixture) holds(text string, args ...any) bool {
	f.Helper()
	var is bool
	if err := f.db.QueryRowContext(f.Context(), f.sql(text), args...).Scan(&is); err != nil {
		f.Fatalf("%s: %v", text, err)
	}
	return is
}

// await waits until cond is true.
func (f *fixture) await(what string, cond func() bool) {
	f.Helper()
	for deadline := time.Now().Add(patience); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.Fatalf("waited %v in vain for %s", patience, what)
		}
	}
}

// enqueue writes messages with the library, and wakes nobody.
func (f *fixture) enqueue(messages ...outbox.Message) {
	f.Helper()
	tx, err := f.db.BeginTx(f.Context(), nil)
	f.ok(err)
	defer func() { _ = tx.Rollback() }()
	_, err = f.box.Enqueue(f.Context(), tx, messages...)
	f.ok(err)
	f.ok(tx.Commit())
}

func message(key string) outbox.Message {
	return outbox.Message{Topic: "orders", Key: key, Type: "made", Payload: []byte(`{}`)}
}

// running is a tail that runs.
type running struct {
	f    *fixture
	stop func()

	mu     sync.Mutex
	wakes  int
	events []tail.Event
}

// start runs a tail until the test ends, or stop. wake is called at every wake-up; if it
// is nil, there is one to a commit.
func (f *fixture) start(db *sql.DB, cfg tail.Config, wake func()) *running {
	f.Helper()
	r := &running{f: f}
	cfg.Observe = func(e tail.Event) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.events = append(r.events, e)
	}
	t, err := tail.New(db, f.tables, func() {
		r.mu.Lock()
		r.wakes++
		r.mu.Unlock()
		if wake != nil {
			wake()
		}
	}, cfg)
	f.ok(err)
	if wake == nil {
		t.Once() // so that they can be counted
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		t.Run(ctx)
	}()
	r.stop = func() {
		cancel()
		<-done
	}
	f.Cleanup(r.stop)
	return r
}

// woken is how many wake-ups there were.
func (r *running) woken() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wakes
}

// seen returns what was observed of one type, in order.
func seen[E tail.Event](r *running) (all []E) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if e, ok := e.(E); ok {
			all = append(all, e)
		}
	}
	return all
}

// streaming waits for the nth stream's begin and the wake-up that comes with it, and
// returns its slot.
func (r *running) streaming(n int) string {
	r.f.Helper()
	r.f.await("a stream", func() bool { return len(seen[tail.Streaming](r)) >= n && r.woken() >= n })
	return seen[tail.Streaming](r)[n-1].Slot
}

// gone waits until the server has no such slot.
func (f *fixture) gone(slot string) {
	f.Helper()
	f.await("the end of slot "+slot, func() bool {
		return f.holds("SELECT NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1)", slot)
	})
}

// lost waits until a stream was lost for a reason with that text in it.
func (r *running) lost(why string) {
	r.f.Helper()
	r.f.await("a stream that is lost: "+why, func() bool {
		return slices.ContainsFunc(seen[tail.Lost](r), func(l tail.Lost) bool { return strings.Contains(l.Err.Error(), why) })
	})
}
