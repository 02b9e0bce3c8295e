package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/outbox-suite/outbox/conformance"
	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/mysql"
)

// as gives the suite users with the privileges of schema/grants.sql and no others.
// They have them themselves: MariaDB has only one role active at log-in.
func as(t *testing.T, server *containers.Server, options func(dsn string) string) func(context.Context, dialect.Tables, ...conformance.Role) (*sql.DB, error) {
	t.Helper()
	u, err := url.Parse(server.DSN)
	if err != nil {
		t.Fatal("the server's DSN is no URL") // which may hold a password
	}
	password := random()
	var one sync.Mutex
	users := make(map[string]bool)
	t.Cleanup(func() {
		for user := range users {
			if err := run(context.WithoutCancel(t.Context()), server.DSN, "DROP USER "+user); err != nil {
				t.Error(err)
			}
		}
	})
	return func(ctx context.Context, tables dialect.Tables, roles ...conformance.Role) (*sql.DB, error) {
		one.Lock()
		defer one.Unlock()
		// A name has at most 32 characters.
		user := "o_" + password
		for _, role := range roles {
			user += "_" + string(role[:3])
		}
		if !users[user] {
			if err := run(ctx, server.DSN, "CREATE USER "+user+" IDENTIFIED BY '"+password+"'"); err != nil {
				return nil, err
			}
			users[user] = true
		}
		if err := grant(ctx, server.DSN, tables, user, roles); err != nil {
			return nil, err
		}
		own := *u
		own.User = url.UserPassword(user, password)
		if tables.Schema != "" {
			own.Path = "/" + tables.Schema
		}
		return mysql.Open(options(own.String()))
	}
}

// grant gives a user what roles have.
func grant(ctx context.Context, dsn string, tables dialect.Tables, user string, roles []conformance.Role) (err error) {
	db, err := mysql.Open(dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	store, err := mysql.New().Bind(tables)
	if err != nil {
		return err
	}
	for statement := range strings.SplitSeq(store.(dialect.Granter).Grants(), ";\n") { //nolint:forcetypeassert // the engine has users
		for _, role := range roles {
			if text, ok := strings.CutSuffix(statement, " TO outbox_"+string(role)); ok {
				if _, err := db.ExecContext(ctx, text+" TO "+user); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// TestGrants has each role see what it needs of the schema, and the relay look for a
// floor.
func TestGrants(t *testing.T) {
	onEachServer(t, func(t *testing.T, server *containers.Server) {
		f := unmigrated(t, server.DSN)
		f.migrate()
		open := as(t, server, func(dsn string) string { return dsn })
		for _, role := range []conformance.Role{conformance.Producer, conformance.Relay, conformance.Operator, conformance.Consumer} {
			db, err := open(t.Context(), f.tables, role)
			f.ok(err)
			defer func() { _ = db.Close() }()
			if role == conformance.Relay {
				_, err := f.store.(dialect.Sweeper).Horizon(t.Context(), db, 0)
				f.ok(err)
			}
			if role == conformance.Consumer {
				continue // has nothing but the inbox
			}
			found, err := f.store.Inspect(t.Context(), db)
			f.ok(err)
			f.is(string(role), fmt.Sprint(found.Version, found.Lanes, found.Problems), "1 4 []")
		}
	})
}
