package outbox_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// The programs in the README and for consumers compile and pass vet.
func TestDocumentedProgramsCompile(t *testing.T) {
	for _, document := range []string{"README.md", "docs/consumers.md", "docs/writing-a-publisher.md"} {
		t.Run(document, func(t *testing.T) { compiles(t, document) })
	}
}

func compiles(t *testing.T, document string) {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```go\n(package main\n.*?)```").FindSubmatch(text)
	if block == nil {
		t.Fatalf("%s has no program", document)
	}
	// Inside the module, so that its imports resolve; the name keeps the go
	// command from taking it for a package of ours.
	dir, err := os.MkdirTemp(".", "_readme") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "main.go")
	if err := os.WriteFile(file, block[1], 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "go", "vet", file).CombinedOutput()
	if err != nil {
		t.Errorf("go vet: %v\n%s", err, out)
	}
}
