package sqlserver_test

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/outbox-suite/outbox/conformance"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/sqlserver"
)

// TestGrants give each role something, one table a statement, and leave no placeholder.
func TestGrants(t *testing.T) {
	store, err := sqlserver.New().Bind(dialect.Tables{Schema: `Odd "x]"`, Prefix: "order", Lanes: 3})
	if err != nil {
		t.Fatal(err)
	}
	text := store.(dialect.Granter).Grants()
	roles := make(map[string]int)
	for statement := range strings.SplitSeq(comments.ReplaceAllString(text, ""), ";\n") {
		statement = strings.TrimSpace(statement)
		if statement == "" {
			continue
		}
		head, role, ok := strings.Cut(statement, " TO outbox_")
		if !ok || !strings.HasPrefix(head, "GRANT ") || strings.Count(head, ` ON OBJECT::[Odd "x]]"].[order`) != 1 {
			t.Errorf("not foreseen: %s", statement)
		}
		roles[role]++
	}
	if len(roles) != 4 || strings.ContainsAny(text, "{}") {
		t.Errorf("roles: %v in\n%s", roles, text)
	}
}

// as gives the suite users with the privileges of schema/grants.sql and no others.
func as(t *testing.T, d database) func(context.Context, dialect.Tables, ...conformance.Role) (*sql.DB, error) {
	t.Helper()
	u, err := url.Parse(d.dsn)
	if err != nil {
		t.Fatal("the server's DSN is no URL") // which may hold a password
	}
	password := "Aa1!" + random()
	var one sync.Mutex
	users := make(map[string]bool)
	t.Cleanup(func() {
		for user := range users {
			for _, statement := range []string{"DROP USER " + user, "DROP LOGIN " + user} {
				if err := run(context.WithoutCancel(t.Context()), d.dsn, statement); err != nil {
					t.Error(err)
				}
			}
		}
	})
	return func(ctx context.Context, tables dialect.Tables, roles ...conformance.Role) (*sql.DB, error) {
		one.Lock()
		defer one.Unlock()
		user := "o_" + password[4:]
		for _, role := range roles {
			user += "_" + string(role)
		}
		if !users[user] {
			for _, statement := range []string{
				"CREATE LOGIN " + user + " WITH PASSWORD = '" + password + "'",
				"CREATE USER " + user + " FOR LOGIN " + user + " WITH DEFAULT_SCHEMA = dbo",
			} {
				if err := run(ctx, d.dsn, statement); err != nil {
					return nil, err
				}
			}
			users[user] = true
		}
		if err := grant(ctx, d.dsn, tables, user, roles); err != nil {
			return nil, err
		}
		own := *u
		own.User = url.UserPassword(user, password)
		return sqlserver.Open(own.String())
	}
}

// grant gives a user what roles have.
func grant(ctx context.Context, dsn string, tables dialect.Tables, user string, roles []conformance.Role) (err error) {
	db, err := sqlserver.Open(dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	store, err := sqlserver.New().Bind(tables)
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
