package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/outbox-suite/outbox"
)

var requeueCommand = command{
	name: "requeue", summary: "try parked messages again now",
	help: `
Makes parked messages due at once: dead ones, whose failed attempts are forgotten,
and with --state or --id also retry ones, whose attempts still count, and scheduled
ones that are not due yet. Held ones follow by themselves. Messages of one key keep
their order, before newer ones. It is safe beside running relays. Give something
that selects, or --all.

Example:
  outbox requeue --topic orders --dry-run
  outbox requeue --topic orders`,
	setup: changeSetup("requeued", (*outbox.Operator).Requeue, (*outbox.Outbox).Requeueable),
}

var discardCommand = command{
	name: "discard", summary: "give parked messages up",
	help: `
Gives parked messages up: they go to done, where replay finds them until the
retention ends, and what waited behind them goes on. Without --state or --id only
dead messages are meant. It is safe beside running relays. Give something that
selects, or --all. Where messages have revisions, consumers that count them wait for
the one discarded: docs/runbook.md says what they have to do.

Example:
  outbox discard --id 0199d3c5-6a4e-7c1e-9a53-0d5b8a3f9a11`,
	setup: changeSetup("discarded", (*outbox.Operator).Discard, (*outbox.Outbox).Discardable),
}

// changeSetup is the setup of a command that changes parked messages. count tells how many
// it would change.
func changeSetup(
	done string,
	change func(*outbox.Operator, context.Context, outbox.Filter, int) (int, error),
	count func(*outbox.Outbox, context.Context, outbox.Filter, int) (int, error),
) func(*flag.FlagSet) action {
	return func(fs *flag.FlagSet) action {
		var t target
		var f filterFlags
		var by actor
		t.flags(fs)
		f.flags(fs)
		by.flags(fs)
		f.states(fs, "messages in this `state`: scheduled, retry, held or dead; may be repeated; default: dead, and any with --id")
		limit := limitFlag(fs)
		dryRun := fs.Bool("dry-run", false, "change nothing, say how many it would be now")
		asJSON := fs.Bool("json", false, "print a JSON object with the number")
		return func(ctx context.Context, p *process) error {
			if *limit < 0 {
				return usagef("limit is %d: give a number above 0, or 0 for all", *limit)
			}
			if !selects(f.Filter) {
				return usagef("nothing is selected: give --id, --key, --topic, --type or --state, or --all")
			}
			o, err := t.open(ctx, p)
			if err != nil {
				return err
			}
			defer o.close()
			if *dryRun {
				n, err := count(o.Outbox, ctx, f.Filter, *limit)
				if err != nil {
					return err
				}
				if *asJSON {
					return writeJSON(p.stdout, map[string]any{"would_be_" + done: n})
				}
				_, err = fmt.Fprintf(p.stdout, "%s would be %s%s\n", messages(n), done, whyNone(n, f.Filter))
				return err
			}
			operator, err := by.as(o)
			if err != nil {
				return err
			}
			n, err := change(operator, ctx, f.Filter, *limit)
			return changed(p, done, n, err, whyNone(n, f.Filter), *asJSON)
		}
	}
}

// whyNone says why nothing matched, where a selection means less than it says.
func whyNone(n int, f outbox.Filter) string {
	switch {
	case n > 0:
		return ""
	case len(f.IDs) > 0:
		return ": what is due already goes by itself; outbox find --id ID tells where a message stands"
	case len(f.States) == 0:
		return ": without --state only dead ones are meant"
	}
	return ""
}

// selects tells whether a flag selects anything.
func selects(f outbox.Filter) bool {
	return f.All || len(f.IDs)+len(f.States) > 0 || f.Key != "" || f.EmptyKey || f.Topic != "" || f.Type != "" ||
		f.Since > 0 || f.Until > 0
}

// changed says how many messages were changed, also when an error ended it; why is what
// people are told behind it.
func changed(p *process, done string, n int, err error, why string, asJSON bool) error {
	if err != nil {
		return fmt.Errorf("%w (%s %s before)", err, messages(n), done)
	}
	if asJSON {
		return writeJSON(p.stdout, map[string]any{done: n})
	}
	_, err = fmt.Fprintf(p.stdout, "%s %s%s\n", messages(n), done, why)
	return err
}
