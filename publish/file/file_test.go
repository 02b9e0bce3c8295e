package file_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/publish/cloudevents"
	"github.com/outbox-suite/outbox/publish/file"
	"github.com/outbox-suite/outbox/relay"
)

// batch returns messages of the key with seq from..from+n-1.
func batch(key string, from, n int) []relay.Message {
	messages := make([]relay.Message, n)
	for i := range messages {
		messages[i] = relay.Message{
			Message: outbox.Message{
				ID: uuid.New(), Topic: "orders", Key: key, Type: "order.changed", ContentType: "application/json",
				Payload: fmt.Appendf(nil, `{"n":%d}`, from+i),
			},
			Seq: int64(from + i), Attempt: 1, CreatedAt: time.Unix(1_770_000_000, 0),
		}
	}
	return messages
}

func lines(messages []relay.Message) string {
	var b strings.Builder
	for i := range messages {
		b.Write(cloudevents.Append(nil, cloudevents.DefaultSource, &messages[i]))
		b.WriteByte('\n')
	}
	return b.String()
}

func open(t *testing.T, path string) *file.Publisher {
	t.Helper()
	p, err := file.New(path, file.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// accepted fails unless every message was.
func accepted(t *testing.T, errs []error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
}

// unavailable fails unless every message failed for the file's sake.
func unavailable(t *testing.T, errs []error, n int) {
	t.Helper()
	if len(errs) != n {
		t.Fatalf("%d results, want %d", len(errs), n)
	}
	for i, err := range errs {
		if !relay.IsUnavailable(err) {
			t.Fatalf("message %d: %v, want unavailable", i, err)
		}
	}
}

func TestAppendsInOrder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.ndjson")
	p := open(t, path)
	if !p.KeepsOrder() {
		t.Error("does not keep order")
	}
	first, second := batch("a", 1, 3), batch("a", 4, 2)
	accepted(t, p.Publish(t.Context(), first))
	accepted(t, open(t, path).Publish(t.Context(), second))
	if got, want := read(t, path), lines(first)+lines(second); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestTornLineIsRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.ndjson")
	whole := lines(batch("a", 1, 2))
	torn := strings.TrimSuffix(lines(batch("a", 3, 1)), "\n")
	long := torn[:len(torn)-1] + strings.Repeat("x", 20_000)
	next := batch("b", 1, 1)
	tails := []string{long, strings.Repeat("\x00", 10), torn[:5] + strings.Repeat("\x00", 5000)}
	for cut := 1; cut <= len(torn); cut += 1 + cut/8 {
		tails = append(tails, torn[:cut])
	}
	tails = append(tails, torn)
	for _, before := range []string{"", whole} {
		for _, tail := range tails {
			write(t, path, before+tail)
			accepted(t, open(t, path).Publish(t.Context(), next))
			if got, want := read(t, path), before+lines(next); got != want {
				t.Fatalf("after a line cut to %d bytes, got:\n%s\nwant:\n%s", len(tail), got, want)
			}
		}
	}
}

func TestForeignTextIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notes.txt")
	for _, text := range []string{"not ended", "one\nnot ended", `{"specversion":"0.3"`, "{\n{ "} {
		write(t, path, text)
		errs := open(t, path).Publish(t.Context(), batch("a", 1, 2))
		unavailable(t, errs, 2)
		if !strings.Contains(errs[0].Error(), "no relay wrote") {
			t.Errorf("error %q does not say what is wrong", errs[0])
		}
		if got := read(t, path); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
	write(t, path, "ended\n")
	messages := batch("a", 1, 1)
	accepted(t, open(t, path).Publish(t.Context(), messages))
	if got, want := read(t, path), "ended\n"+lines(messages); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestMovedFileIsMadeAnew(t *testing.T) {
	folder := t.TempDir()
	path, old := filepath.Join(folder, "out.ndjson"), filepath.Join(folder, "out.1")
	p := open(t, path)
	first, second := batch("a", 1, 1), batch("a", 2, 1)
	accepted(t, p.Publish(t.Context(), first))
	if err := os.Rename(path, old); err != nil {
		t.Fatal(err)
	}
	accepted(t, p.Publish(t.Context(), second))
	if read(t, old) != lines(first) || read(t, path) != lines(second) {
		t.Errorf("old file:\n%s\nnew file:\n%s", read(t, old), read(t, path))
	}
}

func TestNewRefuses(t *testing.T) {
	folder := t.TempDir()
	for name, path := range map[string]string{
		"a folder":           folder,
		"a missing folder":   filepath.Join(folder, "missing", "out.ndjson"),
		"an empty path":      "",
		"a path with a NUL":  "a\x00b",
		"a folder by a name": filepath.Join(folder, "."),
	} {
		if _, err := file.New(path, file.Config{}); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	path := filepath.Join(folder, "out.ndjson")
	if _, err := file.New(path, file.Config{Source: "a b"}); err == nil {
		t.Error("a source that is no URI reference is accepted")
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Error("the file is made although the configuration is refused")
	}
}

func TestNewFileIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.ndjson")
	open(t, path)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if mode := info.Mode().Perm(); os.PathSeparator == '/' && mode&0o077 != 0 {
		t.Errorf("mode is %v: others can read it", mode)
	}
}

func TestEndedContextWritesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.ndjson")
	p := open(t, path)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 { // whichever the select chooses
		unavailable(t, p.Publish(ctx, batch("a", 1, 1)), 1)
	}
	if got := read(t, path); got != "" {
		t.Errorf("wrote %q", got)
	}
	var w writer
	s, err := file.NewStream(&w, file.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		unavailable(t, s.Publish(ctx, batch("a", 1, 1)), 1)
	}
	if w.Len() > 0 {
		t.Errorf("wrote %q", w.String())
	}
}

// writer records, and fails from byte fail on.
type writer struct {
	bytes.Buffer
	fail int
}

func (w *writer) Write(b []byte) (int, error) {
	if room := w.fail - w.Len(); w.fail > 0 && len(b) > room {
		n, _ := w.Buffer.Write(b[:room])
		return n, io.ErrClosedPipe
	}
	return w.Buffer.Write(b)
}

func TestStream(t *testing.T) {
	var w writer
	s, err := file.NewStream(&w, file.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if !s.KeepsOrder() {
		t.Error("does not keep order")
	}
	messages := batch("a", 1, 3)
	accepted(t, s.Publish(t.Context(), messages))
	if got := w.String(); got != lines(messages) {
		t.Errorf("got:\n%s\nwant:\n%s", got, lines(messages))
	}
	w.fail = w.Len() + 10
	errs := s.Publish(t.Context(), messages)
	unavailable(t, errs, 3)
	if !errors.Is(errs[0], io.ErrClosedPipe) {
		t.Errorf("error %v hides its cause", errs[0])
	}
	if _, err := file.NewStream(&w, file.Config{Source: "a b"}); err == nil {
		t.Error("a source that is no URI reference is accepted")
	}
}

func TestConcurrentCallsDoNotMix(t *testing.T) {
	const callers, calls, size = 4, 20, 5
	path := filepath.Join(t.TempDir(), "out.ndjson")
	shared := open(t, path)
	done := make(chan []error)
	for c := range callers {
		p := shared
		if c%2 == 1 {
			p = open(t, path) // as another process has it
		}
		go func() {
			var errs []error
			for i := range calls {
				errs = append(errs, p.Publish(t.Context(), batch(fmt.Sprint(c), i*size+1, size))...)
			}
			done <- errs
		}()
	}
	for range callers {
		accepted(t, <-done)
	}
	text := read(t, path)
	last := ordered(t, text)
	for c := range callers {
		if got := last[fmt.Sprint(c)]; got != calls*size {
			t.Errorf("caller %d has %d messages, want %d", c, got, calls*size)
		}
	}
	if got := strings.Count(text, "\n"); got != callers*calls*size {
		t.Errorf("%d lines, want %d", got, callers*calls*size)
	}
}

// ordered fails on a line that is torn, and on a key whose first occurrences
// are not 1, 2, 3 and so on. It returns the last of each key.
func ordered(t *testing.T, text string) map[string]int {
	t.Helper()
	seen, n := make(map[string]int), 0
	if text != "" && !strings.HasSuffix(text, "\n") {
		t.Error("the last line is not ended")
	}
	for line := range strings.Lines(text) {
		var e struct{ Subject, Sequence string }
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("line %d: %v in %q", n+1, err, line)
		}
		n++
		var seq int
		if _, err := fmt.Sscan(e.Sequence, &seq); err != nil {
			t.Fatal(err)
		}
		if seq > seen[e.Subject]+1 {
			t.Fatalf("line %d: key %s has %d after %d", n, e.Subject, seq, seen[e.Subject])
		}
		seen[e.Subject] = max(seen[e.Subject], seq)
	}
	return seen
}
