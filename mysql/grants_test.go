package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"

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
			f.is(string(role), fmt.Sprint(found.Version, found.Lanes, found.Problems), "3 4 []")
		}
	})
}

// TestRolesMayNothingElse tries every kind of statement on every table as each role, and
// compares what is let through with what the role is for.
func TestRolesMayNothingElse(t *testing.T) {
	want := map[conformance.Role]string{
		conformance.Producer: "lane SELECT, meta SELECT, parked INSERT, ready INSERT, revision SELECT INSERT UPDATE",
		conformance.Relay: "done SELECT INSERT DELETE, lane SELECT UPDATE, meta SELECT UPDATE(purge_at), " +
			"parked SELECT INSERT UPDATE DELETE, ready SELECT INSERT DELETE",
		conformance.Operator: "audit SELECT INSERT, done SELECT INSERT DELETE, lane SELECT UPDATE(owner), meta SELECT, " +
			"parked SELECT UPDATE DELETE, ready SELECT INSERT",
		conformance.Consumer: "inbox SELECT INSERT DELETE, progress SELECT INSERT UPDATE",
	}
	onEachServer(t, func(t *testing.T, server *containers.Server) {
		f := unmigrated(t, server.DSN)
		f.migrate()
		open := as(t, server, func(dsn string) string { return dsn })
		tables := f.list(`SELECT table_name FROM information_schema.tables WHERE table_schema = ? ORDER BY 1`, f.tables.Schema)
		for role := range want {
			db, err := open(t.Context(), f.tables, role)
			f.ok(err)
			defer db.Close()
			if role == conformance.Producer {
				if _, err := f.store.Purge(t.Context(), db, time.Hour, 1); err == nil || !strings.Contains(err.Error(), "`outbox schema --grants`") {
					t.Errorf("a purge as %s: %v", role, err)
				}
			}
			// What changes the schema commits, so it must be refused.
			may := func(statement string) bool {
				tx, err := db.BeginTx(t.Context(), nil)
				f.ok(err)
				defer tx.Rollback()
				_, err = tx.ExecContext(t.Context(), statement)
				// On the table, on a column, and for a trigger where there is a binlog.
				var denied *driver.MySQLError
				return !errors.As(err, &denied) || !slices.Contains([]uint16{1142, 1143, 1419}, denied.Number)
			}
			var got []string
			for _, name := range tables {
				table := quote(f.tables.Schema) + "." + quote(name)
				var kinds []string
				for _, s := range [][2]string{
					{"SELECT", "SELECT 1 FROM " + table + " WHERE 1 = 0"},
					{"INSERT", "INSERT INTO " + table + " () VALUES ()"},
					{"UPDATE", ""},
					{"DELETE", "DELETE FROM " + table + " WHERE 1 = 0"},
					{"TRUNCATE", "TRUNCATE " + table},
					{"ALTER", "ALTER TABLE " + table + " ADD extra integer"},
					{"DROP", "DROP TABLE " + table},
					{"INDEX", "CREATE INDEX extra ON " + table + " (lane)"},
					{"TRIGGER", "CREATE TRIGGER " + quote(f.tables.Schema) + ".extra BEFORE INSERT ON " + table + " FOR EACH ROW SET @x = 1"},
				} {
					if s[0] != "UPDATE" {
						if may(s[1]) {
							kinds = append(kinds, s[0])
						}
						continue
					}
					columns := f.list(`SELECT column_name FROM information_schema.columns WHERE table_schema = ? AND table_name = ? AND extra NOT LIKE '%GENERATED'`, f.tables.Schema, name)
					var some []string
					for _, column := range columns {
						if may("UPDATE " + table + " SET " + quote(column) + " = DEFAULT WHERE 1 = 0") {
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
			if may("CREATE TABLE " + quote(f.tables.Schema) + ".extra (x integer)") {
				got = append(got, "CREATE")
			}
			slices.Sort(got)
			f.is(string(role), strings.Join(got, ", "), want[role])
		}
	})
}
