//go:build linux || darwin

package file_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/publish/file"
)

func TestMain(m *testing.M) {
	if path := os.Getenv("FILE_TEST_CHILD"); path != "" {
		child(path, os.Getenv("FILE_TEST_KEY"))
	}
	os.Exit(m.Run())
}

// child publishes for ever and prints the last seq that was accepted.
func child(path, key string) {
	p, err := file.New(path, file.Config{})
	if err != nil {
		panic(err)
	}
	var from int
	if _, err := fmt.Sscan(os.Getenv("FILE_TEST_FROM"), &from); err != nil {
		panic(err)
	}
	for {
		const size = 50
		for _, err := range p.Publish(context.Background(), batch(key, from, size)) {
			if err != nil {
				panic(err)
			}
		}
		from += size
		fmt.Println(from - 1)
	}
}

// TestKilledWritersLoseNothing kills writers that share a file, again and
// again, at moments of chance.
func TestKilledWritersLoseNothing(t *testing.T) {
	const writers, kills = 3, 8
	path := filepath.Join(t.TempDir(), "out.ndjson")
	type end struct {
		writer, accepted int
		err              error
	}
	ends := make(chan end)
	start := func(writer, from int) {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), "FILE_TEST_CHILD="+path, fmt.Sprintf("FILE_TEST_KEY=%d", writer), fmt.Sprintf("FILE_TEST_FROM=%d", from))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Error(err)
			go func() { ends <- end{writer, from - 1, err} }()
			return
		}
		after := 1 + rand.IntN(5) // batches, and then somewhere in the next
		go func() {
			accepted := from - 1
			lines := bufio.NewScanner(out)
			for n := 0; lines.Scan(); n++ {
				_, _ = fmt.Sscan(lines.Text(), &accepted)
				if n == after {
					time.Sleep(rand.N(2 * time.Millisecond)) // chance, not waiting
					_ = cmd.Process.Kill()
				}
			}
			err := cmd.Wait()
			if err != nil && !strings.Contains(err.Error(), "killed") {
				ends <- end{writer, accepted, err}
				return
			}
			ends <- end{writer, accepted, nil}
		}()
	}
	left := make([]int, writers)
	accepted := make([]int, writers)
	for w := range writers {
		left[w] = kills
		start(w, 1)
	}
	for running := writers; running > 0; {
		e := <-ends
		if e.err != nil {
			t.Fatalf("writer %d: %v", e.writer, e.err)
		}
		accepted[e.writer] = e.accepted
		left[e.writer]--
		if left[e.writer] == 0 {
			running--
			continue
		}
		start(e.writer, e.accepted+1)
	}
	// The next to write repairs.
	p := open(t, path)
	for w := range writers {
		if errs := p.Publish(t.Context(), batch(fmt.Sprint(w), accepted[w]+1, 1)); errs != nil {
			t.Fatal(errs)
		}
	}
	last := ordered(t, read(t, path))
	for w := range writers {
		if got := last[fmt.Sprint(w)]; got < accepted[w]+1 {
			t.Errorf("writer %d: %d messages were accepted, and %d are there", w, accepted[w]+1, got)
		}
	}
}

// hold locks the file as another process would.
func hold(t *testing.T, path string) (release func()) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return func() { _ = f.Close() }
}

func TestWaitForTheLockEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.ndjson")
	p := open(t, path)
	release := hold(t, path)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	unavailable(t, p.Publish(ctx, batch("a", 1, 2)), 2)
	unavailable(t, p.Publish(ctx, batch("a", 1, 2)), 2) // behind the first, which waits on
	release()
	messages := batch("a", 1, 1)
	accepted(t, p.Publish(t.Context(), messages))
	accepted(t, open(t, path).Publish(t.Context(), nil)) // the lock is free again
	if got := read(t, path); got != lines(messages) {
		t.Errorf("got:\n%s\nwant:\n%s", got, lines(messages))
	}
}

// TestMovedWhileWaiting moves the file away while a call waits for its lock.
func TestMovedWhileWaiting(t *testing.T) {
	folder := t.TempDir()
	path, old := filepath.Join(folder, "out.ndjson"), filepath.Join(folder, "out.1")
	p := open(t, path)
	release := hold(t, path)
	messages := batch("a", 1, 1)
	done := make(chan []error)
	go func() { done <- p.Publish(t.Context(), messages) }()
	for !opened(t, path) {
		time.Sleep(time.Millisecond)
	}
	if err := os.Rename(path, old); err != nil {
		t.Fatal(err)
	}
	release()
	accepted(t, <-done)
	if read(t, old) != "" || read(t, path) != lines(messages) {
		t.Errorf("old file:\n%s\nnew file:\n%s", read(t, old), read(t, path))
	}
}

// opened tells whether this process has the file open twice: held and waited
// for. Where it cannot be seen, it is assumed.
func opened(t *testing.T, path string) bool {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return true
	}
	n := 0
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && target == path {
			n++
		}
	}
	return n == 2
}

// TestFullDisk lets the system refuse the second half of a write.
func TestFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.ndjson")
	p := open(t, path)
	first := batch("a", 1, 1)
	accepted(t, p.Publish(t.Context(), first))

	signal.Ignore(syscall.SIGXFSZ)
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	limit := before
	limit.Cur = uint64(len(lines(first)) + 700)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	errs := p.Publish(t.Context(), batch("a", 2, 10))
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	unavailable(t, errs, 10)
	if got := read(t, path); got != lines(first) {
		t.Errorf("what was half written stays:\n%s", got)
	}
}

func TestOnlyRegularFiles(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, "/dev/null"} {
		if _, err := file.New(path, file.Config{}); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestStreamIntoAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.ndjson")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	s, err := file.NewStream(f, file.Config{})
	if err != nil {
		t.Fatal(err)
	}
	messages := batch("a", 1, 2)
	accepted(t, s.Publish(t.Context(), messages))
	if got := read(t, path); got != lines(messages) {
		t.Errorf("got:\n%s", got)
	}
	_ = f.Close()
	unavailable(t, s.Publish(t.Context(), messages), 2)
}
