package postgres_test

import (
	"bytes"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox/dialect"
)

// every is all modes in which pgx runs a statement.
var every = []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"}

// TestModes runs every operation in every mode of pgx.
func TestModes(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		for _, mode := range every {
			t.Run(mode, func(t *testing.T) {
				g := unmigrated(t, with(f.dsn, "default_query_exec_mode", mode))
				g.migrate()
				g.everything()
			})
		}
	})
}

// with adds an option to a DSN that is a URL.
func with(dsn, key, value string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		panic(err)
	}
	q := u.Query()
	q.Set(key, value)
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20")
	return u.String()
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
	messages[0].Type = `it's "\ $1 {ready}`
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
		Archive: true, PublishedParked: []dialect.Ref{f.parkedRef("nil")},
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

	// Revisions.
	f.clear()
	a, b := message("a", "a "), message("b", "b")
	run := func(first int64, m dialect.Message, places ...int) dialect.Run {
		return dialect.Run{Key: m.Key.V, KeyHash: m.KeyHash.V, First: first, Messages: places}
	}
	for _, step := range []struct {
		runs    []dialect.Run
		refused string
	}{
		{[]dialect.Run{run(2, a, 0)}, "0 0"}, // no row yet
		{[]dialect.Run{run(1, a, 0)}, ""},
		{[]dialect.Run{run(0, a, 0, 2), run(0, b, 1)}, ""},
		{[]dialect.Run{run(0, a, 0), run(3, b, 1)}, "1 1"},
		{[]dialect.Run{run(4, a, 0, 1)}, ""},
		{[]dialect.Run{run(5, a, 0)}, "0 5"},
	} {
		messages := make([]dialect.Message, 0, 3)
		for _, r := range step.runs {
			for range r.Messages {
				messages = append(messages, a)
			}
		}
		for _, r := range step.runs {
			for _, i := range r.Messages {
				messages[i] = a
				if r.Key == "b" {
					messages[i] = b
				}
				messages[i].ID = uuid.New()
			}
		}
		tx, err := f.db.BeginTx(ctx, nil)
		f.ok(err)
		refusal, err := f.store.(dialect.Reviser).Revise(ctx, tx, messages, step.runs)
		f.ok(err)
		f.ok(tx.Commit())
		got := ""
		if refusal != nil {
			got = fmt.Sprint(refusal.Run, refusal.Last.V)
		}
		f.is("refused", got, step.refused)
	}
	f.is("revisions", f.list(`SELECT topic || revision FROM {ready} ORDER BY seq`), []string{"a1", "a2", "b1", "a3", "a4", "a5"})
	tx, err = f.db.BeginTx(ctx, nil)
	f.ok(err)
	for _, step := range [][2]int64{{2, 0}, {1, 0}, {1, 1}, {2, 1}, {4, 2}, {1, 2}} {
		last, err := f.store.(dialect.Reviser).Advance(ctx, tx, "me ", dialect.Revision{Key: "a ", KeyHash: 1, Number: step[0]})
		f.ok(err)
		f.is("last", last, step[1])
	}
	f.ok(f.store.(dialect.Reviser).SetProgress(ctx, tx, "me ", dialect.Revision{Key: "a ", KeyHash: 1, Number: 7}))
	f.ok(tx.Commit())
	last, err := f.store.(dialect.Reviser).Progress(ctx, f.db, "me ", dialect.Revision{Key: "a ", KeyHash: 1})
	f.ok(err)
	f.is("progress", last, 7)

	found, err := f.store.Inspect(ctx, f.db)
	f.ok(err)
	f.is("version, lanes, problems", []any{found.Version, found.Lanes, found.Problems}, []any{3, lanes, []string(nil)})
	if !strings.HasPrefix(found.Server, "PostgreSQL ") {
		f.Fatalf("server: %q", found.Server)
	}
	f.ok(f.store.(dialect.Waker).Wake(ctx, f.db))
}

// same compares messages, nil and empty payloads apart.
func same(a, b dialect.Message) bool {
	a.Delay, b.Delay = 0, 0
	equal := bytes.Equal(a.Payload, b.Payload) && (a.Payload == nil) == (b.Payload == nil)
	a.Payload, b.Payload = nil, nil
	return equal && a.ID == b.ID && a.Lane == b.Lane && a.Topic == b.Topic && a.Key == b.Key && a.KeyHash == b.KeyHash &&
		a.Type == b.Type && a.ContentType == b.ContentType && a.Headers == b.Headers && a.Revision == b.Revision && a.Replay == b.Replay
}
