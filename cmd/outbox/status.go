package main

import (
	"context"
	"flag"
	"fmt"
	"time"
)

var statusCommand = command{
	name: "status", summary: "show what waits, what is stuck, and who holds the lanes",
	help: `
Counts messages by state and lanes by holder, and names the server and the schema.
Counting stops at a million, so it is cheap with any backlog. It needs no relay.

  ready      will be published next
  scheduled  wait for their time
  retry      failed, will be tried again
  held       wait behind a failed message of their key
  dead       need a person: see parked, requeue and discard

Example:
  outbox status --json | jq .oldest_ready_seconds`,
	setup: func(fs *flag.FlagSet) action {
		var t target
		t.flags(fs)
		asJSON := fs.Bool("json", false, "print a JSON object")
		return func(ctx context.Context, p *process) error { return status(ctx, p, t, *asJSON) }
	},
}

type statusReport struct {
	Engine             string   `json:"engine"`
	Server             string   `json:"server"`
	SchemaVersion      int      `json:"schema_version"`
	Ready              int64    `json:"ready"`
	Scheduled          int64    `json:"scheduled"`
	Retry              int64    `json:"retry"`
	Held               int64    `json:"held"`
	Dead               int64    `json:"dead"`
	BlockedKeys        int64    `json:"blocked_keys"`
	OldestReadySeconds float64  `json:"oldest_ready_seconds"`
	Lanes              int      `json:"lanes"`
	LanesHeld          int      `json:"lanes_held"`
	LanesExpired       int      `json:"lanes_expired"`
	Problems           []string `json:"problems"`
}

func status(ctx context.Context, p *process, t target, asJSON bool) error {
	if err := t.exists(p); err != nil {
		return err
	}
	o, err := t.inspect(ctx, p)
	if err != nil {
		return err
	}
	defer o.close()
	if o.found.Version == 0 {
		return o.Check(ctx) // says what is missing
	}
	s, err := o.Stats(ctx)
	if err != nil {
		return err
	}
	r := statusReport{
		Engine: o.Dialect().Name(), Server: o.found.Server, SchemaVersion: o.found.Version,
		Ready: s.Ready, Scheduled: s.Scheduled, Retry: s.Retry, Held: s.Held, Dead: s.Dead,
		BlockedKeys: s.BlockedKeys, OldestReadySeconds: s.OldestReady.Seconds(),
		Lanes: s.LanesTotal, LanesHeld: s.LanesHeld, LanesExpired: s.LanesExpired,
		Problems: append([]string{}, o.found.Problems...),
	}
	if asJSON {
		return writeJSON(p.stdout, r)
	}
	rows := [][]string{
		{"server", r.Server},
		{"schema", fmt.Sprintf("version %d, prefix %s, %d lanes", r.SchemaVersion, o.Tables().Prefix, r.Lanes)},
		{"ready", count(r.Ready)},
		{"oldest ready", age(s.OldestReady.Truncate(time.Millisecond))},
		{"scheduled", count(r.Scheduled)},
		{"retry", count(r.Retry)},
		{"held", count(r.Held)},
		{"dead", count(r.Dead)},
		{"blocked keys", count(r.BlockedKeys)},
		{"lanes held", fmt.Sprint(r.LanesHeld)},
		{"lanes expired", fmt.Sprint(r.LanesExpired)},
	}
	for _, problem := range r.Problems {
		rows = append(rows, []string{"PROBLEM", problem})
	}
	return table(p.stdout, rows)
}
