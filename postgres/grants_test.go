package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-suite/outbox/conformance"
	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/postgres"
)

// as gives the suite users with the privileges of schema/grants.sql and no others.
func as(t *testing.T, server *containers.Server) func(context.Context, dialect.Tables, ...conformance.Role) (*sql.DB, error) {
	t.Helper()
	u, err := url.Parse(server.DSN)
	if err != nil {
		t.Fatal("the server's DSN is no URL") // which may hold a password
	}
	password := random()
	for _, role := range []conformance.Role{conformance.Producer, conformance.Relay, conformance.Operator, conformance.Consumer} {
		var known *pgconn.PgError
		err := run(t.Context(), server.DSN, "CREATE ROLE outbox_"+string(role)+" NOLOGIN")
		if err != nil && (!errors.As(err, &known) || known.Code != "42710") {
			t.Fatal(err)
		}
	}
	var one sync.Mutex // to make a user, and to grant, which two may not do at once
	users := make(map[string]bool)
	t.Cleanup(func() {
		for user := range users {
			if err := run(context.WithoutCancel(t.Context()), server.DSN, "DROP ROLE "+user); err != nil {
				t.Error(err)
			}
		}
	})
	return func(ctx context.Context, tables dialect.Tables, roles ...conformance.Role) (*sql.DB, error) {
		one.Lock()
		defer one.Unlock()
		user, member := "outbox_test_"+password, []string(nil)
		for _, role := range roles {
			user += "_" + string(role)
			member = append(member, "outbox_"+string(role))
		}
		if !users[user] {
			if err := run(ctx, server.DSN, "CREATE ROLE "+user+" LOGIN PASSWORD '"+password+"' IN ROLE "+strings.Join(member, ", ")); err != nil {
				return nil, err
			}
			users[user] = true
		}
		if err := run(ctx, server.DSN, grantsOf(tables)); err != nil {
			return nil, err
		}
		own := *u
		own.User = url.UserPassword(user, password)
		return postgres.Open(own.String())
	}
}

func grantsOf(tables dialect.Tables) string {
	store, err := postgres.New().Bind(tables)
	if err != nil {
		panic(err) // the suite has bound them
	}
	return store.(dialect.Granter).Grants() //nolint:forcetypeassert // the engine has users
}
