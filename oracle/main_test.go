package oracle_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox/conformance"
	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/oracle"
)

// The tests that need a server want one whose user may make users, as SYSTEM may: each
// outbox gets a schema of its own.

func TestMain(m *testing.M) {
	conformance.Child(reopen)
	os.Exit(containers.Main(m))
}

// fixture is an outbox of its own on one server.
type fixture struct {
	testing.TB
	dsn    string
	db     *sql.DB // for the store
	plain  *sql.DB // for the test
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

// onEachServer runs test on every server.
func onEachServer(t *testing.T, test func(t *testing.T, server *containers.Server)) {
	t.Helper()
	for _, server := range containers.Servers(t, "oracle") {
		t.Run(server.Version, func(t *testing.T) { test(t, server) })
	}
}

const lanes = 4

// unmade is a fixture without its schema.
func unmade(tb testing.TB, dsn string) *fixture {
	tb.Helper()
	f := &fixture{TB: tb, dsn: dsn, tables: dialect.Tables{Schema: "test_" + random(), Prefix: "outbox", Lanes: lanes}}
	f.db, f.plain = f.open(dsn), f.open(dsn)
	f.bind()
	return f
}

// unmigrated is a fixture without its tables.
func unmigrated(tb testing.TB, dsn string) *fixture {
	tb.Helper()
	f := unmade(tb, dsn)
	f.make()
	return f
}

// make makes the schema, which is dropped with the test.
func (f *fixture) make() {
	f.Helper()
	user := quote(f.tables.Schema)
	f.ok(makeUser(f.Context(), f.plain, user, random()))
	f.Cleanup(func() {
		if err := dropUser(context.Background(), f.plain, user); err != nil {
			f.Error(err)
		}
	})
}

// makeUser makes a user who may make an outbox in the schema of the same name.
func makeUser(ctx context.Context, db *sql.DB, user, password string) error {
	for _, text := range []string{
		`CREATE USER ` + user + ` IDENTIFIED BY "` + password + `"`,
		`GRANT CREATE SESSION, CREATE TABLE, CREATE SEQUENCE, UNLIMITED TABLESPACE TO ` + user,
	} {
		if _, err := db.ExecContext(ctx, text); err != nil {
			return fmt.Errorf("%s: %w", strings.Fields(text)[0], err)
		}
	}
	return nil
}

// dropUser drops a user, whose sessions may take a moment to end (ORA-01940).
func dropUser(ctx context.Context, db *sql.DB, user string) (err error) {
	for range 50 {
		if _, err = db.ExecContext(ctx, `DROP USER `+user+` CASCADE`); err == nil || !strings.Contains(err.Error(), "01940") {
			return err
		}
		time.Sleep(200 * time.Millisecond)
	}
	return err
}

// as is a fixture of another user, in a schema of the user's own.
func (f *fixture) as(user string) *fixture {
	f.Helper()
	password := random()
	f.ok(makeUser(f.Context(), f.plain, quote(user), password))
	f.Cleanup(func() {
		if err := dropUser(context.Background(), f.plain, quote(user)); err != nil {
			f.Error(err)
		}
	})
	g := *f
	g.dsn = withUser(f.dsn, user, password)
	g.db, g.plain = g.open(g.dsn), g.open(g.dsn)
	return &g
}

func random() string {
	b := make([]byte, 6)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

var plainName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_$#]*$`)

func quote(name string) string {
	if plainName.MatchString(name) {
		name = strings.ToUpper(name)
	}
	return `"` + name + `"`
}

// open opens a pool that is closed with the test.
func (f *fixture) open(dsn string) *sql.DB {
	f.Helper()
	db, err := oracle.Open(dsn)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = db.Close() })
	return db
}

func (f *fixture) bind() {
	f.Helper()
	f.store = bound(f.TB, f.tables)
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
	f.exec(`UPDATE {lane} SET owner = NULL, lease_until = TIMESTAMP '1970-01-01 00:00:00'`)
}

var textColumn = regexp.MustCompile(`\{text ([a-z_.]+)\}`)

// sql fills the names of the tables into a text, numbers its binds, and makes text of
// what {text column} names.
func (f *fixture) sql(text string) string {
	text = textColumn.ReplaceAllString(text, `UTL_RAW.CAST_TO_VARCHAR2($1)`)
	for i := 1; strings.Contains(text, "?"); i++ {
		text = strings.Replace(text, "?", ":"+strconv.Itoa(i), 1)
	}
	return dialect.Expand(text, f.tables, quote)
}

// binds are arguments, text as the bytes that columns hold.
func binds(args []any) []any {
	list := make([]any, len(args))
	for i, arg := range args {
		if text, ok := arg.(string); ok {
			arg = []byte(text)
		}
		list[i] = arg
	}
	return list
}

func (f *fixture) exec(text string, args ...any) {
	f.Helper()
	if _, err := f.plain.ExecContext(f.Context(), f.sql(text), binds(args)...); err != nil {
		f.Fatalf("%s: %v", text, err)
	}
}

// list runs a query of one text column.
func (f *fixture) list(text string, args ...any) []string {
	f.Helper()
	rows, err := f.plain.QueryContext(f.Context(), f.sql(text), binds(args)...)
	if err != nil {
		f.Fatalf("%s: %v", text, err)
	}
	defer func() { _ = rows.Close() }()
	list := []string{}
	for rows.Next() {
		var s sql.NullString
		if err := rows.Scan(&s); err != nil {
			f.Fatal(err)
		}
		list = append(list, s.String)
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
	if err := f.plain.QueryRowContext(f.Context(), f.sql(text), binds(args)...).Scan(&n); err != nil {
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

// message is a message of the key in the key's lane, or without one in lane 1.
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

// run inserts n messages of the key, whose topics are the names tests use: KEY.1, KEY.2
// and on.
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
		SELECT COUNT(*) FROM {parked} h WHERE h.state = 3 AND NOT EXISTS (
			SELECT 1 FROM {parked} b WHERE b.lane = h.lane AND b.key_hash = h.key_hash AND b.blocking = 1 AND b.seq < h.seq)`), 0)
	f.is("keys with two heads that retry", f.count(`
		SELECT COUNT(*) FROM (SELECT lane, key_hash FROM {parked} WHERE blocking = 1 AND state = 2 GROUP BY lane, key_hash HAVING COUNT(*) > 1)`), 0)
	f.is("retries behind another head", f.count(`
		SELECT COUNT(*) FROM {parked} h WHERE h.state = 2 AND h.blocking = 1 AND EXISTS (
			SELECT 1 FROM {parked} b WHERE b.lane = h.lane AND b.key_hash = h.key_hash AND b.blocking = 1 AND b.seq < h.seq)`), 0)
}

// parked lists the parked rows of all keys as topic:state, in order of seq, a
// blocking one with a star.
func (f *fixture) parked() []string {
	f.Helper()
	return f.list(`SELECT {text topic} || ':' || CASE state WHEN 1 THEN 'scheduled' WHEN 2 THEN 'retry' WHEN 3 THEN 'held' ELSE 'dead' END
		|| CASE WHEN blocking = 1 THEN '*' END FROM {parked} ORDER BY seq NULLS LAST, pos`)
}

func (f *fixture) readyTopics() []string {
	f.Helper()
	return f.list(`SELECT {text topic} FROM {ready} ORDER BY lane, seq`)
}

func (f *fixture) seq(topic string) int64 {
	f.Helper()
	return f.ref(topic).Place
}

// ref names a ready message, parkedRef a parked one, by topic.
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
	if err := f.plain.QueryRowContext(f.Context(), f.sql(text), []byte(topic)).Scan(&r.Place, &id); err != nil {
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

// withUser is the DSN for another user.
func withUser(dsn, user, password string) string {
	u := parsed(dsn)
	u.User = url.UserPassword(user, password)
	return u.String()
}

func parsed(dsn string) *url.URL {
	u, err := url.Parse(dsn)
	if err != nil {
		panic("the server's DSN is no URL") // which may hold a password
	}
	return u
}

// fill inserts n messages without a key into a lane.
func (f *fixture) fill(lane, n int) {
	f.Helper()
	messages := make([]dialect.Message, n)
	for i := range messages {
		messages[i] = message(fmt.Sprint(i), "")
		messages[i].Lane = lane
	}
	f.insert(messages...)
}
