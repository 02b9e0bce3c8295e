package postgres_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/postgres"
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
			store, err := postgres.New().Bind(tables)
			if err != nil {
				t.Fatal(err)
			}
			got := postgres.Rendered(store)
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
				t.Errorf("%s differs: look at the change and run go test ./postgres -update", path)
			}
		})
	}
}

// TestNames runs everything under names that need quoting, that look like
// placeholders, and that are as long as they may be.
func TestNames(t *testing.T) {
	for _, server := range containers.Servers(t, "postgres") {
		for name, tables := range map[string]dialect.Tables{
			"Quoted":       {Schema: `Odd "x" `, Prefix: "order"},
			"Placeholders": {Schema: "{ready} $1 ?", Prefix: "{filter} %d :a @b --"},
			"Apostrophe":   {Schema: `o'ne \`, Prefix: `'"; DROP`},
			"Longest":      {Schema: strings.Repeat("ß", 31), Prefix: strings.Repeat("ü", 21) + "x"},
		} {
			t.Run(server.Version+"/"+name, func(t *testing.T) {
				f := unmigrated(t, server.DSN)
				tables.Lanes = lanes
				tables.Schema += random()[:max(0, min(12, 63-len(tables.Schema)))]
				f.tables = tables
				f.bind()
				f.migrate()
				f.everything()
			})
		}
	}
}

// TestSearchPath runs everything without a schema, which then is the
// session's.
func TestSearchPath(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		g := &fixture{TB: t, dsn: with(f.dsn, "search_path", f.tables.Schema), tables: dialect.Tables{Prefix: "other", Lanes: lanes}}
		g.db = g.open(g.dsn)
		g.bind()
		g.migrate()
		g.everything()
	})
}

// TestBindRefuses names that the server would cut short or cannot hold.
func TestBindRefuses(t *testing.T) {
	for name, tables := range map[string]dialect.Tables{
		"Empty":     {Lanes: 1},
		"Long":      {Prefix: strings.Repeat("x", 44), Lanes: 1},
		"LongBytes": {Prefix: strings.Repeat("ü", 22), Lanes: 1},
		"Schema":    {Schema: strings.Repeat("x", 64), Prefix: "x", Lanes: 1},
		"NUL":       {Schema: "a\x00b", Prefix: "x", Lanes: 1},
		"NoLanes":   {Prefix: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := postgres.New().Bind(tables); err == nil {
				t.Fatalf("%+v were bound", tables)
			}
		})
	}
}

// TestLongestSuffix checks that no name of the schema is longer than what Bind
// reckons with.
func TestLongestSuffix(t *testing.T) {
	store, err := postgres.New().Bind(dialect.Tables{Prefix: strings.Repeat("x", 43), Lanes: 1})
	if err != nil {
		t.Fatal(err)
	}
	longest := 0
	for _, step := range store.Steps() {
		for i, name := range strings.Split(step.SQL, `"`) {
			if i%2 == 1 && strings.HasPrefix(name, "xxx") {
				longest = max(longest, len(name))
			}
		}
	}
	if longest != 63 {
		t.Errorf("the longest name has %d bytes, not 63", longest)
	}
}
