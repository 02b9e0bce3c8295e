package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/postgres"
)

// TestOpenErrors shows no part of the password, whatever is wrong with the DSN.
func TestOpenErrors(t *testing.T) {
	for _, dsn := range []string{
		"postgres://me:s3cret@host:port/db",
		"postgres://me:s3cret@host/db?sslmode=sometimes",
		"postgres://me:s3cret%zz@host/db",
		"postgres://me:s3cret/more@host:x/db",
		"postgres://me:s3cret@host/db?sslrootcert=/nowhere",
		"postgres://me@host:s3cret@other/db",
		"host=host port=x password=s3cret",
		"host=host password='s3cret port=1",
		"s3cret",
		"postgres://host/db?connect_timeout=x&password=s3cret",
		"postgres://host/db?default_query_exec_mode=s3cret",
	} {
		db, err := postgres.Open(dsn)
		if err == nil {
			_ = db.Close()
			t.Errorf("%q was opened", dsn)
			continue
		}
		for e := err; e != nil; e = errors.Unwrap(e) {
			if strings.Contains(fmt.Sprintf("%v %+v", e, e), "s3cret") || errors.As(e, new(*pgconn.ParseConfigError)) {
				t.Errorf("the error for %q shows it: %+v", dsn, e)
			}
		}
	}
	if _, err := postgres.Open("postgres://me@host/db?sslmode=verify-full&sslrootcert=/nowhere"); err == nil || !strings.Contains(err.Error(), "/nowhere") {
		t.Errorf("the error does not say which file is missing: %v", err)
	}
}

// TestOpenSettings leaves alone what the DSN says.
func TestOpenSettings(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		for option, want := range map[string]string{"": "outbox", "mine": "mine"} {
			dsn := f.dsn
			if option != "" {
				dsn = with(dsn, "application_name", option)
			}
			var name string
			f.ok(f.open(dsn).QueryRowContext(t.Context(), `SELECT current_setting('application_name')`).Scan(&name))
			f.is("application name", name, want)
		}
	})
}

// TestNativeTx enqueues and records in a transaction of pgx itself, in every
// mode.
func TestNativeTx(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		for _, mode := range every {
			t.Run(mode, func(t *testing.T) {
				ctx := t.Context()
				conn, err := pgx.Connect(ctx, with(f.dsn, "default_query_exec_mode", mode))
				f.ok(err)
				defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
				f.clear()
				messages := []dialect.Message{message("nil", keyIn(0)), message("empty", ""), message("later", "")}
				messages[0].Payload, messages[1].Payload, messages[2].Delay = nil, []byte{}, time.Hour
				for _, commit := range []bool{false, true} {
					tx, err := conn.Begin(ctx)
					f.ok(err)
					f.ok(f.store.Insert(ctx, postgres.Tx(tx), messages))
					f.ok(f.store.Insert(ctx, postgres.Tx(tx), []dialect.Message{message("one", "")}))
					for _, want := range []bool{true, false} {
						fresh, err := f.store.Record(ctx, postgres.Tx(tx), "me", mode)
						f.ok(err)
						f.is("fresh", fresh, want)
					}
					if postgres.Tx(tx).Commit() == nil || postgres.Tx(tx).Rollback() == nil {
						t.Error("the adapter ended the caller's transaction")
					}
					if commit {
						f.ok(tx.Commit(ctx))
					} else {
						f.ok(tx.Rollback(ctx))
						f.is("ready", f.readyTopics(), []string{})
					}
				}
				f.is("ready", f.readyTopics(), []string{"nil", "empty", "one"})
				f.is("parked", f.parked(), []string{"later:scheduled"})
				rows, err := f.store.Ready(ctx, f.db, 1, 0, dialect.Limit{Rows: 9})
				f.ok(err)
				f.is("nil, empty", []bool{rows[0].Payload == nil, rows[1].Payload == nil}, []bool{true, false})

				tx, err := conn.Begin(ctx)
				f.ok(err)
				err = f.store.Insert(ctx, postgres.Tx(tx), messages[:1])
				f.is("class of a duplicate", postgres.New().Classify(err), dialect.Duplicate)
				f.ok(tx.Rollback(ctx))
			})
		}
	})
}

// TestInTx enqueues together with the commit, in every mode.
func TestInTx(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.exec(`CREATE TABLE {schema}.business (n int PRIMARY KEY)`)
		for i, mode := range every {
			t.Run(mode, func(t *testing.T) {
				ctx := t.Context()
				config, err := pgx.ParseConfig(with(f.dsn, "default_query_exec_mode", mode))
				f.ok(err)
				trips := &counter{}
				config.Tracer = trips
				conn, err := pgx.ConnectConfig(ctx, config)
				f.ok(err)
				defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
				f.clear()
				business := f.sql(`INSERT INTO {schema}.business VALUES ($1)`)
				rows := func() int { return len(f.list(`SELECT n::text FROM {schema}.business`)) }
				idle := func() { f.is("transaction status", string(conn.PgConn().TxStatus()), "I") }
				n := 10 * i
				insert := func(fails error, more ...dialect.Message) error {
					n++
					return postgres.InTx(ctx, conn, func(tx pgx.Tx, last dialect.Tx) error {
						// What is handed over first is written last.
						if err := f.store.Insert(ctx, last, more); err != nil {
							return err
						}
						if _, err := tx.Exec(ctx, business, n); err != nil {
							return err
						}
						return fails
					})
				}
				later := message("later", "")
				later.Delay = time.Hour
				both := []dialect.Message{message("a", keyIn(0)), message("b", ""), later}
				before := rows()

				f.ok(insert(nil, both...))
				idle()
				f.is("ready", f.readyTopics(), []string{"a", "b"})
				f.is("parked", f.parked(), []string{"later:scheduled"})
				f.is("business rows", rows(), before+1)

				trips.asked = 0
				f.ok(insert(nil, message("c", "")))
				f.is("calls with one message: begin, business change, message with commit", trips.asked, 3)

				// Nothing remains of what fails, and the connection is usable.
				errOwn := errors.New("own")
				if err := insert(errOwn, message("d", "")); !errors.Is(err, errOwn) {
					t.Errorf("the business failed: %v", err)
				}
				idle()
				f.is("class of a duplicate", postgres.New().Classify(insert(nil, message("e", ""), both[1])), dialect.Duplicate)
				idle()
				err = postgres.InTx(ctx, conn, func(tx pgx.Tx, last dialect.Tx) error {
					_, _ = tx.Exec(ctx, `SELECT 1 / 0`) // a business that does not look
					return f.store.Insert(ctx, last, []dialect.Message{message("f", "")})
				})
				if err == nil {
					t.Error("a transaction that had failed was committed")
				}
				idle()
				func() {
					defer func() { _ = recover() }()
					_ = postgres.InTx(ctx, conn, func(pgx.Tx, dialect.Tx) error { panic("business") })
				}()
				idle()
				_ = postgres.InTx(ctx, conn, func(_ pgx.Tx, last dialect.Tx) error {
					if _, err := f.store.Record(ctx, last, "me", "1"); err == nil {
						t.Error("the inbox took a statement that has not run for its answer")
					}
					if last.Commit() == nil || last.Rollback() == nil {
						t.Error("the adapter ended the transaction")
					}
					return errOwn
				})
				f.is("ready", f.readyTopics(), []string{"a", "b", "c"})
				f.is("business rows", rows(), before+2)

				// A context that ends takes the transaction with it.
				gone, cancel := context.WithCancel(ctx)
				err = postgres.InTx(gone, conn, func(_ pgx.Tx, last dialect.Tx) error {
					cancel()
					return f.store.Insert(ctx, last, []dialect.Message{message("g", "")})
				})
				if !errors.Is(err, context.Canceled) {
					t.Errorf("the context ended: %v", err)
				}
				f.is("ready", f.readyTopics(), []string{"a", "b", "c"})
			})
		}
	})
}

// counter counts what pgx is asked for, a batch as one.
type counter struct{ asked int }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.asked++
	return ctx
}

func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (c *counter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	c.asked++
	return ctx
}

func (c *counter) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (c *counter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// TestWake wakes listeners of the same tables, and no others.
func TestWake(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		waker := f.store.(dialect.Waker)
		listen := func(db *sql.DB, g *fixture) (woken chan struct{}, ended chan error, stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			woken, ended = make(chan struct{}, 100), make(chan error, 1)
			f.await("the last listener gone", func() bool { return g.listening() == 0 })
			go func() { ended <- g.store.(dialect.Waker).Listen(ctx, db, func() { woken <- struct{}{} }) }()
			f.await("a listener", func() bool { return g.listening() == 1 })
			return woken, ended, cancel
		}
		db := f.open(f.dsn)
		woken, ended, stop := listen(db, f)
		g := unmigrated(t, f.dsn)
		other, _, _ := listen(f.open(f.dsn), g)
		for range 3 {
			f.ok(waker.Wake(t.Context(), f.db))
			<-woken
		}
		f.ok(g.store.(dialect.Waker).Wake(t.Context(), f.db))
		<-other
		f.is("signals left", len(woken)+len(other), 0)

		// Its connection does not go back to the pool.
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("listening ended with %v", err)
		}
		f.is("idle connections", db.Stats().Idle, 0)

		// It ends when the connection does, and does not try again.
		_, ended, stop = listen(db, f)
		defer stop()
		f.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = $1`, "LISTEN "+quote(postgres.Channel(f.tables)))
		f.is("class", postgres.New().Classify(<-ended), dialect.OutcomeUnknown)
		f.is("open connections", db.Stats().OpenConnections, 0)
	})
}

// listening counts the sessions that listen for the fixture's tables.
func (f *fixture) listening() int64 {
	return f.count(`SELECT count(*) FROM pg_stat_activity WHERE state = 'idle' AND query = $1`, "LISTEN "+quote(postgres.Channel(f.tables)))
}

// await waits until is returns true.
func (f *fixture) await(what string, is func() bool) {
	f.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			f.Fatalf("there is not %s", what)
		}
	}
}

// TestChannel keeps channels within what a name may hold, and apart.
func TestChannel(t *testing.T) {
	long := strings.Repeat("x", 40)
	seen := map[string]bool{}
	for _, tables := range []dialect.Tables{
		{Prefix: "outbox"}, {Schema: "a", Prefix: "outbox"}, {Schema: long, Prefix: long}, {Schema: long, Prefix: long[1:]}, {Schema: "ü\"'", Prefix: "$1"},
	} {
		name := postgres.Channel(tables)
		if len(name) > 63 || seen[name] {
			t.Errorf("channel %q of %+v", name, tables)
		}
		seen[name] = true
	}
}

// TestListenNeedsPgx says so when the pool's driver is another.
func TestListenNeedsPgx(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		config, err := pgx.ParseConfig(f.dsn)
		f.ok(err)
		db := sql.OpenDB(foreign{stdlib.GetConnector(*config)})
		defer func() { _ = db.Close() }()
		err = f.store.(dialect.Waker).Listen(t.Context(), db, func() {})
		if err == nil || !strings.Contains(err.Error(), "pgx") {
			t.Errorf("error: %v", err)
		}
	})
}
