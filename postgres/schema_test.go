package postgres_test

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/postgres"
)

// TestMigrateRaced starts several processes' worth of migrations at once, in
// rounds, into a schema that is not there yet.
func TestMigrateRaced(t *testing.T) {
	for _, server := range containers.Servers(t, "postgres") {
		t.Run(server.Version, func(t *testing.T) {
			for round := range 5 {
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
}

// TestMigrateRefuses what it cannot bring to the newest version.
func TestMigrateRefuses(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		refuses := func(f *fixture, want string) {
			t.Helper()
			before := f.list(`SELECT relname FROM pg_class WHERE relnamespace = $1::regnamespace ORDER BY 1`, quote(f.tables.Schema))
			applied, err := f.store.Migrate(t.Context(), f.db)
			if err == nil || len(applied) > 0 || !strings.Contains(err.Error(), want) {
				t.Errorf("applied %v, %v, want an error that says %q", applied, err, want)
			}
			f.is("schema", f.list(`SELECT relname FROM pg_class WHERE relnamespace = $1::regnamespace ORDER BY 1`, quote(f.tables.Schema)), before)
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
		refuses(f, "_meta\" missing")
	})
}

// TestMigrateRolledBack leaves nothing behind when a step fails half-way.
func TestMigrateRolledBack(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		g := *f
		g.tables.Prefix = "second"
		g.bind()
		// A name of the new schema is taken, by an index of the old one.
		f.exec(`CREATE INDEX ` + quote("second_done_id") + ` ON {done} (id)`)
		_, err := g.store.Migrate(t.Context(), g.db)
		if err == nil {
			t.Fatal("migrated though a name was taken")
		}
		f.is("tables", f.count(`SELECT count(*) FROM pg_tables WHERE schemaname = $1 AND tablename LIKE 'second%'`, f.tables.Schema), 0)
		f.exec(`DROP INDEX ` + quote(f.tables.Schema) + `.second_done_id`)
		g.migrate()
	})
}

// TestMigrateByDBA runs the steps by hand, and migrates nothing after.
func TestMigrateByDBA(t *testing.T) {
	for _, server := range containers.Servers(t, "postgres") {
		t.Run(server.Version, func(t *testing.T) {
			f := unmigrated(t, server.DSN)
			f.exec(`CREATE SCHEMA {schema}`)
			for _, step := range f.store.Steps() {
				if _, err := f.db.ExecContext(t.Context(), step.SQL); err != nil {
					t.Fatal(err)
				}
			}
			applied, err := f.store.Migrate(t.Context(), f.db)
			f.ok(err)
			f.is("applied", len(applied), 0)
			f.everything()
		})
	}
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
			"ReadOnly":        {option: "default_transaction_read_only", value: "on", want: "read-only"},
			"Asynchronous":    {option: "synchronous_commit", value: "off", want: "synchronous_commit"},
			"MissingTable":    {damage: `DROP TABLE {inbox}`, want: `_inbox" is missing`},
			"MissingMeta":     {damage: `DROP TABLE {meta}`, want: `_meta" is missing`},
			"MissingMetaRow":  {damage: `DELETE FROM {meta}`, want: `_meta" is empty`},
			"MissingLane":     {damage: `DELETE FROM {lane} WHERE lane = 2`, want: "1 of 4 lanes have no row"},
			"MissingLanes":    {damage: `DROP TABLE {lane}`, want: `_lane" is missing`},
			"LaneBeyond":      {damage: `INSERT INTO {lane} (lane) VALUES (4)`, want: "beyond the schema's 4 lanes"},
			"SequenceCache":   {damage: `ALTER TABLE {ready} ALTER COLUMN seq SET CACHE 20`, want: "cache 20"},
			"SequenceBack":    {damage: `ALTER TABLE {ready} ALTER COLUMN seq SET INCREMENT -1`, want: "increment -1"},
			"SequenceCycle":   {damage: `ALTER TABLE {ready} ALTER COLUMN seq SET CYCLE`, want: "cycle true"},
			"SequenceMissing": {damage: `ALTER TABLE {ready} ALTER COLUMN seq DROP IDENTITY`, want: "no identity"},
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

// TestEncoding finds a database that takes any bytes for text.
func TestEncoding(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		name := "ascii_" + random()
		f.exec(`CREATE DATABASE ` + name + ` ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0`)
		t.Cleanup(func() {
			g := &fixture{TB: t}
			g.db = g.open(f.dsn)
			if _, err := g.db.ExecContext(context.WithoutCancel(t.Context()), `DROP DATABASE `+name); err != nil {
				t.Error(err)
			}
		})
		u, err := url.Parse(f.dsn)
		f.ok(err)
		u.Path = "/" + name
		db := f.open(u.String())
		found, err := f.store.Inspect(t.Context(), db)
		f.ok(err)
		if len(found.Problems) != 1 || !strings.Contains(found.Problems[0], "SQL_ASCII") {
			t.Errorf("problems: %q", found.Problems)
		}
		f.ok(db.Close())
	})
}

// TestPlainInsert enqueues as a service in another language would, leaving out
// what has a default, and is refused when it is wrong about the lane.
func TestPlainInsert(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		for _, n := range []int{1, 3, lanes, 16, 1000, dialect.MaxLanes} {
			g := *f
			g.tables.Lanes, g.tables.Prefix = n, fmt.Sprint("lanes", n)
			g.bind()
			g.migrate()
			for i := range 40 {
				key := fmt.Sprint("key ", i)
				hash := dialect.KeyHash(key)
				lane := dialect.LaneOfKey(hash, n)
				insert := func(lane int) error {
					_, err := g.db.ExecContext(t.Context(), g.sql(`
						INSERT INTO {ready} (lane, id, topic, key, key_hash, type) VALUES ($1, $2, 't', $3, $4, 'y')`), lane, uuid.New(), key, hash)
					return err
				}
				f.ok(insert(lane))
				if n > 1 && insert((lane+1)%n) == nil {
					t.Fatalf("key %q was let into the wrong lane of %d", key, n)
				}
			}
			// The key's hash and lane, computed by the server alone.
			g.is("wrong hashes", g.count(`
				SELECT count(*) FROM {ready} WHERE key_hash <> ('x' || encode(substr(sha256(convert_to(key, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint`), 0)
		}
		for name, text := range map[string]string{
			"KeyWithoutHash": `INSERT INTO {ready} (lane, id, topic, key, type) VALUES (0, gen_random_uuid(), 't', 'k', 'y')`,
			"HashWithoutKey": `INSERT INTO {ready} (lane, id, topic, key_hash, type) VALUES (0, gen_random_uuid(), 't', 0, 'y')`,
			"LaneBeyond":     `INSERT INTO {ready} (lane, id, topic, type) VALUES (4, gen_random_uuid(), 't', 'y')`,
			"LaneBelow":      `INSERT INTO {parked} (lane, id, topic, type, available_at) VALUES (-1, gen_random_uuid(), 't', 'y', now())`,
			"OwnSeq":         `INSERT INTO {ready} (lane, seq, id, topic, type) VALUES (1, 1, gen_random_uuid(), 't', 'y')`,
			"NoTime":         `INSERT INTO {parked} (lane, id, topic, type) VALUES (1, gen_random_uuid(), 't', 'y')`,
			"HeldWithoutKey": `INSERT INTO {parked} (lane, seq, id, topic, type, state) VALUES (1, 1, gen_random_uuid(), 't', 'y', 'held')`,
			"HeldBlocks":     `INSERT INTO {parked} (lane, seq, id, topic, key, key_hash, type, state, blocking) VALUES (0, 1, gen_random_uuid(), 't', '', 0, 'y', 'held', true)`,
		} {
			if _, err := f.db.ExecContext(t.Context(), f.sql(text)); err == nil {
				t.Errorf("%s was let in", name)
			}
		}
		f.exec(`INSERT INTO {parked} (lane, id, topic, type, available_at) VALUES (1, gen_random_uuid(), 't', 'y', now())`)
		moved, _, err := f.store.Surface(t.Context(), f.db, f.claim(1, "me"), 9)
		f.ok(err)
		f.is("surfaced", moved, 1)
	})
}

// TestArchiveMissing lets messages leave though they cannot be archived, once
// the caller has seen that this is what is missing.
func TestArchiveMissing(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.run(keyIn(0), 2)
		lease := f.claim(1, "me")
		s := dialect.Settlement{Archive: true, Published: f.refs(f.readyTopics()...)}
		archive := func(name string) {
			t.Helper()
			_, err := f.store.Settle(t.Context(), f.db, lease, time.Hour, s)
			if got := postgres.New().Classify(err); got != dialect.Missing {
				t.Errorf("%s: %v is %v", name, err, got)
			}
		}
		f.exec(`ALTER TABLE {done} RENAME TO old`)
		archive("no table")
		f.exec(`CREATE TABLE {done} (LIKE {schema}.old INCLUDING DEFAULTS) PARTITION BY RANGE (done_at)`)
		f.exec(`ALTER TABLE {done} ALTER pos DROP NOT NULL`)
		archive("no partition")
		f.is("ready", len(f.readyTopics()), 2)
		s.Archive = false
		f.settle(lease, s)
		f.is("ready", len(f.readyTopics()), 0)
	})
}

// TestPartitionedDone works on a done table that is partitioned by time.
func TestPartitionedDone(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.exec(`ALTER TABLE {done} RENAME TO old`)
		f.exec(`CREATE TABLE {done} (LIKE {schema}.old INCLUDING DEFAULTS INCLUDING CONSTRAINTS, PRIMARY KEY (done_at, pos)) PARTITION BY RANGE (done_at)`)
		// Identity columns of partitioned tables come with PostgreSQL 17.
		f.exec(`CREATE SEQUENCE {schema}.done_pos`)
		f.exec(`ALTER TABLE {done} ALTER pos SET DEFAULT nextval('` + quote(f.tables.Schema) + `.done_pos')`)
		f.exec(`CREATE TABLE {schema}.before PARTITION OF {done} FOR VALUES FROM (MINVALUE) TO ('2020-01-01')`)
		f.exec(`CREATE TABLE {schema}.after PARTITION OF {done} FOR VALUES FROM ('2020-01-01') TO (MAXVALUE)`)
		f.run(keyIn(0), 6)
		lease := f.claim(1, "me")
		all := f.readyTopics()
		f.settle(lease, dialect.Settlement{Archive: true, Published: f.refs(all...)})
		// The rows of both partitions stand in the same places.
		f.exec(`UPDATE {done} SET done_at = '2019-01-01' WHERE pos <= 3`)
		f.exec(`WITH gone AS (DELETE FROM {done} WHERE pos > 3 RETURNING *) INSERT INTO {done} SELECT * FROM gone`)
		f.exec(`VACUUM FULL {done}`)
		f.is("places twice", f.count(`SELECT count(*) FROM (SELECT ctid FROM {done} GROUP BY ctid HAVING count(*) > 1) AS t`), 3)
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
