package tail_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/internal/proxy"
	"github.com/outbox-suite/outbox/postgres"
	"github.com/outbox-suite/outbox/postgres/tail"
	"github.com/outbox-suite/outbox/relay"
)

// TestWakesAtCommits tells what wakes, and what does not: the stream comes in the order
// of commits, so a wake-up too many shows at the next.
func TestWakesAtCommits(t *testing.T) {
	onEach(t, func(f *fixture) {
		r := f.start(f.db, tail.Config{}, nil)
		r.streaming(1)
		before := r.woken()

		f.exec(`CREATE TABLE {schema}.other (id int)`)
		f.exec(`INSERT INTO {schema}.other VALUES (1)`)
		undone, err := f.db.BeginTx(f.Context(), nil)
		f.ok(err)
		_, err = f.box.Enqueue(f.Context(), undone, message("undone"))
		f.ok(err)
		f.ok(undone.Rollback())
		later := message("later")
		later.Delay = time.Hour
		f.enqueue(later)
		f.enqueue(message("a"), message("b"), message(""))
		f.await("a wake-up by a commit of several messages", func() bool { return r.woken() > before })

		// By another hand, and then what a settle does.
		f.exec(`INSERT INTO {ready} (lane, id, topic, type) VALUES (0, $1, 'orders', 'made')`, uuid.New())
		f.await("a wake-up by a plain insert", func() bool { return r.woken() > before+1 })
		f.exec(`DELETE FROM {ready}`)
		f.exec(`UPDATE {lane} SET epoch = epoch + 1`)
		f.enqueue(message("c"))
		f.await("a wake-up behind a delete", func() bool { return r.woken() > before+2 })
		if n := r.woken() - before; n != 3 {
			f.Errorf("%d wake-ups by 3 commits that enqueued", n)
		}
	})
}

// TestWakesOnceMore is about the moment in which a commit is in the log and invisible.
func TestWakesOnceMore(t *testing.T) {
	onEach(t, func(f *fixture) {
		r := f.start(f.db, tail.Config{}, func() {})
		r.streaming(1)
		before := r.woken()
		f.enqueue(message("a"))
		f.await("a second wake-up", func() bool { return r.woken() == before+2 })
	})
}

// TestRelayIsWoken publishes with a relay that would not look for an hour.
func TestRelayIsWoken(t *testing.T) {
	onEach(t, func(f *fixture) {
		published := make(chan string, 10)
		var idle atomic.Bool // the last poll found nothing
		r, err := relay.New(f.box, relay.PublisherFunc(func(_ context.Context, messages []relay.Message) []error {
			for _, m := range messages {
				published <- m.Key
			}
			return make([]error, len(messages))
		}), relay.Config{PollMin: time.Hour, PollMax: time.Hour, Observer: relay.ObserverFunc(func(e relay.Event) {
			switch e := e.(type) {
			case relay.Polled:
				idle.Store(e.Lanes == 0)
			case relay.Claimed:
				idle.Store(false)
			}
		})})
		f.ok(err)
		f.enqueue(message("before")) // found at the relay's start
		ctx, stop := context.WithCancel(f.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer stop()
		running.Go(func() {
			if err := r.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		is := func(want string) {
			f.Helper()
			select {
			case got := <-published:
				if got != want {
					f.Errorf("published %q, not %q", got, want)
				}
			case <-time.After(patience):
				f.Fatalf("%q was not published within %v", want, patience)
			}
		}
		is("before")
		f.await("an idle relay", idle.Load)
		f.enqueue(message("unseen")) // while there is no stream: found with its begin
		tailing := f.start(f.db, tail.Config{}, func() {
			r.Wake()
			// On a busy machine others may see a commit later than in that moment.
			time.AfterFunc(time.Second, r.Wake)
		})
		is("unseen")
		tailing.streaming(1)
		for i := range 5 {
			key := fmt.Sprint("key-", i)
			f.await("an idle relay", idle.Load)
			f.enqueue(message(key))
			is(key)
		}
	})
}

// TestStreamIsBegunAgain ends streams in every way there is.
func TestStreamIsBegunAgain(t *testing.T) {
	onEach(t, func(f *fixture) {
		u, err := url.Parse(f.server.DSN)
		if err != nil {
			f.Fatal("the server's DSN is no URL") // which may hold a password
		}
		way, err := proxy.Listen(f.Context(), net.JoinHostPort(u.Hostname(), u.Port()))
		f.ok(err)
		f.Cleanup(way.Close)
		u.Host = way.Addr()
		r := f.start(f.open(u.String()), tail.Config{Every: 100 * time.Millisecond, RetryMin: 5 * time.Millisecond, RetryMax: 50 * time.Millisecond}, nil)

		n := 1
		again := func(end func(slot string)) {
			f.Helper()
			slot := r.streaming(n)
			end(slot)
			n++
			if next := r.streaming(n); next == slot {
				f.Errorf("slot %s is used again", slot)
			}
			f.gone(slot)
			before := r.woken()
			f.enqueue(message("a"))
			f.await("a wake-up by the new stream", func() bool { return r.woken() > before })
			f.exec(`DELETE FROM {ready}`)
		}
		again(func(slot string) { // by an operator, or a failover
			f.exec(`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1`, slot)
		})
		r.lost("57P01")
		again(func(string) { way.Cut() })
		again(func(string) { // which nobody is told of
			way.Silence(true)
			r.lost("the server was silent for")
			way.Silence(false)
			way.Cut() // whatever hangs in a vain attempt
		})
		again(func(string) { // by somebody who removes what the stream needs
			f.exec("DROP PUBLICATION " + f.publication())
			r.lost("does not exist: run as the owner of the table")
			f.ok(tail.Publish(f.Context(), f.db, f.tables))
		})

		last := seen[tail.Streaming](r)
		r.stop()
		f.gone(last[len(last)-1].Slot)
	})
}

// TestKilledBeforeTheStream leaves no slot behind, though the server still waits to make
// it for a transaction that has written.
func TestKilledBeforeTheStream(t *testing.T) {
	onEach(t, func(f *fixture) {
		if f.holds(`SELECT current_setting('server_version_num')::int < 140000`) {
			f.Skip("the server cannot look for its client")
		}
		u, err := url.Parse(f.server.DSN)
		if err != nil {
			f.Fatal("the server's DSN is no URL") // which may hold a password
		}
		way, err := proxy.Listen(f.Context(), net.JoinHostPort(u.Hostname(), u.Port()))
		f.ok(err)
		f.Cleanup(way.Close)
		u.Host = way.Addr()
		writer, err := f.db.BeginTx(f.Context(), nil)
		f.ok(err)
		defer func() { _ = writer.Rollback() }()
		_, err = writer.ExecContext(f.Context(), `SELECT txid_current()`)
		f.ok(err)
		f.start(f.open(u.String()), tail.Config{Every: 100 * time.Millisecond}, nil)
		var slot string
		f.await("a slot that is being made", func() bool {
			err := f.db.QueryRowContext(f.Context(), `SELECT s.slot_name FROM pg_replication_slots AS s JOIN pg_stat_activity AS a ON a.pid = s.active_pid
				WHERE s.database = current_database() AND s.slot_name LIKE 'outbox_tail_%' AND a.wait_event_type = 'Lock'`).Scan(&slot)
			return err == nil
		})
		way.Refuse(true) // no request to cancel arrives either
		way.Cut()
		f.gone(slot)
	})
}

// TestServerGoesAway stops, kills and starts the server.
func TestServerGoesAway(t *testing.T) {
	onEach(t, func(f *fixture) {
		if !f.server.CanRestart() {
			f.Skip("the server is not the test's to stop")
		}
		r := f.start(f.db, tail.Config{RetryMin: 10 * time.Millisecond, RetryMax: 100 * time.Millisecond}, nil)
		for n, end := range []func(context.Context) error{f.server.Stop, f.server.Kill} {
			slot := r.streaming(n + 1)
			f.ok(end(f.Context()))
			f.ok(f.server.Start(f.Context()))
			r.streaming(n + 2)
			f.gone(slot)
			before := r.woken()
			f.enqueue(message("a"))
			f.await("a wake-up after the server's return", func() bool { return r.woken() > before })
		}
	})
}

// TestSlotIsTakenAway has the server do what it does when the log it keeps for a slot
// becomes too much: it ends the stream that does not read.
func TestSlotIsTakenAway(t *testing.T) {
	onEach(t, func(f *fixture) {
		if !f.server.CanRestart() {
			f.Skip("the server is not the test's to configure")
		}
		stalled := make(chan struct{})
		goOn := sync.OnceFunc(func() { close(stalled) })
		f.Cleanup(goOn)
		var r *running
		ready := make(chan struct{})
		wake := func() {
			<-ready
			if r.woken() == 2 { // the first commit
				<-stalled
			}
		}
		r = f.start(f.db, tail.Config{Every: 50 * time.Millisecond, RetryMin: 10 * time.Millisecond}, wake)
		close(ready)
		slot := r.streaming(1)
		f.exec(`ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'`)
		f.Cleanup(func() {
			for _, statement := range []string{`ALTER SYSTEM RESET max_slot_wal_keep_size`, `SELECT pg_reload_conf()`} {
				if _, err := f.db.ExecContext(context.Background(), statement); err != nil {
					f.Error(err)
				}
			}
		})
		f.exec(`SELECT pg_reload_conf()`)
		f.enqueue(message("a"))
		f.await("a stream that stalls", func() bool { return r.woken() == 2 })
		for range 4 { // segments of 16 MB
			f.exec(`SELECT pg_logical_emit_message(false, 'outbox', 'filler')`)
			f.exec(`SELECT pg_switch_wal()`)
		}
		f.await("a report of how far the stream is behind", func() bool {
			w := seen[tail.Watched](r)
			return len(w) > 0 && w[len(w)-1].Behind > 32<<20 && w[len(w)-1].Retained > 32<<20
		})
		f.exec(`CHECKPOINT`)
		f.gone(slot)
		goOn()
		r.streaming(2)
		if len(seen[tail.Lost](r)) == 0 {
			f.Error("a stream that the server has ended was not observed as lost")
		}
		before := r.woken()
		f.enqueue(message("b"))
		f.await("a wake-up by the new stream", func() bool { return r.woken() > before })
	})
}

// TestLogIsReleased writes to a table that has nothing to do with the outbox.
func TestLogIsReleased(t *testing.T) {
	onEach(t, func(f *fixture) {
		r := f.start(f.db, tail.Config{Every: 20 * time.Millisecond}, nil)
		slot := r.streaming(1)
		f.exec(`CREATE TABLE {schema}.other (filler text)`)
		f.exec(`INSERT INTO {schema}.other SELECT repeat('x', 1000) FROM generate_series(1, 1000)`)
		var end string
		f.ok(f.db.QueryRowContext(f.Context(), `SELECT pg_current_wal_lsn()::text`).Scan(&end))
		f.await("the slot to let go of the log", func() bool {
			return f.holds(`SELECT confirmed_flush_lsn >= $2::text::pg_lsn AND temporary FROM pg_replication_slots WHERE slot_name = $1`, slot, end)
		})
		f.await("a report on the slot", func() bool { return len(seen[tail.Watched](r)) > 0 })
		if w := seen[tail.Watched](r)[0]; w.Slot != slot || w.Behind < 0 || w.Retained <= 0 || w.Status != "reserved" {
			f.Errorf("reported %+v of slot %s", w, slot)
		}
	})
}

// TestPollingGoesOn publishes with a relay whose tail cannot read the log.
func TestPollingGoesOn(t *testing.T) {
	onEach(t, func(f *fixture) {
		f.exec("DROP PUBLICATION " + f.publication())
		published := make(chan struct{}, 1)
		r, err := relay.New(f.box, relay.PublisherFunc(func(_ context.Context, messages []relay.Message) []error {
			published <- struct{}{}
			return make([]error, len(messages))
		}), relay.Config{PollMax: 50 * time.Millisecond})
		f.ok(err)
		ctx, stop := context.WithCancel(f.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer stop()
		running.Go(func() { _ = r.Run(ctx) })
		f.start(f.db, tail.Config{}, r.Wake).lost("does not exist")
		for range 3 {
			f.enqueue(message("a"))
			select {
			case <-published:
			case <-time.After(patience):
				f.Fatal("not published")
			}
		}
	})
}

func TestCheck(t *testing.T) {
	onEach(t, func(f *fixture) {
		// finds checks as the user, and looks for all the texts in what it finds.
		finds := func(user string, texts ...string) {
			f.Helper()
			u, err := url.Parse(f.server.DSN)
			if err != nil {
				f.Fatal("the server's DSN is no URL")
			}
			if user != "" {
				u.User = url.UserPassword(user, "secret")
			}
			checked, err := tail.New(f.open(u.String()), f.tables, func() {}, tail.Config{})
			f.ok(err)
			err = checked.Check(f.Context())
			if len(texts) == 0 {
				f.ok(err)
				return
			}
			for _, text := range texts {
				if err == nil || !strings.Contains(err.Error(), text) {
					f.Errorf("found %v, without %s", err, text)
				}
			}
		}
		user := "tail_" + random()
		f.exec("CREATE USER " + user + " PASSWORD 'secret'")
		f.Cleanup(func() {
			if _, err := f.db.ExecContext(context.Background(), "DROP OWNED BY "+user+"; DROP USER "+user); err != nil {
				f.Error(err)
			}
		})
		f.exec("GRANT USAGE ON SCHEMA {schema} TO " + user)

		finds("")
		finds(user, "ALTER ROLE ... REPLICATION")
		f.exec("ALTER USER " + user + " REPLICATION")
		finds(user) // and nothing else: it reads no table

		named := "CREATE PUBLICATION " + f.publication() + " FOR TABLE " + f.sql("{ready}")
		f.exec("DROP PUBLICATION " + f.publication())
		finds("", "does not exist: run as the owner of the table: "+named)
		u, err := url.Parse(f.server.DSN)
		if err != nil {
			f.Fatal("the server's DSN is no URL")
		}
		u.User = url.UserPassword(user, "secret")
		if err := tail.Publish(f.Context(), f.open(u.String()), f.tables); err == nil || !strings.Contains(err.Error(), "run as the owner of the table: "+named) {
			f.Errorf("a user who may not publish got %v", err)
		}
		f.exec("CREATE PUBLICATION " + f.publication() + " FOR TABLE {parked}")
		finds("", "leaves out inserts into the outbox: drop it and run as the owner")
		f.exec("ALTER PUBLICATION " + f.publication() + " SET TABLE {ready}")
		finds("")
		f.exec("ALTER PUBLICATION " + f.publication() + " SET (publish = 'delete')")
		finds("", "leaves out inserts into the outbox")
		f.exec("DROP PUBLICATION " + f.publication())

		// Processes that start at once.
		var starting sync.WaitGroup
		for range 4 {
			starting.Go(func() {
				if err := tail.Publish(f.Context(), f.db, f.tables); err != nil {
					t.Error(err)
				}
			})
		}
		starting.Wait()
		finds("")
	})
}

func TestNewRefuses(t *testing.T) {
	db, err := postgres.Open("postgres://localhost/nobody")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	wake, tables := func() {}, dialect.Tables{Prefix: "outbox"}
	for what, made := range map[string]func() (*tail.Tail, error){
		"db":        func() (*tail.Tail, error) { return tail.New(nil, tables, wake, tail.Config{}) },
		"prefix":    func() (*tail.Tail, error) { return tail.New(db, dialect.Tables{}, wake, tail.Config{}) },
		"wake":      func() (*tail.Tail, error) { return tail.New(db, tables, nil, tail.Config{}) },
		"every":     func() (*tail.Tail, error) { return tail.New(db, tables, wake, tail.Config{Every: 1}) },
		"retry min": func() (*tail.Tail, error) { return tail.New(db, tables, wake, tail.Config{RetryMin: -1}) },
		"retry max": func() (*tail.Tail, error) { return tail.New(db, tables, wake, tail.Config{RetryMax: 1}) },
	} {
		if _, err := made(); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: the error is %v", what, err)
		}
	}
}
