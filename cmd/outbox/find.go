package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
)

var findCommand = command{
	name: "find", summary: "tell where messages stand, by id",
	help: `
Looks for messages among the ready, the parked and the done ones, and tells where each
stands and since when, the latest place first. One that was replayed was done once for
each time. A message that is nowhere was never committed here, or it is gone: published
by a relay without a retention, or purged. Payloads are not shown.

Example:
  outbox find --id 01890a5d-ac96-774b-bcce-b302099a8057`,
	setup: func(fs *flag.FlagSet) action {
		var t target
		var f filterFlags
		t.flags(fs)
		f.ids(fs)
		asJSON := fs.Bool("json", false, "print a JSON object: messages, an entry for each place")
		return func(ctx context.Context, p *process) error {
			if len(f.IDs) == 0 {
				return usagef("no id: name the message with --id")
			}
			return findMessages(ctx, p, t, f.IDs, *asJSON)
		}
	},
}

type foundMessage struct {
	ID           string   `json:"id"`
	State        string   `json:"state"`
	SinceSeconds float64  `json:"since_seconds"`
	AgeSeconds   float64  `json:"age_seconds"`
	Key          *string  `json:"key"`
	Topic        string   `json:"topic"`
	Type         string   `json:"type"`
	Lane         int      `json:"lane"`
	Seq          int64    `json:"seq"`
	Attempts     int      `json:"attempts"`
	Replay       int      `json:"replay"`
	DueInSeconds *float64 `json:"due_in_seconds"`
	Reason       string   `json:"reason"`
}

func findMessages(ctx context.Context, p *process, t target, ids []uuid.UUID, asJSON bool) error {
	o, err := t.open(ctx, p)
	if err != nil {
		return err
	}
	defer o.close()
	found := []foundMessage{}
	rows := [][]string{{"ID", "STATE", "SINCE", "AGE", "KEY", "TOPIC", "TYPE", "ATTEMPTS", "REPLAY", "DUE IN", "REASON"}}
	short := clipFor(p.stdout)
	var missing []uuid.UUID
	for _, id := range ids {
		list, err := o.Find(ctx, id)
		if err != nil {
			return err
		}
		if len(list) == 0 {
			missing = append(missing, id)
		}
		for i := range list {
			m := &list[i]
			found = append(found, forFindJSON(id, m))
			rows = append(rows, []string{
				id.String(), m.State, age(m.Since), age(m.Age), short(keyText(m.Key), 40), short(m.Topic, 40), short(m.Type, 40),
				fmt.Sprint(m.Attempts), fmt.Sprint(m.Replay), dueText(m.DueIn), short(m.Reason, 80),
			})
		}
	}
	if asJSON {
		return writeJSON(p.stdout, map[string]any{"messages": found})
	}
	if len(found) > 0 {
		if err := table(p.stdout, rows); err != nil {
			return err
		}
	}
	for _, id := range missing {
		if _, err := fmt.Fprintf(p.stdout, "%s is nowhere: never committed here, or published or discarded and then purged\n", id); err != nil {
			return err
		}
	}
	return nil
}

func forFindJSON(id uuid.UUID, m *outbox.Standing) foundMessage {
	return foundMessage{
		ID: id.String(), State: m.State, SinceSeconds: m.Since.Seconds(), AgeSeconds: m.Age.Seconds(), Topic: m.Topic, Type: m.Type,
		Lane: m.Lane, Seq: m.Seq, Attempts: m.Attempts, Replay: m.Replay, Reason: m.Reason,
		Key: keyJSON(m.Key), DueInSeconds: dueJSON(m.DueIn),
	}
}
