package upgrade

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/mysql"
	"github.com/outbox-suite/outbox/outboxtest"
	"github.com/outbox-suite/outbox/postgres"
	"github.com/outbox-suite/outbox/relay"
	"github.com/outbox-suite/outbox/sqlite"
)

var update = flag.Bool("update", false, "write the DDL of versions that have none in testdata")

func TestMain(m *testing.M) { os.Exit(containers.Main(m)) }

// engine is one whose servers can be had.
type engine struct {
	name, ddl string // ddl is the folder of testdata
	dialect   dialect.Dialect
	open      func(dsn string) (*sql.DB, error)
	drop      string // how a database goes; empty where it is a file
	// cut cuts DDL into what the driver takes at once.
	cut func(ddl string) []string
	// catalog lists what makes up a schema.
	catalog []string
}

func whole(ddl string) []string      { return []string{ddl} }
func statements(ddl string) []string { return strings.Split(strings.TrimSpace(ddl), ";\n") }

var inMySQL = []string{
	`SELECT CONCAT_WS(' ', table_name, column_name, column_type, is_nullable, column_default, extra, collation_name)
		FROM information_schema.columns WHERE table_schema = DATABASE() ORDER BY table_name, column_name`,
	`SELECT CONCAT_WS(' ', table_name, index_name, non_unique, seq_in_index, column_name)
		FROM information_schema.statistics WHERE table_schema = DATABASE() ORDER BY table_name, index_name, seq_in_index`,
	`SELECT CONCAT_WS(' ', constraint_name, check_clause)
		FROM information_schema.check_constraints WHERE constraint_schema = DATABASE() ORDER BY constraint_name`,
}

var engines = []engine{
	{
		"postgres", "postgres", postgres.New(), postgres.Open, "DROP DATABASE %s WITH (FORCE)", whole,
		[]string{
			`SELECT concat_ws(' ', table_name, column_name, data_type, is_nullable, column_default, is_identity, collation_name)
				FROM information_schema.columns WHERE table_schema = 'public' ORDER BY table_name, column_name`,
			`SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY indexname`,
			`SELECT concat_ws(' ', conrelid::regclass, conname, pg_get_constraintdef(oid))
				FROM pg_constraint WHERE connamespace = 'public'::regnamespace ORDER BY conrelid, conname`,
		},
	},
	{"mysql", "mysql", mysql.New(), mysql.Open, "DROP DATABASE %s", statements, inMySQL},
	{"mariadb", "mysql", mysql.New(), mysql.Open, "DROP DATABASE %s", statements, inMySQL},
	{
		"sqlite", "sqlite", sqlite.New(), sqlite.Open, "", whole,
		[]string{`SELECT concat_ws(' ', name, sql) FROM sqlite_schema ORDER BY name`},
	},
}

// lanes is how many the fixtures have.
func (e engine) lanes() int { return cmp.Or(e.dialect.Capabilities().Lanes, 16) }

// steps is the newest schema with the usual names.
func (e engine) steps(t *testing.T) []dialect.Step {
	t.Helper()
	store, err := e.dialect.Bind(dialect.Tables{Prefix: "outbox", Lanes: e.lanes()})
	if err != nil {
		t.Fatal(err)
	}
	return store.Steps()
}

// fixture is the DDL of a version.
func (e engine) fixture(version int) string {
	return filepath.Join("testdata", e.ddl, fmt.Sprint(version)+".sql")
}

// database returns an empty database.
func (e engine) database(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	open := func(dsn string) *sql.DB {
		db, err := e.open(dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	if e.drop == "" {
		return open(filepath.Join(t.TempDir(), "outbox.db"))
	}
	server := open(dsn)
	name := "upgrade_" + strings.ToLower(rand.Text()[:10])
	if _, err := server.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := server.ExecContext(context.Background(), strings.Replace(e.drop, "%s", name, 1)); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal("the server's DSN is no URL") // which may hold a password
	}
	u.Path = "/" + name
	return open(u.String())
}

// cataloged is all that makes up the schema of a database.
func (e engine) cataloged(t *testing.T, db *sql.DB) (all []string) {
	t.Helper()
	for _, query := range e.catalog {
		rows, err := db.QueryContext(t.Context(), query)
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var line string
			if err := rows.Scan(&line); err != nil {
				t.Fatal(err)
			}
			all = append(all, line)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil { //nolint:sqlclosecheck // in a loop
			t.Fatal(err)
		}
	}
	return all
}

// A program of an older version has found the schema it knows, and has none of the
// newer operations.
type (
	older      struct{ dialect.Dialect }
	olderStore struct{ dialect.Store }
)

func (o older) Bind(tables dialect.Tables) (dialect.Store, error) {
	store, err := o.Dialect.Bind(tables)
	return olderStore{store}, err
}

func (s olderStore) Inspect(ctx context.Context, db dialect.DB) (dialect.Inspection, error) {
	in, err := s.Store.Inspect(ctx, db)
	in.Version = len(s.Steps())
	return in, err
}

// TestFixtures: of every version before the newest there is the DDL.
func TestFixtures(t *testing.T) {
	for _, e := range engines {
		steps := e.steps(t)
		ddl := ""
		for i, step := range steps {
			ddl += step.SQL
			path := e.fixture(i + 1)
			_, err := os.Stat(path)
			if err != nil && *update {
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(ddl), 0o644)); err != nil {
					t.Fatal(err)
				}
				continue
			}
			if err != nil && i+1 < len(steps) {
				t.Errorf("%s: version %d has no DDL in testdata: go test ./internal/upgrade -run TestFixtures -update", e.name, i+1)
			}
		}
	}
}

// TestUpgradeUnderLoad brings each version to the newest while its producers and its
// relay work: no message is lost, doubled or out of order, and the tables are those of
// a new schema.
func TestUpgradeUnderLoad(t *testing.T) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			dsns := map[string]string{"file": ""}
			if e.drop != "" {
				clear(dsns)
				for _, server := range containers.Servers(t, e.name) {
					dsns[server.Version] = server.DSN
				}
			}
			for name, dsn := range dsns {
				for version := 1; version < len(e.steps(t)); version++ {
					t.Run(fmt.Sprint(name, "/from ", version), func(t *testing.T) { e.upgrade(t, dsn, version) })
				}
			}
		})
	}
}

func (e engine) upgrade(t *testing.T, dsn string, version int) {
	t.Helper()
	db := e.database(t, dsn)
	ddl, err := os.ReadFile(e.fixture(version))
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range e.cut(string(ddl)) {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	newest, err := outbox.New(db, e.dialect, outbox.Config{Lanes: e.lanes()})
	if err != nil {
		t.Fatal(err)
	}
	if in, err := newest.Inspect(t.Context()); err != nil || in.Version != version || len(in.Problems) > 0 {
		t.Fatalf("the fixture is found to be %+v, %v", in, err)
	}
	running, err := outbox.New(db, older{e.dialect}, outbox.Config{Lanes: e.lanes()})
	if err != nil {
		t.Fatal(err)
	}

	// The programs of that version.
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	var broker outboxtest.Publisher
	r, err := relay.New(running, &broker, relay.Config{PollMin: time.Millisecond, PollMax: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	relayed := make(chan error, 1)
	go func() { relayed <- r.Run(ctx) }()
	const producers = 3
	written := make([]int, producers)
	end := make(chan struct{})
	var writing sync.WaitGroup
	for i := range producers {
		writing.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
				}
				err := running.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
					_, err := running.Enqueue(ctx, tx, outbox.Message{
						Topic: "t", Type: "y", Key: fmt.Sprint("key ", i), Payload: strconv.AppendInt(nil, int64(written[i]), 10),
					})
					return err
				})
				if err != nil {
					t.Errorf("producer %d: %v", i, err)
					return
				}
				written[i]++
			}
		})
	}
	published := func(n int) {
		t.Helper()
		for n += len(broker.Messages()); len(broker.Messages()) < n; time.Sleep(time.Millisecond) {
			if ctx.Err() != nil {
				t.Fatalf("%d messages were published, want %d", len(broker.Messages()), n)
			}
		}
	}

	published(50)
	applied, err := newest.Migrate(ctx)
	if err != nil || len(applied) != len(newest.Schema())-version {
		t.Errorf("applied %v, %v", applied, err)
	}
	published(50)

	close(end)
	writing.Wait()
	total := 0
	for _, n := range written {
		total += n
	}
	for len(broker.Messages()) < total && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	stop()
	if err := <-relayed; err != nil {
		t.Error(err)
	}
	for i, n := range written {
		var got []string
		for _, m := range broker.ByKey(fmt.Sprint("key ", i)) {
			got = append(got, string(m.Payload))
		}
		for k := range max(n, len(got)) {
			if k >= len(got) || k >= n || got[k] != fmt.Sprint(k) {
				t.Errorf("key %d: %d messages written, %d published, in order up to %d", i, n, len(got), k)
				break
			}
		}
	}
	if err := newest.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if s, err := newest.Stats(t.Context()); err != nil || s.Ready+s.Retry+s.Held+s.Dead != 0 {
		t.Errorf("left are %+v, %v", s, err)
	}

	fresh := e.database(t, dsn)
	made, err := outbox.New(fresh, e.dialect, outbox.Config{Lanes: e.lanes()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := made.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := e.cataloged(t, db), e.cataloged(t, fresh); !slices.Equal(got, want) || len(want) < 10 {
		t.Errorf("the schema is\n%s\nand a new one\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
