package sqlite_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// expire ends the lease of a lane as the passing of time would.
func (e *env) expire(lane int) {
	e.Helper()
	e.exec(`UPDATE {lane} SET lease_until = lease_until - 86400000000 WHERE lane = ?`, lane)
}

func (e *env) poll(owner string, limit int) []int {
	e.Helper()
	lanes, err := e.store.Poll(e.ctx, e.db, owner, limit)
	e.must(err)
	return lanesOf(lanes)
}

// lanesOf are the lanes of candidates.
func lanesOf(list []dialect.Candidate) (lanes []int) {
	for _, c := range list {
		lanes = append(lanes, c.Lane)
	}
	return lanes
}

func TestPollFindsWork(t *testing.T) {
	e := fresh(t, 4)
	e.equal(e.poll(owner, 10), []int(nil), "nothing there")
	in := func(lane int) dialect.Message {
		m := e.message("")
		m.Lane = lane
		return m
	}
	later := in(3)
	later.Delay = time.Hour
	e.insert(in(2), in(0), later)
	e.equal(e.poll(owner, 10), []int{0, 2}, "ready")
	e.equal(e.poll(owner, 1), []int{0}, "limited")
	e.due()
	e.equal(e.poll(owner, 10), []int{0, 2, 3}, "scheduled and due")

	// A lane is not free while another owns it, and is for its owner.
	lease := e.claim(0)
	e.equal(e.poll("another", 10), []int{2, 3}, "while 0 is owned")
	e.equal(e.poll(owner, 10), []int{2, 3, 0}, "for the owner, served by the claim")
	e.expire(0)
	e.equal(e.poll("another", 10), []int{2, 3, 0}, "after the lease has ended")

	// The least recently served comes first, and held and dead rows are no work.
	e.exec(`UPDATE {lane} SET served_at = 0`)
	e.settle(lease, dialect.Settlement{})
	e.must(e.store.Release(e.ctx, e.db, lease))
	e.equal(e.poll("another", 10), []int{2, 3, 0}, "after 0 was served")
	lease = e.claim(2)
	e.settle(lease, dialect.Settlement{Failed: []dialect.Failure{dead(e.ready(2)[0].Ref())}})
	e.equal(e.poll(owner, 10), []int{3, 0}, "after all of 2 is dead")
	lease = e.claim(0)
	e.settle(lease, dialect.Settlement{Failed: []dialect.Failure{{Ref: e.ready(0)[0].Ref(), Delay: time.Hour}}})
	e.equal(e.poll(owner, 10), []int{3}, "while 0 waits for a retry")
	e.due()
	lanes, err := e.store.Poll(e.ctx, e.db, owner, 10)
	e.must(err)
	e.equal(lanes, []dialect.Candidate{{Lane: 3, Due: true}, {Lane: 0, Epoch: 2, Due: true}}, "when the retry is due")
	e.insert(in(0), in(2))
	e.claim(2)
	lanes, err = e.store.Poll(e.ctx, e.db, owner, 10)
	e.must(err)
	e.equal(lanes, []dialect.Candidate{{Lane: 3, Due: true}, {Lane: 0, Epoch: 2, Due: true}, {Lane: 2, Epoch: 2}}, "with ready messages beside")
}

func TestPending(t *testing.T) {
	e := fresh(t, 4)
	pending := func(owner string) []bool {
		t.Helper()
		work, held, err := e.store.Pending(e.ctx, e.db, owner)
		e.must(err)
		return []bool{work, held}
	}
	e.equal(pending(owner), []bool{false, false}, "nothing")
	e.insert(e.message("k"))
	lane := dialect.LaneOfKey(dialect.KeyHash("k"), 4)
	e.equal(pending(owner), []bool{true, false}, "ready")
	lease := e.claim(lane)
	e.equal(pending(owner), []bool{true, false}, "owned by oneself")
	e.equal(pending("another"), []bool{true, true}, "owned by another")
	e.settle(lease, dialect.Settlement{Failed: []dialect.Failure{retry(e.ready(lane)[0].Ref())}})
	e.equal(pending("another"), []bool{true, true}, "a retry is due")
	e.settle(lease, dialect.Settlement{FailedParked: []dialect.Failure{dead(e.dueRows(lane)[0].Ref())}})
	e.equal(pending("another"), []bool{false, true}, "it is dead")
	e.expire(lane)
	e.equal(pending("another"), []bool{false, false}, "the lease has ended")
}

func TestClaimExtendRelease(t *testing.T) {
	e := fresh(t, 2)
	claim := func(owner string, want int64) {
		t.Helper()
		epoch, ok, err := e.store.Claim(e.ctx, e.db, 0, owner, time.Minute)
		e.must(err)
		if ok != (want > 0) || epoch != want {
			t.Errorf("%s claims: %d, %t, want %d", owner, epoch, ok, want)
		}
	}
	extend := func(lease dialect.Lease, want bool) {
		t.Helper()
		ok, err := e.store.Extend(e.ctx, e.db, lease, 2*time.Minute)
		e.must(err)
		if ok != want {
			t.Errorf("extending %v: %t, want %t", lease, ok, want)
		}
	}
	left := func() time.Duration {
		t.Helper()
		var micros int64
		e.must(e.db.QueryRowContext(e.ctx, e.text(
			`SELECT lease_until - CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000 FROM {lane} WHERE lane = 0`)).Scan(&micros))
		return time.Duration(micros) * time.Microsecond
	}
	claim("a", 1)
	if d := left(); d > time.Minute || d < 59*time.Second {
		t.Errorf("the lease ends in %v, want a minute", d)
	}
	claim("b", 0)
	claim("a", 2) // its own, as after an unknown outcome
	a1, a2 := dialect.Lease{Owner: "a", Epoch: 1}, dialect.Lease{Owner: "a", Epoch: 2}
	extend(a1, false)
	extend(a2, true)
	if d := left(); d > 2*time.Minute || d < 119*time.Second {
		t.Errorf("the lease ends in %v, want two minutes", d)
	}
	extend(dialect.Lease{Owner: "b", Epoch: 2}, false)
	extend(dialect.Lease{Lane: 1, Owner: "a", Epoch: 2}, false)
	e.must(e.store.Release(e.ctx, e.db, a1)) // lost: no error, no effect
	claim("b", 0)
	e.must(e.store.Release(e.ctx, e.db, a2))
	extend(a2, false)
	claim("b", 3)
	e.expire(0)
	extend(dialect.Lease{Owner: "b", Epoch: 3}, true) // nobody has taken it
	claim("a", 0)
	e.expire(0)
	claim("a", 4)
	extend(dialect.Lease{Owner: "b", Epoch: 3}, false)
	if epoch, ok, err := e.store.Claim(e.ctx, e.db, 2, "a", time.Minute); ok || err != nil || epoch != 0 {
		t.Errorf("a lane that does not exist: %d, %t, %v", epoch, ok, err)
	}
}

// TestClaimRaced lets many claim a lane that is always free again: every epoch has
// one owner.
func TestClaimRaced(t *testing.T) {
	e := fresh(t, 1)
	pools := []dialect.DB{e.db, openDSN(t, e.path+"?_busy_timeout=10000"), open(t, e.path)}
	stores := []dialect.Store{e.store, e.store, bind(t, e.tables)}
	var mu sync.Mutex
	owners := make(map[int64]string)
	var wg sync.WaitGroup
	for i := range 9 {
		db, store := pools[i%3], stores[i%3]
		wg.Go(func() {
			me := fmt.Sprint("relay-", i)
			for range 20 {
				epoch, ok, err := store.Claim(e.ctx, db, 0, me, 0) // ends at once
				if err != nil {
					t.Error(err)
					return
				}
				if !ok {
					continue
				}
				mu.Lock()
				if other, taken := owners[epoch]; taken {
					t.Errorf("epoch %d belongs to %s and %s", epoch, other, me)
				}
				owners[epoch] = me
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if epoch := e.one(`SELECT epoch FROM {lane}`); epoch != fmt.Sprint(len(owners)) {
		t.Errorf("epoch is %s after %d claims", epoch, len(owners))
	}
}

// TestLooksTakeNoLock runs everything that finds nothing to do while another writes.
func TestLooksTakeNoLock(t *testing.T) {
	e := fresh(t, 2)
	lease := e.claim(0)
	e.must2(e.store.ClaimPurge(e.ctx, e.db, time.Hour))
	writer, err := e.db.BeginTx(e.ctx, nil)
	e.must(err)
	defer func() { _ = writer.Rollback() }()
	e.must(e.store.Insert(e.ctx, writer, e.messages("k")))

	impatient := openDSN(t, e.path+"?_txlock=immediate") // waits for nobody
	all := dialect.Filter{All: true}
	for name, look := range map[string]func(ctx context.Context) error{
		"Migrate": func(ctx context.Context) error { _, err := e.store.Migrate(ctx, impatient); return err },
		"Inspect": func(ctx context.Context) error { _, err := e.store.Inspect(ctx, impatient); return err },
		"Poll":    func(ctx context.Context) error { _, err := e.store.Poll(ctx, impatient, owner, 10); return err },
		"Pending": func(ctx context.Context) error { _, _, err := e.store.Pending(ctx, impatient, owner); return err },
		"Surface": func(ctx context.Context) error {
			moved, ok, err := e.store.Surface(ctx, impatient, lease, 10)
			if err == nil && (moved != 0 || !ok) {
				err = fmt.Errorf("%d, %t", moved, ok)
			}
			return err
		},
		"Due": func(ctx context.Context) error {
			_, err := e.store.Due(ctx, impatient, 0, dialect.Limit{Rows: 10})
			return err
		},
		"Ready": func(ctx context.Context) error {
			_, err := e.store.Ready(ctx, impatient, 0, 0, dialect.Limit{Rows: 10})
			return err
		},
		"Stats":      func(ctx context.Context) error { _, err := e.store.Stats(ctx, impatient, 10); return err },
		"Parked":     func(ctx context.Context) error { _, err := e.store.Parked(ctx, impatient, all, 0, 10); return err },
		"Requeue":    func(ctx context.Context) error { _, err := e.store.Requeue(ctx, impatient, all, 10); return err },
		"Discard":    func(ctx context.Context) error { _, err := e.store.Discard(ctx, impatient, all, 10); return err },
		"Replay":     func(ctx context.Context) error { _, _, err := e.store.Replay(ctx, impatient, all, nil, 10); return err },
		"Purge":      func(ctx context.Context) error { _, err := e.store.Purge(ctx, impatient, 0, 10); return err },
		"ClaimPurge": func(ctx context.Context) error { _, err := e.store.ClaimPurge(ctx, impatient, time.Hour); return err },
		"Recorded":   func(ctx context.Context) error { _, err := e.store.Recorded(ctx, impatient, "c", "m"); return err },
		"PurgeInbox": func(ctx context.Context) error { _, err := e.store.PurgeInbox(ctx, impatient, 0, 10); return err },
	} {
		if err := look(e.ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
