package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/inbox"
	"github.com/outbox-suite/outbox/postgres"
	"github.com/outbox-suite/outbox/sqlite"
)

func (g target) inbox(t *testing.T, cfg inbox.Config) *inbox.Inbox {
	t.Helper()
	cfg.Prefix = g.prefix
	in, err := inbox.New(g.dialect, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// expect hands a message in and checks the answer.
func (g target) expect(t *testing.T, in *inbox.Inbox, consumer, id string, n int, want bool) {
	t.Helper()
	handled, err := in.Handle(t.Context(), g.db, consumer, id, g.effect(n))
	if err != nil || handled != want {
		t.Fatalf("handle %s by %s: got (%t, %v), want %t", id, consumer, handled, err, want)
	}
}

// way is one of the two to hand a message in.
type way func(ctx context.Context, in *inbox.Inbox, db *sql.DB, f func(context.Context, *sql.Tx) error) (bool, error)

// expect hands the message in once more.
func (w way) expect(t *testing.T, in *inbox.Inbox, g target, want bool) {
	t.Helper()
	if handled, err := w(t.Context(), in, g.db, g.effect(1)); handled != want || err != nil {
		t.Errorf("handed in again: got (%t, %v), want %t", handled, err, want)
	}
}

// eachWay runs a test everywhere for a message that is known by its id and for one that
// is known by its revision.
func eachWay(t *testing.T, test func(t *testing.T, g target, handle way)) {
	t.Helper()
	for name, handle := range map[string]way{
		"id": func(ctx context.Context, in *inbox.Inbox, db *sql.DB, f func(context.Context, *sql.Tx) error) (bool, error) {
			return in.Handle(ctx, db, "billing", "m1", f)
		},
		"revision": func(ctx context.Context, in *inbox.Inbox, db *sql.DB, f func(context.Context, *sql.Tx) error) (bool, error) {
			return in.HandleNext(ctx, db, "billing", "k1", 1, f)
		},
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, g target) { test(t, g, handle) })
		})
	}
}

func TestEffectOnceInSequence(t *testing.T) {
	everywhere(t, func(t *testing.T, g target) {
		in := g.inbox(t, inbox.Config{})
		g.expect(t, in, "billing", "m1", 1, true)
		g.expect(t, in, "billing", "m1", 1, false)
		g.expect(t, g.inbox(t, inbox.Config{}), "billing", "m1", 1, false) // as after a restart
		if got := g.count(t, 1); got != 1 {
			t.Errorf("effect happened %d times", got)
		}
	})
}

func TestEffectOnceAtTheSameMoment(t *testing.T) {
	const messages, deliveries = 6, 4
	everywhere(t, func(t *testing.T, g target) {
		g.db.SetMaxOpenConns(8)
		in := g.inbox(t, inbox.Config{})
		var handled [messages]atomic.Int32
		var all sync.WaitGroup
		start := make(chan struct{})
		for range deliveries {
			for n := range messages {
				all.Go(func() {
					<-start
					ok, err := in.Handle(t.Context(), g.db, "billing", fmt.Sprint("m", n), g.effect(n))
					if err != nil {
						t.Errorf("message %d: %v", n, err)
					}
					if ok {
						handled[n].Add(1)
					}
				})
			}
		}
		close(start)
		all.Wait()
		for n := range messages {
			if got := handled[n].Load(); got != 1 {
				t.Errorf("message %d: %d calls say they handled it", n, got)
			}
			if got := g.count(t, n); got != 1 {
				t.Errorf("message %d: effect happened %d times", n, got)
			}
		}
	})
}

// TestSecondWaitsForFirst lets a message come again while its first handler runs.
func TestSecondWaitsForFirst(t *testing.T) {
	for _, first := range []struct {
		name string
		err  error
	}{
		{"which commits", nil},
		{"which fails", errors.New("handler is unhappy")},
	} {
		t.Run(first.name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, g target) {
				in := g.inbox(t, inbox.Config{})
				type answer struct {
					handled bool
					err     error
				}
				second := make(chan answer, 1)
				_, err := in.Handle(t.Context(), g.db, "billing", "m1", func(ctx context.Context, tx *sql.Tx) error {
					go func() {
						handled, err := in.Handle(t.Context(), g.db, "billing", "m1", g.effect(1))
						second <- answer{handled, err}
					}()
					select {
					case a := <-second:
						t.Errorf("the second did not wait: %+v", a)
					case <-time.After(100 * time.Millisecond): // it had its chance
					}
					return errors.Join(g.effect(1)(ctx, tx), first.err)
				})
				if !errors.Is(err, first.err) {
					t.Fatalf("first: %v", err)
				}
				if a := <-second; a.err != nil || a.handled != (first.err != nil) {
					t.Errorf("second: got %+v", a)
				}
				if got := g.count(t, 1); got != 1 {
					t.Errorf("effect happened %d times", got)
				}
			})
		})
	}
}

// TestSerializable: where the second waits, it may be refused for having begun too
// early. It runs again and finds the duplicate.
func TestSerializable(t *testing.T) {
	everywhere(t, func(t *testing.T, g target) {
		g.db.SetMaxOpenConns(8)
		in := g.inbox(t, inbox.Config{TxOptions: &sql.TxOptions{Isolation: sql.LevelSerializable}, Tries: 20})
		for n := range 3 {
			var handled atomic.Int32
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					ok, err := in.Handle(t.Context(), g.db, "billing", fmt.Sprint("m", n), g.effect(n))
					if err != nil {
						t.Error(err)
					}
					if ok {
						handled.Add(1)
					}
				})
			}
			all.Wait()
			if handled.Load() != 1 || g.count(t, n) != 1 {
				t.Errorf("%d calls say they handled it, effect happened %d times", handled.Load(), g.count(t, n))
			}
		}
	})
}

// TestSwallowedError: some engines give the transaction up with the first error,
// whatever the handler makes of it. The answer must fit what is there.
func TestSwallowedError(t *testing.T) {
	everywhere(t, func(t *testing.T, g target) {
		in := g.inbox(t, inbox.Config{})
		handled, err := in.Handle(t.Context(), g.db, "billing", "m1", func(ctx context.Context, tx *sql.Tx) error {
			if err := g.effect(1)(ctx, tx); err != nil {
				return err
			}
			_, _ = tx.ExecContext(ctx, "INSERT INTO "+g.effects()+" (nothing) VALUES (1)")
			return nil
		})
		recorded, recordedErr := in.Recorded(t.Context(), g.db, "billing", "m1")
		if recordedErr != nil {
			t.Fatal(recordedErr)
		}
		if handled != (err == nil) || handled != recorded || handled != (g.count(t, 1) == 1) {
			t.Errorf("got (%t, %v), recorded %t, %d effects", handled, err, recorded, g.count(t, 1))
		}
	})
}

// TestRecordInDriversTransaction records in a transaction of the driver itself.
func TestRecordInDriversTransaction(t *testing.T) {
	everywhere(t, func(t *testing.T, g target) {
		if g.dsn == "" {
			t.Skip("the driver has none but database/sql's")
		}
		conn, err := pgx.Connect(t.Context(), g.dsn)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		in := g.inbox(t, inbox.Config{})
		for _, want := range []bool{true, false} {
			tx, err := conn.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			fresh, err := in.Record(t.Context(), postgres.Tx(tx), "billing", "m1")
			if err != nil || fresh != want {
				t.Errorf("got (%t, %v), want %t", fresh, err, want)
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		g.expect(t, in, "billing", "m1", 1, false)
	})
}

func TestRollbackForgets(t *testing.T) {
	everywhere(t, func(t *testing.T, g target) {
		in := g.inbox(t, inbox.Config{})
		unhappy := errors.New("unhappy")
		handled, err := in.Handle(t.Context(), g.db, "billing", "m1", func(ctx context.Context, tx *sql.Tx) error {
			if err := g.effect(1)(ctx, tx); err != nil {
				return err
			}
			return unhappy
		})
		if handled || err != unhappy { //nolint:errorlint // it must be the handler's own
			t.Fatalf("got (%t, %v)", handled, err)
		}
		func() {
			defer func() {
				if p := recover(); p != "boom" {
					t.Errorf("recovered %v", p)
				}
			}()
			_, _ = in.Handle(t.Context(), g.db, "billing", "m1", func(ctx context.Context, tx *sql.Tx) error {
				if err := g.effect(1)(ctx, tx); err != nil {
					return err
				}
				panic("boom")
			})
		}()
		if recorded, err := in.Recorded(t.Context(), g.db, "billing", "m1"); recorded || err != nil || g.count(t, 1) != 0 {
			t.Fatalf("recorded %t, %d effects, %v", recorded, g.count(t, 1), err)
		}
		g.expect(t, in, "billing", "m1", 1, true)
		if got := g.count(t, 1); got != 1 {
			t.Errorf("effect happened %d times", got)
		}
	})
}

func TestPerConsumer(t *testing.T) {
	everywhere(t, func(t *testing.T, g target) {
		in := g.inbox(t, inbox.Config{})
		for _, consumer := range []string{"billing", "shipping", "Billing", "billing "} {
			g.expect(t, in, consumer, "m1", 1, true)
			g.expect(t, in, consumer, "m1", 1, false)
		}
		for _, id := range []string{"M1", "m1 ", " m1", "é", "e\u0301"} {
			g.expect(t, in, "billing", id, 1, true)
		}
		if got := g.count(t, 1); got != 9 {
			t.Errorf("effect happened %d times", got)
		}
	})
}

func TestConflictRunsAgain(t *testing.T) {
	everywhere(t, func(t *testing.T, g target) {
		g.dialect = faultyDialect{Dialect: g.dialect}
		in := g.inbox(t, inbox.Config{Tries: 3})
		runs := 0
		run := func(fail int) (bool, error) {
			runs = 0
			return in.Handle(t.Context(), g.db, "billing", fmt.Sprint("m", fail), func(ctx context.Context, tx *sql.Tx) error {
				runs++
				if err := g.effect(fail)(ctx, tx); err != nil {
					return err
				}
				if runs <= fail {
					return fmt.Errorf("statement: %w", errConflict)
				}
				return nil
			})
		}
		if handled, err := run(2); !handled || err != nil || runs != 3 || g.count(t, 2) != 1 {
			t.Errorf("got (%t, %v) after %d runs, %d effects", handled, err, runs, g.count(t, 2))
		}
		handled, err := run(3)
		if handled || !errors.Is(err, errConflict) || runs != 3 || g.count(t, 3) != 0 {
			t.Errorf("got (%t, %v) after %d runs, %d effects", handled, err, runs, g.count(t, 3))
		}
	})
}

// TestDeadlockRunsAgain makes two handlers wait for each other's rows.
func TestDeadlockRunsAgain(t *testing.T) {
	everywhere(t, func(t *testing.T, g target) {
		if !g.deadlocks {
			t.Skip("the engine has one writer at a time: handlers cannot wait for each other's rows")
		}
		in := g.inbox(t, inbox.Config{})
		for n := range 2 {
			g.expect(t, in, "setup", fmt.Sprint("row", n), n, true)
		}
		// Both have their first row before either asks for the other's.
		var met sync.WaitGroup
		met.Add(2)
		var runs atomic.Int32
		var all sync.WaitGroup
		for n := range 2 {
			all.Go(func() {
				first := true
				handled, err := in.Handle(t.Context(), g.db, "billing", fmt.Sprint("m", n), func(ctx context.Context, tx *sql.Tx) error {
					runs.Add(1)
					for i := range 2 {
						_, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE %s SET n = n WHERE n = %d", g.effects(), (n+i)%2))
						if err != nil {
							return err
						}
						if first {
							first = false
							met.Done()
							met.Wait()
						}
					}
					return g.effect(7)(ctx, tx)
				})
				if !handled || err != nil {
					t.Errorf("message %d: got (%t, %v)", n, handled, err)
				}
			})
		}
		all.Wait()
		if got := runs.Load(); got < 3 {
			t.Errorf("handlers ran %d times: there was no deadlock", got)
		}
		if got := g.count(t, 7); got != 2 {
			t.Errorf("effect happened %d times", got)
		}
	})
}

func TestCommitOutcomeUnknown(t *testing.T) {
	for _, c := range []struct {
		name string
		plan []fate
		runs int // of the handler
	}{
		{"applied", []fate{applied}, 1},
		{"undone", []fate{undone}, 2},
		{"not there yet", []fate{delayed}, 1},
		{"undone, then applied", []fate{undone, applied}, 2},
		{"undone twice, then not there yet", []fate{undone, undone, delayed}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachWay(t, func(t *testing.T, g target, handle way) {
				commits := &commits{connect: g.connect, plan: c.plan}
				var arriving sync.WaitGroup
				defer arriving.Wait()
				// A late commit arrives after it was looked for.
				g.dialect = faultyDialect{g.dialect, func() {
					arriving.Go(func() { commits.arrive(t) })
				}}
				in := g.inbox(t, inbox.Config{})
				db := commits.open(t)
				runs := 0
				handled, err := handle(t.Context(), in, db, func(ctx context.Context, tx *sql.Tx) error {
					runs++
					return g.effect(1)(ctx, tx)
				})
				if !handled || err != nil || runs != c.runs {
					t.Errorf("got (%t, %v) after %d runs, want true after %d", handled, err, runs, c.runs)
				}
				if got := g.count(t, 1); got != 1 {
					t.Errorf("effect happened %d times", got)
				}
				handle.expect(t, in, g, false)
			})
		})
	}
}

// TestCommitStaysUnknown is the end of the tries: the error says so, and handing
// the message in again finds out.
func TestCommitStaysUnknown(t *testing.T) {
	eachWay(t, func(t *testing.T, g target, handle way) {
		commits := &commits{connect: g.connect, plan: []fate{undone, undone}}
		g.dialect = faultyDialect{Dialect: g.dialect}
		in := g.inbox(t, inbox.Config{Tries: 2})
		handled, err := handle(t.Context(), in, commits.open(t), g.effect(1))
		var failure *outbox.Error
		if handled || !errors.As(err, &failure) || failure.Class != dialect.OutcomeUnknown || !errors.Is(err, errUnknown) {
			t.Errorf("got (%t, %v)", handled, err)
		}
		handle.expect(t, in, g, true)
	})
}

// TestCommitIsKnownAgain: the handler ran a second time, so the first commit was
// undone, and the handler's own error is what counts.
func TestCommitIsKnownAgain(t *testing.T) {
	eachWay(t, func(t *testing.T, g target, handle way) {
		commits := &commits{connect: g.connect, plan: []fate{undone}}
		g.dialect = faultyDialect{Dialect: g.dialect}
		unhappy := errors.New("unhappy")
		runs := 0
		_, err := handle(t.Context(), g.inbox(t, inbox.Config{}), commits.open(t), func(context.Context, *sql.Tx) error {
			if runs++; runs == 2 {
				return unhappy
			}
			return nil
		})
		if err != unhappy { //nolint:errorlint // it must be the handler's own
			t.Errorf("got %v after %d runs", err, runs)
		}
	})
}

// TestContextEndsWithCommit ends the context while the commit is under way: what
// became of it is found out all the same, and nothing new is begun.
func TestContextEndsWithCommit(t *testing.T) {
	for _, c := range []struct {
		name string
		fate fate
	}{{"applied", applied}, {"undone", undone}} {
		t.Run(c.name, func(t *testing.T) {
			eachWay(t, func(t *testing.T, g target, handle way) {
				ctx, cancel := context.WithCancel(t.Context())
				commits := &commits{connect: g.connect, plan: []fate{c.fate}, during: cancel}
				g.dialect = faultyDialect{Dialect: g.dialect}
				in := g.inbox(t, inbox.Config{})
				handled, err := handle(ctx, in, commits.open(t), g.effect(1))
				if c.fate == applied {
					if !handled || err != nil {
						t.Errorf("got (%t, %v)", handled, err)
					}
					return
				}
				var failure *outbox.Error
				if handled || !errors.As(err, &failure) || failure.Class != dialect.OutcomeUnknown {
					t.Errorf("got (%t, %v)", handled, err)
				}
				if got := g.count(t, 1); got != 0 {
					t.Errorf("effect happened %d times", got)
				}
			})
		})
	}
}

func TestContextEndsInHandler(t *testing.T) {
	everywhere(t, func(t *testing.T, g target) {
		in := g.inbox(t, inbox.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		handled, err := in.Handle(ctx, g.db, "billing", "m1", func(ctx context.Context, tx *sql.Tx) error {
			defer cancel()
			return g.effect(1)(ctx, tx)
		})
		if handled || !errors.Is(err, context.Canceled) {
			t.Errorf("got (%t, %v)", handled, err)
		}
		g.expect(t, in, "billing", "m1", 1, true)
		if got := g.count(t, 1); got != 1 {
			t.Errorf("effect happened %d times", got)
		}
	})
}

func TestHandlerEndsTransaction(t *testing.T) {
	everywhere(t, func(t *testing.T, g target) {
		in := g.inbox(t, inbox.Config{})
		_, err := in.Handle(t.Context(), g.db, "billing", "m1", func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() })
		if err == nil || !strings.Contains(err.Error(), "leave commit and rollback to Handle") {
			t.Errorf("got %v", err)
		}
	})
}

func TestRecordInCallersTransaction(t *testing.T) {
	everywhere(t, func(t *testing.T, g target) {
		in := g.inbox(t, inbox.Config{})
		record := func(end func(*sql.Tx) error) bool {
			t.Helper()
			tx, err := g.db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback()
			fresh, err := in.Record(t.Context(), tx, "billing", "m1")
			if err != nil {
				t.Fatal(err)
			}
			// The transaction stays usable after a duplicate.
			if err := g.effect(1)(t.Context(), tx); err != nil {
				t.Fatal(err)
			}
			if err := end(tx); err != nil {
				t.Fatal(err)
			}
			return fresh
		}
		for i, step := range []struct {
			end   func(*sql.Tx) error
			fresh bool
		}{
			{(*sql.Tx).Rollback, true},
			{(*sql.Tx).Commit, true},
			{(*sql.Tx).Commit, false},
		} {
			if fresh := record(step.end); fresh != step.fresh {
				t.Errorf("step %d: fresh is %t", i, fresh)
			}
		}
		if got := g.count(t, 1); got != 2 {
			t.Errorf("%d effects", got)
		}
	})
}

func TestPurge(t *testing.T) {
	everywhere(t, func(t *testing.T, g target) {
		in := g.inbox(t, inbox.Config{MinRetention: time.Millisecond, ResumeGrace: inbox.NoGrace})
		const messages = 12
		for n := range messages {
			g.expect(t, in, "billing", fmt.Sprint("m", n), n, true)
		}
		if n, err := in.Purge(t.Context(), g.db, time.Hour, 0); n != 0 || err != nil {
			t.Fatalf("purge of what is an hour old: got (%d, %v)", n, err)
		}
		g.expect(t, in, "billing", "m0", 0, false)

		deadline := time.Now().Add(time.Minute)
		purged := 0
		for limit := 5; purged < messages; limit = 0 {
			n, err := in.Purge(t.Context(), g.db, time.Millisecond, limit)
			if err != nil || limit > 0 && n > limit {
				t.Fatalf("purge of at most %d: got (%d, %v)", limit, n, err)
			}
			purged += n
			if time.Now().After(deadline) {
				t.Fatalf("only %d are purged", purged)
			}
		}
		g.expect(t, in, "billing", "m0", 0, true) // forgotten
	})
}

// TestPurgeRefusesToForgetTooSoon: an entry must outlive the broker's redelivery,
// counted from the consumer's return.
func TestPurgeRefusesToForgetTooSoon(t *testing.T) {
	everywhere(t, func(t *testing.T, g target) {
		in := g.inbox(t, inbox.Config{ResumeGrace: inbox.NoGrace})
		_, err := in.Purge(t.Context(), g.db, inbox.DefaultMinRetention-1, 0)
		if invalid := (*outbox.InvalidError)(nil); !errors.As(err, &invalid) || invalid.Field != "older than" || !strings.Contains(err.Error(), "MinRetention") {
			t.Errorf("below the least: got %v", err)
		}
		if _, err := in.Purge(t.Context(), g.db, inbox.DefaultMinRetention, 0); err != nil {
			t.Errorf("at the least: %v", err)
		}
		if _, err := in.Purge(t.Context(), g.db, inbox.DefaultMinRetention, -1); !errors.Is(err, outbox.ErrInvalid) {
			t.Errorf("limit below 0: got %v", err)
		}

		resuming := g.inbox(t, inbox.Config{MinRetention: time.Nanosecond})
		g.expect(t, resuming, "billing", "m1", 1, true)
		if n, err := resuming.Purge(t.Context(), g.db, time.Nanosecond, 0); n != 0 || !errors.Is(err, inbox.ErrResuming) {
			t.Errorf("at the start: got (%d, %v)", n, err)
		}
		g.expect(t, resuming, "billing", "m1", 1, false)
	})
}

func TestNamesAreChecked(t *testing.T) {
	everywhere(t, func(t *testing.T, g target) {
		in := g.inbox(t, inbox.Config{})
		long := strings.Repeat("é", inbox.MaxMessageID/2) + "x" // exactly as many bytes as there may be
		g.expect(t, in, long, long, 1, true)
		g.expect(t, in, long, long, 1, false)
		for _, c := range []struct{ consumer, id, field, reason string }{
			{"", "m1", "consumer", "is empty"},
			{"billing", "", "message id", "is empty"},
			{long + "x", "m1", "consumer", "has 256 bytes"},
			{"billing", long + "x", "message id", "has 256 bytes"},
			{"a\xff", "m1", "consumer", "not valid UTF-8"},
			{"billing", "a\xff", "message id", "not valid UTF-8"},
			{"a\x00", "m1", "consumer", "NUL"},
			{"billing", "a\x00", "message id", "NUL"},
		} {
			_, handleErr := in.Handle(t.Context(), g.db, c.consumer, c.id, g.effect(1))
			_, recordErr := in.Record(t.Context(), nil, c.consumer, c.id)
			_, recordedErr := in.Recorded(t.Context(), g.db, c.consumer, c.id)
			for _, err := range []error{handleErr, recordErr, recordedErr} {
				invalid := (*outbox.InvalidError)(nil)
				if !errors.As(err, &invalid) || invalid.Field != c.field || !strings.Contains(invalid.Reason, c.reason) || !errors.Is(err, outbox.ErrInvalid) {
					t.Errorf("consumer %.5q, id %.5q: got %v", c.consumer, c.id, err)
				}
			}
		}
		if _, err := in.Handle(t.Context(), g.db, "billing", "m1", nil); !errors.Is(err, outbox.ErrInvalid) {
			t.Errorf("no handler: got %v", err)
		}
		if _, err := in.Handle(t.Context(), nil, "billing", "m1", g.effect(1)); !errors.Is(err, outbox.ErrInvalid) {
			t.Errorf("no database: got %v", err)
		}
	})
}

func TestCheck(t *testing.T) {
	everywhere(t, func(t *testing.T, g target) {
		if err := g.inbox(t, inbox.Config{}).Check(t.Context(), g.db); err != nil {
			t.Error(err)
		}
		g.prefix += "x"
		err := g.inbox(t, inbox.Config{}).Check(t.Context(), g.db)
		if !errors.Is(err, outbox.ErrNotReady) || !strings.Contains(err.Error(), g.prefix+"_inbox") || !strings.Contains(err.Error(), "outbox migrate") {
			t.Errorf("got %v", err)
		}
	})
}

func TestNewRefuses(t *testing.T) {
	if _, err := inbox.New(nil, inbox.Config{}); !errors.Is(err, outbox.ErrInvalid) {
		t.Errorf("no dialect: got %v", err)
	}
	for want, cfg := range map[string]inbox.Config{
		"tries":         {Tries: -1},
		"read-only":     {TxOptions: &sql.TxOptions{ReadOnly: true}},
		"min retention": {MinRetention: -1},
		"resume grace":  {ResumeGrace: -2},
		"prefix":        {Prefix: strings.Repeat("x", 5000)},
	} {
		if _, err := inbox.New(sqlite.New(), cfg); !errors.Is(err, outbox.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
}
