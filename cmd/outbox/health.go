package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/outbox-suite/outbox"
)

var healthCommand = command{
	name: "health", summary: "exit with 3 when messages have waited too long",
	help: `
For alarms and probes. It reads the tables only, so it also tells when no relay
runs at all. It exits with 3 when the oldest ready message, or a retry that is
overdue, has waited longer than --max-age, or when more than --max-dead messages
are dead; with 1 when it could not tell.

Example:
  outbox health --max-age 1m --max-dead 0 || page-somebody`,
	setup: func(fs *flag.FlagSet) action {
		var t target
		t.flags(fs)
		maxAge := fs.Duration("max-age", time.Minute, "the longest `duration` that a ready message may have waited")
		maxDead := fs.Int64("max-dead", -1, "the most dead messages, as a `number`; -1: any number")
		timeout := fs.Duration("timeout", 10*time.Second, "give up after this `duration`, with 1")
		asJSON := fs.Bool("json", false, "print a JSON object: healthy, oldest_ready_seconds, dead, findings")
		return func(ctx context.Context, p *process) error {
			if *maxAge <= 0 || *timeout <= 0 {
				return usagef("max-age and timeout are durations above 0, for example 1m")
			}
			ctx, cancel := context.WithTimeoutCause(ctx, *timeout, fmt.Errorf("no answer from the database within %v", *timeout))
			defer cancel()
			err := health(ctx, p, t, *maxAge, *maxDead, *asJSON)
			if cause := context.Cause(ctx); err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return cause
			}
			return err
		}
	},
}

func health(ctx context.Context, p *process, t target, maxAge time.Duration, maxDead int64, asJSON bool) error {
	o, err := t.open(ctx, p)
	if err != nil {
		return err
	}
	defer o.close()
	s, err := o.Stats(ctx)
	if err != nil {
		return err
	}
	findings := []string{}
	if s.OldestReady > maxAge {
		findings = append(findings, fmt.Sprintf("the message that has waited longest, ready or overdue, has waited %s, the limit is %v: is a relay running, and does it reach the broker?", age(s.OldestReady), maxAge))
	}
	if maxDead >= 0 && s.Dead > maxDead {
		findings = append(findings, fmt.Sprintf("%s dead, the limit is %d: see `outbox parked --state dead`", count(s.Dead), maxDead))
	}
	if err := report(p, s, findings, asJSON); err != nil {
		return err
	}
	if len(findings) > 0 {
		return findingError{} // said on stdout
	}
	return nil
}

func report(p *process, s outbox.Stats, findings []string, asJSON bool) error {
	if asJSON {
		return writeJSON(p.stdout, map[string]any{
			"healthy": len(findings) == 0, "oldest_ready_seconds": s.OldestReady.Seconds(), "dead": s.Dead, "findings": findings,
		})
	}
	if len(findings) == 0 {
		dead := ""
		if s.Dead > 0 {
			dead = ", which need a person: see `outbox parked --state dead`; --max-dead 0 makes them a finding"
		}
		_, err := fmt.Fprintf(p.stdout, "healthy: the oldest waits %s, dead %s%s\n", age(s.OldestReady), count(s.Dead), dead)
		return err
	}
	for _, f := range findings {
		if _, err := fmt.Fprintf(p.stdout, "unhealthy: %s\n", f); err != nil {
			return err
		}
	}
	return nil
}
