package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/sqlite"
)

func open(t *testing.T, cfg outbox.Config) *outbox.Outbox {
	t.Helper()
	db, err := sqlite.Open(t.TempDir() + "/test.db")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	o, err := outbox.New(db, sqlite.New(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func migrated(t *testing.T, cfg outbox.Config) *outbox.Outbox {
	t.Helper()
	o := open(t, cfg)
	if _, err := o.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return o
}

func enqueue(t *testing.T, o *outbox.Outbox, messages ...outbox.Message) ([]uuid.UUID, error) {
	t.Helper()
	var ids []uuid.UUID
	err := o.InTx(t.Context(), nil, func(ctx context.Context, tx *sql.Tx) (err error) {
		ids, err = o.Enqueue(ctx, tx, messages...)
		return err
	})
	return ids, err
}

// untouched is a transaction in which nothing may be written.
type untouched struct{ t *testing.T }

func (u untouched) ExecContext(context.Context, string, ...any) (sql.Result, error) {
	u.t.Error("something was written")
	return nil, errors.New("unexpected")
}
func (untouched) Commit() error   { return nil }
func (untouched) Rollback() error { return nil }

// What breaks a limit is refused before anything is written, by its name.
func TestEnqueueNamesTheField(t *testing.T) {
	good := outbox.Message{Topic: "orders", Type: "placed"}
	long := strings.Repeat("x", 600)
	for _, c := range []struct {
		field string
		spoil func(*outbox.Message)
	}{
		{"topic", func(m *outbox.Message) { m.Topic = "" }},
		{"topic", func(m *outbox.Message) { m.Topic = long }},
		{"topic", func(m *outbox.Message) { m.Topic = "a\x00b" }},
		{"type", func(m *outbox.Message) { m.Type = "" }},
		{"type", func(m *outbox.Message) { m.Type = "\xff" }},
		{"type", func(m *outbox.Message) { m.Type = long }},
		{"content type", func(m *outbox.Message) { m.ContentType = long }},
		{"key", func(m *outbox.Message) { m.Key = long }},
		{"key", func(m *outbox.Message) { m.Key = "\xff" }},
		{"key", func(m *outbox.Message) { m.Key, m.EmptyKey = "k", true }},
		{"payload", func(m *outbox.Message) { m.Payload = make([]byte, 1<<20+1) }},
		{"headers", func(m *outbox.Message) { m.Headers = map[string]string{"a b": "c"} }},
		{"headers", func(m *outbox.Message) { m.Headers = map[string]string{"": "c"} }},
		{"headers", func(m *outbox.Message) { m.Headers = map[string]string{"a": "b\r\nc"} }},
		{"headers", func(m *outbox.Message) { m.Headers = map[string]string{"a": "\xff"} }},
		{"headers", func(m *outbox.Message) { m.Headers = map[string]string{"a": strings.Repeat("x", 20_000)} }},
		{"revision", func(m *outbox.Message) { m.Revision = -1 }},
		{"delay", func(m *outbox.Message) { m.Delay = -time.Second }},
	} {
		o := open(t, outbox.Config{})
		bad := good
		c.spoil(&bad)
		_, err := o.Enqueue(t.Context(), untouched{t}, good, bad)
		var invalid *outbox.InvalidError
		if !errors.As(err, &invalid) || !errors.Is(err, outbox.ErrInvalid) {
			t.Errorf("%s: got error %v, want an InvalidError", c.field, err)
			continue
		}
		if invalid.Field != c.field || invalid.Index != 1 {
			t.Errorf("got field %q of message %d, want %q of message 1", invalid.Field, invalid.Index, c.field)
		}
		if strings.Contains(err.Error(), long[:100]) {
			t.Errorf("%s: the error holds the field's content", c.field)
		}
	}
}

func TestLimitsAreConfigurable(t *testing.T) {
	o := migrated(t, outbox.Config{Limits: outbox.Limits{Payload: 5 << 20, Key: 3}})
	if _, err := enqueue(t, o, outbox.Message{Topic: "t", Type: "t", Key: "abc", Payload: make([]byte, 5<<20)}); err != nil {
		t.Errorf("at the limits: %v", err)
	}
	if _, err := enqueue(t, o, outbox.Message{Topic: "t", Type: "t", Key: "abcd"}); !errors.Is(err, outbox.ErrInvalid) {
		t.Errorf("over the limit of the key: %v", err)
	}
	db, err := sqlite.Open(t.TempDir() + "/test.db")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	_, err = outbox.New(db, sqlite.New(), outbox.Config{Lanes: -1, Limits: outbox.Limits{Key: 5000, Payload: -1}})
	for _, want := range []string{"key", "payload", "lanes"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
}

func TestDuplicateIDIsTyped(t *testing.T) {
	o := migrated(t, outbox.Config{})
	m := outbox.Message{ID: uuid.New(), Topic: "t", Type: "t"}
	if _, err := enqueue(t, o, m); err != nil {
		t.Fatal(err)
	}
	_, err := enqueue(t, o, m)
	var e *outbox.Error
	if !errors.Is(err, outbox.ErrDuplicateID) || !errors.As(err, &e) || e.Class != dialect.Duplicate || e.Op != "enqueue" {
		t.Errorf("got %v (%+v), want ErrDuplicateID of enqueue", err, e)
	}
}

func TestInjectedHeaders(t *testing.T) {
	type traceKey struct{}
	o := migrated(t, outbox.Config{Inject: func(ctx context.Context, headers map[string]string) {
		if v, ok := ctx.Value(traceKey{}).(string); ok {
			headers["traceparent"] = v
		}
		headers["origin"] = "hook"
	}})
	own := map[string]string{"origin": "message"}
	ctx := context.WithValue(t.Context(), traceKey{}, "00-abc-def-01")
	err := o.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
		_, err := o.Enqueue(ctx, tx, outbox.Message{Topic: "t", Type: "t", Headers: own, Delay: time.Hour})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	parked, err := o.Parked(t.Context(), outbox.Filter{}, 0, 10)
	if err != nil || len(parked) != 1 {
		t.Fatalf("parked: %v, %v", parked, err)
	}
	if want := `{"origin":"message","traceparent":"00-abc-def-01"}`; parked[0].Headers != want {
		t.Errorf("got headers %s, want %s", parked[0].Headers, want)
	}
	if len(own) != 1 {
		t.Error("the caller's map was changed")
	}
}

func TestCheckNamesTheRemedy(t *testing.T) {
	o := open(t, outbox.Config{Lanes: 16})
	if err := o.Check(t.Context()); !errors.Is(err, outbox.ErrNotReady) || !strings.Contains(err.Error(), "outbox migrate") {
		t.Errorf("before migrate: %v", err)
	}
	if _, err := o.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := o.Check(t.Context()); err != nil {
		t.Errorf("after migrate: %v", err)
	}
	other, err := outbox.New(o.DB(), sqlite.New(), outbox.Config{Lanes: 8})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Check(t.Context()); !errors.Is(err, outbox.ErrNotReady) || !strings.Contains(err.Error(), "16 lanes") {
		t.Errorf("wrong number of lanes: %v", err)
	}
	if _, err := enqueue(t, other, outbox.Message{Topic: "t", Type: "t", Key: "7"}); err == nil {
		// With 8 lanes the key's lane differs from that with 16 for about half of
		// all keys; this one's does.
		if dialect.LaneOfKey(dialect.KeyHash("7"), 8) != dialect.LaneOfKey(dialect.KeyHash("7"), 16) {
			t.Error("the database took a message in the wrong lane")
		}
	}
}

func TestEmptyFilterChangesNothing(t *testing.T) {
	o := migrated(t, outbox.Config{})
	for name, f := range map[string]func(context.Context, outbox.Filter, int) (int, error){
		"requeue": o.Requeue, "discard": o.Discard, "replay": o.Replay,
	} {
		if _, err := f(t.Context(), outbox.Filter{}, 0); !errors.Is(err, outbox.ErrInvalid) {
			t.Errorf("%s with an empty filter: %v, want ErrInvalid", name, err)
		}
	}
	if _, err := o.Requeue(t.Context(), outbox.Filter{States: []string{"asleep"}}, 0); !errors.Is(err, outbox.ErrInvalid) {
		t.Errorf("unknown state: %v, want ErrInvalid", err)
	}
}

// Without states or ids only dead messages are meant: scheduled ones would
// otherwise go early.
func TestRequeueAllLeavesScheduledAlone(t *testing.T) {
	o := migrated(t, outbox.Config{})
	ids, err := enqueue(t, o, outbox.Message{Topic: "t", Type: "t", Delay: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := o.Requeue(t.Context(), outbox.Filter{All: true}, 0); n != 0 || err != nil {
		t.Errorf("requeue all: %d, %v, want 0", n, err)
	}
	if n, err := o.Discard(t.Context(), outbox.Filter{All: true}, 0); n != 0 || err != nil {
		t.Errorf("discard all: %d, %v, want 0", n, err)
	}
	if n, err := o.Requeue(t.Context(), outbox.Filter{IDs: ids}, 0); n != 1 || err != nil {
		t.Errorf("requeue by id: %d, %v, want 1", n, err)
	}
}

// What a caller sees of a missing table and of no transaction names the remedy.
func TestEnqueueErrorsNameTheRemedy(t *testing.T) {
	o := open(t, outbox.Config{})
	m := outbox.Message{Topic: "t", Type: "t"}
	if _, err := enqueue(t, o, m); !errors.Is(err, outbox.ErrNotReady) || !strings.Contains(err.Error(), "outbox migrate") {
		t.Errorf("missing table: %v", err)
	}
	if _, err := o.Enqueue(t.Context(), nil, m); !errors.Is(err, outbox.ErrInvalid) || !strings.Contains(err.Error(), "transaction") {
		t.Errorf("no transaction: %v", err)
	}
}

// Wake reaches every subscriber until it stops.
func TestWake(t *testing.T) {
	o := open(t, outbox.Config{})
	n := 0
	stop := o.OnWake(func() { n++ })
	o.Wake()
	stop()
	o.Wake()
	if n != 1 {
		t.Errorf("woken %d times, want 1", n)
	}
}

func TestRevisions(t *testing.T) {
	o := migrated(t, outbox.Config{Revisions: true})
	message := func(key string, revision int64) outbox.Message {
		return outbox.Message{Topic: "t", Type: "t", Key: key, Revision: revision}
	}
	empty := message("", 0)
	empty.EmptyKey = true
	if _, err := enqueue(t, o, message("a", 0), message("b", 1), empty, message("", 9), message("a", 0), message("a", 3)); err != nil {
		t.Fatal(err)
	}
	// What contradicts itself is refused before anything is written, and what is
	// refused is told by its place in the call.
	for name, c := range map[string]struct {
		messages []outbox.Message
		want     outbox.RevisionError
	}{
		"a gap":                  {[]outbox.Message{message("", 0), message("a", 5)}, outbox.RevisionError{Index: 1, Key: "a", Expected: 4, Given: 5}},
		"a gap behind one":       {[]outbox.Message{message("a", 0), message("", 0), message("a", 6)}, outbox.RevisionError{Index: 2, Key: "a", Expected: 5, Given: 6}},
		"a gap in the call":      {[]outbox.Message{message("b", 2), message("a", 4), message("a", 6)}, outbox.RevisionError{Index: 2, Key: "a", Expected: 5, Given: 6}},
		"a repeat in the call":   {[]outbox.Message{message("a", 4), message("a", 4)}, outbox.RevisionError{Index: 1, Key: "a", Expected: 5, Given: 4}},
		"too low behind another": {[]outbox.Message{message("a", 0), message("a", 1)}, outbox.RevisionError{Index: 1, Key: "a", Given: 1}},
	} {
		_, err := enqueue(t, o, c.messages...)
		var wrong *outbox.RevisionError
		if !errors.As(err, &wrong) || !errors.Is(err, outbox.ErrRevision) || *wrong != c.want {
			t.Errorf("%s: %v, want %v", name, err, &c.want)
		}
	}
	// A scheduled message has no place in the order yet.
	late := message("a", 0)
	late.Delay = time.Hour
	var invalid *outbox.InvalidError
	if _, err := enqueue(t, o, message("b", 0), late); !errors.As(err, &invalid) || invalid.Field != "delay" || invalid.Index != 1 {
		t.Errorf("a delayed message with a key: %v", err)
	}
	late.Key = ""
	if _, err := enqueue(t, o, late); err != nil {
		t.Errorf("a delayed message without a key: %v", err)
	}
	for key, want := range map[string]int64{"a": 4, "b": 2, "c": 1} {
		if _, err := enqueue(t, o, message(key, want)); err != nil {
			t.Errorf("the next of %s: %v", key, err)
		}
	}
}

// An engine that cannot count refuses the setting.
func TestRevisionsNeedAReviser(t *testing.T) {
	o := open(t, outbox.Config{})
	_, err := outbox.New(o.DB(), plain{sqlite.New()}, outbox.Config{Revisions: true})
	if !errors.Is(err, outbox.ErrInvalid) || !strings.Contains(err.Error(), "revisions") {
		t.Errorf("got %v", err)
	}
}

// plain is a dialect whose stores are nothing but stores.
type plain struct{ dialect.Dialect }

func (p plain) Bind(tables dialect.Tables) (dialect.Store, error) {
	s, err := p.Dialect.Bind(tables)
	return struct{ dialect.Store }{s}, err
}
