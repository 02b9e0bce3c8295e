package containers

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// The environment variable that makes this test binary ask for servers as some other
// package's test would, and die if it says so.
const envProbe = "OUTBOX_CONTAINERS_PROBE"

func TestProbe(t *testing.T) {
	engine, fate, _ := strings.Cut(os.Getenv(envProbe), " ")
	if engine == "" {
		t.Skip("only for the tests below, in a process of its own")
	}
	for _, s := range Servers(t, engine) {
		t.Logf("got %v", s)
	}
	if fate == "crash" {
		os.Exit(3)
	}
}

// probe runs TestProbe in a process with this environment on top, and returns what
// it printed and whether it passed or skipped.
func probe(t *testing.T, what string, env ...string) (output string, ok bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProbe$", "-test.v")
	cmd.Env = os.Environ()
	for _, unset := range []string{"OUTBOX_TEST_POSTGRES_DSN", "OUTBOX_REQUIRE", "OUTBOX_TEST_CONTAINERS"} {
		cmd.Env = append(cmd.Env, unset+"=")
	}
	cmd.Env = append(cmd.Env, env...)
	cmd.Env = append(cmd.Env, envProbe+"="+what)
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

// Where a server is missing, the outcome depends on what is required, and the text
// says what would help.
func TestServersMissing(t *testing.T) {
	const unreachable = "OUTBOX_TEST_POSTGRES_DSN=postgres://u:hushhush@127.0.0.1:1/db"
	for _, c := range []struct {
		name   string
		engine string
		env    []string
		ok     bool
		says   []string
	}{
		{
			"nothing is required", "postgres", nil, true,
			[]string{"SKIP", "not run on postgres", "OUTBOX_TEST_POSTGRES_DSN is empty", "OUTBOX_TEST_CONTAINERS is off", "OUTBOX_TEST_POSTGRES_DSN='postgres://"},
		},
		{
			"another engine is required", "postgres",
			[]string{"OUTBOX_REQUIRE=sqlite,redis-server"},
			true,
			[]string{"SKIP"},
		},
		{
			"the engine is required", "postgres",
			[]string{"OUTBOX_REQUIRE=sqlite,postgres"},
			false,
			[]string{"FAIL", "requires postgres, but", "OUTBOX_TEST_POSTGRES_DSN='postgres://"},
		},
		{
			"a version is required", "postgres",
			[]string{"OUTBOX_REQUIRE=sqlite, postgres:15"},
			false,
			[]string{"FAIL", "requires postgres:15, but"},
		},
		{
			"what is required does not exist", "postgres",
			[]string{"OUTBOX_REQUIRE=postgre"},
			false,
			[]string{"FAIL", `names "postgre"`, "postgres, sqlite"},
		},
		{
			"a DSN does not answer", "postgres",
			[]string{unreachable},
			false,
			[]string{"FAIL", "OUTBOX_TEST_POSTGRES_DSN: DSN 1 of 1"},
		},
		{
			"a DSN is not one", "postgres",
			[]string{"OUTBOX_TEST_POSTGRES_DSN=host=h password=hushhush"},
			false,
			[]string{"FAIL", "does not begin with postgres://"},
		},
		{
			"the engine is embedded", "sqlite", nil, false,
			[]string{"FAIL", `no servers of engine "sqlite"`},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			out, ok := probe(t, c.engine, append([]string{"OUTBOX_TEST_CONTAINERS=off"}, c.env...)...)
			if ok != c.ok {
				t.Errorf("passed or skipped: %v, want %v", ok, c.ok)
			}
			for _, want := range c.says {
				if !strings.Contains(out, want) {
					t.Errorf("the output does not say %q", want)
				}
			}
			if strings.Contains(out, "hushhush") {
				t.Error("the output has the password")
			}
			if t.Failed() {
				t.Logf("output:\n%s", out)
			}
		})
	}
}

// An image that cannot be had is a reason like any other.
func TestServersWithoutImage(t *testing.T) {
	restartable(t) // so there is an engine to ask for it
	const noImage = "OUTBOX_IMAGE_POSTGRES_18=127.0.0.1:1/no/such:image"
	const one = "OUTBOX_TEST_CONTAINERS=postgres:18"
	if out, ok := probe(t, "postgres", one, noImage); !ok || !strings.Contains(out, "SKIP") {
		t.Errorf("does not skip:\n%s", out)
	}
	if out, ok := probe(t, "postgres", one, noImage, "OUTBOX_REQUIRE=postgres"); ok || !strings.Contains(out, "requires postgres, but") {
		t.Errorf("does not fail where it is required:\n%s", out)
	}
}

// Existing servers are found, and required versions are compared with the server's own.
func TestServersByDSN(t *testing.T) {
	for _, s := range Servers(t, "postgres") {
		major, _, _ := strings.Cut(s.Version, ".")
		env := []string{"OUTBOX_TEST_CONTAINERS=off", "OUTBOX_TEST_POSTGRES_DSN=" + s.DSN + " " + s.DSN}

		out, ok := probe(t, "postgres", append(env, "OUTBOX_REQUIRE=postgres,postgres:"+major)...)
		if !ok || strings.Count(out, "got postgres "+s.Version) != 2 {
			t.Errorf("does not find %v:\n%s", s, out)
		}
		out, ok = probe(t, "postgres", append(env, "OUTBOX_REQUIRE=postgres:"+major[:1])...)
		if ok || !strings.Contains(out, "requires postgres:"+major[:1]+", but") {
			t.Errorf("takes version %s for version %s:\n%s", s.Version, major[:1], out)
		}
	}
}

// A process that dies without cleaning up loses its container to the next one, and
// one that ends as it should leaves none.
func TestContainersDoNotStay(t *testing.T) {
	restartable(t) // so there is an engine and an image
	docker, err := dockerClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	orphans := func() (ids []string) {
		t.Helper()
		all, err := list(t.Context(), docker)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range all {
			if gone(c.pid) {
				ids = append(ids, c.id)
			}
		}
		return ids
	}

	const one = "OUTBOX_TEST_CONTAINERS=postgres:18"
	out, _ := probe(t, "postgres crash", one, "TESTCONTAINERS_RYUK_DISABLED=true")
	crashed := orphans()
	if len(crashed) == 0 {
		t.Fatalf("a process that died left nothing, so this test shows nothing:\n%s", out)
	}
	if out, ok := probe(t, "postgres", one); !ok {
		t.Fatalf("the next process failed:\n%s", out)
	}
	// Removal is no single moment, and processes of other packages sweep too.
	deadline := time.After(2 * time.Minute)
	for {
		left := orphans()
		if !slices.ContainsFunc(crashed, func(id string) bool { return slices.Contains(left, id) }) {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("containers %v are still there", left)
		case <-time.After(pollInterval):
		}
	}
}

// What is started can be chosen, and a name spelled wrongly is not taken for nothing.
func TestChosen(t *testing.T) {
	images := engines["mysql"].images
	for _, c := range []struct{ want, some, left, err string }{
		{"", "8.4 9.7", "", ""},
		{"off", "", "is off", ""},
		{"mysql", "8.4 9.7", "", ""},
		{"postgres:18, mysql:9.7", "9.7", "leaves out 8.4", ""},
		{"mysql:8.4,mysql:9.7", "8.4 9.7", "", ""},
		{"postgres", "", "leaves out 8.4 and 9.7", ""},
		{"mysql:9", "", "", `names "mysql:9"`},
		{"mysq", "", "", `names "mysq"`},
	} {
		some, left, err := chosen(c.want, "mysql", images)
		var versions []string
		for _, i := range some {
			versions = append(versions, i.version)
		}
		if got := strings.Join(versions, " "); got != c.some {
			t.Errorf("%q starts %q, want %q", c.want, got, c.some)
		}
		if !strings.Contains(left, c.left) || (c.left == "" && left != "") {
			t.Errorf("%q says of what is left out %q, want %q", c.want, left, c.left)
		}
		if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: error %v, want %q", c.want, err, c.err)
		}
	}
}
