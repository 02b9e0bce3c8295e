package mysql_test

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

	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
)

// blocked waits until n sessions of the server wait for a lock.
func (f *fixture) blocked(n int64) {
	f.Helper()
	waiting := `SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'`
	if !f.isMariaDB() {
		// There MySQL cannot show a statement with an id's bytes in it.
		waiting = `SELECT COUNT(DISTINCT requesting_engine_transaction_id) FROM performance_schema.data_lock_waits`
	}
	f.await(fmt.Sprintf("%d sessions waiting", n), func() bool { return f.count(waiting) == n })
}

func (f *fixture) isMariaDB() bool { return f.count(`SELECT VERSION() LIKE '%MariaDB%'`) == 1 }

// await waits until is returns true. What InnoDB tells of its transactions is renewed
// only when nobody has asked for a tenth of a second.
func (f *fixture) await(what string, is func() bool) {
	f.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(120 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.Fatalf("there are not %s", what)
		}
	}
}

// begin opens a transaction that is rolled back with the test.
func (f *fixture) begin() *sql.Tx {
	f.Helper()
	tx, err := f.db.BeginTx(f.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	f.ok(err)
	f.Cleanup(func() { _ = tx.Rollback() })
	return tx
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

// messages are all messages, but for the times at which they are due.
func (f *fixture) messages() []string {
	content := `t.lane, t.seq, HEX(t.id), t.topic, t.{key}, t.key_hash, t.type, t.content_type, t.headers, t.created_at, t.revision, t.replay, t.payload`
	return f.list(`
		SELECT CONCAT_WS(' ', 'ready', ` + content + `, t.ready_at) FROM {ready} AS t
		UNION ALL SELECT CONCAT_WS(' ', 'parked', ` + content + `, t.pos, t.state, t.blocking, t.attempts, t.reason, t.parked_at) FROM {parked} AS t
		UNION ALL SELECT CONCAT_WS(' ', 'done', ` + content + `, t.pos, t.outcome, t.attempts, t.reason, t.done_at) FROM {done} AS t
		ORDER BY 1`)
}

// state is everything that stands in the tables.
func (f *fixture) state() []string {
	return slices.Concat(f.messages(),
		f.list(`SELECT CONCAT_WS(' ', pos, available_at) FROM {parked} ORDER BY 1`),
		f.list(`SELECT CONCAT_WS(' ', lane, owner, epoch, lease_until, served_at) FROM {lane} ORDER BY 1`))
}

// TestStaleOwner has a lane taken over before its first owner writes.
func TestStaleOwner(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		stale := f.written()
		f.exec(`UPDATE {lane} SET lease_until = '1970-01-01'`)
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
					thief := f.begin()
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
					f.blocked(1)
					// It waits, and has not touched a message meanwhile: all can be locked.
					tx := f.begin()
					for _, table := range []string{"{ready}", "{parked}"} {
						var all, free int
						f.ok(tx.QueryRowContext(t.Context(), f.sql(`SELECT count(*) FROM `+table)).Scan(&all))
						f.ok(tx.QueryRowContext(t.Context(), f.sql(`SELECT count(*) FROM (SELECT 1 FROM `+table+` FOR UPDATE SKIP LOCKED) AS t`)).Scan(&free))
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

// TestClaim has many sessions claim few lanes at once, whatever their isolation level.
func TestClaim(t *testing.T) {
	onEachServer(t, func(t *testing.T, server *containers.Server) {
		for _, level := range []string{"READ-UNCOMMITTED", "READ-COMMITTED", "REPEATABLE-READ", "SERIALIZABLE"} {
			t.Run(level, func(t *testing.T) {
				f := unmigrated(t, with(server.DSN, isolation(server), "'"+level+"'"))
				f.migrate()
				f.claims()
			})
		}
	})
}

func (f *fixture) claims() {
	f.Helper()
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
						f.Error(err)
						return
					}
					if !ok {
						continue
					}
					mu.Lock()
					if by, twice := taken[[2]int64{int64(lane), epoch}]; twice {
						f.Errorf("lane %d, epoch %d: taken by %s and %s", lane, epoch, by, owner)
					}
					taken[[2]int64{int64(lane), epoch}] = owner
					mu.Unlock()
					if err := f.store.Release(f.Context(), f.db, dialect.Lease{Lane: lane, Owner: owner, Epoch: epoch}); err != nil {
						f.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	f.is("epochs", f.count(`SELECT sum(epoch) FROM {lane}`), len(taken))
}

// TestClaimDoesNotWait passes by a lane whose row is locked, and by one that
// is leased, and takes its own again.
func TestClaimDoesNotWait(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		tx := f.begin()
		_, err := tx.ExecContext(t.Context(), f.sql(`SELECT 1 FROM {lane} WHERE lane = 1 FOR UPDATE`))
		f.ok(err)
		// Whoever waits here waits for longer than the test.
		db := f.open(with(f.dsn, "innodb_lock_wait_timeout", "600"))
		short, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, ok, err := f.store.Claim(short, db, 1, "me", time.Hour)
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

// TestSettleLeavesALongerLease, which a renewal that began later has written first.
func TestSettleLeavesALongerLease(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		lease := f.claim(1, "me")
		for minutes, want := range map[int]int{30: 60, 90: 90, 150: 60} { // one renewed less, more, and much more far ahead
			f.exec(`UPDATE {lane} SET lease_until = UTC_TIMESTAMP(6) + INTERVAL ? MINUTE WHERE lane = 1`, minutes)
			f.settle(lease, dialect.Settlement{}) // by an hour
			f.is("minutes that are left", f.count(`SELECT ROUND(TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(6), lease_until) / 60) FROM {lane} WHERE lane = 1`), int64(want))
		}
	})
}

// TestSettleInTheSameMicrosecond renews a lease by what it is already, which the server
// does not count as a change.
func TestSettleInTheSameMicrosecond(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		lease := f.claim(1, "me")
		for _, found := range []string{"true", "false"} {
			db := f.open(with(f.dsn, "clientFoundRows", found))
			db.SetMaxOpenConns(1)
			_, err := db.ExecContext(t.Context(), `SET timestamp = 2000000000`) // its clock stands still
			f.ok(err)
			for range 2 {
				ok, err := f.store.Settle(t.Context(), db, lease, time.Hour, dialect.Settlement{})
				f.ok(err)
				f.is("settled, clientFoundRows="+found, ok, true)
			}
			stale := lease
			stale.Epoch--
			ok, err := f.store.Settle(t.Context(), db, stale, time.Hour, dialect.Settlement{})
			f.ok(err)
			f.is("settled with the old epoch, clientFoundRows="+found, ok, false)
		}
	})
}
