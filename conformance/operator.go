package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/relay"
)

// operatorScenarios: what operators do, alone and beside running relays.
var operatorScenarios = []Scenario{
	{
		Name:    "Relay/RequeueKeepsOrder",
		Promise: "a requeued run of one key is published in its order, before newer messages of the key, however it was selected",
		run:     requeueKeepsOrder,
	},
	{
		Name:    "Relay/ReplaySameID",
		Promise: "a replayed message is published again as it was, under the same id, with a count that rises with each replay",
		run:     replaySameID,
	},
	{
		Name:    "Operator/ReplayResumes",
		Promise: "a replay keeps to its rate, is counted beforehand, and goes on from any place of one that was interrupted: each message is marked once, also those that were published or parked meanwhile",
		run:     replayResumes,
	},
	{
		Name:    "Relay/DiscardIsRecorded",
		Promise: "a discarded message is not published, is kept for a replay whatever the retention of published ones, and what waited behind it goes on",
		run:     discardIsRecorded,
	},
	{
		Name:    "Operator/InvariantHoldsUnderRaces",
		Promise: "however operators requeue, discard and replay beside relays whose publishes fail, no held message is left without one that blocks its key, nothing is lost, and order per key holds",
		run:     invariantUnderRaces,
	},
}

func requeueKeepsOrder(t *trial) {
	type way struct {
		name    string
		requeue func(key string, run []outbox.Message) (int, error)
	}
	requeue := func(f outbox.Filter, limit int) (int, error) { return t.operator.Requeue(t.ctx, f, limit) }
	for _, w := range []way{
		{"by key", func(key string, _ []outbox.Message) (int, error) { return requeue(outbox.Filter{Key: key}, 0) }},
		{"by id, backwards", func(_ string, run []outbox.Message) (int, error) {
			f := outbox.Filter{}
			for i := range slices.Backward(run) {
				f.IDs = append(f.IDs, run[i].ID)
			}
			return requeue(f, 0)
		}},
		{"one by one, backwards", func(_ string, run []outbox.Message) (n int, err error) {
			for i := range slices.Backward(run) {
				one, err := requeue(outbox.Filter{IDs: []uuid.UUID{run[i].ID}}, 0)
				n += one
				if err != nil {
					return n, err
				}
			}
			return n, nil
		}},
		{"by topic", func(_ string, run []outbox.Message) (int, error) {
			return requeue(outbox.Filter{Topic: run[0].Topic}, 0)
		}},
		{"all", func(string, []outbox.Message) (int, error) { return requeue(outbox.Filter{All: true}, 0) }},
		{"all, three at a time", func(_ string, run []outbox.Message) (n int, err error) {
			for {
				some, err := requeue(outbox.Filter{All: true}, 3)
				n += some
				if err != nil || some == 0 {
					return n, err
				}
				if some > 3 {
					t.error("a requeue of at most 3 changed %d", some)
				}
				for _, p := range t.parked(outbox.Filter{All: true, States: []string{outbox.Dead}}) {
					if at := slices.IndexFunc(run, func(m outbox.Message) bool { return m.ID == uuid.UUID(p.ID) }); at < n {
						t.error("message %d of a run stayed dead when %d were requeued", at+1, n)
					}
				}
			}
		}},
	} {
		// A run of dead messages: the relay lets the key pass.
		no := t.broker.when(anyMessage, refuse(relay.Permanent(errRefused)))
		run := t.enqueue(w.name, 8)
		r := t.start(patient, func(c *relay.Config) { c.OnDead = relay.PassKey })
		t.await("the run to be dead", func() bool { return t.stats().Dead == int64(len(run)) })
		r.stop()
		t.enqueue(w.name, 4) // newer ones
		no.remove()
		n, err := w.requeue(w.name, run)
		t.must(err, "requeue %s", w.name)
		if n != len(run) {
			t.error("requeue %s changed %d of %d messages", w.name, n, len(run))
		}
		// One in the middle fails again.
		again := t.broker.first(2, ofID(run[3].ID), refuse(errRefused))
		r = t.start(patient)
		t.awaitPublished()
		t.awaitEmpty()
		r.stop()
		again.remove()
	}

	// A dead head with what it holds, while relays run and newer ones come.
	no := t.broker.when(ofKey("head"), refuse(relay.Permanent(errRefused)))
	t.startMany(2, patient)
	t.enqueue("head", 5)
	t.await("the head to be dead", func() bool { s := t.stats(); return s.Dead == 1 && s.Held == 4 })
	no.remove()
	n, err := t.operator.Requeue(t.ctx, outbox.Filter{Key: "head"}, 0)
	t.must(err, "requeue")
	if n != 1 {
		t.error("requeue changed %d messages instead of the one that is dead", n)
	}
	for range 5 {
		t.enqueue("head", 2)
	}
	t.settleDown()
	t.noDuplicates()
	t.noneWentBack()
}

func replaySameID(t *trial) {
	const messages = 24
	t.produce(load{messages: messages, keys: 4, unkeyed: 4, topics: []string{"one", "two"}})
	first := t.start(patient)
	t.awaitPublished()
	t.awaitEmpty()
	first.stop()
	var ids []uuid.UUID
	byKey, byTopic := 0, 0
	took, _ := t.broker.history()
	for i := range took {
		ids = append(ids, took[i].id)
		if took[i].key == "key-0" {
			byKey++
		}
	}
	for _, way := range []struct {
		name   string
		filter outbox.Filter
		want   int
	}{
		{"by id", outbox.Filter{IDs: ids}, messages},
		{"all", outbox.Filter{All: true}, messages},
		{"all, again", outbox.Filter{All: true}, messages},
		{"by key", outbox.Filter{Key: "key-0"}, byKey},
		{"by topic", outbox.Filter{Topic: "one"}, -1},
		{"by another key", outbox.Filter{Key: "KEY-0"}, 0},
		{"by time", outbox.Filter{Since: time.Hour}, messages},
		{"by a time long past", outbox.Filter{Until: time.Hour}, 0},
	} {
		before := t.broker.replays()
		n, err := t.operator.Replay(t.ctx, way.filter, 0)
		t.must(err, "replay %s", way.name)
		if way.want >= 0 && n != way.want {
			t.error("replay %s copied %d messages instead of %d", way.name, n, way.want)
		}
		if way.want < 0 {
			byTopic += n
		}
		again, err := t.operator.Replay(t.ctx, way.filter, 0)
		t.must(err, "replay %s, twice", way.name)
		if again != 0 {
			t.error("replay %s copied %d messages that are ready already", way.name, again)
		}
		r := t.start(patient)
		t.await("the replayed messages to be published", func() bool { return t.stats().Ready == 0 })
		r.stop()
		after := t.broker.replays()
		risen := 0
		for id, count := range after {
			switch count - before[id] {
			case 0:
			case 1:
				risen++
			default:
				t.error("replay %s raised the count of a message from %d to %d", way.name, before[id], count)
			}
		}
		if risen != n {
			t.error("replay %s: %d messages were published with a count raised by one, of %d replayed", way.name, risen, n)
		}
	}
	if byTopic == 0 || byTopic == messages {
		t.error("of %d messages %d are of one of two topics", messages, byTopic)
	}
	t.settleDown()
	t.noDuplicates()
}

func replayResumes(t *trial) {
	const messages, rate, cut = 80, 100, 30
	t.produce(load{messages: messages, keys: 4, unkeyed: 8})
	r := t.start(patient)
	t.awaitPublished()
	t.awaitEmpty()
	r.stop()
	count := func(f outbox.Filter) int {
		n, err := t.operator.ReplayWith(t.ctx, f, outbox.ReplayOptions{DryRun: true})
		t.must(err, "count")
		return n
	}
	if n, again := count(everything), count(everything); n != messages || again != n {
		t.fail("of %d messages %d would be replayed, and then %d", messages, n, again)
	}
	if n, limited := count(outbox.Filter{Until: time.Hour}), count(outbox.Filter{Type: "none"}); n+limited != 0 {
		t.error("%d messages of a time long past and %d of another type would be replayed", n, limited)
	}

	// Interrupted after three steps.
	var places []string
	ctx, interrupt := context.WithCancel(t.ctx)
	defer interrupt()
	began := time.Now()
	n, err := t.operator.ReplayWith(ctx, everything, outbox.ReplayOptions{Rate: rate, Progress: func(n int, resume string) {
		places = append(places, resume)
		if n >= cut {
			interrupt()
		}
	}})
	took := time.Since(began)
	broken := (*outbox.ReplayError)(nil)
	if !errors.As(err, &broken) || !errors.Is(err, context.Canceled) || n != cut || broken.Replayed != cut {
		t.fail("a replay that was interrupted after %d messages says %d and %v", cut, n, err)
	}
	if least := time.Second * (cut - rate/10) / rate; took < least {
		t.error("%d messages were replayed in %v, which at %d a second take %v", cut, took, rate, least)
	}
	if broken.Resume != places[len(places)-1] {
		t.error("the place to go on is not the one told last")
	}

	// What was replayed is published, or parked, or waits.
	waiting := t.broker.first(1, anyMessage, refuse(relay.Permanent(errRefused)))
	r = t.start(patient, func(c *relay.Config) { c.OnDead = relay.PassKey })
	t.await("the replayed messages to be published or dead", func() bool { s := t.stats(); return s.Ready == 0 && s.Dead == 1 })
	r.stop()
	waiting.remove()

	other := outbox.Filter{Topic: "another"}
	if _, err := t.operator.ReplayWith(t.ctx, other, outbox.ReplayOptions{Resume: broken.Resume}); !errors.Is(err, outbox.ErrInvalid) {
		t.error("a replay of other messages took the place: %v", err)
	}
	// From the first place, as if nothing was known of how far it came; then from the
	// last one; and again.
	left := messages - cut
	for _, place := range []string{places[0], broken.Resume, places[0]} {
		n, err := t.operator.ReplayWith(t.ctx, everything, outbox.ReplayOptions{Resume: place})
		if err != nil || n != left {
			t.error("a replay that goes on has replayed %d messages, and %d were left: %v", n, left, err)
		}
		left = 0
		if _, err := t.operator.Requeue(t.ctx, everything, 0); err != nil {
			t.error("requeue: %v", err)
		}
		r := t.start(patient)
		t.await("the replayed messages to be published", func() bool { s := t.stats(); return s.Ready+s.Retry+s.Dead+s.Held == 0 })
		r.stop()
	}
	replays := t.broker.replays()
	if len(replays) != messages {
		t.error("%d of %d messages were published", len(replays), messages)
	}
	for id, n := range replays {
		if n != 1 {
			t.error("%v was marked as a replay %d times", id, n)
		}
	}
	t.settleDown()
	t.noDuplicates()
}

// replays are the highest replay counts that were accepted, by id.
func (b *broker) replays() map[uuid.UUID]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	most := make(map[uuid.UUID]int)
	for i := range b.log {
		most[b.log[i].id] = max(most[b.log[i].id], b.log[i].replay)
	}
	return most
}

func discardIsRecorded(t *trial) {
	discard := func(what string, want int, f outbox.Filter) {
		n, err := t.operator.Discard(t.ctx, f, 0)
		t.must(err, "discard %s", what)
		if n != want {
			t.error("discard %s changed %d messages instead of %d", what, n, want)
		}
	}
	// Nothing published is kept, so that a replay finds what was discarded alone.
	config := func(c *relay.Config) { patient(c); c.Retention = relay.NoRetention }
	behind := t.messages("k", 3)
	heldOne, later, bad := t.message("k"), t.message("k"), t.message("k") // as they are discarded
	later.Delay = time.Hour
	no := t.broker.when(ofID(bad.ID, heldOne.ID), refuse(relay.Permanent(errRefused)))
	t.enqueueAll(bad, heldOne, behind[0], behind[1], behind[2], later)
	r := t.start(config)
	t.await("the key to be blocked", func() bool { s := t.stats(); return s.Dead == 1 && s.Held == 4 && s.Scheduled == 1 })
	discard("a held message", 1, outbox.Filter{IDs: []uuid.UUID{heldOne.ID}})
	discard("a delayed message", 1, outbox.Filter{IDs: []uuid.UUID{later.ID}})
	if n := t.broker.count(); n != 0 {
		t.error("%d messages of a blocked key were published", n)
	}
	discard("dead messages of another key", 0, outbox.Filter{Key: "K"})
	discard("the dead message", 1, outbox.Filter{Key: "k"})
	t.await("what waited behind it to be published", func() bool { return t.broker.count() == len(behind) })
	t.awaitEmpty()
	if n := t.broker.count(bad.ID, later.ID, heldOne.ID); n != 0 {
		t.error("%d discarded messages were published", n)
	}
	r.stop()
	no.remove()
	n, err := t.operator.Replay(t.ctx, outbox.Filter{All: true}, 0)
	t.must(err, "replay")
	if n != 3 {
		t.error("%d messages are kept instead of the 3 that were discarded", n)
	}
	t.start(config)
	t.settleDown()
	for _, m := range []outbox.Message{bad, later, heldOne} {
		if n := t.broker.replays()[m.ID]; n != 1 {
			t.error("a discarded message came back with the replay count %d", n)
		}
	}
}

// operator is a person with a seed. What it did is for its goroutine alone.
type operator struct {
	t         *trial
	rand      *rand.Rand
	ids       []uuid.UUID
	discarded map[uuid.UUID]bool
	replayed  map[uuid.UUID]int
	err       error
}

// act does something to a few messages, mostly of those that are parked.
func (o *operator) act() error {
	t := o.t
	f := outbox.Filter{IDs: []uuid.UUID{o.ids[o.rand.IntN(len(o.ids))]}}
	if o.rand.IntN(4) > 0 {
		list, err := t.operator.Parked(t.ctx, outbox.Filter{All: true}, 0, 200)
		if err != nil {
			return err
		}
		if len(list) > 0 {
			f.IDs[0] = list[o.rand.IntN(len(list))].ID
		}
	}
	switch o.rand.IntN(7) {
	case 0, 1:
		_, err := t.operator.Requeue(t.ctx, f, 0)
		return err
	case 2:
		_, err := t.operator.Requeue(t.ctx, outbox.Filter{Key: fmt.Sprintf("key-%d", o.rand.IntN(6))}, o.rand.IntN(3))
		return err
	case 3:
		_, err := t.operator.Requeue(t.ctx, outbox.Filter{All: true}, 10)
		return err
	case 4, 5:
		n, err := t.operator.Discard(t.ctx, f, 0)
		if n > 0 {
			o.discarded[f.IDs[0]] = true
		}
		return err
	default:
		n, err := t.operator.Replay(t.ctx, f, 0)
		o.replayed[f.IDs[0]] += n
		return err
	}
}

func invariantUnderRaces(t *trial) {
	const operators = 3
	discarded, replayed := make(map[uuid.UUID]bool), make(map[uuid.UUID]int)
	dice := t.dice("answers")
	for range t.size(6, 3) {
		bad := t.broker.when(anyMessage, func(c *call) error {
			switch n := dice(8); {
			case n == 0:
				return loseAnswer(c)
			case n < 3:
				return errRefused
			case n == 3:
				return relay.Permanent(errRefused)
			default:
				return acceptIt(c)
			}
		})
		relays := t.startMany(2, patient, func(c *relay.Config) { c.MaxAttempts, c.Batch = 3, 20 })
		t.produce(load{messages: 60, keys: 6, perTx: 10, unkeyed: 8})
		var ids []uuid.UUID
		t.mu.Lock()
		for i := range t.wrote {
			if t.wrote[i].fate == committed {
				ids = append(ids, t.wrote[i].id)
			}
		}
		t.mu.Unlock()
		team := make([]*operator, operators)
		var working sync.WaitGroup
		for i := range team {
			o := &operator{
				t: t, rand: source(t.rand.Uint64(), "operator"), ids: ids,
				discarded: make(map[uuid.UUID]bool), replayed: make(map[uuid.UUID]int),
			}
			team[i] = o
			working.Go(func() {
				for range t.size(60, 30) {
					if o.err = o.act(); o.err != nil {
						return
					}
				}
			})
		}
		t.produce(load{messages: 60, keys: 6, perTx: 5, unkeyed: 8})
		working.Wait()
		for _, o := range team {
			t.must(o.err, "an operator's command beside running relays")
			for id := range o.discarded {
				discarded[id] = true
			}
			for id, n := range o.replayed {
				replayed[id] += n
			}
		}
		for _, r := range relays {
			r.stop()
		}
		bad.remove()
		t.headsAreThere()
	}

	// Back to normal: what is dead comes back, and everything leaves.
	t.startMany(2, patient)
	t.awaitRevived()
	t.note("%d messages were discarded, %d replayed", len(discarded), len(replayed))
	t.raceHistory(discarded, replayed)

	// What was discarded is there, too.
	_, err := t.operator.Replay(t.ctx, outbox.Filter{All: true}, 0)
	t.must(err, "replay")
	t.awaitPublished()
	t.awaitEmpty()
	t.stopRelays()
	f := t.judge()
	for _, list := range [][]string{f.lost, f.unexpected, f.altered} {
		for _, text := range list[:min(3, len(list))] {
			t.error("%s", text)
		}
	}
	if overlaps := t.broker.overlapping(); len(overlaps) > 0 {
		t.error("%s", overlaps[0])
	}
}

// awaitRevived requeues what is dead whenever nothing else is under way, until
// the tables are empty.
func (t *trial) awaitRevived() {
	var s outbox.Stats
	t.onCleanup(func() {
		if s.Ready+s.Scheduled+s.Retry+s.Held+s.Dead > 0 {
			t.note("left in the tables: %+v", s)
		}
	})
	t.await("everything to leave the tables, dead messages by requeues", func() bool {
		s = t.stats()
		if s.Ready+s.Scheduled+s.Retry > 0 {
			return false
		}
		if s.Dead+s.Held == 0 {
			return true
		}
		_, err := t.operator.Requeue(t.ctx, outbox.Filter{All: true}, 0)
		t.must(err, "requeue")
		return false
	})
}

// headsAreThere demands that no held message is without one that blocks its
// key, and that the blocking one comes first.
func (t *trial) headsAreThere() {
	heads := make(map[int64]int64) // the first blocking seq, by key hash
	list := t.parked(outbox.Filter{All: true})
	for i := range list {
		if p := &list[i]; p.Blocking {
			if seq, ok := heads[p.KeyHash.V]; !ok || p.Seq < seq {
				heads[p.KeyHash.V] = p.Seq
			}
		}
	}
	for i := range list {
		p := &list[i]
		if p.State != outbox.Held {
			continue
		}
		switch head, ok := heads[p.KeyHash.V]; {
		case !ok:
			t.error("seq %d of key %q is held and nothing blocks its key", p.Seq, p.Key.V)
		case p.Seq < head:
			t.error("seq %d of key %q is held behind seq %d", p.Seq, p.Key.V, head)
		}
	}
}

// raceHistory judges what the relays published while operators were at work:
// only what was discarded may be missing, a message came as often as it was
// replayed and as answers were lost, and what was neither discarded nor
// replayed came in order.
func (t *trial) raceHistory(discarded map[uuid.UUID]bool, replayed map[uuid.UUID]int) {
	took, may := t.broker.history()
	times := make(map[uuid.UUID]int)
	newest := make(map[string]int64)
	for i := range took {
		a := &took[i]
		times[a.id]++
		if times[a.id] > 1 || a.replay > 0 || !a.keyed {
			continue
		}
		if a.revision < newest[a.key] {
			t.error("revision %d of key %q was published for the first time after revision %d", a.revision, a.key, newest[a.key])
		}
		newest[a.key] = max(newest[a.key], a.revision)
	}
	t.mu.Lock()
	wrote := slices.Clone(t.wrote)
	t.mu.Unlock()
	for i := range wrote {
		w := &wrote[i]
		if w.fate != committed {
			continue
		}
		switch n := times[w.id]; {
		case n == 0 && !discarded[w.id]:
			t.error("%s is lost: it was neither published nor discarded", w)
		case n > 1+replayed[w.id]+may[w.id]:
			t.error("%s was published %d times, though it was replayed %d times and %d answers were lost", w, n, replayed[w.id], may[w.id])
		}
	}
}
