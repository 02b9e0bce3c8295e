package mysql_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/mysql"
)

func TestHorizon(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		sweeper := f.store.(dialect.Sweeper)
		horizon := func(floor int64) dialect.Horizon {
			t.Helper()
			h, err := sweeper.Horizon(t.Context(), f.db, floor)
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
		oldest := func(what string, floor, want int64) {
			t.Helper()
			f.is("oldest "+what, horizon(floor).Oldest, want)
		}
		h := horizon(0)
		f.is("newest of nothing", h.Newest, int64(0))
		f.is("oldest of nothing", h.Oldest, int64(0))
		key := keyIn(1)
		f.run(key, 3)
		first := f.seq(key + ".1")
		h = horizon(0)
		f.is("newest, oldest", []int64{h.Newest, h.Oldest}, []int64{first + 2, first})
		oldest("above the first", first, first+1)
		f.is("lanes above nothing", above(0), []int{1})
		f.is("lanes above the first", above(first), []int{1})
		f.is("lanes above all", above(first+2), []int(nil))

		// What was given a seq before it was looked for and has not committed is there,
		// what was rolled back is not, and its number was given out all the same.
		late, lane2 := f.begin(), message("late", "")
		lane2.Lane = 2
		f.ok(f.store.Insert(t.Context(), late, []dialect.Message{lane2}))
		f.insert(message("newer", ""))
		h = horizon(first + 2)
		f.is("newest, oldest with a late one", []int64{h.Newest, h.Oldest}, []int64{first + 4, first + 3})
		f.is("lanes with a late one", above(first+2), []int{1})
		f.ok(late.Rollback())
		oldest("without the late one", first+2, first+4)

		// An insert that waits for another's id stands in no index but the first.
		other, waits := f.begin(), f.begin()
		twin, rest := message("twin", ""), message("rest", "")
		twin.Lane, rest.Lane = 3, 3
		f.ok(f.store.Insert(t.Context(), other, []dialect.Message{twin}))
		twin.Lane = 2
		done := make(chan error, 1)
		go func() {
			done <- f.store.Insert(context.WithoutCancel(t.Context()), waits, []dialect.Message{twin, rest})
		}()
		f.blocked(1)
		before := horizon(first + 5).Oldest
		f.is("the one that waits", before, first+6)
		f.ok(other.Rollback())
		f.ok(<-done)
		f.ok(waits.Commit())
		f.is("seq of the one that waited", f.seq("twin"), before)

		// What is being deleted may come back.
		deleting := f.begin()
		_, err := deleting.ExecContext(t.Context(), f.sql(`DELETE FROM {ready}`))
		f.ok(err)
		oldest("with a deletion", 0, first)
		f.ok(deleting.Rollback())
		f.exec(`DELETE FROM {ready}`)
		oldest("of all deleted", 0, 0)
		f.is("newest of all deleted", horizon(0).Newest, first+7)

		// A seq is old enough only after every wait for a lock.
		h = horizon(0)
		var seconds int64
		f.ok(f.plain.QueryRowContext(t.Context(), `SELECT @@GLOBAL.innodb_lock_wait_timeout`).Scan(&seconds))
		if wait := time.Duration(h.Begun-h.Running) * time.Microsecond; wait < time.Duration(seconds)*time.Second || wait < 50*time.Second {
			t.Errorf("a seq is taken for settled after %v", wait)
		}
	})
}

// TestNextSeq finds the number in the text, and nothing that only looks like it.
func TestNextSeq(t *testing.T) {
	for create, want := range map[string]int64{
		"CREATE TABLE `x` (\n  `a` int\n) ENGINE=InnoDB AUTO_INCREMENT=42 DEFAULT CHARSET=utf8mb4": 42,
		"CREATE TABLE `x` (\n  `a` int\n) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4":                   1,
		"CREATE TABLE `) AUTO_INCREMENT=7` (\n  `a` int COMMENT ') AUTO_INCREMENT=7'\n)":           1,
		"CREATE TABLE `x` (\n  `a` int\n) AUTO_INCREMENT=99999999999999999999":                     1,
	} {
		if got := mysql.NextSeq(create); got != want {
			t.Errorf("%s: %d, want %d", create, got, want)
		}
	}
}

// TestReadAboveManyRows reads what is ready, whatever is ready in other lanes and whatever the
// read before has found.
func TestReadAboveManyRows(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		read := func(lane int, after int64, rows int) []dialect.Row {
			list, err := f.store.Ready(t.Context(), f.db, lane, after, dialect.Limit{Rows: rows})
			f.ok(err)
			return list
		}
		for _, n := range []int{0, 249, 250, 1500} {
			f.clear()
			f.fill(2, n)
			for i := range 3 {
				m := message(fmt.Sprint("x", i), "")
				m.Lane = 3
				f.insert(m)
			}
			f.fill(1, n/2)
			for range 3 {
				f.is(fmt.Sprint("some behind ", n), topics(read(3, 0, 10)), []string{"x0", "x1", "x2"})
			}
			for range 3 {
				f.is(fmt.Sprint("all that is wanted behind ", n), topics(read(3, 0, 2)), []string{"x0", "x1"})
			}
			first := read(3, 0, 1)[0].Seq
			f.is("above the first", topics(read(3, first, 10)), []string{"x1", "x2"})
			f.is("another lane", len(read(2, 0, 5000)), n)
			f.is("an empty lane", len(read(0, 0, 10)), 0)
			f.exec(`DELETE FROM {ready}`)
			for lane := range lanes {
				f.is("nothing", len(read(lane, 0, 10)), 0)
			}
		}
	})
}

// TestPollAboveManyRows does not stop at the first rows above the floor.
func TestPollAboveManyRows(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		for _, n := range []int{249, 250, 1500} {
			f.clear()
			f.fill(2, n)
			lane3 := message("x", "")
			lane3.Lane = 3
			f.insert(lane3)
			lanes, err := f.store.(dialect.Sweeper).PollAbove(t.Context(), f.db, "me", 1, 10)
			f.ok(err)
			f.is(fmt.Sprint("lanes with ", n), lanes, []dialect.Candidate{{Lane: 2}, {Lane: 3}})
		}
	})
}

// fill makes n ready messages in a lane.
func (f *fixture) fill(lane, n int) {
	f.Helper()
	f.exec(`INSERT INTO {ready} (lane, id, topic, type)
		WITH RECURSIVE digit (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM digit WHERE n < 63)
		SELECT ?, UNHEX(LEFT(SHA2(CONCAT(RAND(), a.n, b.n), 256), 32)), 't', 'y' FROM digit AS a CROSS JOIN digit AS b LIMIT ?`, lane, n)
}

// BenchmarkOldSnapshot polls and reads when there is nothing to do, while another
// session's snapshot still sees 200,000 messages that have passed: from the start, and
// above a floor.
func BenchmarkOldSnapshot(b *testing.B) {
	for _, engine := range []string{"mysql", "mariadb"} {
		for _, server := range containers.Servers(b, engine) {
			b.Run(engine+"="+server.Version, func(b *testing.B) {
				f := unmigrated(b, server.DSN)
				f.tables.Lanes = 16
				f.bind()
				f.migrate()
				snapshot, err := f.db.BeginTx(b.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
				f.ok(err)
				defer func() { _ = snapshot.Rollback() }()
				f.ok(snapshot.QueryRowContext(b.Context(), f.sql(`SELECT COUNT(*) FROM {lane}`)).Scan(new(int)))
				const lanes, rows = 16, 4000
				for range 200_000 / lanes / rows {
					for lane := range lanes {
						f.fill(lane, rows)
					}
					f.exec(`DELETE FROM {ready}`)
				}
				sweeper := f.store.(dialect.Sweeper)
				h, err := sweeper.Horizon(b.Context(), f.db, 0)
				f.ok(err)
				for _, floor := range []int64{0, h.Newest - 10_000, h.Newest} {
					name := fmt.Sprint("above=", max(0, h.Newest-floor))
					b.Run("poll/"+name, func(b *testing.B) {
						for b.Loop() {
							lanes, err := sweeper.PollAbove(b.Context(), f.db, "me", floor, 8)
							f.ok(err)
							f.is("lanes", len(lanes), 0)
						}
					})
					b.Run("ready/"+name, func(b *testing.B) {
						for b.Loop() {
							_, err := f.store.Ready(b.Context(), f.db, 1, floor, dialect.Limit{Rows: 100})
							f.ok(err)
						}
					})
					b.Run("horizon/"+name, func(b *testing.B) {
						for b.Loop() {
							_, err := sweeper.Horizon(b.Context(), f.db, floor)
							f.ok(err)
						}
					})
				}
			})
		}
	}
}
