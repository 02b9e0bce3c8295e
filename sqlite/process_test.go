package sqlite_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/sqlite"
)

// TestProcesses runs producers, relays and an operator in three processes on one
// file: nobody gets an error, an epoch has one owner, and every message is published
// once, in the order of its key. The third process uses a pool whose transactions
// are deferred. Who has nothing to do pauses, as a relay does: SQLite's waiters poll,
// and loops that never pause can keep one from its turn for longer than busy_timeout.
func TestProcesses(t *testing.T) {
	if name := os.Getenv("OUTBOX_TEST_DSN"); name != "" {
		process(t, name, os.Getenv("OUTBOX_TEST_NAME"))
		return
	}
	e := fresh(t, 4)
	// What the workers write down before they settle, in one order for all.
	e.exec(`CREATE TABLE published (n INTEGER PRIMARY KEY AUTOINCREMENT, lane, epoch, owner, key, seq, id)`)
	name, err := sqlite.DSN(e.path)
	e.must(err)
	// With a slow disk the writer's place is hardly ever free, and waiters find it by chance.
	const long = "_busy_timeout=300000"
	name = strings.Replace(name, "_busy_timeout=10000", long, 1)
	self, err := os.Executable()
	e.must(err)
	var ends []func()
	for i, name := range []string{name, name, e.path + "?" + long} {
		child := exec.CommandContext(t.Context(), self, "-test.run=^TestProcesses$", "-test.v")
		child.Env = append(os.Environ(), "OUTBOX_TEST_DSN="+name, fmt.Sprint("OUTBOX_TEST_NAME=", i))
		stdin, err := child.StdinPipe() // its end is the signal to stop
		e.must(err)
		var output strings.Builder
		child.Stdout, child.Stderr = &output, &output
		e.must(child.Start())
		ends = append(ends, func() {
			e.must(stdin.Close())
			if err := child.Wait(); err != nil {
				t.Errorf("process %d: %v\n%s", i, err, output.String())
			}
		})
	}
	const want = 3 * perProcess
	for last, since := int64(-1), time.Now(); ; {
		n := number(t, e.one(`SELECT count(*) FROM {done}`))
		if n == want || time.Since(since) > 2*time.Minute {
			break
		}
		if n != last {
			last, since = n, time.Now()
		}
		time.Sleep(10 * time.Millisecond) // between two looks
	}
	for _, end := range ends {
		end()
	}
	e.equal(e.one(`SELECT count(*), count(DISTINCT id) FROM published`), fmt.Sprint(want, want), "published, and their ids")
	e.equal(e.one(`SELECT (SELECT count(*) FROM {ready}), (SELECT count(*) FROM {parked}), (SELECT count(*) FROM {done})`),
		fmt.Sprint(0, 0, want), "ready, parked, done")
	e.equal(e.rows(`SELECT lane, epoch FROM published GROUP BY lane, epoch HAVING count(DISTINCT owner) > 1`), []string(nil), "epochs of two owners")
	e.equal(e.rows(`SELECT n FROM (SELECT n, seq, max(seq) OVER (PARTITION BY key ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
		FROM published WHERE key IS NOT NULL) WHERE seq < before`), []string(nil), "out of order")
	e.equal(e.one(`PRAGMA integrity_check`), "ok", "integrity")
	// Who publishes is chance; that all three wrote beside each other is not.
	e.equal(e.rows(`SELECT count(*) FROM {done} GROUP BY id >= x'000F4240', id >= x'001E8480'`),
		[]string{fmt.Sprint(perProcess), fmt.Sprint(perProcess), fmt.Sprint(perProcess)}, "messages of each process")
}

const perProcess = 80

// process is one process: a producer, two workers and an operator. It ends with the
// end of its standard input.
func process(t *testing.T, name, me string) {
	db := openDSN(t, name)
	e := &env{TB: t, ctx: t.Context(), db: db, tables: dialect.Tables{Prefix: odd, Lanes: 4}}
	e.store = bind(t, e.tables)
	e.ids = uint32(number(t, me)) * 1_000_000
	ctx, stop := context.WithCancel(e.ctx)
	defer stop()
	errs := make(chan error)
	jobs := 0
	start := func(job func(context.Context) error) {
		jobs++
		go func() { errs <- job(ctx) }()
	}
	start(e.produce)
	for i := range 2 {
		start(func(ctx context.Context) error { return e.work(ctx, fmt.Sprint(me, "/", i)) })
	}
	start(func(ctx context.Context) error {
		for ctx.Err() == nil {
			if _, err := e.store.Requeue(ctx, db, dialect.Filter{States: []string{dialect.Retry}}, 10); err != nil && ctx.Err() == nil {
				return fmt.Errorf("requeue: %w", err)
			}
			pause(ctx, 50*time.Millisecond)
		}
		return nil
	})
	go func() {
		_, _ = io.Copy(io.Discard, bufio.NewReader(os.Stdin))
		stop()
	}()
	for range jobs {
		if err := <-errs; err != nil {
			t.Error(err)
			stop()
		}
	}
}

// produce inserts messages a few at a time beside a business change.
func (e *env) produce(ctx context.Context) error {
	r := rand.New(rand.NewPCG(uint64(e.ids), 0))
	for n := 0; n < perProcess; {
		var messages []dialect.Message
		for range min(1+r.IntN(5), perProcess-n) {
			key := ""
			if k := r.IntN(8); k > 0 {
				key = fmt.Sprint("k", k)
			}
			messages = append(messages, e.message(key))
		}
		tx, err := e.db.BeginTx(ctx, nil)
		if err != nil {
			return fmt.Errorf("begin: %w", err)
		}
		if err := e.store.Insert(ctx, tx, messages); err != nil {
			return fmt.Errorf("insert: %w", err)
		}
		if err := tx.Commit(); err != nil {
			return fmt.Errorf("commit: %w", err)
		}
		n += len(messages)
	}
	return nil
}

// work is a relay's worker that fails one message in five once.
func (e *env) work(ctx context.Context, me string) error {
	const ttl = 10 * time.Minute
	for ctx.Err() == nil {
		lanes, err := e.store.Poll(ctx, e.db, me, 4)
		if err != nil {
			return ignoreEnd(ctx, "poll", err)
		}
		pause(ctx, 10*time.Millisecond)
		for _, lane := range lanesOf(lanes) {
			epoch, ok, err := e.store.Claim(ctx, e.db, lane, me, ttl)
			if err != nil {
				return ignoreEnd(ctx, "claim", err)
			}
			if !ok {
				continue
			}
			lease := dialect.Lease{Lane: lane, Owner: me, Epoch: epoch}
			if err := e.turn(context.WithoutCancel(ctx), lease, ttl); err != nil {
				return err
			}
		}
	}
	return nil
}

// pause is a poll interval.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func ignoreEnd(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // it was told to stop
	}
	return fmt.Errorf("%s: %w", op, err)
}

// turn publishes what there is in a lane and gives it up.
func (e *env) turn(ctx context.Context, lease dialect.Lease, ttl time.Duration) error {
	limit := dialect.Limit{Rows: 20}
	for _, parked := range []bool{true, false} {
		var rows []dialect.Row
		var err error
		if parked {
			rows, err = e.store.Due(ctx, e.db, lease.Lane, limit)
		} else {
			rows, err = e.store.Ready(ctx, e.db, lease.Lane, 0, limit)
		}
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		s := dialect.Settlement{Archive: true}
		stuck := make(map[sql.Null[int64]]bool)
		var accepted []dialect.Row
		for _, row := range rows {
			switch {
			case parked:
				s.PublishedParked = append(s.PublishedParked, row.Ref())
				accepted = append(accepted, row)
			case row.Blocked || stuck[row.KeyHash]:
				s.Hold = append(s.Hold, row.Ref())
			case row.ID[3]%5 == 0:
				s.Failed = append(s.Failed, dialect.Failure{Ref: row.Ref(), Attempts: 1, Blocking: true, Delay: 20 * time.Millisecond})
				stuck[row.KeyHash] = row.KeyHash.Valid
			default:
				s.Published = append(s.Published, row.Ref())
				accepted = append(accepted, row)
			}
		}
		for _, row := range accepted {
			_, err := e.db.ExecContext(ctx, `INSERT INTO published (lane, epoch, owner, key, seq, id) VALUES (?, ?, ?, ?, ?, ?)`,
				lease.Lane, lease.Epoch, lease.Owner, row.Key, row.Seq, row.ID[:])
			if err != nil {
				return fmt.Errorf("publish: %w", err)
			}
		}
		if s.Empty() {
			continue
		}
		if ok, err := e.store.Settle(ctx, e.db, lease, ttl, s); err != nil || !ok {
			return fmt.Errorf("settle: %t, %w", ok, err)
		}
		if ok, err := e.store.Extend(ctx, e.db, lease, ttl); err != nil || !ok {
			return fmt.Errorf("extend: %t, %w", ok, err)
		}
	}
	if err := e.store.Release(ctx, e.db, lease); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return nil
}
