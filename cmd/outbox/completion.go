package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
)

// completionCommand is a function because its script lists all commands, itself too.
func completionCommand() command {
	scripts := map[string]func(io.Writer) error{"bash": completeBash, "zsh": completeZsh, "fish": completeFish}
	shells := []string{"bash", "zsh", "fish"}
	return command{
		name: "completion", summary: "print what makes a shell complete commands and flags", args: " " + strings.Join(shells, "|"), words: shells,
		help: `
Prints a script for the shell that is named. Have the shell read it at its start,
or put it where the shell looks for such scripts.

Example:
  source <(outbox completion bash)
  outbox completion zsh > "${fpath[1]}/_outbox"
  outbox completion fish > ~/.config/fish/completions/outbox.fish`,
		setup: func(fs *flag.FlagSet) action {
			return func(_ context.Context, p *process) error { return scripts[fs.Arg(0)](p.stdout) }
		},
	}
}

// commandNames are those of the commands, and help.
func commandNames() []string {
	all := []string{"help"}
	for _, c := range commands() {
		all = append(all, c.name)
	}
	slices.Sort(all)
	return all
}

// completeBash needs no package of completions, and works in the bash 3.2 of macOS.
func completeBash(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, `# Completion of outbox for bash: source <(outbox completion bash)
_outbox() {
    local words= cur=${COMP_WORDS[COMP_CWORD]}
    if ((COMP_CWORD == 1)); then
        words='%s'
    else
        case ${COMP_WORDS[1]} in
        help) words='%s' ;;
`, strings.Join(commandNames(), " "), strings.Join(commandNames(), " "))
	for _, c := range commands() {
		words := slices.Clone(c.words)
		fs, _ := c.flags()
		for _, f := range described(fs) {
			words = append(words, "--"+f.name)
		}
		fmt.Fprintf(&b, "        %s) words='%s' ;;\n", c.name, strings.Join(append(words, "--help"), " "))
	}
	b.WriteString(`        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o default -F _outbox outbox
`)
	_, err := io.WriteString(w, b.String())
	return err
}

// completeZsh is read by source, or loaded from a folder of fpath as _outbox.
func completeZsh(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`#compdef outbox
# Completion of outbox for zsh: source <(outbox completion zsh), after compinit.
_outbox() {
    local -a commands
    if ((CURRENT == 2)); then
        commands=(
            'help:explain the program, or a command'
`)
	for _, c := range commands() {
		fmt.Fprintf(&b, "            %s\n", inShell(c.name+":"+c.summary))
	}
	fmt.Fprintf(&b, `        )
        _describe command commands
        return
    fi
    shift words
    ((CURRENT -= 1))
    case $words[1] in
    help) compadd -- %s ;;
`, strings.Join(commandNames(), " "))
	escape := strings.NewReplacer("[", `\[`, "]", `\]`, ":", `\:`)
	for _, c := range commands() {
		fmt.Fprintf(&b, "    %s)\n        _arguments \\\n", c.name)
		fs, _ := c.flags()
		for _, f := range described(fs) {
			spec := "--" + f.name + "[" + escape.Replace(f.usage) + "]"
			if f.value != "" {
				spec += ":" + escape.Replace(f.value) + ":_files"
			}
			fmt.Fprintf(&b, "            %s \\\n", inShell(spec))
		}
		if c.words != nil {
			fmt.Fprintf(&b, "            %s \\\n", inShell("1:argument:("+strings.Join(c.words, " ")+")"))
		}
		b.WriteString("            '--help[explain the command]' ;;\n")
	}
	b.WriteString(`    esac
}
if [[ $funcstack[1] == _outbox ]]; then
    _outbox "$@"
else
    compdef _outbox outbox
fi
`)
	_, err := io.WriteString(w, b.String())
	return err
}

func completeFish(w io.Writer) error {
	var b strings.Builder
	b.WriteString("# Completion of outbox for fish: outbox completion fish | source\n")
	quote := func(text string) string {
		return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(text) + "'"
	}
	first := "complete -c outbox -n __fish_use_subcommand -f -a %s -d %s\n"
	fmt.Fprintf(&b, first, "help", quote("explain the program, or a command"))
	fmt.Fprintf(&b, "complete -c outbox -n '__fish_seen_subcommand_from help' -f -a %s\n", quote(strings.Join(commandNames(), " ")))
	for _, c := range commands() {
		fmt.Fprintf(&b, first, c.name, quote(c.summary))
		of := "complete -c outbox -n '__fish_seen_subcommand_from " + c.name + "'"
		fs, _ := c.flags()
		for _, f := range described(fs) {
			takes := ""
			if f.value != "" {
				takes = " -r"
			}
			fmt.Fprintf(&b, "%s -l %s%s -d %s\n", of, f.name, takes, quote(f.usage))
		}
		if c.words != nil {
			fmt.Fprintf(&b, "%s -f -a %s\n", of, quote(strings.Join(c.words, " ")))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
