//go:build unix

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// program is a command in a process of its own.
type program struct {
	t        *testing.T
	cmd      *exec.Cmd
	out, err buffer
	done     chan struct{} // closed when it has ended
}

// start starts a command in a process with the shell's environment.
func (s *shell) start(stdin io.Reader, stdout io.Writer, args ...string) *program {
	s.t.Helper()
	p := &program{t: s.t, cmd: exec.CommandContext(s.t.Context(), os.Args[0], args...), done: make(chan struct{})}
	p.cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "OUTBOX_") })
	p.cmd.Env = append(p.cmd.Env, mainVariable+"=1")
	for name, value := range s.env {
		p.cmd.Env = append(p.cmd.Env, name+"="+value)
	}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = stdin, &p.out, &p.err
	if stdout != nil {
		p.cmd.Stdout = stdout
	}
	if err := p.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // ProcessState has the exit code
		close(p.done)
	}()
	s.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	return p
}

// exit waits for the end and returns the exit code, -1 after a SIGKILL.
func (p *program) exit() int {
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}

func (p *program) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// logs waits until standard error holds a text.
func (p *program) logs(text string) {
	p.t.Helper()
	for !strings.Contains(p.err.String(), text) {
		select {
		case <-p.done:
			p.t.Fatalf("ended with %d before it logged %q:\n%s", p.exit(), text, p.err.String())
		case <-time.After(time.Millisecond):
		}
	}
}

// endpoint accepts posts when release is closed.
func endpoint(t *testing.T) (url string, arrived, release chan struct{}) {
	t.Helper()
	arrived, release = make(chan struct{}, 100), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // else the server does not see the client go
		arrived <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(s.Close)
	return s.URL + "#allow=127.0.0.1", arrived, release
}

func TestExitCodes(t *testing.T) {
	s := migrated(t)
	s.ok(order, "enqueue")
	for _, test := range []struct {
		args string
		want int
	}{
		{"version", 0},
		{"status", 0},
		{"status --prefix none", 1},
		{"relay", 2},
		{"health --max-age 1ns", 3},
	} {
		if got := s.start(nil, nil, strings.Fields(test.args)...).exit(); got != test.want {
			t.Errorf("outbox %s exits with %d, want %d", test.args, got, test.want)
		}
	}
}

func TestSignalStopsRelayInOrder(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			s := migrated(t)
			s.enqueueKeys("orders", 1, "a")
			url, arrived, release := endpoint(t)
			p := s.start(nil, nil, "relay", "--publish", url, "--grace", "1h", "--publish-timeout", "1h")
			<-arrived
			p.signal(sig)
			p.logs("relay is stopping")
			close(release) // what is under way is finished
			if code := p.exit(); code != 0 {
				t.Errorf("exit code %d, want 0:\n%s", code, p.err.String())
			}
			if ready, held := s.status("ready"), s.status("lanes_held"); ready != 0 || held != 0 {
				t.Errorf("%d ready, %d lanes held after a stop in order", ready, held)
			}
			if !strings.Contains(p.err.String(), "published=1") {
				t.Errorf("the log does not tell what was done:\n%s", p.err.String())
			}
		})
	}
}

func TestSecondSignalStopsAtOnce(t *testing.T) {
	for sig, want := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		t.Run(sig.String(), func(t *testing.T) {
			s := migrated(t)
			s.enqueueKeys("orders", 1, "a")
			url, arrived, _ := endpoint(t)
			p := s.start(nil, nil, "relay", "--publish", url, "--grace", "1h", "--publish-timeout", "1h")
			<-arrived
			p.signal(sig)
			p.logs("relay is stopping")
			p.signal(sig)
			if code := p.exit(); code != want {
				t.Errorf("exit code %d, want %d", code, want)
			}
			if n := s.status("ready"); n != 1 {
				t.Errorf("%d ready, want the one that was under way", n)
			}
		})
	}
}

func TestSignalEndsEnqueue(t *testing.T) {
	s := migrated(t)
	in, feed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer feed.Close()
	p := s.start(in, nil, "enqueue", "--tx-size", "2")
	if _, err := feed.WriteString(strings.Repeat(order, 3)); err != nil {
		t.Fatal(err)
	}
	for s.status("ready") < 2 {
		time.Sleep(time.Millisecond)
	}
	p.signal(os.Interrupt)
	if code := p.exit(); code != 130 || !strings.Contains(p.err.String(), "lines 1-2 are committed") {
		t.Errorf("exit code %d:\n%s", code, p.err.String())
	}
}

// TestReaderGoesAway closes the pipe that a relay writes to.
func TestReaderGoesAway(t *testing.T) {
	s := migrated(t)
	s.enqueueKeys("orders", 1, "a")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	p := s.start(nil, w, "relay", "--publish", "stdout:")
	_ = w.Close()
	if code := p.exit(); code != 1 || !strings.Contains(p.err.String(), "standard output was closed") {
		t.Errorf("exit code %d:\n%s", code, p.err.String())
	}
	if ready, held := s.status("ready"), s.status("lanes_held"); ready != 1 || held != 0 {
		t.Errorf("%d ready and %d lanes held, want 1 and 0", ready, held)
	}
}

// killLines is how many messages the kill test has: OUTBOX_TEST_KILL_LINES, or
// a number that is quick.
func killLines(t *testing.T) int {
	t.Helper()
	if s := os.Getenv("OUTBOX_TEST_KILL_LINES"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1000 {
			t.Fatalf("OUTBOX_TEST_KILL_LINES is %q: give a number from 1000 up", s)
		}
		return n
	}
	if testing.Short() {
		return 1000
	}
	return 1500
}

// TestKilledRelaysLoseNothing: relays in four processes share the lanes and the
// file they publish to. Two are killed by SIGKILL on the way, twice, and others
// take their place.
func TestKilledRelaysLoseNothing(t *testing.T) {
	onEveryEngine(t, func(t *testing.T, s *shell) {
		const relays, workers, lease = 4, 2, "2s"
		n := killLines(t)
		keys, batch := n/50, max(25, n/200)
		var in bytes.Buffer
		for i := range n {
			fmt.Fprintf(&in, `{"topic":"orders","key":"k%d","type":"order.changed","revision":%d,"data":{"n":%d}}`+"\n", i%keys, i/keys+1, i)
		}
		began := time.Now()
		ids := strings.Fields(s.ok(in.String(), "enqueue", "--print-ids"))
		enqueued := time.Since(began)

		path := filepath.Join(t.TempDir(), "out.ndjson")
		const victims = 2
		parts := []int{n / 4, n / 2} // of the messages, at which the victims are killed
		start := func(more ...string) *program {
			return s.start(nil, nil, append([]string{
				"relay", "--publish", "file:" + path, "--lease", lease,
				"--workers", fmt.Sprint(workers), "--batch", fmt.Sprint(batch),
			}, more...)...)
		}
		began = time.Now()
		running := make([]*program, relays)
		for i := range running {
			if i < victims {
				running[i] = start() // nothing else ends it
			} else {
				running[i] = start("--until-empty")
			}
		}
		all := slices.Clone(running)
		kills := 0
		for round, part := range parts {
			awaitLines(t, path, part, running)
			for i := range victims {
				running[i].signal(syscall.SIGKILL)
				if code := running[i].exit(); code != -1 {
					t.Fatalf("relay %d ended with %d before it could be killed:\n%s", i, code, running[i].err.String())
				}
				kills++
				if round < len(parts)-1 {
					running[i] = start()
				} else {
					running[i] = start("--until-empty")
				}
				all = append(all, running[i])
			}
		}
		lost := false // a lease, by a machine too slow for it
		for i, p := range running {
			if code := p.exit(); code != 0 {
				t.Errorf("relay %d ended with %d:\n%s", i, code, p.err.String())
			}
		}
		for _, p := range all {
			lost = lost || strings.Contains(p.err.String(), "lease lost")
		}
		drained := time.Since(began)

		duplicates := checkHistory(t, readFile(t, path), ids, keys)
		if most := kills * workers * batch; duplicates > most && !lost {
			t.Errorf("%d duplicates, and at most %d were under way in the relays that were killed", duplicates, most)
		}
		for _, state := range []string{"ready", "scheduled", "retry", "held", "dead"} {
			if left := s.status(state); left != 0 {
				t.Errorf("%d messages are %s in the end", left, state)
			}
		}
		t.Logf("%d messages enqueued in %v, drained in %v with %d kills, %d duplicates", n,
			enqueued.Round(time.Millisecond), drained.Round(time.Millisecond), kills, duplicates)
	})
}

// awaitLines waits until the file has n lines. Running relays that are to be
// killed must still be at work then.
func awaitLines(t *testing.T, path string, n int, running []*program) {
	t.Helper()
	for {
		text, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if bytes.Count(text, []byte("\n")) >= n {
			return
		}
		select {
		case <-running[0].done:
			t.Fatalf("a relay ended with %d:\n%s", running[0].exit(), running[0].err.String())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// checkHistory compares what was published with what was committed, message i
// having key i%keys and revision i/keys+1, and returns how many were published
// again.
func checkHistory(t *testing.T, text string, ids []string, keys int) (duplicates int) {
	t.Helper()
	place := make(map[string]int, len(ids))
	for i, id := range ids {
		place[id] = i
	}
	seen := make(map[string]bool, len(ids))
	lastSequence, lastRevision := make(map[string]int64), make(map[string]int64)
	number := func(s string) int64 {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for line, e := range events(t, text) {
		i, ok := place[e.ID]
		switch {
		case !ok:
			t.Fatalf("line %d: id %s was never committed", line+1, e.ID)
		case e.Subject != fmt.Sprintf("k%d", i%keys) || string(e.Data) != fmt.Sprintf(`{"n":%d}`, i):
			t.Fatalf("line %d: message %d came as %+v", line+1, i, e)
		case seen[e.ID]:
			duplicates++
			continue
		}
		seen[e.ID] = true
		sequence, revision := number(e.Sequence), number(e.Revision)
		if sequence <= lastSequence[e.Subject] || revision != lastRevision[e.Subject]+1 {
			t.Fatalf("line %d: key %s has sequence %d after %d, revision %d after %d", line+1, e.Subject,
				sequence, lastSequence[e.Subject], revision, lastRevision[e.Subject])
		}
		lastSequence[e.Subject], lastRevision[e.Subject] = sequence, revision
	}
	if len(seen) != len(ids) {
		t.Fatalf("%d of %d messages are lost", len(ids)-len(seen), len(ids))
	}
	return duplicates
}

// TestRelayWithoutCollector delivers all the same, and says so without the headers, which
// hold passwords: not even where OpenTelemetry writes to standard error by itself.
func TestRelayWithoutCollector(t *testing.T) {
	s := migrated(t)
	gone := httptest.NewServer(nil)
	gone.Close()
	s.env["OTEL_EXPORTER_OTLP_ENDPOINT"] = gone.URL
	s.env["OTEL_EXPORTER_OTLP_HEADERS"] = "authorization hunter2"
	s.env["OTEL_EXPORTER_OTLP_TIMEOUT"] = "100"
	s.ok(`{"topic":"orders","key":"a","type":"order.changed","headers":{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}`, "enqueue")
	p := s.start(nil, nil, "relay", "--publish", "stdout:", "--until-empty")
	code, out, errs := p.exit(), p.out.String(), p.err.String()
	if code != exitOK || !strings.Contains(out, "order.changed") || strings.Contains(errs, "hunter2") ||
		!strings.Contains(errs, "traces are lost") && !strings.Contains(errs, "telemetry is incomplete") {
		t.Errorf("exit code %d\n%s\n%s", code, out, errs)
	}
}
