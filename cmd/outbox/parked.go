package main

import (
	"context"
	"database/sql"
	"encoding/hex"
	"flag"
	"fmt"
	"time"

	"github.com/outbox-suite/outbox"
)

var parkedCommand = command{
	name: "parked", summary: "list messages that wait or need a person",
	help: `
Lists parked messages in the order they were parked, with why. All flags that
select must match; without any, everything is listed, a page at a time. Payloads
are not shown. A terminal gets long keys and reasons cut, a pipe gets them whole.

Example:
  outbox parked --state dead --topic orders --limit 20`,
	setup: func(fs *flag.FlagSet) action {
		var t target
		var f filterFlags
		t.flags(fs)
		f.flags(fs)
		f.states(fs, "messages in this `state`: scheduled, retry, held or dead; may be repeated")
		limit := fs.Int("limit", 50, "list at most this `number`")
		after := fs.Int64("after", 0, "list what comes after this `pos`: the next page")
		asJSON := fs.Bool("json", false, "print a JSON object: messages, and next_after where there is more")
		return func(ctx context.Context, p *process) error {
			if *limit < 1 || *limit > mostListed {
				return usagef("limit is %d: give 1 to %d, and page with --after", *limit, mostListed)
			}
			return parked(ctx, p, t, f.Filter, *after, *limit, *asJSON)
		}
	},
}

// mostListed bounds what one page keeps in memory.
const mostListed = 10_000

type parkedMessage struct {
	Pos          int64     `json:"pos"`
	ID           string    `json:"id"`
	State        string    `json:"state"`
	Key          *string   `json:"key"`
	Topic        string    `json:"topic"`
	Type         string    `json:"type"`
	Lane         int       `json:"lane"`
	Seq          int64     `json:"seq"`
	Revision     int64     `json:"revision"`
	Attempts     int       `json:"attempts"`
	Blocking     bool      `json:"blocking"`
	DueInSeconds *float64  `json:"due_in_seconds"`
	CreatedAt    time.Time `json:"created_at"`
	ParkedAt     time.Time `json:"parked_at"`
	Reason       string    `json:"reason"`
}

func parked(ctx context.Context, p *process, t target, f outbox.Filter, after int64, limit int, asJSON bool) error {
	o, err := t.open(ctx, p)
	if err != nil {
		return err
	}
	defer o.close()
	list, err := o.Parked(ctx, f, after, limit+1) // one more tells whether there is more
	if err != nil {
		return err
	}
	more := len(list) > limit
	list = list[:min(limit, len(list))]
	var next *int64
	if more {
		next = &list[len(list)-1].Pos
	}
	if asJSON {
		return writeJSON(p.stdout, map[string]any{"messages": forJSON(list), "next_after": next})
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(p.stdout, "nothing is parked that matches")
		return err
	}
	rows := [][]string{{"POS", "ID", "STATE", "KEY", "TOPIC", "TYPE", "ATTEMPTS", "DUE IN", "PARKED AT", "REASON"}}
	short := clipFor(p.stdout)
	for _, m := range list {
		rows = append(rows, []string{
			fmt.Sprint(m.Pos), formatID(m.ID), m.State, short(keyText(m.Key), 40), short(m.Topic, 40), short(m.Type, 40),
			fmt.Sprint(m.Attempts), dueText(m.DueIn), m.ParkedAt.UTC().Format(time.RFC3339), short(m.Reason, 80),
		})
	}
	if err := table(p.stdout, rows); err != nil {
		return err
	}
	if more {
		_, err = fmt.Fprintf(p.stdout, "\nMore: the same with --after %d\n", *next)
	}
	return err
}

// keyText is a key in a table, where a message without one has a dash.
func keyText(key sql.Null[string]) string {
	switch {
	case !key.Valid:
		return "-"
	case key.V == "" || key.V == "-":
		return fmt.Sprintf("%q", key.V)
	}
	return key.V
}

// dueText is when a message is due in a table, where one that waits for no time has a dash.
func dueText(in sql.Null[time.Duration]) string {
	switch {
	case !in.Valid:
		return "-"
	case in.V <= 0:
		return "now"
	}
	return age(in.V)
}

// keyJSON and dueJSON are the same for a program, which gets null.
func keyJSON(key sql.Null[string]) *string {
	if !key.Valid {
		return nil
	}
	return &key.V
}

func dueJSON(in sql.Null[time.Duration]) *float64 {
	if !in.Valid {
		return nil
	}
	seconds := in.V.Seconds()
	return &seconds
}

func forJSON(list []outbox.Parked) []parkedMessage {
	all := make([]parkedMessage, len(list))
	for i, m := range list {
		all[i] = parkedMessage{
			Pos: m.Pos, ID: formatID(m.ID), State: m.State, Topic: m.Topic, Type: m.Type, Lane: m.Lane, Seq: m.Seq,
			Revision: m.Revision, Attempts: m.Attempts, Blocking: m.Blocking, CreatedAt: m.CreatedAt, ParkedAt: m.ParkedAt, Reason: m.Reason,
			Key: keyJSON(m.Key), DueInSeconds: dueJSON(m.DueIn),
		}
	}
	return all
}

// formatID writes an id as a UUID.
func formatID(id [16]byte) string {
	h := hex.EncodeToString(id[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
