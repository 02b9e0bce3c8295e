package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
)

const batch = 1000

// benchEach runs bench on every server, with an outbox of 16 lanes.
func benchEach(b *testing.B, bench func(b *testing.B, f *fixture)) {
	b.Helper()
	for _, server := range containers.Servers(b, "postgres") {
		b.Run(server.Version, func(b *testing.B) {
			f := unmigrated(b, server.DSN)
			f.tables.Lanes = 16
			f.bind()
			f.migrate()
			bench(b, f)
		})
	}
}

// fill makes n ready messages in lane 1, of 1,000 keys.
func (f *fixture) fill(n int) {
	f.Helper()
	f.exec(`INSERT INTO {ready} (lane, id, topic, key, key_hash, type, payload)
		SELECT 1, gen_random_uuid(), 'orders', 'order-' || n % 1000, n % 1000 * 16 + 1, 'made', decode(repeat('7b', 200), 'hex')
		FROM generate_series(1, $1::int) AS n`, n)
}

// BenchmarkBatch reads and settles a batch of messages, beside the loop that is
// commonly written by hand: lock the next rows, publish, mark them.
func BenchmarkBatch(b *testing.B) {
	benchEach(b, func(b *testing.B, f *fixture) { //nolint:thelper // the benchmark itself
		for _, archive := range []bool{false, true} {
			b.Run(map[bool]string{false: "Delete", true: "Archive"}[archive], func(b *testing.B) {
				lease := f.claim(1, "me")
				after := int64(0)
				for b.Loop() {
					b.StopTimer()
					f.fill(batch)
					b.StartTimer()
					rows, err := f.store.Ready(b.Context(), f.db, 1, after, dialect.Limit{Rows: batch})
					f.ok(err)
					s := dialect.Settlement{Archive: archive}
					for _, r := range rows {
						s.Published = append(s.Published, r.Ref())
					}
					ok, err := f.store.Settle(b.Context(), f.db, lease, time.Hour, s)
					f.ok(err)
					if !ok || len(rows) != batch {
						b.Fatal(ok, len(rows))
					}
					after = s.Published[batch-1].Place
				}
				b.ReportMetric(batch*float64(b.N)/b.Elapsed().Seconds(), "messages/s")
			})
		}
		b.Run("ByHand", func(b *testing.B) {
			f.exec(`CREATE TABLE {schema}.plain (
				seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id uuid NOT NULL UNIQUE, topic text NOT NULL, key text, type text NOT NULL,
				headers text NOT NULL DEFAULT '{}', payload bytea, created_at timestamptz NOT NULL DEFAULT now(), published_at timestamptz)`)
			f.exec(`CREATE INDEX ON {schema}.plain (seq) WHERE published_at IS NULL`)
			for b.Loop() {
				b.StopTimer()
				f.exec(`INSERT INTO {schema}.plain (id, topic, key, type, payload)
					SELECT gen_random_uuid(), 'orders', 'order-' || n % 1000, 'made', decode(repeat('7b', 200), 'hex') FROM generate_series(1, $1::int) AS n`, batch)
				b.StartTimer()
				tx, err := f.db.BeginTx(b.Context(), nil)
				f.ok(err)
				rows, err := tx.QueryContext(b.Context(), f.sql(`
					SELECT seq, id::text, topic, key, type, headers, payload, created_at FROM {schema}.plain
					WHERE published_at IS NULL ORDER BY seq LIMIT $1 FOR UPDATE SKIP LOCKED`), batch)
				f.ok(err)
				var seqs []int64
				for rows.Next() {
					var seq int64
					var id, topic, key, typ, headers string
					var payload []byte
					var created time.Time
					f.ok(rows.Scan(&seq, &id, &topic, &key, &typ, &headers, &payload, &created))
					seqs = append(seqs, seq)
				}
				f.ok(rows.Err())
				f.ok(rows.Close()) //nolint:sqlclosecheck // before the transaction goes on
				_, err = tx.ExecContext(b.Context(), f.sql(`UPDATE {schema}.plain SET published_at = now() WHERE seq = ANY ($1)`), seqs)
				f.ok(err)
				f.ok(tx.Commit())
				if len(seqs) != batch {
					b.Fatal(len(seqs))
				}
			}
			b.ReportMetric(batch*float64(b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	})
}

// BenchmarkIdlePoll polls when there is nothing to do: with nothing stored,
// with much done, with much held behind one key, and with much that has passed
// while another session's snapshot still sees it.
func BenchmarkIdlePoll(b *testing.B) {
	benchEach(b, func(b *testing.B, f *fixture) { //nolint:thelper // the benchmark itself
		poll := func(b *testing.B) { //nolint:thelper // the benchmark itself
			for b.Loop() {
				lanes, err := f.store.Poll(b.Context(), f.db, "me", 8)
				f.ok(err)
				if len(lanes) != 0 {
					b.Fatal(lanes)
				}
			}
		}
		b.Run("Empty", poll)
		f.exec(`INSERT INTO {done} (lane, seq, id, topic, type, content_type, headers, created_at, replay, attempts, outcome)
			SELECT n % 16, n, gen_random_uuid(), 't', 'y', '', '', now(), 0, 1, 'published' FROM generate_series(1, 500000) AS n`)
		b.Run("Done", poll)
		f.exec(`INSERT INTO {parked} (lane, seq, id, topic, key, key_hash, type, state)
			SELECT 1, n, gen_random_uuid(), 't', 'k', 1, 'y', 'held' FROM generate_series(1, 100000) AS n`)
		b.Run("Held", poll)
		snapshot, err := f.db.BeginTx(b.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		f.ok(err)
		defer func() { _ = snapshot.Rollback() }()
		f.ok(snapshot.QueryRowContext(b.Context(), `SELECT 1`).Scan(new(int)))
		for range 200 {
			f.fill(batch)
			f.exec(`DELETE FROM {ready}`)
		}
		b.Run("OldSnapshot", poll)
	})
}

// BenchmarkEnqueue inserts in transactions of different sizes.
func BenchmarkEnqueue(b *testing.B) {
	benchEach(b, func(b *testing.B, f *fixture) { //nolint:thelper // the benchmark itself
		for _, n := range []int{1, 10, 100} {
			b.Run(fmt.Sprint(n), func(b *testing.B) {
				for b.Loop() {
					messages := make([]dialect.Message, n)
					for i := range messages {
						m := message("orders", fmt.Sprint("order-", i))
						m.Lane = dialect.LaneOfKey(m.KeyHash.V, f.tables.Lanes)
						messages[i] = m
					}
					tx, err := f.db.BeginTx(context.WithoutCancel(b.Context()), nil)
					f.ok(err)
					f.ok(f.store.Insert(b.Context(), tx, messages))
					f.ok(tx.Commit())
				}
				b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "messages/s")
			})
		}
	})
}
