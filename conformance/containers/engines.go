package containers

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"  // the "pgx" driver of database/sql
	_ "github.com/microsoft/go-mssqldb" // the "sqlserver" driver
	_ "github.com/sijms/go-ora/v2"      // the "oracle" driver
)

// An engine is all this package knows about one kind of server.
type engine struct {
	open     func(dsn string) (*sql.DB, error)
	schemes  []string // a DSN of this engine begins with one of these and "://"
	images   []image  // the versions to test, oldest first
	port     string   // on which the server listens in its container
	env      func(password string) map[string]string
	cmd      []string
	ready    string // the log line of a server that accepts connections
	readyAt  int    // how often the line appears at the first start
	dsn      func(password, address string) string
	answer   string // the query that tells that the server serves; SELECT 1 if empty
	version  func(context.Context, *sql.DB) (string, error)
	embedded bool // a library, for which there are no servers
}

// An image is the official image of one version.
type image struct{ version, ref string }

// engines lists every engine by the name that tests and OUTBOX_REQUIRE use.
//
// Servers in containers write through at every commit and leave it to the system when
// that reaches the disk: a server that is killed finds all it has written, and no test
// takes the system's power away. What measures commits needs a server of its own.
var engines = map[string]engine{
	"sqlite": {embedded: true},
	"postgres": {
		open:    func(dsn string) (*sql.DB, error) { return sql.Open("pgx", dsn) },
		schemes: []string{"postgres", "postgresql"},
		images:  []image{{"15", "postgres:15-alpine"}, {"18", "postgres:18-alpine"}},
		port:    "5432/tcp",
		env: func(password string) map[string]string {
			return map[string]string{"POSTGRES_PASSWORD": password}
		},
		cmd: []string{"postgres", "-c", "max_connections=300", "-c", "wal_level=logical", "-c", "fsync=off"},
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
	"mysql": {
		open:    openMySQL,
		schemes: []string{"mysql"},
		images:  []image{{"8.4", "mysql:8.4"}, {"9.7", "mysql:9.7"}},
		port:    "3306/tcp",
		env: func(password string) map[string]string {
			return map[string]string{"MYSQL_ROOT_PASSWORD": password, "MYSQL_DATABASE": "test"}
		},
		cmd: []string{"mysqld", "--max-connections=500", "--sync-binlog=0", "--innodb-flush-method=nosync"},
		// The server of the set-up has port 0.
		ready:   "port: 3306  ",
		readyAt: 1,
		dsn:     dsnMySQL,
		version: versionMySQL,
	},
	"mariadb": {
		open:    openMySQL,
		schemes: []string{"mariadb", "mysql"},
		images:  []image{{"10.11", "mariadb:10.11"}, {"11.8", "mariadb:11.8"}},
		port:    "3306/tcp",
		env: func(password string) map[string]string {
			return map[string]string{"MARIADB_ROOT_PASSWORD": password, "MARIADB_DATABASE": "test"}
		},
		cmd:     []string{"mariadbd", "--max-connections=500", "--innodb-flush-method=nosync"},
		ready:   "port: 3306  ",
		readyAt: 1,
		dsn:     dsnMySQL,
		version: versionMySQL,
	},
	// Never run where this was written: the images are not to be had there.
	"sqlserver": {
		open:    func(dsn string) (*sql.DB, error) { return sql.Open("sqlserver", dsn) },
		schemes: []string{"sqlserver"},
		images: []image{
			{"2022", "mcr.microsoft.com/mssql/server:2022-latest"},
			{"2025", "mcr.microsoft.com/mssql/server:2025-latest"},
		},
		port: "1433/tcp",
		env: func(password string) map[string]string {
			return map[string]string{"ACCEPT_EULA": "Y", "MSSQL_PID": "Developer", "MSSQL_SA_PASSWORD": password}
		},
		// The server accepts connections before its databases are recovered.
		ready:   "Recovery is complete.",
		readyAt: 1,
		dsn: func(password, address string) string {
			u := url.URL{
				Scheme:   "sqlserver",
				User:     url.UserPassword("sa", password),
				Host:     address,
				RawQuery: "database=master&encrypt=true&trustservercertificate=true",
			}
			return u.String()
		},
		version: func(ctx context.Context, db *sql.DB) (string, error) {
			var version string
			err := db.QueryRowContext(ctx, "SELECT CAST(SERVERPROPERTY('ProductVersion') AS varchar(40))").Scan(&version)
			return releaseOf(version), err
		},
	},
	"oracle": {
		open:    func(dsn string) (*sql.DB, error) { return sql.Open("oracle", dsn) },
		schemes: []string{"oracle"},
		images:  []image{{"23", "gvenzl/oracle-free:23-slim-faststart"}},
		port:    "1521/tcp",
		env: func(password string) map[string]string {
			return map[string]string{"ORACLE_PASSWORD": password}
		},
		ready:   "DATABASE IS READY TO USE!",
		readyAt: 1,
		dsn: func(password, address string) string {
			u := url.URL{Scheme: "oracle", User: url.UserPassword("system", password), Host: address, Path: "/FREEPDB1"}
			return u.String()
		},
		answer: "SELECT 1 FROM DUAL",
		version: func(ctx context.Context, db *sql.DB) (string, error) {
			var version string
			err := db.QueryRowContext(ctx, "SELECT version_full FROM product_component_version WHERE ROWNUM = 1").Scan(&version)
			return version, err
		},
	},
}

// releases are the years by which people know the versions of SQL Server.
var releases = map[string]string{"14": "2017", "15": "2019", "16": "2022", "17": "2025"}

// releaseOf is a version with its first number replaced by the year: 16.0.4135.4
// is 2022.0.4135.4.
func releaseOf(version string) string {
	major, rest, _ := strings.Cut(version, ".")
	if year, ok := releases[major]; ok {
		return year + "." + rest
	}
	return version
}

// openMySQL opens a URL, which is not the driver's own form. An error never shows it.
func openMySQL(dsn string) (*sql.DB, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, errors.New("the DSN is no URL")
	}
	config := mysql.NewConfig()
	config.Net, config.Addr = "tcp", u.Host
	config.User = u.User.Username()
	config.Passwd, _ = u.User.Password()
	config.DBName = strings.TrimPrefix(u.Path, "/")
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, errors.New("the DSN's parts are no configuration of the driver")
	}
	return sql.OpenDB(connector), nil
}

func dsnMySQL(password, address string) string {
	u := url.URL{Scheme: "mysql", User: url.UserPassword("root", password), Host: address, Path: "/test"}
	return u.String()
}

// versionMySQL is the version without what the distribution adds to it.
func versionMySQL(ctx context.Context, db *sql.DB) (string, error) {
	var version string
	err := db.QueryRowContext(ctx, "SELECT VERSION()").Scan(&version)
	version, _, _ = strings.Cut(version, "-")
	return version, err
}
