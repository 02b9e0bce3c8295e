package mysql_test

import (
	"context"
	"database/sql"
	"net/url"
	"regexp"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/conformance"
	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/mysql"
)

// partition puts done into partitions.
func (f *fixture) partition() dialect.Partitioner {
	f.Helper()
	p := f.store.(dialect.Partitioner)
	did, err := p.PartitionDone(f.Context(), f.db)
	f.ok(err)
	f.is("partitioned", did, true)
	return p
}

// bounds are the ends of the partitions of done, as days from today.
func (f *fixture) bounds() []string {
	f.Helper()
	return f.list(`SELECT CASE WHEN partition_description = 'MAXVALUE' THEN 'rest'
			ELSE DATEDIFF(TRIM(BOTH '''' FROM partition_description), UTC_DATE()) END
		FROM information_schema.partitions WHERE table_schema = ? AND table_name = ? ORDER BY partition_ordinal_position`,
		f.tables.Schema, f.tables.Prefix+"_done")
}

// done adds n done rows of that time.
func (f *fixture) done(at string, n int) {
	f.Helper()
	f.exec(`INSERT INTO {done} (done_at, lane, id, topic, type, content_type, headers, created_at, replay, attempts, outcome, payload)
		WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
		SELECT `+at+`, 1, RANDOM_BYTES(16), 't', 't', 'c', '{}', UTC_TIMESTAMP(6), 0, 1, 'published', RANDOM_BYTES(256)
		FROM n CROSS JOIN n AS m WHERE m.i <= 1 + FLOOR((? - 1) / 1000) AND n.i <= LEAST(?, 1000)`, n, n)
}

// TestPartitions follows done from a plain table to one that loses its days whole.
func TestPartitions(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		day := 24 * time.Hour
		p := f.store.(dialect.Partitioner)
		kept, err := p.KeepPartitions(t.Context(), f.db, 0)
		f.ok(err)
		f.is("kept of a plain table", kept, dialect.Partitions{})

		f.done(`UTC_TIMESTAMP(6) - INTERVAL 3 DAY`, 3000)
		f.done(`UTC_TIMESTAMP(6)`, 2)
		all := func() []string {
			return f.list(`SELECT CONCAT(done_at, ' ', pos, ' ', HEX(id)) FROM {done} ORDER BY 1`)
		}
		before := all()
		f.partition()
		did, err := p.PartitionDone(t.Context(), f.db)
		f.ok(err)
		f.is("partitioned again", did, false)
		f.is("done", all(), before)
		f.is("partitions", f.bounds(), []string{"1", "2", "3", "4", "5", "6", "7", "8", "rest"})
		f.is("tables left", f.count(`SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = ? AND table_name LIKE '%done%'`, f.tables.Schema), 1)
		kept, err = p.KeepPartitions(t.Context(), f.db, 0)
		f.ok(err)
		f.is("kept", kept, dialect.Partitions{Partitioned: true})
		f.clear()
		f.everything()
		f.clear()

		// Days that are over, and days ahead that are missing; several at once.
		f.exec(`ALTER TABLE {done} PARTITION BY RANGE COLUMNS (done_at) (PARTITION a VALUES LESS THAN ('` + f.day(-1) + `'),
			PARTITION b VALUES LESS THAN ('` + f.day(0) + `'), PARTITION z VALUES LESS THAN (MAXVALUE))`)
		f.done(`UTC_DATE() - INTERVAL 2 DAY`, 1)
		f.done(`UTC_DATE() - INTERVAL 1 SECOND`, 4)
		f.done(`UTC_TIMESTAMP(6)`, 2)
		results := make(chan error)
		for range 4 {
			go func() {
				_, err := p.KeepPartitions(t.Context(), f.db, day)
				results <- err
			}()
		}
		for range 4 {
			f.ok(<-results)
		}
		f.is("partitions", f.bounds(), []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "rest"})
		f.is("done", f.count(`SELECT COUNT(*) FROM {done}`), 6)
		kept, err = p.KeepPartitions(t.Context(), f.db, 0)
		f.ok(err)
		f.is("kept", kept, dialect.Partitions{Partitioned: true, Dropped: 1})
		f.is("done", f.count(`SELECT COUNT(*) FROM {done}`), 2)

		// Too much in the rest to move it while relays wait.
		f.exec(`ALTER TABLE {done} PARTITION BY RANGE COLUMNS (done_at) (PARTITION z VALUES LESS THAN (MAXVALUE))`)
		f.done(`UTC_TIMESTAMP(6)`, 10_000)
		kept, err = p.KeepPartitions(t.Context(), f.db, day)
		if err == nil || kept != (dialect.Partitions{Partitioned: true}) {
			t.Errorf("with 10,002 rows in the rest it kept %+v, %v", kept, err)
		}
		f.is("partitions", f.bounds(), []string{"rest"})
		f.is("done", f.count(`SELECT COUNT(*) FROM {done}`), 10_002)
	})
}

// day is the begin of a day, counted from today, as text.
func (f *fixture) day(n int) string {
	f.Helper()
	return f.list(`SELECT DATE_FORMAT(UTC_DATE() + INTERVAL ? DAY, '%Y-%m-%d')`, n)[0]
}

// TestPartitionsInterrupted goes on where the rows were being moved.
func TestPartitionsInterrupted(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.done(`UTC_TIMESTAMP(6) - INTERVAL 1 DAY`, 3)
		f.partition()
		f.exec(`CREATE TABLE ` + f.sql("{schema}") + `.outbox_done_before LIKE {done}`)
		f.exec(`ALTER TABLE ` + f.sql("{schema}") + `.outbox_done_before REMOVE PARTITIONING`)
		f.exec(`INSERT INTO ` + f.sql("{schema}") + `.outbox_done_before SELECT * FROM {done} ORDER BY pos LIMIT 2`)
		f.exec(`DELETE FROM {done} ORDER BY pos LIMIT 2`)
		f.is("left", f.count(`SELECT COUNT(*) FROM {done}`), 1)
		f.partition()
		f.is("done", f.count(`SELECT COUNT(*) FROM {done}`), 3)
		f.is("tables left", f.count(`SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = ? AND table_name LIKE '%done%'`, f.tables.Schema), 1)
	})
}

// TestPartitionsReturnSpace to the file system.
func TestPartitionsReturnSpace(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.exec(`ALTER TABLE {done} PARTITION BY RANGE COLUMNS (done_at) (PARTITION a VALUES LESS THAN ('` + f.day(-1) + `'),
			PARTITION z VALUES LESS THAN (MAXVALUE))`)
		f.done(`UTC_DATE() - INTERVAL 2 DAY`, 20_000)
		f.done(`UTC_TIMESTAMP(6)`, 10)
		tablespaces := "innodb_tablespaces"
		if f.isMariaDB() {
			tablespaces = "innodb_sys_tablespaces"
		}
		// The files of the table, without those of the days ahead.
		files := func(partition string) int64 {
			return f.count(`SELECT COALESCE(SUM(file_size), 0) FROM information_schema.`+tablespaces+`
				WHERE LOWER(name) LIKE CONCAT(?, '/', ?, '#p#', ?)`, f.tables.Schema, f.tables.Prefix+"_done", partition)
		}
		all, day := files("%"), files("a")
		kept, err := f.store.(dialect.Partitioner).KeepPartitions(t.Context(), f.db, 24*time.Hour)
		f.ok(err)
		f.is("dropped", kept.Dropped, 1)
		f.is("files of the day", files("a"), 0)
		if left := files("%"); day < 4<<20 || left > all/4 {
			t.Errorf("done had %d bytes, %d of them a day of 20,000 rows of 20,010, and %d after that was dropped", all, day, left)
		}
		f.is("done", f.count(`SELECT COUNT(*) FROM {done}`), 10)
	})
}

// TestPartitionsDoNotWait for a reader of done longer than said, and nobody behind them.
func TestPartitionsDoNotWait(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		p := f.partition()
		f.exec(`ALTER TABLE {done} PARTITION BY RANGE COLUMNS (done_at) (PARTITION a VALUES LESS THAN ('` + f.day(-1) + `'),
			PARTITION z VALUES LESS THAN (MAXVALUE))`)
		reader, err := f.db.BeginTx(t.Context(), &sql.TxOptions{ReadOnly: true})
		f.ok(err)
		defer func() { _ = reader.Rollback() }()
		f.ok(reader.QueryRowContext(t.Context(), f.sql(`SELECT COUNT(*) FROM {done}`)).Scan(new(int)))
		conn, err := f.db.Conn(t.Context())
		f.ok(err)
		defer func() { _ = conn.Close() }()
		timeout := func() string {
			var s string
			f.ok(conn.QueryRowContext(t.Context(), "SELECT @@SESSION.lock_wait_timeout").Scan(&s))
			return s
		}
		was := timeout()

		waits := make(chan error, 1)
		go func() {
			_, err := p.KeepPartitions(context.WithoutCancel(t.Context()), conn, time.Hour)
			waits <- err
		}()
		f.await("the change to wait", func() bool {
			return f.count(`SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for table metadata lock'`) > 0
		})
		began := time.Now()
		f.done(`UTC_TIMESTAMP(6)`, 1) // behind it
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("what archives waited %v behind a change that waits", took)
		}
		err = <-waits
		if class := mysql.New().Classify(err); class != dialect.Conflict {
			t.Errorf("the change ended with %v (%v), want a conflict", err, class)
		}
		f.is("the session's timeout", timeout(), was)
		f.ok(reader.Rollback())
		kept, err := p.KeepPartitions(t.Context(), f.db, time.Hour)
		f.ok(err)
		f.is("behind the reader", kept, dialect.Partitions{Partitioned: true, Made: 8, Dropped: 1})
	})
}

// TestPartitionsByDBA runs the DDL by hand.
func TestPartitionsByDBA(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		p := f.store.(dialect.Partitioner)
		_, err := f.plain.ExecContext(t.Context(), p.PartitionSQL())
		f.ok(err)
		kept, err := p.KeepPartitions(t.Context(), f.db, 0)
		f.ok(err)
		f.is("kept", kept, dialect.Partitions{Partitioned: true, Made: 8})
		f.everything()
	})
}

// TestConformancePartitioned runs the scenarios that archive, replay and purge on a done
// table in partitions.
func TestConformancePartitioned(t *testing.T) {
	for _, engine := range []string{"mysql", "mariadb"} {
		newest(t, engine, func(t *testing.T, server *containers.Server) {
			in := target(t, server.DSN, server)
			in.Dialect, in.Short = partitioned{mysql.New()}, true
			report, err := conformance.Check(t.Context(), in, conformance.Options{Match: regexp.MustCompile(
				`^(Settle/ExactlyTheRowsNamed|Relay/ReplaySameID|Purge/OnlyDone)$`)})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range report.Failed() {
				t.Errorf("%v", r)
			}
			if n := report.Counts()[conformance.Passed]; n < 3 {
				t.Errorf("%d scenarios passed", n)
			}
		})
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

// TestPartitionsDenied leaves partitions alone as a user who may not change them.
func TestPartitionsDenied(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		p := f.partition()
		f.exec(`ALTER TABLE {done} PARTITION BY RANGE COLUMNS (done_at) (PARTITION a VALUES LESS THAN ('` + f.day(-1) + `'),
			PARTITION z VALUES LESS THAN (MAXVALUE))`)
		user := "part" + f.tables.Schema[max(0, len(f.tables.Schema)-12):]
		f.exec(`CREATE USER ` + user + ` IDENTIFIED BY 'Secret-1'`)
		t.Cleanup(func() {
			if _, err := f.plain.ExecContext(context.Background(), "DROP USER "+user); err != nil {
				t.Error(err)
			}
		})
		f.exec(`GRANT SELECT, INSERT, DELETE ON {done} TO ` + user)
		u, err := url.Parse(f.dsn)
		f.ok(err)
		u.User = url.UserPassword(user, "Secret-1")
		u.Path = "/" + f.tables.Schema // the database he has a right in
		db := f.open(u.String())
		kept, err := p.KeepPartitions(t.Context(), db, time.Hour)
		f.ok(err)
		f.is("kept by another", kept, dialect.Partitions{Partitioned: true, Denied: true})
		f.exec(`GRANT ALTER, CREATE, DROP ON {done} TO ` + user)
		kept, err = p.KeepPartitions(t.Context(), db, time.Hour)
		f.ok(err)
		f.is("kept by one who may", kept, dialect.Partitions{Partitioned: true, Made: 8, Dropped: 1})
	})
}
