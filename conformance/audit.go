package conformance

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/relay"
)

// auditScenarios: what is kept of what operators do, and what they look at.
var auditScenarios = []Scenario{
	{
		Name:    "Operator/AuditKeepsWhatWasDone",
		Promise: "each action of an operator is in the audit, whatever its texts hold: who, what, with which selection, how many and why; one that did not end shows, and no entry takes the place of another",
		Needs:   []Need{Audits},
		run:     auditKeeps,
	},
	{
		Name:    "Operator/ViewsShowWhatIs",
		Promise: "what operators look at is what stands in the tables: who holds which lane and until when, what was settled last and how long it took, and why messages are parked",
		Needs:   []Need{Views},
		lanes:   3,
		run:     viewsShow,
	},
	{
		Name:    "Operator/FindsEveryMessage",
		Promise: "a message is found by its id wherever it stands, ready, parked or done, with all that was done to it",
		Needs:   []Need{Views},
		lanes:   1,
		run:     findsEvery,
	},
}

func auditKeeps(t *trial) {
	auditor := t.operator.Store().(dialect.Auditor) //nolint:forcetypeassert // the scenario needs it
	no := t.broker.when(anyMessage, refuse(relay.Permanent(errRefused)))
	run := t.enqueue("audited", 5)
	r := t.start(patient, func(c *relay.Config) { c.OnDead = relay.PassKey })
	t.await("the messages to be dead", func() bool { return t.stats().Dead == int64(len(run)) })
	r.stop()
	no.remove()

	who, why := "o'ne \"ö\" {audit} ?:1 $1 @p1 --", strings.Repeat("wh\\y '日", dialect.MaxWhy/11)
	operator, err := t.operator.As(who, why)
	t.must(err, "operator")
	n, err := operator.Discard(t.ctx, outbox.Filter{IDs: []uuid.UUID{run[0].ID}}, 0)
	t.must(err, "discard")
	m, err := operator.Requeue(t.ctx, outbox.Filter{Key: "audited"}, 3)
	t.must(err, "requeue")
	if n != 1 || m != 3 {
		t.error("discarded %d and requeued %d, want 1 and 3", n, m)
	}
	// One whose process died, and one that failed half way, with texts as long as they may be.
	died := dialect.AuditEntry{ID: uuid.New(), Who: strings.Repeat("w", dialect.MaxWho), Action: strings.Repeat("a", dialect.MaxAction), Selection: strings.Repeat("s", dialect.MaxSelection)}
	failed := dialect.AuditEntry{ID: uuid.New(), Who: "w", Action: "a", Selection: "s", Why: strings.Repeat("y", dialect.MaxWhy)}
	t.must(auditor.WriteAudit(t.ctx, t.operator.DB(), died), "begin")
	t.must(auditor.WriteAudit(t.ctx, t.operator.DB(), failed), "begin")
	failed.Ended, failed.Changed, failed.Failure = true, math.MaxInt32, strings.Repeat("f", dialect.MaxReason)
	t.must(auditor.WriteAudit(t.ctx, t.operator.DB(), failed), "end")
	if err := auditor.WriteAudit(t.ctx, t.operator.DB(), failed); t.target.Dialect.Classify(err) != dialect.Duplicate {
		t.error("a second end of one action yields %v, want a duplicate", err)
	}

	want := []dialect.AuditEntry{
		failed, died,
		{Ended: true, Who: who, Action: outbox.ActionRequeue, Selection: "--key audited --state dead --limit 3", Why: why, Changed: 3},
		{Ended: true, Who: who, Action: outbox.ActionDiscard, Selection: "--id " + run[0].ID.String(), Why: why, Changed: 1},
	}
	var got []outbox.Audited
	for before := int64(0); ; before = got[len(got)-1].Pos {
		page, err := t.operator.Audit(t.ctx, before, 3)
		t.must(err, "audit")
		got = append(got, page...)
		if len(page) < 3 {
			break
		}
	}
	if len(got) != len(want) {
		t.fail("the audit has %d actions, want %d", len(got), len(want))
	}
	for i, a := range got {
		e := a.AuditEntry
		if want[i].ID == [16]byte{} {
			e.ID = [16]byte{}
		}
		if e != want[i] {
			t.error("action %d is %s, want %s", i, fmt.Sprintf("%+v", e), fmt.Sprintf("%+v", want[i]))
		}
		if a.EndedAt.Valid != e.Ended || a.BegunAt.IsZero() || a.EndedAt.Valid && a.EndedAt.V.Before(a.BegunAt) {
			t.error("action %d began at %v and ended at %v", i, a.BegunAt, a.EndedAt)
		}
	}
}

func viewsShow(t *trial) {
	viewer := t.operator.Store().(dialect.Viewer) //nolint:forcetypeassert // the scenario needs it
	if done, err := viewer.ViewDone(t.ctx, t.operator.DB(), 9); err != nil || len(done) > 0 {
		t.error("before anything is done it shows %v, %v", done, err)
	}
	no := t.broker.when(ofKey("dead"), refuse(relay.Permanent(errRefused)))
	t.enqueue("dead", 2)
	t.enqueue("alive", 3)
	r := t.start(patient)
	t.await("one message to be dead, one held and three done", func() bool {
		done, err := viewer.ViewDone(t.ctx, t.operator.DB(), 9)
		t.must(err, "view done")
		s := t.stats()
		return s.Dead == 1 && s.Held == 1 && len(done) == 3
	})
	r.stop()
	no.remove()
	done, err := viewer.ViewDone(t.ctx, t.operator.DB(), 2)
	t.must(err, "view done")
	if len(done) != 2 || done[0].Pos <= done[1].Pos || done[0].Ago > done[1].Ago {
		t.error("the newest two of three are %+v", done)
	}
	for _, d := range done {
		if !d.First || d.Ago < 0 || d.Ago > time.Hour || d.Took < 0 || d.Took > time.Hour {
			t.error("a message published just now is %+v", d)
		}
	}
	reasons, err := viewer.ViewReasons(t.ctx, t.operator.DB(), 9)
	t.must(err, "view reasons")
	states := make(map[string]string)
	for _, p := range reasons {
		states[p.State] = p.Topic + ": " + p.Reason
	}
	if len(reasons) != 2 || !strings.Contains(states[outbox.Dead], errRefused.Error()) || states[outbox.Held] == "" {
		t.error("the reasons are %+v", reasons)
	}

	store := t.box.Store()
	epoch, ok, err := store.Claim(t.ctx, t.db, 1, "me", time.Hour)
	t.must(err, "claim")
	if !ok {
		t.fail("lane 1 is not to be had")
	}
	if _, ok, err = store.Claim(t.ctx, t.db, 2, "gone", time.Microsecond); err != nil || !ok {
		t.fail("lane 2: %v, %v", ok, err)
	}
	lanes, err := viewer.ViewLanes(t.ctx, t.operator.DB())
	t.must(err, "view lanes")
	if len(lanes) != 3 {
		t.fail("shows %d of 3 lanes", len(lanes))
	}
	if l := lanes[1]; l.Lane != 1 || l.Owner != "me" || l.Epoch != epoch || l.Left < 50*time.Minute || l.Left > time.Hour || !l.Served.Valid || l.Served.V > time.Hour {
		t.error("a lane claimed for an hour is %+v", l)
	}
	t.await("the lease of lane 2 to have ended", func() bool {
		lanes, err := viewer.ViewLanes(t.ctx, t.operator.DB())
		t.must(err, "view lanes")
		return lanes[2].Owner == "gone" && lanes[2].Left < 0
	})
	t.must(store.Release(t.ctx, t.db, dialect.Lease{Lane: 1, Owner: "me", Epoch: epoch}), "release")
	lanes, err = viewer.ViewLanes(t.ctx, t.operator.DB())
	t.must(err, "view lanes")
	if lanes[1].Owner != "" {
		t.error("a released lane is still shown as %q's", lanes[1].Owner)
	}
	_, err = t.operator.Discard(t.ctx, outbox.Filter{Key: "dead", States: []string{outbox.Dead, outbox.Held, outbox.Retry}}, 0)
	t.must(err, "discard")
}

func findsEvery(t *trial) {
	if list, err := t.operator.Find(t.ctx, uuid.New()); err != nil || len(list) > 0 {
		t.error("an id that was never used is found in %+v, %v", list, err)
	}
	// found fails unless the message stands in these states, the latest first.
	found := func(m outbox.Message, want ...outbox.Standing) {
		list, err := t.operator.Find(t.ctx, m.ID)
		t.must(err, "find")
		for i := range list {
			l := &list[i]
			if l.Age < 0 || l.Age > time.Hour || l.Since < 0 || l.Since > time.Hour {
				t.error("a message inserted just now is %v old and %v in its place", l.Age, l.Since)
			}
			due := l.State == outbox.Scheduled || l.State == outbox.Retry
			if l.DueIn.Valid != due || due && (l.DueIn.V < 50*time.Minute || l.DueIn.V > time.Hour) {
				t.error("a message that is %s is due in %v", l.State, l.DueIn)
			}
			l.Age, l.Since, l.DueIn.V, l.DueIn.Valid = 0, 0, 0, false
			if l.Seq == 0 != (l.State == outbox.Scheduled) {
				t.error("a message that is %s has place %d", l.State, l.Seq)
			}
			l.Seq = 0
		}
		for i := range want {
			want[i].Topic, want[i].Type = m.Topic, m.Type
			if m.Key != "" {
				want[i].Key.V, want[i].Key.Valid = m.Key, true
			}
		}
		if !slices.Equal(list, want) {
			t.error("it is found as %s, want %s", fmt.Sprintf("%+v", list), fmt.Sprintf("%+v", want))
		}
	}
	scheduled := t.message("find-scheduled")
	scheduled.Delay = time.Hour
	all := []outbox.Message{
		t.message("find-dead"), t.message("find-dead"), t.message("find-retry"), t.message(""), t.message("日本 'k' {key} ?"),
	}
	dead, held, retry, keyless, published := all[0], all[1], all[2], all[3], all[4]
	t.enqueueAll(append(all, scheduled)...)
	for _, m := range all {
		found(m, outbox.Standing{State: outbox.Ready})
	}
	found(scheduled, outbox.Standing{State: outbox.Scheduled})

	lease := t.hold()
	rows := t.ready()
	t.settle(lease, dialect.Settlement{
		Archive:   true,
		Published: refs(rows[3:]),
		Hold:      []dialect.Ref{rows[1].Ref()},
		Failed: []dialect.Failure{
			{Ref: rows[0].Ref(), Attempts: 3, Dead: true, Blocking: true, Reason: "never"},
			{Ref: rows[2].Ref(), Attempts: 1, Delay: time.Hour, Blocking: true, Reason: "not yet"},
		},
	})
	t.must(t.store().Release(t.ctx, t.db, lease), "release")
	found(dead, outbox.Standing{State: outbox.Dead, Attempts: 3, Reason: "never"})
	found(held, outbox.Standing{State: outbox.Held})
	found(retry, outbox.Standing{State: outbox.Retry, Attempts: 1, Reason: "not yet"})
	found(keyless, outbox.Standing{State: outbox.Published, Attempts: 1})
	found(published, outbox.Standing{State: outbox.Published, Attempts: 1})
	found(scheduled, outbox.Standing{State: outbox.Scheduled})

	if n, err := t.operator.Discard(t.ctx, outbox.Filter{IDs: []uuid.UUID{dead.ID, held.ID}}, 0); err != nil || n != 2 {
		t.fail("discarded %d: %v", n, err)
	}
	if n, err := t.operator.Replay(t.ctx, outbox.Filter{IDs: []uuid.UUID{published.ID}}, 0); err != nil || n != 1 {
		t.fail("replayed %d: %v", n, err)
	}
	found(held, outbox.Standing{State: outbox.Discarded})
	found(published, outbox.Standing{State: outbox.Ready, Replay: 1}, outbox.Standing{State: outbox.Published, Attempts: 1})
	lease = t.hold()
	t.settle(lease, dialect.Settlement{Archive: true, Published: refs(t.ready())})
	t.must(t.store().Release(t.ctx, t.db, lease), "release")
	found(published, outbox.Standing{State: outbox.Published, Attempts: 1, Replay: 1}, outbox.Standing{State: outbox.Published, Attempts: 1})
	_, err := t.operator.Discard(t.ctx, outbox.Filter{IDs: []uuid.UUID{retry.ID, scheduled.ID}}, 0)
	t.must(err, "discard")
}
