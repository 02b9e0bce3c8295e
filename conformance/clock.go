package conformance

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/inbox"
	"github.com/outbox-suite/outbox/relay"
)

// clockScenarios: whose clock counts.
var clockScenarios = []Scenario{
	{
		Name:    "Relay/ClockSkew",
		Promise: "leases, delays, retries and ages follow the database's clock, whatever the clock of the program says",
		lanes:   1,
		run:     clockSkew,
	},
	{
		Name:    "Zone/SessionsAnywhere",
		Promise: "producers, relays and operators whose sessions are in different time zones agree on every instant and every delay, also where the clocks are set back",
		Needs:   []Need{Zoned},
		lanes:   1,
		run:     sessionsAnywhere,
	},
}

// clockSkew tells a program with a wrong clock from one with the right clock by
// what passes between it and the database. Everything the program learns of the
// database's clock is shifted by an hour, which is what a clock that is an hour
// off looks like from within; and of the program's own clock nothing may reach
// the database, which is what is looked for in the arguments of its statements.
// One thing is left out: a replay hands the database's own instants back to it.
func clockSkew(t *trial) {
	for _, skew := range []time.Duration{time.Hour, -time.Hour} {
		t.do("had a program's clock wrong by %v", skew)
		leaks := &leaks{}
		own := tap(t.open(), wire{before: leaks.look})
		d := shifted{t.target.Dialect, skew}
		box := t.newBox(own, d)

		// Another owner's lease is respected to its end, and not beyond.
		claimed := time.Now()
		t.claim("other")
		w := t.beginOn(box)
		first, delayed := t.message("first"), t.message("delayed")
		delayed.Delay = leaseTime + 300*time.Millisecond
		w.enqueue(first, delayed)
		w.commit()
		var mu sync.Mutex
		at := make(map[uuid.UUID]time.Time)
		note := func(c *call) error {
			if c.message.Age > time.Minute || c.message.Age < 0 {
				t.error("with the clock wrong by %v a message is published as %v old, and it is new", skew, c.message.Age)
			}
			c.accept()
			mu.Lock()
			defer mu.Unlock()
			at[c.message.ID] = time.Now()
			return nil
		}
		rule := t.broker.when(anyMessage, note)
		r := t.startWith(relayWith{db: own, dialect: d, config: func(c *relay.Config) {
			c.Workers, c.PurgeEvery, c.Retention = 1, time.Second, time.Millisecond
		}})
		t.awaitPublished()
		mu.Lock()
		for _, m := range []*outbox.Message{&first, &delayed} {
			after, least := at[m.ID].Sub(claimed), max(leaseTime, m.Delay)
			if after < least-t.step() || !within(after, least) {
				t.error("with the clock wrong by %v a message that may go after %v went after %v", skew, least, after)
			}
		}
		mu.Unlock()

		// Everything else that is written with a time: a retry, a hold, a long
		// publish whose lease is extended, a death.
		rule.remove()
		slow := t.gate()
		t.broker.first(1, ofKey("retried"), refuse(errors.New("not now")))
		t.broker.first(1, ofKey("slow"), after(slow, acceptIt))
		t.broker.first(1, ofKey("dead"), refuse(relay.Permanent(errors.New("never"))))
		w = t.beginOn(box)
		for _, key := range []string{"retried", "slow", "dead"} {
			w.enqueue(t.message(key), t.message(key))
		}
		w.commit()
		t.await("the long publish to outlast the first lease", func() bool {
			return time.Since(claimed) > 3*leaseTime && slow.waiting() > 0
		})
		slow.open()
		t.await("the dead message", func() bool { return t.stats().Dead == 1 })
		if _, err := box.Stats(t.ctx); err != nil {
			t.error("stats: %v", err)
		}
		for _, p := range t.parkedOf(box) {
			if p.State == dialect.Retry && (p.DueIn.V > time.Minute || p.DueIn.V < -time.Minute) {
				t.error("with the clock wrong by %v a retry is due in %v", skew, p.DueIn.V)
			}
		}
		if n, err := box.Requeue(t.ctx, outbox.Filter{All: true}, 0); err != nil || n != 1 {
			t.error("requeue: %d, %v", n, err)
		}
		consume, err := inbox.New(d, inbox.Config{Schema: t.tables.Schema, Prefix: t.tables.Prefix, MinRetention: time.Nanosecond, ResumeGrace: inbox.NoGrace})
		t.must(err, "new inbox")
		w = t.beginOn(box)
		if _, err := consume.Record(t.ctx, w.tx, "consumer", "id"); err != nil {
			t.error("record: %v", err)
		}
		w.commit()
		if n, err := consume.Purge(t.ctx, own, 30*time.Minute, 0); err != nil || n != 0 {
			t.error("with the clock wrong by %v the inbox forgot %d ids that are new: %v", skew, n, err)
		}
		if n, err := box.Purge(t.ctx, 30*time.Minute, 0); err != nil || n != 0 {
			t.error("with the clock wrong by %v a purge of what is half an hour old took %d messages that are new: %v", skew, n, err)
		}
		t.awaitPublished()
		t.awaitEmpty()
		t.await("the relay to purge", func() bool { return len(eventsOf[relay.Purged](r)) > 0 })
		r.stop()
		for _, leak := range leaks.found() {
			t.error("%s", leak)
		}
		if leaks.looked() < 50 {
			t.fail("only %d arguments were looked at: the statements do not pass through the suite", leaks.looked())
		}
	}
	t.verify()
}

// step is the coarsest step of a stored time.
func (t *trial) step() time.Duration { return t.target.Dialect.Capabilities().TimeStep }

// parkedOf lists what is parked.
func (t *trial) parkedOf(box *outbox.Outbox) []outbox.Parked {
	list, err := box.Parked(t.ctx, outbox.Filter{All: true}, 0, 10_000)
	t.must(err, "list parked")
	return list
}

// shifted is a dialect as a program sees it whose clock is wrong: each instant
// that comes from the database is off.
type shifted struct {
	dialect.Dialect
	by time.Duration
}

// Bind implements [dialect.Dialect].
func (d shifted) Bind(tables dialect.Tables) (dialect.Store, error) {
	s, err := d.Dialect.Bind(tables)
	return shiftedStore{s, d.by}, err
}

type shiftedStore struct {
	dialect.Store
	by time.Duration
}

func (s shiftedStore) shift(rows []dialect.Row, err error) ([]dialect.Row, error) {
	for i := range rows {
		rows[i].CreatedAt = rows[i].CreatedAt.Add(s.by)
	}
	return rows, err
}

// Ready implements [dialect.Turn].
func (s shiftedStore) Ready(ctx context.Context, db dialect.DB, lane int, after int64, limit dialect.Limit) ([]dialect.Row, error) {
	return s.shift(s.Store.Ready(ctx, db, lane, after, limit))
}

// Due implements [dialect.Turn].
func (s shiftedStore) Due(ctx context.Context, db dialect.DB, lane int, limit dialect.Limit) ([]dialect.Row, error) {
	return s.shift(s.Store.Due(ctx, db, lane, limit))
}

// Parked implements [dialect.Operator].
func (s shiftedStore) Parked(ctx context.Context, db dialect.DB, filter dialect.Filter, after int64, limit int) ([]dialect.Parked, error) {
	list, err := s.Store.Parked(ctx, db, filter, after, limit)
	for i := range list {
		list[i].CreatedAt, list[i].ParkedAt = list[i].CreatedAt.Add(s.by), list[i].ParkedAt.Add(s.by)
	}
	return list, err
}

// leaks collects instants among the arguments of statements.
type leaks struct {
	mu   sync.Mutex
	args int
	list []string
}

// look is a wire.before.
func (l *leaks) look(s statement) error {
	for _, arg := range s.args {
		l.mu.Lock()
		l.args++
		if isInstant(arg.Value, time.Now()) {
			leak := fmt.Sprintf("argument %d of a statement is an instant by the program's clock: durations may cross, instants may not", arg.Ordinal)
			if !slices.Contains(l.list, leak) {
				l.list = append(l.list, leak)
			}
		}
		l.mu.Unlock()
	}
	return nil
}

func (l *leaks) looked() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.args
}

func (l *leaks) found() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.list)
}

var (
	date    = regexp.MustCompile(`\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}`)
	numbers = regexp.MustCompile(`\d{10,19}`)
)

// isInstant tells whether a value, of whatever type a driver takes, is or holds
// a time, as such, as text, or as a number since 1970 near now.
func isInstant(v any, now time.Time) bool {
	if _, ok := v.(time.Time); ok {
		return true
	}
	if b, ok := v.([]byte); ok {
		v = string(b)
	}
	text := strings.ToValidUTF8(fmt.Sprint(v), "?") // lists too
	if date.MatchString(text) {
		return true
	}
	for _, digits := range numbers.FindAllString(text, -1) {
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil {
			continue
		}
		for _, unit := range []int64{1e9, 1e6, 1e3, 1} { // seconds to nanoseconds
			const near = 3 * time.Hour // skews, leases and delays included
			if n > now.Add(-near).UnixNano()/unit && n < now.Add(near).UnixNano()/unit {
				return true
			}
		}
	}
	return false
}

func sessionsAnywhere(t *trial) {
	var boxes []*outbox.Outbox
	for _, open := range t.target.Zones {
		db, err := open(t.ctx)
		t.must(err, "open a pool in a time zone")
		boxes = append(boxes, t.newBox(t.adopt(db), t.target.Dialect))
	}
	if len(boxes) < 3 {
		t.fail("the target has sessions in %d time zones: three are needed (Target.Zones)", len(boxes))
	}
	const long = 90 * time.Minute // more than any fold
	began := time.Now()
	for _, box := range boxes {
		w := t.beginOn(box)
		delayed := t.message("delayed")
		delayed.Delay = long
		w.enqueue(delayed, t.message("ready"))
		w.commit()
	}
	var firstReady []dialect.Row
	var firstParked []outbox.Parked
	for i, box := range boxes {
		ready, err := box.Store().Ready(t.ctx, box.DB(), 0, 0, dialect.Limit{Rows: 100})
		t.must(err, "read ready")
		parked := t.parkedOf(box)
		if i == 0 {
			firstReady, firstParked = ready, parked
		}
		if len(ready) != len(boxes) || len(parked) != len(boxes) {
			t.fail("%d ready and %d parked messages are seen, %d of each are there", len(ready), len(parked), len(boxes))
		}
		for n := range ready {
			if !ready[n].CreatedAt.Equal(firstReady[n].CreatedAt) {
				t.error("sessions %d and 1 read %v and %v for the same instant", i+1, ready[n].CreatedAt, firstReady[n].CreatedAt)
			}
			if ready[n].Age < 0 || ready[n].Age > time.Since(began)+t.step() {
				t.error("session %d reads an age of %v from session %d's message, which is at most %v old", i+1, ready[n].Age, n+1, time.Since(began))
			}
		}
		for n := range parked {
			p, same := &parked[n], &firstParked[n]
			if !p.CreatedAt.Equal(same.CreatedAt) || !p.ParkedAt.Equal(same.ParkedAt) {
				t.error("sessions %d and 1 read %v and %v for the same instant", i+1, p.ParkedAt, same.ParkedAt)
			}
			if due := p.DueIn.V; due > long+t.step() || due < long-time.Since(began)-t.step() {
				t.error("session %d reads that session %d's message, delayed by %v, is due in %v", i+1, n+1, long, due)
			}
		}
	}

	// A lease that one session takes is respected, and ended, by all others.
	for i, box := range boxes {
		epoch, ok, err := box.Store().Claim(t.ctx, box.DB(), 0, "mine", time.Minute)
		t.must(err, "claim")
		if !ok {
			t.fail("session %d finds a lane held that was released", i+1)
		}
		for n, other := range boxes {
			lanes, err := other.Store().Poll(t.ctx, other.DB(), "other", 10)
			t.must(err, "poll")
			_, ok, err := other.Store().Claim(t.ctx, other.DB(), 0, "other", time.Second)
			t.must(err, "claim")
			if ok || len(lanes) > 0 {
				t.error("session %d finds the lane free that session %d has claimed for a minute", n+1, i+1)
			}
			if s, err := other.Stats(t.ctx); err != nil || s.LanesHeld != 1 || s.LanesExpired != 0 || s.OldestReady > time.Since(began)+time.Second {
				t.error("session %d counts %d lanes held and %d expired, the oldest message %v old: %v", n+1, s.LanesHeld, s.LanesExpired, s.OldestReady, err)
			}
		}
		t.must(box.Store().Release(t.ctx, box.DB(), dialect.Lease{Lane: 0, Owner: "mine", Epoch: epoch}), "release")
		// And it ends, by the clock of all.
		_, _, err = box.Store().Claim(t.ctx, box.DB(), 0, "mine", 200*time.Millisecond)
		t.must(err, "claim")
		next := boxes[(i+1)%len(boxes)]
		t.await("a short lease to end for another session", func() bool {
			epoch, ok, err = next.Store().Claim(t.ctx, next.DB(), 0, "other", time.Minute)
			t.must(err, "claim")
			return ok
		})
		t.must(next.Store().Release(t.ctx, next.DB(), dialect.Lease{Lane: 0, Owner: "other", Epoch: epoch}), "release")
	}

	// What is delayed a little comes after that little, from each zone to each.
	const little = 300 * time.Millisecond
	for _, box := range boxes {
		t.startWith(relayWith{db: box.DB(), config: patient})
	}
	for i, box := range boxes {
		soon := t.message("soon")
		soon.Delay = little
		began := time.Now()
		w := t.beginOn(box)
		w.enqueue(soon)
		w.commit()
		t.await("the delayed message", func() bool { return t.broker.count(soon.ID) == 1 })
		if took := time.Since(began); took < little-t.step() || !within(took, little) {
			t.error("a message that session %d delayed by %v came after %v", i+1, little, took)
		}
	}
	n, err := boxes[0].Requeue(t.ctx, outbox.Filter{All: true, States: []string{outbox.Scheduled}}, 0)
	if err != nil || n != len(boxes) {
		t.fail("requeue made %d of %d scheduled messages due: %v", n, len(boxes), err)
	}
	t.awaitPublished()
	t.awaitEmpty()
	done := 3 * len(boxes)
	for i, box := range boxes {
		if n, err := box.Purge(t.ctx, 10*time.Minute, 0); err != nil || n != 0 {
			t.error("session %d purges %d messages older than ten minutes, and none is: %v", i+1, n, err)
		}
	}
	t.verify()
	for i, box := range boxes {
		// What was replayed before is done no second time, for no relay runs.
		n, err := box.Replay(t.ctx, outbox.Filter{Since: 10 * time.Minute}, 0)
		if want := done; err != nil || (i == 0 && n != want) || (i > 0 && n != 0) {
			t.error("session %d replays %d messages of the last ten minutes, %d are there: %v", i+1, n, want, err)
		}
	}
}
