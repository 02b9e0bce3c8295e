package main

import (
	"context"
	"flag"
	"fmt"
	"strings"
)

const exitCodes = `Exit codes:
  0    done
  1    failed; the reason is on standard error
  2    called wrongly: an unknown command or flag, a bad value
  3    a check ran and found something: health over its limit, a promise broken
  130  interrupted by SIGINT (Ctrl-C) before it was done, 143 by SIGTERM;
       relay stops in order at the first signal, with 0, and at once at the second
`

const environment = `Environment, where the flag is not given:
  OUTBOX_DSN      --dsn, so that no password stands in the process list
  OUTBOX_SCHEMA   --schema
  OUTBOX_PREFIX   --prefix
  OUTBOX_LANES    --lanes
  OUTBOX_PUBLISH  --publish of relay
  OUTBOX_HTTP     --http of relay

Environment, for what stands in no flag:
  OUTBOX_TAIL_DSN  the server itself, for --tail of relay behind a pooler
  OUTBOX_NATS_USER, OUTBOX_NATS_PASSWORD, OUTBOX_NATS_TOKEN
  OUTBOX_KAFKA_USER, OUTBOX_KAFKA_PASSWORD
  OUTBOX_RABBITMQ_USER, OUTBOX_RABBITMQ_PASSWORD
  OUTBOX_REDIS_USER, OUTBOX_REDIS_PASSWORD
                   how relay gets in to the broker
  OUTBOX_WEBHOOK_SECRETS, OUTBOX_WEBHOOK_AUTHORIZATION
                   how relay signs its requests, and gets in
  OUTBOX_UI_TOKEN or OUTBOX_UI_USER, OUTBOX_UI_PASSWORD
                   who may act on the page of ui and of relay --http
  OTEL_EXPORTER_OTLP_ENDPOINT
                   where relay sends traces, with OpenTelemetry's other variables
  GOGC, GOMEMLIMIT how far the heap of relay may grow
`

// overview is the text of `outbox help`.
func overview() string {
	var b strings.Builder
	b.WriteString("outbox operates a transactional outbox.\n\nUsage:\n  outbox COMMAND [flags]\n\nCommands:\n")
	for _, c := range commands() {
		fmt.Fprintf(&b, "  %-12s %s\n", c.name, c.summary)
	}
	b.WriteString("\nA first run:\n" +
		"  export OUTBOX_DSN=sqlite:orders.db\n" +
		"  outbox migrate\n" +
		"  echo '{\"topic\":\"orders\",\"key\":\"42\",\"type\":\"order.placed\",\"data\":{\"total\":7}}' | outbox enqueue\n" +
		"  outbox relay --publish stdout: --until-empty\n\n")
	fmt.Fprintf(&b, "DSNs:\n%s\n%s\n%s\n`outbox COMMAND --help` explains a command.\n", dsnForms(), environment, exitCodes)
	return b.String()
}

func help(ctx context.Context, p *process, args []string) int {
	if len(args) == 0 {
		_, err := fmt.Fprint(p.stdout, overview())
		return finish(ctx, p, "help", err)
	}
	return run(ctx, p, []string{args[0], "--help"})
}

// text is the help of a command with its flags.
func (c command) text(fs *flag.FlagSet) string {
	var b strings.Builder
	fmt.Fprintf(&b, "outbox %s: %s.\n\nUsage:\n  %s\n\n%s\n", c.name, c.summary, c.usage(fs), strings.TrimSpace(c.help))
	for i, f := range described(fs) {
		if i == 0 {
			b.WriteString("\nFlags:\n")
		}
		fmt.Fprintf(&b, "  %s\n", f.form())
		for _, line := range wrap(f.usage, 70) {
			fmt.Fprintf(&b, "        %s\n", line)
		}
	}
	return b.String()
}

// usage is how the command is called.
func (c command) usage(fs *flag.FlagSet) string {
	flags := ""
	if len(described(fs)) > 0 {
		flags = " [flags]"
	}
	return "outbox " + c.name + flags + c.args
}

// describedFlag is a flag as people read it.
type describedFlag struct {
	name  string
	value string // what it takes; empty for a switch
	usage string // with the default
}

// form is the flag with its value.
func (f describedFlag) form() string { return strings.TrimSpace("--" + f.name + " " + f.value) }

// described are flags in the order of their names.
func described(fs *flag.FlagSet) (all []describedFlag) {
	fs.VisitAll(func(f *flag.Flag) {
		value, usage := flag.UnquoteUsage(f)
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" && f.DefValue != "0s" {
			usage += fmt.Sprintf(" (default %s)", f.DefValue)
		}
		all = append(all, describedFlag{f.Name, value, usage})
	})
	return all
}

// wrap breaks text into lines of at most width bytes, at spaces.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
