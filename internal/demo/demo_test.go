package demo_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/internal/demo"
	"github.com/outbox-suite/outbox/postgres"
)

func TestMain(m *testing.M) {
	var err error
	if programs, err = os.MkdirTemp("", "outbox-program-"); err != nil {
		panic(err)
	}
	status := containers.Main(m)
	if err := os.RemoveAll(programs); err != nil {
		panic(err)
	}
	os.Exit(status)
}

var programs string // the folder of what the tests build

// program builds the outbox command once.
var program = sync.OnceValues(func() (string, error) {
	path := filepath.Join(programs, "outbox")
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	text, err := exec.Command("go", "build", "-o", path, "github.com/outbox-suite/outbox/cmd/outbox").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return path, err
})

// command is `outbox demo` with its temporary files in a folder of the test.
func command(t *testing.T, env []string, args ...string) (cmd *exec.Cmd, folder string) {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and runs the whole program: left out by -short")
	}
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	folder = t.TempDir()
	cmd = exec.CommandContext(t.Context(), path, append([]string{"demo"}, args...)...)
	cmd.Env = append(os.Environ(), append(env, "TMPDIR="+folder, "TMP="+folder)...)
	return cmd, folder
}

// run runs it to its end.
func run(t *testing.T, env []string, args ...string) (r demo.Report, folder string) {
	t.Helper()
	cmd, folder := command(t, env, append(args, "--json", "--seed", "42")...)
	var out, noise bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &noise
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s%s", err, out.Bytes(), noise.Bytes())
	}
	if noise.Len() > 0 {
		t.Errorf("into a pipe it says: %s", noise.Bytes())
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v: %s", err, out.Bytes())
	}
	t.Logf("%d duplicates, %.1fs", r.Duplicates, r.Seconds)
	switch {
	case !r.OK || len(r.Broken) > 0:
		t.Errorf("broken: %q", r.Broken)
	case r.RelaysKilled != 1 || r.Seed != 42 || r.RolledBack == 0:
		t.Errorf("%+v", r)
	case r.Published != r.Committed || r.Effects != r.Committed || r.Committed != 5*r.Orders+1:
		t.Errorf("%+v", r)
	}
	return r, folder
}

func empty(t *testing.T, folder string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

func TestEmbedded(t *testing.T) {
	_, folder := run(t, nil, "--orders", "60")
	empty(t, folder)
}

func TestKeep(t *testing.T) {
	r, folder := run(t, nil, "--orders", "12", "--writers", "2", "--keep")
	if filepath.Dir(r.Folder) != folder || r.Prefix != "outbox" {
		t.Errorf("kept in %s, tables %s", r.Folder, r.Prefix)
	}
	for _, name := range []string{"shop.db", "billing.db", "messages.ndjson"} {
		if _, err := os.Stat(filepath.Join(r.Folder, name)); err != nil {
			t.Error(err)
		}
	}
}

func TestServer(t *testing.T) {
	for _, server := range containers.Servers(t, "postgres") {
		t.Run(server.Version, func(t *testing.T) {
			db, err := postgres.Open(server.DSN)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			// A schema of its own shows whether anything is left.
			schema := "demo_" + strings.ToLower(rand.Text()[:10])
			if _, err := db.ExecContext(t.Context(), "CREATE SCHEMA "+schema); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if _, err := db.ExecContext(context.Background(), "DROP SCHEMA "+schema); err != nil {
					t.Errorf("something is left: %v", err)
				}
			}()
			u, err := url.Parse(server.DSN)
			if err != nil {
				t.Fatal(err)
			}
			q := u.Query()
			q.Set("search_path", schema)
			u.RawQuery = q.Encode()
			r, folder := run(t, []string{"OUTBOX_DSN=" + u.String()}, "--dsn", "env", "--orders", "40")
			if r.Engine != "postgres" {
				t.Errorf("ran on %s", r.Engine)
			}
			empty(t, folder)
		})
	}
}

// natsServer lets user app in.
func natsServer(t *testing.T) (url string, js jetstream.JetStream) {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: -1, Username: "app", Password: "hunter2", JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the server does not get ready")
	}
	conn, err := natsgo.Connect(s.ClientURL(), natsgo.UserInfo("app", "hunter2"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if js, err = jetstream.New(conn); err != nil {
		t.Fatal(err)
	}
	return "nats://" + s.Addr().String(), js
}

func streams(t *testing.T, js jetstream.JetStream) (names []string) {
	t.Helper()
	for name := range js.StreamNames(t.Context()).Name() {
		names = append(names, name)
	}
	return names
}

func TestNATS(t *testing.T) {
	url, js := natsServer(t)
	env := []string{"OUTBOX_PUBLISH=" + url, "OUTBOX_NATS_USER=app", "OUTBOX_NATS_PASSWORD=hunter2"}
	_, folder := run(t, env, "--orders", "60", "--publish", "env")
	empty(t, folder)
	if left := streams(t, js); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	withUser := strings.Replace(url, "//", "//app:hunter2@", 1)
	r, _ := run(t, nil, "--orders", "12", "--writers", "2", "--keep", "--publish", withUser)
	if left := streams(t, js); len(left) != 1 || left[0] != r.Topic {
		t.Fatalf("kept %q, and there is %q", r.Topic, left)
	}
	stream, err := js.Stream(t.Context(), r.Topic)
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n != uint64(r.Published+r.Duplicates) {
		t.Errorf("the stream has %d messages, and %d were published", n, r.Published)
	}
}

// TestNATSRefusals shows no URL and no password.
func TestNATSRefusals(t *testing.T) {
	url, _ := natsServer(t)
	for publish, want := range map[string]string{
		strings.Replace(url, "//", "//app:sesame@", 1): "connect to the NATS server: nats: Authorization Violation",
		"nats://app:sesame@127.0.0.1:1":                "connect to the NATS server: nats: no servers available",
	} {
		cmd, folder := command(t, nil, "--publish", publish)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), want) || strings.Contains(string(out), "sesame") {
			t.Errorf("got %v: %s", err, out)
		}
		empty(t, folder)
	}
}

// TestInterrupted stops it in the middle, as Ctrl-C does.
func TestInterrupted(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a process cannot be sent an interrupt here")
	}
	cmd, folder := command(t, nil, "--orders", "5000") // more than it comes to
	var noise bytes.Buffer
	cmd.Stderr = &noise
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// It is in the middle when a relay has published.
	deadline := time.Now().Add(time.Minute)
	for {
		found, err := filepath.Glob(filepath.Join(folder, "outbox-demo-*", "messages.ndjson"))
		if err != nil {
			t.Fatal(err)
		}
		if len(found) == 1 {
			if info, err := os.Stat(found[0]); err == nil && info.Size() > 0 {
				break
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing is published")
		}
		time.Sleep(5 * time.Millisecond)
	}
	running := 0
	for _, line := range commandLines(t) {
		if strings.Contains(line, folder) {
			running++
		}
	}
	if running < 2 && runtime.GOOS == "linux" {
		t.Errorf("%d relays run", running) // what is looked for below must be there now
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	err := cmd.Wait()
	if !errors.As(err, &exit) || exit.ExitCode() != 130 || !strings.HasSuffix(noise.String(), ": stopped before its end\n") {
		t.Errorf("got %v: %s", err, noise.Bytes())
	}
	empty(t, folder)
	for _, line := range commandLines(t) {
		if strings.Contains(line, folder) {
			t.Errorf("still runs: %s", line)
		}
	}
}

// commandLines returns those of all processes, where the system has them as files.
func commandLines(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil { // else it has just ended
			lines = append(lines, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	return lines
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		env, args []string
		want      string
	}{
		{nil, []string{"--orders", "0"}, "orders: give a number from 1"},
		{nil, []string{"--writers", "x"}, "writers: give a number from 1"},
		{nil, []string{"--dsn", "nothing"}, "dsn has no scheme"},
		{[]string{"OUTBOX_DSN="}, []string{"--dsn", "env"}, "OUTBOX_DSN is not set"},
		{[]string{"OUTBOX_PUBLISH="}, []string{"--publish", "env"}, "OUTBOX_PUBLISH is not set"},
		{nil, []string{"--publish", "file:x"}, "knows how for nats://"},
		{nil, []string{"--publish", "nats://h/?prefix=x"}, `option "prefix" is unknown`},
	} {
		cmd, folder := command(t, c.env, c.args...)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(string(out), c.want) {
			t.Errorf("%q: got %v: %s", c.args, err, out)
		}
		empty(t, folder)
	}
}
