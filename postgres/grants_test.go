package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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

// TestRolesMayNothingElse tries every kind of statement on every table as each role, and
// compares what is let through with what the role is for.
func TestRolesMayNothingElse(t *testing.T) {
	want := map[conformance.Role]string{
		conformance.Producer: "lane SELECT, meta SELECT, parked INSERT, ready INSERT, revision SELECT INSERT UPDATE",
		conformance.Relay: "done SELECT INSERT UPDATE(reason) DELETE, lane SELECT UPDATE, meta SELECT UPDATE(purge_at), " +
			"parked SELECT INSERT UPDATE DELETE, ready SELECT INSERT DELETE",
		conformance.Operator: "audit SELECT INSERT, done SELECT INSERT UPDATE(reason) DELETE, lane SELECT UPDATE(owner), meta SELECT, " +
			"parked SELECT UPDATE DELETE, ready SELECT INSERT",
		conformance.Consumer: "inbox SELECT INSERT UPDATE(recorded_at) DELETE, progress SELECT INSERT UPDATE",
	}
	for _, server := range containers.Servers(t, "postgres") {
		t.Run(server.Version, func(t *testing.T) {
			f := unmigrated(t, server.DSN)
			f.migrate()
			open := as(t, server)
			tables := f.list(`SELECT relname FROM pg_class WHERE relnamespace = $1::regnamespace AND relkind IN ('r', 'p') ORDER BY 1`, quote(f.tables.Schema))
			for role := range want {
				db, err := open(t.Context(), f.tables, role)
				f.ok(err)
				defer db.Close()
				if role == conformance.Producer {
					if _, err := f.store.Purge(t.Context(), db, time.Hour, 1); err == nil || !strings.Contains(err.Error(), "`outbox schema --grants`") {
						t.Errorf("a purge as %s: %v", role, err)
					}
				}
				may := func(statement string) bool {
					tx, err := db.BeginTx(t.Context(), nil)
					f.ok(err)
					defer tx.Rollback()
					_, err = tx.ExecContext(t.Context(), statement)
					var denied *pgconn.PgError
					return !errors.As(err, &denied) || denied.Code != "42501"
				}
				var got []string
				for _, name := range tables {
					table := quote(f.tables.Schema) + "." + quote(name)
					var kinds []string
					for _, s := range [][2]string{
						{"SELECT", "SELECT 1 FROM " + table + " WHERE false"},
						{"INSERT", "INSERT INTO " + table + " DEFAULT VALUES"},
						{"UPDATE", ""},
						{"DELETE", "DELETE FROM " + table + " WHERE false"},
						{"TRUNCATE", "TRUNCATE " + table},
						{"ALTER", "ALTER TABLE " + table + " ADD extra integer"},
						{"DROP", "DROP TABLE " + table},
						{"INDEX", "CREATE INDEX extra ON " + table + " ((1))"},
						{"TRIGGER", "CREATE TRIGGER extra BEFORE INSERT ON " + table + " EXECUTE FUNCTION suppress_redundant_updates_trigger()"},
					} {
						if s[0] != "UPDATE" {
							if may(s[1]) {
								kinds = append(kinds, s[0])
							}
							continue
						}
						columns := f.list(`SELECT attname FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped`, table)
						var some []string
						for _, column := range columns {
							if may("UPDATE " + table + " SET " + quote(column) + " = DEFAULT WHERE false") {
								some = append(some, column)
							}
						}
						switch {
						case len(some) == len(columns):
							kinds = append(kinds, "UPDATE")
						case len(some) > 0:
							kinds = append(kinds, "UPDATE("+strings.Join(some, " ")+")")
						}
					}
					if kinds != nil {
						name = strings.TrimPrefix(strings.TrimPrefix(name, f.tables.Prefix), "_")
						if name == "" {
							name = "ready"
						}
						got = append(got, name+" "+strings.Join(kinds, " "))
					}
				}
				if may("CREATE TABLE " + quote(f.tables.Schema) + ".extra ()") {
					got = append(got, "CREATE")
				}
				slices.Sort(got)
				f.is(string(role), strings.Join(got, ", "), want[role])
			}
		})
	}
}
