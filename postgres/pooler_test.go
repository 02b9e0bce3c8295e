package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/postgres"
)

// pooled starts PgBouncer in transaction mode before a server and returns a
// DSN through it. The pool has two sessions, so that statements of one client
// do run in different ones.
func pooled(t *testing.T, dsn string) string {
	t.Helper()
	binary, err := exec.LookPath("pgbouncer")
	if err != nil {
		binary = "/usr/sbin/pgbouncer"
		if _, err := os.Stat(binary); err != nil {
			if slices.Contains(strings.Split(os.Getenv("OUTBOX_REQUIRE"), ","), "pgbouncer") {
				t.Fatal("OUTBOX_REQUIRE asks for pgbouncer, which is not installed")
			}
			t.Skip("not run behind a pooler: pgbouncer is not installed")
		}
	}
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	free, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().(*net.TCPAddr)
	_ = free.Close()

	dir, err := os.MkdirTemp("", "pgbouncer") //nolint:usetesting // t.TempDir lets no other user in
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	password, _ := u.User.Password()
	host, port, err := net.SplitHostPort(u.Host)
	if err != nil {
		host, port = u.Host, "5432"
	}
	ini := fmt.Sprintf(`
[databases]
* = host=%s port=%s user=%s password=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
max_client_conn = 100
ignore_startup_parameters = extra_float_digits
`, host, port, u.User.Username(), password, address.Port)
	config := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(config, []byte(ini), 0o600); err != nil {
		t.Fatal(err)
	}

	cmd := exec.CommandContext(t.Context(), binary, "-q", config)
	var log strings.Builder
	cmd.Stderr = &log
	if os.Getuid() == 0 { // which pgbouncer refuses to run as
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: nobody(t, dir, config)}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-exited
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", address.String())
		if err == nil {
			_ = c.Close()
			break
		}
		select {
		case <-exited:
			t.Fatalf("pgbouncer has ended: %s", log.String())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("pgbouncer does not answer: %v", err)
		}
	}
	u.Host = address.String()
	return with(u.String(), "sslmode", "disable")
}

// nobody gives the files to a user without rights and returns its ids.
func nobody(t *testing.T, files ...string) *syscall.Credential {
	t.Helper()
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		for _, file := range files {
			if err := os.Chown(file, uid, gid); err != nil {
				t.Fatal(err)
			}
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	t.Skip("not run behind a pooler: there is no user to run pgbouncer as")
	return nil
}

// TestPooler runs everything behind PgBouncer in transaction mode, in the modes
// that keep no statement in a session, from several connections at once.
func TestPooler(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		dsn := pooled(t, f.dsn)
		for _, mode := range []string{"exec", "cache_describe"} {
			t.Run(mode, func(t *testing.T) {
				g := unmigrated(t, with(dsn, "default_query_exec_mode", mode))
				g.migrate()
				g.everything()
				g.clear()
				var wg sync.WaitGroup
				for lane := range lanes {
					wg.Go(func() {
						ctx := g.Context()
						for range 20 {
							m := message("x", "")
							m.Lane = lane
							if err := g.tryInsert(m, again(m)); err != nil {
								t.Error(err)
								return
							}
							epoch, ok, err := g.store.Claim(ctx, g.db, lane, "me", time.Hour)
							if err != nil || !ok {
								t.Error(ok, err)
								return
							}
							rows, err := g.store.Ready(ctx, g.db, lane, 0, dialect.Limit{Rows: 10})
							if err != nil || len(rows) != 2 {
								t.Error(len(rows), err)
								return
							}
							lease := dialect.Lease{Lane: lane, Owner: "me", Epoch: epoch}
							ok, err = g.store.Settle(ctx, g.db, lease, time.Hour, dialect.Settlement{
								Archive: true, Published: []dialect.Ref{rows[0].Ref()}, Failed: []dialect.Failure{{Ref: rows[1].Ref(), Attempts: 1, Dead: true}},
							})
							if err != nil || !ok {
								t.Error(ok, err)
								return
							}
						}
					})
				}
				wg.Wait()
				g.is("done, dead", []int64{g.count(`SELECT count(*) FROM {done}`), g.count(`SELECT count(*) FROM {parked}`)}, []int64{80, 80})
			})
		}
	})
}

// again is the same message under another id.
func again(m dialect.Message) dialect.Message {
	m.ID = message("", "").ID
	return m
}

// TestPoolerHint names the remedy where a pooler mixes up prepared statements.
func TestPoolerHint(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		db := f.open(with(pooled(t, f.dsn), "default_query_exec_mode", "cache_statement"))
		// Sessions move between the clients, each of which prepares under the
		// same names. Old versions of PgBouncer do not know of it.
		var mu sync.Mutex
		var hinted error
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 50 {
					if _, err := f.store.Poll(context.WithoutCancel(t.Context()), db, "me", 1); err != nil {
						mu.Lock()
						hinted = err
						mu.Unlock()
						return
					}
				}
			})
		}
		wg.Wait()
		if hinted == nil {
			t.Skip("this version of PgBouncer keeps prepared statements apart")
		}
		if pg := new(pgconn.PgError); !errors.As(hinted, &pg) || !strings.Contains(hinted.Error(), "default_query_exec_mode=exec") {
			t.Errorf("the error names no remedy: %v", hinted)
		}
		if got := postgres.New().Classify(hinted); got != dialect.Transient {
			t.Errorf("%v is %v", hinted, got)
		}
	})
}
