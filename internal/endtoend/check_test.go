package endtoend

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/outbox-suite/outbox"
)

// evidence is what both databases hold in the end, and all that check goes by.
type evidence struct {
	plan    []planned
	journal []change // committed business changes
	effects []effect
	left    outbox.Stats
}

// change is a change of an order that a message tells of.
type change struct {
	id              string
	order, revision int
}

// effect is what the consumer made of a message. place counts the effects on the order.
type effect struct {
	change
	place int
}

// finding is what did not hold: business, left, lost, repeated, unexpected, altered,
// order, or twice, which is a delivery without a fault to explain it.
type finding struct {
	kind     string
	count    int
	examples []string
}

func (f finding) String() string {
	return fmt.Sprintf("%s: %d, such as %q", f.kind, f.count, f.examples)
}

// findings collects them by kind.
type findings struct{ all []finding }

func (f *findings) add(kind, format string, args ...any) {
	i := slices.IndexFunc(f.all, func(g finding) bool { return g.kind == kind })
	if i < 0 {
		f.all, i = append(f.all, finding{kind: kind}), len(f.all)
	}
	if f.all[i].count++; len(f.all[i].examples) < 3 {
		f.all[i].examples = append(f.all[i].examples, fmt.Sprintf(format, args...))
	}
}

func (f *findings) kinds() (kinds []string) {
	for _, g := range f.all {
		kinds = append(kinds, g.kind)
	}
	slices.Sort(kinds)
	return kinds
}

// check compares what was to be with the business tables, and these with the effects.
func check(e evidence) *findings {
	var f findings
	committed := make(map[string]change)
	for _, c := range e.journal {
		committed[c.id] = c
	}
	known := make(map[string]bool)
	for _, p := range e.plan {
		id := p.id.String()
		known[id] = true
		if c, found := committed[id]; found != (p.fate == commits) || found && c.order != p.order {
			f.add("business", "%s of order %d: committed %t", id, p.order, found)
		}
	}
	for id := range committed {
		if !known[id] {
			f.add("business", "%s was not planned", id)
		}
	}
	applied := make(map[string]int)
	byOrder := make(map[int][]effect)
	for _, x := range e.effects {
		switch c, found := committed[x.id]; {
		case !found:
			f.add("unexpected", "%s, revision %d of order %d", x.id, x.revision, x.order)
		case c != x.change:
			f.add("altered", "%+v became %+v", c, x.change)
		}
		if applied[x.id]++; applied[x.id] > 1 {
			f.add("repeated", "%s, revision %d of order %d", x.id, x.revision, x.order)
			continue
		}
		byOrder[x.order] = append(byOrder[x.order], x)
	}
	for id, c := range committed {
		if applied[id] == 0 {
			f.add("lost", "%s, revision %d of order %d", id, c.revision, c.order)
		}
	}
	for order, list := range byOrder {
		slices.SortFunc(list, func(a, b effect) int { return cmp.Compare(a.place, b.place) })
		for i := 1; i < len(list); i++ {
			if list[i].revision <= list[i-1].revision {
				f.add("order", "revision %d of order %d after %d", list[i].revision, order, list[i-1].revision)
			}
		}
	}
	if n := e.left.Ready + e.left.Scheduled + e.left.Retry + e.left.Held + e.left.Dead; n > 0 {
		f.add("left", "%d messages in the outbox, %d of them dead", n, e.left.Dead)
	}
	return &f
}
