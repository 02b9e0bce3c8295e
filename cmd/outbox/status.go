package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

var statusCommand = command{
	name: "status", summary: "show what waits, what is stuck, and who holds the lanes",
	help: `
Counts messages by state, and names the server, the schema and who holds which lanes.
Counting stops at a million, so it is cheap with any backlog. It needs no relay.

  ready      will be published next
  scheduled  wait for their time
  retry      failed, will be tried again
  held       wait behind a failed message of their key
  dead       need a person: see parked, requeue and discard

A relay holds a lane while it works on it: that nobody holds one is usual when nothing
is ready. An expired lane is one whose relay did not give it back; any relay takes it.

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
	Engine             string      `json:"engine"`
	Server             string      `json:"server"`
	SchemaVersion      int         `json:"schema_version"`
	Ready              int64       `json:"ready"`
	Scheduled          int64       `json:"scheduled"`
	Retry              int64       `json:"retry"`
	Held               int64       `json:"held"`
	Dead               int64       `json:"dead"`
	BlockedKeys        int64       `json:"blocked_keys"`
	OldestReadySeconds float64     `json:"oldest_ready_seconds"`
	Lanes              int         `json:"lanes"`
	LanesHeld          int         `json:"lanes_held"`
	LanesExpired       int         `json:"lanes_expired"`
	Owners             []laneOwner `json:"owners"`
	Problems           []string    `json:"problems"`
}

// laneOwner is a relay with the lanes that it holds.
type laneOwner struct {
	Owner string `json:"owner"`
	Lanes []int  `json:"lanes"`
}

// owners are the holders of lanes, by name.
func owners(ctx context.Context, o *opened) ([]laneOwner, error) {
	list := []laneOwner{}
	viewer, ok := o.Store().(dialect.Viewer)
	if !ok {
		return list, nil
	}
	lanes, err := viewer.ViewLanes(ctx, o.DB())
	if err != nil {
		return nil, fmt.Errorf("lanes: %w", err)
	}
	held := make(map[string][]int)
	for _, l := range lanes {
		if l.Owner != "" && l.Left > 0 {
			held[l.Owner] = append(held[l.Owner], l.Lane)
		}
	}
	for _, owner := range slices.Sorted(maps.Keys(held)) {
		slices.Sort(held[owner])
		list = append(list, laneOwner{owner, held[owner]})
	}
	return list, nil
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
	holders, err := owners(ctx, o)
	if err != nil {
		return err
	}
	r := statusReport{
		Engine: o.Dialect().Name(), Server: o.found.Server, SchemaVersion: o.found.Version,
		Ready: s.Ready, Scheduled: s.Scheduled, Retry: s.Retry, Held: s.Held, Dead: s.Dead,
		BlockedKeys: s.BlockedKeys, OldestReadySeconds: s.OldestReady.Seconds(),
		Lanes: s.LanesTotal, LanesHeld: s.LanesHeld, LanesExpired: s.LanesExpired, Owners: holders,
		Problems: append([]string{}, o.found.Problems...),
	}
	if asked := o.Tables().Lanes; asked != o.found.Lanes {
		r.Problems = append(r.Problems, (&dialect.LanesError{Schema: o.found.Lanes, Set: asked}).Error())
	}
	if asJSON {
		return writeJSON(p.stdout, r)
	}
	rows := [][]string{
		{"server", r.Server},
		{"schema", fmt.Sprintf("version %d, prefix %s, %d lanes", r.SchemaVersion, o.Tables().Prefix, r.Lanes)},
		{"ready", count(r.Ready)},
		{"oldest waits", age(s.OldestReady.Truncate(time.Millisecond))},
		{"scheduled", count(r.Scheduled)},
		{"retry", count(r.Retry)},
		{"held", count(r.Held)},
		{"dead", count(r.Dead)},
		{"blocked keys", count(r.BlockedKeys)},
		{"lanes held", fmt.Sprint(r.LanesHeld)},
		{"lanes expired", fmt.Sprint(r.LanesExpired)},
	}
	for _, h := range r.Owners {
		rows = append(rows, []string{"lanes of " + printable(h.Owner), strings.Trim(fmt.Sprint(h.Lanes), "[]")})
	}
	for _, problem := range r.Problems {
		rows = append(rows, []string{"PROBLEM", problem})
	}
	return table(p.stdout, rows)
}
