package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// required fails the test where OUTBOX_REQUIRE names a program that is not there, and
// skips it elsewhere.
func required(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err == nil {
		return
	}
	if slices.Contains(strings.Split(os.Getenv("OUTBOX_REQUIRE"), ","), program) {
		t.Fatalf("OUTBOX_REQUIRE names %s, which is not installed", program)
	}
	t.Skipf("%s is not installed", program)
}

// shellRuns runs a script in a shell that has the path of the completion for it in
// COMPLETION, and returns the lines it prints.
func shellRuns(t *testing.T, shell, script string, args ...string) []string {
	t.Helper()
	required(t, shell)
	path := filepath.Join(t.TempDir(), "_outbox")
	if err := os.WriteFile(path, []byte(newShell(t).ok("", "completion", shell)), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), shell, append(args, "-c", script)...)
	cmd.Env = []string{"COMPLETION=" + path, "HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8"}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil || errs.Len() > 0 {
		t.Fatalf("%s: %v\n%s", shell, err, errs.String())
	}
	return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
}

// asked are command lines, the last word of which is to be completed, and what must be
// offered for them.
func asked(t *testing.T) (lines []string, want [][]string) {
	t.Helper()
	add := func(line string, words ...string) { lines, want = append(lines, line), append(want, words) }
	var all []string
	for _, c := range commands() {
		all = append(all, c.name)
		var flags []string
		for line := range strings.Lines((&shell{t, nil}).ok("", c.name, "--help")) {
			if strings.HasPrefix(line, "  --") {
				flags = append(flags, strings.Fields(line)[0])
			}
		}
		add(c.name+" --", flags...)
	}
	add("", append(all, "help")...)
	add("help ", all...)
	add("completion ", "bash", "zsh", "fish")
	return lines, want
}

// offers compares what a shell offers, in a line for each question.
func offers(t *testing.T, got []string) {
	t.Helper()
	lines, want := asked(t)
	if len(got) != len(lines) {
		t.Fatalf("%d answers to %d questions: %q", len(got), len(lines), got)
	}
	for i, line := range lines {
		words := strings.Fields(got[i])
		for _, w := range want[i] {
			if !slices.Contains(words, w) {
				t.Errorf("outbox %s: %s is not offered, only %q", line, w, words)
			}
		}
		if len(words) > len(want[i])+1 { // --help
			t.Errorf("outbox %s: offered are %q, want %q", line, words, want[i])
		}
	}
}

func TestCompletionBash(t *testing.T) {
	script := `source "$COMPLETION"
		[[ $(complete -p outbox) == *'-F _outbox '* ]]
		ask() { COMP_WORDS=(outbox "$@"); COMP_CWORD=$#; _outbox; echo "${COMPREPLY[@]}"; }` + "\n"
	lines, _ := asked(t)
	for _, line := range lines {
		script += "ask '" + strings.Join(strings.Split(line, " "), "' '") + "'\n"
	}
	offers(t, shellRuns(t, "bash", script, "--norc", "--noprofile", "-e"))
}

func TestCompletionFish(t *testing.T) {
	script := "source $COMPLETION\n"
	lines, _ := asked(t)
	for _, line := range lines {
		script += "echo (complete -C 'outbox " + line + "' | string split -f1 \\t)\n"
	}
	offers(t, shellRuns(t, "fish", script, "--no-config"))
}

// TestCompletionZsh stands in for the functions of zsh that show what they are given.
func TestCompletionZsh(t *testing.T) {
	script := `
		_describe() { print -r -- ${${(P)2}%%:*} }
		_arguments() {
			local spec
			for spec in "$@"; do
				case $spec in
				1:*) [[ $words[-1] == -* ]] || print -rn -- "${${spec#*\(}%\)} " ;;
				*) print -rn -- "${spec%%\[*} " ;;
				esac
			done
			print
		}
		compadd() { shift; print -r -- "$@" }
		compdef() { [[ $1 = _outbox && $2 = outbox ]] }
		source $COMPLETION
		ask() { words=(outbox "$@"); CURRENT=$#words; _outbox }` + "\n"
	lines, _ := asked(t)
	for _, line := range lines {
		script += "ask '" + strings.Join(strings.Split(line, " "), "' '") + "'\n"
	}
	offers(t, shellRuns(t, "zsh", script, "-f", "-e"))
}

func TestCompletionMistakes(t *testing.T) {
	s := newShell(t)
	for _, args := range [][]string{{"completion"}, {"completion", "tcsh"}, {"completion", "bash", "zsh"}} {
		s.fails(exitUsage, "", args, "takes one argument: bash, zsh, fish")
	}
}
