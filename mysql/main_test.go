package mysql_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox/conformance"
	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/mysql"
)

func TestMain(m *testing.M) {
	conformance.Child(reopen)
	os.Exit(containers.Main(m))
}

// fixture is an outbox of its own on one server.
type fixture struct {
	testing.TB
	dsn    string
	db     *sql.DB // with the options of the DSN, for the store
	plain  *sql.DB // without, for the test
	store  dialect.Store
	tables dialect.Tables
}

// onEach runs test on every server, with an outbox made for it.
func onEach(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Helper()
	onEachServer(t, func(t *testing.T, server *containers.Server) {
		f := unmigrated(t, server.DSN)
		f.migrate()
		test(t, f)
	})
}

// onEachServer runs test on every server of both kinds.
func onEachServer(t *testing.T, test func(t *testing.T, server *containers.Server)) {
	t.Helper()
	for _, engine := range []string{"mysql", "mariadb"} {
		t.Run(engine, func(t *testing.T) {
			for _, server := range containers.Servers(t, engine) {
				t.Run(server.Version, func(t *testing.T) { test(t, server) })
			}
		})
	}
}

const lanes = 4

// unmigrated is a fixture without its tables.
func unmigrated(tb testing.TB, dsn string) *fixture {
	tb.Helper()
	f := &fixture{TB: tb, dsn: dsn, tables: dialect.Tables{Schema: "test_" + random(), Prefix: "outbox", Lanes: lanes}}
	db := f.open(dsn)
	f.db = db
	f.plain = f.open(without(dsn))
	f.bind()
	tb.Cleanup(func() {
		_, err := f.plain.ExecContext(context.Background(), "DROP DATABASE IF EXISTS "+quote(f.tables.Schema))
		if err != nil {
			tb.Error(err)
		}
	})
	return f
}

// without is the DSN without its options.
func without(dsn string) string {
	plain, _, _ := strings.Cut(dsn, "?")
	return plain
}

func random() string {
	b := make([]byte, 6)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

func quote(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// open opens a pool that is closed with the test.
func (f *fixture) open(dsn string) *sql.DB {
	f.Helper()
	db, err := mysql.Open(dsn)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = db.Close() })
	return db
}

func (f *fixture) bind() {
	f.Helper()
	store, err := mysql.New().Bind(f.tables)
	if err != nil {
		f.Fatal(err)
	}
	f.store = store
}

func (f *fixture) migrate() {
	f.Helper()
	if _, err := f.store.Migrate(f.Context(), f.db); err != nil {
		f.Fatal(err)
	}
}

// in is the fixture in a subtest.
func (f *fixture) in(t *testing.T) *fixture {
	g := *f
	g.TB = t
	return &g
}

// clear empties the outbox and frees the lanes.
func (f *fixture) clear() {
	f.Helper()
	f.exec(`DELETE FROM {ready}`)
	f.exec(`DELETE FROM {parked}`)
	f.exec(`DELETE FROM {done}`)
	f.exec(`UPDATE {lane} SET owner = '', lease_until = '1970-01-01'`)
}

// sql fills the names of the tables into a text.
func (f *fixture) sql(text string) string {
	return dialect.Expand(strings.ReplaceAll(text, "{key}", quote("key")), f.tables, quote)
}

func (f *fixture) exec(text string, args ...any) {
	f.Helper()
	if _, err := f.plain.ExecContext(f.Context(), f.sql(text), args...); err != nil {
		f.Fatalf("%s: %v", text, err)
	}
}

// list runs a query of one text column.
func (f *fixture) list(text string, args ...any) []string {
	f.Helper()
	rows, err := f.plain.QueryContext(f.Context(), f.sql(text), args...)
	if err != nil {
		f.Fatalf("%s: %v", text, err)
	}
	defer func() { _ = rows.Close() }()
	list := []string{}
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			f.Fatal(err)
		}
		list = append(list, s)
	}
	if err := rows.Err(); err != nil {
		f.Fatal(err)
	}
	return list
}

// count runs a query of one number.
func (f *fixture) count(text string, args ...any) int64 {
	f.Helper()
	var n int64
	if err := f.plain.QueryRowContext(f.Context(), f.sql(text), args...).Scan(&n); err != nil {
		f.Fatalf("%s: %v", text, err)
	}
	return n
}

// is fails the test unless got equals want in its printed form.
func (f *fixture) is(what string, got, want any) {
	f.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		f.Fatalf("%s:\n got %s\nwant %s", what, g, w)
	}
}

func (f *fixture) ok(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// message is a message of the key in lane 1, whatever the key's own lane would
// be: see keyIn.
func message(topic, key string) dialect.Message {
	m := dialect.Message{
		ID: uuid.New(), Topic: topic, Type: "made", ContentType: "application/json",
		Payload: []byte(`{"a":1}`), Headers: "{}",
	}
	if key == "" {
		m.Lane = 1
		return m
	}
	m.Key = sql.Null[string]{V: key, Valid: true}
	m.KeyHash = sql.Null[int64]{V: dialect.KeyHash(key), Valid: true}
	m.Lane = dialect.LaneOfKey(m.KeyHash.V, lanes)
	return m
}

// keyIn is the nth key that belongs to lane 1, where tests work.
func keyIn(n int) string {
	for i := 0; ; i++ {
		key := fmt.Sprintf("key-%d", i)
		if dialect.LaneOfKey(dialect.KeyHash(key), lanes) == 1 {
			if n == 0 {
				return key
			}
			n--
		}
	}
}

// insert enqueues in a transaction of its own.
func (f *fixture) insert(messages ...dialect.Message) {
	f.Helper()
	f.ok(f.tryInsert(messages...))
}

func (f *fixture) tryInsert(messages ...dialect.Message) error {
	tx, err := f.db.BeginTx(f.Context(), nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := f.store.Insert(f.Context(), tx, messages); err != nil {
		return err
	}
	return tx.Commit()
}

// run inserts n messages of the key and returns their topics, which are the
// names tests use: KEY.1, KEY.2 and on.
func (f *fixture) run(key string, n int) {
	f.Helper()
	for i := range n {
		f.insert(message(fmt.Sprintf("%s.%d", key, i+1), key))
	}
}

func (f *fixture) claim(lane int, owner string) dialect.Lease {
	f.Helper()
	epoch, ok, err := f.store.Claim(f.Context(), f.db, lane, owner, time.Hour)
	f.ok(err)
	if !ok {
		f.Fatalf("lane %d is not to be had", lane)
	}
	return dialect.Lease{Lane: lane, Owner: owner, Epoch: epoch}
}

func (f *fixture) settle(lease dialect.Lease, s dialect.Settlement) {
	f.Helper()
	ok, err := f.store.Settle(f.Context(), f.db, lease, time.Hour, s)
	f.ok(err)
	if !ok {
		f.Fatal("the lease is lost")
	}
	f.invariant()
}

// invariant checks that the first of a key's rows that block or are held is
// the one that blocks, and that nothing is held without it.
func (f *fixture) invariant() {
	f.Helper()
	f.is("keys whose held rows have no head", f.count(`
		SELECT count(*) FROM {parked} AS h WHERE h.state = 'held' AND NOT EXISTS (
			SELECT 1 FROM {parked} AS b WHERE b.lane = h.lane AND b.key_hash = h.key_hash AND b.blocking AND b.seq < h.seq)`), 0)
	f.is("keys with two heads that retry", f.count(`
		SELECT count(*) FROM (SELECT 1 FROM {parked} WHERE blocking AND state = 'retry' GROUP BY lane, key_hash HAVING count(*) > 1) AS t`), 0)
	f.is("retries behind another head", f.count(`
		SELECT count(*) FROM {parked} AS h WHERE h.state = 'retry' AND h.blocking AND EXISTS (
			SELECT 1 FROM {parked} AS b WHERE b.lane = h.lane AND b.key_hash = h.key_hash AND b.blocking AND b.seq < h.seq)`), 0)
}

// parked lists the parked rows of all keys as topic:state, in order of seq, a
// blocking one with a star.
func (f *fixture) parked() []string {
	f.Helper()
	return f.list(`SELECT CONCAT(topic, ':', state, IF(blocking, '*', '')) FROM {parked} ORDER BY seq IS NULL, seq, pos`)
}

func (f *fixture) readyTopics() []string {
	return f.list(`SELECT topic FROM {ready} ORDER BY lane, seq`)
}

// seq is the seq of a ready message.
func (f *fixture) seq(topic string) int64 {
	return f.count(`SELECT seq FROM {ready} WHERE topic = ?`, topic)
}

// ref names a ready message, parkedRef a parked one.
func (f *fixture) ref(topic string) dialect.Ref {
	f.Helper()
	return f.refBy(`SELECT seq, id FROM {ready} WHERE topic = ?`, topic)
}

func (f *fixture) parkedRef(topic string) dialect.Ref {
	f.Helper()
	return f.refBy(`SELECT pos, id FROM {parked} WHERE topic = ?`, topic)
}

func (f *fixture) refBy(text, topic string) (r dialect.Ref) {
	f.Helper()
	var id []byte
	if err := f.plain.QueryRowContext(f.Context(), f.sql(text), topic).Scan(&r.Place, &id); err != nil {
		f.Fatalf("%s: %v", topic, err)
	}
	copy(r.ID[:], id)
	return r
}

func (f *fixture) refs(topics ...string) (list []dialect.Ref) {
	f.Helper()
	for _, t := range topics {
		list = append(list, f.ref(t))
	}
	return list
}

func (f *fixture) parkedRefs(topics ...string) (list []dialect.Ref) {
	f.Helper()
	for _, t := range topics {
		list = append(list, f.parkedRef(t))
	}
	return list
}

func (f *fixture) due(limit dialect.Limit) []string {
	f.Helper()
	rows, err := f.store.Due(f.Context(), f.db, 1, limit)
	f.ok(err)
	return topics(rows)
}

func topics(rows []dialect.Row) []string {
	list := []string{}
	for _, r := range rows {
		list = append(list, r.Topic)
	}
	return list
}
