package containers

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"
)

// Every way to take a server down and bring it back keeps its DSN and its data.
func TestServerFaults(t *testing.T) {
	for _, s := range Servers(t, "postgres") {
		t.Run(s.Version, func(t *testing.T) {
			if !s.CanRestart() {
				testUnsupported(t, s)
				return
			}
			dsn := s.DSN
			db := open(t, dsn)
			run(t, db, `CREATE TABLE containers_faults (what text)`)
			t.Cleanup(func() { run(t, open(t, s.DSN), `DROP TABLE containers_faults`) })

			down := []struct {
				name string
				do   func(context.Context) error
			}{
				{"stop", s.Stop},
				{"kill", s.Kill},
				{"kill again", s.Kill},
			}
			for i, d := range down {
				run(t, db, `INSERT INTO containers_faults VALUES ($1)`, d.name)
				if err := d.do(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := db.PingContext(t.Context()); err == nil {
					t.Fatalf("after %s the server still answers", d.name)
				}
				if err := s.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
				if s.DSN != dsn {
					t.Fatalf("after %s and start the DSN is another one", d.name)
				}
				var rows int
				if err := open(t, dsn).QueryRowContext(t.Context(), `SELECT count(*) FROM containers_faults`).Scan(&rows); err != nil {
					t.Fatalf("after %s and start: %v", d.name, err)
				}
				if rows != i+1 {
					t.Fatalf("after %s and start there are %d rows, want %d", d.name, rows, i+1)
				}
			}
		})
	}
}

// A stop is orderly and a kill is not: only after the kill does the server recover.
func TestServerKillIsACrash(t *testing.T) {
	s := restartable(t)
	recovered := func() bool {
		t.Helper()
		logs, err := s.ctr.Logs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer logs.Close()
		text, err := io.ReadAll(logs)
		if err != nil {
			t.Fatal(err)
		}
		// What the server said since its last start.
		starts := strings.Split(string(text), "starting PostgreSQL")
		return strings.Contains(starts[len(starts)-1], "was not properly shut down")
	}
	for _, c := range []struct {
		name string
		down func(context.Context) error
		want bool
	}{{"stop", s.Stop, false}, {"kill", s.Kill, true}} {
		if err := errors.Join(c.down(t.Context()), s.Start(t.Context())); err != nil {
			t.Fatal(err)
		}
		if got := recovered(); got != c.want {
			t.Errorf("after %s: recovery is %v, want %v", c.name, got, c.want)
		}
	}
}

func TestServerPause(t *testing.T) {
	s := restartable(t)
	db := open(t, s.DSN)
	run(t, db, `SELECT 1`)

	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, frozen := db.ExecContext(ctx, `SELECT 1`)
	if err := s.Unpause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(frozen, context.DeadlineExceeded) {
		t.Errorf("a paused server answered with %v, want no answer", frozen)
	}
	run(t, db, `SELECT 1`)
}

// No format prints the password.
func TestServerFormatsWithoutPassword(t *testing.T) {
	for _, s := range Servers(t, "postgres") {
		u, err := url.Parse(s.DSN)
		if err != nil {
			t.Fatal(err)
		}
		password, _ := u.User.Password()
		if password == "" {
			t.Skipf("%v has no password in its DSN", s)
		}
		for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
			if got := fmt.Sprintf(format, s); strings.Contains(got, password) {
				t.Errorf("%s prints the password of %v", format, s)
			}
		}
	}
}

func testUnsupported(t *testing.T, s *Server) {
	t.Helper()
	for _, do := range []func(context.Context) error{s.Stop, s.Start, s.Kill, s.Pause, s.Unpause, s.Terminate} {
		if err := do(t.Context()); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("on a server given by its DSN: %v, want errors.ErrUnsupported", err)
		}
	}
}

// restartable returns a server in a container, or skips.
func restartable(t *testing.T) *Server {
	t.Helper()
	for _, s := range Servers(t, "postgres") {
		if s.CanRestart() {
			return s
		}
	}
	t.Skip("no server in a container")
	return nil
}

func open(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func run(t *testing.T, db *sql.DB, query string, args ...any) {
	t.Helper()
	// Also called from clean-ups, where the test's own context has ended.
	if _, err := db.ExecContext(context.WithoutCancel(t.Context()), query, args...); err != nil {
		t.Fatal(err)
	}
}
