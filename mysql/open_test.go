package mysql_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/mysql"
)

// TestOpenErrors shows no part of the password, whatever is wrong with the DSN.
func TestOpenErrors(t *testing.T) {
	for _, dsn := range []string{
		"mysql://me:s3cret@host:port/db",
		"mysql://me:s3cret%zz@host/db",
		"mysql://me:s3cret/more@host:x/db",
		"mysql://me:s3cret@host/db?tls=nowhere",
		"mysql://me:s3cret@host/db?loc=s3cret",
		"mysql://me:s3cret@host/db?parseTime=s3cret",
		"mysql://me:s3cret@host/db?timeout=s3cret;x=%zz",
		"mysql:me:s3cret@host/db",
		"mariadb://me:s3cret@host/db#s3cret?x=y",
		"me:s3cret@tcp(host:3306/db",
		"me:s3cret@tcp(host:3306)db",
		"me:s3cret@/db?parseTime=s3cret",
		"me:s3cret@/db?collation=%zz",
		"s3cret",
	} {
		db, err := mysql.Open(dsn)
		if err == nil {
			_ = db.Close()
			t.Errorf("%q was opened", dsn)
			continue
		}
		for e := err; e != nil; e = errors.Unwrap(e) {
			if strings.Contains(fmt.Sprintf("%v %+v", e, e), "s3cret") {
				t.Errorf("the error for %q shows it: %+v", dsn, e)
			}
		}
	}
}

// TestOpenForms opens both forms, with a password and a database that each can hold.
func TestOpenForms(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		user, host, password := "u"+random(), "%", `p@:/?#[]%'"\ ä(`
		f.exec("CREATE USER " + user + "@'" + host + `' IDENTIFIED BY '` + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(password) + "'")
		t.Cleanup(func() {
			_, _ = f.plain.ExecContext(context.WithoutCancel(f.Context()), "DROP USER "+user+"@'"+host+"'")
		})
		f.exec("GRANT ALL ON {schema}.* TO " + user + "@'" + host + "'")
		address := address(f.dsn)
		for name, dsn := range map[string]string{
			"URL":    withUser(f.dsn, user, password, f.tables.Schema),
			"Native": user + ":" + password + "@tcp(" + address + ")/" + f.tables.Schema + "?parseTime=true",
			"Scheme": strings.Replace(withUser(f.dsn, user, password, f.tables.Schema), "mysql://", "MariaDB://", 1),
		} {
			t.Run(name, func(t *testing.T) {
				f := f.in(t)
				var current, who string
				f.ok(f.open(dsn).QueryRowContext(f.Context(), `SELECT DATABASE(), USER()`).Scan(&current, &who))
				f.is("database", current, f.tables.Schema)
				if !strings.HasPrefix(who, user+"@") {
					t.Errorf("user is %s", who)
				}
			})
		}
	})
}

// TestOpenSettings sets what the DSN leaves open, and nothing else.
func TestOpenSettings(t *testing.T) {
	onEachServer(t, func(t *testing.T, server *containers.Server) {
		f := unmigrated(t, server.DSN)
		for option, preset := range map[string]int{"innodb_lock_wait_timeout": 10, "wait_timeout": 30} {
			for dsn, want := range map[string]int{f.dsn: preset, with(f.dsn, option, "33"): 33} {
				var seconds int
				f.ok(f.open(dsn).QueryRowContext(f.Context(), `SELECT @@`+option).Scan(&seconds))
				f.is(option, seconds, want)
			}
		}
	})
}

// TestSilentSessionIsEnded has a session that says nothing more lock a row.
func TestSilentSessionIsEnded(t *testing.T) {
	onEachServer(t, func(t *testing.T, server *containers.Server) {
		f := unmigrated(t, server.DSN)
		f.migrate()
		tx, err := f.open(with(f.dsn, "wait_timeout", "1")).BeginTx(f.Context(), nil)
		f.ok(err)
		defer func() { _ = tx.Rollback() }()
		_, err = tx.ExecContext(f.Context(), f.sql(`UPDATE {lane} SET epoch = 7`))
		f.ok(err)
		_, err = f.open(with(f.dsn, "innodb_lock_wait_timeout", "60")).ExecContext(f.Context(), f.sql(`UPDATE {lane} SET epoch = epoch + 1`))
		f.ok(err)
		f.is("what the silent session wrote", f.count(`SELECT COUNT(*) FROM {lane} WHERE epoch > 6`), int64(0))
	})
}
