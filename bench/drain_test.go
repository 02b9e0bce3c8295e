package bench_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/postgres"
	"github.com/outbox-suite/outbox/publish/discard"
	"github.com/outbox-suite/outbox/relay"
)

const (
	backlog   = 50_000
	batchSize = 1000
	keys      = 1000
	payload   = 200 // bytes
)

// postgresPools opens the servers under test.
func postgresPools(b *testing.B, run func(b *testing.B, db *sql.DB)) {
	b.Helper()
	for _, server := range containers.Servers(b, "postgres") {
		b.Run("postgres="+server.Version, func(b *testing.B) {
			db, err := postgres.Open(server.DSN)
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { db.Close() })
			run(b, db)
		})
	}
}

func exec(b *testing.B, db *sql.DB, query string, args ...any) {
	b.Helper()
	if _, err := db.ExecContext(b.Context(), query, args...); err != nil {
		b.Fatal(err)
	}
}

// newOutbox makes tables of their own, gone after the benchmark.
func newOutbox(b *testing.B, db *sql.DB) *outbox.Outbox {
	b.Helper()
	o, err := outbox.New(db, postgres.New(), outbox.Config{Prefix: fmt.Sprintf("bench_%08x", rand.Uint32())})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := o.Migrate(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		for _, suffix := range []string{"", "_parked", "_done", "_lane", "_inbox", "_meta"} {
			_, _ = db.ExecContext(context.Background(), fmt.Sprintf("DROP TABLE IF EXISTS %q", o.Tables().Prefix+suffix))
		}
	})
	return o
}

func fill(b *testing.B, o *outbox.Outbox, n int) {
	b.Helper()
	body := make([]byte, payload)
	for n > 0 {
		messages := make([]outbox.Message, min(n, 5000))
		for i := range messages {
			messages[i] = outbox.Message{Topic: "orders", Type: "order.placed", Key: fmt.Sprint(rand.IntN(keys)), Payload: body}
		}
		n -= len(messages)
		if err := o.InTx(b.Context(), nil, func(ctx context.Context, tx *sql.Tx) error {
			_, err := o.Enqueue(ctx, tx, messages...)
			return err
		}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDrain empties a backlog of 50,000 messages of 200 bytes over 1,000
// keys into nowhere, in batches of 1,000, one relay process: by the loop
// everyone writes, and by the relay with and without retention.
func BenchmarkDrain(b *testing.B) {
	postgresPools(b, func(b *testing.B, db *sql.DB) {
		b.Helper()
		b.Run("loop", func(b *testing.B) { drainLoop(b, db) })
		for _, c := range []struct {
			name string
			cfg  relay.Config
		}{
			{"relay/retention=0", relay.Config{Batch: batchSize, Retention: relay.NoRetention}},
			{"relay/retention=24h", relay.Config{Batch: batchSize}},
		} {
			b.Run(c.name, func(b *testing.B) {
				o := newOutbox(b, db)
				cfg := c.cfg
				cfg.UntilEmpty = true
				for b.Loop() {
					b.StopTimer()
					fill(b, o, backlog)
					exec(b, db, "VACUUM ANALYZE "+fmt.Sprintf("%q", o.Tables().Prefix))
					exec(b, db, "CHECKPOINT")
					r, err := relay.New(o, discard.New(), cfg)
					if err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
					if err := r.Run(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(backlog)*float64(b.N)/b.Elapsed().Seconds(), "messages/s")
			})
		}
	})
}

// drainLoop is the hand-written relay: lock, publish, mark, in one transaction.
func drainLoop(b *testing.B, db *sql.DB) {
	b.Helper()
	table := fmt.Sprintf("bench_loop_%08x", rand.Uint32())
	exec(b, db, fmt.Sprintf(`CREATE TABLE %s (
		id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message_id uuid NOT NULL UNIQUE DEFAULT gen_random_uuid(),
		topic text NOT NULL, key text, type text NOT NULL, payload bytea, headers text NOT NULL DEFAULT '{}',
		created_at timestamptz NOT NULL DEFAULT now(), published_at timestamptz)`, table))
	exec(b, db, fmt.Sprintf("CREATE INDEX ON %s (id) WHERE published_at IS NULL", table))
	b.Cleanup(func() { _, _ = db.ExecContext(context.Background(), "DROP TABLE "+table) })
	for b.Loop() {
		b.StopTimer()
		exec(b, db, fmt.Sprintf(`INSERT INTO %s (topic, key, type, payload)
			SELECT 'orders', (random() * 1000)::int::text, 'order.placed', decode(repeat('00', %d), 'hex')
			FROM generate_series(1, %d)`, table, payload, backlog))
		exec(b, db, "VACUUM ANALYZE "+table)
		exec(b, db, "CHECKPOINT")
		b.StartTimer()
		for drained := 0; drained < backlog; {
			drained += loopOnce(b, db, table)
		}
	}
	b.ReportMetric(float64(backlog)*float64(b.N)/b.Elapsed().Seconds(), "messages/s")
}

func loopOnce(b *testing.B, db *sql.DB, table string) int {
	b.Helper()
	ctx := b.Context()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer tx.Rollback() // committed below
	rows, err := tx.QueryContext(ctx, fmt.Sprintf(`SELECT id, message_id, topic, key, type, payload, headers, created_at
		FROM %s WHERE published_at IS NULL ORDER BY id LIMIT %d FOR UPDATE SKIP LOCKED`, table, batchSize))
	if err != nil {
		b.Fatal(err)
	}
	defer rows.Close()
	var ids []int64
	for rows.Next() {
		var (
			id                            int64
			message, topic, kind, headers string
			key                           sql.NullString
			body                          []byte
			created                       sql.NullTime
		)
		if err := rows.Scan(&id, &message, &topic, &key, &kind, &body, &headers, &created); err != nil {
			b.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		b.Fatal(err)
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE %s SET published_at = now() WHERE id = ANY($1)", table), ids); err != nil {
		b.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		b.Fatal(err)
	}
	return len(ids)
}

// BenchmarkIdlePoll is a poll that finds nothing, with and without half a
// million done messages.
func BenchmarkIdlePoll(b *testing.B) {
	postgresPools(b, func(b *testing.B, db *sql.DB) {
		b.Helper()
		for _, done := range []int{0, 500_000} {
			b.Run(fmt.Sprintf("done=%d", done), func(b *testing.B) {
				o := newOutbox(b, db)
				if done > 0 {
					exec(b, db, fmt.Sprintf(`INSERT INTO %q
						(id, lane, seq, topic, type, content_type, headers, created_at, replay, attempts, outcome, payload)
						SELECT gen_random_uuid(), n %% 16, n, 'orders', 'order.placed', 'application/json', '{}', now(), 0, 1, 'published', decode(repeat('00', %d), 'hex')
						FROM generate_series(1, %d) AS n`, o.Tables().Prefix+"_done", payload, done))
				}
				for b.Loop() {
					lanes, err := o.Store().Poll(b.Context(), db, "bench", 8)
					if err != nil || len(lanes) > 0 {
						b.Fatalf("poll: %v, %v", lanes, err)
					}
				}
			})
		}
	})
}
