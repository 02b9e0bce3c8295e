package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
)

var replayCommand = command{
	name: "replay", summary: "publish done messages again",
	help: `
Publishes messages again that were published or discarded and are still in done,
oldest first, under the same ids, marked as a replay. Consumers that remove
duplicates by id will pass over them. --since and --until are about when a message
was done: an age by the database's clock, or an instant, which this machine's clock
turns into an age. Give something that selects, or --all.

A replay goes in steps, each a small transaction. One that was interrupted says how to
go on: the same command with --resume marks no message twice. A --limit is that of
each command.

Example:
  outbox replay --topic orders --since 2h --until 30m --dry-run
  outbox replay --topic orders --since 2h --until 30m --rate 200`,
	setup: func(fs *flag.FlagSet) action {
		var t target
		var f filterFlags
		var from, to since
		var by actor
		var opts outbox.ReplayOptions
		t.flags(fs)
		by.flags(fs)
		f.flags(fs)
		fs.Var(&from, "since", "messages done since that `time`: 2h or 2026-01-31T15:04:05Z")
		fs.Var(&to, "until", "messages done until that `time`: 30m or 2026-01-31T15:34:05Z")
		fs.IntVar(&opts.Limit, "limit", 0, "change at most this `number` of messages; 0: all that match")
		fs.IntVar(&opts.Rate, "rate", 0, "replay at most this `number` of messages a second; 0: as fast as it goes")
		fs.StringVar(&opts.Resume, "resume", "", "go on at the `place` that an interrupted replay of the same selection has told")
		fs.BoolVar(&opts.DryRun, "dry-run", false, "change nothing, say how many it would be now")
		asJSON := fs.Bool("json", false, "print a JSON object with the number")
		return func(ctx context.Context, p *process) error {
			f.Since, f.Until = from.age, to.age
			switch {
			case opts.Limit < 0:
				return usagef("limit is %d: give a number above 0, or 0 for all", opts.Limit)
			case opts.Rate < 0:
				return usagef("rate is %d: give a number above 0, or 0 for no bound", opts.Rate)
			case f.Since > 0 && f.Until >= f.Since:
				return usagef("since is not before until: nothing could match")
			case !selects(f.Filter):
				return usagef("nothing is selected: give --id, --key, --topic, --type, --since or --until, or --all")
			}
			o, err := t.open(ctx, p)
			if err != nil {
				return err
			}
			defer o.close()
			operator, err := by.as(o)
			if err != nil {
				return err
			}
			return replay(ctx, p, operator, f.Filter, opts, *asJSON)
		}
	},
}

// replay shows a person how far it is, and everybody how to go on if there is more than
// one step, also when this process is killed.
func replay(ctx context.Context, p *process, o *outbox.Operator, f outbox.Filter, opts outbox.ReplayOptions, asJSON bool) error {
	var line progressLine
	if isTerminal(p.stderr) {
		line.w = p.stderr
	}
	total := 0
	if line.w != nil && !opts.DryRun {
		count := opts
		count.DryRun = true
		count.Progress = func(n int, _ string) { line.show("counting: %s …", messages(n)) }
		var err error
		if total, err = o.ReplayWith(ctx, f, count); err != nil {
			line.clear()
			return err
		}
	}
	first, steps, shown := "", 0, time.Time{}
	opts.Progress = func(n int, resume string) {
		switch steps++; {
		case steps == 1:
			first = resume
		case steps == 2 && !opts.DryRun:
			line.clear()
			p.tell("should this be interrupted, go on with the same command and --resume %s\n", first)
		}
		if time.Since(shown) > 200*time.Millisecond {
			shown = time.Now()
			line.show("%s", bar(n, total))
		}
	}
	n, err := o.ReplayWith(ctx, f, opts)
	line.clear()
	done := "replayed"
	if opts.DryRun {
		if done = "would be replayed"; asJSON {
			done = "would_be_replayed"
		}
	}
	if broken := (*outbox.ReplayError)(nil); errors.As(err, &broken) && !opts.DryRun {
		rest := ""
		if opts.Limit > 0 {
			rest = fmt.Sprintf("--limit %d ", opts.Limit-n)
		}
		return fmt.Errorf("%w\n%s replayed before; go on with the same command and %s--resume %s", err, messages(n), rest, broken.Resume)
	}
	return changed(p, done, n, err, "", asJSON)
}

// bar shows how much of a total is done; without a total only how much.
func bar(n, total int) string {
	if total == 0 {
		return messages(n) + " …"
	}
	const width = 30
	part := min(width, width*n/total)
	return fmt.Sprintf("[%s%s] %d of %s", strings.Repeat("#", part), strings.Repeat(".", width-part), n, messages(total))
}

var purgeCommand = command{
	name: "purge", summary: "delete done messages",
	help: `
Deletes messages that were published or discarded at least so long ago, in small
transactions beside everything else. Where done is in partitions, those of days that
are old enough as a whole are dropped first, and those of the days to come are made.
Messages that are ready or parked are never touched. Relays do it by themselves after
their --retention.

Example:
  outbox purge --older-than 72h --dry-run
  outbox purge --older-than 72h`,
	setup: func(fs *flag.FlagSet) action {
		var t target
		var by actor
		t.flags(fs)
		by.flags(fs)
		olderThan := time.Duration(-1)
		fs.Func("older-than", "what was done at least this `duration` ago; 0 is everything; required", func(s string) error {
			d, err := time.ParseDuration(s)
			if err != nil || d < 0 {
				return fmt.Errorf("give a duration of 0 or more, for example 72h; there is no unit for days")
			}
			olderThan = d
			return nil
		})
		limit := limitFlag(fs)
		dryRun := fs.Bool("dry-run", false, "delete nothing, say how many messages it would be now")
		asJSON := fs.Bool("json", false, "print a JSON object with the number")
		return func(ctx context.Context, p *process) error {
			switch {
			case olderThan < 0:
				return usagef("older-than is missing: say how old, for example --older-than 72h")
			case *limit < 0:
				return usagef("limit is %d: give a number above 0, or 0 for all", *limit)
			}
			o, err := t.open(ctx, p)
			if err != nil {
				return err
			}
			defer o.close()
			if *dryRun {
				return wouldPurge(ctx, p, o, olderThan, *limit, *asJSON)
			}
			operator, err := by.as(o)
			if err != nil {
				return err
			}
			return purge(ctx, p, operator, olderThan, *limit, *asJSON)
		}
	},
}

// purge drops what can be dropped whole, if there is no limit, and deletes the rest.
func purge(ctx context.Context, p *process, o *outbox.Operator, olderThan time.Duration, limit int, asJSON bool) error {
	var kept dialect.Partitions
	if limit == 0 {
		var err error
		if kept, err = o.KeepPartitions(ctx, olderThan); err != nil {
			if kept.Dropped > 0 {
				err = fmt.Errorf("%w (%d partitions dropped before)", err, kept.Dropped)
			}
			return err
		}
	}
	if kept.Denied {
		p.tell("the partitions of done are left alone: this user may not change the table; run outbox purge as its owner, once a day\n")
	}
	n, err := o.Purge(ctx, olderThan, limit)
	switch {
	case err != nil || !kept.Partitioned:
		return changed(p, "purged", n, err, "", asJSON)
	case asJSON:
		return writeJSON(p.stdout, map[string]any{"purged": n, "partitions_dropped": kept.Dropped, "partitions_made": kept.Made, "partitions_denied": kept.Denied})
	}
	_, err = fmt.Fprintf(p.stdout, "%s purged, %d partitions dropped, %d made\n", messages(n), kept.Dropped, kept.Made)
	return err
}

func wouldPurge(ctx context.Context, p *process, o *opened, olderThan time.Duration, limit int, asJSON bool) error {
	n, err := o.Purgeable(ctx, olderThan)
	if err != nil {
		return err
	}
	if limit > 0 {
		n = min(n, limit)
	}
	if asJSON {
		return writeJSON(p.stdout, map[string]any{"would_be_purged": n})
	}
	what := messages(n)
	if n >= outbox.DefaultCount {
		what = count(int64(n)) + " messages"
	}
	_, err = fmt.Fprintf(p.stdout, "%s would be purged\n", what)
	return err
}
