package sqlserver_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox/conformance"
	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/sqlserver"
)

func TestMain(m *testing.M) {
	conformance.Child(reopen)
	os.Exit(max(containers.Main(m), dropDatabases()))
}

// A database of a server, made for the tests.
type database struct {
	dsn  string
	rcsi string // READ_COMMITTED_SNAPSHOT: ON or OFF
}

var (
	madeMu sync.Mutex
	made   = map[string][]database{} // by the DSN of the server
	drops  []func() error
)

// databases makes two databases on a server, once, with READ_COMMITTED_SNAPSHOT ON and
// OFF. They go when the tests end; in a container they go with it.
func databases(t *testing.T, server *containers.Server) []database {
	t.Helper()
	madeMu.Lock()
	defer madeMu.Unlock()
	if list, ok := made[server.DSN]; ok {
		return list
	}
	var list []database
	for _, rcsi := range []string{"ON", "OFF"} {
		name := "outbox_test_" + strings.ToLower(rcsi) + "_" + random()
		statements := []string{
			"CREATE DATABASE " + quote(name),
			"ALTER DATABASE " + quote(name) + " SET READ_COMMITTED_SNAPSHOT " + rcsi + " WITH ROLLBACK IMMEDIATE",
			"ALTER DATABASE " + quote(name) + " SET ALLOW_SNAPSHOT_ISOLATION ON",
			"ALTER DATABASE " + quote(name) + " SET RECOVERY SIMPLE",
		}
		for _, statement := range statements {
			if err := run(t.Context(), server.DSN, statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
		list = append(list, database{with(server.DSN, "database", name), rcsi})
		if !server.CanRestart() {
			drops = append(drops, func() error {
				return run(context.Background(), server.DSN, "DROP DATABASE "+quote(name))
			})
		}
	}
	made[server.DSN] = list
	return list
}

func dropDatabases() (status int) {
	for _, drop := range drops {
		if err := drop(); err != nil {
			fmt.Fprintln(os.Stderr, "sqlserver:", err)
			status = 1
		}
	}
	return status
}

// fixture is an outbox of its own in one database.
type fixture struct {
	testing.TB
	dsn    string
	rcsi   string
	db     *sql.DB
	store  dialect.Store
	tables dialect.Tables
}

// onEach runs test in every database, with an outbox made for it.
func onEach(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Helper()
	onEachDatabase(t, func(t *testing.T, d database, _ *containers.Server) {
		f := unmigrated(t, d)
		f.migrate()
		test(t, f)
	})
}

// onEachDatabase runs test in both databases of every server.
func onEachDatabase(t *testing.T, test func(t *testing.T, d database, server *containers.Server)) {
	t.Helper()
	for _, server := range containers.Servers(t, "sqlserver") {
		t.Run(server.Version, func(t *testing.T) {
			for _, d := range databases(t, server) {
				t.Run("RCSI="+d.rcsi, func(t *testing.T) { test(t, d, server) })
			}
		})
	}
}

const lanes = 4

// unmigrated is a fixture without its tables.
func unmigrated(tb testing.TB, d database) *fixture {
	tb.Helper()
	f := &fixture{TB: tb, dsn: d.dsn, rcsi: d.rcsi, tables: dialect.Tables{Schema: "test_" + random(), Prefix: "outbox", Lanes: lanes}}
	f.db = f.open(d.dsn)
	f.bind()
	tb.Cleanup(func() {
		if err := f.drop(); err != nil {
			tb.Error(err)
		}
	})
	return f
}

// drop removes the schema and all that is in it.
func (f *fixture) drop() error {
	if f.tables.Schema == "" {
		return nil
	}
	ctx := context.Background()
	rows, err := f.db.QueryContext(ctx, `SELECT t.name FROM sys.tables AS t WHERE t.schema_id = SCHEMA_ID(@p1)`, f.tables.Schema)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return err
		}
		names = append(names, name)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for _, name := range names {
		if _, err := f.db.ExecContext(ctx, "DROP TABLE "+quote(f.tables.Schema)+"."+quote(name)); err != nil {
			return err
		}
	}
	_, err = f.db.ExecContext(ctx, "DROP SCHEMA IF EXISTS "+quote(f.tables.Schema))
	return err
}

func random() string {
	b := make([]byte, 6)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

func quote(name string) string { return "[" + strings.ReplaceAll(name, "]", "]]") + "]" }

// open opens a pool that is closed with the test.
func (f *fixture) open(dsn string) *sql.DB {
	f.Helper()
	db, err := sqlserver.Open(dsn)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = db.Close() })
	return db
}

func (f *fixture) bind() {
	f.Helper()
	store, err := sqlserver.New().Bind(f.tables)
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
	f.exec(`UPDATE {lane} SET owner = 0x, lease_until = '1970-01-01'`)
}

// sql fills the names of the tables into a text.
func (f *fixture) sql(text string) string { return dialect.Expand(text, f.tables, quote) }

func (f *fixture) exec(text string, args ...any) {
	f.Helper()
	if _, err := f.db.ExecContext(f.Context(), f.sql(text), args...); err != nil {
		f.Fatalf("%s: %v", text, err)
	}
}

// list runs a query of one text column.
func (f *fixture) list(text string, args ...any) []string {
	f.Helper()
	rows, err := f.db.QueryContext(f.Context(), f.sql(text), args...)
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
	if err := f.db.QueryRowContext(f.Context(), f.sql(text), args...).Scan(&n); err != nil {
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
		SELECT COUNT(*) FROM {parked} AS h WHERE h.state = 'held' AND NOT EXISTS (
			SELECT 1 FROM {parked} AS b WHERE b.lane = h.lane AND b.key_hash = h.key_hash AND b.blocking = 1 AND b.seq < h.seq)`), 0)
	f.is("keys with two heads that retry", f.count(`
		SELECT COUNT(*) FROM (SELECT p.lane FROM {parked} AS p WHERE p.blocking = 1 AND p.state = 'retry'
			GROUP BY p.lane, p.key_hash HAVING COUNT(*) > 1) AS t`), 0)
	f.is("retries behind another head", f.count(`
		SELECT COUNT(*) FROM {parked} AS h WHERE h.state = 'retry' AND h.blocking = 1 AND EXISTS (
			SELECT 1 FROM {parked} AS b WHERE b.lane = h.lane AND b.key_hash = h.key_hash AND b.blocking = 1 AND b.seq < h.seq)`), 0)
}

// inOrder are the parked rows in order of seq, those without one last.
const inOrder = ` FROM {parked} AS p ORDER BY CASE WHEN p.seq IS NULL THEN 1 ELSE 0 END, p.seq, p.pos`

// parked lists the parked rows of all keys as topic:state, in order of seq, a
// blocking one with a star.
func (f *fixture) parked() []string {
	f.Helper()
	return f.list(`SELECT CONCAT(CAST(p.topic AS varchar(255)), ':', p.state, CASE WHEN p.blocking = 1 THEN '*' END)` + inOrder)
}

func (f *fixture) readyTopics() []string {
	f.Helper()
	return f.list(`SELECT CAST(r.topic AS varchar(255)) FROM {ready} AS r ORDER BY r.lane, r.seq`)
}

// ref names a ready message by its topic, parkedRef a parked one.
func (f *fixture) ref(topic string) dialect.Ref {
	f.Helper()
	return f.refBy(`SELECT seq, id FROM {ready} WHERE topic = @p1`, topic)
}

func (f *fixture) parkedRef(topic string) dialect.Ref {
	f.Helper()
	return f.refBy(`SELECT pos, id FROM {parked} WHERE topic = @p1`, topic)
}

func (f *fixture) refBy(text, topic string) (r dialect.Ref) {
	f.Helper()
	var id []byte
	if err := f.db.QueryRowContext(f.Context(), f.sql(text), []byte(topic)).Scan(&r.Place, &id); err != nil {
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

func (f *fixture) seq(topic string) int64 {
	f.Helper()
	return f.ref(topic).Place
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

// run runs one statement on a connection of its own.
func run(ctx context.Context, dsn, statement string) error {
	db, err := sqlserver.Open(dsn)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	_, err = db.ExecContext(ctx, statement)
	return err
}

// with is the DSN with more options, given as names and values.
func with(dsn string, options ...string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		panic("the server's DSN is no URL")
	}
	q := u.Query()
	for i := 0; i < len(options); i += 2 {
		q.Set(options[i], options[i+1])
	}
	u.RawQuery = q.Encode()
	return u.String()
}
