package sqlserver_test

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/sqlserver"
)

// TestNames runs everything under names that need quoting, that look like
// placeholders, and that are as long as they may be.
func TestNames(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, d database, _ *containers.Server) {
		for name, tables := range map[string]dialect.Tables{
			"Quoted":       {Schema: `Odd "x" `, Prefix: "order"},
			"Bracketed":    {Schema: "a]b[ ", Prefix: "]];\n--["},
			"Placeholders": {Schema: "{ready} $1 @p1", Prefix: "{filter} {key} %d ? @p2 --"},
			"Apostrophe":   {Schema: `o'ne \ `, Prefix: `'"; DROP`},
			"Longest":      {Schema: strings.Repeat("ß", 58), Prefix: strings.Repeat("ü", 54)},
			"Beyond":       {Schema: "x😀 ", Prefix: "😀"},
		} {
			t.Run(name, func(t *testing.T) {
				f := unmigrated(t, d)
				tables.Lanes = lanes
				tables.Schema += random()
				f.tables = tables
				f.bind()
				f.migrate()
				f.everything()
			})
		}
	})
}

// TestSessionSchema runs everything without a schema, which then is the session's.
func TestSessionSchema(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, d database, _ *containers.Server) {
		f := unmigrated(t, d)
		f.tables = dialect.Tables{Prefix: "other" + random(), Lanes: lanes}
		f.bind()
		f.migrate()
		f.everything()
		for _, table := range []string{"{ready}", "{parked}", "{done}", "{lane}", "{inbox}", "{meta}"} {
			f.exec(`DROP TABLE ` + table)
		}
	})
}

// TestBindRefuses names that the server would not keep as they are.
func TestBindRefuses(t *testing.T) {
	for name, tables := range map[string]dialect.Tables{
		"Empty":     {Lanes: 1},
		"Long":      {Prefix: strings.Repeat("x", 109), Lanes: 1},
		"LongBytes": {Prefix: strings.Repeat("ü", 55), Lanes: 1},
		"Schema":    {Schema: strings.Repeat("x", 129), Prefix: "x", Lanes: 1},
		"Space":     {Prefix: "x ", Lanes: 1},
		"Temporary": {Prefix: "#x", Lanes: 1},
		"Variable":  {Schema: "@x", Prefix: "x", Lanes: 1},
		"NotUTF8":   {Schema: "\xff", Prefix: "x", Lanes: 1},
		"NUL":       {Schema: "a\x00b", Prefix: "x", Lanes: 1},
		"NoLanes":   {Prefix: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := sqlserver.New().Bind(tables); err == nil {
				t.Fatalf("%+v were bound", tables)
			}
		})
	}
}

// TestLongestSuffix checks that no name of the schema is longer than what Bind
// reckons with.
func TestLongestSuffix(t *testing.T) {
	store, err := sqlserver.New().Bind(dialect.Tables{Prefix: strings.Repeat("x", 108), Lanes: 1})
	if err != nil {
		t.Fatal(err)
	}
	longest := 0
	for _, step := range store.Steps() {
		for _, m := range regexp.MustCompile(`\[(xxx[^]]*)\]`).FindAllStringSubmatch(step.SQL, -1) {
			longest = max(longest, len(m[1]))
		}
	}
	if longest != 128 {
		t.Errorf("the longest name has %d bytes, not 128", longest)
	}
}

// same compares messages, nil and empty payloads apart.
func same(a, b dialect.Message) bool {
	a.Delay, b.Delay = 0, 0
	equal := bytes.Equal(a.Payload, b.Payload) && (a.Payload == nil) == (b.Payload == nil)
	a.Payload, b.Payload = nil, nil
	return equal && a.ID == b.ID && a.Lane == b.Lane && a.Topic == b.Topic && a.Key == b.Key && a.KeyHash == b.KeyHash &&
		a.Type == b.Type && a.ContentType == b.ContentType && a.Headers == b.Headers && a.Revision == b.Revision && a.Replay == b.Replay
}

// everything does what a store can do, once.
func (f *fixture) everything() {
	f.Helper()
	ctx, key := f.Context(), keyIn(0)

	// Content comes back as it went in.
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	messages := []dialect.Message{message("nil", key), message("empty", key), message("bytes", ""), message("big", "")}
	messages[0].Payload, messages[1].Payload, messages[2].Payload = nil, []byte{}, all
	messages[3].Payload = bytes.Repeat([]byte{0, 255, '\\', '\''}, 1<<18)
	messages[0].Headers = `{"b":"ä\u0000", "a" : "1","a":"2"}`
	messages[0].Type = `it's "\ ? {ready}`
	messages[1].Revision, messages[1].Replay = 1<<62, 3
	messages[2].ContentType = ""
	f.insert(messages...)
	single := message("single", key)
	single.Payload = nil
	f.insert(single)
	messages = append(messages, single)
	rows, err := f.store.Ready(ctx, f.db, 1, 0, dialect.Limit{Rows: 100})
	f.ok(err)
	f.is("rows", len(rows), len(messages))
	for i, r := range rows {
		if !same(r.Message, messages[i]) {
			f.Fatalf("message %d came back as %+v", i, r.Message)
		}
		if r.Seq == 0 || r.CreatedAt.Location() != time.UTC || r.Age < 0 || r.Age > time.Minute || time.Since(r.CreatedAt).Abs() > time.Minute {
			f.Fatalf("message %d has seq %d, created at %v, age %v", i, r.Seq, r.CreatedAt, r.Age)
		}
	}

	// A turn.
	lease := f.claim(1, "me")
	delayed := []dialect.Message{message("later", key), message("soon", "")}
	delayed[0].Delay, delayed[1].Delay = time.Hour, time.Nanosecond
	f.insert(delayed...)
	moved, ok, err := f.store.Surface(ctx, f.db, lease, 10)
	f.ok(err)
	f.is("surfaced", []any{moved, ok}, []any{1, true})
	ok, err = f.store.Extend(ctx, f.db, lease, time.Hour)
	f.ok(err)
	f.is("extended", ok, true)
	f.settle(lease, dialect.Settlement{
		Archive: true, Published: f.refs("bytes"), Hold: f.refs("empty", "single"),
		Failed: []dialect.Failure{
			{Ref: f.ref("nil"), Attempts: 1, Blocking: true, Reason: "ä'"},
			{Ref: f.ref("big"), Attempts: 2, Dead: true, Reason: "gone"},
		},
	})
	f.is("parked", f.parked(), []string{"nil:retry*", "empty:held", "big:dead", "single:held", "later:scheduled"})
	f.is("due", f.due(dialect.Limit{Rows: 10}), []string{"nil", "empty", "single"})
	f.settle(lease, dialect.Settlement{
		Archive: true, PublishedParked: f.parkedRefs("nil"),
		FailedParked: []dialect.Failure{{Ref: f.parkedRef("empty"), Attempts: 7, Delay: time.Hour, Blocking: true, Reason: "again"}},
	})
	f.is("parked", f.parked(), []string{"empty:retry*", "big:dead", "single:held", "later:scheduled"})
	f.settle(lease, dialect.Settlement{})
	f.ok(f.store.Release(ctx, f.db, lease))
	work, held, err := f.store.Pending(ctx, f.db, "me")
	f.ok(err)
	f.is("pending", []any{work, held}, []any{true, false})
	got, err := f.store.Poll(ctx, f.db, "me", 3)
	f.ok(err)
	f.is("poll", lanesOf(got), []int{1})

	// Operators.
	stats, err := f.store.Stats(ctx, f.db, 100)
	f.ok(err)
	if stats.OldestReady <= 0 || stats.OldestReady > time.Minute {
		f.Fatalf("oldest ready: %v", stats.OldestReady)
	}
	stats.OldestReady = 0
	f.is("stats", stats, dialect.Stats{Ready: 1, Scheduled: 1, Retry: 1, Held: 1, Dead: 1, BlockedKeys: 1, LanesTotal: lanes})
	list, err := f.store.Parked(ctx, f.db, dialect.Filter{All: true}, 0, 10)
	f.ok(err)
	f.is("listed", len(list), 4)
	full := dialect.Filter{
		IDs: [][16]byte{messages[1].ID, messages[3].ID}, Key: messages[1].Key, Topic: "empty", Type: "made", States: []string{"retry", "dead"},
	}
	list, err = f.store.Parked(ctx, f.db, full, 0, 10)
	f.ok(err)
	f.is("listed", len(list), 1)
	if p := list[0]; !same(p.Message, messages[1]) || p.Attempts != 7 || p.State != "retry" || !p.Blocking || p.Reason != "again" ||
		!p.DueIn.Valid || p.DueIn.V > time.Hour || p.DueIn.V < time.Hour-time.Minute || p.ParkedAt.Location() != time.UTC {
		f.Fatalf("parked: %+v", p)
	}
	n, err := f.store.Requeue(ctx, f.db, full, 10)
	f.ok(err)
	f.is("requeued", n, 1)
	n, err = f.store.Requeue(ctx, f.db, dialect.Filter{All: true}, 10)
	f.ok(err)
	f.is("requeued", n, 2)
	n, err = f.store.Discard(ctx, f.db, full, 10)
	f.ok(err)
	f.is("discarded", n, 1)
	f.invariant()
	f.is("parked", f.parked(), []string{"big:retry", "single:retry*", "later:scheduled"})
	full.States = nil
	n, next, err := f.store.Replay(ctx, f.db, full, nil, 10)
	f.ok(err)
	f.is("replayed", []any{n, next == nil}, []any{1, true})
	n, err = f.store.Purge(ctx, f.db, 0, 10)
	f.ok(err)
	f.is("purged", n, 3)
	for _, want := range []bool{true, false} {
		ok, err = f.store.ClaimPurge(ctx, f.db, time.Hour)
		f.ok(err)
		f.is("purge claimed", ok, want)
	}

	// The inbox.
	tx, err := f.db.BeginTx(ctx, nil)
	f.ok(err)
	for _, want := range []bool{true, false} {
		fresh, err := f.store.Record(ctx, tx, "me ", "id ")
		f.ok(err)
		f.is("fresh", fresh, want)
	}
	f.ok(tx.Commit())
	for id, want := range map[string]bool{"id ": true, "id": false, "ID ": false} {
		there, err := f.store.Recorded(ctx, f.db, "me ", id)
		f.ok(err)
		f.is("recorded", there, want)
	}
	n, err = f.store.PurgeInbox(ctx, f.db, 0, 10)
	f.ok(err)
	f.is("purged", n, 1)

	found, err := f.store.Inspect(ctx, f.db)
	f.ok(err)
	f.is("version, lanes, problems", []any{found.Version, found.Lanes, found.Problems}, []any{3, lanes, []string(nil)})
	if !strings.Contains(found.Server, "SQL Server ") && !strings.Contains(found.Server, "Azure") {
		f.Fatalf("server: %q", found.Server)
	}
}
