package sqlserver_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/sqlserver"
)

// recorder is a caller's transaction that keeps what it is asked to run. It converts
// arguments as the driver does.
type recorder struct {
	queries []string
	args    [][]any
	err     error
	times   int // how often err comes, 0 for always
}

func (r *recorder) ExecContext(_ context.Context, query string, args ...any) (sql.Result, error) {
	for i := range args {
		nv := driver.NamedValue{Ordinal: i + 1, Value: args[i]}
		if err := new(mssql.Conn).CheckNamedValue(&nv); err != nil {
			return nil, err
		}
		args[i] = nv.Value
	}
	r.queries, r.args = append(r.queries, query), append(r.args, args)
	if r.times > 0 && len(r.queries) > r.times {
		return driver.ResultNoRows, nil
	}
	return driver.ResultNoRows, r.err
}
func (*recorder) Commit() error   { return errors.New("commit is the caller's") }
func (*recorder) Rollback() error { return errors.New("rollback is the caller's") }

func bind(t *testing.T) dialect.Store {
	t.Helper()
	store, err := sqlserver.New().Bind(dialect.Tables{Prefix: "outbox", Lanes: 16})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// TestInsertSends one list for the ready messages and one for the delayed ones, in
// order, in ASCII, with NULL and empty kept apart.
func TestInsertSends(t *testing.T) {
	id := [16]byte{0x01, 0x98, 15: 0xff}
	full := dialect.Message{
		Lane: 7, ID: id, Topic: "t\x00ä ", Type: "y", ContentType: "c", Headers: `{"ü":"\u0000"}`, Replay: 3, Revision: math.MaxInt64,
		Key: sql.Null[string]{V: "Kéy'\"", Valid: true}, KeyHash: sql.Null[int64]{V: math.MinInt64, Valid: true},
		Payload: []byte{0, 255, '\''},
	}
	empty := dialect.Message{Headers: "{}", Payload: []byte{}, Key: sql.Null[string]{Valid: true}, KeyHash: sql.Null[int64]{V: 1, Valid: true}}
	none := dialect.Message{Headers: "{}"}
	later := dialect.Message{Headers: "{}", Delay: 1500 * time.Nanosecond}
	r := &recorder{}
	if err := bind(t).Insert(t.Context(), r, []dialect.Message{full, later, empty, none}); err != nil {
		t.Fatal(err)
	}
	if len(r.queries) != 2 || !strings.Contains(r.queries[0], "INSERT INTO [outbox] ") || !strings.Contains(r.queries[1], "INSERT INTO [outbox_parked] ") {
		t.Fatalf("queries: %q", r.queries)
	}
	lists := make([][]map[string]any, 2)
	for i, args := range r.args {
		text, ok := args[0].(mssql.VarCharMax)
		if len(args) != 1 || !ok {
			t.Fatalf("arguments: %#v", args)
		}
		for _, c := range []byte(text) {
			if c < ' ' || c > '~' {
				t.Fatalf("%q is not ASCII", text)
			}
		}
		d := json.NewDecoder(strings.NewReader(string(text)))
		d.UseNumber()
		if err := d.Decode(&lists[i]); err != nil {
			t.Fatal(err)
		}
	}
	x := func(s string) string { return hex.EncodeToString([]byte(s)) }
	ready := lists[0]
	for i, want := range []map[string]any{
		{
			"n": "0", "lane": "7", "id": hex.EncodeToString(id[:]), "topic": x(full.Topic), "key": x(full.Key.V), "hash": "-9223372036854775808",
			"type": x("y"), "content_type": x("c"), "payload": "00ff27", "headers": x(full.Headers), "revision": "9223372036854775807", "replay": "3", "delay": "0",
		},
		{"n": "1", "key": "", "hash": "1", "payload": "", "revision": "<nil>"},
		{"n": "2", "key": "<nil>", "hash": "<nil>", "payload": "<nil>"},
	} {
		for name, value := range want {
			if got := fmt.Sprint(ready[i][name]); got != value {
				t.Errorf("message %d: %s is %q, want %q", i, name, got, value)
			}
		}
	}
	if len(ready) != 3 || len(lists[1]) != 1 || fmt.Sprint(lists[1][0]["delay"]) != "2" {
		t.Errorf("lists: %v", lists)
	}
}

// TestInsertCuts large batches, and sends nothing for none.
func TestInsertCuts(t *testing.T) {
	store := bind(t)
	for name, c := range map[string]struct{ rows, size, want int }{
		"None":  {0, 0, 0},
		"One":   {1, 8 << 20, 1},
		"Rows":  {2500, 1, 3},
		"Bytes": {9, 1 << 20, 3},
		"Even":  {1000, 10, 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := &recorder{}
			messages := make([]dialect.Message, c.rows)
			for i := range messages {
				messages[i].Payload = make([]byte, c.size)
			}
			if err := store.Insert(t.Context(), r, messages); err != nil {
				t.Fatal(err)
			}
			if len(r.queries) != c.want {
				t.Errorf("%d statements, want %d", len(r.queries), c.want)
			}
		})
	}
	r := &recorder{err: errors.New("no")}
	if err := store.Insert(t.Context(), r, make([]dialect.Message, 3000)); !errors.Is(err, r.err) || len(r.queries) != 1 {
		t.Errorf("after an error: %v, %d statements", err, len(r.queries))
	}
}

// TestRecordTellsDuplicates from other errors, and keeps ids apart that the server
// would take for one.
func TestRecordTellsDuplicates(t *testing.T) {
	store := bind(t)
	for number, want := range map[int32]string{0: "true", 2627: "false", 2601: "false", 1205: "error", 547: "error"} {
		r := &recorder{}
		if number != 0 {
			r.err = fmt.Errorf("exec: %w", mssql.Error{Number: number, All: []mssql.Error{{Number: number}}})
		}
		fresh, err := store.Record(t.Context(), r, "consumer", "id")
		got := fmt.Sprint(fresh)
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%d: %s, want %s", number, got, want)
		}
		if len(r.queries) != 1 || !strings.Contains(r.queries[0], "SET XACT_ABORT OFF;") {
			t.Errorf("queries: %q", r.queries)
		}
	}
	r := &recorder{}
	for _, id := range []string{"a", "a\x00", "A", "a ", ""} {
		if _, err := store.Record(t.Context(), r, "consumer", id); err != nil {
			t.Fatal(err)
		}
	}
	seen := make(map[string]bool)
	for _, args := range r.args {
		if hash, ok := args[1].([]byte); !ok || len(hash) != 32 || seen[string(hash)] {
			t.Errorf("arguments: %#v", args)
		} else {
			seen[string(hash)] = true
		}
	}
}

// TestDriverKeepsTypes of what statements are given: the driver declares parameters by
// them, and a parameter of another type than its column would convert the column.
func TestDriverKeepsTypes(t *testing.T) {
	for _, v := range []any{
		int32(5), int64(5), []byte{}, []byte(nil), []byte{1}, mssql.NVarCharMax("x"), mssql.VarCharMax("x"), "name",
	} {
		nv := driver.NamedValue{Ordinal: 1, Value: v}
		if err := new(mssql.Conn).CheckNamedValue(&nv); err != nil {
			t.Errorf("%T: %v", v, err)
		} else if !reflect.DeepEqual(nv.Value, v) {
			t.Errorf("%#v becomes %#v", v, nv.Value)
		}
	}
	// Why no nil and no sql.Null is bound: what is left of either has no type.
	nv := driver.NamedValue{Ordinal: 1, Value: nil}
	if err := new(mssql.Conn).CheckNamedValue(&nv); err != nil || nv.Value != nil {
		t.Errorf("nil becomes %#v, %v", nv.Value, err)
	}
}

// TestMicros rounds up.
func TestMicros(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		0: 0, 1: 1, 1000: 1, 1001: 2, -1: 0, -1001: -1, time.Hour: 3_600_000_000, math.MaxInt64: 9_223_372_036_854_776, math.MinInt64: -9_223_372_036_854_775,
	} {
		if got := sqlserver.Micros(d); got != want {
			t.Errorf("%d ns are %d µs, want %d", d, got, want)
		}
	}
}

// TestSplitMicros checks the arithmetic of durations as the statements do it, in whole
// numbers that each fit DATEADD's int: T-SQL's / and % cut towards zero as Go's do.
func TestSplitMicros(t *testing.T) {
	for _, n := range []int64{0, 1, -1, 999_999, 1_000_000, 86_400_000_000, -86_400_000_001, math.MaxInt64 / 1000, math.MinInt64 / 1000, 2_208_988_800_000_001} {
		micros, seconds, days := n%1_000_000, n/1_000_000%86_400, n/1_000_000/86_400
		for _, part := range []int64{micros, seconds, days} {
			if part > math.MaxInt32 || part < math.MinInt32 {
				t.Errorf("%d: %d does not fit", n, part)
			}
		}
		if sum := micros + 1_000_000*(seconds+86_400*days); sum != n {
			t.Errorf("%d is split into %d", n, sum)
		}
	}
}
