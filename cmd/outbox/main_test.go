package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/conformance/containers"
)

// mainVariable makes the test binary the program itself, for tests that need
// processes.
const mainVariable = "OUTBOX_TEST_IS_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainVariable) != "" {
		main()
	}
	os.Exit(containers.Main(m))
}

// result is what a command left behind.
type result struct {
	code     int
	out, err string
}

func (r result) String() string {
	return fmt.Sprintf("exit code %d\nstdout:\n%s\nstderr:\n%s", r.code, r.out, r.err)
}

// buffer may be written to by several goroutines.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// shell runs commands in this process.
type shell struct {
	t   *testing.T
	env map[string]string
}

// newShell has no environment but a database file that does not exist yet.
func newShell(t *testing.T) *shell {
	t.Helper()
	return &shell{t, map[string]string{"OUTBOX_DSN": "sqlite:" + filepath.Join(t.TempDir(), "o.db")}}
}

// migrated has tables too.
func migrated(t *testing.T) *shell {
	t.Helper()
	s := newShell(t)
	s.ok("", "migrate")
	return s
}

func (s *shell) run(stdin io.Reader, args ...string) result {
	return s.runUntil(s.t.Context(), stdin, args...)
}

func (s *shell) runUntil(ctx context.Context, stdin io.Reader, args ...string) result {
	var out, err buffer
	code := run(ctx, &process{stdin: stdin, stdout: &out, stderr: &err, getenv: func(name string) string { return s.env[name] }}, args)
	return result{code, out.String(), err.String()}
}

// runUntilSaid runs a command that goes on until it has said something on standard
// error, or has had time enough for it.
func (s *shell) runUntilSaid(text string, args ...string) result {
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	var out, err buffer
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, &process{stdout: &out, stderr: &err, getenv: func(name string) string { return s.env[name] }}, args)
	}()
	for !strings.Contains(err.String(), text) && len(ended) == 0 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	cancel()
	code := <-ended
	return result{code, out.String(), err.String()}
}

// ok runs a command that must succeed and returns what it printed.
func (s *shell) ok(stdin string, args ...string) string {
	s.t.Helper()
	r := s.run(strings.NewReader(stdin), args...)
	if r.code != exitOK {
		s.t.Fatalf("outbox %s: %v", strings.Join(args, " "), r)
	}
	return r.out
}

// fails runs a command that must fail with a code and a text that holds all of
// want, and returns the text.
func (s *shell) fails(code int, stdin string, args []string, want ...string) string {
	s.t.Helper()
	r := s.run(strings.NewReader(stdin), args...)
	if r.code != code {
		s.t.Fatalf("outbox %s: want exit code %d, got %v", strings.Join(args, " "), code, r)
	}
	for _, w := range want {
		if !strings.Contains(r.err, w) {
			s.t.Errorf("outbox %s: want %q in %q", strings.Join(args, " "), w, r.err)
		}
	}
	return r.err
}

// status reads a number of the status report.
func (s *shell) status(name string) int {
	s.t.Helper()
	var report map[string]any
	if err := json.Unmarshal([]byte(s.ok("", "status", "--json")), &report); err != nil {
		s.t.Fatal(err)
	}
	n, ok := report[name].(float64)
	if !ok {
		s.t.Fatalf("status has no %s: %v", name, report)
	}
	return int(n)
}

// deliver runs a relay until the outbox is empty and returns the events.
func (s *shell) deliver(args ...string) []event {
	s.t.Helper()
	return events(s.t, s.ok("", append([]string{"relay", "--publish", "stdout:", "--until-empty"}, args...)...))
}

// event is what a relay published.
type event struct {
	ID, Type, Subject, Topic, Sequence, Revision, Headers string
	DataContentType                                       string
	Data                                                  json.RawMessage
	DataBase64                                            *string `json:"data_base64"`
	EmptyKey                                              bool
	Replay, Attempt                                       int
	Tenant                                                string
}

func events(t *testing.T, text string) []event {
	t.Helper()
	var all []event
	for line := range strings.Lines(text) {
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil || !strings.HasSuffix(line, "\n") {
			t.Fatalf("line %d is torn: %v in %q", len(all)+1, err, line)
		}
		all = append(all, e)
	}
	return all
}

func TestHelp(t *testing.T) {
	s := &shell{t, nil}
	overview := s.ok("", "help")
	for _, args := range [][]string{{"--help"}, {"-h"}} {
		if s.ok("", args...) != overview {
			t.Errorf("outbox %v prints something else than outbox help", args)
		}
	}
	if r := s.run(nil); r.code != exitUsage || r.err != overview || r.out != "" {
		t.Errorf("without a command: %v", r)
	}
	for _, want := range []string{"OUTBOX_DSN", "Exit codes:", "postgres://", "sqlite:", "oracle://"} {
		if !strings.Contains(overview, want) {
			t.Errorf("help lacks %q", want)
		}
	}
	for _, name := range regexp.MustCompile(`OUTBOX_[A-Z_]+`).FindAllString(readFile(t, "../../docs/cli.md"), -1) {
		if !strings.Contains(overview, name) {
			t.Errorf("help lacks %s, which docs/cli.md has", name)
		}
	}
	for _, c := range commands() {
		if !strings.Contains(overview, "\n  "+c.name+" ") {
			t.Errorf("help does not list %s", c.name)
		}
		text := s.ok("", c.name, "--help")
		for _, want := range []string{"outbox " + c.name + ": ", "Usage:\n  outbox " + c.name, "Example:\n  ", "outbox " + c.name + " "} {
			if !strings.Contains(text, want) {
				t.Errorf("help of %s lacks %q:\n%s", c.name, want, text)
			}
		}
		for line := range strings.Lines(text) {
			if len(line) > 100 {
				t.Errorf("help of %s has a line of %d bytes: %s", c.name, len(line), line)
			}
		}
		if text != s.ok("", "help", c.name) || text != s.ok("", c.name, "-h") {
			t.Errorf("the ways to the help of %s differ", c.name)
		}
	}
	s.fails(exitUsage, "", []string{"help", "nothing"}, `unknown command "nothing"`)
}

func TestMistakes(t *testing.T) {
	s := newShell(t)
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"stats"}, `unknown command "stats", did you mean "status"?`},
		{[]string{"enqeue"}, `did you mean "enqueue"?`},
		{[]string{"repl"}, `did you mean "replay"?`},
		{[]string{"--dsn", "sqlite:x", "status"}, "flags stand behind the command"},
		{[]string{"relay", "--until-emtpy"}, `flag is not known: --until-emtpy, did you mean "--until-empty"?`},
		{[]string{"status", "--jso"}, `did you mean "--json"?`},
		{[]string{"frobnicate"}, "unknown command \"frobnicate\"\n"},
		{[]string{"postgres://app:secret@db/shop"}, "unknown command (not shown"},
		{[]string{"status", "postgres://app:secret@db/shop"}, "unexpected argument (not shown"},
		{[]string{"status", "now"}, `unexpected argument "now"`},
		{[]string{"status", "--jsn"}, "flag is not known: --jsn"},
		{[]string{"status", "--lanes", "many"}, "for flag --lanes: give a number from 1 to 1024"},
		{[]string{"status", "--lanes", "0"}, "for flag --lanes"},
		{[]string{"status", "--dsn"}, "flag needs an argument: --dsn"},
		{[]string{"parked", "--after", "x"}, `invalid value "x" for flag --after: give a number`},
		{[]string{"parked", "--limit", "99999999999999999999"}, "for flag --limit: the number is too large"},
		{[]string{"status", "--dsn", ""}, "for flag --dsn: it is empty"},
	} {
		text := s.fails(exitUsage, "", test.args, test.want)
		if strings.Contains(text, "secret") {
			t.Errorf("%v: the error shows a password: %s", test.args, text)
		}
	}
}

func TestDSN(t *testing.T) {
	for _, test := range []struct {
		dsn  string
		code int
		want string
	}{
		{"", exitUsage, "set OUTBOX_DSN"},
		{"app:secret@db", exitUsage, "does not begin with a scheme"},
		{"secret", exitUsage, "dsn has no scheme"},
		{"orders.db", exitUsage, "write a file as sqlite:"},
		{"mysql://app:secret@db:port/shop", exitUsage, "dsn cannot be parsed"},
		{"MariaDB://app:sec%ret@db/secret", exitUsage, "dsn cannot be parsed"},
		{"sqlserver://app:secret@db:port", exitUsage, "dsn cannot be parsed"},
		{"sqlserver://app:secret@127.0.0.1:1?database=x&dial+timeout=2", exitFailed, ""},
		{"oracle://app:secret@db:port/x", exitUsage, "dsn cannot be parsed"},
		{"oracle://app:secret@127.0.0.1:1/x", exitFailed, ""},
		{"postgres://app:secret@db:port/x", exitUsage, "dsn cannot be parsed"},
		{"postgres://app:sec%ret@db/secret", exitUsage, "dsn cannot be parsed"},
		{"postgres://app:secret@127.0.0.1:1/shop?sslmode=disable", exitFailed, ""},
		{"sqlite:", exitUsage, "path is empty"},
		{"sqlite:/no/such/secret/folder/o.db", exitFailed, ""},
		{"sqlite::memory:", exitUsage, "is gone"},
	} {
		t.Run(test.dsn, func(t *testing.T) {
			s := &shell{t, map[string]string{"OUTBOX_DSN": test.dsn}}
			for _, args := range [][]string{{"migrate"}, {"status"}, {"relay", "--publish", "discard:"}, {"enqueue"}} {
				if strings.HasPrefix(test.dsn, "sqlite") && args[0] != "migrate" {
					continue
				}
				text := s.fails(test.code, "", args, test.want)
				if strings.Contains(text, "secret") && !strings.Contains(test.dsn, "folder") {
					t.Errorf("%v shows the password: %s", args, text)
				}
			}
			delete(s.env, "OUTBOX_DSN")
			s.fails(test.code, "", []string{"migrate", "--dsn", test.dsn}, test.want)
		})
	}
}

// A value that does not parse is answered by what would.
func TestFlagValues(t *testing.T) {
	s := newShell(t)
	for args, want := range map[string]string{
		"health --max-age 5":        "invalid value \"5\" for flag --max-age: give a duration, for example 500ms or 15s",
		"conformance --patience 5":  "for flag --patience: give a duration",
		"conformance --seed x":      "for flag --seed: give a number",
		"bench --rounds for -seed:": "for flag --rounds: give a number",
	} {
		s.fails(exitUsage, "", strings.SplitN(args, " ", 3), want)
	}
}

func TestTargetFromEnvironment(t *testing.T) {
	s := newShell(t)
	s.env["OUTBOX_PREFIX"], s.env["OUTBOX_LANES"] = "from_env", "5"
	if out := s.ok("", "migrate"); !strings.Contains(out, "5 lanes") {
		t.Errorf("migrate says %q", out)
	}
	if out := s.ok("", "status"); !strings.Contains(out, "prefix from_env, 5 lanes") {
		t.Errorf("status says %q", out)
	}
	s.fails(exitFailed, "", []string{"status", "--prefix", "other"}, "outbox migrate")
	s.env["OUTBOX_LANES"] = "-1"
	s.fails(exitUsage, "", []string{"status"}, "OUTBOX_LANES: give a number")
	s.ok("", "status", "--lanes", "5") // the flag wins
}

func TestMigrate(t *testing.T) {
	s := newShell(t)
	if out := s.ok("", "migrate", "--lanes", "4", "--json"); !sameJSON(t, out, `{"applied":[1,2,3],"version":3,"lanes":4}`) {
		t.Errorf("migrate says %s", out)
	}
	// Lanes come from the database.
	if out := s.ok("", "migrate"); !strings.Contains(out, "version 3, 4 lanes: up to date already") {
		t.Errorf("a second migrate says %s", out)
	}
	if n := s.status("lanes"); n != 4 {
		t.Errorf("%d lanes, want 4", n)
	}
	if out := s.ok("", "status", "--lanes", "8"); !strings.Contains(out, "the schema has 4 lanes and lanes is set to 8: set it to 4") {
		t.Errorf("status with another number of lanes says %s", out)
	}
	s.fails(exitFailed, "", []string{"migrate", "--lanes", "8"}, "4 lanes")
	s.fails(exitFailed, "", []string{"relay", "--publish", "discard:", "--lanes", "8"}, "4 lanes")
	s.fails(exitUsage, "", []string{"migrate", "--schema", "other"}, "schema")
}

func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y any
	if err := json.Unmarshal([]byte(a), &x); err != nil {
		t.Fatalf("%v in %q", err, a)
	}
	if err := json.Unmarshal([]byte(b), &y); err != nil {
		t.Fatalf("%v in %q", err, b)
	}
	return fmt.Sprint(x) == fmt.Sprint(y)
}

func TestNoDatabaseFile(t *testing.T) {
	s := newShell(t)
	for _, args := range [][]string{
		{"status"},
		{"enqueue"},
		{"relay", "--publish", "discard:"},
		{"health"},
		{"parked"},
		{"requeue", "--all"},
		{"discard", "--all"},
		{"replay", "--all"},
		{"purge", "--older-than", "1h"},
	} {
		s.fails(exitFailed, "", args, "does not exist", "outbox migrate")
	}
	path := strings.TrimPrefix(s.env["OUTBOX_DSN"], "sqlite:")
	if _, err := os.Stat(path); err == nil {
		t.Error("a command that reads made a database file")
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.fails(exitFailed, "", []string{"status"}, "do not exist", "outbox migrate")
	s.fails(exitFailed, "", []string{"enqueue"}, "do not exist", "outbox migrate")
}

func TestSchema(t *testing.T) {
	s := &shell{t, map[string]string{}}
	text := s.ok("", "schema", "--engine", "postgres", "--schema", `Odd "x"`, "--prefix", "order", "--lanes", "7")
	for _, want := range []string{`"Odd ""x"""."order_parked"`, "CREATE TABLE", "7"} {
		if !strings.Contains(text, want) {
			t.Errorf("the schema lacks %q", want)
		}
	}
	var steps []struct {
		Version   int
		Name, SQL string
	}
	if err := json.Unmarshal([]byte(s.ok("", "schema", "--dsn", "sqlite:never-made.db", "--json")), &steps); err != nil || len(steps) == 0 || !strings.Contains(steps[0].SQL, `"outbox"`) {
		t.Errorf("%v: %v", err, steps)
	}
	if _, err := os.Stat("never-made.db"); err == nil {
		t.Error("schema made a database")
	}
	s.fails(exitUsage, "", []string{"schema"}, "give --engine postgres, ")
	s.fails(exitUsage, "", []string{"schema", "--engine", "db2"}, `engine "db2" is unknown`)
	for _, engine := range []string{"mysql", "sqlserver", "oracle"} {
		if text := s.ok("", "schema", "--engine", engine); !strings.Contains(text, "CREATE TABLE") {
			t.Errorf("%s: no table in %s", engine, text)
		}
	}
	s.fails(exitUsage, "", []string{"schema", "--engine", "postgres", "--prefix", strings.Repeat("x", 60)}, "prefix has 60 bytes")
}

func TestSchemaGrants(t *testing.T) {
	s := newShell(t)
	for _, engine := range []string{"postgres", "mysql"} {
		out := s.ok("", "schema", "--engine", engine, "--prefix", "mail", "--grants")
		for _, want := range []string{"mail", "TO outbox_producer;\n", "TO outbox_relay;\n", "TO outbox_operator;\n", "TO outbox_consumer;\n"} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: the grants lack %q:\n%s", engine, want, out)
			}
		}
		if strings.ContainsAny(out, "{}") {
			t.Errorf("%s: a placeholder was left:\n%s", engine, out)
		}
	}
	s.fails(2, "", []string{"schema", "--engine", "sqlite", "--grants"}, "no users")
}

func TestVersion(t *testing.T) {
	s := &shell{t, nil}
	if out := s.ok("", "version"); !strings.HasPrefix(out, "outbox ") || out != s.ok("", "--version") {
		t.Errorf("version says %q", out)
	}
	var v map[string]string
	if err := json.Unmarshal([]byte(s.ok("", "version", "--json")), &v); err != nil || v["version"] == "" || v["go"] == "" {
		t.Errorf("%v: %v", err, v)
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestManualHasEverything compares docs/cli.md with the commands and flags
// there are.
func TestManualHasEverything(t *testing.T) {
	manual := readFile(t, filepath.Join("..", "..", "docs", "cli.md"))
	s := &shell{t, nil}
	for _, c := range commands() {
		if !strings.Contains(manual, "| `"+c.name+"` |") {
			t.Errorf("docs/cli.md lacks the command %s", c.name)
		}
		if c.name == "conformance" || c.name == "bench" || c.name == "demo" {
			continue // the manual sends the reader to --help
		}
		for line := range strings.Lines(s.ok("", c.name, "--help")) {
			name, isFlag := strings.CutPrefix(line, "  --")
			if !isFlag {
				continue
			}
			name, _, _ = strings.Cut(strings.TrimSpace(name), " ")
			if !strings.Contains(manual, "`--"+name+"`") {
				t.Errorf("docs/cli.md lacks the flag --%s of %s", name, c.name)
			}
		}
	}
}
