package postgres_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"strconv"
	"testing"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/postgres"
)

func TestFloor(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		sweeper := f.store.(dialect.Sweeper)
		floor := func() int64 {
			t.Helper()
			n, err := sweeper.Floor(t.Context(), f.db)
			f.ok(err)
			return n
		}
		above := func(floor int64) []int {
			t.Helper()
			lanes, err := sweeper.PollAbove(t.Context(), f.db, "me", floor, 10)
			f.ok(err)
			return lanes
		}
		f.is("floor of nothing", floor(), int64(0))
		key := keyIn(1)
		f.run(key, 3)
		first := f.seq(key + ".1")
		f.is("floor below the oldest", floor(), first-1)
		f.is("lanes above it", above(floor()), []int{1})
		f.is("lanes above all", above(first+2), []int(nil))

		// One who has a number but has not committed is below the floor afterwards.
		late, err := f.db.BeginTx(t.Context(), nil)
		f.ok(err)
		defer func() { _ = late.Rollback() }()
		m := message("late", key)
		m.Lane = 1
		f.ok(f.store.Insert(t.Context(), late, []dialect.Message{m}))
		f.settle(f.claim(1, "me"), dialect.Settlement{Published: f.seqs(key+".1", key+".2", key+".3")})
		f.is("floor of nothing ready", floor(), first+3)
		f.ok(late.Commit())
		f.is("lanes above the late one", above(first+3), []int(nil))
		f.is("lanes from the start", above(0), []int{1})
	})
}

// A poll above the floor stays off what passed while a snapshot was open.
func TestPollAboveTheFloorReadsNoDeadRows(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.exec(`ALTER TABLE {ready} SET (autovacuum_enabled = false)`)
		snapshot, err := f.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		f.ok(err)
		defer func() { _ = snapshot.Rollback() }()
		f.ok(snapshot.QueryRowContext(t.Context(), `SELECT 1`).Scan(new(int)))
		f.exec(`INSERT INTO {ready} (lane, id, topic, type) SELECT n % 2, gen_random_uuid(), 't', 'y' FROM generate_series(1, 20000) AS n`)
		f.exec(`DELETE FROM {ready}`)
		floor, err := f.store.(dialect.Sweeper).Floor(t.Context(), f.db)
		f.ok(err)
		fromStart, fromFloor := f.pages(0), f.pages(floor)
		t.Logf("pages read: %d from the start, %d above the floor", fromStart, fromFloor)
		if fromStart < 100 {
			t.Errorf("a poll from the start read %d pages: the test shows nothing", fromStart)
		}
		if fromFloor > 60 {
			t.Errorf("a poll above the floor read %d pages, want a few for each lane", fromFloor)
		}
	})
}

// pages counts the pages that a poll reads.
func (f *fixture) pages(floor int64) int {
	f.Helper()
	ctx := context.WithoutCancel(f.Context())
	var text []byte
	conn, err := f.db.Conn(ctx)
	f.ok(err)
	defer func() { _ = conn.Close() }()
	_, err = conn.ExecContext(ctx, `PREPARE poll AS `+postgres.Statement(f.store, "poll"))
	f.ok(err)
	defer func() { _, _ = conn.ExecContext(ctx, `DEALLOCATE poll`) }()
	f.ok(conn.QueryRowContext(ctx, `EXPLAIN (ANALYZE, BUFFERS, TIMING off, FORMAT json) EXECUTE poll ('me', 8, `+strconv.FormatInt(floor, 10)+`)`).Scan(&text))
	var plan []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	f.ok(json.Unmarshal(text, &plan))
	return plan[0].Plan.Hit + plan[0].Plan.Read
}
