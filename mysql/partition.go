package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

var _ dialect.Partitioner = (*store)(nil)

// daysAhead is how many days beyond today have a partition.
const daysAhead = 7

// mostRest is the most rows of the rest that are moved to partitions of days while
// others wait.
const mostRest = 10_000

// movedRows is how many rows a transaction moves that fills a partitioned table.
const movedRows = 1000

// PartitionSQL is one statement.
func (s *store) PartitionSQL() string {
	text, err := files.ReadFile("schema/partition_done.sql")
	if err != nil {
		panic(err) // embedded
	}
	return s.name(string(text))
}

// besideDone is the qualified name of a table beside done, and its bare one.
func (s *store) besideDone(suffix string) (qualified, bare string) {
	bare = s.tables.Prefix + "_done_" + suffix
	if s.tables.Schema == "" {
		return quote(bare), bare
	}
	return quote(s.tables.Schema) + "." + quote(bare), bare
}

// PartitionDone makes an empty table in partitions, has it change places with done, and
// moves the rows, in small transactions: what archives waits for no more than the change
// of names. A row that was not moved yet is not found by a replay or a purge. Interrupted,
// the next call goes on.
func (s *store) PartitionDone(ctx context.Context, db dialect.DB) (did bool, err error) {
	// Long enough for those who have used done to end, but not for a dump.
	err = s.alter(ctx, db, 10, migrateWait, func(tx *sql.Tx) error {
		did, err = s.partitionDone(ctx, tx)
		return err
	})
	return did, err
}

func (s *store) partitionDone(ctx context.Context, tx *sql.Tx) (did bool, err error) {
	done := s.name("{done}")
	before, bare := s.besideDone("before")
	var left bool
	if _, err := query1(ctx, tx, []any{&left}, tableExistsSQL, s.schema(), bare); err != nil {
		return false, err
	}
	parts, err := s.partitions(ctx, tx, 0)
	if err != nil || len(parts) > 0 && !left {
		return false, err
	}
	if len(parts) == 0 {
		if left {
			return false, fmt.Errorf("table %s is in the way: it is what done would be called meanwhile, so move it away", before)
		}
		fresh, _ := s.besideDone("new")
		days, err := s.days(ctx, tx, 0)
		if err != nil {
			return false, err
		}
		for _, text := range []string{
			"DROP TABLE IF EXISTS " + fresh, // never used before the change of names
			"CREATE TABLE " + fresh + " LIKE " + done,
			strings.Replace(s.PartitionSQL(), "ALTER TABLE "+done, "ALTER TABLE "+fresh, 1),
			"ALTER TABLE " + fresh + " REORGANIZE PARTITION p_rest INTO (" + days + ", PARTITION p_rest VALUES LESS THAN (MAXVALUE))",
			"RENAME TABLE " + done + " TO " + before + ", " + fresh + " TO " + done,
		} {
			if err := exec(ctx, tx, text); err != nil {
				return false, err
			}
		}
	}
	for {
		var some bool
		if _, err := query1(ctx, tx, []any{&some}, "SELECT COUNT(*) FROM (SELECT 1 FROM "+before+" LIMIT 1) AS c"); err != nil {
			return false, err
		}
		if !some {
			return true, exec(ctx, tx, "DROP TABLE "+before)
		}
		// DDL has ended the transaction; nobody else changes this table.
		for _, text := range []string{
			"START TRANSACTION",
			fmt.Sprintf("INSERT INTO %s SELECT * FROM %s ORDER BY done_at, pos LIMIT %d", done, before, movedRows), //nolint:unqueryvet // one was made LIKE the other
			fmt.Sprintf("DELETE FROM %s ORDER BY done_at, pos LIMIT %d", before, movedRows),
			"COMMIT",
		} {
			if err := exec(ctx, tx, text); err != nil {
				return false, err
			}
		}
	}
}

// alter runs do in a session that waits for each table no longer than so many seconds,
// under the lock of migrations.
func (s *store) alter(ctx context.Context, db dialect.DB, seconds int, wait time.Duration, do func(tx *sql.Tx) error) (err error) {
	tx, err := db.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer func() {
		undone := tx.Rollback()
		if err == nil {
			err = undone
		}
	}()
	free, err := lockMigration(ctx, tx, wait)
	if err != nil {
		return err
	}
	defer free()
	var was int64
	if _, err := query1(ctx, tx, []any{&was}, "SELECT @@SESSION.lock_wait_timeout"); err != nil {
		return err
	}
	if err := exec(ctx, tx, fmt.Sprintf("SET SESSION lock_wait_timeout = %d", seconds)); err != nil {
		return err
	}
	defer func() {
		// The session goes back to the pool as it was, or is lost.
		again, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_ = exec(again, tx, fmt.Sprintf("SET SESSION lock_wait_timeout = %d", was))
	}()
	return do(tx)
}

// partition is a partition of done: those of days end before the day that is next days
// from today.
type partition struct {
	name, end string
	old       bool
	next      int
}

// rest tells whether the partition takes what no other one does.
func (p partition) rest() bool { return p.end == "MAXVALUE" }

// schema is the schema as statements on the catalog take it.
func (s *store) schema() sql.Null[string] {
	return sql.Null[string]{V: s.tables.Schema, Valid: s.tables.Schema != ""}
}

// partitions are those of done, in order; none where it is plain, or in partitions of
// another kind, or without one for the rest.
func (s *store) partitions(ctx context.Context, tx *sql.Tx, olderThan time.Duration) ([]partition, error) {
	list, err := query(ctx, tx, func(p *partition) []any { return []any{&p.name, &p.end, &p.old, &p.next} },
		partitionsSQL, micros(olderThan), s.schema(), s.bare("{done}"))
	if err != nil || len(list) == 0 || !list[len(list)-1].rest() {
		return nil, err
	}
	return list, nil
}

// days are the partitions from a day on, counted from today, to the last one ahead, as
// ALTER TABLE takes them; empty if there are none.
func (s *store) days(ctx context.Context, tx *sql.Tx, from int) (string, error) {
	var list []string
	for n := max(from, 0); n <= daysAhead; n++ {
		var name, end string
		if _, err := query1(ctx, tx, []any{&name, &end}, dayNamesSQL, n, n); err != nil {
			return "", err
		}
		list = append(list, "PARTITION "+name+" VALUES LESS THAN ('"+end+"')")
	}
	return strings.Join(list, ", "), nil
}

// KeepPartitions drops the old partitions in one statement and makes new ones in another.
// Both take the table's metadata lock for a moment, for which they wait one second.
//
// A user without the privileges ALTER, CREATE, DROP and INSERT on done keeps nothing.
func (s *store) KeepPartitions(ctx context.Context, db dialect.DB, olderThan time.Duration) (kept dialect.Partitions, err error) {
	var parts []partition
	if err := read(ctx, db, func(tx *sql.Tx) error {
		parts, err = s.partitions(ctx, tx, olderThan)
		return err
	}); err != nil || len(parts) == 0 {
		return kept, err
	}
	kept.Partitioned = true
	if !parts[0].old && newest(parts) > daysAhead {
		return kept, nil
	}
	err = s.alter(ctx, db, 1, time.Second, func(tx *sql.Tx) error {
		// Again, as nobody else changes them now.
		if parts, err = s.partitions(ctx, tx, olderThan); err != nil || len(parts) == 0 {
			return err
		}
		dropping := s.dropOld(ctx, tx, parts, &kept)
		return errors.Join(dropping, s.makeDays(ctx, tx, parts, &kept))
	})
	if kept.Denied = isDenied(err); kept.Denied || errors.Is(err, errMigrating) { // not his business, or somebody else's already
		return kept, nil
	}
	return kept, err
}

// newest is the day, counted from today, before which the last partition of days ends.
func newest(parts []partition) int {
	if len(parts) < 2 {
		return 0
	}
	return parts[len(parts)-2].next
}

func (s *store) dropOld(ctx context.Context, tx *sql.Tx, parts []partition, kept *dialect.Partitions) error {
	var old []string
	for _, p := range parts {
		if p.old {
			old = append(old, quote(p.name))
		}
	}
	if len(old) == 0 {
		return nil
	}
	if err := exec(ctx, tx, "ALTER TABLE "+s.name("{done}")+" DROP PARTITION "+strings.Join(old, ", ")); err != nil {
		return fmt.Errorf("drop partitions of done: %w", err)
	}
	kept.Dropped = len(old)
	return nil
}

func (s *store) makeDays(ctx context.Context, tx *sql.Tx, parts []partition, kept *dialect.Partitions) error {
	days, err := s.days(ctx, tx, newest(parts))
	if err != nil || days == "" {
		return err
	}
	rest := quote(parts[len(parts)-1].name)
	var rows int
	if _, err := query1(ctx, tx, []any{&rows}, fmt.Sprintf("SELECT COUNT(*) FROM (SELECT 1 FROM %s PARTITION (%s) LIMIT %d) AS c",
		s.name("{done}"), rest, mostRest+1)); err != nil {
		return err
	}
	reorganize := "ALTER TABLE " + s.name("{done}") + " REORGANIZE PARTITION " + rest + " INTO (" + days + ", PARTITION " + rest + " VALUES LESS THAN (MAXVALUE))"
	if rows > mostRest {
		return fmt.Errorf("partition %s of done has more than %d rows, and making others out of it would hold relays up: "+
			"stop them, or wait for a quiet hour, and run %s", rest, mostRest, reorganize)
	}
	if err := exec(ctx, tx, reorganize); err != nil {
		return fmt.Errorf("make partitions of done: %w", err)
	}
	kept.Made = strings.Count(days, "PARTITION ")
	return nil
}
