package endtoend

import (
	"context"
	"crypto/rand"
	"database/sql"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/mysql"
	"github.com/outbox-suite/outbox/postgres"
	"github.com/outbox-suite/outbox/sqlite"
)

// engine is one that the suite runs on.
type engine struct {
	name    string
	dialect func() dialect.Dialect
	open    func(dsn string) (*sql.DB, error)
	// drop removes a database; empty for an engine whose databases are files.
	drop string
}

var engines = []engine{
	{"postgres", postgres.New, postgres.Open, "DROP DATABASE %s WITH (FORCE)"},
	{"mysql", mysql.New, mysql.Open, "DROP DATABASE %s"},
	{"mariadb", mysql.New, mysql.Open, "DROP DATABASE %s"},
	{"sqlite", func() dialect.Dialect { return sqlite.New() }, sqlite.Open, ""},
}

func engineNamed(name string) engine {
	for _, e := range engines {
		if e.name == name {
			return e
		}
	}
	panic("there is no engine " + name)
}

// databases returns the DSNs of two empty databases, the shop's and the consumer's,
// and the server that holds them, or nil if there is none that can be restarted.
func (e engine) databases(t *testing.T) (shop, billing string, server *containers.Server) {
	t.Helper()
	if e.drop == "" {
		folder := t.TempDir()
		return filepath.Join(folder, "shop.db"), filepath.Join(folder, "billing.db"), nil
	}
	// The newest that can be restarted, or else the newest.
	all := containers.Servers(t, e.name)
	chosen := all[len(all)-1]
	for _, s := range all {
		if s.CanRestart() {
			chosen = s
		}
	}
	t.Logf("on %v", chosen)
	db, err := e.open(chosen.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	create := func(what string) string {
		name := "e2e_" + what + "_" + strings.ToLower(rand.Text()[:8])
		if _, err := db.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if _, err := db.ExecContext(context.Background(), strings.Replace(e.drop, "%s", name, 1)); err != nil {
				t.Error(err)
			}
		})
		u, err := url.Parse(chosen.DSN)
		if err != nil {
			t.Fatal("the server's DSN is no URL") // the error may show the password
		}
		u.Path = "/" + name
		return u.String()
	}
	shop, billing = create("shop"), create("billing")
	if !chosen.CanRestart() {
		return shop, billing, nil
	}
	return shop, billing, chosen
}
