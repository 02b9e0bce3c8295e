package postgres_test

import (
	"context"
	"database/sql"
	"net"
	"net/url"
	"testing"

	"github.com/outbox-suite/outbox/conformance"
	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/postgres"
)

func TestConformance(t *testing.T) {
	for _, server := range containers.Servers(t, "postgres") {
		t.Run(server.Version, func(t *testing.T) { conformance.Run(t, target(t, server)) })
	}
}

// TestConformanceOddNames runs the suite where every name must be quoted.
func TestConformanceOddNames(t *testing.T) {
	server := containers.Servers(t, "postgres")[0]
	odd := target(t, server)
	odd.Short = true
	odd.Place = func(ctx context.Context, own *conformance.Target, suffix string) (func(context.Context) error, error) {
		own.Schema, own.Prefix = `Odd "x" `+suffix, "order"
		return func(ctx context.Context) error { return run(ctx, server.DSN, "DROP SCHEMA "+quote(own.Schema)) },
			run(ctx, server.DSN, "CREATE SCHEMA "+quote(own.Schema))
	}
	conformance.Run(t, odd)
}

// run runs one statement on a connection of its own.
func run(ctx context.Context, dsn, statement string) error {
	db, err := postgres.Open(dsn)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	_, err = db.ExecContext(ctx, statement)
	return err
}

func target(t *testing.T, server *containers.Server) conformance.Target {
	t.Helper()
	u, err := url.Parse(server.DSN)
	if err != nil {
		t.Fatal("the server's DSN is no URL") // which may hold a password
	}
	through := func(addr string) string {
		other := *u
		other.Host = addr
		return other.String()
	}
	target := conformance.Target{
		Dialect: postgres.New(),
		Open:    func(context.Context) (*sql.DB, error) { return postgres.Open(server.DSN) },
		Source:  server.DSN,
		Network: &conformance.Network{
			Address: net.JoinHostPort(u.Hostname(), port(u)),
			Open:    func(_ context.Context, addr string) (*sql.DB, error) { return postgres.Open(through(addr)) },
			Source:  through,
		},
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
	return "5432"
}

// reopen opens the server in a child process of the suite.
func reopen(dsn string) (dialect.Dialect, *sql.DB, error) {
	db, err := postgres.Open(dsn)
	return postgres.New(), db, err
}
