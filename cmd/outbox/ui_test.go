package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestUI serves the page until it is told to stop, and lets in who has the token.
func TestUI(t *testing.T) {
	s := migrated(t)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("a-token-of-a-file-0123\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var out, log buffer
	code := make(chan int)
	go func() {
		code <- run(ctx, &process{stdout: &out, stderr: &log, getenv: func(name string) string { return s.env[name] }},
			[]string{"ui", "--listen", "127.0.0.1:0", "--path", "/outbox/", "--token-file", file})
	}()
	url := regexp.MustCompile(`http://127\.0\.0\.1:\d+/outbox/`)
	var at string
	for deadline := time.Now().Add(time.Minute); at == "" && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		at = url.FindString(out.String())
	}
	if at == "" {
		t.Fatalf("it says %q, %q", out.String(), log.String())
	}
	for password, want := range map[string]int{"a-token-of-a-file-0123": 200, "another": 401} {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.SetBasicAuth("jo", password)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if answer.StatusCode != want || (want == 200) != strings.Contains(string(text), "<h1>Overview</h1>") {
			t.Errorf("%d, want %d:\n%s", answer.StatusCode, want, text)
		}
	}
	stop()
	if c := <-code; c != exitOK {
		t.Errorf("it ended with %d: %s", c, log.String())
	}
	if strings.Contains(out.String()+log.String(), "token-of-a-file") {
		t.Error("it tells the token")
	}
}

// TestUIRefuses what would show messages to everybody, or cannot be read.
func TestUIRefuses(t *testing.T) {
	s := migrated(t)
	s.fails(exitUsage, "", []string{"ui", "--listen", "0.0.0.0:0"}, "OUTBOX_UI_TOKEN", "127.0.0.1")
	s.fails(exitUsage, "", []string{"ui", "--cert", "x"}, "go together")
	s.fails(exitFailed, "", []string{"ui", "--token-file", filepath.Join(t.TempDir(), "none")}, "token-file")
	s.fails(exitUsage, "", []string{"ui", "--path", "x"}, "slash")
	s.env["OUTBOX_UI_TOKEN"] = "hunter2"
	if text := s.fails(exitUsage, "", []string{"ui"}, "at least 16"); strings.Contains(text, "hunter2") {
		t.Errorf("it tells the token: %s", text)
	}
}
