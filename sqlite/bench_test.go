package sqlite_test

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// fill makes ready messages of 100 keys in lane 0.
func (e *env) fill(n int) {
	e.Helper()
	for n > 0 {
		messages := make([]dialect.Message, min(n, 1000))
		for i := range messages {
			messages[i] = e.message(fmt.Sprint("k", i%100))
			messages[i].Payload = make([]byte, 200)
		}
		e.insert(messages...)
		n -= len(messages)
	}
}

// BenchmarkDrain reads and settles 1,000 messages an operation: lanes with and
// without the archive, beside the plain loop over one table with a status.
func BenchmarkDrain(b *testing.B) {
	const batch = 1000
	rate := func(b *testing.B) {
		b.Helper()
		b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "messages/s")
	}
	for _, archive := range []bool{false, true} {
		b.Run(fmt.Sprintf("lanes/archive=%t", archive), func(b *testing.B) {
			e := fresh(b, 1)
			lease := e.claim(0)
			for b.Loop() {
				b.StopTimer()
				e.fill(batch)
				b.StartTimer()
				rows, err := e.store.Ready(e.ctx, e.db, 0, 0, dialect.Limit{Rows: batch})
				e.must(err)
				ok, err := e.store.Settle(e.ctx, e.db, lease, time.Minute, dialect.Settlement{Archive: archive, Published: refs(rows)})
				if err != nil || !ok || len(rows) != batch {
					b.Fatal(len(rows), ok, err)
				}
			}
			rate(b)
		})
	}
	b.Run("loop", func(b *testing.B) {
		e := fresh(b, 1)
		e.exec(`CREATE TABLE message (seq INTEGER PRIMARY KEY AUTOINCREMENT, id BLOB NOT NULL UNIQUE, topic TEXT NOT NULL,
			key TEXT, type TEXT NOT NULL, content_type TEXT, headers TEXT NOT NULL, created_at INTEGER, payload BLOB, published_at INTEGER) STRICT`)
		e.exec(`CREATE INDEX message_ready ON message (seq) WHERE published_at IS NULL`)
		for b.Loop() {
			b.StopTimer()
			e.fill(batch)
			e.exec(`INSERT INTO message (id, topic, key, type, content_type, headers, created_at, payload)
				SELECT id, topic, key, type, content_type, headers, created_at, payload FROM {ready} ORDER BY seq`)
			e.exec(`DELETE FROM {ready}`)
			b.StartTimer()
			tx, err := e.db.BeginTx(e.ctx, nil)
			e.must(err)
			last := readStatus(b, tx)
			e.must2(tx.ExecContext(e.ctx, `UPDATE message SET published_at = unixepoch() WHERE published_at IS NULL AND seq <= ?`, last))
			e.must(tx.Commit())
		}
		rate(b)
	})
}

// readStatus reads a batch as the plain loop does, and returns its last seq.
func readStatus(b *testing.B, tx *sql.Tx) (last int64) {
	b.Helper()
	rows, err := tx.QueryContext(b.Context(), `SELECT seq, id, topic, key, type, content_type, headers, created_at, payload
		FROM message WHERE published_at IS NULL ORDER BY seq LIMIT 1000`)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id, payload []byte
		var topic, key, kind, content, headers string
		var created int64
		if err := rows.Scan(&last, &id, &topic, &key, &kind, &content, &headers, &created, &payload); err != nil {
			b.Fatal(err)
		}
	}
	if err := rows.Err(); err != nil {
		b.Fatal(err)
	}
	return last
}

// BenchmarkIdlePoll finds nothing to do in 16 lanes.
func BenchmarkIdlePoll(b *testing.B) {
	for _, done := range []int{0, 500_000} {
		b.Run(fmt.Sprintf("done=%d", done), func(b *testing.B) {
			e := fresh(b, 16)
			e.exec(`INSERT INTO {done} (lane, seq, id, topic, type, content_type, headers, created_at, replay, attempts, outcome, payload)
				WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
				SELECT i % 16, i, randomblob(16), 'orders', 'order.placed', 'application/json', '{}', 0, 0, 1, 'published', zeroblob(200)
				FROM n WHERE ?1 > 0`, done)
			for b.Loop() {
				if lanes := e.poll(owner, 8); len(lanes) > 0 {
					b.Fatal(lanes)
				}
			}
		})
	}
}

// BenchmarkDeepHold reads and settles a batch of other keys while a key has held
// rows: 100,000 cost what none cost.
func BenchmarkDeepHold(b *testing.B) {
	for _, held := range []int{0, 100_000} {
		b.Run(fmt.Sprintf("held=%d", held), func(b *testing.B) {
			e := fresh(b, 1)
			lease := e.claim(0)
			e.insert(e.message("blocked"))
			e.settle(lease, dialect.Settlement{Failed: []dialect.Failure{dead(e.ready(0)[0].Ref())}})
			e.exec(`INSERT INTO {parked} (lane, seq, id, topic, key, key_hash, type, state, payload)
				WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
				SELECT 0, 1 + i, randomblob(16), 'orders', 'blocked', ?2, 'order.placed', 'held', zeroblob(200)
				FROM n WHERE ?1 > 0`, held, dialect.KeyHash("blocked"))
			for b.Loop() {
				b.StopTimer()
				e.insert(e.messages("a", "b", "c", "blocked", "a", "b", "c")...)
				b.StartTimer()
				e.must2(e.store.Due(e.ctx, e.db, 0, dialect.Limit{Rows: 100}))
				rows := e.ready(0)
				var s dialect.Settlement
				for _, row := range rows {
					if row.Blocked {
						s.Hold = append(s.Hold, row.Ref())
					} else {
						s.Published = append(s.Published, row.Ref())
					}
				}
				if ok, err := e.store.Settle(e.ctx, e.db, lease, time.Minute, s); err != nil || !ok {
					b.Fatal(ok, err)
				}
			}
		})
	}
}

// BenchmarkInsert commits 1,000 messages a transaction.
func BenchmarkInsert(b *testing.B) {
	e := fresh(b, 1)
	for b.Loop() {
		e.fill(1000)
	}
}
