package sqlite_test

import (
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/sqlite"
)

// odd is the prefix of most tests: everything works with any name.
const odd = `Odd "x" {ready} order`

// env is a database with an outbox.
type env struct {
	testing.TB
	ctx    context.Context
	path   string
	db     *sql.DB
	store  dialect.Store
	tables dialect.Tables
	ids    uint32
}

// fresh is a new database with an outbox of as many lanes.
func fresh(tb testing.TB, lanes int) *env {
	tb.Helper()
	e := unmigrated(tb, lanes)
	e.must2(e.store.Migrate(e.ctx, e.db))
	return e
}

// unmigrated is fresh without its tables.
func unmigrated(tb testing.TB, lanes int) *env {
	tb.Helper()
	e := &env{
		TB: tb, ctx: tb.Context(), path: filepath.Join(tb.TempDir(), "a b.db"),
		tables: dialect.Tables{Prefix: odd, Lanes: lanes},
	}
	name, err := sqlite.DSN(e.path)
	e.must(err)
	// The settings of Open, without the wait for the disk.
	e.db = openDSN(tb, strings.Replace(name, "_synchronous=FULL", "_synchronous=OFF", 1))
	e.store = bind(tb, e.tables)
	return e
}

func open(tb testing.TB, path string) *sql.DB {
	tb.Helper()
	db, err := sqlite.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = db.Close() })
	return db
}

// openDSN is a pool as an application that does not use Open may have one.
func openDSN(tb testing.TB, name string) *sql.DB {
	tb.Helper()
	db, err := sql.Open("sqlite", name)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = db.Close() })
	return db
}

func bind(tb testing.TB, tables dialect.Tables) dialect.Store {
	tb.Helper()
	store, err := sqlite.New().Bind(tables)
	if err != nil {
		tb.Fatal(err)
	}
	return store
}

func (e *env) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

// must2 ignores a value that comes with an error.
func (e *env) must2(_ any, err error) {
	e.Helper()
	e.must(err)
}

// text fills the names of the tables into a statement.
func (e *env) text(statement string) string {
	return dialect.Expand(statement, e.tables, func(name string) string {
		return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
	})
}

// exec runs a statement of a test.
func (e *env) exec(statement string, args ...any) {
	e.Helper()
	e.must2(e.db.ExecContext(e.ctx, e.text(statement), args...))
}

// rows reads a statement of a test as text, a row a string.
func (e *env) rows(statement string, args ...any) []string {
	e.Helper()
	all, err := read(e.ctx, e.db, e.text(statement), args...)
	e.must(err)
	return all
}

func read(ctx context.Context, db dialect.DB, statement string, args ...any) ([]string, error) {
	rows, err := db.QueryContext(ctx, statement, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	var all []string
	for rows.Next() {
		values := make([]any, len(columns))
		for i := range values {
			values[i] = new(any)
		}
		if err := rows.Scan(values...); err != nil {
			return nil, err
		}
		var row []string
		for _, v := range values {
			row = append(row, fmt.Sprint(*v.(*any)))
		}
		all = append(all, strings.Join(row, " "))
	}
	return all, rows.Err()
}

// one reads a statement of a test that has one row.
func (e *env) one(statement string, args ...any) string {
	e.Helper()
	all := e.rows(statement, args...)
	if len(all) != 1 {
		e.Fatalf("%s: %d rows, want 1", statement, len(all))
	}
	return all[0]
}

// dump is everything stored but the lanes.
func (e *env) dump() map[string][]string {
	e.Helper()
	all := make(map[string][]string)
	for _, table := range []string{"{ready}", "{parked}", "{done}", "{inbox}"} {
		all[table] = e.rows("SELECT * FROM " + table)
	}
	return all
}

// same fails when anything but the lanes has changed since dump.
func (e *env) same(before map[string][]string, what string) {
	e.Helper()
	if after := e.dump(); !reflect.DeepEqual(before, after) {
		e.Errorf("%s changed something:\nbefore %v\nafter  %v", what, before, after)
	}
}

// message is a message of a key, or of none when key is empty.
func (e *env) message(key string) dialect.Message {
	e.ids++
	m := dialect.Message{
		Topic: "orders", Type: "order.placed", ContentType: "application/json", Headers: `{"a":"b"}`,
		Payload: fmt.Appendf(nil, "%s/%d", key, e.ids),
	}
	binary.BigEndian.PutUint32(m.ID[:], e.ids)
	m.Lane = dialect.LaneOfID(m.ID, e.tables.Lanes)
	if key != "" {
		hash := dialect.KeyHash(key)
		m.Key = sql.Null[string]{V: key, Valid: true}
		m.KeyHash = sql.Null[int64]{V: hash, Valid: true}
		m.Lane = dialect.LaneOfKey(hash, e.tables.Lanes)
	}
	return m
}

// messages are one message of each key.
func (e *env) messages(keys ...string) []dialect.Message {
	var all []dialect.Message
	for _, key := range keys {
		all = append(all, e.message(key))
	}
	return all
}

// insert commits messages.
func (e *env) insert(messages ...dialect.Message) {
	e.Helper()
	tx, err := e.db.BeginTx(e.ctx, nil)
	e.must(err)
	defer func() { _ = tx.Rollback() }()
	e.must(e.store.Insert(e.ctx, tx, messages))
	e.must(tx.Commit())
}

// due makes every scheduled and retry row due.
func (e *env) due() {
	e.Helper()
	e.exec(`UPDATE {parked} SET available_at = available_at - 86400000000 WHERE available_at IS NOT NULL`)
}

// owner is who owns lanes in most tests.
const owner = "relay-1"

// claim takes a lane.
func (e *env) claim(lane int) dialect.Lease {
	e.Helper()
	epoch, ok, err := e.store.Claim(e.ctx, e.db, lane, owner, time.Minute)
	e.must(err)
	if !ok {
		e.Fatalf("lane %d is not to be had", lane)
	}
	return dialect.Lease{Lane: lane, Owner: owner, Epoch: epoch}
}

// ready reads all ready rows of a lane.
func (e *env) ready(lane int) []dialect.Row {
	e.Helper()
	rows, err := e.store.Ready(e.ctx, e.db, lane, 0, dialect.Limit{Rows: 1 << 20})
	e.must(err)
	return rows
}

// dueRows reads all due rows of a lane.
func (e *env) dueRows(lane int) []dialect.Row {
	e.Helper()
	rows, err := e.store.Due(e.ctx, e.db, lane, dialect.Limit{Rows: 1 << 20})
	e.must(err)
	return rows
}

// settle records an outcome and checks what must hold afterwards.
func (e *env) settle(lease dialect.Lease, s dialect.Settlement) {
	e.Helper()
	ok, err := e.store.Settle(e.ctx, e.db, lease, time.Minute, s)
	e.must(err)
	if !ok {
		e.Fatal("the lease is lost")
	}
	e.invariants()
}

// invariants fails when a held row has no head before it.
func (e *env) invariants() {
	e.Helper()
	if orphans := e.rows(`
		SELECT pos, seq, key FROM {parked} AS h WHERE state = 'held' AND NOT EXISTS (
			SELECT 1 FROM {parked} AS b WHERE b.key_hash = h.key_hash AND b.blocking = 1 AND b.seq < h.seq)`); len(orphans) > 0 {
		e.Errorf("held rows without a head before them: %v", orphans)
	}
	if late := e.rows(`
		SELECT pos, seq, key FROM {parked} AS r WHERE state = 'retry' AND blocking = 1 AND EXISTS (
			SELECT 1 FROM {parked} AS b WHERE b.key_hash = r.key_hash AND b.blocking = 1 AND b.seq < r.seq)`); len(late) > 0 {
		e.Errorf("heads behind another head of their key: %v", late)
	}
}

// parkedRows shows what is parked, in order, as "key/payload number state".
func (e *env) parkedRows() []string {
	e.Helper()
	return e.rows(`SELECT CAST(payload AS TEXT), state, CASE blocking WHEN 1 THEN 'blocking' ELSE '-' END, attempts
		FROM {parked} ORDER BY key_hash, seq, pos`)
}

func (e *env) equal(got, want any, what string) {
	e.Helper()
	if !reflect.DeepEqual(got, want) {
		e.Errorf("%s:\n got %v\nwant %v", what, got, want)
	}
}

// payloads are the payloads of rows as text.
func payloads(rows []dialect.Row) []string {
	var all []string
	for _, r := range rows {
		all = append(all, string(r.Payload))
	}
	return all
}

// seqs are the places of rows in the order.
func seqs(rows []dialect.Row) []int64 {
	var all []int64
	for _, r := range rows {
		all = append(all, r.Seq)
	}
	return all
}

// refs are the names of rows.
func refs(rows []dialect.Row) []dialect.Ref {
	var all []dialect.Ref
	for _, r := range rows {
		all = append(all, r.Ref())
	}
	return all
}

// at names the ready rows at some seqs.
func (e *env) at(seqs ...int64) []dialect.Ref {
	e.Helper()
	return e.named(`SELECT hex(id) FROM {ready} WHERE seq = ?`, seqs)
}

// parkedAt names the parked rows at some poses.
func (e *env) parkedAt(poses ...int64) []dialect.Ref {
	e.Helper()
	return e.named(`SELECT hex(id) FROM {parked} WHERE pos = ?`, poses)
}

// named names rows. Where there is none, the id is that of no message.
func (e *env) named(statement string, places []int64) []dialect.Ref {
	e.Helper()
	var all []dialect.Ref
	for _, place := range places {
		ref := dialect.Ref{Place: place}
		for _, id := range e.rows(statement, place) {
			_, err := hex.Decode(ref.ID[:], []byte(id))
			e.must(err)
		}
		all = append(all, ref)
	}
	return all
}

// retry is a failure that blocks, due at once.
func retry(row dialect.Ref) dialect.Failure {
	return dialect.Failure{Ref: row, Attempts: 1, Blocking: true, Reason: "broker says no"}
}

// dead is a failure that ends the attempts and blocks.
func dead(row dialect.Ref) dialect.Failure {
	f := retry(row)
	f.Dead = true
	return f
}
