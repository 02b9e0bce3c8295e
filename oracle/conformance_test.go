package oracle_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"

	driverpkg "github.com/sijms/go-ora/v2"

	"github.com/outbox-suite/outbox/conformance"
	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/oracle"
)

func TestConformance(t *testing.T) {
	onEachServer(t, func(t *testing.T, server *containers.Server) {
		conformance.Run(t, target(t, server))
	})
}

// TestConformanceOddNames runs the suite where every name must be quoted. A double quote,
// as the other engines' odd names have, cannot be in one here.
func TestConformanceOddNames(t *testing.T) {
	onEachServer(t, func(t *testing.T, server *containers.Server) {
		odd := target(t, server)
		odd.Short = true
		odd.Place = place(server, "Odd x ", "order")
		conformance.Run(t, odd)
	})
}

// place gives each scenario a schema of its own, named after its suffix.
func place(server *containers.Server, schema, prefix string) func(context.Context, *conformance.Target, string) (func(context.Context) error, error) {
	return func(ctx context.Context, own *conformance.Target, suffix string) (func(context.Context) error, error) {
		own.Schema, own.Prefix = schema+suffix, prefix
		admin, err := oracle.Open(server.DSN)
		if err != nil {
			return nil, err
		}
		if err := makeUser(ctx, admin, quote(own.Schema), random()); err != nil {
			return nil, errors.Join(err, admin.Close())
		}
		return func(ctx context.Context) error {
			return errors.Join(dropUser(ctx, admin, quote(own.Schema)), admin.Close())
		}, nil
	}
}

// oddSession is a session that is set as unfavourably as can be: text compares regardless
// of case, a transaction keeps its first snapshot, and neither times nor numbers look as
// usual.
var oddSession = []string{
	"NLS_COMP = LINGUISTIC", "NLS_SORT = BINARY_CI", "ISOLATION_LEVEL = SERIALIZABLE", "TIME_ZONE = '+05:30'",
	"NLS_NUMERIC_CHARACTERS = ',.'", "NLS_TERRITORY = GERMANY", "NLS_DATE_FORMAT = 'DD-MON-RR'",
}

// TestConformanceOddOptions runs the suite with such sessions.
func TestConformanceOddOptions(t *testing.T) {
	onEachServer(t, func(t *testing.T, server *containers.Server) {
		odd := target(t, server)
		odd.Short = true
		odd.Open = func(context.Context) (*sql.DB, error) { return openAltered(server.DSN, oddSession...) }
		// What goes another way has usual sessions.
		odd.As, odd.Network = nil, nil
		conformance.Run(t, odd)
	})
}

// altered connects and alters each session.
type altered struct {
	driver.Connector
	settings []string
}

func openAltered(dsn string, settings ...string) (*sql.DB, error) {
	full, err := oracle.Complete(dsn)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(altered{driverpkg.NewConnector(full), settings}), nil
}

// Connect implements [driver.Connector].
func (a altered) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := a.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	for _, setting := range a.settings {
		if _, err := conn.(driver.ExecerContext).ExecContext(ctx, "ALTER SESSION SET "+setting, nil); err != nil { //nolint:forcetypeassert // the driver's
			_ = conn.Close()
			return nil, err
		}
	}
	return conn, nil
}

func target(t *testing.T, server *containers.Server) conformance.Target {
	t.Helper()
	dsn := server.DSN
	u := parsed(dsn)
	through := func(addr string) string {
		other := *u
		other.Host = addr
		return other.String()
	}
	target := conformance.Target{
		Dialect: oracle.New(),
		Open:    func(context.Context) (*sql.DB, error) { return oracle.Open(dsn) },
		As:      as(t, server),
		Place:   place(server, "conformance_", "outbox"),
		Source:  dsn,
		Network: &conformance.Network{
			Address: net.JoinHostPort(u.Hostname(), port(u)),
			Open:    func(_ context.Context, addr string) (*sql.DB, error) { return oracle.Open(through(addr)) },
			Source:  through,
		},
	}
	for _, zone := range []string{"'+00:00'", "'Europe/Berlin'", "'America/New_York'", "'Asia/Tokyo'"} {
		target.Zones = append(target.Zones, func(context.Context) (*sql.DB, error) {
			return openAltered(dsn, "TIME_ZONE = "+zone)
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
	return "1521"
}

// reopen opens the server in a child process of the suite.
func reopen(dsn string) (dialect.Dialect, *sql.DB, error) {
	db, err := oracle.Open(dsn)
	return oracle.New(), db, err
}

// as gives the suite users with the privileges of schema/grants.sql and no others. The
// script's roles are users here, one for each set of roles that a scenario asks for.
func as(t *testing.T, server *containers.Server) func(context.Context, dialect.Tables, ...conformance.Role) (*sql.DB, error) {
	t.Helper()
	password := "p" + random()
	var one sync.Mutex
	users := make(map[string]bool)
	run := func(ctx context.Context, text string) error {
		db, err := oracle.Open(server.DSN)
		if err != nil {
			return err
		}
		defer func() { _ = db.Close() }()
		_, err = db.ExecContext(ctx, text)
		return err
	}
	t.Cleanup(func() {
		db, err := oracle.Open(server.DSN)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = db.Close() }()
		for user := range users {
			if err := dropUser(context.Background(), db, user); err != nil {
				t.Error(err)
			}
		}
	})
	return func(ctx context.Context, tables dialect.Tables, roles ...conformance.Role) (*sql.DB, error) {
		one.Lock()
		defer one.Unlock()
		user := "T" + password
		for _, role := range roles {
			user += string(role)[:1]
		}
		user = strings.ToUpper(user)
		if !users[user] {
			if err := run(ctx, "CREATE USER "+user+` IDENTIFIED BY "`+password+`"`); err != nil {
				return nil, err
			}
			users[user] = true
			if err := run(ctx, "GRANT CREATE SESSION TO "+user); err != nil {
				return nil, err
			}
		}
		for grant := range strings.SplitSeq(grantsOf(tables), ";\n") {
			grant = grant[max(0, strings.Index(grant, "GRANT ")):]
			for _, role := range roles {
				if before, found := strings.CutSuffix(grant, " TO outbox_"+string(role)); found {
					if err := run(ctx, before+" TO "+user); err != nil {
						return nil, err
					}
				}
			}
		}
		return oracle.Open(withUser(server.DSN, user, password))
	}
}

func grantsOf(tables dialect.Tables) string {
	store, err := oracle.New().Bind(tables)
	if err != nil {
		panic(err) // the suite has bound them
	}
	return store.(dialect.Granter).Grants() //nolint:forcetypeassert // the engine has users
}
