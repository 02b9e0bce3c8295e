package main

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// TestMan sets the page and compares it with the help, which fills its lines in
// another way.
func TestMan(t *testing.T) {
	required(t, "mandoc")
	page := (&shell{t, nil}).ok("", "man")
	mandoc := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), "mandoc", args...)
		cmd.Stdin = strings.NewReader(page)
		out, _ := cmd.CombinedOutput() // its status is that of the warnings
		return string(out)
	}
	for line := range strings.Lines(mandoc("-T", "lint", "-W", "warning")) {
		if !strings.Contains(line, "missing date") { // that of the commit, in a build that has one
			t.Error(line)
		}
	}
	blank := regexp.MustCompile(`\s+`)
	plain := func(text string) string { return blank.ReplaceAllString(text, " ") }
	set := plain(regexp.MustCompile(`.\x08`).ReplaceAllString(mandoc("-T", "utf8"), ""))
	want := []string{dsnForms(), environment, exitCodes}
	for _, c := range commands() {
		fs, _ := c.flags()
		want = append(want, c.usage(fs), c.summary[1:]+".", c.help)
		for _, f := range described(fs) {
			want = append(want, " "+f.form()+" "+f.usage)
		}
	}
	for _, text := range want {
		if !strings.Contains(set, strings.TrimSpace(plain(text))) {
			t.Errorf("the page lacks %q", text)
		}
	}
}
