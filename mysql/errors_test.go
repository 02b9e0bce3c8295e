package mysql_test

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

	driverpkg "github.com/go-sql-driver/mysql"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/mysql"
)

// session is the id of a transaction's session.
func (f *fixture) session(tx *sql.Tx) (id int64) {
	f.Helper()
	f.ok(tx.QueryRowContext(f.Context(), `SELECT CONNECTION_ID()`).Scan(&id))
	return id
}

// TestClassify makes each kind of error happen on a server.
func TestClassify(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.exec(`CREATE TABLE {schema}.thing (id INT PRIMARY KEY, n INT CHECK (n > 0))`)
		f.exec(`INSERT INTO {schema}.thing VALUES (1, 1), (2, 2)`)
		run := func(db *sql.DB, text string) error {
			_, err := db.ExecContext(t.Context(), f.sql(text))
			return err
		}
		// waiting runs a statement that waits for a row which hold has locked.
		waiting := func(t *testing.T, ctx context.Context, db *sql.DB) chan error {
			f := f.in(t)
			f.blocked(0) // what was cancelled may still wait on the server
			_, err := f.begin().ExecContext(f.Context(), f.sql(`UPDATE {schema}.thing SET n = 5 WHERE id = 1`))
			f.ok(err)
			done := make(chan error, 1)
			go func() {
				_, err := db.ExecContext(ctx, f.sql(`UPDATE {schema}.thing SET n = 6 WHERE id = ?`), 1)
				done <- err
			}()
			f.blocked(1)
			return done
		}
		for name, c := range map[string]struct {
			make func(t *testing.T) error
			want dialect.Class
		}{
			"Nil":       {func(*testing.T) error { return nil }, dialect.Other},
			"Unknown":   {func(*testing.T) error { return errors.New("unknown") }, dialect.Other},
			"Syntax":    {func(*testing.T) error { return run(f.db, `SELEC`) }, dialect.Other},
			"Check":     {func(*testing.T) error { return run(f.db, `INSERT INTO {schema}.thing VALUES (3, 0)`) }, dialect.Other},
			"Duplicate": {func(*testing.T) error { return run(f.db, `INSERT INTO {schema}.thing VALUES (1, 1)`) }, dialect.Duplicate},
			"Wrapped": {func(*testing.T) error {
				return fmt.Errorf("enqueue: %w", run(f.db, `INSERT INTO {schema}.thing VALUES (1, 1)`))
			}, dialect.Duplicate},
			"NoTable":  {func(*testing.T) error { return run(f.db, `SELECT 1 FROM {schema}.nothing`) }, dialect.Missing},
			"NoColumn": {func(*testing.T) error { return run(f.db, `SELECT nothing FROM {schema}.thing`) }, dialect.Missing},
			"NoSchema": {func(*testing.T) error { return run(f.db, `CREATE TABLE nothing.thing (id INT)`) }, dialect.Other},
			"NoIndex":  {func(*testing.T) error { return run(f.db, `SELECT 1 FROM {schema}.thing FORCE INDEX (nothing)`) }, dialect.Missing},
			"ReadOnly": {func(t *testing.T) error {
				tx, err := f.db.BeginTx(t.Context(), &sql.TxOptions{ReadOnly: true})
				f.ok(err)
				defer func() { _ = tx.Rollback() }()
				_, err = tx.ExecContext(f.Context(), f.sql(`DELETE FROM {schema}.thing`))
				return err
			}, dialect.ReadOnly},
			"LockTimeout": {func(t *testing.T) error {
				db := f.in(t).open(with(f.dsn, "innodb_lock_wait_timeout", "1"))
				return <-waiting(t, t.Context(), db)
			}, dialect.Conflict},
			"NoWait": {func(t *testing.T) error {
				_, err := f.in(t).begin().ExecContext(f.Context(), f.sql(`UPDATE {schema}.thing SET n = 5 WHERE id = 1`))
				f.ok(err)
				return run(f.db, `SELECT id FROM {schema}.thing WHERE id = 1 FOR UPDATE NOWAIT`)
			}, dialect.Conflict},
			"StatementTimeout": {func(t *testing.T) error {
				tx, err := f.in(t).open(f.dsn).BeginTx(f.Context(), nil)
				f.ok(err)
				// One or the other, by server.
				if _, err := tx.ExecContext(f.Context(), `SET SESSION max_statement_time = 0.05`); err != nil {
					_, err := tx.ExecContext(f.Context(), `SET SESSION max_execution_time = 50`)
					f.ok(err)
				}
				var n int
				return tx.QueryRowContext(f.Context(), `SELECT COUNT(*) FROM information_schema.columns AS a, information_schema.columns AS b, information_schema.columns AS c`).Scan(&n)
			}, dialect.Transient},
			"Interrupted": {func(t *testing.T) error {
				f := f.in(t)
				f.blocked(0)
				_, err := f.begin().ExecContext(f.Context(), f.sql(`UPDATE {schema}.thing SET n = 5 WHERE id = 1`))
				f.ok(err)
				tx := f.begin()
				id := f.session(tx)
				done := make(chan error, 1)
				go func() {
					_, err := tx.ExecContext(f.Context(), f.sql(`UPDATE {schema}.thing SET n = 6 WHERE id = 1`))
					done <- err
				}()
				f.blocked(1)
				f.exec(fmt.Sprint(`KILL QUERY `, id))
				return <-done
			}, dialect.Transient},
			"Deadlock": {func(t *testing.T) error {
				f := f.in(t)
				a, b := f.begin(), f.begin()
				update := func(tx *sql.Tx, id int) error {
					_, err := tx.ExecContext(context.WithoutCancel(t.Context()), f.sql(`UPDATE {schema}.thing SET n = n + 1 WHERE id = ?`), id)
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
				f.blocked(1)
				err := update(a, 2)
				_ = a.Rollback()
				return errors.Join(err, <-done)
			}, dialect.Conflict},
			"Killed": {func(t *testing.T) error {
				f := f.in(t)
				tx := f.begin()
				f.exec(fmt.Sprint(`KILL `, f.session(tx)))
				return tx.Commit()
			}, dialect.OutcomeUnknown},
			"KilledInStatement": {func(t *testing.T) error {
				f := f.in(t)
				f.blocked(0)
				_, err := f.begin().ExecContext(f.Context(), f.sql(`UPDATE {schema}.thing SET n = 5 WHERE id = 1`))
				f.ok(err)
				tx := f.begin()
				id := f.session(tx)
				done := make(chan error, 1)
				go func() {
					_, err := tx.ExecContext(f.Context(), f.sql(`UPDATE {schema}.thing SET n = 6 WHERE id = 1`))
					done <- err
				}()
				f.blocked(1)
				f.exec(fmt.Sprint(`KILL `, id))
				return <-done
			}, dialect.OutcomeUnknown},
			"Deadline": {func(t *testing.T) error {
				// The time is for the statement, not for connecting.
				conn, err := f.db.Conn(t.Context())
				f.ok(err)
				defer func() { _ = conn.Close() }()
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				defer cancel()
				_, err = conn.ExecContext(ctx, `SELECT SLEEP(60)`)
				return err
			}, dialect.OutcomeUnknown},
			"ReadTimeout": {func(t *testing.T) error {
				_, err := f.in(t).open(with(f.dsn, "readTimeout", "50ms")).ExecContext(f.Context(), `DO SLEEP(60)`)
				return err
			}, dialect.OutcomeUnknown},
			"Cancelled": {func(t *testing.T) error {
				ctx, cancel := context.WithCancel(t.Context())
				done := waiting(t, ctx, f.db)
				cancel()
				return <-done
			}, dialect.OutcomeUnknown},
			"CutInStatement": {func(t *testing.T) error {
				p := proxied(t, f.dsn)
				done := waiting(t, context.WithoutCancel(t.Context()), f.in(t).open(p.dsn))
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
			"Password": {func(t *testing.T) error {
				u, err := url.Parse(f.dsn)
				f.ok(err)
				u.User = url.UserPassword("nobody-"+random(), "wrong")
				return f.in(t).open(u.String()).PingContext(t.Context())
			}, dialect.Other},
			"TooLarge": {func(t *testing.T) error {
				_, err := f.in(t).open(with(f.dsn, "maxAllowedPacket", "1024")).ExecContext(f.Context(), `SELECT '`+string(make([]byte, 2000))+`'`)
				return err
			}, dialect.Other},
			"BadConn":  {func(*testing.T) error { return driver.ErrBadConn }, dialect.Transient},
			"ConnDone": {func(*testing.T) error { return sql.ErrConnDone }, dialect.Transient},
			"Done": {func(t *testing.T) error {
				tx := f.in(t).begin()
				f.ok(tx.Rollback())
				return tx.Commit()
			}, dialect.Other},
		} {
			t.Run(name, func(t *testing.T) {
				err := c.make(t)
				if got := mysql.New().Classify(err); got != c.want {
					t.Errorf("%v (%T) is %v, want %v", err, err, got, c.want)
				}
			})
		}
	})
}

// TestClassifyNumbers covers what no server here can be made to say.
func TestClassifyNumbers(t *testing.T) {
	for number, want := range map[uint16]dialect.Class{
		1020: dialect.Conflict, 3101: dialect.Conflict, 1836: dialect.ReadOnly, 1526: dialect.Missing,
		1040: dialect.Transient, 1047: dialect.Transient, 1114: dialect.Transient, 1203: dialect.Transient, 4031: dialect.Transient,
		1053: dialect.OutcomeUnknown, 1180: dialect.OutcomeUnknown, 1927: dialect.OutcomeUnknown,
		2006: dialect.OutcomeUnknown, 2013: dialect.OutcomeUnknown, 3169: dialect.OutcomeUnknown,
		1045: dialect.Other, 1064: dialect.Other, 1142: dialect.Other, 1406: dialect.Other, 0: dialect.Other,
	} {
		if got := mysql.New().Classify(&driverpkg.MySQLError{Number: number}); got != want {
			t.Errorf("%d is %v, want %v", number, got, want)
		}
	}
	for message, want := range map[string]dialect.Class{
		"The MySQL server is running with the --super-read-only option so it cannot execute this statement":  dialect.ReadOnly,
		"The MariaDB server is running with the --read-only option so it cannot execute this statement":      dialect.ReadOnly,
		"The MySQL server is running with the --secure-file-priv option so it cannot execute this statement": dialect.Other,
	} {
		if got := mysql.New().Classify(&driverpkg.MySQLError{Number: 1290, Message: message}); got != want {
			t.Errorf("%s is %v, want %v", message, got, want)
		}
	}
}

// TestDuplicates yields a duplicate error for an id that waits, ready or scheduled,
// and leaves the caller a transaction to roll back.
func TestDuplicates(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		ready, scheduled := message("ready", ""), message("scheduled", "")
		scheduled.Delay = time.Hour
		f.insert(ready, scheduled)
		for _, batch := range [][]dialect.Message{{ready}, {scheduled}, {message("x", ""), ready}, {message("x", ""), message("y", ""), scheduled}} {
			tx := f.begin()
			err := f.store.Insert(t.Context(), tx, batch)
			if got := mysql.New().Classify(err); got != dialect.Duplicate {
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

// TestDeadlockVictim makes a settle the victim of a deadlock in its middle. The server
// has rolled it back then, and a statement or a commit after that would be a
// transaction of its own.
func TestDeadlockVictim(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.run(keyIn(0), 30)
		lease := f.claim(1, "me")
		s := dialect.Settlement{
			Archive: true, Published: f.refs(keyIn(0) + ".2"),
			Failed: []dialect.Failure{{Ref: f.ref(keyIn(0) + ".1"), Attempts: 1, Blocking: true}},
		}
		before := f.state()
		other := f.begin()
		// More rows changed than the settle has: the server chooses the lesser one.
		_, err := other.ExecContext(f.Context(), f.sql(`UPDATE {ready} SET replay = 9`))
		f.ok(err)
		done := make(chan error, 1)
		go func() {
			ok, err := f.store.Settle(context.WithoutCancel(t.Context()), f.db, lease, time.Hour, s)
			if ok {
				err = errors.New("settled")
			}
			done <- err
		}()
		f.blocked(1)
		_, err = other.ExecContext(f.Context(), f.sql(`UPDATE {lane} SET served_at = UTC_TIMESTAMP(6) WHERE lane = 1`))
		f.ok(err)
		err = <-done
		f.is("class", mysql.New().Classify(err), dialect.Conflict)
		f.ok(other.Rollback())
		f.is("state", f.state(), before)
		f.settle(lease, s)
	})
}

// TestCancelledChangesNothingLater cancels each write while it waits for the lane.
// The driver closes the connection and the server goes on; outside a transaction the
// statement would be applied when the lock is released.
func TestCancelledChangesNothingLater(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		lease := f.written()
		for name, write := range map[string]func(ctx context.Context) error{
			"Extend": func(ctx context.Context) error {
				_, err := f.store.Extend(ctx, f.db, lease, 2*time.Hour)
				return err
			},
			"Release": func(ctx context.Context) error { return f.store.Release(ctx, f.db, lease) },
			"Settle": func(ctx context.Context) error {
				_, err := f.store.Settle(ctx, f.db, lease, time.Hour, dialect.Settlement{Published: f.refs(keyIn(0) + ".ready")})
				return err
			},
			"Discard": func(ctx context.Context) error {
				_, err := f.store.Discard(ctx, f.db, dialect.Filter{All: true}, 9)
				return err
			},
		} {
			t.Run(name, func(t *testing.T) {
				f := f.in(t)
				before := f.state()
				holder := f.begin()
				_, err := holder.ExecContext(f.Context(), f.sql(`SELECT lane FROM {lane} WHERE lane = 1 FOR UPDATE`))
				f.ok(err)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- write(ctx) }()
				f.blocked(1)
				cancel()
				f.is("class", mysql.New().Classify(<-done), dialect.OutcomeUnknown)
				f.ok(holder.Rollback())
				f.await("no transactions left", func() bool {
					return f.count(`SELECT COUNT(*) FROM information_schema.innodb_trx`) == 0
				})
				f.is("state", f.state(), before)
			})
		}
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
		t.Fatal("the server's DSN is no URL")
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
