package conformance

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// program says what runs the check.
func program() string {
	const module = "github.com/outbox-suite/outbox"
	version := "(unknown version)"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range append(info.Deps, &info.Main) {
			if m.Path == module && m.Version != "" {
				version = m.Version
			}
		}
	}
	return fmt.Sprintf("%s %s, %s, %s/%s", module, version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// Counts returns how many results there are of each status.
func (r Report) Counts() map[Status]int {
	counts := make(map[Status]int)
	for _, res := range r.Results {
		counts[res.Status]++
	}
	return counts
}

// WriteMarkdown writes the report for people: the outcome, what failed with what
// was observed, and a table of all scenarios. It holds no DSN. The error is w's.
func (r Report) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	n := r.Counts()
	verdict := "every promise that was tried held"
	switch {
	case n[Failed] > 0:
		verdict = fmt.Sprintf("%d of %d scenarios failed", n[Failed], len(r.Results))
	case n[Passed] == 0:
		verdict = "nothing was tried"
	}
	if len(r.Results) < r.Chosen {
		verdict = fmt.Sprintf("ended early, with %d of %d scenarios done: %s", len(r.Results), r.Chosen, verdict)
	}
	load := "full"
	if r.Short {
		load = "short"
	}
	fmt.Fprintf(&b, "# Conformance of %s\n\n", cell(r.Server))
	fmt.Fprintf(&b, "**%s**: %d passed, %d failed, %d known to fail, %d skipped.\n\n",
		strings.ToUpper(verdict[:1])+verdict[1:], n[Passed], n[Failed], n[Known], n[Skipped])
	for _, line := range [][2]string{
		{"Engine", r.Engine},
		{"Server", r.Server},
		{"Program", r.Program},
		{"Began", r.Began.Format(time.RFC3339)},
		{"Took", r.Took.Round(time.Second).String()},
		{"Seed", fmt.Sprint(r.Seed)},
		{"Loads", load},
	} {
		fmt.Fprintf(&b, "- %s: %s\n", line[0], cell(line[1]))
	}
	for _, res := range r.Failed() {
		fmt.Fprintf(&b, "\n## Failed: %s\n\n%s\n", res.Name, fenced(res.String()))
		if len(res.Notes) > 0 {
			fmt.Fprintf(&b, "\n%s\n", fenced(strings.Join(res.Notes, "\n")))
		}
	}
	b.WriteString("\n## Scenarios\n\n| scenario | outcome | took | promise | notes |\n|---|---|---:|---|---|\n")
	for _, res := range r.Results {
		notes := res.Notes
		if res.Reason != "" {
			notes = append([]string{res.Reason}, notes...)
		}
		fmt.Fprintf(&b, "| %s | %s | %v | %s | %s |\n", cell(res.Name), res.Status, res.Took.Round(time.Millisecond),
			cell(res.Promise), cell(strings.Join(notes, "; ")))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// cell is text that stands in one cell of a table, or on one line.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\r", " ", "\n", " ", "<", "&lt;").Replace(text)
}

// fenced is text shown as it is, whatever is in it.
func fenced(text string) string {
	fence := "```"
	for strings.Contains(text, fence) {
		fence += "`"
	}
	return fence + "text\n" + text + "\n" + fence
}
