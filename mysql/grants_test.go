package mysql_test

import (
	"context"
	"database/sql"
	"strings"
	"sync"
	"testing"

	"github.com/outbox-suite/outbox/conformance"
	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/mysql"
)

// as gives the suite users with the privileges of schema/grants.sql and no others. The
// script's roles are users here, one for each set of roles that a scenario asks for.
func as(t *testing.T, server *containers.Server) func(context.Context, dialect.Tables, ...conformance.Role) (*sql.DB, error) {
	t.Helper()
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
		user := "t" + password
		for _, role := range roles {
			user += string(role)[:1]
		}
		if !users[user] {
			if err := run(ctx, server.DSN, "CREATE USER "+user+" IDENTIFIED BY '"+password+"'"); err != nil {
				return nil, err
			}
			users[user] = true
		}
		for grant := range strings.SplitSeq(grantsOf(tables), ";\n") {
			for _, role := range roles {
				if before, found := strings.CutSuffix(grant, " TO outbox_"+string(role)); found {
					if err := run(ctx, server.DSN, before+" TO "+user); err != nil {
						return nil, err
					}
				}
			}
		}
		// A database that the user may do nothing in cannot be selected.
		return mysql.Open(withUser(server.DSN, user, password, tables.Schema))
	}
}

func grantsOf(tables dialect.Tables) string {
	store, err := mysql.New().Bind(tables)
	if err != nil {
		panic(err) // the suite has bound them
	}
	return store.(dialect.Granter).Grants() //nolint:forcetypeassert // the engine has users
}
