package mysql_test

import (
	"context"
	"database/sql"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/conformance"
	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/mysql"
)

func TestConformance(t *testing.T) {
	onEachServer(t, func(t *testing.T, server *containers.Server) {
		conformance.Run(t, target(t, server.DSN, server))
	})
}

// newest runs test on the newest server of an engine. A suite takes its time: one
// engine runs it with odd names, the other with odd options. MariaDB 10.11 is odd by
// itself, with latin1 as its character set.
func newest(t *testing.T, engine string, test func(t *testing.T, server *containers.Server)) {
	t.Helper()
	servers := containers.Servers(t, engine)
	server := servers[len(servers)-1]
	t.Run(server.Version, func(t *testing.T) { test(t, server) })
}

// TestConformanceOddNames runs the suite where every name must be quoted.
func TestConformanceOddNames(t *testing.T) {
	newest(t, "mariadb", func(t *testing.T, server *containers.Server) {
		odd := target(t, server.DSN, server)
		odd.Short = true
		odd.Soak = 5 * time.Second
		odd.Place = func(ctx context.Context, own *conformance.Target, suffix string) (func(context.Context) error, error) {
			own.Schema, own.Prefix = `Odd "x" `+suffix, "order"
			return func(ctx context.Context) error { return run(ctx, server.DSN, "DROP DATABASE "+quote(own.Schema)) },
				run(ctx, server.DSN, "CREATE DATABASE "+quote(own.Schema))
		}
		conformance.Run(t, odd)
	})
}

// TestConformanceOddOptions runs the suite with sessions and a driver that are set as
// unfavourably as can be.
func TestConformanceOddOptions(t *testing.T) {
	newest(t, "mysql", func(t *testing.T, server *containers.Server) {
		dsn := with(server.DSN,
			"loc", "Asia/Tokyo", "clientFoundRows", "true", "parseTime", "true", "interpolateParams", "false",
			"time_zone", "'+05:30'", "autocommit", "0", isolation(server), "'SERIALIZABLE'", "charset", "latin1")
		odd := target(t, dsn, server)
		odd.Short = true
		odd.Soak = 5 * time.Second
		// Without interpolation every statement goes to the server and back twice, and on
		// the suite's slow network a renewal takes longer than its share of the lease.
		odd.Network = target(t, with(dsn, "interpolateParams", "true"), server).Network
		conformance.Run(t, odd)
	})
}

// run runs one statement on a connection of its own.
func run(ctx context.Context, dsn, statement string) error {
	db, err := mysql.Open(dsn)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	_, err = db.ExecContext(ctx, statement)
	return err
}

func target(t *testing.T, dsn string, server *containers.Server) conformance.Target {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal("the server's DSN is no URL") // which may hold a password
	}
	through := func(addr string) string {
		other := *u
		other.Host = addr
		return other.String()
	}
	target := conformance.Target{
		Dialect: mysql.New(),
		Open:    func(context.Context) (*sql.DB, error) { return mysql.Open(dsn) },
		As: as(t, server, func(own string) string {
			_, options, _ := strings.Cut(dsn, "?")
			plain, _, _ := strings.Cut(own, "?")
			return plain + "?" + options
		}),
		Source: dsn,
		Network: &conformance.Network{
			Address: net.JoinHostPort(u.Hostname(), port(u)),
			Open:    func(_ context.Context, addr string) (*sql.DB, error) { return mysql.Open(through(addr)) },
			Source:  through,
		},
		Demote: func(ctx context.Context, conn *sql.Conn) error {
			_, err := conn.ExecContext(ctx, "SET SESSION TRANSACTION READ ONLY")
			return err
		},
	}
	for _, zone := range []string{"'+00:00'", "'Europe/Berlin'", "'America/New_York'", "'Asia/Tokyo'"} {
		target.Zones = append(target.Zones, func(context.Context) (*sql.DB, error) {
			return mysql.Open(with(dsn, "time_zone", zone))
		})
	}
	if server.CanRestart() {
		target.Stop, target.Start, target.Kill = server.Stop, server.Start, server.Kill
	}
	return target
}

func port(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	return "3306"
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

// isolation is the variable of the session's isolation level.
func isolation(server *containers.Server) string {
	if server.Engine == "mariadb" {
		return "tx_isolation"
	}
	return "transaction_isolation"
}

// reopen opens the server in a child process of the suite.
func reopen(dsn string) (dialect.Dialect, *sql.DB, error) {
	db, err := mysql.Open(dsn)
	return mysql.New(), db, err
}

// address is the server's.
func address(dsn string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		panic("the server's DSN is no URL")
	}
	return net.JoinHostPort(u.Hostname(), port(u))
}

// withUser is the DSN for another user and database.
func withUser(dsn, user, password, database string) string {
	u := url.URL{Scheme: "mysql", User: url.UserPassword(user, password), Host: address(dsn), Path: "/" + database}
	return u.String()
}
