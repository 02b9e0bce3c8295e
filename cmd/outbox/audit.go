package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"time"

	"github.com/outbox-suite/outbox"
)

var auditCommand = command{
	name: "audit", summary: "list what operators did: who, when, to what, and why",
	help: `
Lists what was requeued, discarded, replayed and purged, by command and by the page of
outbox ui, the newest first. What relays purge by themselves is not there. An action
without an end is under way, or its process died: how many messages it changed is then
not known.

Example:
  outbox audit --limit 20`,
	setup: func(fs *flag.FlagSet) action {
		var t target
		t.flags(fs)
		limit := fs.Int("limit", 50, "list at most this `number`")
		before := fs.Int64("before", 0, "list what comes before this `pos`: the next page")
		asJSON := fs.Bool("json", false, "print a JSON object: actions, and next_before where there is more")
		return func(ctx context.Context, p *process) error {
			switch {
			case *limit < 1 || *limit > mostListed:
				return usagef("limit is %d: give 1 to %d, and page with --before", *limit, mostListed)
			case *before < 0:
				return usagef("before is %d: give the last pos of the page", *before)
			}
			return audit(ctx, p, t, *before, *limit, *asJSON)
		}
	},
}

type auditedAction struct {
	Pos       int64      `json:"pos"`
	ID        string     `json:"id"`
	BegunAt   time.Time  `json:"begun_at"`
	EndedAt   *time.Time `json:"ended_at"`
	Who       string     `json:"who"`
	Action    string     `json:"action"`
	Selection string     `json:"selection"`
	Reason    string     `json:"reason"`
	Changed   *int64     `json:"changed"`
	Failure   string     `json:"failure"`
}

func audit(ctx context.Context, p *process, t target, before int64, limit int, asJSON bool) error {
	o, err := t.open(ctx, p)
	if err != nil {
		return err
	}
	defer o.close()
	list, err := o.Audit(ctx, before, limit+1) // one more tells whether there is more
	if err != nil {
		return err
	}
	var next *int64
	if len(list) > limit {
		list = list[:limit]
		next = &list[limit-1].Pos
	}
	if asJSON {
		actions := make([]auditedAction, len(list))
		for i := range list {
			actions[i] = forAuditJSON(&list[i])
		}
		return writeJSON(p.stdout, map[string]any{"actions": actions, "next_before": next})
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(p.stdout, "nothing is in the audit")
		return err
	}
	rows := [][]string{{"BEGUN AT", "WHO", "ACTION", "CHANGED", "ENDED", "SELECTION", "REASON"}}
	short := clipFor(p.stdout)
	for _, a := range list {
		changed, ended := strconv.FormatInt(a.Changed, 10), "done"
		switch {
		case !a.Ended:
			changed, ended = "?", "no end"
		case a.Failure != "":
			ended = "failed"
		}
		rows = append(rows, []string{
			a.BegunAt.UTC().Format(time.RFC3339), short(a.Who, 40), a.Action, changed, ended, short(a.Selection, 60), cmp.Or(short(a.Why, 60), "-"),
		})
	}
	if err := table(p.stdout, rows); err != nil {
		return err
	}
	if next != nil {
		_, err = fmt.Fprintf(p.stdout, "\nMore: the same with --before %d\n", *next)
	}
	return err
}

func forAuditJSON(a *outbox.Audited) auditedAction {
	j := auditedAction{
		Pos: a.Pos, ID: formatID(a.ID), BegunAt: a.BegunAt, Who: a.Who, Action: a.Action,
		Selection: a.Selection, Reason: a.Why, Failure: a.Failure,
	}
	if a.Ended {
		j.EndedAt, j.Changed = &a.EndedAt.V, &a.Changed
	}
	return j
}

// actor is who runs a command that changes messages, and why.
type actor struct{ by, reason string }

func (a *actor) flags(fs *flag.FlagSet) {
	fs.StringVar(&a.by, "by", "", "the `name` of who does it, for the audit; default: this user and machine")
	fs.StringVar(&a.reason, "reason", "", "why, a `text` for the audit")
}

// as opens the door of the operator.
func (a *actor) as(o *opened) (*outbox.Operator, error) {
	return o.As(cmp.Or(a.by, osUser()), a.reason)
}

// osUser is who runs this process, where.
func osUser() string {
	who := "uid " + strconv.Itoa(os.Getuid())
	if u, err := user.Current(); err == nil && u.Username != "" {
		who = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		who += "@" + host
	}
	return clip(printable(who), 80)
}
