package sqlserver_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/sqlserver"
)

// TestMigrateRaced starts several processes' worth of migrations at once, in rounds,
// into a schema that is not there yet.
func TestMigrateRaced(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, d database, _ *containers.Server) {
		for round := range 3 {
			f := unmigrated(t, d)
			start := make(chan struct{})
			applied := make([][]int, 8)
			errs := make([]error, 8)
			var wg sync.WaitGroup
			for i := range 8 {
				db := f.open(f.dsn)
				f.ok(db.PingContext(t.Context()))
				wg.Go(func() {
					<-start
					applied[i], errs[i] = f.store.Migrate(t.Context(), db)
				})
			}
			close(start)
			wg.Wait()
			for _, err := range errs {
				f.ok(err)
			}
			f.is(fmt.Sprint("versions applied in round ", round), slices.Sorted(slices.Values(slices.Concat(applied...))), []int{1, 2, 3})
			f.is("lanes", f.count(`SELECT COUNT(*) FROM {lane}`), lanes)
		}
	})
}

// TestMigrateInterrupted leaves nothing behind, because DDL is transactional.
func TestMigrateInterrupted(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, d database, _ *containers.Server) {
		f := unmigrated(t, d)
		f.exec(`CREATE SCHEMA {schema}`)
		all := sqlserver.StatementsOf(f.store, 1)
		tx, err := f.db.BeginTx(t.Context(), nil)
		f.ok(err)
		for _, statement := range all[:len(all)-1] {
			if _, err := tx.ExecContext(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		f.ok(tx.Rollback())
		applied, err := f.store.Migrate(t.Context(), f.db)
		f.ok(err)
		f.is("applied", applied, []int{1, 2, 3})
		f.everything()
	})
}

// TestMigrateRefuses what it cannot bring to the newest version.
func TestMigrateRefuses(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		tables := func() []string {
			return f.list(`SELECT t.name FROM sys.tables AS t WHERE t.schema_id = SCHEMA_ID(@p1) ORDER BY t.name`, f.tables.Schema)
		}
		refuses := func(f *fixture, want string) {
			t.Helper()
			before := tables()
			applied, err := f.store.Migrate(t.Context(), f.db)
			if err == nil || len(applied) > 0 || !strings.Contains(err.Error(), want) {
				t.Errorf("applied %v, %v, want an error that says %q", applied, err, want)
			}
			f.is("schema", tables(), before)
		}
		applied, err := f.store.Migrate(t.Context(), f.db)
		f.ok(err)
		f.is("applied again", len(applied), 0)

		other := *f
		other.tables.Lanes = 5
		other.bind()
		refuses(&other, "has 4 lanes and lanes is set to 5")
		f.exec(`UPDATE {meta} SET version = 99`)
		refuses(f, "version 99")
		f.exec(`DELETE FROM {meta}`)
		refuses(f, "is empty")
		f.exec(`DROP TABLE {meta}`)
		refuses(f, "_meta] missing")
	})
}

// TestMigrateByDBA runs the steps by hand, all in one batch, and migrates nothing after.
func TestMigrateByDBA(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, d database, _ *containers.Server) {
		f := unmigrated(t, d)
		f.exec(`CREATE SCHEMA {schema}`)
		for _, step := range f.store.Steps() {
			if _, err := f.db.ExecContext(t.Context(), "SET XACT_ABORT ON; BEGIN TRANSACTION;\n"+step.SQL+"\nCOMMIT"); err != nil {
				t.Fatal(err)
			}
		}
		applied, err := f.store.Migrate(t.Context(), f.db)
		f.ok(err)
		f.is("applied", len(applied), 0)
		f.everything()
	})
}

// TestMostLanes makes as many lanes as there may be, and one.
func TestMostLanes(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, d database, _ *containers.Server) {
		for _, n := range []int{1, 33, dialect.MaxLanes} {
			f := unmigrated(t, d)
			f.tables.Lanes = n
			f.bind()
			f.migrate()
			f.is("lanes", f.count(`SELECT COUNT(*) FROM {lane} WHERE lane BETWEEN 0 AND @p1 - 1`, n), n)
		}
	})
}

// TestInspect finds each problem.
func TestInspect(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, d database, _ *containers.Server) {
		none := unmigrated(t, d)
		found, err := none.store.Inspect(t.Context(), none.db)
		none.ok(err)
		none.is("without tables", fmt.Sprint(found.Version, found.Lanes, found.Problems), "0 0 []")

		for name, c := range map[string]struct{ damage, want string }{
			"MissingTable":   {`DROP TABLE {inbox}`, "_inbox] is missing"},
			"MissingMeta":    {`DROP TABLE {meta}`, "_meta] is missing"},
			"MissingMetaRow": {`DELETE FROM {meta}`, "_meta] is empty"},
			"MissingLane":    {`DELETE FROM {lane} WHERE lane = 2`, "1 of 4 lanes have no row"},
			"MissingLanes":   {`DROP TABLE {lane}`, "_lane] is missing"},
			"LaneBeyond":     {`INSERT INTO {lane} (lane) VALUES (4)`, "beyond the schema's 4 lanes"},
			"MissingIndex":   {`DROP INDEX {name:parked_key} ON {parked}`, "has no index"},
			"DisabledIndex":  {`ALTER INDEX {name:done_id} ON {done} DISABLE`, "has no index"},
			"NoRowLocks":     {`ALTER INDEX {name:lane_pk} ON {lane} SET (ALLOW_ROW_LOCKS = OFF)`, "takes no row locks"},
		} {
			t.Run(name, func(t *testing.T) {
				g := unmigrated(t, d)
				g.migrate()
				g.exec(c.damage)
				found, err := g.store.Inspect(t.Context(), g.db)
				g.ok(err)
				if len(found.Problems) != 1 || !strings.Contains(found.Problems[0], c.want) {
					t.Errorf("problems: %q, want one that says %q", found.Problems, c.want)
				}
			})
		}
	})
}

// TestProblems of a server or database that the statements do not run on.
func TestProblems(t *testing.T) {
	for name, c := range map[string]struct {
		version                         string
		edition, compatibility, delayed int
		updateability, want             string
	}{
		"2017":       {"14.0.1000.169", 3, 140, 0, "READ_WRITE", ""},
		"2025":       {"17.0.1000.7", 2, 170, 1, "READ_WRITE", ""},
		"2016":       {"13.0.6300.2", 3, 130, 0, "READ_WRITE", "2017"},
		"Express":    {"16.0.1000.6", 4, 160, 0, "READ_WRITE", ""},
		"Azure":      {"12.0.2000.8", 5, 150, 0, "READ_WRITE", ""},
		"Managed":    {"12.0.2000.8", 8, 150, 0, "READ_WRITE", ""},
		"Edge":       {"15.0.2000.1574", 9, 150, 0, "READ_WRITE", ""},
		"Synapse":    {"12.0.2000.8", 6, 130, 0, "READ_WRITE", "edition 6"},
		"Serverless": {"12.0.2000.8", 11, 130, 0, "READ_WRITE", "edition 11"},
		"Old":        {"16.0.1000.6", 3, 120, 0, "READ_WRITE", "compatibility level is 120"},
		"Secondary":  {"16.0.1000.6", 3, 160, 0, "READ_ONLY", "connect to the primary"},
		"Delayed":    {"16.0.1000.6", 3, 160, 2, "READ_WRITE", "DELAYED_DURABILITY"},
		"Strange":    {"something", 3, 160, 0, "", ""},
	} {
		got := strings.Join(sqlserver.Problems(c.version, c.edition, c.compatibility, c.delayed, c.updateability), "\n")
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) || strings.Contains(got, "\n") {
			t.Errorf("%s: %q, want one that says %q", name, got, c.want)
		}
	}
}

// hashSQL is the hash of a key, and laneSQL a message's lane, as a service in any
// language computes them in the server: the first 8 bytes of SHA-256 as a number.
const (
	hashSQL = `CAST(SUBSTRING(HASHBYTES('SHA2_256', [key]), 1, 8) AS bigint)`
	wrapSQL = ` % @p1 + @p1 + CASE WHEN ` + hashSQL + ` < 0 THEN @p2 ELSE 0 END) % @p1`
)

// TestPlainInsert enqueues as a service in another language would, leaving out what
// has a default, and is refused when it is wrong about the lane.
func TestPlainInsert(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		for _, n := range []int{1, 3, lanes, 16, 1000, dialect.MaxLanes} {
			g := *f
			g.tables.Lanes, g.tables.Prefix = n, fmt.Sprint("lanes", n)
			g.bind()
			g.migrate()
			for i := range 20 {
				key := fmt.Sprint("key ", i)
				hash := dialect.KeyHash(key)
				lane := dialect.LaneOfKey(hash, n)
				insert := func(lane int) error {
					id := uuid.New()
					_, err := g.db.ExecContext(t.Context(), g.sql(`
						INSERT INTO {ready} (lane, id, topic, [key], key_hash, type) VALUES (@p1, @p2, 0x74, @p3, @p4, 0x79)`), lane, id[:], []byte(key), hash)
					return err
				}
				f.ok(insert(lane))
				if n > 1 && insert((lane+1)%n) == nil {
					t.Fatalf("key %q was let into the wrong lane of %d", key, n)
				}
			}
			// The key's hash and lane, computed by the server alone.
			g.is("wrong hashes", g.count(`SELECT COUNT(*) FROM {ready} WHERE key_hash <> `+hashSQL), 0)
			g.is("wrong lanes", g.count(`SELECT COUNT(*) FROM {ready} WHERE lane <> (`+hashSQL+wrapSQL, n, powerModulo(n)), 0)
			g.is("defaults", g.count(`
				SELECT COUNT(*) FROM {ready} WHERE content_type = CAST('application/json' AS varbinary(255)) AND headers = 0x7B7D
				   AND payload IS NULL AND replay = 0 AND ABS(DATEDIFF(second, created_at, SYSUTCDATETIME())) < 60`), 20)
		}
		for name, text := range map[string]string{
			"KeyWithoutHash": `INSERT INTO {ready} (lane, id, topic, [key], type) VALUES (0, @p1, 0x74, 0x6B, 0x79)`,
			"HashWithoutKey": `INSERT INTO {ready} (lane, id, topic, key_hash, type) VALUES (0, @p1, 0x74, 0, 0x79)`,
			"LaneBeyond":     `INSERT INTO {ready} (lane, id, topic, type) VALUES (4, @p1, 0x74, 0x79)`,
			"LaneBelow":      `INSERT INTO {parked} (lane, id, topic, type, available_at) VALUES (-1, @p1, 0x74, 0x79, SYSUTCDATETIME())`,
			"LongID":         `INSERT INTO {ready} (lane, id, topic, type) VALUES (0, CAST('0198c0de-0000-7000-8000-000000000000' AS varbinary(36)), 0x74, @p1)`,
			"TextID":         `INSERT INTO {ready} (lane, id, topic, type) VALUES (0, '0198c0de000070008000000000000000', 0x74, @p1)`,
			"LongTopic":      `INSERT INTO {ready} (lane, id, topic, type) VALUES (0, @p1, CAST(REPLICATE('t', 256) AS varbinary(256)), 0x79)`,
			"NoTime":         `INSERT INTO {parked} (lane, id, topic, type) VALUES (1, @p1, 0x74, 0x79)`,
			"NoTwin":         `INSERT INTO {parked} (lane, seq, id, topic, type, state) VALUES (1, 1, @p1, 0x74, 0x79, 'dead')`,
			"HeldWithoutKey": `INSERT INTO {parked} (lane, seq, twin, id, topic, type, state) VALUES (1, 1, 1, @p1, 0x74, 0x79, 'held')`,
			"HeldBlocks":     `INSERT INTO {parked} (lane, seq, twin, id, topic, [key], key_hash, type, state, blocking) VALUES (0, 1, 1, @p1, 0x74, 0x, 0, 0x79, 'held', 1)`,
			"NoSuchState":    `INSERT INTO {parked} (lane, seq, twin, id, topic, type, state) VALUES (0, 1, 1, @p1, 0x74, 0x79, 'lost')`,
		} {
			id := uuid.New()
			if _, err := f.db.ExecContext(t.Context(), f.sql(text), id[:]); err == nil {
				t.Errorf("%s was let in", name)
			}
		}
		id := uuid.New()
		f.exec(`INSERT INTO {parked} (lane, id, topic, type, available_at) VALUES (1, @p1, 0x74, 0x79, SYSUTCDATETIME())`, id[:])
		moved, _, err := f.store.Surface(t.Context(), f.db, f.claim(1, "me"), 9)
		f.ok(err)
		f.is("surfaced", moved, 1)
	})
}

// powerModulo is 2^64 modulo n.
func powerModulo(n int) int {
	p := 1 % n
	for range 64 {
		p = 2 * p % n
	}
	return p
}

// TestTriggers has a trigger on every table that changes rows elsewhere and answers with
// a result: counts of changed rows are wrong then, and OUTPUT is refused.
func TestTriggers(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.exec(`CREATE TABLE {schema}.[noise] (n int NOT NULL)`)
		for i, table := range []string{"{ready}", "{parked}", "{done}", "{lane}", "{inbox}", "{meta}"} {
			f.exec(fmt.Sprintf(`CREATE TRIGGER {schema}.[noise_%d] ON %s AFTER INSERT, UPDATE, DELETE AS
				INSERT INTO {schema}.[noise] (n) VALUES (1), (2), (3)`, i, table))
		}
		f.everything()
	})
}

// TestOldTools inserts in sessions whose SET options would refuse filtered indexes and
// computed columns.
func TestOldTools(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		conn, err := f.db.Conn(t.Context())
		f.ok(err)
		defer func() { _ = conn.Close() }()
		for _, option := range []string{"QUOTED_IDENTIFIER OFF", "ARITHABORT OFF", "ANSI_WARNINGS OFF", "ANSI_NULLS OFF", "CONCAT_NULL_YIELDS_NULL OFF"} {
			_, err := conn.ExecContext(t.Context(), "SET "+option)
			f.ok(err)
		}
		for _, text := range []string{
			`INSERT INTO {ready} (lane, id, topic, type) VALUES (1, NEWID(), 0x74, 0x79)`,
			`INSERT INTO {parked} (lane, id, topic, type, available_at) VALUES (1, NEWID(), 0x74, 0x79, SYSUTCDATETIME())`,
		} {
			_, err := conn.ExecContext(t.Context(), f.sql(text))
			f.ok(err)
		}
	})
}

// TestArchiveMissing lets messages leave though they cannot be archived, once the
// caller has seen that this is what is missing.
func TestArchiveMissing(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.run(keyIn(0), 2)
		lease := f.claim(1, "me")
		s := dialect.Settlement{Archive: true, Published: f.refs(f.readyTopics()...)}
		f.exec(`DROP TABLE {done}`)
		_, err := f.store.Settle(t.Context(), f.db, lease, time.Hour, s)
		f.is("class", sqlserver.New().Classify(err), dialect.Missing)
		f.is("ready", len(f.readyTopics()), 2)
		s.Archive = false
		f.settle(lease, s)
		f.is("ready", len(f.readyTopics()), 0)
	})
}

// TestLateCommit reads in order where a transaction that began before commits late: a
// key's next message is never read without the one before it.
func TestLateCommit(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		tx := f.begin()
		f.ok(f.store.Insert(t.Context(), tx, []dialect.Message{message("late", keyIn(1))}))
		f.run(keyIn(0), 2)
		done := make(chan []string, 1)
		go func() {
			rows, err := f.store.Ready(context.WithoutCancel(t.Context()), f.db, 1, 0, dialect.Limit{Rows: 9})
			if err != nil {
				t.Error(err)
			}
			done <- topics(rows)
		}()
		want := []string{keyIn(0) + ".1", keyIn(0) + ".2"}
		if f.rcsi == "OFF" {
			f.blocked(1)
			want = append([]string{"late"}, want...)
		} else {
			f.is("read beside the open transaction", <-done, want)
			done <- want
		}
		f.ok(tx.Commit())
		f.is("read", <-done, want)
		// Poll, Stats and Recorded wait for nobody.
		tx = f.begin()
		f.ok(f.store.Insert(t.Context(), tx, []dialect.Message{message("later", keyIn(1))}))
		_, err := f.store.Record(t.Context(), tx, "me", "id")
		f.ok(err)
		short, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		lanes, err := f.store.Poll(short, f.db, "me", 9)
		f.ok(err)
		f.is("lanes", lanesOf(lanes), []int{1})
		stats, err := f.store.Stats(short, f.db, 99)
		f.ok(err)
		f.is("ready", stats.Ready, 3)
		there, err := f.store.Recorded(short, f.db, "me", "id")
		f.ok(err)
		f.is("recorded", there, false)
	})
}

// TestOrder gives seq in the order of the slice, which is not that of the ids, also
// where that takes several statements.
func TestOrder(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		var messages []dialect.Message
		var want []string
		for i := range 2500 {
			m := message(fmt.Sprint(i), keyIn(i%3))
			want = append(want, m.Topic)
			messages = append(messages, m)
		}
		f.insert(messages...)
		f.is("order", f.readyTopics(), want)
		f.ok(f.store.Insert(t.Context(), nil, nil))
	})
}

// TestRecordKeepsTransaction of the caller, whatever its XACT_ABORT, and tells apart
// what the server's comparison does not.
func TestRecordKeepsTransaction(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		for i, setting := range []string{"ON", "OFF"} {
			tx, err := f.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelSnapshot})
			f.ok(err)
			_, err = tx.ExecContext(t.Context(), "SET XACT_ABORT "+setting)
			f.ok(err)
			for j, id := range []string{"a", "a\x00", "A", "a ", "", strings.Repeat("x", 2000)} {
				consumer := fmt.Sprint("consumer ", i)
				for k, want := range []bool{true, false, false} {
					fresh, err := f.store.Record(t.Context(), tx, consumer, id)
					f.ok(err)
					f.is(fmt.Sprint("fresh ", j, k), fresh, want)
				}
			}
			f.ok(tx.Commit())
		}
		f.is("entries", f.count(`SELECT COUNT(*) FROM {inbox}`), 12)
	})
}
