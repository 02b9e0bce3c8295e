package sqlserver_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/sqlserver"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestStatements compares every statement with the golden files.
func TestStatements(t *testing.T) {
	for file, tables := range map[string]dialect.Tables{
		"default.sql":  {Prefix: "outbox", Lanes: 16},
		"odd.sql":      {Schema: `Odd "x"`, Prefix: "order", Lanes: 3},
		"brackets.sql": {Schema: `a]b[`, Prefix: `]]; -- '`, Lanes: 3},
	} {
		t.Run(file, func(t *testing.T) {
			store, err := sqlserver.New().Bind(tables)
			if err != nil {
				t.Fatal(err)
			}
			got := sqlserver.Rendered(store)
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
				t.Errorf("%s differs: look at the change and run go test ./sqlserver -update", path)
			}
		})
	}
}
