// Package docs_test runs what the documents say.
package docs_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/mysql"
	"github.com/outbox-suite/outbox/outboxtest"
	"github.com/outbox-suite/outbox/postgres"
	"github.com/outbox-suite/outbox/relay"
	"github.com/outbox-suite/outbox/sqlite"
)

func TestMain(m *testing.M) { os.Exit(containers.Main(m)) }

func document(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// section is the text below a heading, to the next one.
func section(t *testing.T, text, heading string) string {
	t.Helper()
	_, rest, found := strings.Cut(text, "\n## "+heading+"\n")
	if !found {
		t.Fatalf("there is no section %s", heading)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	return rest
}

// blocks are the code blocks of a language.
func blocks(text, language string) []string {
	var all []string
	for _, m := range regexp.MustCompile("(?s)\n```"+language+"\n(.*?)\n```").FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

// said are the messages that the statements of producers.md write, in any engine.
func said() []outbox.Message {
	id := func(n int) uuid.UUID { return uuid.MustParse(fmt.Sprintf("0197c3a0-5b1e-7c3d-9a52-3f4b8d0e6a%02d", n)) }
	return []outbox.Message{
		{ID: id(1), Topic: "orders", Key: "order-42", Type: "order.placed", Payload: []byte(`{"order": 42}`)},
		{ID: id(2), Topic: "orders", Type: "orders.counted", Payload: []byte(`{"count": 7}`)},
		{
			ID: id(3), Topic: "pictures", Key: "42", Type: "picture.taken", ContentType: "application/octet-stream",
			Payload: []byte{0, 0xff, 0x10}, Revision: 5,
			Headers: map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tenant": "blå"},
		},
		{ID: id(4), Topic: "orders", Key: "日本語", Type: "order.deleted"},
		{ID: id(5), Topic: "orders", Key: "日本語", Type: "order.emptied", Payload: []byte{}},
		{ID: id(6), Topic: "orders", Key: "order-42", Type: "payment.due", Payload: []byte(`{"order": 42}`), Delay: 15 * time.Minute},
	}
}

// drained publishes what an outbox holds, by id, first what is ready and then what
// is delayed.
func drained(t *testing.T, o *outbox.Outbox) map[string]relay.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var broker outboxtest.Publisher
	if err := outboxtest.Drain(ctx, o, &broker); err != nil {
		t.Fatal(err)
	}
	scheduled, err := o.Parked(ctx, outbox.Filter{}, 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range scheduled {
		if due := m.DueIn.V; m.State != outbox.Scheduled || due > 15*time.Minute || due < 14*time.Minute {
			t.Errorf("%s is %s, due in %v", uuid.UUID(m.ID), m.State, due)
		}
	}
	if len(scheduled) != 1 {
		t.Errorf("%d delayed messages", len(scheduled))
	}
	if _, err := o.Requeue(ctx, outbox.Filter{States: []string{outbox.Scheduled}}, 0); err != nil {
		t.Fatal(err)
	}
	if err := outboxtest.Drain(ctx, o, &broker); err != nil {
		t.Fatal(err)
	}
	byID := map[string]relay.Message{}
	place := map[string]int{}
	for i, m := range broker.Messages() {
		id := m.ID.String()
		if _, twice := byID[id]; twice {
			t.Errorf("%s is published twice", id)
		}
		// What differs from run to run.
		if m.Seq == 0 || m.CreatedAt.IsZero() {
			t.Errorf("%s has seq %d, created at %v", id, m.Seq, m.CreatedAt)
		}
		m.Seq, m.Epoch, m.CreatedAt, m.Age = 0, 0, time.Time{}, 0
		byID[id], place[id] = m, i
	}
	ids := said()
	if place[ids[3].ID.String()] > place[ids[4].ID.String()] || place[ids[0].ID.String()] > place[ids[5].ID.String()] {
		t.Error("messages of one key are not in order")
	}
	return byID
}

// everywhere runs test in a fresh database of each engine.
func everywhere(t *testing.T, test func(t *testing.T, db *sql.DB, d dialect.Dialect, heading string)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		db, err := sqlite.Open(filepath.Join(t.TempDir(), "docs.db"))
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		test(t, db, sqlite.New(), "SQLite")
	})
	t.Run("postgres", func(t *testing.T) {
		for _, server := range containers.Servers(t, "postgres") {
			t.Run(server.Version, func(t *testing.T) {
				owner, err := postgres.Open(server.DSN)
				if err != nil {
					t.Fatal(err)
				}
				defer owner.Close()
				schema := "docs_" + strings.ToLower(rand.Text()[:10])
				if _, err := owner.ExecContext(t.Context(), "CREATE SCHEMA "+schema); err != nil {
					t.Fatal(err)
				}
				defer func() {
					if _, err := owner.ExecContext(context.Background(), "DROP SCHEMA "+schema+" CASCADE"); err != nil {
						t.Error(err)
					}
				}()
				u, err := url.Parse(server.DSN)
				if err != nil {
					t.Fatal(err)
				}
				q := u.Query()
				q.Set("search_path", schema)
				u.RawQuery = q.Encode()
				db, err := postgres.Open(u.String())
				if err != nil {
					t.Fatal(err)
				}
				defer db.Close()
				test(t, db, postgres.New(), "PostgreSQL")
			})
		}
	})
	for _, engine := range []string{"mysql", "mariadb"} {
		t.Run(engine, func(t *testing.T) {
			for _, server := range containers.Servers(t, engine) {
				t.Run(server.Version, func(t *testing.T) {
					owner, err := mysql.Open(server.DSN)
					if err != nil {
						t.Fatal(err)
					}
					defer owner.Close()
					name := "docs_" + strings.ToLower(rand.Text()[:10])
					if _, err := owner.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
						t.Fatal(err)
					}
					defer func() {
						if _, err := owner.ExecContext(context.Background(), "DROP DATABASE "+name); err != nil {
							t.Error(err)
						}
					}()
					u, err := url.Parse(server.DSN)
					if err != nil {
						t.Fatal(err)
					}
					u.Path = "/" + name
					db, err := mysql.Open(u.String())
					if err != nil {
						t.Fatal(err)
					}
					defer db.Close()
					test(t, db, mysql.New(), "MySQL and MariaDB")
				})
			}
		})
	}
}

func migrated(t *testing.T, db *sql.DB, d dialect.Dialect, cfg outbox.Config) *outbox.Outbox {
	t.Helper()
	o, err := outbox.New(db, d, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestStatementsAreDelivered runs the statements as they stand there, and the same
// messages through Enqueue, and compares what a relay makes of the two.
func TestStatementsAreDelivered(t *testing.T) {
	everywhere(t, func(t *testing.T, db *sql.DB, d dialect.Dialect, heading string) {
		plain := migrated(t, db, d, outbox.Config{})
		statements := blocks(section(t, document(t, "producers.md"), heading), "sql")
		if len(statements) != len(said())-1 { // one has two rows
			t.Fatalf("%d statements", len(statements))
		}
		for _, statement := range statements {
			if _, err := db.ExecContext(t.Context(), statement); err != nil {
				t.Fatalf("%v\n%s", err, statement)
			}
		}
		enqueued := migrated(t, db, d, outbox.Config{Prefix: "enqueued"})
		err := enqueued.InTx(t.Context(), nil, func(ctx context.Context, tx *sql.Tx) error {
			_, err := enqueued.Enqueue(ctx, tx, said()...)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		got, want := drained(t, plain), drained(t, enqueued)
		if len(want) != len(said()) {
			t.Fatalf("%d messages", len(want))
		}
		for id, w := range want {
			if g := got[id]; !reflect.DeepEqual(g, w) {
				t.Errorf("%s:\n got %+v\nwant %+v", id, g, w)
			}
		}
		if len(got) != len(want) {
			t.Errorf("got %v", slices.Sorted(maps.Keys(got)))
		}
	})
}

// TestRevisionsInSQL has the statements count a key in turn with Enqueue.
func TestRevisionsInSQL(t *testing.T) {
	everywhere(t, func(t *testing.T, db *sql.DB, d dialect.Dialect, heading string) {
		o := migrated(t, db, d, outbox.Config{Revisions: true})
		_, text, _ := strings.Cut(section(t, document(t, "producers.md"), "Revisions"), "\n### "+heading+"\n")
		block := blocks(text, "sql")[0]
		for n := range 6 {
			err := o.InTx(t.Context(), nil, func(ctx context.Context, tx *sql.Tx) error {
				if n%3 == 1 {
					_, err := o.Enqueue(ctx, tx, outbox.Message{Topic: "orders", Key: "order-42", Type: "order.sent", Revision: int64(n + 1)})
					return err
				}
				for statement := range strings.SplitSeq(strings.Replace(block, "6a07", fmt.Sprintf("7a%02d", n), 1), ";\n\n") {
					if _, err := tx.ExecContext(ctx, statement); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		var broker outboxtest.Publisher
		if err := outboxtest.Drain(t.Context(), o, &broker); err != nil {
			t.Fatal(err)
		}
		var got []int64
		for _, m := range broker.Messages() {
			got = append(got, m.Revision)
		}
		if want := []int64{1, 2, 3, 4, 5, 6}; !slices.Equal(got, want) {
			t.Errorf("revisions %v, want %v", got, want)
		}
	})
}

// TestWrongLaneIsRefused runs the statements with a key against a schema that has
// another number of lanes.
func TestWrongLaneIsRefused(t *testing.T) {
	everywhere(t, func(t *testing.T, db *sql.DB, d dialect.Dialect, heading string) {
		o := migrated(t, db, d, outbox.Config{Lanes: 6})
		refused := 0
		for _, statement := range blocks(section(t, document(t, "producers.md"), heading), "sql") {
			if !strings.Contains(statement, "key_hash") || strings.Contains(statement, "日本語") { // see below
				continue
			}
			_, err := db.ExecContext(t.Context(), statement)
			if err == nil {
				t.Errorf("not refused:\n%s", statement)
				continue
			}
			refused++
			if !strings.Contains(strings.ToLower(err.Error()), "lane") {
				t.Errorf("refused for another reason: %v", err)
			}
		}
		if refused != 3 {
			t.Errorf("%d statements are refused", refused)
		}
		// A lane that exists, but is another key's.
		statement := blocks(section(t, document(t, "producers.md"), heading), "sql")[3]
		if _, err := db.ExecContext(t.Context(), statement); err == nil || !strings.Contains(strings.ToLower(err.Error()), "lane") {
			t.Errorf("a wrong lane below 6: got %v", err)
		}
		if s, err := o.Stats(t.Context()); err != nil || s.Ready+s.Scheduled != 0 {
			t.Errorf("left: %+v, %v", s, err)
		}
	})
}

// rows are the rows of the table that begins with a heading.
func rows(t *testing.T, text, heading string) [][]string {
	t.Helper()
	_, rest, found := strings.Cut(text, "\n| "+heading)
	if !found {
		t.Fatalf("there is no table of %s", heading)
	}
	rest, _, _ = strings.Cut(rest, "\n\n")
	var all [][]string
	for _, line := range strings.Split(rest, "\n")[2:] {
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.Trim(cell, " `"))
		}
		all = append(all, cells)
	}
	return all
}

// vectors are the keys of the table, with hash and lanes as they stand there.
func vectors(t *testing.T) map[string][3]string {
	t.Helper()
	keys := map[string][3]string{}
	for _, row := range rows(t, document(t, "producers.md"), "key | UTF-8") {
		key, err := hex.DecodeString(row[1])
		if err != nil {
			t.Fatal(err)
		}
		keys[string(key)] = [3]string{row[2], row[3], row[4]}
	}
	return keys
}

func TestVectors(t *testing.T) {
	keys := vectors(t)
	if len(keys) != 9 {
		t.Errorf("%d keys", len(keys))
	}
	for key, want := range keys {
		hash := dialect.KeyHash(key)
		got := [3]string{fmt.Sprint(hash), fmt.Sprint(dialect.LaneOfKey(hash, 8)), fmt.Sprint(dialect.LaneOfKey(hash, 12))}
		if got != want {
			t.Errorf("%q: got %v, the document says %v", key, got, want)
		}
	}
	ids := rows(t, document(t, "producers.md"), "id of a message")
	if len(ids) != 3 {
		t.Errorf("%d ids", len(ids))
	}
	for _, row := range ids {
		id := uuid.MustParse(row[0])
		if got := []string{fmt.Sprint(dialect.LaneOfID(id, 8)), fmt.Sprint(dialect.LaneOfID(id, 12))}; !slices.Equal(got, row[1:]) {
			t.Errorf("%s: got %v, the document says %v", id, got, row[1:])
		}
	}
}

// TestHashInSQL computes every key of the table as the first statement does, where
// the engine can.
func TestHashInSQL(t *testing.T) {
	everywhere(t, func(t *testing.T, db *sql.DB, d dialect.Dialect, heading string) {
		statement := blocks(section(t, document(t, "producers.md"), heading), "sql")[0]
		if !strings.Contains(strings.ToLower(statement), "sha2") {
			t.Skip("the application computes the hash")
		}
		o := migrated(t, db, d, outbox.Config{Lanes: 8})
		keys := vectors(t)
		column := "key"
		if strings.Contains(statement, "`key`") {
			column = "`key`"
		}
		n := 0
		for key := range keys {
			n++
			s := strings.Replace(statement, "6a01", fmt.Sprintf("7a%02d", n), 1)
			s = strings.Replace(s, "'order-42'", "'"+key+"'", 1)
			if _, err := db.ExecContext(t.Context(), s); err != nil {
				t.Fatalf("%q: %v", key, err)
			}
		}
		var broker outboxtest.Publisher
		if err := outboxtest.Drain(t.Context(), o, &broker); err != nil {
			t.Fatal(err)
		}
		if got := len(broker.Messages()); got != len(keys) {
			t.Errorf("%d messages", got)
		}
		for _, m := range broker.Messages() {
			if want, found := keys[m.Key]; !found || strconv.Itoa(m.Lane) != want[1] {
				t.Errorf("%q in lane %d, want %v", m.Key, m.Lane, want)
			}
		}
		var wrong int
		if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM outbox_done WHERE key_hash IS NULL").Scan(&wrong); err != nil || wrong > 0 {
			t.Errorf("%d without a hash, %v", wrong, err)
		}
		for key, want := range keys {
			var hash string
			if err := db.QueryRowContext(t.Context(), "SELECT key_hash FROM outbox_done WHERE "+column+" = '"+key+"'").Scan(&hash); err != nil || hash != want[0] {
				t.Errorf("%q: got %s, want %s, %v", key, hash, want[0], err)
			}
		}
	})
}

// TestPython runs the example where there is a Python.
func TestPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3 here")
	}
	program := blocks(document(t, "producers.md"), "python")[0]
	var want []string
	for key, v := range vectors(t) {
		program += fmt.Sprintf("\nprint(*lane_and_hash(bytes.fromhex('%x').decode(), 8), lane_and_hash(bytes.fromhex('%x').decode(), 12)[0])", key, key)
		want = append(want, v[1]+" "+v[0]+" "+v[2])
	}
	for _, row := range rows(t, document(t, "producers.md"), "id of a message") {
		id := strings.ReplaceAll(row[0], "-", "")
		program += fmt.Sprintf("\nprint(lane_of_id(bytes.fromhex('%s'), 8), lane_of_id(bytes.fromhex('%s'), 12))", id, id)
		want = append(want, row[1]+" "+row[2])
	}
	out, err := exec.CommandContext(t.Context(), python, "-c", program).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := strings.Split(strings.TrimSpace(string(out)), "\n"); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
