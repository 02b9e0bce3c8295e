package containers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// Environment variables; doc.go says what they mean.
const (
	envRequire    = "OUTBOX_REQUIRE"
	envContainers = "OUTBOX_TEST_CONTAINERS"
)

func envDSN(engine string) string { return "OUTBOX_TEST_" + strings.ToUpper(engine) + "_DSN" }

func envImage(engine, version string) string {
	return "OUTBOX_IMAGE_" + strings.ToUpper(engine) + "_" + strings.NewReplacer(".", "_", "-", "_").Replace(version)
}

// programs are what OUTBOX_REQUIRE may name besides engines. The tests that need one
// look for it themselves.
var programs = []string{
	"chromium", "docker", "fish", "kafka", "mandoc", "pgbouncer", "promtool", "rabbitmq", "redis-server", "redpanda", "systemd-analyze", "zsh",
}

// A fleet is what one process has of one engine.
type fleet struct {
	once    sync.Once
	servers []*Server
	notRun  []string // why a version of the built-in list is not among servers
	err     error    // what should have worked and did not
}

var (
	mainRuns atomic.Bool
	mu       sync.Mutex
	fleets   = map[string]*fleet{}
)

// Main runs the tests of a package that calls [Servers], removes the containers that
// Servers started, and returns the status to exit with.
func Main(m *testing.M) int {
	mainRuns.Store(true)
	status := m.Run()
	if err := terminateAll(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "containers:", err)
		return max(status, 1)
	}
	return status
}

func terminateAll(ctx context.Context) error {
	mu.Lock()
	defer mu.Unlock()
	var errs []error
	for _, f := range fleets {
		for _, s := range f.servers {
			if s.CanRestart() {
				errs = append(errs, s.Terminate(ctx))
			}
		}
	}
	clear(fleets)
	return errors.Join(errs...)
}

// Servers returns the servers that the tests of an engine should run against: each
// existing one that the environment names, and one in a container for each version
// this package lists, if a Docker engine answers and has or can pull the image. They
// are started by the first call and shared by all tests of the process. Servers is
// safe for concurrent use.
//
// Where OUTBOX_REQUIRE asks for a server that is not among them, Servers fails the
// test; where there is none at all, it skips the test. Both say what would help. A
// server that is named by its DSN and does not answer, and a container that does not
// start, fail the test in any case.
//
// It panics if the package's TestMain does not call [Main], without which the
// containers would stay.
func Servers(tb testing.TB, engine string) []*Server {
	tb.Helper()
	if !mainRuns.Load() {
		panic("containers.Servers needs: func TestMain(m *testing.M) { os.Exit(containers.Main(m)) }")
	}
	if e, ok := engines[engine]; !ok || e.embedded {
		tb.Fatalf("containers: there are no servers of engine %q", engine)
	}

	mu.Lock()
	f := fleets[engine]
	if f == nil {
		f = new(fleet)
		fleets[engine] = f
	}
	mu.Unlock()
	f.once.Do(func() { f.gather(tb.Context(), engine) })

	missing, err := missing(os.Getenv(envRequire), engine, f.servers)
	if err := errors.Join(f.err, err); err != nil {
		tb.Fatalf("containers: %v", err)
	}
	// On one line, whatever the errors in it look like.
	why := strings.Join(strings.Fields(strings.Join(f.notRun, "; ")), " ")
	switch remedy := remedy(engine); {
	case len(missing) > 0:
		var have []string
		for _, s := range f.servers {
			have = append(have, s.String())
		}
		tb.Fatalf("%s requires %s, but there is only %q; not run: %q. %s",
			envRequire, strings.Join(missing, " and "), have, why, remedy)
	case len(f.servers) == 0:
		tb.Skipf("not run on %s: %s. %s", engine, why, remedy)
	case why != "":
		tb.Logf("not run on every %s: %s. %s", engine, why, remedy)
	}
	return slices.Clone(f.servers)
}

// gather finds and starts the servers of an engine.
func (f *fleet) gather(ctx context.Context, name string) {
	e := engines[name]
	dsns := strings.Fields(os.Getenv(envDSN(name)))
	for i, dsn := range dsns {
		s := &Server{Engine: name, DSN: dsn, from: envDSN(name)}
		if err := s.check(ctx); err != nil {
			f.err = errors.Join(f.err, fmt.Errorf("%s: DSN %d of %d: %w", envDSN(name), i+1, len(dsns), err))
			continue
		}
		f.servers = append(f.servers, s)
	}
	if len(dsns) == 0 {
		f.notRun = append(f.notRun, envDSN(name)+" is empty")
	}

	images, left, err := chosen(os.Getenv(envContainers), name, e.images)
	if err != nil {
		f.err = errors.Join(f.err, err)
		return
	}
	if left != "" {
		f.notRun = append(f.notRun, left)
	}
	if len(images) == 0 {
		return
	}
	docker, err := dockerClient(ctx)
	if err != nil {
		f.notRun = append(f.notRun, err.Error())
		return
	}
	if err := sweep(ctx, docker); err != nil {
		f.err = errors.Join(f.err, fmt.Errorf("remove containers left over: %w", err))
	}
	for _, image := range images {
		ref := image.ref
		if own := os.Getenv(envImage(name, image.version)); own != "" {
			ref = own
		}
		if err := obtain(ctx, docker, ref); err != nil {
			f.notRun = append(f.notRun, fmt.Sprintf("image %s cannot be had: %v", ref, err))
			continue
		}
		s, err := startContainer(ctx, docker, name, ref)
		if err != nil {
			f.err = errors.Join(f.err, fmt.Errorf("start %s: %w", ref, err))
			continue
		}
		f.servers = append(f.servers, s)
	}
}

// chosen returns the images of an engine that OUTBOX_TEST_CONTAINERS wants to be
// started, and says which it leaves out. A name that no engine or image has is an
// error: spelled wrongly, it would leave everything out.
func chosen(want, engine string, images []image) (some []image, left string, err error) {
	want = strings.TrimSpace(want)
	switch want {
	case "":
		return images, "", nil
	case "off":
		return nil, envContainers + " is off", nil
	}
	wanted := make(map[string]bool) // by version, "" is all
	for entry := range strings.SplitSeq(want, ",") {
		name, version, _ := strings.Cut(strings.TrimSpace(entry), ":")
		e, known := engines[name]
		if !known || version != "" && !slices.ContainsFunc(e.images, func(i image) bool { return i.version == version }) {
			return nil, "", fmt.Errorf("%s names %q, which is neither an engine nor one of its versions with a colon before it", envContainers, strings.TrimSpace(entry))
		}
		if name == engine {
			wanted[version] = true
		}
	}
	var out []string
	for _, i := range images {
		if wanted[""] || wanted[i.version] {
			some = append(some, i)
		} else {
			out = append(out, i.version)
		}
	}
	if len(out) > 0 {
		left = fmt.Sprintf("%s leaves out %s", envContainers, strings.Join(out, " and "))
	}
	return some, left, nil
}

// check connects to a server given by its DSN and reads its version.
func (s *Server) check(ctx context.Context) error {
	e := engines[s.Engine]
	scheme, _, ok := strings.Cut(s.DSN, "://")
	if !ok || !slices.Contains(e.schemes, scheme) {
		// Not the DSN itself: it may hold a password.
		return fmt.Errorf("does not begin with %s://", strings.Join(e.schemes, ":// or "))
	}
	var err error
	s.Version, err = serverVersion(ctx, e, s.DSN)
	return err
}

// missing returns the entries of OUTBOX_REQUIRE that name the engine and that no
// server satisfies. A name that no engine has is an error: spelled wrongly, it would
// require nothing.
func missing(require, engine string, servers []*Server) ([]string, error) {
	var names []string
	for entry := range strings.SplitSeq(require, ",") {
		entry = strings.TrimSpace(entry)
		if entry == "" {
			continue
		}
		name, version, _ := strings.Cut(entry, ":")
		if slices.Contains(programs, entry) {
			continue
		}
		if _, known := engines[name]; !known {
			return nil, fmt.Errorf("%s names %q; the engines are %s, the programs %s",
				envRequire, name, strings.Join(slices.Sorted(maps.Keys(engines)), ", "), strings.Join(programs, ", "))
		}
		satisfies := func(s *Server) bool {
			return version == "" || s.Version == version || strings.HasPrefix(s.Version, version+".")
		}
		if name == engine && !slices.ContainsFunc(servers, satisfies) {
			names = append(names, entry)
		}
	}
	return names, nil
}

// remedy says how to give the tests of an engine more servers.
func remedy(name string) string {
	e := engines[name]
	var images []string
	for _, image := range e.images {
		images = append(images, fmt.Sprintf("%s (or what %s names)", image.ref, envImage(name, image.version)))
	}
	return fmt.Sprintf("To run it, name existing servers in %s='%s://user:password@host/database ...', or start Docker with image %s.",
		envDSN(name), e.schemes[0], strings.Join(images, " and "))
}
