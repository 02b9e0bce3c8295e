package postgres

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
const daysAhead = 3

// PartitionSQL is one script, to be run in one transaction.
func (s *store) PartitionSQL() string {
	text, err := files.ReadFile("schema/partition_done.sql")
	if err != nil {
		panic(err) // embedded
	}
	// In one pass with the other names, which may look like anything.
	schema := ""
	if s.tables.Schema != "" {
		schema = "{schema}."
	}
	return s.name(strings.NewReplacer("{before}", schema+"{name:done_before}", "{rest}", schema+"{name:done_rest}").Replace(string(text)))
}

// partition is the qualified name of a partition of done.
func (s *store) partition(suffix string) string {
	name := quote(s.tables.Prefix + "_done_" + suffix)
	if s.tables.Schema == "" {
		return name
	}
	return quote(s.tables.Schema) + "." + name
}

// PartitionDone runs the script in a transaction, with the privileges and the owner that
// the table had. It waits ten seconds for whoever uses done.
func (s *store) PartitionDone(ctx context.Context, db dialect.DB) (bool, error) {
	return inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
		if _, err := exec(ctx, tx, migrateLockSQL); err != nil {
			return false, err
		}
		var done table
		found, err := query1(ctx, tx, done.columns(), doneSQL, s.name("{done}"))
		switch {
		case err != nil:
			return false, err
		case !found:
			return false, fmt.Errorf("table %s is missing: migrate first", s.name("{done}"))
		case done.partitioned:
			return false, nil
		}
		ahead, err := query(ctx, tx, one[string], s.sql.doneAhead)
		if err != nil {
			return false, err
		}
		if len(ahead) > 0 {
			return false, fmt.Errorf("table %s has messages that were settled after today (UTC), by a clock that was ahead, the last at %s: run it again when that day has come, or delete them before",
				s.name("{done}"), ahead[0])
		}
		grants, err := query(ctx, tx, one[string], grantsSQL, s.name("{done}"))
		if err != nil {
			return false, err
		}
		if !done.mine {
			owner := " OWNER TO " + quote(done.owner)
			grants = append(grants, "ALTER TABLE "+s.name("{done}")+owner, "ALTER TABLE "+s.partition("rest")+owner)
		}
		if _, err := exec(ctx, tx, bounded(10*time.Second, 0)); err != nil {
			return false, err
		}
		// Without arguments pgx sends a text as it is, all statements at once.
		for _, text := range append([]string{s.PartitionSQL()}, grants...) {
			if _, err := exec(ctx, tx, text); err != nil {
				return false, err
			}
		}
		return true, nil
	})
}

// table is what there is to know of done.
type table struct {
	partitioned bool
	allowed     bool   // to make and drop its partitions
	owner       string // of the table
	mine        bool   // this user is the owner
}

func (t *table) columns() []any { return []any{&t.partitioned, &t.allowed, &t.owner, &t.mine} }

// partitionWait is how long a change of the partitions waits for a lock, and thereby how
// long what archives may wait behind it. partitionWork bounds the change itself, which
// reads the rest: with a day in it that is many rows.
const (
	partitionWait = 500 * time.Millisecond
	partitionWork = 3 * time.Second
)

// bounded sets the timeouts of a transaction, and the form of times.
func bounded(lock, work time.Duration) string {
	return fmt.Sprintf("SET LOCAL lock_timeout = %d; SET LOCAL statement_timeout = %d; SET LOCAL TimeZone = 'UTC'; SET LOCAL DateStyle = 'ISO, YMD'",
		lock.Milliseconds(), work.Milliseconds())
}

// KeepPartitions makes partitions in one transaction, and drops each in one of its own.
// A partition is made as a table first and then attached, for which nobody waits who
// archives into another one. To drop one takes the lock of the whole of done, for a
// moment: DETACH CONCURRENTLY is not for tables with a default partition.
//
// A user who is not the owner of the table, or a member of the role that is, keeps
// nothing.
func (s *store) KeepPartitions(ctx context.Context, db dialect.DB, olderThan time.Duration) (kept dialect.Partitions, err error) {
	var done table
	if _, err := query1(ctx, db, done.columns(), doneSQL, s.name("{done}")); err != nil {
		return kept, err
	}
	kept.Partitioned, kept.Denied = done.partitioned, done.partitioned && !done.allowed
	if !done.partitioned || kept.Denied {
		return kept, nil
	}
	var old []string
	made := 0
	_, err = partitionTx(ctx, db, func(tx *sql.Tx) (bool, error) {
		old, err = query(ctx, tx, one[string], oldPartitionsSQL, s.name("{done}"), micros(olderThan))
		if err != nil {
			return false, err
		}
		type day struct{ name, from, to string }
		days, err := query(ctx, tx, func(d *day) []any { return []any{&d.name, &d.from, &d.to} }, s.sql.missingDays, s.name("{done}"), daysAhead)
		if err != nil {
			return false, err
		}
		for _, d := range days {
			if err := s.makePartition(ctx, tx, done, s.partition(d.name), d.from, d.to); err != nil {
				return false, fmt.Errorf("make partition %s: %w", s.partition(d.name), err)
			}
		}
		made = len(days)
		return true, nil
	})
	if err == nil {
		kept.Made = made
	}
	for _, name := range old {
		dropped, dropping := partitionTx(ctx, db, func(tx *sql.Tx) (bool, error) {
			_, err := exec(ctx, tx, "DROP TABLE IF EXISTS "+name)
			return err == nil, err
		})
		if dropping != nil {
			return kept, errors.Join(err, fmt.Errorf("drop partition %s: %w", name, dropping))
		}
		if dropped {
			kept.Dropped++
		}
	}
	return kept, err
}

// partitionTx is inTx for a change of the partitions, and not for long. It does nothing
// while another one of this database is under way: that may be the same, and there is a
// next time.
func partitionTx(ctx context.Context, db dialect.DB, do func(tx *sql.Tx) (bool, error)) (bool, error) {
	return inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
		if _, err := exec(ctx, tx, bounded(partitionWait, partitionWork)); err != nil {
			return false, err
		}
		var alone bool
		if _, err := query1(ctx, tx, []any{&alone}, tryMigrateLockSQL); err != nil || !alone {
			return false, err
		}
		return do(tx)
	})
}

// makePartition makes one for the times from from, before to, which the server has
// written. Whoever archives into the rest waits for it.
func (s *store) makePartition(ctx context.Context, tx *sql.Tx, done table, name, from, to string) error {
	texts := []string{
		"CREATE TABLE " + name + " (LIKE " + s.name("{done}") + " INCLUDING ALL EXCLUDING IDENTITY)",
		"ALTER TABLE " + s.name("{done}") + " ATTACH PARTITION " + name + " FOR VALUES FROM ('" + from + "') TO ('" + to + "')",
	}
	if !done.mine {
		texts = append(texts, "ALTER TABLE "+name+" OWNER TO "+quote(done.owner))
	}
	for _, text := range texts {
		if _, err := exec(ctx, tx, text); err != nil {
			return err
		}
	}
	return nil
}
