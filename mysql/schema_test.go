package mysql_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/mysql"
)

// TestMigrateRaced starts several processes' worth of migrations at once, in rounds,
// into a database that is not there yet.
func TestMigrateRaced(t *testing.T) {
	onEachServer(t, func(t *testing.T, server *containers.Server) {
		for round := range 3 {
			f := unmigrated(t, server.DSN)
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
			f.is("lanes", f.count(`SELECT count(*) FROM {lane}`), lanes)
		}
	})
}

// TestMigrateInterrupted completes a schema whose migration stopped after any of its
// statements, and says before that it is not complete.
func TestMigrateInterrupted(t *testing.T) {
	onEachServer(t, func(t *testing.T, server *containers.Server) {
		f := unmigrated(t, server.DSN)
		all := mysql.StatementsOf(f.store, 1)
		for n := 1; n < len(all)-1; n++ {
			f.exec(`DROP DATABASE IF EXISTS {schema}`)
			f.exec(`CREATE DATABASE {schema}`)
			for _, statement := range all[:n] {
				if _, err := f.plain.ExecContext(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}
			found, err := f.store.Inspect(t.Context(), f.db)
			f.ok(err)
			if found.Version != 0 || len(found.Problems) == 0 {
				t.Errorf("after %d statements: %+v", n, found)
			}
			applied, err := f.store.Migrate(t.Context(), f.db)
			f.ok(err)
			f.is("applied", applied, []int{1, 2, 3})
			f.is("lanes", f.count(`SELECT count(*) FROM {lane}`), lanes)
			found, err = f.store.Inspect(t.Context(), f.db)
			f.ok(err)
			f.is("found", fmt.Sprint(found.Version, found.Lanes, found.Problems), "3 4 []")
		}
		f.everything()
	})
}

// TestUpgrade brings version 1 with messages in it to the newest, after any of the
// statements at which it may have stopped, and nothing moves.
func TestUpgrade(t *testing.T) {
	onEachServer(t, func(t *testing.T, server *containers.Server) {
		f := unmigrated(t, server.DSN)
		second := mysql.StatementsOf(f.store, 2)
		for n := range len(second) - 1 {
			f.exec(`DROP DATABASE IF EXISTS {schema}`)
			f.exec(`CREATE DATABASE {schema}`)
			for _, statement := range slices.Concat(mysql.StatementsOf(f.store, 1), second[:n]) {
				if _, err := f.plain.ExecContext(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}
			f.run(keyIn(0), 3)
			f.run("", 1)
			const all = `SELECT CONCAT_WS(' ', seq, HEX(id), topic, created_at) FROM {ready} ORDER BY seq`
			before := f.list(all)
			found, err := f.store.Inspect(t.Context(), f.db)
			f.ok(err)
			if n < len(second)-2 {
				f.is("before", fmt.Sprint(found.Version, found.Problems), "1 []")
			}
			_, err = f.store.Migrate(t.Context(), f.db)
			f.ok(err)
			f.is("messages", f.list(all), before)
			found, err = f.store.Inspect(t.Context(), f.db)
			f.ok(err)
			f.is("found", fmt.Sprint(found.Version, found.Lanes, found.Problems), "3 4 []")
		}
		f.exec(`DROP TABLE {progress}`)
		if _, err := f.store.Migrate(t.Context(), f.db); err == nil {
			t.Error("a schema without one of its tables was found to be complete")
		}
		found, err := f.store.Inspect(t.Context(), f.db)
		f.ok(err)
		f.is("problems without a table", len(found.Problems), 1)
	})
}

// TestMigrateRefuses what it cannot bring to the newest version, and lets go of its
// lock.
func TestMigrateRefuses(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		tables := func(f *fixture) []string {
			return f.list(`SELECT table_name FROM information_schema.tables WHERE table_schema = ? ORDER BY 1`, f.tables.Schema)
		}
		refuses := func(f *fixture, want string) {
			t.Helper()
			before := tables(f)
			applied, err := f.store.Migrate(t.Context(), f.db)
			if err == nil || len(applied) > 0 || !strings.Contains(err.Error(), want) {
				t.Errorf("applied %v, %v, want an error that says %q", applied, err, want)
			}
			f.is("schema", tables(f), before)
			f.await("the lock free", func() bool { return f.count(`SELECT IS_FREE_LOCK('outbox_migrate')`) == 1 })
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
		refuses(f, "_meta` missing")
	})
}

// TestMigrateByDBA runs the steps by hand, and migrates nothing after.
func TestMigrateByDBA(t *testing.T) {
	onEachServer(t, func(t *testing.T, server *containers.Server) {
		f := unmigrated(t, server.DSN)
		f.exec(`CREATE DATABASE {schema}`)
		db := f.open(with(f.dsn, "multiStatements", "true"))
		for _, step := range f.store.Steps() {
			if _, err := db.ExecContext(t.Context(), step.SQL); err != nil {
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
	onEachServer(t, func(t *testing.T, server *containers.Server) {
		for _, n := range []int{1, 33, dialect.MaxLanes} {
			f := unmigrated(t, server.DSN)
			f.tables.Lanes = n
			f.bind()
			f.migrate()
			f.is("lanes", f.count(`SELECT COUNT(*) FROM {lane} WHERE lane BETWEEN 0 AND ? - 1`, n), n)
		}
	})
}

// TestInspect finds each problem.
func TestInspect(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		none := unmigrated(t, f.dsn)
		found, err := none.store.Inspect(t.Context(), none.db)
		f.ok(err)
		f.is("without tables", fmt.Sprint(found.Version, found.Lanes, found.Problems), "0 0 []")

		for name, c := range map[string]struct {
			option, value string // of the DSN
			damage        string
			want          string
		}{
			"NotStrict":      {option: "sql_mode", value: "'NO_ENGINE_SUBSTITUTION'", want: "not strict"},
			"MissingTable":   {damage: `DROP TABLE {inbox}`, want: "_inbox` is missing"},
			"MissingMeta":    {damage: `DROP TABLE {meta}`, want: "_meta` is missing"},
			"MissingMetaRow": {damage: `DELETE FROM {meta}`, want: "_meta` is empty"},
			"Incomplete":     {damage: `UPDATE {meta} SET version = 0`, want: "interrupted"},
			"MissingLane":    {damage: `DELETE FROM {lane} WHERE lane = 2`, want: "1 of 4 lanes have no row"},
			"MissingLanes":   {damage: `DROP TABLE {lane}`, want: "_lane` is missing"},
			"LaneBeyond":     {damage: `INSERT INTO {lane} (lane) VALUES (4)`, want: "beyond the schema's 4 lanes"},
			"MissingIndex":   {damage: `ALTER TABLE {parked} DROP INDEX {name:parked_key}`, want: "has no index"},
			"OtherEngine":    {damage: `ALTER TABLE {lane} ENGINE = MyISAM`, want: "kept by MyISAM"},
		} {
			t.Run(name, func(t *testing.T) {
				g := unmigrated(t, f.dsn)
				g.migrate()
				if c.option != "" {
					g.db = g.open(with(f.dsn, c.option, c.value))
				} else {
					g.exec(c.damage)
				}
				found, err := g.store.Inspect(t.Context(), g.db)
				g.ok(err)
				if len(found.Problems) != 1 || !strings.Contains(found.Problems[0], c.want) {
					t.Errorf("problems: %q, want one that says %q", found.Problems, c.want)
				}
			})
		}
	})
}

// TestVersions refuses what the statements do not run on, or run on wrongly.
func TestVersions(t *testing.T) {
	for version, want := range map[string]string{
		"8.0.11-TiDB-v8.5.6":               "TiDB",
		"5.7.44-log":                       "8.0.13",
		"8.0.12":                           "8.0.13",
		"8.0.13":                           "",
		"8.4.5-0ubuntu0":                   "",
		"9.7.4":                            "",
		"10.5.29-MariaDB-log":              "10.6",
		"5.5.5-10.5.8-MariaDB":             "10.6",
		"10.6.1-MariaDB":                   "",
		"5.5.5-10.11.18-MariaDB-0+deb12u1": "",
		"11.8.9-MariaDB-4 from Debian":     "",
		"something else":                   "",
	} {
		got := mysql.TooOld(version)
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want one that says %q", version, got, want)
		}
	}
}

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
					_, err := g.plain.ExecContext(t.Context(), g.sql(`
						INSERT INTO {ready} (lane, id, topic, {key}, key_hash, type) VALUES (?, ?, 't', ?, ?, 'y')`), lane, id[:], key, hash)
					return err
				}
				f.ok(insert(lane))
				if n > 1 && insert((lane+1)%n) == nil {
					t.Fatalf("key %q was let into the wrong lane of %d", key, n)
				}
			}
			// The key's hash and lane, computed by the server alone.
			g.is("wrong hashes", g.count(`
				SELECT COUNT(*) FROM {ready} WHERE key_hash <> CAST(CONV(LEFT(SHA2({key}, 256), 16), 16, -10) AS SIGNED)`), 0)
			g.is("wrong lanes", g.count(`
				SELECT COUNT(*) FROM {ready} WHERE lane <> CAST(CONV(LEFT(SHA2({key}, 256), 16), 16, 10) AS UNSIGNED) % ?`, n), 0)
			g.is("defaults", g.count(`
				SELECT COUNT(*) FROM {ready} WHERE content_type = 'application/json' AND headers = '{}' AND payload IS NULL AND replay = 0
				   AND ABS(TIMESTAMPDIFF(SECOND, created_at, UTC_TIMESTAMP())) < 60`), 20)
		}
		for name, text := range map[string]string{
			"KeyWithoutHash": `INSERT INTO {ready} (lane, id, topic, {key}, type) VALUES (0, RANDOM_BYTES(16), 't', 'k', 'y')`,
			"HashWithoutKey": `INSERT INTO {ready} (lane, id, topic, key_hash, type) VALUES (0, RANDOM_BYTES(16), 't', 0, 'y')`,
			"LaneBeyond":     `INSERT INTO {ready} (lane, id, topic, type) VALUES (4, RANDOM_BYTES(16), 't', 'y')`,
			"LaneBelow":      `INSERT INTO {parked} (lane, id, topic, type, available_at) VALUES (-1, RANDOM_BYTES(16), 't', 'y', UTC_TIMESTAMP(6))`,
			"LongID":         `INSERT INTO {ready} (lane, id, topic, type) VALUES (0, '0198c0de-0000-7000-8000-000000000000', 't', 'y')`,
			"LongTopic":      `INSERT INTO {ready} (lane, id, topic, type) VALUES (0, RANDOM_BYTES(16), REPEAT('t', 256), 'y')`,
			"NoTime":         `INSERT INTO {parked} (lane, id, topic, type) VALUES (1, RANDOM_BYTES(16), 't', 'y')`,
			"HeldWithoutKey": `INSERT INTO {parked} (lane, seq, id, topic, type, state) VALUES (1, 1, RANDOM_BYTES(16), 't', 'y', 'held')`,
			"HeldBlocks":     `INSERT INTO {parked} (lane, seq, id, topic, {key}, key_hash, type, state, blocking) VALUES (0, 1, RANDOM_BYTES(16), 't', '', 0, 'y', 'held', 1)`,
			"NoSuchState":    `INSERT INTO {parked} (lane, seq, id, topic, type, state) VALUES (0, 1, RANDOM_BYTES(16), 't', 'y', 'lost')`,
		} {
			// RANDOM_BYTES comes with MariaDB 10.10.
			id := uuid.New()
			if _, err := f.plain.ExecContext(t.Context(), f.sql(strings.ReplaceAll(text, "RANDOM_BYTES(16)", fmt.Sprintf("x'%x'", id[:])))); err == nil {
				t.Errorf("%s was let in", name)
			}
		}
		id := uuid.New()
		f.exec(`INSERT INTO {parked} (lane, id, topic, type, available_at) VALUES (1, ?, 't', 'y', UTC_TIMESTAMP(6))`, id[:])
		moved, _, err := f.store.Surface(t.Context(), f.db, f.claim(1, "me"), 9)
		f.ok(err)
		f.is("surfaced", moved, 1)
	})
}

// TestArchiveMissing lets messages leave though they cannot be archived, once the
// caller has seen that this is what is missing.
func TestArchiveMissing(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.run(keyIn(0), 2)
		lease := f.claim(1, "me")
		s := dialect.Settlement{Archive: true, Published: f.refs(f.readyTopics()...)}
		archive := func(name string) {
			t.Helper()
			_, err := f.store.Settle(t.Context(), f.db, lease, time.Hour, s)
			if got := mysql.New().Classify(err); got != dialect.Missing {
				t.Errorf("%s: %v is %v", name, err, got)
			}
		}
		f.exec(`ALTER TABLE {done} PARTITION BY RANGE COLUMNS (done_at) (PARTITION old VALUES LESS THAN ('2020-01-01'))`)
		archive("no partition")
		f.exec(`RENAME TABLE {done} TO {schema}.old`)
		archive("no table")
		f.is("ready", len(f.readyTopics()), 2)
		s.Archive = false
		f.settle(lease, s)
		f.is("ready", len(f.readyTopics()), 0)
	})
}

// TestPartitionedDone works on a done table that is partitioned by time.
func TestPartitionedDone(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.exec(`ALTER TABLE {done} PARTITION BY RANGE COLUMNS (done_at) (
			PARTITION old VALUES LESS THAN ('2020-01-01'), PARTITION rest VALUES LESS THAN (MAXVALUE))`)
		f.run(keyIn(0), 6)
		lease := f.claim(1, "me")
		all := f.readyTopics()
		f.settle(lease, dialect.Settlement{Archive: true, Published: f.refs(all...)})
		f.exec(`UPDATE {done} SET done_at = '2019-01-01' WHERE pos <= 3`)
		n, err := f.store.Purge(t.Context(), f.db, 0, 2)
		f.ok(err)
		f.is("purged", n, 2)
		f.is("left", f.list(`SELECT topic FROM {done} ORDER BY done_at, pos`), all[2:])
		n, next, err := f.store.Replay(t.Context(), f.db, dialect.Filter{All: true}, nil, 3)
		f.ok(err)
		f.is("replayed", n, 3)
		n, _, err = f.store.Replay(t.Context(), f.db, dialect.Filter{All: true}, next, 3)
		f.ok(err)
		f.is("replayed", n, 1)
		f.is("ready", f.readyTopics(), all[2:])
	})
}
