package conformance

import (
	"errors"
	"fmt"
	"strings"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
)

// schemaScenarios: what is found out before a message is written.
var schemaScenarios = []Scenario{
	{
		Name:    "Schema/WrongLanesAreRefused",
		Promise: "a program that is set to another number of lanes than the schema has is told both, at its start, when it migrates and at its first message in a wrong lane",
		run:     wrongLanesAreRefused,
	},
}

func wrongLanesAreRefused(t *trial) {
	for _, lanes := range []int{t.tables.Lanes / 2, t.tables.Lanes * 2} {
		other, err := outbox.New(t.db, t.target.Dialect, outbox.Config{Schema: t.tables.Schema, Prefix: t.tables.Prefix, Lanes: lanes})
		t.must(err, "new outbox with %d lanes", lanes)
		err = other.Check(t.ctx)
		has, set := fmt.Sprintf("has %d lanes", t.tables.Lanes), fmt.Sprintf("is set to %d", lanes)
		if !errors.Is(err, outbox.ErrNotReady) || !strings.Contains(fmt.Sprint(err), has) || !strings.Contains(fmt.Sprint(err), set) {
			t.error("check with %d lanes: %v; want one that says %q and %q", lanes, err, has, set)
		}
		_, err = other.Migrate(t.ctx)
		if wrong := new(dialect.LanesError); !errors.As(err, &wrong) || *wrong != (dialect.LanesError{Schema: t.tables.Lanes, Set: lanes}) {
			t.error("migrate with %d lanes: %v; want a *dialect.LanesError with both numbers", lanes, err)
		}
		in, err := other.Inspect(t.ctx)
		t.must(err, "inspect with %d lanes", lanes)
		if len(in.Problems) > 0 {
			t.error("the schema is found to be wrong where only the setting is: %q", in.Problems)
		}
		refused := 0
		for n := range 20 {
			tx, err := t.db.BeginTx(t.ctx, nil)
			t.must(err, "begin")
			_, err = other.Enqueue(t.ctx, tx, t.message(fmt.Sprint("key-", n)))
			if err != nil {
				refused++
			}
			t.must(tx.Rollback(), "roll back")
		}
		if refused == 0 {
			t.error("20 messages went into lanes counted by %d", lanes)
		}
	}
	t.must(t.box.Check(t.ctx), "check with the right number of lanes")
}
