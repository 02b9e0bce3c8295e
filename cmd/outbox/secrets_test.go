package main

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/conformance/containers"
)

// marker is in every secret of these tests.
const marker = "hunter2-m4rk3r"

// reach are the flags with which a command gets as far as its database. Commands that
// are not here need none.
var reach = map[string][]string{
	"relay":       {"--publish", "discard:", "--log-level", "debug"},
	"requeue":     {"--all"},
	"discard":     {"--all"},
	"replay":      {"--all"},
	"purge":       {"--older-than", "1h"},
	"conformance": {"--scenario", "^Enqueue/CommitIsFound$", "--short"},
	"bench":       {"--scale", "tiny", "--only", "^enqueue$"},
	"demo":        {"--dsn", "env"},
	"completion":  {"bash"},
}

// quietOn runs every command on a DSN that holds the marker, in the environment and as
// a flag, and looks for it in all that they write.
func quietOn(t *testing.T, dsn string) {
	t.Helper()
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if !strings.Contains(dsn, marker) {
		t.Fatal("there is nothing to find")
	}
	failed := 0
	for _, c := range commands() {
		for _, given := range []string{"environment", "flag"} {
			s := &shell{t, map[string]string{"OUTBOX_DSN": dsn}}
			args := append([]string{c.name}, reach[c.name]...)
			if fs, _ := c.flags(); given == "flag" && fs.Lookup("dsn") != nil {
				s.env = nil
				args = append(args, "--dsn", dsn)
			}
			r := s.runUntil(ctx, strings.NewReader(order), args...)
			if strings.Contains(r.out+r.err, marker) {
				t.Errorf("outbox %s, by %s, shows it: %v", c.name, given, r)
			}
			if r.code != exitOK {
				failed++
			}
		}
	}
	if failed < 20 { // else the test has not come as far as an error
		t.Errorf("%d commands failed", failed)
	}
}

// TestNoSecretIsShown has every command fail on DSNs that cannot be parsed, whose
// server is not there, or that the server refuses.
func TestNoSecretIsShown(t *testing.T) {
	for name, dsn := range map[string]string{
		"NoScheme":          "app:" + marker + "@db/shop",
		"UnknownScheme":     "db2://app:" + marker + "@db/shop",
		"PostgresClosed":    "postgres://app:" + marker + "@127.0.0.1:1/shop",
		"PostgresPort":      "postgres://app:" + marker + "@127.0.0.1:port/shop",
		"PostgresEscape":    "postgres://app:%zz" + marker + "@127.0.0.1:1/shop",
		"PostgresOption":    "postgres://app@127.0.0.1:1/shop?password=" + marker,
		"PostgresSSL":       "postgres://app:" + marker + "@127.0.0.1:1/shop?sslmode=" + marker,
		"MySQLClosed":       "mysql://app:" + marker + "@127.0.0.1:1/shop",
		"MySQLPort":         "mysql://app:" + marker + "@127.0.0.1:port/shop",
		"MySQLOption":       "mysql://app:" + marker + "@127.0.0.1:1/shop?timeout=" + marker,
		"MariaDBClosed":     "mariadb://app:" + marker + "@127.0.0.1:1/shop",
		"SQLServerClosed":   "sqlserver://app:" + marker + "@127.0.0.1:1?database=shop&dial+timeout=1",
		"SQLServerPort":     "sqlserver://app:" + marker + "@127.0.0.1:port?database=shop",
		"SQLServerPassword": "sqlserver://app@127.0.0.1:1?password=" + marker + "&dial+timeout=1",
		"OracleClosed":      "oracle://app:" + marker + "@127.0.0.1:1/shop",
		"OraclePort":        "oracle://app:" + marker + "@127.0.0.1:port/shop",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			quietOn(t, dsn)
		})
	}
	for engine, user := range map[string]string{
		"postgres": "ROLE outbox_marked LOGIN PASSWORD '" + marker + "'",
		"mysql":    "USER outbox_marked IDENTIFIED BY '" + marker + "'",
		"mariadb":  "USER outbox_marked IDENTIFIED BY '" + marker + "'",
	} {
		t.Run(engine, func(t *testing.T) {
			for _, server := range containers.Servers(t, engine) {
				kind, _, _ := strings.Cut(user, " ")
				query(t, engine, server.DSN, "DROP "+kind+" IF EXISTS outbox_marked")
				query(t, engine, server.DSN, "CREATE "+user)
				t.Cleanup(func() { query(t, engine, server.DSN, "DROP "+kind+" outbox_marked") })
				u, err := url.Parse(server.DSN)
				if err != nil {
					t.Fatal("the server's DSN is no URL") // which may hold a password
				}
				u.User = url.UserPassword("nobody", marker)
				t.Run(server.Version+"/WrongUser", func(t *testing.T) { quietOn(t, u.String()) })
				u.User = url.UserPassword("outbox_marked", marker+"x")
				t.Run(server.Version+"/WrongPassword", func(t *testing.T) { quietOn(t, u.String()) })
				u.User, u.Path = url.UserPassword("outbox_marked", marker), "/no_such_database"
				t.Run(server.Version+"/WrongDatabase", func(t *testing.T) { quietOn(t, u.String()) })
			}
		})
	}
}

// query runs a statement as the owner of a server.
func query(t *testing.T, engine, dsn, statement string) {
	t.Helper()
	e, err := engineNamed(engine)
	if err != nil {
		t.Fatal(err)
	}
	db, err := e.open(dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(context.WithoutCancel(t.Context()), statement); err != nil {
		t.Fatal(err)
	}
}

// TestNoPayloadIsLogged has relays fail to publish, with the marker in payload, header
// and URL, at the level that logs most.
func TestNoPayloadIsLogged(t *testing.T) {
	for _, publish := range []string{
		"nats://app:" + marker + "@127.0.0.1:1", "nats://" + marker + "@127.0.0.1:1",
		"kafka://app:" + marker + "@127.0.0.1:1/?sasl=plain",
		"redis://app:" + marker + "@127.0.0.1:1", "rediss://:" + marker + "@127.0.0.1:1/0",
		"amqp://app:" + marker + "@127.0.0.1:1/" + marker, "http://app:" + marker + "@127.0.0.1:1/" + marker + "?token=" + marker + "#allow=127.0.0.1",
		"https://127.0.0.1:1/" + marker,
	} {
		scheme, _, _ := strings.Cut(publish, ":")
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			s := migrated(t)
			s.ok(`{"topic":"orders","key":"`+marker+`","type":"order.placed","data":{"card":"`+marker+`"},"headers":{"token":"`+marker+`"}}`+"\n", "enqueue")
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			var out, errs buffer
			ended := make(chan int, 1)
			go func() {
				ended <- run(ctx, &process{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, getenv: func(name string) string { return s.env[name] }},
					[]string{"relay", "--publish", publish, "--log-level", "debug", "--breaker-min", "1ms", "--retry-min", "1ms", "--publish-timeout", "2s", "--grace", "1s"})
			}()
			failed := func() bool {
				return strings.Contains(errs.String(), "destination is left alone") || strings.Contains(errs.String(), "message failed") ||
					strings.Contains(errs.String(), "message is dead")
			}
			for !failed() && len(ended) == 0 && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			refused := !failed()
			stop()
			code := <-ended
			if strings.Contains(out.String()+errs.String(), marker) {
				t.Errorf("it is shown:\n%s%s", out.String(), errs.String())
			}
			if refused && code != exitUsage {
				t.Errorf("nothing failed, and the exit code is %d:\n%s", code, errs.String())
			}
		})
	}
}

// TestProcessListShowsNoSecret looks at the arguments of all processes while a command
// has relays in processes of their own.
func TestProcessListShowsNoSecret(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("there is no /proc")
	}
	s := newShell(t)
	s.env["OUTBOX_DSN"] = "sqlite:" + filepath.Join(t.TempDir(), marker+".db")
	p := s.start(nil, nil, "conformance", "--short", "--scenario", "^Relay/KilledRelayIsTakenOver$")
	children := map[string]bool{}
	for running := true; running; {
		select {
		case <-p.done:
			running = false
		default:
		}
		processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range processes {
			args, err := os.ReadFile(path)
			if err != nil {
				continue // it has ended
			}
			if strings.Contains(string(args), marker) {
				t.Fatalf("%q", strings.Split(string(args), "\x00"))
			}
			if status, err := os.ReadFile(filepath.Join(filepath.Dir(path), "stat")); err == nil {
				_, rest, _ := strings.Cut(string(status), ") ")
				if fields := strings.Fields(rest); len(fields) > 1 && fields[1] == strconv.Itoa(p.cmd.Process.Pid) {
					children[path] = true
				}
			}
		}
	}
	if code := p.exit(); code != exitOK || len(children) < 2 {
		t.Errorf("exit code %d, %d child processes:\n%s%s", code, len(children), p.out.String(), p.err.String())
	}
	if strings.Contains(p.out.String()+p.err.String(), marker) {
		t.Errorf("it is shown:\n%s%s", p.out.String(), p.err.String())
	}
}

// TestUnescapedPasswordIsNotShown has passwords that end, for whoever reads the URL, in
// the middle: what follows is then taken for a host, a path or an option.
func TestUnescapedPasswordIsNotShown(t *testing.T) {
	try := func(t *testing.T, url string, s *shell, args ...string) result {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r := s.runUntil(ctx, nil, args...)
		if strings.Contains(r.out+r.err, marker) {
			t.Errorf("%s: %v", url, r)
		}
		return r
	}
	passwords := func(char string) []string {
		return []string{"x" + char + marker, marker + char + "x", char + marker + char + marker}
	}
	for char := range strings.SplitSeq("@ / # ? : % & = + \\ [ ] ; , ' \" `", " ") {
		t.Run(char, func(t *testing.T) {
			t.Parallel()
			for _, password := range passwords(char) {
				for _, scheme := range []string{"postgres", "postgresql", "mysql", "mariadb", "sqlserver", "oracle"} {
					url := scheme + "://app:" + password + "@127.0.0.1:1/shop"
					if scheme == "sqlserver" {
						url += "?dial+timeout=1"
					}
					if r := try(t, url, &shell{t, map[string]string{"OUTBOX_DSN": url}}, "status"); r.code == exitOK {
						t.Errorf("%s is a database", url)
					}
				}
				s := migrated(t)
				for _, scheme := range []string{"nats", "tls", "kafka", "redis", "rediss", "amqp", "amqps", "http", "https"} {
					url := scheme + "://app:" + password + "@127.0.0.1:1/shop"
					s.env["OUTBOX_PUBLISH"] = url
					try(t, url, s, "relay", "--until-empty") // nothing is there to publish
				}
			}
		})
	}
}
