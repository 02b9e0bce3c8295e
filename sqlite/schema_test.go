package sqlite_test

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/sqlite"
)

func TestMigrate(t *testing.T) {
	for _, lanes := range []int{1, 2, 16, 1000, 1024} {
		e := fresh(t, lanes)
		applied, err := e.store.Migrate(e.ctx, e.db)
		e.must(err)
		if len(applied) > 0 {
			t.Errorf("the second run applied %v", applied)
		}
		e.equal(e.one(`SELECT count(*), min(lane), max(lane), sum(epoch) FROM {lane}`), fmt.Sprint(lanes, 0, lanes-1, 0), "lanes")
		in, err := e.store.Inspect(e.ctx, open(t, e.path))
		e.must(err)
		e.equal(in.Problems, []string(nil), "problems")
		e.equal([]int{in.Version, in.Lanes}, []int{3, lanes}, "version and lanes")
		if !strings.HasPrefix(in.Server, "SQLite 3.") {
			t.Errorf("server is %q", in.Server)
		}
		// What is looked for is what is made.
		made := e.rows(`SELECT name FROM sqlite_schema WHERE name NOT LIKE 'sqlite\_%' ESCAPE '\'`)
		want := sqlite.Objects(e.store)
		slices.Sort(made)
		slices.Sort(want)
		e.equal(made, want, "objects")
	}
}

func TestMigrateReturnsWhatItApplied(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "a.db"))
	store := bind(t, dialect.Tables{Prefix: "outbox", Lanes: 4})
	in, err := store.Inspect(t.Context(), db)
	if err != nil || in.Version != 0 || in.Lanes != 0 || len(in.Problems) > 0 {
		t.Errorf("inspect of an empty database: %+v, %v", in, err)
	}
	applied, err := store.Migrate(t.Context(), db)
	if err != nil || !reflect.DeepEqual(applied, []int{1, 2, 3}) {
		t.Errorf("applied %v, %v", applied, err)
	}
}

func TestStepsAreWhatMigrateRuns(t *testing.T) {
	e := fresh(t, 7)
	byHand := open(t, filepath.Join(t.TempDir(), "b.db"))
	for _, step := range e.store.Steps() {
		if _, err := byHand.ExecContext(e.ctx, step.SQL); err != nil {
			t.Fatal(err)
		}
	}
	const all = `SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name`
	want := e.rows(all)
	got, err := read(e.ctx, byHand, all)
	e.must(err)
	e.equal(got, want, "schema")
	if applied, err := e.store.Migrate(e.ctx, byHand); err != nil || len(applied) > 0 {
		t.Errorf("after the steps by hand Migrate applied %v, %v", applied, err)
	}
}

// TestUpgrade brings version 1 with messages in it to the newest, and nothing moves.
func TestUpgrade(t *testing.T) {
	e := unmigrated(t, 2)
	e.must2(e.db.ExecContext(e.ctx, e.store.Steps()[0].SQL))
	e.insert(e.messages("a", "", "a", "b")...)
	const all = `SELECT seq, id, key, revision FROM {ready} ORDER BY seq`
	before := e.rows(all)
	in, err := e.store.Inspect(e.ctx, open(t, e.path))
	e.must(err)
	e.equal(in.Version, 1, "version before")
	e.equal(in.Problems, []string(nil), "problems before")
	applied, err := e.store.Migrate(e.ctx, e.db)
	e.must(err)
	e.equal(applied, []int{2, 3}, "applied")
	e.equal(e.rows(all), before, "messages")
	made := e.rows(`SELECT name, sql FROM sqlite_schema ORDER BY name`)
	e.equal(made, fresh(t, 2).rows(`SELECT name, sql FROM sqlite_schema ORDER BY name`), "schema")
}

func TestMigrateRaced(t *testing.T) {
	const racers, rounds = 8, 6
	for round := range rounds {
		path := filepath.Join(t.TempDir(), fmt.Sprint(round, ".db"))
		type result struct {
			applied []int
			err     error
		}
		results := make(chan result)
		start := make(chan struct{})
		for range racers {
			db := open(t, path)
			if round%2 == 0 { // not even in WAL mode, and with deferred transactions
				db = openDSN(t, path+"?_busy_timeout=10000")
			}
			store := bind(t, dialect.Tables{Prefix: odd, Lanes: 16})
			go func() {
				<-start
				applied, err := store.Migrate(t.Context(), db)
				results <- result{applied, err}
			}()
		}
		close(start)
		applied := 0
		for range racers {
			r := <-results
			if r.err != nil {
				t.Errorf("round %d: %v", round, r.err)
			}
			applied += len(r.applied)
		}
		if applied != 3 {
			t.Errorf("round %d: three versions were applied %d times", round, applied)
		}
	}
}

func TestMigrateRefuses(t *testing.T) {
	tests := map[string]struct {
		lanes  int
		damage string
		remedy string
	}{
		"lanes differ":   {3, ``, "has 2 lanes and lanes is set to 3: set it to 2"},
		"newer version":  {2, `UPDATE {meta} SET version = 4`, "use a newer library"},
		"no meta":        {2, `DROP TABLE {meta}`, "choose another prefix"},
		"no meta row":    {2, `DELETE FROM {meta}`, "choose another prefix"},
		"only the lanes": {2, `DROP TABLE {meta}; DROP TABLE {ready}; DROP TABLE {parked}; DROP TABLE {done}; DROP TABLE {inbox}; DROP TABLE {revision}; DROP TABLE {progress}; DROP TABLE {audit}`, "choose another prefix"},
		"no done":        {2, `DROP TABLE {done}`, "_done"},
		"no revision":    {2, `DROP TABLE {revision}`, "version 3 and lacks " + odd + "_revision"},
		"not all of 1":   {2, `DROP TABLE {revision}; DROP TABLE {progress}; UPDATE {meta} SET version = 1; DROP TABLE {done}`, "version 1 and lacks " + odd + "_done"},
		"no index":       {2, `DROP INDEX {name:parked_blocked}`, "_parked_blocked: restore"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			e := fresh(t, 2)
			e.exec(test.damage + `;`)
			store := bind(t, dialect.Tables{Prefix: odd, Lanes: test.lanes})
			before := e.rows(`SELECT sql FROM sqlite_schema`)
			if applied, err := store.Migrate(e.ctx, e.db); err == nil || !strings.Contains(err.Error(), test.remedy) || strings.HasPrefix(err.Error(), "sqlite") {
				t.Errorf("Migrate is %v, %v, want an error with %q that leaves the engine's name to its caller", applied, err, test.remedy)
			}
			e.equal(e.rows(`SELECT sql FROM sqlite_schema`), before, "schema after the refusal")
			in, err := store.Inspect(e.ctx, open(t, e.path))
			e.must(err)
			if name == "lanes differ" || name == "newer version" {
				// Not the schema's fault: the caller compares the numbers.
				e.equal(in.Problems, []string(nil), "problems")
				return
			}
			if len(in.Problems) != 1 || !strings.Contains(in.Problems[0], test.remedy) {
				t.Errorf("problems are %q, want one with %q", in.Problems, test.remedy)
			}
		})
	}
}

func TestMigrateKeepsNoLock(t *testing.T) {
	// A table of the name the migration uses for its lock is the only thing that can
	// be in its way.
	e := fresh(t, 2)
	e.exec(`CREATE TABLE {name:migration} (x)`)
	if applied, err := e.store.Migrate(e.ctx, e.db); err != nil || len(applied) > 0 {
		t.Errorf("a schema that is up to date: %v, %v", applied, err)
	}
}

func TestInspectFindsProblems(t *testing.T) {
	e := fresh(t, 4)
	e.db.SetMaxOpenConns(1)
	inspect := func(store dialect.Store, db dialect.DB, problems ...string) {
		t.Helper()
		in, err := store.Inspect(e.ctx, db)
		if err != nil {
			t.Fatal(err)
		}
		if len(in.Problems) != len(problems) {
			t.Errorf("problems are %q, want those of %q", in.Problems, problems)
			return
		}
		for i, want := range problems {
			if !strings.Contains(in.Problems[i], want) {
				t.Errorf("problem %q does not speak of %q", in.Problems[i], want)
			}
		}
	}
	inspect(e.store, open(t, e.path))
	inspect(e.store, e.db, "synchronous is OFF")
	inspect(e.store, openDSN(t, e.path+"?_busy_timeout=1000&_synchronous=NORMAL"), "synchronous is NORMAL")
	inspect(e.store, openDSN(t, e.path+"?_busy_timeout=1000&_synchronous=EXTRA"))
	inspect(e.store, openDSN(t, e.path), "busy_timeout is 0")
	inspect(e.store, openDSN(t, e.path+"?_busy_timeout=1000&_query_only=1"), "read-only")
	inspect(e.store, openDSN(t, "file:"+strings.ReplaceAll(e.path, " ", "%20")+"?_busy_timeout=1000&mode=ro"), "read-only")

	writer, err := e.db.BeginTx(e.ctx, nil)
	e.must(err)
	inspect(e.store, openDSN(t, e.path+"?_busy_timeout=1")) // somebody writes: no problem
	e.must(writer.Rollback())

	e.exec(`DELETE FROM {lane} WHERE lane IN (1, 3)`)
	inspect(e.store, open(t, e.path), "_lane has 2 of its 4 rows")

	journal := fresh(t, 4)
	journal.exec(`PRAGMA journal_mode = DELETE`)
	name := journal.path + "?_busy_timeout=1000"
	inspect(journal.store, openDSN(t, name), "journal_mode is delete")
}

func TestInspectWithoutFolder(t *testing.T) {
	e := fresh(t, 4)
	_, err := e.store.Inspect(e.ctx, openDSN(t, filepath.Join(t.TempDir(), "no", "such.db")))
	if err == nil || !strings.Contains(err.Error(), "check that the file's folder exists") || sqlite.New().Classify(err) != dialect.Transient {
		t.Errorf("got %v", err)
	}
}

// TestPlainSQL is what a producer in another language does.
func TestPlainSQL(t *testing.T) {
	for _, lanes := range []int{1, 2, 3, 16, 1000, 1023, 1024} {
		e := fresh(t, lanes)
		for _, hash := range []int64{0, 1, -1, 1 << 62, -1 << 62, -1 << 63, 1<<63 - 1, -9055398367036157706, 987654321} {
			lane := dialect.LaneOfKey(hash, lanes)
			insert := func(table string, lane int) error {
				more, value := "", ""
				if table == "{parked}" {
					more, value = ", available_at", ", 1"
				}
				_, err := e.db.ExecContext(e.ctx, e.text(`INSERT INTO `+table+` (lane, id, topic, key, key_hash, type, payload`+more+`)
					VALUES (?, randomblob(16), 'orders', 'k', ?, 'order.placed', x'00'`+value+`)`), lane, hash)
				return err
			}
			for _, table := range []string{"{ready}", "{parked}"} {
				if err := insert(table, lane); err != nil {
					t.Errorf("%d lanes, hash %d, %s: %v", lanes, hash, table, err)
				}
				for _, wrong := range []int{lane - 1, lane + 1, lane + lanes, lane - lanes, -1, lanes} {
					if wrong != lane && insert(table, wrong) == nil {
						t.Errorf("%d lanes, hash %d, %s: lane %d is accepted, it is %d", lanes, hash, table, wrong, lane)
					}
				}
			}
		}
	}
	e := fresh(t, 1)
	e.exec(`INSERT INTO {ready} (lane, id, topic, type) VALUES (0, randomblob(16), 'orders', 'order.placed')`)
	row := e.ready(0)[0]
	e.equal(row.ContentType, "application/json", "content type")
	e.equal(row.Headers, "{}", "headers")
	e.equal(row.Payload == nil, true, "payload is nil")
	e.equal([]any{row.Revision, row.Replay, row.Seq}, []any{int64(0), 0, int64(1)}, "numbers")
	for name, statement := range map[string]string{
		"id of 15 bytes":      `INSERT INTO {ready} (lane, id, topic, type) VALUES (0, randomblob(15), 't', 'y')`,
		"id as text":          `INSERT INTO {ready} (lane, id, topic, type) VALUES (0, '0123456789abcdef', 't', 'y')`,
		"key without hash":    `INSERT INTO {ready} (lane, id, topic, type, key) VALUES (0, randomblob(16), 't', 'y', 'k')`,
		"hash without key":    `INSERT INTO {ready} (lane, id, topic, type, key_hash) VALUES (0, randomblob(16), 't', 'y', 1)`,
		"keyless, wrong lane": `INSERT INTO {ready} (lane, id, topic, type) VALUES (1, randomblob(16), 't', 'y')`,
		"payload as text":     `INSERT INTO {ready} (lane, id, topic, type, payload) VALUES (0, randomblob(16), 't', 'y', 'text')`,
		"scheduled, no time":  `INSERT INTO {parked} (lane, id, topic, type) VALUES (0, randomblob(16), 't', 'y')`,
		"held, no place":      `INSERT INTO {parked} (lane, id, topic, type, state) VALUES (0, randomblob(16), 't', 'y', 'held')`,
		"unknown state":       `INSERT INTO {parked} (lane, id, topic, type, state) VALUES (0, randomblob(16), 't', 'y', 'gone')`,
		"head without key":    `INSERT INTO {parked} (lane, seq, id, topic, type, state, blocking) VALUES (0, 1, randomblob(16), 't', 'y', 'dead', 1)`,
	} {
		if _, err := e.db.ExecContext(e.ctx, e.text(statement)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
