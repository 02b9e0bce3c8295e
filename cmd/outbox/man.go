package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
)

// manCommand is a function because its page lists all commands, itself too.
func manCommand() command {
	return command{
		name: "man", summary: "print the manual page",
		help: `
Prints outbox(1): what the help of all commands says, as a page for man.

Example:
  outbox man > /usr/local/share/man/man1/outbox.1
  outbox man | man -l -`,
		setup: func(*flag.FlagSet) action {
			return func(_ context.Context, p *process) error { return manual(p.stdout) }
		},
	}
}

// manual writes the page in the macros of man(7).
func manual(w io.Writer) error {
	var b strings.Builder
	version, _ := build()
	fmt.Fprintf(&b, ".TH OUTBOX 1 \"%s\" \"outbox %s\" \"User Commands\"\n", builtFrom(), roff(version))
	b.WriteString(".nh\n.ad l\n") // names of variables stay whole
	b.WriteString(".SH NAME\noutbox \\- operate a transactional outbox\n" +
		".SH SYNOPSIS\n.B outbox\n.I command\n.RI [ flags ]\n" +
		".SH DESCRIPTION\n")
	b.WriteString(roffText("Makes the tables of a transactional outbox, runs relays, shows what waits and what is\n" +
		"stuck, and lets an operator act on it. There is no configuration file.\n\nDSNs:\n" + dsnForms()))
	b.WriteString(".SH COMMANDS\n")
	for _, c := range commands() {
		fs, _ := c.flags()
		fmt.Fprintf(&b, ".SS %s\n%s.\n", roff(c.usage(fs)), roff(strings.ToUpper(c.summary[:1])+c.summary[1:]))
		b.WriteString(".PP\n" + roffText(c.help))
		for _, f := range described(fs) {
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(f.form()), roff(f.usage))
		}
	}
	b.WriteString(".SH ENVIRONMENT\n" + roffText(environment))
	b.WriteString(".SH EXIT STATUS\n" + roffText(exitCodes))
	_, err := io.WriteString(w, b.String())
	return err
}

// roffText sets text of the help: lines that are indented stand as they are, others
// fill paragraphs.
func roffText(text string) string {
	var b strings.Builder
	asIs, gap := false, false
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		if line == "" {
			gap = true
			continue
		}
		indented := strings.HasPrefix(line, "  ")
		switch {
		case indented && !asIs:
			b.WriteString(".PP\n.RS\n.nf\n")
		case indented && gap:
			b.WriteString("\n")
		case !indented && asIs:
			b.WriteString(".fi\n.RE\n.PP\n")
		case gap:
			b.WriteString(".PP\n")
		}
		asIs, gap = indented, false
		b.WriteString(roff(strings.TrimPrefix(line, "  ")) + "\n")
	}
	if asIs {
		b.WriteString(".fi\n.RE\n")
	}
	return b.String()
}

// roff writes a line so that it is set as it stands.
func roff(line string) string {
	line = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`, `"`, `\(dq`).Replace(line)
	if strings.HasPrefix(line, ".") {
		return `\&` + line
	}
	return line
}
