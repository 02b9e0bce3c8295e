package containers

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"

	_ "github.com/jackc/pgx/v5/stdlib" // the "pgx" driver of database/sql
)

// An engine is all this package knows about one kind of server.
type engine struct {
	driver   string   // of database/sql
	schemes  []string // a DSN of this engine begins with one of these and "://"
	images   []image  // the versions to test, oldest first
	port     string   // on which the server listens in its container
	env      func(password string) map[string]string
	cmd      []string
	ready    string // the log line of a server that accepts connections
	readyAt  int    // how often the line appears at the first start
	dsn      func(password, address string) string
	version  func(context.Context, *sql.DB) (string, error)
	embedded bool // a library, for which there are no servers
}

// An image is the official image of one version.
type image struct{ version, ref string }

// engines lists every engine by the name that tests and OUTBOX_REQUIRE use.
var engines = map[string]engine{
	"sqlite": {embedded: true},
	"postgres": {
		driver:  "pgx",
		schemes: []string{"postgres", "postgresql"},
		images:  []image{{"18", "postgres:18-alpine"}},
		port:    "5432/tcp",
		env: func(password string) map[string]string {
			return map[string]string{"POSTGRES_PASSWORD": password}
		},
		cmd: []string{"postgres", "-c", "max_connections=300", "-c", "wal_level=logical"},
		// The first one is from the set-up, which restarts the server.
		ready:   "database system is ready to accept connections",
		readyAt: 2,
		dsn: func(password, address string) string {
			u := url.URL{
				Scheme:   "postgres",
				User:     url.UserPassword("postgres", password),
				Host:     address,
				Path:     "/postgres",
				RawQuery: "sslmode=disable",
			}
			return u.String()
		},
		version: func(ctx context.Context, db *sql.DB) (string, error) {
			var n int
			if err := db.QueryRowContext(ctx, "SHOW server_version_num").Scan(&n); err != nil {
				return "", err
			}
			return fmt.Sprintf("%d.%d", n/10000, n%10000), nil
		},
	},
}
