// Package arrows holds the test that compares what each package imports with what
// the architecture lets it import: arrows point down only.
package arrows

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/outbox-suite/outbox"

var update = flag.Bool("update", false, "write testdata/modules.golden anew")

// A rule says what the packages of a folder and below it may import, besides the
// standard library and their own folder.
type rule struct {
	folder string   // from the root of the module; "." is the root alone
	own    []string // folders of this module, each with what is below it
	others []string // modules or packages of others, or "*" for any that linkBans allows
}

// rules are in order: the first whose folder holds a package is the package's. A
// package without a rule fails the test, so that a new folder gets its place in the
// architecture when it is made.
var rules = []rule{
	{folder: "dialect"},
	{folder: "internal/demo", own: []string{".", "dialect", "inbox"}, others: []string{"github.com/google/uuid"}},
	{folder: "internal", own: []string{"dialect"}},

	{folder: "postgres/tail", own: []string{"dialect", "internal"}, others: []string{"github.com/jackc/pgx/v5", "github.com/jackc/pglogrepl"}},
	{folder: "postgres", own: []string{"dialect", "internal"}, others: []string{"github.com/jackc/pgx/v5"}},
	{folder: "mysql", own: []string{"dialect", "internal"}, others: []string{"github.com/go-sql-driver/mysql"}},
	{folder: "sqlserver", own: []string{"dialect", "internal"}, others: []string{"github.com/microsoft/go-mssqldb"}},
	{folder: "oracle", own: []string{"dialect", "internal"}, others: []string{"github.com/sijms/go-ora/v2"}},
	{folder: "sqlite", own: []string{"dialect", "internal"}, others: []string{"modernc.org/sqlite"}},

	{folder: ".", own: []string{"dialect", "internal"}, others: []string{"github.com/google/uuid"}},
	{folder: "relay", own: []string{".", "dialect", "internal"}, others: []string{"github.com/google/uuid"}},
	{folder: "inbox", own: []string{".", "dialect", "internal"}, others: []string{"github.com/google/uuid"}},
	{folder: "outboxtest", own: []string{".", "dialect", "relay", "inbox", "sqlite", "internal"}, others: []string{"github.com/google/uuid"}},
	{folder: "publish", own: []string{".", "relay", "publish", "internal"}, others: []string{"*"}},
	{folder: "telemetry", own: []string{".", "dialect", "relay", "inbox", "internal"}, others: []string{"go.opentelemetry.io/otel"}},

	{folder: "ui", own: []string{".", "dialect", "internal"}, others: []string{"github.com/google/uuid"}},

	{folder: "conformance/containers", others: []string{"*"}},
	{
		folder: "conformance",
		own:    []string{".", "dialect", "relay", "inbox", "outboxtest", "publish/publishtest", "internal"},
		others: []string{"github.com/google/uuid"},
	},
	{folder: "cmd", own: []string{"*"}, others: []string{"*"}},
	{folder: "docs"}, // tests alone
	{folder: "examples", own: []string{"*"}, others: []string{"*"}},
	{folder: "bench", own: []string{"*"}, others: []string{"*"}},
}

// A linkBan names modules that the packages of some folders must not link, not even
// through others.
type linkBan struct {
	what    string
	modules []string
	except  []string // the folders that may link them
}

var linkBans = []linkBan{
	{
		"testcontainers",
		[]string{"github.com/testcontainers", "github.com/moby", "github.com/docker"},
		[]string{"conformance/containers"},
	},
	{
		"a telemetry SDK",
		[]string{"go.opentelemetry.io", "github.com/prometheus"},
		[]string{"telemetry", "cmd", "examples", "conformance/containers", "publish"},
	},
	{
		"a broker client",
		[]string{
			"github.com/nats-io", "github.com/twmb/franz-go", "github.com/segmentio/kafka-go", "github.com/IBM/sarama",
			"github.com/confluentinc", "github.com/rabbitmq", "github.com/redis", "github.com/gomodule/redigo",
		},
		[]string{"publish", "cmd", "examples", "telemetry"},
	},
}

// A pkg is what go list tells of a package.
type pkg struct {
	ImportPath string
	Imports    []string
	Deps       []string
	Standard   bool
	Module     *struct{ Path string }
}

// folder returns where a package of this module is, from its root.
func folder(importPath string) (string, bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

// within reports whether a path is one of the roots or below one. The root of the
// module is never above anything.
func within(p string, roots []string) bool {
	return slices.ContainsFunc(roots, func(root string) bool {
		return root == "*" || p == root || strings.HasPrefix(p, root+"/")
	})
}

// violations compares the packages of the module among all with rules and linkBans.
func violations(all []pkg) []string {
	byPath := map[string]pkg{}
	for _, p := range all {
		byPath[p.ImportPath] = p
	}
	var found []string
	report := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }

	for _, p := range all {
		at, ours := folder(p.ImportPath)
		if !ours {
			continue
		}
		i := slices.IndexFunc(rules, func(r rule) bool { return within(at, []string{r.folder}) })
		if i < 0 {
			report("%s has no rule in internal/arrows: say there what it may import", at)
			continue
		}
		r := rules[i]
		for _, imported := range p.Imports {
			to, ours := folder(imported)
			switch {
			case ours && !within(to, append([]string{r.folder}, r.own...)):
				report("%s imports %s", at, to)
			case !ours && !byPath[imported].Standard && !within(imported, r.others):
				report("%s imports %s", at, imported)
			}
		}
		for _, ban := range linkBans {
			if within(at, ban.except) {
				continue
			}
			for _, m := range modules(p, byPath) {
				if within(m, ban.modules) {
					report("%s links %s, which is %s", at, m, ban.what)
				}
			}
		}
	}
	return found
}

// modules returns the paths of the other modules that a package links.
func modules(p pkg, byPath map[string]pkg) []string {
	var paths []string
	for _, dep := range p.Deps {
		if m := byPath[dep].Module; m != nil && m.Path != module {
			paths = append(paths, m.Path)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// list asks the go command about all packages of the module and all they link, on one
// platform, so that the answer is the same on every machine.
func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Imports,Deps,Standard,Module", module+"/...")
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0", "GOFLAGS=")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var all []pkg
	for dec := json.NewDecoder(out); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("go list: %v", err)
	}
	return all
}

func TestArrowsPointDown(t *testing.T) {
	for _, v := range violations(list(t)) {
		t.Error(v)
	}
}

// A service pays for each module that a package links, so a change of the list has to
// be seen in review.
func TestLinkedModules(t *testing.T) {
	const golden = "testdata/modules.golden"
	all := list(t)
	byPath := map[string]pkg{}
	for _, p := range all {
		byPath[p.ImportPath] = p
	}
	var b strings.Builder
	b.WriteString("# The modules of others that each package links.\n")
	for _, p := range all {
		at, ours := folder(p.ImportPath)
		if !ours || slices.Contains(strings.Split(at, "/"), "internal") || within(at, []string{"examples", "bench"}) {
			continue
		}
		fmt.Fprintf(&b, "\n%s\n", at)
		for _, m := range modules(p, byPath) {
			fmt.Fprintf(&b, "\t%s\n", m)
		}
	}
	// go list orders by dependency, which changes with every new import.
	blocks := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n\n")
	slices.Sort(blocks[1:])
	got := strings.Join(blocks, "\n\n") + "\n"

	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("packages link other modules than %s says. If that is meant: go test ./internal/arrows -update\ngot:\n%s", golden, got)
	}
}

// The rules reject what they are there to reject.
func TestViolations(t *testing.T) {
	third := func(importPath, mod string) pkg {
		return pkg{ImportPath: importPath, Module: &struct{ Path string }{mod}}
	}
	world := []pkg{
		{ImportPath: "context", Standard: true},
		third("github.com/jackc/pgx/v5/stdlib", "github.com/jackc/pgx/v5"),
		third("github.com/nats-io/nats.go/jetstream", "github.com/nats-io/nats.go"),
		third("github.com/testcontainers/testcontainers-go", "github.com/testcontainers/testcontainers-go"),
		third("go.opentelemetry.io/otel/sdk/trace", "go.opentelemetry.io/otel/sdk"),
	}
	for _, c := range []struct{ from, to, want string }{
		{"dialect", "context", ""},
		{"dialect", "github.com/jackc/pgx/v5/stdlib", "dialect imports github.com/jackc/pgx/v5/stdlib"},
		{"dialect", module, "dialect imports ."},
		{"postgres", module + "/dialect", ""},
		{"postgres", "github.com/jackc/pgx/v5/stdlib", ""},
		{"postgres", module, "postgres imports ."},
		{"postgres", module + "/sqlite", "postgres imports sqlite"},
		{"postgres/schema", module + "/relay", "postgres/schema imports relay"},
		{".", module + "/dialect", ""},
		{".", module + "/postgres", ". imports postgres"},
		{".", module + "/relay", ". imports relay"},
		{".", "github.com/jackc/pgx/v5/stdlib", ". imports github.com/jackc/pgx/v5/stdlib"},
		{"relay", module, ""},
		{"relay", module + "/inbox", "relay imports inbox"},
		{"relay", "github.com/nats-io/nats.go/jetstream", "relay links github.com/nats-io/nats.go, which is a broker client"},
		{"relay", "go.opentelemetry.io/otel/sdk/trace", "relay links go.opentelemetry.io/otel/sdk, which is a telemetry SDK"},
		{"publish/nats", "github.com/nats-io/nats.go/jetstream", ""},
		{"publish/nats", module + "/postgres", "publish/nats imports postgres"},
		{"conformance", module + "/relay", ""},
		{"conformance", module + "/conformance/containers", "conformance links github.com/testcontainers/testcontainers-go, which is testcontainers"},
		{"conformance/containers", "github.com/testcontainers/testcontainers-go", ""},
		{"cmd/outbox", module + "/postgres", ""},
		{"cmd/outbox", "github.com/testcontainers/testcontainers-go", "cmd/outbox links github.com/testcontainers/testcontainers-go, which is testcontainers"},
		{"util", "context", "util has no rule in internal/arrows: say there what it may import"},
	} {
		p := pkg{ImportPath: path.Join(module, c.from), Imports: []string{c.to}, Deps: []string{c.to}}
		if c.to == module+"/conformance/containers" {
			p.Deps = append(p.Deps, "github.com/testcontainers/testcontainers-go")
		}
		found := violations(append(slices.Clone(world), p))
		switch {
		case c.want == "" && len(found) > 0:
			t.Errorf("%s importing %s is refused: %q", c.from, c.to, found)
		case c.want != "" && !slices.Contains(found, c.want):
			t.Errorf("%s importing %s: got %q, want %q among them", c.from, c.to, found, c.want)
		}
	}
}
