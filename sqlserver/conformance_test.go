package sqlserver_test

import (
	"context"
	"database/sql"
	"net"
	"net/url"
	"testing"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/outbox-suite/outbox/conformance"
	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/sqlserver"
)

func TestConformance(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, d database, server *containers.Server) {
		conformance.Run(t, target(t, d, server))
	})
}

// TestConformanceOddNames runs the suite where every name must be quoted.
func TestConformanceOddNames(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, d database, server *containers.Server) {
		odd := target(t, d, server)
		odd.Short = true
		odd.Place = func(ctx context.Context, own *conformance.Target, suffix string) (func(context.Context) error, error) {
			own.Schema, own.Prefix = `Odd "x]" `+suffix, "order"
			f := &fixture{dsn: d.dsn, tables: dialect.Tables{Schema: own.Schema}}
			remove := func(context.Context) error {
				db, err := sqlserver.Open(d.dsn)
				if err != nil {
					return err
				}
				defer func() { _ = db.Close() }()
				f.db = db
				return f.drop()
			}
			return remove, run(ctx, d.dsn, "CREATE SCHEMA "+quote(own.Schema))
		}
		conformance.Run(t, odd)
	})
}

// TestConformanceOddSessions runs the suite with sessions that are set as unfavourably
// as can be: READPAST is refused at SNAPSHOT, NOCOUNT takes the counts away, XACT_ABORT
// undoes a transaction at any error.
func TestConformanceOddSessions(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, d database, server *containers.Server) {
		for name, settings := range map[string]string{
			"Snapshot":     "SET TRANSACTION ISOLATION LEVEL SNAPSHOT; SET NOCOUNT ON; SET XACT_ABORT ON; SET LANGUAGE French; SET DATEFORMAT ydm",
			"Serializable": "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; SET XACT_ABORT OFF; SET QUOTED_IDENTIFIER OFF; SET ARITHABORT OFF; SET DATEFIRST 3",
		} {
			t.Run(name, func(t *testing.T) {
				odd := target(t, d, server)
				odd.Short = true
				odd.Source = "" // child processes would open it otherwise
				odd.Network = nil
				odd.As = nil
				odd.Open = func(context.Context) (*sql.DB, error) {
					connector, err := mssql.NewConnector(d.dsn)
					if err != nil {
						return nil, err
					}
					connector.SessionInitSQL = settings
					return sql.OpenDB(connector), nil
				}
				conformance.Run(t, odd)
			})
		}
	})
}

func target(t *testing.T, d database, server *containers.Server) conformance.Target {
	t.Helper()
	u, err := url.Parse(d.dsn)
	if err != nil {
		t.Fatal("the server's DSN is no URL") // which may hold a password
	}
	// The certificate names the host, which an address in between is not.
	through := func(addr string) string {
		other := *u
		other.Host = addr
		return other.String()
	}
	target := conformance.Target{
		Dialect: sqlserver.New(),
		Open:    func(context.Context) (*sql.DB, error) { return sqlserver.Open(d.dsn) },
		As:      as(t, d),
		Source:  d.dsn,
		Network: &conformance.Network{
			Address: net.JoinHostPort(u.Hostname(), port(u)),
			Open:    func(_ context.Context, addr string) (*sql.DB, error) { return sqlserver.Open(through(addr)) },
			Source:  through,
		},
	}
	// A session has no time zone of its own; the driver's is what there is.
	for _, zone := range []string{"UTC", "Europe/Berlin", "America/New_York", "Asia/Tokyo"} {
		target.Zones = append(target.Zones, func(context.Context) (*sql.DB, error) {
			return sqlserver.Open(with(d.dsn, "timezone", zone))
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
	return "1433"
}

// reopen opens the server in a child process of the suite.
func reopen(dsn string) (dialect.Dialect, *sql.DB, error) {
	db, err := sqlserver.Open(dsn)
	return sqlserver.New(), db, err
}
