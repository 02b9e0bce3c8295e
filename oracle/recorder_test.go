package oracle_test

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	driverpkg "github.com/sijms/go-ora/v2"
	"github.com/sijms/go-ora/v2/network"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/oracle"
)

// A recorder is a driver that keeps what it is given, and answers queries as a test
// says. It takes arguments the way go-ora does.
type recorder struct {
	mu     sync.Mutex // database/sql rolls back on its own when a context ends
	sent   []sent
	answer func(text string, args []driver.NamedValue) [][]driver.Value
	fail   func(text string) error
	unseen bool // no update finds its row
}

type sent struct {
	text string
	args []driver.NamedValue
}

func (r *recorder) Connect(context.Context) (driver.Conn, error) { return recorded{r}, nil }
func (r *recorder) Driver() driver.Driver                        { return nil }

type recorded struct{ *recorder }

func (c recorded) Prepare(string) (driver.Stmt, error) { return nil, errors.ErrUnsupported }
func (c recorded) Close() error                        { return nil }
func (c recorded) Begin() (driver.Tx, error)           { return nil, errors.ErrUnsupported }

func (c recorded) BeginTx(_ context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if opts.Isolation != 0 || opts.ReadOnly {
		return nil, errors.New("go-ora refuses these options")
	}
	c.keep("BEGIN", nil)
	return c, nil
}

func (c recorded) Commit() error   { c.keep("COMMIT", nil); return nil }
func (c recorded) Rollback() error { c.keep("ROLLBACK", nil); return nil }

func (c recorded) keep(text string, args []driver.NamedValue) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = append(c.sent, sent{text, append([]driver.NamedValue(nil), args...)})
}

func (c recorded) CheckNamedValue(nv *driver.NamedValue) error {
	return new(driverpkg.Connection).CheckNamedValue(nv)
}

func (c recorded) ExecContext(_ context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	c.keep(text, args)
	if c.fail != nil {
		if err := c.fail(text); err != nil {
			return nil, err
		}
	}
	if c.unseen && strings.HasPrefix(text, "UPDATE") {
		return driver.RowsAffected(0), nil
	}
	return driver.RowsAffected(1), nil
}

func (c recorded) QueryContext(_ context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	c.keep(text, args)
	var rows [][]driver.Value
	if c.answer != nil {
		rows = c.answer(text, args)
	}
	return &answered{rows: rows}, nil
}

type answered struct{ rows [][]driver.Value }

func (a *answered) Columns() []string {
	if len(a.rows) == 0 {
		return nil
	}
	return make([]string, len(a.rows[0]))
}
func (a *answered) Close() error { return nil }
func (a *answered) Next(dest []driver.Value) error {
	if len(a.rows) == 0 {
		return io.EOF
	}
	copy(dest, a.rows[0])
	a.rows = a.rows[1:]
	return nil
}

// rows is how many rows a statement stands for, 0 for one that is no array.
func (s sent) rows() (n int) {
	for _, arg := range s.args {
		if v := reflect.ValueOf(arg.Value); v.IsValid() && v.Kind() == reflect.Slice && v.Type() != reflect.TypeFor[[]byte]() {
			n = v.Len()
		}
	}
	return n
}

func (r *recorder) texts() (list []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sent {
		list = append(list, s.text)
	}
	return list
}

// check refuses what go-ora does not take: a number of arguments that is not that of the
// binds, columns of different lengths, an empty column, and what it takes for rows.
func (r *recorder) check(t *testing.T) {
	t.Helper()
	for _, s := range r.sent {
		if n := len(bind.FindAllString(quotes.ReplaceAllString(names.ReplaceAllString(s.text, ""), ""), -1)); n != len(s.args) {
			t.Errorf("%d binds, %d arguments: %.200s", n, len(s.args), s.text)
		}
		columns := 0
		for _, arg := range s.args {
			switch v := reflect.ValueOf(arg.Value); {
			case !v.IsValid(), v.Type() == reflect.TypeFor[[]byte](), v.CanInt():
			case v.Kind() == reflect.Slice:
				columns++
				if v.Len() < 2 || v.Len() > 1000 || v.Len() != s.rows() {
					t.Errorf("a column of %d rows of %d: %.200s", v.Len(), s.rows(), s.text)
				}
			case v.Type() == reflect.TypeFor[driverpkg.Blob](), v.Kind() == reflect.String:
			default:
				t.Errorf("%T is an argument: %.200s", arg.Value, s.text)
			}
		}
		if columns > 0 && columns != len(s.args) {
			t.Errorf("%d of %d arguments are columns: %.200s", columns, len(s.args), s.text)
		}
		for _, list := range lists.FindAllStringSubmatch(s.text, -1) {
			if n := strings.Count(list[1], ",") + 1; n > 1000 {
				t.Errorf("a list of %d: %.100s", n, s.text)
			}
		}
	}
}

var fence = regexp.MustCompile(`^SELECT l\.epoch`)

// held answers the fence, and tells the keys of the rows asked for.
func held(text string, args []driver.NamedValue) (rows [][]driver.Value) {
	switch {
	case fence.MatchString(text):
		return [][]driver.Value{{"7"}}
	case strings.Contains(text, ".key_hash FROM"):
		seen := make(map[any]bool)
		for _, arg := range args[1:] {
			if place := arg.Value.(int64); !seen[place] {
				seen[place] = true
				id := ref(place).ID
				rows = append(rows, []driver.Value{fmt.Sprint(place), id[:], fmt.Sprint(place % 1500)})
			}
		}
	}
	return rows
}

func ref(place int64) (r dialect.Ref) {
	r.Place = place
	r.ID[0], r.ID[1] = byte(place>>8), byte(place)
	return r
}

func refs(from, n int64) (list []dialect.Ref) {
	for i := range n {
		list = append(list, ref(from+i))
	}
	return list
}

func failures(refs []dialect.Ref) (list []dialect.Failure) {
	for i, r := range refs {
		list = append(list, dialect.Failure{Ref: r, Attempts: 1, Dead: i%2 == 0, Blocking: true, Reason: "no"})
	}
	return list
}

// recording is a store over a recorder.
func recording(t *testing.T) (*recorder, *sql.DB, dialect.Store) {
	t.Helper()
	r := &recorder{answer: held}
	db := sql.OpenDB(r)
	t.Cleanup(func() { _ = db.Close() })
	return r, db, bound(t, usual)
}

// TestSettleSends counts what a settlement sends: a statement for each kind of outcome
// and a thousand rows, never a list of more than 1,000, nothing for outcomes there are
// none of.
func TestSettleSends(t *testing.T) {
	for name, c := range map[string]struct {
		s    dialect.Settlement
		want int // statements between the fence's and the commit
	}{
		"Nothing":       {dialect.Settlement{}, 1},
		"One":           {dialect.Settlement{Published: refs(1, 1)}, 2},
		"OneArchived":   {dialect.Settlement{Archive: true, Published: refs(1, 1)}, 3},
		"Batch":         {dialect.Settlement{Archive: true, Published: refs(1, 1000)}, 3},
		"Published2500": {dialect.Settlement{Published: refs(1, 2500)}, 1 + 3},
		"Archived2500":  {dialect.Settlement{Archive: true, Published: refs(1, 2500)}, 1 + 6},
		// The keys' list three times, insert and delete three times, demote and promote
		// twice: 1,500 keys.
		"Failed2500": {dialect.Settlement{Failed: failures(refs(1, 2500))}, 1 + 3 + 6 + 4},
		"Hold2500":   {dialect.Settlement{Hold: refs(1, 2500)}, 1 + 3 + 6 + 4},
		"Parked2500": {dialect.Settlement{PublishedParked: refs(1, 2500)}, 1 + 3 + 3 + 4},
		"All": {dialect.Settlement{
			Archive: true, Published: refs(1, 1), PublishedParked: refs(2, 2), Hold: refs(4, 3),
			Failed: failures(refs(7, 4)), FailedParked: failures(refs(11, 5)),
		}, 1 + 2 + 2 + 1 + 1 + 1 + 1 + 1 + 2},
	} {
		t.Run(name, func(t *testing.T) {
			r, db, store := recording(t)
			ok, err := store.Settle(t.Context(), db, dialect.Lease{Lane: 3, Owner: "me", Epoch: 7}, time.Minute, c.s)
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			r.check(t)
			texts := r.texts()
			if len(texts) < 5 || texts[0] != "BEGIN" || texts[1] != "SET TRANSACTION ISOLATION LEVEL READ COMMITTED" ||
				!fence.MatchString(texts[2]) || texts[len(texts)-1] != "COMMIT" {
				t.Fatalf("sent %q", texts)
			}
			if got := len(texts) - 4; got != c.want {
				t.Errorf("sent %d statements, want %d:\n%.200q", got, c.want, texts)
			}
			rows := 0
			for _, s := range r.sent {
				if strings.HasPrefix(s.text, "DELETE") {
					rows += max(s.rows(), 1)
				}
			}
			if want := len(c.s.Published) + len(c.s.PublishedParked) + len(c.s.Hold) + len(c.s.Failed); rows != want {
				t.Errorf("%d rows deleted, want %d", rows, want)
			}
		})
	}
}

// TestLostLeaseSendsNothing writes nothing without a row from the fence.
func TestLostLeaseSendsNothing(t *testing.T) {
	r, db, store := recording(t)
	r.answer = nil
	lease := dialect.Lease{Lane: 3, Owner: "me", Epoch: 7}
	for name, write := range map[string]func() (bool, error){
		"Settle": func() (bool, error) {
			return store.Settle(t.Context(), db, lease, time.Minute, dialect.Settlement{Published: refs(1, 9)})
		},
		"Extend":  func() (bool, error) { return store.Extend(t.Context(), db, lease, time.Minute) },
		"Release": func() (bool, error) { return false, store.Release(t.Context(), db, lease) },
		"Surface": func() (bool, error) { _, ok, err := store.Surface(t.Context(), db, lease, 9); return ok, err },
	} {
		r.sent = nil
		ok, err := write()
		if ok || err != nil {
			t.Errorf("%s: %t, %v", name, ok, err)
		}
		if texts := r.texts(); len(texts) != 4 || !fence.MatchString(texts[2]) || texts[3] != "ROLLBACK" {
			t.Errorf("%s sent %q", name, texts)
		}
	}
}

// TestInsertSends one array for the ready messages and one for the delayed ones, each in
// order, one message as plain arguments, and columns whose types do not depend on a row.
func TestInsertSends(t *testing.T) {
	batch := func(n int, change func(i int, m *dialect.Message)) (list []dialect.Message) {
		for i := range n {
			m := message(fmt.Sprint(i), "k")
			if change != nil {
				change(i, &m)
			}
			list = append(list, m)
		}
		return list
	}
	for name, c := range map[string]struct {
		messages []dialect.Message
		rows     []int // of each statement
		payload  reflect.Type
	}{
		"None":    {nil, nil, nil},
		"One":     {batch(1, nil), []int{0}, reflect.TypeFor[[]byte]()},
		"Two":     {batch(2, nil), []int{2}, reflect.TypeFor[[][]byte]()},
		"2500":    {batch(2500, nil), []int{1000, 1000, 500}, reflect.TypeFor[[][]byte]()},
		"1001":    {batch(1001, nil), []int{1000, 0}, nil},
		"Delayed": {batch(10, func(i int, m *dialect.Message) { m.Delay = time.Duration(i%2) * time.Hour }), []int{5, 5}, nil},
		"LargeOne": {
			batch(1, func(_ int, m *dialect.Message) { m.Payload = bytes.Repeat([]byte{1}, 2001) }),
			[]int{0},
			reflect.TypeFor[driverpkg.Blob](),
		},
		"LargeAmongSmall": {
			batch(3, func(i int, m *dialect.Message) { m.Payload = bytes.Repeat([]byte{1}, 1500*i) }),
			[]int{3},
			reflect.TypeFor[[]driverpkg.Blob](),
		},
		"Largest RAW": {
			batch(2, func(_ int, m *dialect.Message) { m.Payload = bytes.Repeat([]byte{1}, 2000) }),
			[]int{2},
			reflect.TypeFor[[][]byte](),
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, db, store := recording(t)
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			r.sent = nil
			if err := store.Insert(t.Context(), tx, c.messages); err != nil {
				t.Fatal(err)
			}
			r.check(t)
			var rows []int
			for _, s := range r.sent {
				rows = append(rows, s.rows())
				if c.payload != nil && reflect.TypeOf(s.args[len(s.args)-1].Value) != c.payload {
					t.Errorf("payload is a %T, want %v", s.args[len(s.args)-1].Value, c.payload)
				}
			}
			if fmt.Sprint(rows) != fmt.Sprint(c.rows) {
				t.Errorf("rows %v, want %v", rows, c.rows)
			}
			_ = tx.Rollback()
		})
	}
}

// TestOperationsSend runs every operation over the recorder, whose arguments must be what
// go-ora takes, each for a bind of its own.
func TestOperationsSend(t *testing.T) {
	r, db, store := recording(t)
	r.answer = nil
	ctx, lease := t.Context(), dialect.Lease{Lane: 3, Owner: "me", Epoch: 7}
	full := dialect.Filter{
		IDs: make([][16]byte, 2500), Key: sql.Null[string]{V: "k", Valid: true}, Topic: "t", Type: "y", States: []string{dialect.Dead, dialect.Held, "none"},
		DoneWithin: 1<<63 - 1, DoneBefore: time.Nanosecond,
	}
	for name, do := range map[string]func(tx *sql.Tx) error{
		"Poll":       func(*sql.Tx) error { _, err := store.Poll(ctx, db, "me", 3); return err },
		"Pending":    func(*sql.Tx) error { _, _, err := store.Pending(ctx, db, "me"); return err },
		"Claim":      func(*sql.Tx) error { _, _, err := store.Claim(ctx, db, 3, "me", time.Minute); return err },
		"Ready":      func(*sql.Tx) error { _, err := store.Ready(ctx, db, 3, 9, dialect.Limit{Rows: 3}); return err },
		"Due":        func(*sql.Tx) error { _, err := store.Due(ctx, db, 3, dialect.Limit{Rows: 3}); return err },
		"Surface":    func(*sql.Tx) error { _, _, err := store.Surface(ctx, db, lease, 9); return err },
		"Stats":      func(*sql.Tx) error { _, err := store.Stats(ctx, db, 100); return err },
		"Parked":     func(*sql.Tx) error { _, err := store.Parked(ctx, db, full, 0, 9); return err },
		"Requeue":    func(*sql.Tx) error { _, err := store.Requeue(ctx, db, full, 9); return err },
		"Discard":    func(*sql.Tx) error { _, err := store.Discard(ctx, db, full, 9); return err },
		"Replay":     func(*sql.Tx) error { _, _, err := store.Replay(ctx, db, full, nil, 9); return err },
		"Purge":      func(*sql.Tx) error { _, err := store.Purge(ctx, db, time.Hour, 9); return err },
		"ClaimPurge": func(*sql.Tx) error { _, err := store.ClaimPurge(ctx, db, time.Hour); return err },
		"Record":     func(tx *sql.Tx) error { _, err := store.Record(ctx, tx, "c", "m"); return err },
		"Recorded":   func(*sql.Tx) error { _, err := store.Recorded(ctx, db, "c", "m"); return err },
		"PurgeInbox": func(*sql.Tx) error { _, err := store.PurgeInbox(ctx, db, time.Hour, 9); return err },
		"Migrate":    func(*sql.Tx) error { _, err := store.Migrate(ctx, db); return ignore(err) },
		"Inspect":    func(*sql.Tx) error { _, err := store.Inspect(ctx, db); return err },
	} {
		// Once with answers, so that what follows from them is sent as well.
		for _, answers := range []bool{false, true} {
			r.answer = nil
			if answers {
				r.answer = answer(t, store)
			}
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.sent = nil
			if err := do(tx); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if len(r.sent) == 0 {
				t.Errorf("%s sent nothing", name)
			}
			_ = tx.Rollback()
			r.check(t)
		}
	}
}

// ignore leaves out what Migrate says when nothing it has made is there.
func ignore(err error) error {
	if err != nil && strings.Contains(err.Error(), "could not be made") {
		return nil
	}
	return err
}

// answer gives two rows to every query, in go-ora's types: numbers as text, RAW and BLOB
// as bytes, NULL as nil.
func answer(t *testing.T, store dialect.Store) func(string, []driver.NamedValue) [][]driver.Value {
	id := bytes.Repeat([]byte{7}, 16)
	row := func(parked bool) []driver.Value {
		list := []driver.Value{"5", "6", "1", "3", id, []byte("topic"), nil, "-2039914840885289964", []byte("type"), nil, "1700000000000000", "0", "0", "1000", nil}
		if parked {
			return append(list, "2", "1", nil, "-5", "1700000000000000", "1", nil)
		}
		return append(list, "1", "1", nil)
	}
	byName := map[string][]driver.Value{
		"poll": {"3", "6", "0"}, "pending": {"1", "0"}, "claim": {"3"}, "free": {"6"}, "fence": {"7"},
		"dueScheduled": {"6", id, "0"}, "chooseReady": {"5", "20"}, "ready": row(false),
		"dueHeads": {"6", "5", "9", "20", "1"}, "dueHeld": {"7", "8", "9", "20", "0"}, "lockLane": {"3"},
		"stats":  {"1", "1", "1", "1", "1", "1", "5", nil, "1", "1", "16"},
		"parked": row(true),
		"clock":  {"1700000000000000"}, "requeueLanes": {"3"}, "discardLanes": {"3"},
		"chooseRequeue": {"6", id, "9", "1", "1"}, "chooseDiscard": {"6", id, nil, "0", "0"},
		"chooseReplay": {"1700000000000000", "6", "0"}, "choosePurge": {"1700000000000000", "6"}, "purgeable": {"6"}, "purgeDue": {"1"},
		"recorded": {"1"}, "choosePurgeInbox": {[]byte("c"), []byte("m")},
		"session": {"Oracle Database 19c", "19.0.0.0.0", "PRIMARY", "ME", "ME", "0"},
	}
	byText := make(map[string][]driver.Value)
	for _, st := range oracle.StatementsFor(store, 2500, 1) {
		if values, ok := byName[st.Name]; ok {
			head, _, _ := strings.Cut(st.Text, ":")
			byText[head] = values
		}
	}
	return func(text string, _ []driver.NamedValue) [][]driver.Value {
		head, _, _ := strings.Cut(text, ":")
		switch values := byText[head]; {
		case values != nil:
			return [][]driver.Value{values, values}
		case strings.Contains(text, "WHERE p.pos IN"):
			return [][]driver.Value{row(true)}
		case strings.Contains(text, "i.message_id) IN"):
			return [][]driver.Value{byName["choosePurgeInbox"], byName["choosePurgeInbox"]}
		case strings.Contains(text, "SKIP LOCKED"):
			return [][]driver.Value{{"6"}, {"7"}}
		}
		return nil
	}
}

// TestInspectUnseen tells of a missing table only who would see it.
func TestInspectUnseen(t *testing.T) {
	for name, c := range map[string]struct {
		user, privileges string
		want             int
	}{"Owner": {"ME", "0", 5}, "Administrator": {"SYSTEM", "1", 5}, "Relay": {"RELAY", "0", 0}} {
		r, db, store := recording(t)
		r.answer = func(text string, _ []driver.NamedValue) [][]driver.Value {
			switch {
			case strings.Contains(text, "session_privs"):
				return [][]driver.Value{{"Oracle Database 19c ", "19.0.0.0.0", "PRIMARY", "ME", c.user, c.privileges}}
			case strings.Contains(text, "all_tables"):
				return [][]driver.Value{{"OUTBOX_META"}}
			case strings.Contains(text, "all_indexes"):
				return [][]driver.Value{{"OUTBOX_META_PK", "VALID"}}
			case strings.Contains(text, "m.version"):
				return [][]driver.Value{{"1", "16"}}
			}
			return nil
		}
		found, err := store.Inspect(t.Context(), db)
		if err != nil || found.Version != 1 || found.Lanes != 16 || found.Server != "Oracle Database 19c 19.0.0.0.0" || len(found.Problems) != c.want {
			t.Errorf("%s: %+v, %v", name, found, err)
		}
		_, err = store.Migrate(t.Context(), db)
		if (err != nil) != (c.want > 0) {
			t.Errorf("%s: migrate: %v", name, err)
		}
	}
}

// TestEveryReadIsScanned reads a row in go-ora's types, with an empty key, no headers and
// an empty payload.
func TestEveryReadIsScanned(t *testing.T) {
	r, db, store := recording(t)
	r.answer = answer(t, store)
	rows, err := store.Ready(t.Context(), db, 3, 0, dialect.Limit{Rows: 9})
	if err != nil || len(rows) != 2 {
		t.Fatal(rows, err)
	}
	parked, err := store.Parked(t.Context(), db, dialect.Filter{
		IDs: make([][16]byte, 2500), Key: sql.Null[string]{V: "k", Valid: true}, Topic: "t", Type: "t", States: []string{dialect.Dead},
	}, 0, 9)
	if err != nil || len(parked) != 2 {
		t.Fatal(parked, err)
	}
	for _, m := range []dialect.Row{rows[0], parked[0].Row} {
		if m.Seq != 5 || m.Pos != 6 || m.Lane != 3 || m.Topic != "topic" || !m.Key.Valid || m.Key.V != "" || m.KeyHash.V != dialect.KeyHash("") ||
			m.Type != "type" || m.ContentType != "" || m.Headers != "{}" || m.Payload == nil || len(m.Payload) != 0 || m.Revision != 0 ||
			m.Age != time.Millisecond || !m.CreatedAt.Equal(time.Unix(1700000000, 0)) || m.CreatedAt.Location() != time.UTC {
			t.Errorf("scanned %+v", m)
		}
	}
	if !rows[0].Blocked {
		t.Error("the row is not blocked")
	}
	if p := parked[0]; p.State != dialect.Retry || !p.Blocking || p.Reason != "" || !p.DueIn.Valid || p.DueIn.V != -5*time.Microsecond {
		t.Errorf("scanned %+v", p)
	}
}

// TestBinds shows how go-ora binds what the store gives it, and the traps that are
// avoided, over a connection that is not connected.
func TestBinds(t *testing.T) {
	conn, err := driverpkg.NewConnection("oracle://me:secret@localhost:1521/service", nil)
	if err != nil {
		t.Fatal(err)
	}
	conn.State = driverpkg.Opened // as far as converting goes
	stmt := driverpkg.NewStmt("INSERT INTO t VALUES (:1)", conn)
	encoded := func(value any) *driverpkg.ParameterInfo {
		t.Helper()
		par, err := stmt.NewParam("", value, 0, driverpkg.Input)
		if err != nil {
			t.Fatalf("%T: %v", value, err)
		}
		return par
	}
	id := [16]byte{1, 2, 3}
	for name, c := range map[string]struct {
		value any
		kind  driverpkg.TNSType
		bytes []byte // nil is NULL
	}{
		"ID":         {id[:], driverpkg.RAW, id[:]},
		"Text":       {[]byte("ä"), driverpkg.RAW, []byte("ä")},
		"EmptyText":  {[]byte{}, driverpkg.RAW, nil},
		"NoKey":      {[]byte(nil), driverpkg.RAW, nil},
		"LargestRAW": {bytes.Repeat([]byte{1}, 2000), driverpkg.RAW, bytes.Repeat([]byte{1}, 2000)},
		"Zero":       {int64(0), driverpkg.NUMBER, []byte{128}},
		"One":        {1, driverpkg.NUMBER, []byte{193, 2}},
		"NoHash":     {sql.NullInt64{}, driverpkg.NUMBER, nil},
		"Hash":       {sql.NullInt64{Int64: 1, Valid: true}, driverpkg.NUMBER, []byte{193, 2}},
		"Nothing":    {nil, driverpkg.NCHAR, nil},
	} {
		t.Run(name, func(t *testing.T) {
			par := encoded(c.value)
			if par.DataType != c.kind || !bytes.Equal(par.BValue, c.bytes) || (len(par.BValue) == 0) != (len(c.bytes) == 0) {
				t.Errorf("%v is bound as %v, %v", c.value, par.DataType, par.BValue)
			}
		})
	}
	// Numbers of 64 bits go there and back.
	for _, n := range []int64{-1 << 63, dialect.KeyHash(""), -1, 0, 9, 10, 99, 100, 1700000000123456, 1<<63 - 1} {
		par := encoded(n)
		number, err := driverpkg.NewNumber(n)
		if err != nil || len(par.BValue) == 0 {
			t.Fatal(n, err)
		}
		if back, err := number.String(); err != nil || back != fmt.Sprint(n) {
			t.Errorf("%d comes back as %s, %v", n, back, err)
		}
	}
	// The traps: an array of 16 bytes is 16 values, more than a RAW is a LONG RAW.
	if par := encoded(id); par.MaxNoOfArrayElements != 16 {
		t.Errorf("an array of 16 bytes is %d values", par.MaxNoOfArrayElements)
	}
	if par := encoded(make([]byte, 1<<15)); par.DataType != driverpkg.LongRaw {
		t.Errorf("32 KiB are bound as %v", par.DataType)
	}
	// database/sql passes a column on as it is, and turns a Valuer into its value.
	for _, c := range []struct{ give, want any }{
		{[]int64{1, 2}, []int64{1, 2}},
		{[][]byte{{1}, nil}, [][]byte{{1}, nil}},
		{[]sql.NullInt64{{}}, []sql.NullInt64{{}}},
		{driverpkg.Blob{Data: []byte{1}}, driverpkg.Blob{Data: []byte{1}}},
	} {
		nv := driver.NamedValue{Value: c.give}
		if err := conn.CheckNamedValue(&nv); err != nil || !reflect.DeepEqual(nv.Value, c.want) {
			t.Errorf("%T becomes %v, %v", c.give, nv.Value, err)
		}
	}
	if err := conn.CheckNamedValue(&driver.NamedValue{Value: sql.NullInt64{}}); !errors.Is(err, driver.ErrSkip) {
		t.Errorf("a Valuer: %v", err)
	}
}

// TestSurfaceGivesUp when an insert does not come back, as one that waits for another
// session's: the transaction is rolled back, and the error is a conflict.
func TestSurfaceGivesUp(t *testing.T) {
	r, db, store := recording(t)
	r.answer = answer(t, store)
	release := make(chan struct{})
	r.fail = func(text string) error {
		if strings.HasPrefix(text, "INSERT") {
			<-release
			return network.NewOracleError(1013)
		}
		return nil
	}
	time.AfterFunc(oracle.SurfaceWait+200*time.Millisecond, func() { close(release) })
	moved, ok, err := store.Surface(t.Context(), db, dialect.Lease{Lane: 3, Owner: "me", Epoch: 7}, 9)
	if moved != 0 || ok || !errors.Is(err, oracle.ErrSurfaceWaits) || oracle.New().Classify(err) != dialect.Conflict {
		t.Errorf("%d, %t, %v", moved, ok, err)
	}
	server := new(network.OracleError)
	if !errors.As(err, &server) {
		t.Errorf("%v hides the driver's error", err)
	}
	for _, text := range r.texts() {
		if text == "COMMIT" {
			t.Error("it was committed")
		}
	}

	// One that comes back in time is not a matter of waiting.
	r.fail = nil
	moved, ok, err = store.Surface(t.Context(), db, dialect.Lease{Lane: 3, Owner: "me", Epoch: 7}, 9)
	if moved != 2 || !ok || err != nil {
		t.Errorf("%d, %t, %v", moved, ok, err)
	}
}
