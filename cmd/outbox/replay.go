package main

import (
	"context"
	"flag"
	"fmt"
	"time"
)

var replayCommand = command{
	name: "replay", summary: "publish done messages again",
	help: `
Publishes messages again that were published or discarded and are still in done,
oldest first, under the same ids, marked as a replay. Consumers that remove
duplicates by id will pass over them. --since and --until are about when a message
was done: an age by the database's clock, or an instant, which this machine's clock
turns into an age. Give something that selects, or --all.

Example:
  outbox replay --topic orders --since 2h --until 30m`,
	setup: func(fs *flag.FlagSet) action {
		var t target
		var f filterFlags
		var from, to since
		t.flags(fs)
		f.flags(fs)
		fs.Var(&from, "since", "messages done since that `time`: 2h or 2026-01-31T15:04:05Z")
		fs.Var(&to, "until", "messages done until that `time`: 30m or 2026-01-31T15:34:05Z")
		limit := limitFlag(fs)
		asJSON := fs.Bool("json", false, "print a JSON object with the number")
		return func(ctx context.Context, p *process) error {
			f.Since, f.Until = from.age, to.age
			switch {
			case *limit < 0:
				return usagef("limit is %d: give a number above 0, or 0 for all", *limit)
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
			n, err := o.Replay(ctx, f.Filter, *limit)
			return changed(p, "replayed", n, err, *asJSON)
		}
	},
}

var purgeCommand = command{
	name: "purge", summary: "delete done messages",
	help: `
Deletes messages that were published or discarded at least so long ago, in small
transactions beside everything else. Messages that are ready or parked are never
touched. Relays do it by themselves after their --retention.

Example:
  outbox purge --older-than 72h`,
	setup: func(fs *flag.FlagSet) action {
		var t target
		t.flags(fs)
		olderThan := time.Duration(-1)
		fs.Func("older-than", "what was done at least this `duration` ago; 0 is everything; required", func(s string) error {
			d, err := time.ParseDuration(s)
			if err != nil || d < 0 {
				return fmt.Errorf("give a duration of 0 or more, for example 72h")
			}
			olderThan = d
			return nil
		})
		limit := limitFlag(fs)
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
			n, err := o.Purge(ctx, olderThan, *limit)
			return changed(p, "purged", n, err, *asJSON)
		}
	},
}
