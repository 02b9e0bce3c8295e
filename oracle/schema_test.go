package oracle_test

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
	"github.com/outbox-suite/outbox/oracle"
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
		all := oracle.StatementsOf(bound(t, dialect.Tables{Prefix: "outbox", Lanes: lanes}), 1)
		for n := 1; n < len(all)-2; n++ {
			f := unmigrated(t, server.DSN)
			for _, statement := range oracle.StatementsOf(f.store, 1)[:n] {
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
			f.is("lanes", f.count(`SELECT COUNT(*) FROM {lane}`), lanes)
			found, err = f.store.Inspect(t.Context(), f.db)
			f.ok(err)
			f.is("found", fmt.Sprint(found.Version, found.Lanes, found.Problems), "3 4 []")
		}
	})
}

// TestMigrateRefuses what it cannot bring to the newest version.
func TestMigrateRefuses(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		tables := func(f *fixture) []string {
			return f.list(`SELECT table_name FROM all_tables WHERE owner = '` + strings.ToUpper(f.tables.Schema) + `' ORDER BY 1`)
		}
		refuses := func(f *fixture, want string) {
			t.Helper()
			before := tables(f)
			applied, err := f.store.Migrate(t.Context(), f.db)
			if err == nil || len(applied) > 0 || !strings.Contains(err.Error(), want) {
				t.Errorf("applied %v, %v, want an error that says %q", applied, err, want)
			}
			f.is("schema", tables(f), before)
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
		refuses(f, `_META" missing`)
	})
}

// TestMigrateByDBA runs the steps by hand, and migrates nothing after.
func TestMigrateByDBA(t *testing.T) {
	onEachServer(t, func(t *testing.T, server *containers.Server) {
		f := unmigrated(t, server.DSN)
		// As SQL*Plus cuts it: at a semicolon that ends a line.
		for _, step := range f.store.Steps() {
			for statement := range strings.SplitSeq(step.SQL, ";\n") {
				if strings.TrimSpace(statement) == "" {
					continue
				}
				if _, err := f.plain.ExecContext(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
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

		for name, c := range map[string]struct{ damage, want string }{
			"MissingTable":   {`DROP TABLE {inbox}`, `_INBOX" is missing`},
			"MissingMeta":    {`DROP TABLE {meta}`, `_META" is missing`},
			"MissingMetaRow": {`DELETE FROM {meta}`, `_META" is empty`},
			"Incomplete":     {`UPDATE {meta} SET version = 0`, "interrupted"},
			"MissingLane":    {`DELETE FROM {lane} WHERE lane = 2`, "1 of 4 lanes have no row"},
			"MissingLanes":   {`DROP TABLE {lane}`, `_LANE" is missing`},
			"LaneBeyond":     {`INSERT INTO {lane} (lane) VALUES (4)`, "beyond the schema's 4 lanes"},
			"MissingIndex":   {`DROP INDEX {schema}.{name:parked_key}`, "has no index"},
			"UnusableIndex":  {`ALTER INDEX {schema}.{name:done_id} UNUSABLE`, "unusable"},
		} {
			t.Run(name, func(t *testing.T) {
				g := unmigrated(t, f.dsn)
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

// TestVersions refuses what is older than what this was written for.
func TestVersions(t *testing.T) {
	for version, want := range map[string]string{
		"12.2.0.1.0": "19c", "18.0.0.0.0": "19c", "19.0.0.0.0": "", "21.0.0.0.0": "", "23.0.0.0.0": "", "something else": "",
	} {
		got := oracle.TooOld(version)
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want one that says %q", version, got, want)
		}
	}
}

// TestGrants gives each role what it needs on each table, in statements that end a line.
func TestGrants(t *testing.T) {
	text := grantsOf(odd)
	for _, want := range []string{
		`GRANT INSERT ON "Odd x"."ORDER" TO outbox_producer;`, `GRANT SELECT, UPDATE (purge_at) ON "Odd x"."ORDER_META" TO outbox_relay;`,
		`GRANT SELECT ON "Odd x"."ORDER_LANE" TO outbox_operator;`, `GRANT SELECT, INSERT, DELETE ON "Odd x"."ORDER_INBOX" TO outbox_consumer;`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("the grants lack %q:\n%s", want, text)
		}
	}
}

// hashSQL is the hash of a key in SQL, laneSQL its lane, for producers in other languages.
// The first 8 bytes of SHA-256 are at most 2^64 - 1, and signed from 2^63 on.
const (
	unsignedSQL = `TO_NUMBER(SUBSTR(RAWTOHEX(STANDARD_HASH(key, 'SHA256')), 1, 16), 'XXXXXXXXXXXXXXXX')`
	hashSQL     = `CASE WHEN ` + unsignedSQL + ` >= 9223372036854775808 THEN ` + unsignedSQL + ` - 18446744073709551616 ELSE ` + unsignedSQL + ` END`
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
					_, err := g.plain.ExecContext(t.Context(), g.sql(`
						INSERT INTO {ready} (lane, id, topic, key, key_hash, type)
						VALUES (?, ?, UTL_RAW.CAST_TO_RAW('t'), ?, ?, UTL_RAW.CAST_TO_RAW('y'))`), lane, id[:], []byte(key), hash)
					return err
				}
				f.ok(insert(lane))
				if n > 1 && insert((lane+1)%n) == nil {
					t.Fatalf("key %q was let into the wrong lane of %d", key, n)
				}
			}
			// The key's hash and lane, computed by the server alone.
			g.is("wrong hashes", g.count(`SELECT COUNT(*) FROM {ready} WHERE key_hash <> `+hashSQL), 0)
			g.is("wrong lanes", g.count(`SELECT COUNT(*) FROM {ready} WHERE lane <> MOD(`+unsignedSQL+`, ?)`, n), 0)
			g.is("defaults", g.count(`
				SELECT COUNT(*) FROM {ready} WHERE {text content_type} = 'application/json' AND headers IS NULL AND payload IS NULL
				   AND payload_empty = 0 AND replay = 0
				   AND created_at BETWEEN SYS_EXTRACT_UTC(SYSTIMESTAMP) - INTERVAL '1' MINUTE AND SYS_EXTRACT_UTC(SYSTIMESTAMP)`), 20)
			rows, err := g.store.Ready(t.Context(), g.db, dialect.LaneOfKey(dialect.KeyHash("key 0"), n), 0, dialect.Limit{Rows: 100})
			f.ok(err)
			if len(rows) == 0 || rows[0].Headers != "{}" || rows[0].ContentType != "application/json" || rows[0].Payload != nil {
				t.Errorf("read back: %+v", rows)
			}
		}
		for name, text := range map[string]string{
			"KeyWithoutHash": `INSERT INTO {ready} (lane, id, topic, key, type) VALUES (0, SYS_GUID(), HEXTORAW('74'), HEXTORAW('6B'), HEXTORAW('79'))`,
			"HashWithoutKey": `INSERT INTO {ready} (lane, id, topic, key_hash, type) VALUES (0, SYS_GUID(), HEXTORAW('74'), 0, HEXTORAW('79'))`,
			"LaneBeyond":     `INSERT INTO {ready} (lane, id, topic, type) VALUES (4, SYS_GUID(), HEXTORAW('74'), HEXTORAW('79'))`,
			"LaneBelow":      `INSERT INTO {parked} (lane, id, topic, type, available_at) VALUES (-1, SYS_GUID(), HEXTORAW('74'), HEXTORAW('79'), SYS_EXTRACT_UTC(SYSTIMESTAMP))`,
			"LongID":         `INSERT INTO {ready} (lane, id, topic, type) VALUES (0, UTL_RAW.CONCAT(SYS_GUID(), SYS_GUID()), HEXTORAW('74'), HEXTORAW('79'))`,
			"LongTopic":      `INSERT INTO {ready} (lane, id, topic, type) VALUES (0, SYS_GUID(), UTL_RAW.COPIES(HEXTORAW('74'), 256), HEXTORAW('79'))`,
			"NoTopic":        `INSERT INTO {ready} (lane, id, topic, type) VALUES (0, SYS_GUID(), NULL, HEXTORAW('79'))`,
			"NoTime":         `INSERT INTO {parked} (lane, id, topic, type) VALUES (1, SYS_GUID(), HEXTORAW('74'), HEXTORAW('79'))`,
			"HeldWithoutKey": `INSERT INTO {parked} (lane, seq, id, topic, type, state) VALUES (1, 1, SYS_GUID(), HEXTORAW('74'), HEXTORAW('79'), 3)`,
			"HeldBlocks":     `INSERT INTO {parked} (lane, seq, id, topic, key, key_hash, type, state, blocking) VALUES (0, 1, SYS_GUID(), HEXTORAW('74'), HEXTORAW('6B'), 0, HEXTORAW('79'), 3, 1)`,
			"NoSuchState":    `INSERT INTO {parked} (lane, seq, id, topic, type, state) VALUES (0, 1, SYS_GUID(), HEXTORAW('74'), HEXTORAW('79'), 5)`,
			"SeqGiven":       `INSERT INTO {ready} (seq, lane, id, topic, type) VALUES (1, 0, SYS_GUID(), HEXTORAW('74'), HEXTORAW('79'))`,
		} {
			if _, err := f.plain.ExecContext(t.Context(), f.sql(text)); err == nil {
				t.Errorf("%s was let in", name)
			}
		}
		f.exec(`INSERT INTO {parked} (lane, id, topic, type, available_at) VALUES (1, SYS_GUID(), HEXTORAW('74'), HEXTORAW('79'), SYS_EXTRACT_UTC(SYSTIMESTAMP))`)
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
		f.exec(`DROP TABLE {done}`)
		_, err := f.store.Settle(t.Context(), f.db, lease, time.Hour, s)
		if got := oracle.New().Classify(err); got != dialect.Missing {
			t.Errorf("%v is %v", err, got)
		}
		f.is("ready", len(f.readyTopics()), 2)
		s.Archive = false
		f.settle(lease, s)
		f.is("ready", len(f.readyTopics()), 0)
	})
}
