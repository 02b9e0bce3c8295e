package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/postgres"
)

// blocked waits until n sessions wait for a lock that pid holds.
func (f *fixture) blocked(pid, n int64) {
	f.Helper()
	deadline := time.Now().Add(time.Minute)
	for f.count(`SELECT count(*) FROM pg_stat_activity WHERE $1::int = ANY (pg_blocking_pids(pid))`, pid) != n {
		if time.Now().After(deadline) {
			f.Fatalf("there are not %d sessions waiting", n)
		}
		time.Sleep(time.Millisecond)
	}
}

// begin opens a transaction that is rolled back with the test, and tells which
// session it is in.
func (f *fixture) begin() (*sql.Tx, int64) {
	f.Helper()
	tx, err := f.db.BeginTx(f.Context(), nil)
	f.ok(err)
	f.Cleanup(func() { _ = tx.Rollback() })
	var pid int64
	f.ok(tx.QueryRowContext(f.Context(), "SELECT pg_backend_pid()").Scan(&pid))
	return tx, pid
}

// writes are all that a relay does under its lease, each with the state before
// in which it changes something.
func (f *fixture) writes(lease dialect.Lease) map[string]func() (bool, error) {
	ctx, key := context.WithoutCancel(f.Context()), keyIn(0)
	settle := func(s dialect.Settlement) func() (bool, error) {
		return func() (bool, error) { return f.store.Settle(ctx, f.db, lease, time.Hour, s) }
	}
	ready, parked := f.ref(key+".ready"), f.parkedRef(key+".retry")
	failures := func(row dialect.Ref) []dialect.Failure {
		return []dialect.Failure{{Ref: row, Attempts: 9, Blocking: true}}
	}
	return map[string]func() (bool, error){
		"Extend":  func() (bool, error) { return f.store.Extend(ctx, f.db, lease, time.Hour) },
		"Release": func() (bool, error) { return false, f.store.Release(ctx, f.db, lease) },
		"Surface": func() (bool, error) {
			n, ok, err := f.store.Surface(ctx, f.db, lease, 10)
			if n != 0 && !ok {
				err = errors.Join(err, fmt.Errorf("moved %d", n))
			}
			return ok, err
		},
		"SettleNothing":         settle(dialect.Settlement{}),
		"SettlePublished":       settle(dialect.Settlement{Published: []dialect.Ref{ready}}),
		"SettleArchive":         settle(dialect.Settlement{Archive: true, Published: []dialect.Ref{ready}}),
		"SettleHold":            settle(dialect.Settlement{Hold: []dialect.Ref{ready}}),
		"SettleFailed":          settle(dialect.Settlement{Failed: failures(ready)}),
		"SettleFailedParked":    settle(dialect.Settlement{FailedParked: failures(parked)}),
		"SettlePublishedParked": settle(dialect.Settlement{Archive: true, PublishedParked: []dialect.Ref{parked}}),
	}
}

// written is a fixture with a row for each write, and the lease to do it.
func (f *fixture) written() dialect.Lease {
	key := keyIn(0)
	m := message(key+".scheduled", key)
	m.Delay = time.Nanosecond
	f.insert(message(key+".retry", key), m)
	lease := f.claim(1, "me")
	f.settle(lease, dialect.Settlement{Failed: []dialect.Failure{{Ref: f.ref(key + ".retry"), Attempts: 1, Blocking: true}}})
	f.insert(message(key+".ready", key))
	return lease
}

// state is everything that stands in the tables.
func (f *fixture) state() []string {
	return f.list(`
		SELECT to_jsonb(t)::text FROM {ready} AS t UNION ALL SELECT to_jsonb(t)::text FROM {parked} AS t
		UNION ALL SELECT to_jsonb(t)::text FROM {done} AS t UNION ALL SELECT to_jsonb(t)::text FROM {lane} AS t ORDER BY 1`)
}

// TestStaleOwner has a lane taken over before its first owner writes.
func TestStaleOwner(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		stale := f.written()
		f.exec(`UPDATE {lane} SET lease_until = 'epoch'`)
		f.claim(1, "thief")
		for _, lease := range []dialect.Lease{stale, {Lane: 1, Owner: "me", Epoch: stale.Epoch + 1}, {Lane: 2, Owner: "me", Epoch: stale.Epoch}} {
			before, writes := f.state(), f.writes(lease)
			for _, name := range slices.Sorted(maps.Keys(writes)) {
				ok, err := writes[name]()
				if ok || err != nil {
					t.Errorf("%s: %t, %v", name, ok, err)
				}
				f.is(name, f.state(), before)
			}
		}
	})
}

// TestThiefHasNotCommitted lets each write of the first owner meet the row
// lock of a session that has raised the epoch but not committed. The fence has
// to wait for the lock before a row is touched: what it finds then decides.
func TestThiefHasNotCommitted(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		for _, name := range slices.Sorted(maps.Keys(f.writes(f.written()))) {
			for _, commit := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%t", name, commit), func(t *testing.T) {
					f := f.in(t)
					f.clear()
					write := f.writes(f.written())[name]
					thief, pid := f.begin()
					_, err := thief.ExecContext(t.Context(), f.sql(`UPDATE {lane} SET epoch = epoch + 1, owner = 'thief' WHERE lane = 1`))
					f.ok(err)

					type outcome struct {
						ok  bool
						err error
					}
					done := make(chan outcome, 1)
					go func() {
						ok, err := write()
						done <- outcome{ok, err}
					}()
					f.blocked(pid, 1)
					// It waits, and has not touched a message meanwhile: all can be locked.
					tx, _ := f.begin()
					for _, table := range []string{"{ready}", "{parked}"} {
						var all, free int
						f.ok(tx.QueryRowContext(t.Context(), f.sql(`SELECT count(*) FROM `+table)).Scan(&all))
						f.ok(tx.QueryRowContext(t.Context(), f.sql(`SELECT count(*) FROM (SELECT FROM `+table+` FOR UPDATE SKIP LOCKED) AS t`)).Scan(&free))
						f.is("rows of "+table+" that are free", free, all)
					}
					f.ok(tx.Rollback())

					before := f.state()
					if !commit {
						f.ok(thief.Rollback())
						got := <-done
						f.ok(got.err)
						f.is("ok", got.ok, name != "Release")
						if fmt.Sprint(f.state()) == fmt.Sprint(before) {
							t.Error("nothing was written")
						}
						f.invariant()
						return
					}
					f.ok(thief.Commit())
					before = f.state()
					got := <-done
					f.ok(got.err)
					f.is("ok", got.ok, false)
					f.is("state", f.state(), before)
				})
			}
		}
	})
}

// TestSettleBehindItself repeats a settle while the first one, whose client
// has gone, is still under way.
func TestSettleBehindItself(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.run(keyIn(0), 3)
		lease := f.claim(1, "me")
		settlement := dialect.Settlement{Archive: true, Published: f.refs(f.readyTopics()...)}
		// The first is held up in its transaction after the fence.
		first, pid := f.begin()
		ok, err := f.store.Settle(t.Context(), conn{first, f.db}, lease, time.Hour, settlement)
		f.ok(err)
		f.is("first", ok, true)
		done := make(chan error, 1)
		go func() {
			ok, err := f.store.Settle(context.WithoutCancel(t.Context()), f.db, lease, time.Hour, settlement)
			if err == nil && !ok {
				err = errors.New("the lease is lost")
			}
			done <- err
		}()
		f.blocked(pid, 1)
		f.ok(first.Commit())
		f.ok(<-done)
		f.is("archived", f.count(`SELECT count(*) FROM {done}`), 3)
	})
}

// conn runs single statements in a transaction.
type conn struct {
	*sql.Tx
	db *sql.DB
}

func (c conn) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	return c.db.BeginTx(ctx, opts)
}

// TestClaim has many sessions claim few lanes at once.
func TestClaim(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.db.SetMaxOpenConns(12)
		var mu sync.Mutex
		taken := map[[2]int64]string{}
		var wg sync.WaitGroup
		for i := range 12 {
			owner := fmt.Sprint("relay ", i)
			wg.Go(func() {
				for range 30 {
					for lane := range lanes {
						epoch, ok, err := f.store.Claim(f.Context(), f.db, lane, owner, time.Hour)
						if err != nil {
							t.Error(err)
							return
						}
						if !ok {
							continue
						}
						mu.Lock()
						if by, twice := taken[[2]int64{int64(lane), epoch}]; twice {
							t.Errorf("lane %d, epoch %d: taken by %s and %s", lane, epoch, by, owner)
						}
						taken[[2]int64{int64(lane), epoch}] = owner
						mu.Unlock()
						if err := f.store.Release(f.Context(), f.db, dialect.Lease{Lane: lane, Owner: owner, Epoch: epoch}); err != nil {
							t.Error(err)
							return
						}
					}
				}
			})
		}
		wg.Wait()
		f.is("epochs", f.count(`SELECT sum(epoch) FROM {lane}`), len(taken))
	})
}

// TestClaimDoesNotWait passes by a lane whose row is locked, and by one that
// is leased, and takes its own again.
func TestClaimDoesNotWait(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		tx, _ := f.begin()
		_, err := tx.ExecContext(t.Context(), f.sql(`SELECT FROM {lane} WHERE lane = 1 FOR UPDATE`))
		f.ok(err)
		short, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, ok, err := f.store.Claim(short, f.db, 1, "me", time.Hour)
		f.ok(err)
		f.is("claimed a locked lane", ok, false)
		f.ok(tx.Rollback())

		first := f.claim(1, "me")
		_, ok, err = f.store.Claim(t.Context(), f.db, 1, "you", time.Hour)
		f.ok(err)
		f.is("claimed a leased lane", ok, false)
		// The outcome of the claim was not known: it is repeated.
		second := f.claim(1, "me")
		f.is("epoch", second.Epoch, first.Epoch+1)
		ok, err = f.store.Extend(t.Context(), f.db, first, time.Hour)
		f.ok(err)
		f.is("extended with the old epoch", ok, false)

		ok, err = f.store.Extend(t.Context(), f.db, second, -time.Hour)
		f.ok(err)
		f.is("extended", ok, true)
		f.claim(1, "you")
		_, ok, err = f.store.Claim(t.Context(), f.db, lanes, "me", time.Hour)
		f.ok(err)
		f.is("claimed a lane that is none", ok, false)
	})
}

// TestRaisedIsolation works in sessions whose default isolation is higher.
func TestRaisedIsolation(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		for _, level := range []string{"repeatable read", "serializable"} {
			t.Run(level, func(t *testing.T) {
				g := unmigrated(t, with(f.dsn, "default_transaction_isolation", level))
				g.migrate()
				g.everything()

				// A single statement that has waited sees its snapshot outdated.
				// That is a conflict, and nothing is changed.
				g.clear()
				lease := g.written()
				writes := g.writes(lease)
				for _, name := range slices.Sorted(maps.Keys(writes)) {
					tx, pid := g.begin()
					_, err := tx.ExecContext(t.Context(), g.sql(`UPDATE {lane} SET lease_until = lease_until + interval '1 s' WHERE lane = 1`))
					g.ok(err)
					done := make(chan error, 1)
					go func() {
						_, err := writes[name]()
						done <- err
					}()
					g.blocked(pid, 1)
					g.ok(tx.Commit())
					if err := <-done; err != nil && postgres.New().Classify(err) != dialect.Conflict {
						t.Errorf("%s: %v", name, err)
					}
					g.invariant()
				}
			})
		}
	})
}

// A relay that the network cuts off in the middle of a transaction leaves the lane
// locked until the server ends its session, so what changes rows in a transaction of
// several statements bounds that.
func TestSilentSessionIsEnded(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.exec(`CREATE TABLE {schema}.bound (what text, idle interval)`)
		f.exec(`CREATE FUNCTION {schema}.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO {schema}.bound VALUES (TG_TABLE_NAME || ' ' || TG_OP, current_setting('idle_in_transaction_session_timeout')::interval);
			RETURN NULL;
		END $$`)
		key := keyIn(0)
		delayed := message("delayed", key)
		delayed.Delay = time.Microsecond
		f.insert(message("ready", key), delayed)
		lease := f.claim(1, "a")
		f.exec(`CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {parked} EXECUTE FUNCTION {schema}.note()`)
		f.exec(`CREATE TRIGGER note AFTER INSERT ON {ready} EXECUTE FUNCTION {schema}.note()`)
		moved, ok, err := f.store.Surface(f.Context(), f.db, lease, 10)
		f.ok(err)
		f.is("surfaced", fmt.Sprint(moved, ok), "1 true")
		f.settle(lease, dialect.Settlement{Failed: []dialect.Failure{{Ref: f.ref("ready"), Attempts: 1, Blocking: true}}})
		f.is("bounds", f.list(`SELECT DISTINCT what || ' ' || extract(epoch FROM idle)::int FROM {schema}.bound ORDER BY 1`),
			[]string{"outbox INSERT 30", "outbox_parked DELETE 30", "outbox_parked INSERT 30", "outbox_parked UPDATE 30"})
		f.is("the session keeps its own", f.list(`SELECT setting = reset_val FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'`), []string{"true"})
	})
}
