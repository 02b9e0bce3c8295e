package postgres_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/postgres"
)

// TestClassify makes each kind of error happen on a server.
func TestClassify(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.exec(`CREATE TABLE {schema}.thing (id int PRIMARY KEY, n int CHECK (n > 0))`)
		f.exec(`INSERT INTO {schema}.thing VALUES (1, 1), (2, 2)`)
		run := func(db *sql.DB, text string) error {
			_, err := db.ExecContext(t.Context(), f.sql(text))
			return err
		}
		for name, c := range map[string]struct {
			make func(t *testing.T) error
			want dialect.Class
		}{
			"Nil":       {func(*testing.T) error { return nil }, dialect.Other},
			"Unknown":   {func(*testing.T) error { return errors.New("unknown") }, dialect.Other},
			"Syntax":    {func(*testing.T) error { return run(f.db, `SELEC`) }, dialect.Other},
			"Check":     {func(*testing.T) error { return run(f.db, `INSERT INTO {schema}.thing VALUES (3, 0)`) }, dialect.Other},
			"NUL":       {func(*testing.T) error { return f.tryInsert(message("a\x00b", "")) }, dialect.Other},
			"Argument":  {func(*testing.T) error { _, err := f.db.ExecContext(t.Context(), `SELECT $1::int`, "x"); return err }, dialect.Other},
			"Duplicate": {func(*testing.T) error { return run(f.db, `INSERT INTO {schema}.thing VALUES (1, 1)`) }, dialect.Duplicate},
			"Wrapped": {func(*testing.T) error {
				return fmt.Errorf("enqueue: %w", run(f.db, `INSERT INTO {schema}.thing VALUES (1, 1)`))
			}, dialect.Duplicate},
			"NoTable":  {func(*testing.T) error { return run(f.db, `SELECT FROM {schema}.nothing`) }, dialect.Missing},
			"NoColumn": {func(*testing.T) error { return run(f.db, `SELECT nothing FROM {schema}.thing`) }, dialect.Missing},
			"NoSchema": {func(*testing.T) error { return run(f.db, `CREATE TABLE nothing.thing ()`) }, dialect.Missing},
			"ReadOnly": {func(t *testing.T) error {
				return run(f.in(t).open(with(f.dsn, "default_transaction_read_only", "on")), `DELETE FROM {schema}.thing`)
			}, dialect.ReadOnly},
			"LockTimeout": {func(t *testing.T) error {
				tx, _ := f.in(t).begin()
				_, err := tx.ExecContext(t.Context(), f.sql(`UPDATE {schema}.thing SET n = 3`))
				f.ok(err)
				return run(f.in(t).open(with(f.dsn, "lock_timeout", "20ms")), `UPDATE {schema}.thing SET n = 4`)
			}, dialect.Conflict},
			"StatementTimeout": {func(t *testing.T) error {
				return run(f.in(t).open(with(f.dsn, "statement_timeout", "20ms")), `SELECT pg_sleep(60)`)
			}, dialect.Transient},
			"Serialization": {func(t *testing.T) error {
				tx, err := f.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
				f.ok(err)
				defer func() { _ = tx.Rollback() }()
				_, err = tx.ExecContext(t.Context(), f.sql(`SELECT FROM {schema}.thing`))
				f.ok(err)
				f.ok(run(f.db, `UPDATE {schema}.thing SET n = n + 1`))
				_, err = tx.ExecContext(t.Context(), f.sql(`UPDATE {schema}.thing SET n = 9`))
				return err
			}, dialect.Conflict},
			"Deadlock": {func(t *testing.T) error {
				a, pid := f.in(t).begin()
				b, _ := f.in(t).begin()
				update := func(tx *sql.Tx, id int) error {
					_, err := tx.ExecContext(context.WithoutCancel(t.Context()), f.sql(`UPDATE {schema}.thing SET n = n WHERE id = $1`), id)
					return err
				}
				f.ok(update(a, 1))
				f.ok(update(b, 2))
				done := make(chan error, 1)
				go func() {
					err := update(b, 1)
					_ = b.Rollback()
					done <- err
				}()
				f.in(t).blocked(pid, 1)
				err := update(a, 2)
				_ = a.Rollback()
				return errors.Join(err, <-done)
			}, dialect.Conflict},
			"CommitAfterError": {func(t *testing.T) error {
				tx, _ := f.in(t).begin()
				_, _ = tx.ExecContext(t.Context(), `SELEC`)
				return tx.Commit()
			}, dialect.Conflict},
			"Killed": {func(t *testing.T) error {
				tx, pid := f.in(t).begin()
				f.exec(`SELECT pg_terminate_backend($1::int)`, pid)
				return tx.Commit()
			}, dialect.OutcomeUnknown},
			"KilledInStatement": {func(t *testing.T) error {
				holder, pid := f.in(t).begin()
				_, err := holder.ExecContext(t.Context(), f.sql(`UPDATE {schema}.thing SET n = 5`))
				f.ok(err)
				done := make(chan error, 1)
				go func() {
					_, err := f.db.ExecContext(context.WithoutCancel(t.Context()), f.sql(`UPDATE {schema}.thing SET n = 6`))
					done <- err
				}()
				f.in(t).blocked(pid, 1)
				f.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE $1::int = ANY (pg_blocking_pids(pid))`, pid)
				return <-done
			}, dialect.OutcomeUnknown},
			"Deadline": {func(t *testing.T) error {
				// The time is for the statement, not for connecting.
				conn, err := f.db.Conn(t.Context())
				f.ok(err)
				defer func() { _ = conn.Close() }()
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				defer cancel()
				_, err = conn.ExecContext(ctx, `SELECT pg_sleep(60)`)
				return err
			}, dialect.OutcomeUnknown},
			"Cancelled": {func(t *testing.T) error {
				holder, pid := f.in(t).begin()
				_, err := holder.ExecContext(t.Context(), f.sql(`UPDATE {schema}.thing SET n = 5`))
				f.ok(err)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() {
					_, err := f.db.ExecContext(ctx, f.sql(`UPDATE {schema}.thing SET n = 6`))
					done <- err
				}()
				f.in(t).blocked(pid, 1)
				cancel()
				return <-done
			}, dialect.OutcomeUnknown},
			"CutInStatement": {func(t *testing.T) error {
				p := proxied(t, f.dsn)
				db := f.in(t).open(p.dsn)
				holder, pid := f.in(t).begin()
				_, err := holder.ExecContext(t.Context(), f.sql(`UPDATE {schema}.thing SET n = 5`))
				f.ok(err)
				done := make(chan error, 1)
				go func() {
					// Without an argument pgx would wrongly let database/sql repeat it.
					_, err := db.ExecContext(context.WithoutCancel(t.Context()), f.sql(`UPDATE {schema}.thing SET n = $1`), 6)
					done <- err
				}()
				f.in(t).blocked(pid, 1)
				p.cut()
				return <-done
			}, dialect.OutcomeUnknown},
			"CutBeforeCommit": {func(t *testing.T) error {
				p := proxied(t, f.dsn)
				tx, err := f.in(t).open(p.dsn).BeginTx(t.Context(), nil)
				f.ok(err)
				p.cut()
				return tx.Commit()
			}, dialect.OutcomeUnknown},
			"Refused": {func(t *testing.T) error {
				p := proxied(t, f.dsn)
				p.close()
				return run(f.in(t).open(p.dsn), `SELECT 1`)
			}, dialect.Transient},
			"ConnectDeadline": {func(t *testing.T) error {
				l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0") // answers nobody
				f.ok(err)
				defer func() { _ = l.Close() }()
				db := f.in(t).open("postgres://u:p@" + l.Addr().String() + "/d?sslmode=disable")
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				defer cancel()
				return db.PingContext(ctx)
			}, dialect.Transient},
			"Password": {func(t *testing.T) error {
				u, err := url.Parse(f.dsn)
				f.ok(err)
				u.User = url.UserPassword("nobody-"+random(), "wrong")
				return f.in(t).open(u.String()).PingContext(t.Context())
			}, dialect.Other},
			"NoDatabase": {func(t *testing.T) error {
				u, err := url.Parse(f.dsn)
				f.ok(err)
				u.Path = "/nothing"
				return f.in(t).open(u.String()).PingContext(t.Context())
			}, dialect.Other},
			"BadConn":  {func(*testing.T) error { return driver.ErrBadConn }, dialect.OutcomeUnknown},
			"ConnDone": {func(*testing.T) error { return sql.ErrConnDone }, dialect.Transient},
			"Done": {func(t *testing.T) error {
				tx, _ := f.in(t).begin()
				f.ok(tx.Rollback())
				return tx.Commit()
			}, dialect.Other},
		} {
			t.Run(name, func(t *testing.T) {
				err := c.make(t)
				if got := postgres.New().Classify(err); got != c.want {
					t.Errorf("%v (%T) is %v, want %v", err, err, got, c.want)
				}
			})
		}
	})
}

// TestClassifyCodes covers what no server here can be made to say.
func TestClassifyCodes(t *testing.T) {
	for code, want := range map[string]dialect.Class{
		"53100": dialect.Transient, "53300": dialect.Transient, "57P03": dialect.Transient, "25P03": dialect.Transient, "57P05": dialect.Transient,
		"57P02": dialect.OutcomeUnknown, "40003": dialect.OutcomeUnknown, "08006": dialect.OutcomeUnknown, "08P01": dialect.OutcomeUnknown,
		"26000": dialect.Transient, "42P05": dialect.Transient, "42501": dialect.Other, "": dialect.Other,
	} {
		if got := postgres.New().Classify(&pgconn.PgError{Code: code}); got != want {
			t.Errorf("%s is %v, want %v", code, got, want)
		}
	}
	if got := postgres.New().Classify(pgx.ErrTxCommitRollback); got != dialect.Conflict {
		t.Errorf("a commit that rolled back is %v", got)
	}
}

// TestDuplicates yields a duplicate error for an id that waits, ready or
// scheduled, and leaves the caller a transaction to roll back.
func TestDuplicates(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		ready, scheduled := message("ready", ""), message("scheduled", "")
		scheduled.Delay = time.Hour
		f.insert(ready, scheduled)
		for _, batch := range [][]dialect.Message{{ready}, {scheduled}, {message("x", ""), ready}, {message("x", ""), message("y", ""), scheduled}} {
			tx, _ := f.begin()
			err := f.store.Insert(t.Context(), tx, batch)
			if got := postgres.New().Classify(err); got != dialect.Duplicate {
				t.Errorf("%v is %v", err, got)
			}
			f.ok(tx.Rollback())
		}
		f.is("ready", f.readyTopics(), []string{"ready"})

		// Parked otherwise, the id may stand there any number of times.
		lease := f.claim(1, "me")
		for range 3 {
			f.settle(lease, dialect.Settlement{Failed: []dialect.Failure{{Ref: f.ref("ready"), Attempts: 1, Dead: true}}})
			f.insert(ready)
		}
		f.is("parked", f.parked(), []string{"ready:dead", "ready:dead", "ready:dead", "scheduled:scheduled"})
	})
}

// TestOrder gives seq in the order of the slice, which is not that of the ids.
func TestOrder(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		var messages []dialect.Message
		var want []string
		for i := range 2000 {
			m := message(fmt.Sprint(i), keyIn(i%3))
			want = append(want, m.Topic)
			messages = append(messages, m)
		}
		f.insert(messages...)
		f.is("order", f.readyTopics(), want)
		f.ok(f.store.Insert(t.Context(), nil, nil))
	})
}

// A proxy stands between a pool and its server.
type proxy struct {
	dsn      string
	listener net.Listener
	mu       sync.Mutex
	conns    []net.Conn
}

func proxied(t *testing.T, dsn string) *proxy {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	server := u.Host
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u.Host = listener.Addr().String()
	p := &proxy{dsn: u.String(), listener: listener}
	t.Cleanup(p.close)
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			upstream, err := new(net.Dialer).DialContext(t.Context(), "tcp", server)
			if err != nil {
				_ = client.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, client, upstream)
			p.mu.Unlock()
			pipe := func(to, from net.Conn) {
				_, _ = io.Copy(to, from)
				_ = to.Close()
			}
			go pipe(client, upstream)
			go pipe(upstream, client)
		}
	}()
	return p
}

// cut closes the connections there are.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
}

// close lets no more connections in.
func (p *proxy) close() {
	_ = p.listener.Close()
	p.cut()
}
