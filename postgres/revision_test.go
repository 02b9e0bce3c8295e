package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/postgres"
)

// TestUpgrade brings version 1 with messages in it to the newest, and nothing moves.
func TestUpgrade(t *testing.T) {
	for _, server := range containers.Servers(t, "postgres") {
		t.Run(server.Version, func(t *testing.T) {
			f := unmigrated(t, server.DSN)
			f.exec(`CREATE SCHEMA {schema}`)
			_, err := f.db.ExecContext(t.Context(), f.store.Steps()[0].SQL)
			f.ok(err)
			f.run(keyIn(0), 3)
			f.run("", 1)
			const all = `SELECT m::text FROM {ready} AS m ORDER BY seq`
			before := f.list(all)
			found, err := f.store.Inspect(t.Context(), f.db)
			f.ok(err)
			f.is("before", fmt.Sprint(found.Version, found.Problems), "1 []")
			applied, err := f.store.Migrate(t.Context(), f.db)
			f.ok(err)
			f.is("applied", applied, []int{2, 3})
			f.is("messages", f.list(all), before)
			f.ok(f.revise(message("numbered", keyIn(0))))
			f.exec(`DROP TABLE {progress}`)
			_, err = f.store.Migrate(t.Context(), f.db)
			if err == nil {
				t.Error("a schema without one of its tables was found to be complete")
			}
			found, err = f.store.Inspect(t.Context(), f.db)
			f.ok(err)
			f.is("problems without a table", len(found.Problems), 1)
		})
	}
}

// revise enqueues messages of one key with revisions, in a transaction of its own.
func (f *fixture) revise(messages ...dialect.Message) error {
	tx, err := f.db.BeginTx(f.Context(), nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	refusal, err := f.store.(dialect.Reviser).Revise(f.Context(), tx, messages, runOf(0, messages...))
	if err != nil || refusal != nil {
		return fmt.Errorf("%v, %w", refusal, err)
	}
	return tx.Commit()
}

// runOf are messages of one key.
func runOf(first int64, messages ...dialect.Message) []dialect.Run {
	run := dialect.Run{Key: messages[0].Key.V, KeyHash: messages[0].KeyHash.V, First: first}
	for i := range messages {
		run.Messages = append(run.Messages, i)
	}
	return []dialect.Run{run}
}

// TestReviseNative numbers messages in a transaction of pgx itself, and with its
// commit.
func TestReviseNative(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		for _, mode := range every {
			t.Run(mode, func(t *testing.T) {
				ctx := t.Context()
				f.clear()
				f.exec(`DELETE FROM {revision}`)
				f.exec(`DELETE FROM {progress}`)
				reviser := f.store.(dialect.Reviser)
				config, err := pgx.ParseConfig(with(f.dsn, "default_query_exec_mode", mode))
				f.ok(err)
				trips := &counter{}
				config.Tracer = trips
				conn, err := pgx.ConnectConfig(ctx, config)
				f.ok(err)
				defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
				key := keyIn(0)

				tx, err := conn.Begin(ctx)
				f.ok(err)
				first, second := message("first", key), message("second", key)
				refusal, err := reviser.Revise(ctx, postgres.Tx(tx), []dialect.Message{first}, runOf(3, first))
				f.ok(err)
				f.is("refusal", *refusal, dialect.Refusal{Last: sql.Null[int64]{Valid: true}})
				refusal, err = reviser.Revise(ctx, postgres.Tx(tx), []dialect.Message{first}, runOf(1, first))
				f.ok(err)
				f.is("refusal", refusal == nil, true)
				told, err := reviser.LastRevision(ctx, postgres.Tx(tx), dialect.Revision{Key: key, KeyHash: first.KeyHash.V})
				f.ok(err)
				f.is("last revision", told, 1)
				none, err := reviser.LastRevision(ctx, postgres.Tx(tx), dialect.Revision{Key: "none", KeyHash: 1})
				f.ok(err)
				f.is("last revision of a key without", none, 0)
				last, err := reviser.Advance(ctx, postgres.Tx(tx), "me", dialect.Revision{Key: key, KeyHash: 1, Number: 1})
				f.ok(err)
				f.is("last", last, 0)
				f.ok(tx.Commit(ctx))

				trips.asked = 0
				f.ok(postgres.InTx(ctx, conn, func(_ pgx.Tx, last dialect.Tx) error {
					_, err := reviser.Revise(ctx, last, []dialect.Message{second}, runOf(0, second))
					return err
				}))
				f.is("calls: begin, message with commit", trips.asked, 2)
				f.is("revisions", f.list(`SELECT topic || revision FROM {ready} ORDER BY seq`), []string{"first1", "second2"})

				// Where the answer comes after the question is too late.
				err = postgres.InTx(ctx, conn, func(_ pgx.Tx, last dialect.Tx) error {
					_, err := reviser.Revise(ctx, last, []dialect.Message{message("third", key)}, runOf(3, second))
					if _, err := reviser.Advance(ctx, last, "me", dialect.Revision{Key: key, KeyHash: 1, Number: 2}); err == nil {
						t.Error("the inbox took a statement that has not run for its answer")
					}
					if _, err := reviser.LastRevision(ctx, last, dialect.Revision{Key: key, KeyHash: 1}); !errors.Is(err, dialect.ErrCannotRead) {
						t.Errorf("the last revision before the statements have run: %v", err)
					}
					return err
				})
				if err == nil {
					t.Error("a given revision was taken before it was known to be the next")
				}
				f.is("ready", len(f.readyTopics()), 2)
			})
		}
	})
}

// TestReviseIsolated tells a producer whose snapshot is older than the key's last
// revision to try again.
func TestReviseIsolated(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		ctx := t.Context()
		reviser := f.store.(dialect.Reviser)
		for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable} {
			for _, known := range []bool{false, true} {
				for _, first := range []int64{0, 1, 2, 3} { // 2 and 3 are the next behind b
					key := keyIn(int(first) + 4*int(level) + map[bool]int{true: 100}[known])
					if known {
						f.ok(f.revise(message("a", key)))
					}
					tx, err := f.db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
					f.ok(err)
					_, err = tx.ExecContext(ctx, `SELECT count(*) FROM pg_class`)
					f.ok(err)
					f.ok(f.revise(message("b", key)))
					m := message("c", key)
					refusal, err := reviser.Revise(ctx, tx, []dialect.Message{m}, runOf(first, m))
					if class := postgres.New().Classify(err); class != dialect.Conflict {
						t.Errorf("%v, key known %v, first %d: %v, %v", level, known, first, refusal, err)
					}
					f.ok(tx.Rollback())
				}
			}
		}
	})
}

// TestReviseWaits has the next producer of a key wait for the lock, whose ends its
// context can.
func TestReviseWaits(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		reviser := f.store.(dialect.Reviser)
		for _, first := range []int64{0, 2} {
			key := keyIn(int(first))
			f.ok(f.revise(message("a", key)))
			holder, err := f.db.BeginTx(t.Context(), nil)
			f.ok(err)
			m := message("b", key)
			_, err = reviser.Revise(t.Context(), holder, []dialect.Message{m}, runOf(0, m))
			f.ok(err)
			tx, err := f.db.BeginTx(t.Context(), nil)
			f.ok(err)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			m = message("c", key)
			_, err = reviser.Revise(ctx, tx, []dialect.Message{m}, runOf(first, m))
			if !errors.Is(err, context.DeadlineExceeded) && postgres.New().Classify(err) != dialect.OutcomeUnknown {
				t.Errorf("first %d: a second producer went on: %v", first, err)
			}
			cancel()
			_ = tx.Rollback()
			f.ok(holder.Commit())
		}
	})
}

// BenchmarkRevise commits one message of many keys a transaction: plain, with the
// next revision, and with one that is given.
func BenchmarkRevise(b *testing.B) {
	benchEach(b, func(b *testing.B, f *fixture) { //nolint:thelper // the benchmark itself
		reviser := f.store.(dialect.Reviser)
		const keys = 1000
		for name, insert := range map[string]func(tx *sql.Tx, m dialect.Message, revision int64) error{
			"Plain": func(tx *sql.Tx, m dialect.Message, _ int64) error {
				return f.store.Insert(b.Context(), tx, []dialect.Message{m})
			},
			"Next": func(tx *sql.Tx, m dialect.Message, _ int64) error {
				_, err := reviser.Revise(b.Context(), tx, []dialect.Message{m}, runOf(0, m))
				return err
			},
			"Given": func(tx *sql.Tx, m dialect.Message, revision int64) error {
				refusal, err := reviser.Revise(b.Context(), tx, []dialect.Message{m}, runOf(revision, m))
				if refusal != nil {
					b.Fatal(refusal)
				}
				return err
			},
		} {
			b.Run(name, func(b *testing.B) {
				f.exec(`TRUNCATE {ready}, {revision}`)
				for n := range keys { // as they are behind their first message
					key := fmt.Sprint("order-", n)
					f.exec(`INSERT INTO {revision} (key_hash, key, revision) VALUES ($1, $2, 0)`, dialect.KeyHash(key), key)
				}
				n := 0
				for b.Loop() {
					m := message("orders", fmt.Sprint("order-", n%keys))
					m.Lane = dialect.LaneOfKey(m.KeyHash.V, 16)
					tx, err := f.db.BeginTx(b.Context(), nil)
					f.ok(err)
					f.ok(insert(tx, m, int64(n/keys)+1))
					f.ok(tx.Commit())
					n++
				}
			})
		}
	})
}
