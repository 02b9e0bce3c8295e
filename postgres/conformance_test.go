package postgres_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/conformance"
	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/postgres"
)

func TestConformance(t *testing.T) {
	for _, server := range containers.Servers(t, "postgres") {
		t.Run(server.Version, func(t *testing.T) { conformance.Run(t, target(t, server)) })
	}
}

// TestConformanceOddNames runs the suite where every name must be quoted, as users
// who have the privileges of schema/grants.sql and no others.
func TestConformanceOddNames(t *testing.T) {
	server := containers.Servers(t, "postgres")[0]
	odd := target(t, server)
	odd.Short = true
	odd.Soak = 5 * time.Second
	odd.As = as(t, server)
	odd.Place = func(ctx context.Context, own *conformance.Target, suffix string) (func(context.Context) error, error) {
		own.Schema, own.Prefix = `Odd "x" `+suffix, "order"
		return func(ctx context.Context) error { return run(ctx, server.DSN, "DROP SCHEMA "+quote(own.Schema)) },
			run(ctx, server.DSN, "CREATE SCHEMA "+quote(own.Schema))
	}
	conformance.Run(t, odd)
}

// TestWatermarkReaderIsFound runs the suite's scenario of the late commit, for
// which an engine with many writers is needed, on a store that reads on from the
// last row it has seen. It must fail.
func TestWatermarkReaderIsFound(t *testing.T) {
	found := target(t, containers.Servers(t, "postgres")[0])
	found.Dialect = &watermark{Dialect: postgres.New(), seen: make(map[string]int64)}
	found.Patience = 5 * time.Second
	found.Known = nil
	report, err := conformance.Check(t.Context(), found, conformance.Options{Match: regexp.MustCompile("^Enqueue/LateCommitIsDelivered$")})
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Failed()) != 1 {
		t.Errorf("the scenario holds on a store that skips late commits: %+v", report.Results)
	}
}

// watermark is a dialect whose stores read only what comes after the last row
// that was read.
type watermark struct {
	dialect.Dialect
	mu   sync.Mutex
	seen map[string]int64
}

// Bind implements [dialect.Dialect].
func (w *watermark) Bind(tables dialect.Tables) (dialect.Store, error) {
	store, err := w.Dialect.Bind(tables)
	return &watermarkStore{store, w, tables.Prefix}, err
}

type watermarkStore struct {
	dialect.Store
	of     *watermark
	prefix string
}

// Ready implements [dialect.Turn].
func (s *watermarkStore) Ready(ctx context.Context, db dialect.DB, lane int, after int64, limit dialect.Limit) ([]dialect.Row, error) {
	key := fmt.Sprint(s.prefix, lane)
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	rows, err := s.Store.Ready(ctx, db, lane, max(after, s.of.seen[key]), limit)
	if len(rows) > 0 {
		s.of.seen[key] = rows[len(rows)-1].Seq
	}
	return rows, err
}

// TestLooseFenceIsFound runs the suite's scenario of the fence on a store that looks
// at the lease and does not lock it. It must fail.
func TestLooseFenceIsFound(t *testing.T) {
	found := target(t, containers.Servers(t, "postgres")[0])
	found.Dialect = loose{postgres.New()}
	report, err := conformance.Check(t.Context(), found, conformance.Options{Match: regexp.MustCompile("^Settle/FenceHoldsTheLane$")})
	if err != nil {
		t.Fatal(err)
	}
	if failed := report.Failed(); len(failed) != 1 || !strings.Contains(failed[0].Got, "the fence does not hold") {
		t.Errorf("the scenario holds on a store whose fence does not lock: %+v", report.Results)
	}
}

// loose is a dialect whose stores look at the lease first, and settle then under
// whatever lease there is.
type loose struct{ dialect.Dialect }

// Bind implements [dialect.Dialect].
func (l loose) Bind(tables dialect.Tables) (dialect.Store, error) {
	store, err := l.Dialect.Bind(tables)
	return &looseStore{store, dialect.Expand("{lane}", tables, quote)}, err
}

type looseStore struct {
	dialect.Store
	lane string
}

// Settle implements [dialect.Turn].
func (s *looseStore) Settle(ctx context.Context, db dialect.DB, lease dialect.Lease, ttl time.Duration, what dialect.Settlement) (bool, error) {
	there := lease
	look := func() error {
		return db.QueryRowContext(ctx, "SELECT owner, epoch FROM "+s.lane+" WHERE lane = $1", lease.Lane).Scan(&there.Owner, &there.Epoch)
	}
	if err := look(); err != nil || there != lease {
		return false, err
	}
	if err := look(); err != nil {
		return false, err
	}
	return s.Store.Settle(ctx, db, there, ttl, what)
}

// run runs one statement on a connection of its own.
func run(ctx context.Context, dsn, statement string) error {
	db, err := postgres.Open(dsn)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	_, err = db.ExecContext(ctx, statement)
	return err
}

func target(t *testing.T, server *containers.Server) conformance.Target {
	t.Helper()
	u, err := url.Parse(server.DSN)
	if err != nil {
		t.Fatal("the server's DSN is no URL") // which may hold a password
	}
	through := func(addr string) string {
		other := *u
		other.Host = addr
		return other.String()
	}
	target := conformance.Target{
		Dialect: postgres.New(),
		Open:    func(context.Context) (*sql.DB, error) { return postgres.Open(server.DSN) },
		Source:  server.DSN,
		Network: &conformance.Network{
			Address: net.JoinHostPort(u.Hostname(), port(u)),
			Open:    func(_ context.Context, addr string) (*sql.DB, error) { return postgres.Open(through(addr)) },
			Source:  through,
		},
	}
	if server.CanRestart() {
		target.Stop, target.Start, target.Kill = server.Stop, server.Start, server.Kill
	}
	target.Demote = func(ctx context.Context, conn *sql.Conn) error {
		_, err := conn.ExecContext(ctx, "SET default_transaction_read_only = on")
		return err
	}
	for _, zone := range []string{"UTC", "Asia/Kathmandu", "America/St_Johns", fold(time.Now().Add(30 * time.Minute)), fold(time.Now().Add(-30 * time.Minute))} {
		target.Zones = append(target.Zones, func(context.Context) (*sql.DB, error) {
			in := *u
			query := in.Query()
			query.Set("TimeZone", zone)
			in.RawQuery = query.Encode()
			return postgres.Open(in.String())
		})
	}
	if dumps(t, server) {
		servers := containers.Servers(t, "postgres")
		target.Restore = restore(server.DSN, servers[len(servers)-1].DSN) // another one, if there is
	}
	return target
}

// fold is a zone, as POSIX spells it, whose clocks are set back by an hour at
// that moment: the hour around it is there twice.
func fold(moment time.Time) string {
	at := moment.UTC().Add(time.Hour) // by the clocks that are set back
	day := at.YearDay()
	if at.Month() > time.February && at.AddDate(0, 0, -at.YearDay()+1).AddDate(0, 1, 28).Month() == time.February {
		day-- // J counts no 29th of February
	}
	return fmt.Sprintf("AAA0BBB-1,J%d/0,J%d/%s", max(1, day-100), day, at.Format("15:04:05"))
}

// dumps tells whether there is a pg_dump that can read the server: it must not
// be older.
func dumps(t *testing.T, server *containers.Server) bool {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "pg_dump", "--version").Output()
	if err != nil {
		t.Logf("no dump and restore: pg_dump: %v", err)
		return false
	}
	have := regexp.MustCompile(`\d+`).Find(out)
	want, _, _ := strings.Cut(server.Version, ".")
	own, _ := strconv.Atoi(string(have))
	its, _ := strconv.Atoi(want)
	if own < its {
		t.Logf("no dump and restore: pg_dump is version %d and the server %d", own, its)
	}
	return own >= its
}

// restore dumps with pg_dump and restores with psql, into a database made for
// it on the other server.
func restore(from, to string) func(context.Context, dialect.Tables) (*conformance.Copy, error) {
	return func(ctx context.Context, tables dialect.Tables) (*conformance.Copy, error) {
		what := []string{"--no-owner", "--no-privileges", "--table=" + quote(tables.Prefix) + "*"}
		if tables.Schema != "" {
			what = []string{"--no-owner", "--no-privileges", "--schema=" + quote(tables.Schema)}
		}
		script, err := client(ctx, from, nil, "pg_dump", what...)
		if err != nil {
			return nil, err
		}
		name := "copy_" + random()
		if err := run(ctx, to, "CREATE DATABASE "+quote(name)); err != nil {
			return nil, err
		}
		copied := &conformance.Copy{Remove: func(ctx context.Context) error {
			return run(ctx, to, "DROP DATABASE "+quote(name)+" WITH (FORCE)")
		}}
		u, err := url.Parse(to)
		if err != nil {
			return nil, errors.New("the server's DSN is no URL") // which may hold a password
		}
		u.Path = "/" + name
		copied.Open = func(context.Context) (*sql.DB, error) { return postgres.Open(u.String()) }
		if _, err := client(ctx, u.String(), script, "psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1"); err != nil {
			return nil, errors.Join(err, copied.Remove(ctx))
		}
		return copied, nil
	}
}

// client runs a program of PostgreSQL's and returns what it writes.
func client(ctx context.Context, dsn string, stdin []byte, name string, args ...string) ([]byte, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, errors.New("the server's DSN is no URL")
	}
	// The password travels in the environment, which no process list shows.
	password, _ := u.User.Password()
	u.User = url.User(u.User.Username())
	cmd := exec.CommandContext(ctx, name, append(args, "--dbname="+u.String())...)
	cmd.Env = append(os.Environ(), "PGPASSWORD="+password)
	var problems bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(stdin), &problems
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", name, err, problems.String())
	}
	return out, nil
}

func port(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	return "5432"
}

// reopen opens the server in a child process of the suite.
func reopen(dsn string) (dialect.Dialect, *sql.DB, error) {
	db, err := postgres.Open(dsn)
	return postgres.New(), db, err
}
