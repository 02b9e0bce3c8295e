package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// TestDeferredTransactions runs everything that writes at once on pools whose
// transactions begin as readers: none is refused because another has written since.
func TestDeferredTransactions(t *testing.T) {
	e := fresh(t, 2)
	e.exec(`CREATE TABLE orders (n INTEGER)`)
	db := openDSN(t, e.path+"?_busy_timeout=20000&_synchronous=OFF")
	var wg sync.WaitGroup
	loop := func(name string, f func(i int) error) {
		wg.Go(func() {
			for i := range 25 {
				if err := f(i); err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
			}
		})
	}
	var mu sync.Mutex
	messages := func(n int) []dialect.Message {
		mu.Lock()
		defer mu.Unlock()
		return e.messages(make([]string, n)...)
	}
	loop("business", func(int) error { _, err := db.ExecContext(e.ctx, `INSERT INTO orders VALUES (1)`); return err })
	loop("insert", func(int) error {
		tx, err := db.BeginTx(e.ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := e.store.Insert(e.ctx, tx, messages(3)); err != nil {
			return err
		}
		if _, err := e.store.Record(e.ctx, tx, "c", fmt.Sprint(messages(1)[0].ID)); err != nil {
			return err
		}
		return tx.Commit()
	})
	for lane := range 2 {
		store := bind(t, e.tables) // each as in a process of its own
		loop("turn", func(i int) error {
			epoch, _, err := store.Claim(e.ctx, db, lane, owner, time.Minute)
			if err != nil {
				return err
			}
			lease := dialect.Lease{Lane: lane, Owner: owner, Epoch: epoch}
			if _, _, err := store.Surface(e.ctx, db, lease, 10); err != nil {
				return err
			}
			rows, err := store.Ready(e.ctx, db, lane, 0, dialect.Limit{Rows: 4})
			if err != nil {
				return err
			}
			s := dialect.Settlement{Archive: true}
			for j, row := range rows {
				if j%2 == 0 {
					s.Published = append(s.Published, row.Ref())
				} else {
					s.Failed = append(s.Failed, dialect.Failure{Ref: row.Ref(), Dead: i%2 == 0, Delay: time.Hour})
				}
			}
			_, err = store.Settle(e.ctx, db, lease, time.Minute, s)
			return err
		})
	}
	loop("requeue", func(int) error { _, err := e.store.Requeue(e.ctx, db, all, 3); return err })
	loop("discard", func(int) error {
		_, err := e.store.Discard(e.ctx, db, dialect.Filter{States: []string{dialect.Dead}}, 2)
		return err
	})
	loop("replay", func(int) error { _, _, err := e.store.Replay(e.ctx, db, all, nil, 2); return err })
	loop("purge", func(int) error { _, err := e.store.Purge(e.ctx, db, 0, 2); return err })
	loop("claim purge", func(int) error { _, err := e.store.ClaimPurge(e.ctx, db, 0); return err })
	loop("purge inbox", func(int) error { _, err := e.store.PurgeInbox(e.ctx, db, 0, 2); return err })
	loop("inspect", func(int) error { _, err := e.store.Inspect(e.ctx, db); return err })
	wg.Wait()
	e.invariants()
}

// TestNoReadStaysOpen checkpoints after every operation: an open read would be in
// its way.
func TestNoReadStaysOpen(t *testing.T) {
	e := fresh(t, 1)
	other := openDSN(t, e.path) // waits for nobody
	checkpoint := func(after string) {
		t.Helper()
		e.exec(`UPDATE {meta} SET purge_at = purge_at + 1`) // something to move to the file
		if got, err := read(e.ctx, other, `PRAGMA wal_checkpoint(TRUNCATE)`); err != nil || got[0] != "0 0 0" {
			t.Errorf("after %s the checkpoint says %v, %v", after, got, err)
		}
	}
	e.insert(e.messages("a", "a", "a", "b", "", "")...)
	later := e.message("c")
	later.Delay = time.Hour
	e.insert(later)
	checkpoint("Insert")
	lease := e.claim(0)
	checkpoint("Claim")
	for name, f := range map[string]func() error{
		"Inspect": func() error { _, err := e.store.Inspect(e.ctx, e.db); return err },
		"Migrate": func() error { _, err := e.store.Migrate(e.ctx, e.db); return err },
		"Poll":    func() error { _, err := e.store.Poll(e.ctx, e.db, owner, 1); return err },
		"Pending": func() error { _, _, err := e.store.Pending(e.ctx, e.db, owner); return err },
		"Extend":  func() error { _, err := e.store.Extend(e.ctx, e.db, lease, time.Minute); return err },
		"Ready, cut by bytes": func() error {
			_, err := e.store.Ready(e.ctx, e.db, 0, 0, dialect.Limit{Rows: 9, Bytes: 1})
			return err
		},
		"Due":    func() error { _, err := e.store.Due(e.ctx, e.db, 0, dialect.Limit{Rows: 9, Bytes: 1}); return err },
		"Stats":  func() error { _, err := e.store.Stats(e.ctx, e.db, 1); return err },
		"Parked": func() error { _, err := e.store.Parked(e.ctx, e.db, all, 0, 1); return err },
		"a lost Settle": func() error {
			_, err := e.store.Settle(e.ctx, e.db, dialect.Lease{}, time.Minute, dialect.Settlement{Published: e.at(1)})
			return err
		},
		"Settle": func() error {
			_, err := e.store.Settle(e.ctx, e.db, lease, time.Minute, dialect.Settlement{Hold: e.at(2, 3), Failed: []dialect.Failure{retry(e.at(1)[0])}})
			return err
		},
		"Replay": func() error { _, _, err := e.store.Replay(e.ctx, e.db, all, nil, 1); return err },
		"cancelled Ready": func() error {
			ctx, cancel := context.WithCancel(e.ctx)
			cancel()
			_, _ = e.store.Ready(ctx, e.db, 0, 0, dialect.Limit{Rows: 9})
			return nil
		},
	} {
		e.must(f())
		checkpoint(name)
	}
}

// TestWALStaysSmall: with a relay that reads and settles all the time, the log is
// checkpointed and begins anew.
func TestWALStaysSmall(t *testing.T) {
	e := fresh(t, 1)
	lease := e.claim(0)
	largest := int64(0)
	for range 20 {
		messages := e.messages(make([]string, 100)...)
		for i := range messages {
			messages[i].Payload = make([]byte, 2000)
		}
		e.insert(messages...)
		rows := e.ready(0)
		e.settle(lease, dialect.Settlement{Archive: true, Published: refs(rows)})
		info, err := os.Stat(e.path + "-wal")
		e.must(err)
		largest = max(largest, info.Size())
	}
	// 1,000 pages of 4 KiB start a checkpoint, and one transaction more fits in.
	if limit := int64(8 << 20); largest > limit {
		t.Errorf("the log grew to %d bytes, want at most %d", largest, limit)
	}
	size := number(t, e.one(`SELECT page_count * page_size FROM pragma_page_count, pragma_page_size`))
	t.Logf("the log grew to %d KiB beside a file of %d KiB", largest>>10, size>>10)
}

// TestWritersQueue: the write transactions of a store run one at a time, and one that
// waits for its turn leaves when its context ends.
func TestWritersQueue(t *testing.T) {
	e := fresh(t, 1)
	lease := e.claim(0)
	writer, err := e.db.BeginTx(e.ctx, nil)
	e.must(err)
	begun := make(chan struct{})
	first := make(chan error)
	go func() {
		_, err := e.store.Settle(e.ctx, &signal{DB: e.db, begins: begun}, lease, time.Minute, dialect.Settlement{})
		first <- err
	}()
	<-begun // it has the turn, and waits for the writer
	ctx, cancel := context.WithCancel(e.ctx)
	second := make(chan error)
	go func() {
		_, err := e.store.Extend(ctx, nil, lease, time.Minute) // would panic if it got a turn
		second <- err
	}()
	cancel()
	if err := <-second; err == nil {
		t.Error("the second got a turn")
	}
	// Readers and producers are not in the queue.
	e.must2(e.store.Poll(e.ctx, e.db, owner, 1))
	e.must(e.store.Insert(e.ctx, writer, e.messages("k")))
	e.must(writer.Commit())
	e.must(<-first)
	e.must2(e.store.Extend(e.ctx, e.db, lease, time.Minute))
}

// signal tells when a transaction begins.
type signal struct {
	dialect.DB
	begins chan struct{}
}

func (s *signal) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	close(s.begins)
	return s.DB.BeginTx(ctx, opts)
}
