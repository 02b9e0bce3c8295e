package mysql_test

import (
	"context"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// TestCost counts the rows and index entries that the server reads for each operation
// of a turn, in tables that are large and were never analyzed: it must read what the
// operation names and no table or run of a key from end to end.
func TestCost(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		const rows = 4_000
		// All in lane 1: many ready rows, one blocked key with everything held behind
		// it, many blocked keys beside it, and as much scheduled for later.
		numbers := `(WITH RECURSIVE digit (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM digit WHERE n < 63)
			SELECT a.n * 64 + b.n AS n FROM digit AS a CROSS JOIN digit AS b) AS n WHERE n.n < ?`
		id := `UNHEX(LEFT(SHA2(CONCAT(RAND(), n.n), 256), 32))`
		f.exec(`INSERT INTO {ready} (lane, id, topic, {key}, key_hash, type)
			SELECT 1, `+id+`, n.n, n.n, n.n DIV 8 * 4 + 1, 'y' FROM `+numbers, rows)
		f.exec(`INSERT INTO {parked} (lane, seq, id, topic, {key}, key_hash, type, state)
			SELECT 1, n.n + 1, `+id+`, 'held', 'k', 1, 'y', 'held' FROM `+numbers, rows)
		f.exec(`INSERT INTO {parked} (lane, seq, id, topic, {key}, key_hash, type, state, blocking, available_at)
			SELECT 1, 0, `+id+`, 'retry', n.n, n.n * 4 + 1, 'y', 'retry', 1, UTC_TIMESTAMP(6) + INTERVAL n.n - 5 HOUR FROM `+numbers, rows/4)
		f.exec(`INSERT INTO {parked} (lane, id, topic, type, available_at)
			SELECT 1, `+id+`, 'later', 'y', UTC_TIMESTAMP(6) + INTERVAL n.n + 1 HOUR FROM `+numbers, rows)
		f.exec(`INSERT INTO {done} (lane, seq, id, topic, type, content_type, headers, created_at, replay, attempts, outcome)
			SELECT 1, n.n, `+id+`, 't', 'y', '', '', UTC_TIMESTAMP(6), 0, 1, 'published' FROM `+numbers, rows)
		f.exec(`INSERT INTO {inbox} (consumer, message_id) SELECT 'me', n.n FROM `+numbers, rows)

		// One session, whose counters are read before and after.
		db := f.open(f.dsn)
		db.SetMaxOpenConns(1)
		reads := func() (n int64) {
			f.ok(db.QueryRowContext(f.Context(), `SELECT SUM(variable_value) FROM `+f.sessionStatus()+` WHERE variable_name LIKE 'Handler_read%'`).Scan(&n))
			return n
		}
		own := reads()
		own = reads() - own // what the counting itself costs

		ctx, store := context.WithoutCancel(t.Context()), f.store
		lease := f.claim(1, "me")
		ready := f.refs("3900", "3901", "3902", "3903")
		f.exec(`UPDATE {parked} SET topic = 'next' WHERE state = 'held' ORDER BY pos LIMIT 1`)
		f.exec(`UPDATE {parked} SET topic = 'head' WHERE key_hash = 1 AND blocking = 1`)
		parked := f.parkedRefs("head", "next")
		limit := dialect.Limit{Rows: 20, Bytes: 1 << 20}
		for _, c := range []struct {
			name string
			most int64
			run  func() error
		}{
			{"Poll", 1000, func() error { _, err := store.Poll(ctx, db, "me", 4); return err }},
			{"Pending", 60, func() error { _, _, err := store.Pending(ctx, db, "me"); return err }},
			{"Extend", 10, func() error { _, err := store.Extend(ctx, db, lease, time.Hour); return err }},
			{"Ready", 1200, func() error { _, err := store.Ready(ctx, db, 1, 0, limit); return err }},
			{"Due", 300, func() error { _, err := store.Due(ctx, db, 1, limit); return err }},
			{"Surface", 30, func() error { _, _, err := store.Surface(ctx, db, lease, 100); return err }},
			{"Settle", 400, func() error {
				_, err := store.Settle(ctx, db, lease, time.Hour, dialect.Settlement{
					Archive: true, Published: ready[:2], Hold: ready[2:3], PublishedParked: parked,
					Failed: []dialect.Failure{{Ref: ready[3], Attempts: 1, Blocking: true}},
				})
				return err
			}},
			{"PollParked", 60, func() error {
				f.exec(`DELETE FROM {ready}`)
				_, err := store.Poll(ctx, db, "me", 4)
				return err
			}},
			{"Stats", 1500, func() error { _, err := store.Stats(ctx, db, 100); return err }},
			{"Parked", 200, func() error {
				_, err := store.Parked(ctx, db, dialect.Filter{All: true}, 0, 20)
				return err
			}},
			{"Purge", 300, func() error { _, err := store.Purge(ctx, db, 0, 20); return err }},
			{"PurgeInbox", 300, func() error { _, err := store.PurgeInbox(ctx, db, 0, 20); return err }},
			{"Recorded", 20, func() error { _, err := store.Recorded(ctx, db, "me", "3900"); return err }},
		} {
			before := reads()
			f.ok(c.run())
			n := reads() - before - own
			t.Logf("%s reads %d", c.name, n)
			if n > c.most {
				t.Errorf("%s reads %d rows and entries, more than %d", c.name, n, c.most)
			}
		}
	})
}

// sessionStatus is the table of the session's counters.
func (f *fixture) sessionStatus() string {
	if f.isMariaDB() {
		return "information_schema.session_status"
	}
	return "performance_schema.session_status"
}
