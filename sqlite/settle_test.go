package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/sqlite"
)

// counted counts the transactions of a pool.
type counted struct {
	*sql.DB
	begun atomic.Int64
}

func (c *counted) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	c.begun.Add(1)
	return c.DB.BeginTx(ctx, opts)
}

// outcome is what a call behind a lease came to.
type outcome struct {
	ok  bool
	err error
}

// settleWhileHeld lets settlements wait for the writer's place together, and returns
// what they came to and how many transactions that took.
func settleWhileHeld(e *env, db *counted, calls ...func() (bool, error)) (outcomes []outcome, transactions int64) {
	e.Helper()
	release := sqlite.Hold(e.store)
	results := make([]chan outcome, len(calls))
	for i, call := range calls {
		results[i] = make(chan outcome, 1)
		go func() {
			ok, err := call()
			results[i] <- outcome{ok, err}
		}()
	}
	e.await(func() bool { return sqlite.Waiting(e.store) == len(calls) })
	db.begun.Store(0)
	release()
	for _, r := range results {
		outcomes = append(outcomes, <-r)
	}
	return outcomes, db.begun.Load()
}

func (e *env) await(reached func() bool) {
	e.Helper()
	for end := time.Now().Add(time.Minute); !reached(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			e.Fatal("waited in vain")
		}
	}
}

// messageIn is a message without a key in a lane.
func (e *env) messageIn(lane int) dialect.Message {
	for {
		if m := e.message(""); m.Lane == lane {
			return m
		}
	}
}

// Settlements that wait together are one transaction, and each has its own fence.
func TestSettleTogether(t *testing.T) {
	e := fresh(t, 4)
	db := &counted{DB: e.db}
	var calls []func() (bool, error)
	for lane := range 4 {
		e.insert(e.messageIn(lane), e.messageIn(lane))
		lease := e.claim(lane)
		if lane == 2 {
			lease.Epoch-- // lost
		}
		calls = append(calls, func() (bool, error) {
			return e.store.Settle(e.ctx, db, lease, time.Minute, dialect.Settlement{
				Archive: lane == 1, Published: []dialect.Ref{e.ready(lane)[0].Ref()},
			})
		})
	}
	outcomes, transactions := settleWhileHeld(e, db, calls...)
	e.equal(outcomes, []outcome{{true, nil}, {true, nil}, {false, nil}, {true, nil}}, "outcomes")
	e.equal(transactions, int64(1), "transactions")
	for lane, left := range []int{1, 1, 2, 1} {
		e.equal(len(e.ready(lane)), left, "ready rows of the lane")
	}
	e.equal(len(e.rows(`SELECT id FROM {done}`)), 1, "archived")
}

// What is wrong with one settlement, or who gives up, does nothing to the others.
func TestSettleTogetherFails(t *testing.T) {
	e := fresh(t, 4)
	db := &counted{DB: e.db}
	e.exec(`DROP TABLE {done}`)
	gone, giveUp := context.WithCancel(e.ctx)
	var calls []func() (bool, error)
	for lane := range 4 {
		e.insert(e.messageIn(lane))
		lease, row := e.claim(lane), e.ready(lane)[0].Ref()
		ctx := e.ctx
		if lane == 3 {
			ctx = gone
		}
		calls = append(calls, func() (bool, error) {
			return e.store.Settle(ctx, db, lease, time.Minute, dialect.Settlement{Archive: lane == 1, Published: []dialect.Ref{row}})
		})
	}
	outcomes, transactions := settleWhileHeld(e, db, calls[:3]...)
	if outcomes[1].ok || outcomes[1].err == nil {
		t.Errorf("the archive is missing: %+v", outcomes[1])
	}
	e.equal([]outcome{outcomes[0], outcomes[2]}, []outcome{{true, nil}, {true, nil}}, "the others")
	e.equal(transactions, int64(4), "together, then each by itself")
	for lane, left := range []int{0, 1, 0, 1} {
		e.equal(len(e.ready(lane)), left, "ready rows of the lane")
	}

	release := sqlite.Hold(e.store)
	left := make(chan outcome, 1)
	go func() {
		ok, err := calls[3]()
		left <- outcome{ok, err}
	}()
	e.await(func() bool { return sqlite.Waiting(e.store) == 1 })
	giveUp()
	if o := <-left; o.ok || !errors.Is(o.err, context.Canceled) {
		t.Errorf("who gave up got %+v", o)
	}
	e.equal(sqlite.Waiting(e.store), 0, "waiting")
	release()
	e.equal(len(e.ready(3)), 1, "ready rows of who gave up")
}

// Batches of a thousand are settled together, unless they are archived.
func TestSettleLargeBatches(t *testing.T) {
	for _, archive := range []bool{false, true} {
		t.Run(fmt.Sprintf("archive=%t", archive), func(t *testing.T) {
			e := fresh(t, 5)
			db := &counted{DB: e.db}
			var calls []func() (bool, error)
			var want []outcome
			for lane := range 5 {
				var messages []dialect.Message
				for range 1000 {
					messages = append(messages, e.messageIn(lane))
				}
				e.insert(messages...)
				rows, err := e.store.Ready(e.ctx, e.db, lane, 0, dialect.Limit{Rows: 1000})
				e.must(err)
				s := dialect.Settlement{Archive: archive, Published: refs(rows)}
				lease := e.claim(lane)
				calls = append(calls, func() (bool, error) { return e.store.Settle(e.ctx, db, lease, time.Minute, s) })
				want = append(want, outcome{true, nil})
			}
			outcomes, transactions := settleWhileHeld(e, db, calls...)
			e.equal(outcomes, want, "outcomes")
			e.equal(transactions, map[bool]int64{false: 2, true: 5}[archive], "transactions")
			e.equal(e.one(`SELECT count(*) FROM {ready}`), "0", "left")
		})
	}
}

// A message that came back under its own id at another place, within the range of the
// settlement, is not the one that was read.
func TestSettleRangeKnowsPlaces(t *testing.T) {
	e := fresh(t, 4)
	e.insert(e.messageIn(0), e.messageIn(1), e.messageIn(0))
	lease := e.claim(0)
	read := refs(e.ready(0))
	e.exec(`DELETE FROM {ready} WHERE seq = 2`)
	e.exec(`UPDATE {ready} SET seq = 2 WHERE seq = 3`)
	e.settle(lease, dialect.Settlement{Published: read})
	e.equal(e.rows(`SELECT seq FROM {ready}`), []string{"2"}, "what is left")
}

// Of the messages in a settlement's range, no other is settled: not one that was not named,
// and not one whose id is the zero bytes that stand at places nobody named.
func TestSettleRangeLeavesOthers(t *testing.T) {
	for _, zero := range []bool{false, true} {
		t.Run(fmt.Sprintf("zero=%t", zero), func(t *testing.T) {
			e := fresh(t, 1)
			e.insert(e.messages("a", "b", "c", "d")...)
			lease := e.claim(0)
			read := refs(e.ready(0))
			if zero {
				e.exec(`UPDATE {ready} SET id = zeroblob(16) WHERE seq = 2`)
				e.exec(`DELETE FROM {ready} WHERE seq = 3`) // there are as many rows as were named
			}
			e.settle(lease, dialect.Settlement{Archive: true, Published: []dialect.Ref{read[3], read[0], read[2]}})
			e.equal(e.rows(`SELECT seq FROM {ready}`), []string{"2"}, "what is left")
		})
	}
}

// Rows that stand far apart are settled, and one whose id is zero bytes is.
func TestSettleNoRange(t *testing.T) {
	e := fresh(t, 1)
	e.insert(e.messages("a", "b", "c")...)
	e.exec(`UPDATE {ready} SET seq = 1 << 40 WHERE seq = 2`)
	e.exec(`UPDATE {ready} SET id = zeroblob(16) WHERE seq = 3`)
	lease := e.claim(0)
	read := refs(e.ready(0))
	e.settle(lease, dialect.Settlement{Published: []dialect.Ref{read[1]}})
	e.equal(e.rows(`SELECT seq FROM {ready}`), []string{"1", fmt.Sprint(1 << 40)}, "without the zero id")
	e.settle(lease, dialect.Settlement{Published: []dialect.Ref{read[0], read[2]}})
	e.equal(e.one(`SELECT count(*) FROM {ready}`), "0", "left")
}
