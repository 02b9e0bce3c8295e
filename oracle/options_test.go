package oracle_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
)

// TestOptions runs every operation with options of the driver and settings of the session
// that must not matter.
func TestOptions(t *testing.T) {
	onEachServer(t, func(t *testing.T, server *containers.Server) {
		for name, c := range map[string]struct{ options, settings []string }{
			"Defaults":        {},
			"OneRowAtATime":   {options: []string{"PREFETCH_ROWS", "1"}},
			"DriversPrefetch": {options: []string{"PREFETCH_ROWS", "25"}},
			"StreamedLobs":    {options: []string{"LOB FETCH", "POST"}},
			"Serializable":    {settings: []string{"ISOLATION_LEVEL = SERIALIZABLE"}},
			"Linguistic":      {settings: []string{"NLS_COMP = LINGUISTIC", "NLS_SORT = BINARY_CI"}},
			"TimeZone":        {settings: []string{"TIME_ZONE = '-11:00'"}},
			"Numbers":         {settings: []string{"NLS_NUMERIC_CHARACTERS = ',.'", "NLS_TERRITORY = GERMANY"}},
			"All":             {settings: oddSession},
		} {
			t.Run(name, func(t *testing.T) {
				f := unmigrated(t, with(server.DSN, c.options...))
				db, err := openAltered(f.dsn, c.settings...)
				f.ok(err)
				t.Cleanup(func() { _ = db.Close() })
				f.db = db
				f.migrate()
				f.everything()
			})
		}
	})
}

// with is the DSN with more options, given as names and values.
func with(dsn string, options ...string) string {
	u := parsed(dsn)
	q := u.Query()
	for i := 0; i < len(options); i += 2 {
		q.Set(options[i], options[i+1])
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// TestEmptyAndAbsent keeps an empty key, text and payload apart from none, though the
// server takes an empty value for NULL.
func TestEmptyAndAbsent(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		empty, none := message("empty", ""), message("none", "")
		empty.Key.Valid, empty.KeyHash.Valid = true, true
		empty.KeyHash.V = dialect.KeyHash("")
		empty.Lane = dialect.LaneOfKey(empty.KeyHash.V, lanes)
		none.Lane = empty.Lane
		empty.Payload, none.Payload = []byte{}, nil
		empty.Headers, none.Headers = `{"a":""}`, `{}`
		check := func(what string, rows []dialect.Row) {
			t.Helper()
			f.is(what, topics(rows), []string{"empty", "none"})
			for i, want := range []dialect.Message{empty, none} {
				if !same(rows[i].Message, want) {
					t.Errorf("%s: %s came back as %+v", what, want.Topic, rows[i].Message)
				}
			}
		}
		f.insert(empty, none)
		rows, err := f.store.Ready(t.Context(), f.db, empty.Lane, 0, dialect.Limit{Rows: 9})
		f.ok(err)
		check("ready", rows)
		lease := f.claim(empty.Lane, "me")
		var s dialect.Settlement
		for _, r := range rows {
			s.Failed = append(s.Failed, dialect.Failure{Ref: dialect.Ref{Place: r.Seq, ID: r.ID}, Attempts: 1, Blocking: true})
		}
		f.settle(lease, s)
		rows, err = f.store.Due(t.Context(), f.db, empty.Lane, dialect.Limit{Rows: 9})
		f.ok(err)
		check("due", rows)
		listed, err := f.store.Parked(t.Context(), f.db, dialect.Filter{Key: empty.Key}, 0, 9)
		f.ok(err)
		f.is("with the empty key", len(listed), 1)
		s = dialect.Settlement{Archive: true}
		for _, r := range rows {
			s.PublishedParked = append(s.PublishedParked, dialect.Ref{Place: r.Pos, ID: r.ID})
		}
		f.settle(lease, s)
		n, _, err := f.store.Replay(t.Context(), f.db, dialect.Filter{All: true}, nil, 9)
		f.ok(err)
		f.is("replayed", n, 2)
		rows, err = f.store.Ready(t.Context(), f.db, empty.Lane, 0, dialect.Limit{Rows: 9})
		f.ok(err)
		empty.Replay, none.Replay = 1, 1
		check("replayed", rows)
	})
}

// everything calls each operation of the store at least once and checks what
// it brings back.
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
	f.is("version, lanes, problems", []any{found.Version, found.Lanes, found.Problems}, []any{len(f.store.Steps()), lanes, []string(nil)})
	if !strings.HasPrefix(found.Server, "Oracle") {
		f.Fatalf("server: %q", found.Server)
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
