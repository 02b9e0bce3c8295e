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
		for option, want := range map[string]int{"": 10, "33": 33} {
			dsn := f.dsn
			if option != "" {
				dsn = with(dsn, "innodb_lock_wait_timeout", option)
			}
			var seconds int
			f.ok(f.open(dsn).QueryRowContext(f.Context(), `SELECT @@innodb_lock_wait_timeout`).Scan(&seconds))
			f.is("lock wait timeout", seconds, want)
		}
	})
}
