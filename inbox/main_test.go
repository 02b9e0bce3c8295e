package inbox_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	mysqldriver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/mysql"
	"github.com/outbox-suite/outbox/postgres"
	"github.com/outbox-suite/outbox/sqlite"
)

func TestMain(m *testing.M) { os.Exit(containers.Main(m)) }

// target is a fresh, private database with the tables in it.
type target struct {
	db      *sql.DB
	dialect dialect.Dialect
	prefix  string
	// connect opens a connection past the pool, for faults put around it.
	connect func() (driver.Conn, error)
	// deadlocks tells that two transactions can wait for each other's rows.
	deadlocks bool
	// dsn is that of a server, for its driver's own transactions.
	dsn string
}

func (g target) effects() string { return g.prefix + "_effects" }

// everywhere runs a test on every engine there is.
func everywhere(t *testing.T, test func(t *testing.T, g target)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "inbox.db")
		db, err := sqlite.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		g := target{db: db, dialect: sqlite.New(), prefix: "outbox"}
		g.connect = func() (driver.Conn, error) {
			return db.Driver().Open("file:" + path + "?_busy_timeout=10000&_journal_mode=WAL&_txlock=immediate")
		}
		g.prepare(t)
		test(t, g)
	})
	t.Run("postgres", func(t *testing.T) {
		for _, server := range containers.Servers(t, "postgres") {
			t.Run(server.Version, func(t *testing.T) {
				db, err := postgres.Open(server.DSN)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { db.Close() })
				g := target{db: db, dialect: postgres.New(), prefix: "t" + strings.ToLower(rand.Text()[:10]), deadlocks: true, dsn: server.DSN}
				g.connect = func() (driver.Conn, error) { return stdlib.GetDefaultDriver().Open(server.DSN) }
				t.Cleanup(func() {
					var tables []string
					for _, suffix := range []string{"", "_parked", "_done", "_lane", "_inbox", "_meta", "_effects"} {
						tables = append(tables, g.prefix+suffix)
					}
					if _, err := db.ExecContext(context.Background(), "DROP TABLE "+strings.Join(tables, ", ")); err != nil {
						t.Error(err)
					}
				})
				g.prepare(t)
				test(t, g)
			})
		}
	})
	for _, engine := range []string{"mysql", "mariadb"} {
		t.Run(engine, func(t *testing.T) {
			for _, server := range containers.Servers(t, engine) {
				t.Run(server.Version, func(t *testing.T) {
					db, err := mysql.Open(server.DSN)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { db.Close() })
					g := target{db: db, dialect: mysql.New(), prefix: "t" + strings.ToLower(rand.Text()[:10]), deadlocks: true}
					g.connect = func() (driver.Conn, error) { return connectMySQL(t.Context(), server.DSN) }
					t.Cleanup(func() {
						for _, suffix := range []string{"", "_parked", "_done", "_lane", "_inbox", "_meta", "_effects"} {
							if _, err := db.ExecContext(context.Background(), "DROP TABLE "+g.prefix+suffix); err != nil {
								t.Error(err)
							}
						}
					})
					g.prepare(t)
					test(t, g)
				})
			}
		})
	}
}

func connectMySQL(ctx context.Context, dsn string) (driver.Conn, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, errors.New("the server's DSN is no URL") // which may hold a password
	}
	config := mysqldriver.NewConfig()
	config.Net, config.Addr, config.DBName = "tcp", u.Host, strings.TrimPrefix(u.Path, "/")
	config.User = u.User.Username()
	config.Passwd, _ = u.User.Password()
	connector, err := mysqldriver.NewConnector(config)
	if err != nil {
		return nil, err
	}
	return connector.Connect(ctx)
}

func (g target) prepare(t *testing.T) {
	t.Helper()
	o, err := outbox.New(g.db, g.dialect, outbox.Config{Prefix: g.prefix})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	// By an index a statement locks the rows that it changes, and no others.
	for _, ddl := range []string{"CREATE TABLE " + g.effects() + " (n integer)", "CREATE INDEX " + g.effects() + "_n ON " + g.effects() + " (n)"} {
		if _, err := g.db.ExecContext(t.Context(), ddl); err != nil {
			t.Fatal(err)
		}
	}
}

// effect is a handler that leaves one row.
func (g target) effect(n int) func(context.Context, *sql.Tx) error {
	return func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO %s (n) VALUES (%d)", g.effects(), n))
		return err
	}
}

// count returns how many effects of n are committed.
func (g target) count(t *testing.T, n int) int {
	t.Helper()
	var count int
	row := g.db.QueryRowContext(t.Context(), fmt.Sprintf("SELECT count(*) FROM %s WHERE n = %d", g.effects(), n))
	if err := row.Scan(&count); err != nil {
		t.Fatal(err)
	}
	return count
}
