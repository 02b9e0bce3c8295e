package sqlite_test

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/sqlite"
)

func TestDialect(t *testing.T) {
	d := sqlite.New()
	if got := d.Name(); got != "sqlite" {
		t.Errorf("name is %q", got)
	}
	if got, want := d.Capabilities(), (dialect.Capabilities{TimeStep: time.Millisecond, Lanes: 4}); got != want {
		t.Errorf("capabilities are %+v, want %+v", got, want)
	}
}

func TestBindRefusesNames(t *testing.T) {
	for name, tables := range map[string]dialect.Tables{
		"schema is \"other\"":     {Schema: "other", Prefix: "outbox", Lanes: 1},
		"schema is \"temp\"":      {Schema: "temp", Prefix: "outbox", Lanes: 1},
		"prefix is empty":         {Lanes: 1},
		"NUL":                     {Prefix: "a\x00b", Lanes: 1},
		"UTF-8":                   {Prefix: "a\xff", Lanes: 1},
		"which SQLite reserves":   {Prefix: "SQLite_outbox", Lanes: 1},
		"prefix has 1000 bytes":   {Prefix: strings.Repeat("x", 1000), Lanes: 1},
		"lanes is 0":              {Prefix: "outbox"},
		"lanes is 1025: choose 1": {Prefix: "outbox", Lanes: 1025},
	} {
		if _, err := sqlite.New().Bind(tables); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("Bind(%+v) is %v, want an error with %q", tables, err, name)
		}
	}
}

func TestSchemaMainIsTheDefault(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "a.db"))
	store := bind(t, dialect.Tables{Schema: "main", Prefix: "outbox", Lanes: 2})
	if _, err := store.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if in, err := bind(t, dialect.Tables{Prefix: "outbox", Lanes: 2}).Inspect(t.Context(), db); err != nil || in.Version != 3 || len(in.Problems) > 0 {
		t.Errorf("inspect: %+v, %v", in, err)
	}
}

func TestOpenNamesTheFile(t *testing.T) {
	t.Chdir(t.TempDir())
	absolute := t.TempDir()
	paths := []string{
		"plain.db", "with space.db", "what?mode=memory", "hash#tag.db", "100%.db", "%41.db", "a+b&c=d;e.db", "ünï.db",
		"colon:name.db", "file:name.db", `quote"'.db`, "./dot.db", "~tilde.db", "line\nbreak.db", "sub/dir.db",
		filepath.Join(absolute, "plain.db"), filepath.Join(absolute, "a?b#c%d e.db"), "/" + filepath.Join(absolute, "two slashes.db"),
	}
	if runtime.GOOS != "windows" {
		paths = append(paths, `C:\back\slash.db`, "latin1-\xe9.db")
	}
	if err := os.Mkdir("sub", 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			db := open(t, path)
			if _, err := db.ExecContext(t.Context(), `CREATE TABLE mine (x)`); err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
				t.Errorf("the file is not there: %v", err)
			}
		})
	}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		name := strings.TrimSuffix(strings.TrimSuffix(entry.Name(), "-wal"), "-shm")
		if name != "sub" && !slices.Contains(paths, name) && !slices.Contains(paths, "./"+name) {
			t.Errorf("a file %q that nobody named", entry.Name())
		}
	}
	for _, path := range []string{"", "a\x00b"} {
		if _, err := sqlite.Open(path); err == nil {
			t.Errorf("Open(%q) is accepted", path)
		}
	}
}

func TestOpenSetsTheSession(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "a.db"))
	db.SetMaxIdleConns(0) // every statement on a new connection
	for statement, want := range map[string]string{
		`PRAGMA journal_mode`: "wal", `PRAGMA busy_timeout`: "10000", `PRAGMA synchronous`: "2", `PRAGMA foreign_keys`: "0",
	} {
		if got, err := read(t.Context(), db, statement); err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%s is %v, %v, want %s", statement, got, err, want)
		}
	}
	if _, err := read(t.Context(), db, `SELECT "no such name"`); err == nil {
		t.Error("a double-quoted name that does not exist is taken for a string")
	}
	// BEGIN IMMEDIATE: the second transaction waits although neither has written.
	first, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	began := make(chan error)
	go func() {
		second, err := db.BeginTx(t.Context(), nil)
		if err == nil {
			err = second.Rollback()
		}
		began <- err
	}()
	reader, err := db.BeginTx(t.Context(), &sql.TxOptions{ReadOnly: true})
	if err != nil {
		t.Fatalf("a reader waits for a writer: %v", err)
	}
	if err := reader.Rollback(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-began:
		t.Errorf("two writers at a time: %v", err)
	default:
	}
	if err := first.Rollback(); err != nil {
		t.Error(err)
	}
	if err := <-began; err != nil {
		t.Error(err)
	}
}

func TestOpenMemory(t *testing.T) {
	db := open(t, ":memory:")
	store := bind(t, dialect.Tables{Prefix: "outbox", Lanes: 2})
	if _, err := store.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	for range 8 {
		go func() {
			in, err := store.Inspect(t.Context(), db)
			if err == nil && (in.Version != 3 || len(in.Problems) > 0) {
				err = fmt.Errorf("%+v", in)
			}
			done <- err
		}()
	}
	for range 8 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(":memory:"); err == nil {
		t.Error("a file was made")
	}
}

func TestOpenRaced(t *testing.T) {
	for round := range 5 {
		path := filepath.Join(t.TempDir(), fmt.Sprint(round, ".db"))
		errs := make(chan error)
		start := make(chan struct{})
		for range 8 {
			db := open(t, path)
			go func() {
				<-start
				_, err := db.ExecContext(t.Context(), `CREATE TABLE IF NOT EXISTS mine (x)`)
				errs <- err
			}()
		}
		close(start)
		for range 8 {
			if err := <-errs; err != nil {
				t.Errorf("round %d: %v", round, err)
			}
		}
	}
}

// TestOpenIsAPath: the command's DSN, as a path, would be a file of a strange name.
func TestOpenIsAPath(t *testing.T) {
	if _, err := sqlite.Open("sqlite:app.db"); err == nil || !strings.Contains(err.Error(), `give the path alone, "app.db"`) {
		t.Error(err)
	}
	t.Chdir(t.TempDir())
	db, err := sqlite.Open("./sqlite:app.db")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if err := db.PingContext(t.Context()); err != nil {
		t.Error(err)
	}
}
