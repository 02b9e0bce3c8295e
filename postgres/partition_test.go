package postgres_test

import (
	"context"
	"database/sql"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/conformance"
	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/postgres"
)

// partition puts done into partitions and makes those ahead.
func (f *fixture) partition() dialect.Partitioner {
	f.Helper()
	p := f.store.(dialect.Partitioner)
	did, err := p.PartitionDone(f.Context(), f.db)
	f.ok(err)
	f.is("partitioned", did, true)
	return p
}

// bounds are the partitions of done by their bounds, those of days as days from today.
func (f *fixture) bounds() []string {
	f.Helper()
	return f.list(`SELECT CASE b WHEN 'DEFAULT' THEN 'rest' ELSE
			coalesce(substring(b FROM $q$FROM \('([^']+)'\)$q$)::timestamptz::date - current_date || '', 'begin') || ' to ' ||
			(substring(b FROM $q$TO \('([^']+)'\)$q$)::timestamptz::date - current_date) END
		FROM (SELECT pg_get_expr(c.relpartbound, c.oid) AS b FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
			WHERE i.inhparent = $1::regclass ORDER BY c.relname) AS x`, f.sql("{done}"))
}

// utc has the pool's sessions write times in UTC.
func (f *fixture) utc() {
	f.db = f.open(with(f.dsn, "timezone", "UTC"))
}

// TestPartitions follows done from a plain table to one that loses its days whole.
func TestPartitions(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.utc()
		day := 24 * time.Hour
		p := f.store.(dialect.Partitioner)
		kept, err := p.KeepPartitions(t.Context(), f.db, 0)
		f.ok(err)
		f.is("kept of a plain table", kept, dialect.Partitions{})

		f.done(`now() - interval '3 days'`, 3)
		f.done(`now()`, 2)
		f.partition()
		did, err := p.PartitionDone(t.Context(), f.db)
		f.ok(err)
		f.is("partitioned again", did, false)
		f.is("done", f.count(`SELECT count(*) FROM {done}`), 5)
		f.is("partitions", f.bounds(), []string{"begin to 1", "rest"})
		// In sessions whose times look like none, several at once.
		odd := f.open(with(with(f.dsn, "timezone", "Asia/Kolkata"), "datestyle", "German"))
		all := make(chan error)
		for range 4 {
			go func() {
				_, err := p.KeepPartitions(t.Context(), odd, 4*day)
				all <- err
			}()
		}
		for range 4 {
			f.ok(<-all)
		}
		f.is("partitions", f.bounds(), []string{"1 to 2", "2 to 3", "3 to 4", "begin to 1", "rest"})
		kept, err = p.KeepPartitions(t.Context(), f.db, 0)
		f.ok(err)
		f.is("kept", kept, dialect.Partitions{Partitioned: true})
		f.clear()
		f.everything()
		f.clear()

		// Days that are over: the table that done was is that of the days before two ago.
		f.exec(`ALTER TABLE {done} DETACH PARTITION {schema}.{name:done_before}`)
		f.exec(`DELETE FROM {schema}.{name:done_before} WHERE done_at > now() - interval '2 days'`)
		f.exec(`ALTER TABLE {done} ATTACH PARTITION {schema}.{name:done_before} FOR VALUES FROM (MINVALUE) TO ('` + f.day(-2) + `')`)
		f.exec(`CREATE TABLE {schema}.{name:done_yesterday} PARTITION OF {done} FOR VALUES FROM ('` + f.day(-1) + `') TO ('` + f.day(0) + `')`)
		f.done(`current_date - interval '1 second'`, 4)
		f.done(`current_date - interval '2 days'`, 1) // in the rest
		f.done(`now()`, 2)                            // in the rest
		kept, err = p.KeepPartitions(t.Context(), f.db, day)
		f.ok(err)
		f.is("kept", kept, dialect.Partitions{Partitioned: true, Dropped: 1})
		f.is("partitions", f.bounds(), []string{"1 to 2", "2 to 3", "3 to 4", "rest", "-1 to 0"})
		f.is("done", f.count(`SELECT count(*) FROM {done}`), 7)
		kept, err = p.KeepPartitions(t.Context(), f.db, 0)
		f.ok(err)
		f.is("kept", kept, dialect.Partitions{Partitioned: true, Dropped: 1})
		f.is("done", f.count(`SELECT count(*) FROM {done}`), 3)
		// What is in the rest is replayed and purged like anything else, and then today
		// has its partition.
		n, _, err := f.store.Replay(t.Context(), f.db, dialect.Filter{All: true}, nil, 100)
		f.ok(err)
		f.is("replayed", n, 3)
		n, err = f.store.Purge(t.Context(), f.db, 0, 100)
		f.ok(err)
		f.is("purged", n, 3)
		kept, err = p.KeepPartitions(t.Context(), f.db, 0)
		f.ok(err)
		f.is("kept", kept, dialect.Partitions{Partitioned: true, Made: 1})
	})
}

// TestPartitionsAfterAClockAhead says why a table with times to come stays as it is, and
// takes it when they are gone.
func TestPartitionsAfterAClockAhead(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.utc()
		p := f.store.(dialect.Partitioner)
		f.done(`current_date + interval '1 day'`, 1)
		f.done(`current_date + interval '1 day' - interval '1 microsecond'`, 1)
		did, err := p.PartitionDone(t.Context(), f.db)
		if did || err == nil || !strings.Contains(err.Error(), "a clock that was ahead, the last at "+f.day(1)) || postgres.New().Classify(err) != dialect.Other {
			t.Errorf("got (%t, %v)", did, err)
		}
		f.exec(`DELETE FROM {done} WHERE done_at >= current_date + interval '1 day'`)
		f.partition()
		f.is("done", f.count(`SELECT count(*) FROM {done}`), 1)
	})
}

// day is the begin of a day, counted from today, as text.
func (f *fixture) day(n int) string {
	f.Helper()
	return f.list(`SELECT (current_date + $1::int)::text || ' 00:00:00+00'`, n)[0]
}

// done adds n done rows of that time.
func (f *fixture) done(at string, n int) {
	f.Helper()
	f.exec(`INSERT INTO {done} (done_at, lane, id, topic, type, content_type, headers, created_at, replay, attempts, outcome, payload)
		SELECT `+at+`, 1, gen_random_uuid(), 't', 't', 'c', '{}', now(), 0, 1, 'published', decode(repeat(md5(random()::text), 8), 'hex')
		FROM generate_series(1, $1::int)`, n)
}

// TestPartitionsByDBA runs the DDL by hand.
func TestPartitionsByDBA(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.utc()
		p := f.store.(dialect.Partitioner)
		tx, err := f.db.BeginTx(t.Context(), nil)
		f.ok(err)
		_, err = tx.ExecContext(t.Context(), p.PartitionSQL())
		f.ok(err)
		f.ok(tx.Commit())
		kept, err := p.KeepPartitions(t.Context(), f.db, 0)
		f.ok(err)
		f.is("kept", kept, dialect.Partitions{Partitioned: true, Made: 3})
		f.everything()
	})
}

// TestPartitionsReturnSpace to the file system.
func TestPartitionsReturnSpace(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.utc()
		f.done(`now() - interval '2 days'`, 20_000)
		p := f.partition()
		f.exec(`ALTER TABLE {done} DETACH PARTITION {schema}.{name:done_before}`)
		f.exec(`ALTER TABLE {done} ATTACH PARTITION {schema}.{name:done_before} FOR VALUES FROM (MINVALUE) TO ('` + f.day(-1) + `')`)
		f.done(`now()`, 10)
		size := func() int64 {
			return f.count(`SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree($1::regclass)`, f.sql("{done}"))
		}
		// A delete of the same rows returns nothing: so much is in files.
		before := size()
		path := f.list(`SELECT pg_relation_filepath($1::regclass)`, f.sql("{schema}.{name:done_before}"))[0]
		kept, err := p.KeepPartitions(t.Context(), f.db, 24*time.Hour)
		f.ok(err)
		f.is("dropped", kept.Dropped, 1)
		if after := size(); before < 4<<20 || after > before/10 {
			t.Errorf("done had %d bytes, and %d after a day of 20,000 rows of 20,010 was dropped", before, after)
		}
		f.is("files of the day", f.count(`SELECT count(*) FROM pg_stat_file($1, true) AS s WHERE s.size > 0`, path), 0)
		f.is("done", f.count(`SELECT count(*) FROM {done}`), 10)
	})
}

// TestPartitionsDoNotWait for a reader of done longer than said, and nobody behind them.
func TestPartitionsDoNotWait(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.utc()
		p := f.partition()
		_, err := p.KeepPartitions(t.Context(), f.db, time.Hour)
		f.ok(err)
		f.exec(`ALTER TABLE {done} DETACH PARTITION {schema}.{name:done_before}`)
		f.exec(`ALTER TABLE {done} ATTACH PARTITION {schema}.{name:done_before} FOR VALUES FROM (MINVALUE) TO ('` + f.day(-1) + `')`)
		reader, err := f.db.BeginTx(t.Context(), &sql.TxOptions{ReadOnly: true})
		f.ok(err)
		defer func() { _ = reader.Rollback() }()
		f.ok(reader.QueryRowContext(t.Context(), f.sql(`SELECT count(*) FROM {done}`)).Scan(new(int)))

		began := time.Now()
		waits := make(chan error, 1)
		go func() {
			_, err := p.KeepPartitions(context.WithoutCancel(t.Context()), f.db, time.Hour)
			waits <- err
		}()
		f.await("the drop to wait", func() bool {
			return f.count(`SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = $1::regclass`, f.sql("{done}")) > 0
		})
		f.done(`now()`, 1) // behind it
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("what archives waited %v behind a drop that waits", took)
		}
		err = <-waits
		if class := postgres.New().Classify(err); class != dialect.Conflict {
			t.Errorf("the drop ended with %v (%v), want a conflict", err, class)
		}
		f.ok(reader.Rollback())
		kept, err := p.KeepPartitions(t.Context(), f.db, time.Hour)
		f.ok(err)
		f.is("dropped behind the reader", kept.Dropped, 1)
	})
}

// TestPartitionsKeepGrants, and leave the partitions to their owner.
func TestPartitionsKeepGrants(t *testing.T) {
	for _, server := range containers.Servers(t, "postgres") {
		t.Run(server.Version, func(t *testing.T) {
			f := unmigrated(t, server.DSN)
			f.migrate()
			f.utc()
			role := "role " + random()
			f.exec(`CREATE ROLE ` + quote(role))
			t.Cleanup(func() {
				_, err := f.db.ExecContext(context.Background(), "DROP OWNED BY "+quote(role)+"; DROP ROLE "+quote(role))
				if err != nil {
					t.Error(err)
				}
			})
			f.exec(`GRANT USAGE ON SCHEMA {schema} TO ` + quote(role))
			f.exec(`GRANT SELECT, INSERT, UPDATE (reason), DELETE ON {done} TO ` + quote(role))
			f.exec(`GRANT SELECT (topic) ON {done} TO PUBLIC`)
			acl := func() []string {
				return f.list(`SELECT relacl::text || ' ' || coalesce((SELECT string_agg(attname || attacl::text, ' ' ORDER BY attname)
					FROM pg_attribute WHERE attrelid = oid AND attacl IS NOT NULL), '') FROM pg_class WHERE oid = $1::regclass`, f.sql("{done}"))
			}
			before := acl()
			p := f.partition()
			f.is("grants", acl(), before)
			// Who only has the privileges purges, and keeps no partitions.
			conn, err := f.db.Conn(t.Context())
			f.ok(err)
			defer func() { _ = conn.Close() }()
			_, err = conn.ExecContext(t.Context(), "SET ROLE "+quote(role))
			f.ok(err)
			kept, err := p.KeepPartitions(t.Context(), conn, 0)
			f.ok(err)
			f.is("kept by another", kept, dialect.Partitions{Partitioned: true, Denied: true})
			f.done(`now() - interval '2 days'`, 3)
			n, err := f.store.Purge(t.Context(), conn, 24*time.Hour, 100)
			f.ok(err)
			f.is("purged by another", n, 3)
			_, err = conn.ExecContext(t.Context(), "RESET ROLE")
			f.ok(err)
		})
	}
}

// TestConformancePartitioned runs the scenarios that archive, replay and purge on a done
// table in partitions.
func TestConformancePartitioned(t *testing.T) {
	in := target(t, containers.Servers(t, "postgres")[0])
	in.Dialect, in.Short = partitioned{postgres.New()}, true
	report, err := conformance.Check(t.Context(), in, conformance.Options{Match: regexp.MustCompile(
		`^(Settle/ExactlyTheRowsNamed|Operator/.*|Relay/(ReplaySameID|DiscardIsRecorded)|Purge/OnlyDone)$`)})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range report.Failed() {
		t.Errorf("%v", r)
	}
	if n := report.Counts()[conformance.Passed]; n < 6 {
		t.Errorf("%d scenarios passed", n)
	}
}

// partitioned is a dialect whose migrations put done into partitions.
type partitioned struct{ dialect.Dialect }

// Bind implements [dialect.Dialect].
func (d partitioned) Bind(tables dialect.Tables) (dialect.Store, error) {
	s, err := d.Dialect.Bind(tables)
	if err != nil {
		return nil, err
	}
	return partitionedStore{s, s.(dialect.Sweeper), s.(dialect.Partitioner)}, nil
}

type partitionedStore struct {
	dialect.Store
	dialect.Sweeper
	dialect.Partitioner
}

// Migrate implements [dialect.Schema].
func (s partitionedStore) Migrate(ctx context.Context, db dialect.DB) ([]int, error) {
	applied, err := s.Store.Migrate(ctx, db)
	if err == nil {
		_, err = s.PartitionDone(ctx, db)
	}
	if err == nil {
		_, err = s.KeepPartitions(ctx, db, time.Hour)
	}
	return applied, err
}
