package sqlite_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/sqlite"
)

func TestInsertKeepsEverything(t *testing.T) {
	e := fresh(t, 1)
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	payloads := [][]byte{nil, {}, {0}, every, []byte("{\"a\":\"\\u0000\"}"), bytes.Repeat(every, 4096), bytes.Repeat([]byte{0xff}, 1<<20+1)}
	keys := []string{"", " ", "a", "A", "a ", " a", "a\x00b", "a\x00", "\u00e9", "e\u0301", "ſ", "'; DROP TABLE x --", strings.Repeat("k", 4096)}
	headers := []string{`{}`, `{"b":"1","a":"2","a":"3"}`, "{\n\t\"x\" :  \"\\u0000\\u00e9é\"}", `{"big":"` + strings.Repeat("h", 1<<16) + `"}`}
	var want []dialect.Message
	for i, payload := range payloads {
		m := e.message("")
		m.Payload, m.Headers, m.Revision, m.Replay = payload, headers[i%len(headers)], int64(i)<<60, i
		m.Topic, m.Type, m.ContentType = fmt.Sprintf("tøpic %d\x00 ", i), " type ", ""
		want = append(want, m)
	}
	for _, key := range keys {
		m := e.message(key + "k") // the empty key is none to message
		m.Key.V, m.KeyHash.V = key, dialect.KeyHash(key)
		want = append(want, m)
	}
	scheduled := make([]dialect.Message, len(want))
	for i, m := range want {
		scheduled[i] = m
		scheduled[i].ID[15] = 1
		scheduled[i].Delay = time.Hour
	}
	e.insert(append(append([]dialect.Message{}, want...), scheduled...)...)

	ready := e.ready(0)
	if len(ready) != len(want) {
		t.Fatalf("%d rows, want %d", len(ready), len(want))
	}
	for i, row := range ready {
		e.equal(row.Message, want[i], fmt.Sprint("ready message ", i))
		if row.Seq != int64(i+1) || row.Pos != 0 || row.Blocked || row.Attempts != 0 {
			t.Errorf("row %d: %+v", i, row)
		}
		if age := time.Since(row.CreatedAt); age < -time.Second || age > time.Minute || row.CreatedAt.Location() != time.UTC {
			t.Errorf("created at %v, %v ago", row.CreatedAt, age)
		}
		if row.Age < 0 || row.Age > time.Minute {
			t.Errorf("age is %v", row.Age)
		}
	}
	parked, err := e.store.Parked(e.ctx, e.db, dialect.Filter{All: true}, 0, 1000)
	e.must(err)
	if len(parked) != len(want) {
		t.Fatalf("%d parked rows, want %d", len(parked), len(want))
	}
	for i, row := range parked {
		scheduled[i].Delay = 0 // not a column
		e.equal(row.Message, scheduled[i], fmt.Sprint("scheduled message ", i))
		if row.State != dialect.Scheduled || row.Seq != 0 || row.Pos != int64(i+1) || !row.DueIn.Valid ||
			row.DueIn.V <= 59*time.Minute || row.DueIn.V > time.Hour {
			t.Errorf("scheduled row %d: %s due in %v, seq %d, pos %d", i, row.State, row.DueIn, row.Seq, row.Pos)
		}
	}

	// Every move keeps them, too.
	lease := e.claim(0)
	var failed []dialect.Failure
	for _, row := range ready {
		failed = append(failed, dialect.Failure{Ref: row.Ref(), Attempts: 1, Reason: "no"})
	}
	e.settle(lease, dialect.Settlement{Failed: failed})
	due := e.dueRows(0)
	if len(due) != len(want) {
		t.Fatalf("%d due rows, want %d", len(due), len(want))
	}
	for _, row := range due {
		e.equal(row.Message, want[row.Seq-1], fmt.Sprint("retried message ", row.Seq))
	}
	e.settle(lease, dialect.Settlement{Archive: true, PublishedParked: refs(due)})
	n, _, err := e.store.Replay(e.ctx, e.db, dialect.Filter{All: true}, nil, 1000)
	e.must(err)
	e.equal(n, len(want), "replayed")
	for _, row := range e.ready(0) {
		i := int(row.Seq) - 1 - len(want)
		want[i].Replay++
		e.equal(row.Message, want[i], fmt.Sprint("replayed message ", i))
	}
}

func TestInsertManyInOrder(t *testing.T) {
	e := fresh(t, 1)
	e.insert() // nothing
	for _, n := range []int{1, 99, 100, 101, 250, 1000} {
		before := len(e.ready(0))
		messages := e.messages(make([]string, n)...)
		e.insert(messages...)
		rows := e.ready(0)[before:]
		if len(rows) != n {
			t.Fatalf("%d rows, want %d", len(rows), n)
		}
		for i, row := range rows {
			if row.ID != messages[i].ID || row.Seq != int64(before+i+1) {
				t.Fatalf("of %d the one at %d is %v with seq %d", n, i, row.ID, row.Seq)
			}
		}
	}
}

func TestSeqIsNeverGivenTwice(t *testing.T) {
	e := fresh(t, 1)
	lease := e.claim(0)
	last := int64(0)
	for range 5 {
		e.insert(e.messages("a", "b")...)
		rows := e.ready(0)
		if rows[0].Seq <= last {
			t.Fatalf("seq %d comes after %d", rows[0].Seq, last)
		}
		last = rows[1].Seq
		e.settle(lease, dialect.Settlement{Published: refs(rows)})
	}
}

func TestInsertDuplicates(t *testing.T) {
	e := fresh(t, 1)
	m, later := e.message("k"), e.message("k")
	later.Delay = time.Hour
	e.insert(m, later)
	before := e.dump()
	for name, messages := range map[string][]dialect.Message{
		"ready":          {m},
		"scheduled":      {later},
		"after another":  {e.message("k"), m},
		"in one call":    func() []dialect.Message { x := e.message("k"); return []dialect.Message{x, x} }(),
		"both scheduled": func() []dialect.Message { x := e.message("k"); x.Delay = 1; return []dialect.Message{x, x} }(),
	} {
		tx, err := e.db.BeginTx(e.ctx, nil)
		e.must(err)
		if err := e.store.Insert(e.ctx, tx, messages); sqlite.New().Classify(err) != dialect.Duplicate {
			t.Errorf("%s: %v", name, err)
		}
		e.must(tx.Rollback())
		e.same(before, name)
	}
	// An id that is ready may be scheduled, and one that is dead may wait again.
	m.Delay = time.Hour
	e.insert(m)
	lease := e.claim(0)
	e.settle(lease, dialect.Settlement{Failed: []dialect.Failure{dead(e.at(1)[0])}})
	m.Delay = 0
	e.insert(m)
	e.settle(lease, dialect.Settlement{Failed: []dialect.Failure{dead(e.ready(0)[0].Ref())}})
}

func TestInsertRolledBackLeavesNothing(t *testing.T) {
	e := fresh(t, 1)
	before := e.dump()
	tx, err := e.db.BeginTx(e.ctx, nil)
	e.must(err)
	later := e.message("k")
	later.Delay = time.Hour
	e.must(e.store.Insert(e.ctx, tx, []dialect.Message{e.message("k"), later}))
	e.must(tx.Rollback())
	e.same(before, "a transaction that was rolled back")
}

// TestInsertIsNotInterrupted guards against the worst that a context can do: SQLite
// rolls back the transaction of a write that is interrupted, and the caller's next
// statement commits by itself.
func TestInsertIsNotInterrupted(t *testing.T) {
	e := fresh(t, 1)
	e.exec(`CREATE TABLE orders (n INTEGER)`)
	for round := range 30 {
		tx, err := e.db.BeginTx(e.ctx, nil)
		e.must(err)
		e.must2(tx.ExecContext(e.ctx, `INSERT INTO orders VALUES (1)`))
		ctx, cancel := context.WithCancel(e.ctx)
		messages := e.messages(make([]string, 300)...)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range round * 100 { // an ever later moment
				_ = ctx.Err()
			}
			cancel()
		}()
		err = e.store.Insert(ctx, tx, messages)
		<-done
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		_, next := tx.ExecContext(e.ctx, `INSERT INTO orders VALUES (2)`)
		e.must(next)
		e.must(tx.Rollback())
		if n := e.one(`SELECT count(*) FROM orders`); n != "0" {
			t.Fatalf("round %d: %s rows outlive the rollback, insert said %v", round, n, err)
		}
	}
	tx, err := e.db.BeginTx(e.ctx, nil)
	e.must(err)
	defer func() { _ = tx.Rollback() }()
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	if err := e.store.Insert(ctx, tx, e.messages("k")); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
	if _, err := e.store.Record(ctx, tx, "c", "m"); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
}

// TestInterruptedTransactionsChangeNothing interrupts the store's own transactions
// at all kinds of moments: whatever the moment, all or nothing.
func TestInterruptedTransactionsChangeNothing(t *testing.T) {
	e := fresh(t, 1)
	e.insert(e.messages(make([]string, 500)...)...)
	lease := e.claim(0)
	const counts = `SELECT (SELECT count(*) FROM {ready}), (SELECT count(*) FROM {parked}), (SELECT count(*) FROM {done})`
	interrupted, settled := 0, 0
	for round := range 40 {
		rows := refs(e.ready(0)[:12])
		ctx, cancel := context.WithTimeout(e.ctx, time.Duration(round*round*20)*time.Microsecond)
		ok, err := e.store.Settle(ctx, e.db, lease, time.Minute, dialect.Settlement{
			Archive: true, Published: rows[:10],
			Failed: []dialect.Failure{{Ref: rows[10], Attempts: 1}, {Ref: rows[11], Dead: true}},
		})
		cancel()
		before := fmt.Sprint(500-12*settled, 2*settled, 10*settled)
		after := fmt.Sprint(500-12*(settled+1), 2*(settled+1), 10*(settled+1))
		switch got := e.one(counts); {
		case err == nil && ok && got == after:
			settled++
		case err == nil:
			t.Fatalf("round %d: settled %t, ready, parked and done have %s, want %s", round, ok, got, after)
		case sqlite.New().Classify(err) != dialect.OutcomeUnknown:
			t.Fatalf("round %d: %v is %v", round, err, sqlite.New().Classify(err))
		case got == after:
			settled++
		case got != before:
			t.Fatalf("round %d: %v: ready, parked and done have %s, want %s or %s", round, err, got, before, after)
		}
		if err != nil {
			interrupted++
		}
	}
	if interrupted == 0 {
		t.Error("nothing was interrupted")
	}
	t.Logf("%d of 40 transactions were interrupted, %d settled", interrupted, settled)
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestRecord is the inbox.
func TestRecord(t *testing.T) {
	e := fresh(t, 1)
	record := func(consumer, id string) bool {
		t.Helper()
		tx, err := e.db.BeginTx(e.ctx, nil)
		e.must(err)
		fresh, err := e.store.Record(e.ctx, tx, consumer, id)
		e.must(err)
		e.must2(tx.ExecContext(e.ctx, e.text(`UPDATE {meta} SET purge_at = purge_at + 1`))) // it stays usable
		e.must(tx.Commit())
		return fresh
	}
	ids := []string{"m", "M", "m ", "", "m\x00", "\u00e9", "e\u0301"}
	for _, id := range ids {
		recorded, err := e.store.Recorded(e.ctx, e.db, "c", id)
		e.must(err)
		e.equal([]bool{recorded, record("c", id), record("c", id), record("d", id), record("C", id)},
			[]bool{false, true, false, true, true}, fmt.Sprintf("id %q: recorded, then fresh", id))
		recorded, err = e.store.Recorded(e.ctx, e.db, "c", id)
		e.must(err)
		e.equal(recorded, true, "recorded")
	}
	e.equal(e.one(`SELECT purge_at FROM {meta}`), fmt.Sprint(4*len(ids)), "commits")

	// Rolled back, it is forgotten.
	tx, err := e.db.BeginTx(e.ctx, nil)
	e.must(err)
	fresh, err := e.store.Record(e.ctx, tx, "c", "rolled back")
	e.must(err)
	e.must(tx.Rollback())
	e.equal([]bool{fresh, record("c", "rolled back")}, []bool{true, true}, "fresh")

	// At the same moment one of many is first, in deferred transactions, too.
	deferred := openDSN(t, e.path+"?_busy_timeout=10000")
	for _, db := range []*sql.DB{e.db, deferred} {
		var first int
		results := make(chan bool)
		for range 8 {
			go func() {
				tx, err := db.BeginTx(e.ctx, nil)
				if err != nil {
					t.Error(err)
					results <- false
					return
				}
				fresh, err := e.store.Record(e.ctx, tx, "c", fmt.Sprintf("raced %p", db))
				if err == nil {
					err = tx.Commit()
				}
				if err != nil {
					t.Error(err)
				}
				results <- fresh
			}()
		}
		for range 8 {
			if <-results {
				first++
			}
		}
		e.equal(first, 1, "first of eight")
	}

	// Purge goes by age, in batches.
	before := len(e.rows(`SELECT 1 FROM {inbox}`))
	n, err := e.store.PurgeInbox(e.ctx, e.db, time.Hour, 100)
	e.must(err)
	e.equal(n, 0, "purged, all being young")
	e.exec(`UPDATE {inbox} SET recorded_at = recorded_at - 7200000000 WHERE consumer = 'c'`)
	n, err = e.store.PurgeInbox(e.ctx, e.db, time.Hour, 3)
	e.must(err)
	e.equal(n, 3, "purged, limited")
	rest, err := e.store.PurgeInbox(e.ctx, e.db, time.Hour, 10000)
	e.must(err)
	e.equal(len(e.rows(`SELECT 1 FROM {inbox}`)), before-3-rest, "left")
	e.equal(e.one(`SELECT count(*) FROM {inbox} WHERE consumer = 'c'`), "0", "old ones left")
}
