package conformance

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/inbox"
)

// cutScenarios: an operation loses its connection at each of its steps. Whoever
// asked for it learns whether it may have taken effect, finds out by asking
// again, and the second time changes nothing that the first did.
var cutScenarios = []Scenario{
	{
		Name:    "Settle/CutAtEveryStep",
		Promise: "a settle whose connection is lost at any step has taken effect as a whole or not at all, and may be repeated",
		lanes:   1,
		run:     settleCut,
	},
	{
		Name:    "Lease/CutAtEveryStep",
		Promise: "a claim, a renewal, a release and a surfacing whose connection is lost at any step may be repeated",
		lanes:   1,
		run:     leaseCut,
	},
	{
		Name:    "Operator/CutAtEveryStep",
		Promise: "an operator's command whose connection is lost at any step may be repeated: no message is lost, doubled or left behind",
		lanes:   1,
		run:     operatorCut,
	},
	{
		Name:    "Enqueue/CutAtEveryStep",
		Promise: "a producer whose connection is lost at any step of its transaction learns whether to ask again, and the same id tells what became of it",
		lanes:   1,
		run:     enqueueCut,
	},
	{
		Name:    "Inbox/CutAtEveryStep",
		Promise: "a consumer whose connection is lost at any step finds out what became of its transaction: the effect happens once",
		lanes:   1,
		run:     inboxCut,
	},
}

// scissors cut a connection at its nth step from now on, before the step or, with
// answer, behind it.
type scissors interface {
	CutAt(n int, answer bool)
	Armed() bool
}

// cuttable returns a pool whose connections can be cut: by a proxy where there is
// a network, by errors around statements where there is none.
func (t *trial) cuttable() (scissors, *sql.DB, dialect.Dialect) {
	if t.target.Network != nil {
		p, db := t.proxied()
		return p, db, t.target.Dialect
	}
	s := &snips{}
	db := tap(t.open(), wire{before: s.before, after: s.after})
	return s, t.adopt(db), hooked(t.target.Dialect, hooks{})
}

// snips are scissors for statements.
type snips struct {
	mu     sync.Mutex
	left   int
	answer bool
	now    bool // the statement under way is the one
}

// CutAt implements scissors.
func (s *snips) CutAt(n int, answer bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left, s.answer = n, answer
}

// Armed implements scissors.
func (s *snips) Armed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left > 0
}

func (s *snips) before(statement) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left == 0 {
		return nil
	}
	s.left--
	s.now = s.left == 0 && s.answer
	if s.left == 0 && !s.answer {
		return inject(dialect.OutcomeUnknown, "the connection was lost before the statement")
	}
	return nil
}

func (s *snips) after(_ statement, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now {
		s.now = false
		return inject(dialect.OutcomeUnknown, "the connection was lost behind the statement")
	}
	return err
}

// operation is what loses its connection.
type operation struct {
	name string
	// prepare makes the state that do starts from; it is called before each try.
	prepare func()
	// do is the operation, on one pool or the other. It must not be disturbed by
	// having been done already.
	do func(ctx context.Context, box *outbox.Outbox) error
}

// cutting does the operation again and again, cut at its first, second … step, by
// turns before and behind the step, until no step is left. After each cut the
// state is that before the operation or that after it, the former where the error
// says that it was not done; and after another try on a good connection the
// latter.
func (t *trial) cutting(o operation) {
	s, db, d := t.cuttable()
	box := t.newBox(db, d)
	t.clear()
	o.prepare()
	before := t.counts()
	t.must(o.do(t.ctx, t.box), "%s, undisturbed", o.name)
	after := t.counts()
	cuts := 0
	for n := 2; ; n++ {
		step, answer := n/2, n%2 == 1
		t.do("cut %s at step %d (answer %v)", o.name, step, answer)
		t.clear()
		o.prepare()
		if now := t.counts(); now != before {
			t.fail("%s does not start from the same state: %s, not %s", o.name, now, before)
		}
		// The step that is cut is one of the operation's, not of a connection's start.
		t.must(db.PingContext(t.ctx), "connect")
		s.CutAt(step, answer)
		err := o.do(t.ctx, box)
		if s.Armed() {
			s.CutAt(0, false)
			t.must(err, "%s, not reached by the cut", o.name)
			break
		}
		cuts++
		class := t.classify(d, err)
		found := t.counts()
		switch {
		case err == nil && found != after:
			t.error("%s, cut at step %d (answer %v), says it is done and is not: %s, not %s", o.name, step, answer, found, after)
		case err == nil:
		case class == dialect.Other:
			t.error("%s, cut at step %d (answer %v), gives an error of class %v, which says that it is no use to try again: %v", o.name, step, answer, class, err)
		case found != before && found != after:
			t.error("%s, cut at step %d (answer %v), is half done: %s, not %s or %s", o.name, step, answer, found, before, after)
		case class != dialect.OutcomeUnknown && found != before:
			t.error("%s, cut at step %d (answer %v), says that it was not done, and it was: %v", o.name, step, answer, err)
		}
		if err := o.do(t.ctx, t.box); err != nil {
			t.error("%s, repeated after a cut at step %d (answer %v): %v", o.name, step, answer, err)
		}
		if found := t.counts(); found != after {
			t.error("%s, repeated after a cut at step %d (answer %v): %s, not %s", o.name, step, answer, found, after)
		}
	}
	if cuts < 2 {
		t.fail("%s has been cut %d times: its steps do not pass through the suite", o.name, cuts)
	}
	t.note("%s was cut %d times", o.name, cuts)
	t.must(db.Close(), "close")
}

// classify is the class of an error of an engine's or an outbox's method.
func (t *trial) classify(d dialect.Dialect, err error) dialect.Class {
	if e := (*outbox.Error)(nil); errors.As(err, &e) {
		return e.Class
	}
	return d.Classify(err)
}

// counts describe the state by what does not depend on ids and places.
func (t *trial) counts() string {
	s := t.stats()
	attempts, blocking, due := 0, 0, 0
	for _, p := range t.parkedOf(t.box) {
		attempts += p.Attempts
		if p.Blocking {
			blocking++
		}
		if p.DueIn.Valid && p.DueIn.V <= 0 {
			due++
		}
	}
	return fmt.Sprintf("%d ready, %d scheduled, %d retry, %d held, %d dead, %d blocking, %d due, %d attempts, %d lanes held, %d expired",
		s.Ready, s.Scheduled, s.Retry, s.Held, s.Dead, blocking, due, attempts, s.LanesHeld, s.LanesExpired)
}

// clear empties the ready and parked messages of lane 0 and frees it.
func (t *trial) clear() {
	_, err := t.operator.Discard(t.ctx, outbox.Filter{All: true, States: allStates}, 0)
	t.must(err, "discard what is parked")
	lease := t.hold()
	for {
		rows := t.ready()
		if len(rows) == 0 {
			break
		}
		t.settle(lease, dialect.Settlement{Published: refs(rows)})
	}
	t.must(t.store().Release(t.ctx, t.db, lease), "release")
}

var allStates = []string{dialect.Scheduled, dialect.Retry, dialect.Held, dialect.Dead}

// holder is who holds lane 0 in hold.
const holder = "holder"

// hold claims lane 0 by hand, for long; again if it is held.
func (t *trial) hold() dialect.Lease {
	epoch, ok, err := t.store().Claim(t.ctx, t.db, 0, holder, 5*time.Minute)
	t.must(err, "claim lane 0")
	if !ok {
		t.fail("lane 0 is free or the claimer's own, and it could not be claimed")
	}
	return dialect.Lease{Lane: 0, Owner: holder, Epoch: epoch}
}

// ready reads the ready rows of lane 0.
func (t *trial) ready() []dialect.Row {
	rows, err := t.store().Ready(t.ctx, t.db, 0, 0, dialect.Limit{Rows: 1000})
	t.must(err, "read ready")
	return rows
}

// due reads the parked rows of lane 0 that are due.
func (t *trial) due() []dialect.Row {
	rows, err := t.store().Due(t.ctx, t.db, 0, dialect.Limit{Rows: 1000})
	t.must(err, "read due")
	return rows
}

func refs(rows []dialect.Row) []dialect.Ref {
	list := make([]dialect.Ref, len(rows))
	for i := range rows {
		list[i] = rows[i].Ref()
	}
	return list
}

// settle settles by hand and must succeed.
func (t *trial) settle(lease dialect.Lease, s dialect.Settlement) {
	ok, err := t.store().Settle(t.ctx, t.db, lease, 5*time.Minute, s)
	t.must(err, "settle")
	if !ok {
		t.fail("a settle was refused, and the lease (epoch %d) is the lane's", lease.Epoch)
	}
}

var errLeaseRefused = errors.New("refused: the lease is said to be lost")

func refused(ok bool, err error) error {
	if err == nil && !ok {
		return errLeaseRefused
	}
	return err
}

func settleCut(t *trial) {
	var lease dialect.Lease
	var s dialect.Settlement
	do := func(ctx context.Context, box *outbox.Outbox) error {
		return refused(box.Store().Settle(ctx, box.DB(), lease, 5*time.Minute, s))
	}
	for _, archive := range []bool{true, false} {
		t.cutting(operation{
			name: fmt.Sprintf("a settle of published messages (archive %v)", archive),
			prepare: func() {
				t.enqueueAll(t.message("a"), t.message("b"), t.message(""))
				lease = t.hold()
				s = dialect.Settlement{Archive: archive, Published: refs(t.ready())}
			},
			do: do,
		})
		t.cutting(operation{
			name: fmt.Sprintf("a settle of all outcomes (archive %v)", archive),
			prepare: func() {
				lease = t.hold()
				t.enqueueAll(t.message("p"), t.message("p"), t.message("q"))
				rows := t.ready()
				t.settle(lease, dialect.Settlement{Failed: []dialect.Failure{
					{Ref: rows[0].Ref(), Attempts: 1, Blocking: true, Reason: "once"},
					{Ref: rows[2].Ref(), Attempts: 1, Blocking: true, Reason: "once"},
				}, Hold: []dialect.Ref{rows[1].Ref()}})
				s = dialect.Settlement{Archive: archive}
				for _, row := range t.due() {
					if row.Key.V == "p" {
						s.PublishedParked = append(s.PublishedParked, row.Ref()) // the head and what is behind it
					} else {
						s.FailedParked = append(s.FailedParked, dialect.Failure{Ref: row.Ref(), Attempts: 2, Delay: time.Hour, Blocking: true, Reason: "twice"})
					}
				}
				t.enqueueAll(t.message("a"), t.message("b"), t.message("b"), t.message("c"), t.message(""))
				rows = t.ready()
				s.Published = []dialect.Ref{rows[0].Ref(), rows[4].Ref()}
				s.Hold = []dialect.Ref{rows[2].Ref()}
				s.Failed = []dialect.Failure{
					{Ref: rows[1].Ref(), Attempts: 1, Delay: time.Hour, Blocking: true, Reason: "once"},
					{Ref: rows[3].Ref(), Attempts: 1, Dead: true, Blocking: true, Reason: "never"},
				}
			},
			do: do,
		})
	}
}

func leaseCut(t *trial) {
	var lease dialect.Lease
	t.cutting(operation{
		name:    "a claim",
		prepare: func() { t.enqueueAll(t.message("a")) },
		do: func(ctx context.Context, box *outbox.Outbox) error {
			// A lane whose row a lost session has not let go of yet is passed by: it is
			// asked for again.
			var err error
			t.await("lane 0 to be claimed", func() bool {
				var ok bool
				_, ok, err = box.Store().Claim(ctx, box.DB(), 0, holder, 5*time.Minute)
				return ok || err != nil
			})
			return err
		},
	})
	t.cutting(operation{
		name:    "a renewal",
		prepare: func() { lease = t.hold() },
		do: func(ctx context.Context, box *outbox.Outbox) error {
			return refused(box.Store().Extend(ctx, box.DB(), lease, 5*time.Minute))
		},
	})
	t.cutting(operation{
		name:    "a release",
		prepare: func() { lease = t.hold() },
		do: func(ctx context.Context, box *outbox.Outbox) error {
			return box.Store().Release(ctx, box.DB(), lease)
		},
	})
	t.cutting(operation{
		name: "a surfacing",
		prepare: func() {
			lease = t.hold()
			one, two := t.message("a"), t.message("")
			one.Delay, two.Delay = time.Microsecond, time.Microsecond
			t.enqueueAll(one, two)
			t.await("the scheduled messages to be due", func() bool {
				list := t.parkedOf(t.box)
				return len(list) == 2 && list[0].DueIn.V < 0 && list[1].DueIn.V < 0
			})
		},
		do: func(ctx context.Context, box *outbox.Outbox) error {
			// What a lost session has not let go of yet is passed by: it is asked for again.
			var err error
			t.await("the due messages to be ready", func() bool {
				var ok bool
				_, ok, err = box.Store().Surface(ctx, box.DB(), lease, 10)
				err = refused(ok, err)
				return err != nil || len(t.parkedOf(t.box)) == 0
			})
			return err
		},
	})
}

func operatorCut(t *trial) {
	dead := func() {
		lease := t.hold()
		t.enqueueAll(t.message("a"), t.message("a"), t.message("b"), t.message(""))
		rows := t.ready()
		t.settle(lease, dialect.Settlement{Hold: []dialect.Ref{rows[1].Ref()}, Failed: []dialect.Failure{
			{Ref: rows[0].Ref(), Attempts: 3, Dead: true, Blocking: true, Reason: "never"},
			{Ref: rows[2].Ref(), Attempts: 2, Dead: true, Blocking: true, Reason: "never"},
			{Ref: rows[3].Ref(), Attempts: 1, Dead: true, Reason: "never"},
		}})
	}
	t.cutting(operation{
		name: "a requeue", prepare: dead,
		do: func(ctx context.Context, box *outbox.Outbox) error {
			_, err := box.Requeue(ctx, everything, 0)
			return err
		},
	})
	t.cutting(operation{
		name: "a discard", prepare: dead,
		do: func(ctx context.Context, box *outbox.Outbox) error {
			_, err := box.Discard(ctx, everything, 0)
			return err
		},
	})
	t.cutting(operation{
		name: "a replay",
		prepare: func() {
			_, err := t.operator.Purge(t.ctx, 0, 0)
			t.must(err, "purge")
			lease := t.hold()
			t.enqueueAll(t.message("a"), t.message("a"), t.message(""))
			t.settle(lease, dialect.Settlement{Archive: true, Published: refs(t.ready())})
		},
		do: func(ctx context.Context, box *outbox.Outbox) error {
			_, err := box.Replay(ctx, everything, 0)
			return err
		},
	})
}

func enqueueCut(t *trial) {
	var ready, delayed outbox.Message
	t.cutting(operation{
		name: "an enqueue",
		prepare: func() {
			ready, delayed = t.message("a"), t.message("a")
			delayed.Delay = time.Hour
		},
		do: func(ctx context.Context, box *outbox.Outbox) error {
			err := box.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
				_, err := box.Enqueue(ctx, tx, ready, delayed)
				return err
			})
			if errors.Is(err, outbox.ErrDuplicateID) {
				return nil // it was done the first time
			}
			return err
		},
	})
}

func inboxCut(t *trial) {
	id := 0
	t.cutting(operation{
		name:    "a message's handling",
		prepare: func() { id++ },
		do: func(ctx context.Context, box *outbox.Outbox) error {
			in, err := inbox.New(box.Dialect(), inbox.Config{Schema: t.tables.Schema, Prefix: t.tables.Prefix})
			if err != nil {
				return err
			}
			_, err = in.Handle(ctx, box.DB(), "consumer", fmt.Sprint("message-", id), func(ctx context.Context, tx *sql.Tx) error {
				_, err := box.Enqueue(ctx, tx, t.message("effect"))
				return err
			})
			return err
		},
	})
}
