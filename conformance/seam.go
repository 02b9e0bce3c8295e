package conformance

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
)

// claim takes lane 0 by hand, for a relay's shortest lease.
func (t *trial) claim(owner string) dialect.Lease {
	epoch, ok, err := t.store().Claim(t.ctx, t.db, 0, owner, leaseTime)
	t.must(err, "claim lane 0")
	if !ok {
		t.fail("lane 0 is free and %q could not claim it", owner)
	}
	return dialect.Lease{Lane: 0, Owner: owner, Epoch: epoch}
}

// snapshot describes what stands in lane 0 and who owns lanes, so that two of
// them tell whether anything changed.
func (t *trial) snapshot() string {
	var b strings.Builder
	rows, err := t.store().Ready(t.ctx, t.db, 0, 0, dialect.Limit{Rows: 1000})
	t.must(err, "read ready")
	for i := range rows {
		fmt.Fprintf(&b, "ready %d; ", rows[i].Seq)
	}
	parked, err := t.operator.Parked(t.ctx, outbox.Filter{All: true}, 0, 1000)
	t.must(err, "list parked")
	for i := range parked {
		p := &parked[i]
		fmt.Fprintf(&b, "%s %d seq %d attempts %d; ", p.State, p.Pos, p.Seq, p.Attempts)
	}
	s := t.stats()
	fmt.Fprintf(&b, "lanes held %d, expired %d", s.LanesHeld, s.LanesExpired)
	return b.String()
}

// settleFaults are hooks that ask fault around every settle that names rows: before it,
// and, with done, after it took effect; one call at a time, for lanes are settled beside
// each other.
func settleFaults(ask func(lane int, done bool) error) hooks {
	var mu sync.Mutex
	fault := func(lane int, done bool) error {
		mu.Lock()
		defer mu.Unlock()
		return ask(lane, done)
	}
	return hooks{
		before: func(_ context.Context, o op) error {
			if o.name != "settle" || o.settlement.Empty() {
				return nil
			}
			return fault(o.lane, false)
		},
		after: func(_ context.Context, o op, ok bool, err error) error {
			if o.name != "settle" || err != nil || !ok {
				return err
			}
			return fault(o.lane, true)
		},
	}
}
