package mysql_test

import (
	"flag"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/mysql"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestStatements compares every statement with the golden files, once with
// the usual names and once with names that need quoting.
func TestStatements(t *testing.T) {
	for file, tables := range map[string]dialect.Tables{
		"default.sql": {Prefix: "outbox", Lanes: 16},
		"odd.sql":     {Schema: `Odd "x"`, Prefix: "order", Lanes: 3},
	} {
		t.Run(file, func(t *testing.T) {
			store, err := mysql.New().Bind(tables)
			if err != nil {
				t.Fatal(err)
			}
			got := mysql.Rendered(store)
			path := filepath.Join("testdata", file)
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("%s differs: look at the change and run go test ./mysql -update", path)
			}
		})
	}
}

// TestNames runs everything under names that need quoting, that look like
// placeholders, and that are as long as they may be.
func TestNames(t *testing.T) {
	onEachServer(t, func(t *testing.T, server *containers.Server) {
		for name, tables := range map[string]dialect.Tables{
			"Quoted":       {Schema: `Odd "x" `, Prefix: "order"},
			"Backquoted":   {Schema: "a`b ", Prefix: "`;\n--`"},
			"Placeholders": {Schema: "{ready} $1 ?", Prefix: "{filter} {key} %d ? --"},
			"Apostrophe":   {Schema: `o'ne \ `, Prefix: `'"; DROP`},
			"Longest":      {Schema: strings.Repeat("ß", 26), Prefix: strings.Repeat("ü", 22)},
		} {
			t.Run(name, func(t *testing.T) {
				f := unmigrated(t, server.DSN)
				tables.Lanes = lanes
				tables.Schema += random()
				f.tables = tables
				f.bind()
				f.migrate()
				f.everything()
			})
		}
	})
}

// TestSessionDatabase runs everything without a schema, which then is the session's
// database, and refuses a session that has none.
func TestSessionDatabase(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		g := &fixture{TB: t, dsn: database(f.dsn, f.tables.Schema), tables: dialect.Tables{Prefix: "other", Lanes: lanes}}
		g.db, g.plain = g.open(g.dsn), g.open(g.dsn)
		g.bind()
		g.migrate()
		g.everything()

		h := unmigrated(t, database(f.dsn, ""))
		found, err := h.store.Inspect(t.Context(), h.db)
		h.ok(err)
		if len(found.Problems) != 1 || !strings.Contains(found.Problems[0], "no database is selected") {
			t.Errorf("problems: %q", found.Problems)
		}
		if _, err := h.store.Migrate(t.Context(), h.db); err == nil {
			t.Error("migrated without a database")
		}
	})
}

// database is the DSN with another database.
func database(dsn, name string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		panic("the server's DSN is no URL")
	}
	u.Path = "/" + name
	return u.String()
}

// TestBindRefuses names that the server would cut short or cannot hold.
func TestBindRefuses(t *testing.T) {
	for name, tables := range map[string]dialect.Tables{
		"Empty":     {Lanes: 1},
		"Long":      {Prefix: strings.Repeat("x", 45), Lanes: 1},
		"LongBytes": {Prefix: strings.Repeat("ü", 23), Lanes: 1},
		"Schema":    {Schema: strings.Repeat("x", 65), Prefix: "x", Lanes: 1},
		"Space":     {Prefix: "x ", Lanes: 1},
		"Plane":     {Prefix: "x😀", Lanes: 1},
		"NotUTF8":   {Schema: "\xff", Prefix: "x", Lanes: 1},
		"NUL":       {Schema: "a\x00b", Prefix: "x", Lanes: 1},
		"NoLanes":   {Prefix: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := mysql.New().Bind(tables); err == nil {
				t.Fatalf("%+v were bound", tables)
			}
		})
	}
}

// TestLongestSuffix checks that no name of the schema is longer than what Bind
// reckons with.
func TestLongestSuffix(t *testing.T) {
	store, err := mysql.New().Bind(dialect.Tables{Prefix: strings.Repeat("x", 44), Lanes: 1})
	if err != nil {
		t.Fatal(err)
	}
	longest := 0
	for _, step := range store.Steps() {
		for i, name := range strings.Split(step.SQL, "`") {
			if i%2 == 1 && strings.HasPrefix(name, "xxx") {
				longest = max(longest, len(name))
			}
		}
	}
	if longest != 64 {
		t.Errorf("the longest name has %d bytes, not 64", longest)
	}
}
