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

func TestHorizon(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		sweeper := f.store.(dialect.Sweeper)
		horizon := func() dialect.Horizon {
			t.Helper()
			h, err := sweeper.Horizon(t.Context(), f.db, 0)
			f.ok(err)
			if h.Running > h.Begun {
				t.Errorf("horizon %+v: the oldest that runs is newer than all that began", h)
			}
			return h
		}
		above := func(floor int64) []int {
			t.Helper()
			lanes, err := sweeper.PollAbove(t.Context(), f.db, "me", floor, 10)
			f.ok(err)
			return lanesOf(lanes)
		}
		h := horizon()
		f.is("newest of nothing", h.Newest, int64(0))
		f.is("oldest of nothing", h.Oldest, int64(0))
		key := keyIn(1)
		f.run(key, 3)
		first := f.seq(key + ".1")
		h = horizon()
		f.is("newest", h.Newest, first+2)
		f.is("oldest", h.Oldest, first)
		f.is("lanes above the oldest but one", above(first-1), []int{1})
		f.is("lanes above all", above(first+2), []int(nil))

		// As long as one runs that was given a seq before, no later horizon has
		// reached the earlier one; a reader's snapshot does not matter.
		late, err := f.db.BeginTx(t.Context(), nil)
		f.ok(err)
		defer func() { _ = late.Rollback() }()
		m := message("late", key)
		m.Lane = 1
		f.ok(f.store.Insert(t.Context(), late, []dialect.Message{m}))
		reader, err := f.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		f.ok(err)
		defer func() { _ = reader.Rollback() }()
		f.ok(reader.QueryRowContext(t.Context(), `SELECT 1`).Scan(new(int)))
		before := horizon()
		f.is("newest with the late one", before.Newest, first+3)
		if now := horizon(); now.Running >= before.Begun {
			t.Errorf("%+v counts as reached by %+v while a transaction of before is open", before, now)
		}
		f.ok(late.Commit())
		// Others of the server may be writing too.
		f.await("the horizon to be reached", func() bool { return horizon().Running >= before.Begun })
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
		h, err := f.store.(dialect.Sweeper).Horizon(t.Context(), f.db, 0)
		f.ok(err)
		fromStart, fromFloor := f.pages(0), f.pages(h.Newest)
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

// TestNumberBeforeSeq stops inserts at the moment in which they are to be given their seq:
// by then their transactions have a number, by which a horizon knows of them.
func TestNumberBeforeSeq(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		for name, insert := range map[string]func() error{
			"library": func() error { return f.tryInsert(message("a", "k")) },
			"by hand": func() error {
				_, err := f.db.ExecContext(context.WithoutCancel(t.Context()), f.sql(`INSERT INTO {ready} (lane, id, topic, type) VALUES (0, gen_random_uuid(), 't', 'y')`))
				return err
			},
		} {
			holder, err := f.db.BeginTx(t.Context(), nil)
			f.ok(err)
			var pid int
			var sequence string
			f.ok(holder.QueryRowContext(t.Context(), `SELECT pg_backend_pid(), pg_get_serial_sequence($1, 'seq')`, f.sql(`{ready}`)).Scan(&pid, &sequence))
			_, err = holder.ExecContext(t.Context(), `ALTER SEQUENCE `+sequence+` INCREMENT BY 1`)
			f.ok(err)
			done := make(chan error, 1)
			go func() { done <- insert() }()
			const blocked = ` FROM pg_stat_activity WHERE $1::int = ANY (pg_blocking_pids(pid))`
			f.await("the insert to wait for the sequence", func() bool { return f.count(`SELECT count(*)`+blocked, pid) == 1 })
			f.is("inserts "+name+" without a number", f.count(`SELECT count(*) FILTER (WHERE backend_xid IS NULL)`+blocked, pid), int64(0))
			f.ok(holder.Rollback())
			f.ok(<-done)
		}
	})
}
