package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/outbox-suite/outbox/conformance"
)

// A run of the suite through the command, with both reports, which say the same.
func TestConformanceReports(t *testing.T) {
	s := newShell(t)
	dir := t.TempDir()
	markdown, asJSON := filepath.Join(dir, "report.md"), filepath.Join(dir, "report.json")
	out := s.ok("", "conformance", "--short", "--seed", "7", "--scenario", "^(Enqueue/RollbackLeavesNothing|Restore/)",
		"--report", markdown, "--report", asJSON)
	if !strings.Contains(out, "1 passed, 0 failed, 1 skipped") || !strings.Contains(out, "(seed 7)") {
		t.Errorf("the command says:\n%s", out)
	}
	var report conformance.Report
	if err := json.Unmarshal([]byte(readFile(t, asJSON)), &report); err != nil {
		t.Fatal(err)
	}
	if report.Seed != 7 || !report.Short || report.Program == "" || report.Began.IsZero() || len(report.Results) != 2 || report.Chosen != 2 {
		t.Errorf("the JSON report is %+v", report)
	}
	text := readFile(t, markdown)
	for _, want := range []string{
		"# Conformance of SQLite", "**Every promise that was tried held**: 1 passed, 0 failed, 0 known to fail, 1 skipped.",
		"- Seed: 7\n", "- Loads: short\n", "| Enqueue/RollbackLeavesNothing | passed |", "Target.Restore",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the Markdown report lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, dir) || strings.Contains(text, "sqlite:") {
		t.Errorf("the report tells the DSN:\n%s", text)
	}
}

// What was done when a run is interrupted is reported all the same, and what was under way is not.
func TestConformanceInterrupted(t *testing.T) {
	s := newShell(t)
	asJSON := filepath.Join(t.TempDir(), "report.json")
	markdown := strings.TrimSuffix(asJSON, "json") + "md"
	ctx, interrupt := context.WithCancelCause(t.Context())
	var said buffer
	code := run(ctx, &process{
		stdout: writerFunc(func(p []byte) (int, error) { // the first result
			interrupt(interrupted{syscall.SIGINT})
			return len(p), nil
		}),
		stderr: &said, getenv: func(name string) string { return s.env[name] },
	}, []string{"conformance", "--short", "--parallel", "2", "--scenario", "^(Enqueue/RollbackLeavesNothing|Relay/OutageInMidBatch|Soak/)", "--report", asJSON, "--report", markdown})
	if code != exitSignal+int(syscall.SIGINT) {
		t.Errorf("it exits with %d: %s", code, said.String())
	}
	var report conformance.Report
	if err := json.Unmarshal([]byte(readFile(t, asJSON)), &report); err != nil {
		t.Fatal(err)
	}
	if report.Chosen != 3 || len(report.Results) != 1 || report.Results[0].Status != conformance.Passed {
		t.Errorf("the JSON report is %+v", report)
	}
	if text := readFile(t, markdown); !strings.Contains(text, "**Ended early, with 1 of 3 scenarios done: every promise that was tried held**: 1 passed") {
		t.Errorf("the Markdown report is:\n%s", text)
	}
	noTables(t, s)
}

// writerFunc is a function as an [io.Writer].
type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestConformanceMistakes(t *testing.T) {
	s := newShell(t)
	dir := t.TempDir()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--soak", "1s", "--scenario", "^Relay/"}, "exclude each other"},
		{[]string{"--soak", "-1s"}, "0 or more"},
		{[]string{"--scenario", "("}, "not a regular expression"},
		{[]string{"--report", filepath.Join(dir, "report.txt")}, "must end in .md or .json"},
		{[]string{"--report", filepath.Join(dir, "no", "such", "report.md")}, "no such file or directory"},
	} {
		s.fails(2, "", append([]string{"conformance"}, c.args...), c.want)
	}
	// A run that cannot be done leaves no report behind.
	report := filepath.Join(dir, "report.md")
	s.fails(2, "", []string{"conformance", "--scenario", "^NoSuch/", "--report", report}, "no scenario matches")
	if _, err := os.Stat(report); !os.IsNotExist(err) {
		t.Errorf("a report without a run: %v", err)
	}
	// And one that is there as it was.
	if err := os.WriteFile(report, []byte("of another run"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.fails(1, "", []string{"conformance", "--dsn", "sqlite:" + filepath.Join(dir, "no", "such.db"), "--scenario", "^Inbox/", "--report", report}, "unable to open")
	if text := readFile(t, report); text != "of another run" {
		t.Errorf("a run that came to nothing left the report as %q", text)
	}
}

// The command that runs a failure again says all that made the run what it was.
func TestConformanceRerun(t *testing.T) {
	for _, c := range []struct {
		conformity
		schema, dsn, want string
	}{
		{conformity{}, "", "of the environment", "outbox conformance --seed 5 --scenario '^Relay/A\\+B$'"},
		{conformity{short: true, patience: 90e9}, "it's", "of the environment", `outbox conformance --seed 5 --short --schema 'it'\''s' --patience 1m30s --scenario '^Relay/A\+B$'`},
		{conformity{soak: 600e9}, "", "of the environment", "outbox conformance --seed 5 --soak 10m0s"},
		{conformity{soak: 600e9}, "", "of a flag", "OUTBOX_DSN=… outbox conformance --seed 5 --soak 10m0s"},
	} {
		getenv := func(string) string { return "of the environment" }
		if got := c.rerun(target{schema: c.schema, dsn: c.dsn}, getenv)("Relay/A+B", 5); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}
