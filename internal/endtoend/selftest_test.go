package endtoend

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
)

// TestBreakages breaks each link of the way on purpose: the suite must see it, and
// call it what it is.
func TestBreakages(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers and kills processes: left out by -short")
	}
	for _, c := range []struct {
		broken, name string
		broker       string
		faults       []fault
		want         string
	}{
		{noInbox, "NoInbox", "nats", []fault{consumerDies}, "repeated"},
		{acceptsAll, "AcceptsAll", "nats", []fault{brokerKilled}, "lost"},
		{settlesFirst, "SettlesFirst", "nats", []fault{relayKilled}, "lost"},
		{reverses, "Reverses", "nats", nil, "order"},
		{enqueuesOut, "EnqueuesOutside", "nats", nil, "unexpected"},
		{publishesTwice, "PublishesTwice", "kafka", nil, "twice"}, // NATS would take it once
	} {
		t.Run(c.name, func(t *testing.T) {
			e, b := engineNamed("sqlite"), brokerNamed(c.broker)
			shop, billing, _ := e.databases(t)
			r := newTrial(t, e, b, shop, billing, newPlan(seedOf(t), scale{orders: 4, calm: 60, storm: 90, faults: c.faults}))
			r.broken = c.broken
			if c.want == "lost" {
				r.patience = 4 * time.Second // what is lost is waited for in vain
			}
			found := r.run()
			t.Logf("%s: %v", c.broken, found.all)
			if !slices.Contains(found.kinds(), c.want) {
				t.Errorf("%s, and what is found is %q, not %q", c.broken, found.kinds(), c.want)
			}
		})
	}
}

// TestCheck shows the check each kind of evidence that it is there to refuse.
func TestCheck(t *testing.T) {
	a, b, c := uuid.New(), uuid.New(), uuid.New()
	good := func() evidence {
		first, second := change{a.String(), 1, 1}, change{b.String(), 1, 2}
		return evidence{
			plan:    []planned{{a, 1, commits}, {b, 1, commits}, {c, 1, rollsBack}},
			journal: []change{first, second},
			effects: []effect{{first, 1}, {second, 2}},
		}
	}
	for _, k := range []struct {
		name  string
		spoil func(e *evidence)
		want  []string
	}{
		{"good", func(*evidence) {}, nil},
		{"not committed", func(e *evidence) { e.journal, e.effects = e.journal[:1], e.effects[:1] }, []string{"business"}},
		{"committed all the same", func(e *evidence) { e.plan[1].fate = rollsBack }, []string{"business"}},
		{"nobody's", func(e *evidence) { e.plan = e.plan[1:] }, []string{"business"}},
		{"lost", func(e *evidence) { e.effects = e.effects[:1] }, []string{"lost"}},
		{"repeated", func(e *evidence) { e.effects = append(e.effects, effect{e.effects[0].change, 3}) }, []string{"repeated"}},
		{"of a rollback", func(e *evidence) { e.effects = append(e.effects, effect{change{c.String(), 1, 3}, 3}) }, []string{"unexpected"}},
		{"another revision", func(e *evidence) { e.effects[1].revision = 7 }, []string{"altered"}},
		{"out of order", func(e *evidence) { e.effects[0].place, e.effects[1].place = 2, 1 }, []string{"order"}},
		{"left", func(e *evidence) { e.left = outbox.Stats{Held: 1} }, []string{"left"}},
	} {
		t.Run(k.name, func(t *testing.T) {
			e := good()
			k.spoil(&e)
			if got := check(e).kinds(); !slices.Equal(got, k.want) {
				t.Errorf("found %q, not %q", got, k.want)
			}
		})
	}
}

// TestPlanIsOfTheSeed makes the same plan of the same seed, and another of another.
func TestPlanIsOfTheSeed(t *testing.T) {
	same := func(a, b plan) bool {
		return slices.Equal(a.before, b.before) && slices.Equal(a.after, b.after) &&
			slices.EqualFunc(a.storm, b.storm, func(a, b blow) bool { return a.fault == b.fault && slices.Equal(a.items, b.items) })
	}
	s := sizeOf(true)
	if !same(newPlan(1, s), newPlan(1, s)) || same(newPlan(1, s), newPlan(2, s)) {
		t.Error("the plan does not follow the seed")
	}
}
