package mysql_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// openTransactions counts the transactions that are open, of whatever session of the server.
func (f *fixture) openTransactions() int64 {
	return f.count(`SELECT COUNT(*) FROM information_schema.innodb_trx`)
}

// transactions is a pool that has no sessions to give, only transactions.
type transactions struct{ db *sql.DB }

func (t transactions) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	return t.db.BeginTx(ctx, opts)
}

func (t transactions) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return t.db.ExecContext(ctx, query, args...)
}

func (t transactions) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return t.db.QueryContext(ctx, query, args...)
}

func (t transactions) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return t.db.QueryRowContext(ctx, query, args...)
}

// TestAlone has what runs without a transaction commit, leave nothing open and see what
// is new, in sessions of both kinds of autocommit and in all that can be a database.
func TestAlone(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		for _, autocommit := range []string{"0", "1"} {
			pool := f.open(with(f.dsn, "autocommit", autocommit))
			pool.SetMaxOpenConns(2) // one for the connection below
			conn, err := pool.Conn(t.Context())
			f.ok(err)
			f.Cleanup(func() { _ = conn.Close() })
			for name, db := range map[string]dialect.DB{"DB": pool, "Conn": conn, "Tx": transactions{pool}} {
				t.Run(name+"/autocommit="+autocommit, func(t *testing.T) {
					f := f.in(t)
					f.clear()
					owner := func(want string) {
						t.Helper()
						f.is("owner", f.list(`SELECT owner FROM {lane} WHERE lane = 1`), []string{want})
						f.await("no transactions", func() bool { return f.openTransactions() == 0 })
					}
					claim := func(who string, want bool) (epoch int64) {
						t.Helper()
						epoch, ok, err := f.store.Claim(t.Context(), db, 1, who, time.Hour)
						f.ok(err)
						f.is("claimed", ok, want)
						return epoch
					}
					lease := dialect.Lease{Lane: 1, Owner: "me", Epoch: claim("me", true)}
					f.is("epoch", lease.Epoch, f.count(`SELECT epoch FROM {lane} WHERE lane = 1`))
					owner("me")
					claim("you", false)
					owner("me")
					due := func() int {
						t.Helper()
						moved, ok, err := f.store.Surface(t.Context(), db, lease, 9)
						f.ok(err)
						f.is("held", ok, true)
						rows, err := f.store.Due(t.Context(), db, 1, dialect.Limit{Rows: 9})
						f.ok(err)
						return 10*moved + len(rows)
					}
					f.is("due", due(), 0)
					owner("me")
					m := message("soon", "")
					m.Delay = time.Nanosecond
					f.insert(m)
					f.exec(`INSERT INTO {parked} (lane, seq, id, topic, type, state, available_at)
						VALUES (1, 0, 'abcdefghijklmnop', 'retry', 'y', 'retry', UTC_TIMESTAMP(6))`)
					f.is("due", due(), 11)
					owner("me")
					stale := lease
					stale.Epoch--
					f.ok(f.store.Release(t.Context(), db, stale))
					_, ok, err := f.store.Surface(t.Context(), db, stale, 9)
					f.ok(err)
					f.is("held", ok, false)
					owner("me")
					f.ok(f.store.Release(t.Context(), db, lease))
					owner("")
					f.is("epoch", lease.Epoch, f.count(`SELECT epoch FROM {lane} WHERE lane = 1`))
				})
			}
		}
	})
}

// endsAfter is a context that ends when it was asked so many times whether it has.
type endsAfter struct {
	context.Context
	left *atomic.Int64
}

func (c endsAfter) Err() error {
	if c.left.Add(-1) < 0 {
		return context.Canceled
	}
	return nil
}

// TestAloneCancelled ends the context at each moment that the driver looks at it. What a
// session with autocommit=0 has begun must not go on to whoever has the session next.
func TestAloneCancelled(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		db := f.open(with(f.dsn, "autocommit", "0", "wait_timeout", "600"))
		db.SetMaxOpenConns(1)
		db.SetConnMaxIdleTime(0) // nobody else ends what is left open
		failed := 0
		for n := range int64(12) {
			f.clear()
			f.ok(db.PingContext(t.Context())) // to connect takes looks too
			var left atomic.Int64
			left.Store(n)
			ctx := endsAfter{t.Context(), &left}
			epoch, ok, err := f.store.Claim(ctx, db, 1, "me", time.Hour)
			if err != nil {
				failed++
			}
			f.await("no transactions", func() bool { return f.openTransactions() == 0 })
			f.is("claimed", f.count(`SELECT COUNT(*) FROM {lane} WHERE owner = 'me'`), map[bool]int{true: 1}[ok])
			if !ok {
				continue
			}
			f.ok(db.PingContext(t.Context()))
			left.Store(n)
			_, _, err = f.store.Surface(ctx, db, dialect.Lease{Lane: 1, Owner: "me", Epoch: epoch}, 9)
			if err != nil {
				failed++
			}
			f.await("no transactions", func() bool { return f.openTransactions() == 0 })
		}
		if failed < 2 {
			t.Fatalf("%d calls failed", failed)
		}
	})
}

// TestBodies reads messages of all sizes together: those that come along, those that are
// read by themselves, and those of a blocked key, ready and parked.
func TestBodies(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		const most = 32 << 10
		key, blocked := keyIn(0), keyIn(1)
		var all []dialect.Message
		add := func(key string, payload []byte, headers string) {
			m := message(fmt.Sprint(len(all)), key)
			m.Payload, m.Headers = payload, headers
			m.ContentType = []string{"", "application/json", "text/plain"}[len(all)%3]
			all = append(all, m)
		}
		long := func(n int) string { return `{"a":"` + strings.Repeat("x", n-8) + `"}` }
		for i, size := range []int{0, 1, most - 3, most - 2, most - 1, most, 100_000, 17 << 10, 200} {
			payload := bytes.Repeat([]byte{byte(i), '\'', 0}, size/3+1)[:size]
			add(key, payload, "{}")
			add("", payload, long(9))
		}
		for _, size := range []int{9, most - 1, most, most + 1, 100_000} {
			add(key, nil, long(size))
			add(key, []byte{}, long(size))
		}
		for i := range 1000 { // more text than one piece of memory holds
			add(fmt.Sprint(keyIn(i%7+2)), []byte(fmt.Sprint("payload ", i)), long(50+i%50))
		}
		f.insert(all...)
		compare := func(rows []dialect.Row, want []dialect.Message) {
			t.Helper()
			f.is("rows", len(rows), len(want))
			for i := range rows {
				p := rows[i].Payload
				clear(p[len(p):cap(p)]) // as who appends to it overwrites it
			}
			for i, r := range rows {
				if !same(r.Message, want[i]) {
					t.Errorf("message %d came back with %d bytes and headers of %d, key %v, content type %q", i, len(r.Payload), len(r.Headers), r.Key, r.ContentType)
				}
			}
		}
		rows, err := f.store.Ready(t.Context(), f.db, 1, 0, dialect.Limit{Rows: 2000})
		f.ok(err)
		compare(rows, all)

		// By bytes: each row counts as what it is, however it came.
		for _, limit := range []dialect.Limit{{Rows: 2000, Bytes: 1}, {Rows: 3, Bytes: 300_000}, {Rows: 2000, Bytes: 130_000}, {Rows: 20, Bytes: 130_000}, {Rows: 2000, Bytes: 1 << 20}} {
			n, left := 0, limit.Bytes
			for ; n < min(len(all), limit.Rows) && left > 0; n++ {
				left -= int64(len(all[n].Payload) + len(all[n].Headers))
			}
			rows, err := f.store.Ready(t.Context(), f.db, 1, 0, limit)
			f.ok(err)
			compare(rows, all[:n])
		}

		// The same when parked.
		lease := f.claim(1, "me")
		var s dialect.Settlement
		for _, r := range rows[:28] {
			s.Failed = append(s.Failed, dialect.Failure{Ref: r.Ref(), Attempts: 3})
		}
		f.settle(lease, s)
		f.exec(`UPDATE {parked} SET available_at = '2020-01-01' + INTERVAL seq SECOND`)
		rows, err = f.store.Due(t.Context(), f.db, 1, dialect.Limit{Rows: 100, Bytes: 1 << 30})
		f.ok(err)
		// A key's rows come together, at the place of the first.
		var parked []dialect.Message
		for _, valid := range []bool{true, false} {
			for _, m := range all[:28] {
				if m.Key.Valid == valid {
					parked = append(parked, m)
				}
			}
		}
		compare(rows, parked)
		for _, r := range rows {
			if r.Pos == 0 || r.Seq == 0 || r.Attempts != 3 || r.Blocked || r.Age < 0 || r.Age > time.Minute {
				t.Fatalf("parked: %+v", r)
			}
		}

		// The payload of a blocked row does not count, however large it is.
		f.clear()
		lease = f.claim(1, "me")
		all = all[:0]
		for _, size := range []int{1, 100_000, 7, 100_000} {
			add(blocked, make([]byte, size), "{}")
		}
		add(key, make([]byte, 100_000), "{}")
		f.insert(all...)
		f.settle(lease, dialect.Settlement{Failed: []dialect.Failure{{Ref: f.ref("0"), Attempts: 1, Blocking: true}}})
		rows, err = f.store.Ready(t.Context(), f.db, 1, 0, dialect.Limit{Rows: 9, Bytes: 50_000})
		f.ok(err)
		var got []string
		for _, r := range rows {
			got = append(got, fmt.Sprint(r.Topic, " ", r.Blocked, " ", len(r.Payload), " ", r.Headers))
		}
		f.is("with blocked rows", got, []string{"1 true 0 {}", "2 true 0 {}", "3 true 0 {}", "4 false 100000 {}"})
	})
}
