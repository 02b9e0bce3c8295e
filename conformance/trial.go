package conformance

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
)

// trial is one run of a scenario: its tables, its broker, its relays and its
// history. Methods that end the scenario (fail, and whatever waits or must not
// fail) are for the goroutine of the scenario's run function; error and note are
// safe anywhere.
type trial struct {
	// ctx ends at the scenario's deadline.
	ctx context.Context //nolint:containedctx // of this run
	// rand is the source of all random choices of the scenario's goroutine.
	rand *rand.Rand
	// box is the outbox over the scenario's own tables, and db its pool, as the
	// owner of the tables.
	box *outbox.Outbox
	db  *sql.DB
	// producer, operator and consumer are the same for those who may do less. The
	// consumer is one that enqueues, too.
	producer, operator *outbox.Outbox
	consumer           *sql.DB
	// broker records what is published, and can be told to misbehave.
	broker *broker

	name   string
	target *Target
	tables dialect.Tables

	mu       sync.Mutex
	got      []string
	notes    []string
	doing    string
	cleanups []func()
	onStops  []func()
	relays   []stopper
	wrote    []written
	revision map[string]int64
	serial   int
	dropped  map[string]bool // tables, named as the engine quotes them
	// firstMissing is where allPublished goes on: what is before it is published.
	firstMissing int
}

// stopper is a relay of the scenario.
type stopper interface{ stop() }

const (
	defaultTimeout = 4 * time.Minute
	defaultOwnLane = 8
	// poll is how often await looks.
	poll = 5 * time.Millisecond
)

// try runs the scenario and returns what was observed instead of its promise,
// or "".
func try(ctx context.Context, target *Target, s *Scenario) (got string, notes []string) {
	timeout := cmp.Or(s.timeout, defaultTimeout)
	if s.Soak {
		timeout += target.Soak
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	t := &trial{
		ctx: ctx, name: s.Name, target: target,
		rand:     source(target.Seed, s.Name),
		revision: make(map[string]int64),
		dropped:  make(map[string]bool),
	}
	t.broker = newBroker()
	done := make(chan struct{})
	go func() { //nolint:contextcheck // what cleans up outlives the deadline on purpose
		defer close(done)
		defer t.cleanup()
		defer func() {
			if p := recover(); p != nil {
				buf := make([]byte, 8<<10)
				t.error("panic: %v\n%s", p, buf[:runtime.Stack(buf, false)])
			}
		}()
		t.setUp(s)
		s.run(t)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		select {
		case <-done: // it saw the end
		case <-time.After(20 * time.Second):
			t.error("the scenario did not end after its deadline; its tables may be left")
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if ctx.Err() != nil {
		t.got = append(t.got, fmt.Sprintf("the scenario's time was over (%v) while it %s", context.Cause(ctx), cmp.Or(t.doing, "ran")))
	}
	return strings.Join(t.got, "\n"), t.notes
}

// tablesOf names tables by the target's schema and prefix.
func tablesOf(target *Target, suffix string) dialect.Tables {
	return dialect.Tables{Schema: target.Schema, Prefix: target.Prefix + "_" + suffix, Lanes: defaultOwnLane}
}

// setUp makes the scenario's own tables.
func (t *trial) setUp(s *Scenario) {
	// Not from the seed: a rerun must not meet the tables of a run that died.
	suffix := fmt.Sprintf("%08x", rand.Uint32())
	tables := tablesOf(t.target, suffix)
	if t.target.Place != nil {
		own := *t.target
		remove, err := t.target.Place(t.ctx, &own, suffix)
		t.must(err, "make a place for the tables")
		t.onCleanup(func() { // when the tables are gone and all pools closed
			if err := remove(context.WithoutCancel(t.ctx)); err != nil {
				t.error("remove the place of the tables: %v", err)
			}
		})
		t.target = &own
		tables = dialect.Tables{Schema: own.Schema, Prefix: own.Prefix}
	}
	db := t.open()
	tables.Lanes = cmp.Or(s.lanes, defaultOwnLane)
	t.tables = tables
	t.use(db)
	t.migrate(t.box)
	if t.target.As != nil {
		t.producer = t.newBox(t.as(&t.tables, Producer), t.target.Dialect)
		t.operator = t.newBox(t.as(&t.tables, Operator), t.target.Dialect)
		t.consumer = t.as(&t.tables, Consumer, Producer)
		t.must(t.producer.Check(t.ctx), "check the tables as a producer")
		t.must(t.operator.Check(t.ctx), "check the tables as an operator")
	}
}

// use makes db the pool of everybody.
func (t *trial) use(db *sql.DB) {
	t.db, t.consumer = db, db
	t.box = t.newBox(db, t.target.Dialect)
	t.producer, t.operator = t.box, t.box
}

// as returns a new pool of a user who may do what the roles need and nothing else,
// where the target has such users.
func (t *trial) as(tables *dialect.Tables, roles ...Role) *sql.DB {
	if t.target.As == nil {
		return t.open()
	}
	db, err := t.target.As(t.ctx, *tables, roles...)
	t.must(err, "open as %v", roles)
	return t.adopt(db)
}

// migrate makes the tables of an outbox, which must not be there, and drops them
// after the scenario.
func (t *trial) migrate(box *outbox.Outbox) {
	in, err := box.Inspect(t.ctx)
	if err != nil {
		t.fail("inspect: %v", err)
	}
	if in.Version != 0 {
		t.fail("tables named %s exist already and are not the scenario's: nothing was touched", box.Tables().Prefix)
	}
	applied, err := box.Migrate(t.ctx)
	if err != nil {
		t.fail("migrate: %v", err)
	}
	if len(applied) != len(box.Schema()) {
		t.fail("migrate applied versions %v of %d: the tables are not the scenario's, nothing was touched", applied, len(box.Schema()))
	}
	t.onCleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), time.Minute)
		defer cancel()
		t.drop(ctx, box, func(string) bool { return true })
	})
}

// createTable finds the tables in the DDL, named as the engine quotes them.
var createTable = regexp.MustCompile(`(?m)^CREATE TABLE (?:IF NOT EXISTS )?(.+?) \($`)

// drop removes those of the tables that Migrate made which are chosen by name,
// as the engine quotes it, and are not dropped yet.
func (t *trial) drop(ctx context.Context, box *outbox.Outbox, chosen func(name string) bool) {
	found := 0
	for _, step := range box.Schema() {
		for _, m := range createTable.FindAllStringSubmatch(step.SQL, -1) {
			if !chosen(m[1]) {
				continue
			}
			found++
			t.mu.Lock()
			gone := t.dropped[m[1]]
			t.dropped[m[1]] = true
			t.mu.Unlock()
			if gone {
				continue
			}
			if _, err := box.DB().ExecContext(ctx, "DROP TABLE "+m[1]); err != nil {
				t.error("drop table %s: %v", m[1], err)
			}
		}
	}
	if found == 0 {
		t.error("the schema has no such line of the form CREATE TABLE name (, so tables are left")
	}
}

// onCleanup has f run after the scenario, last come first.
func (t *trial) onCleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}

// onStop has f run before the relays are stopped at the end.
func (t *trial) onStop(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.onStops = append(t.onStops, f)
}

func (t *trial) cleanup() {
	t.mu.Lock()
	onStops := t.onStops
	t.mu.Unlock()
	for _, f := range onStops {
		f()
	}
	t.stopRelays()
	for {
		t.mu.Lock()
		n := len(t.cleanups)
		if n == 0 {
			t.mu.Unlock()
			return
		}
		f := t.cleanups[n-1]
		t.cleanups = t.cleanups[:n-1]
		t.mu.Unlock()
		f()
	}
}

// stopRelays stops every relay that still runs, and waits for them.
func (t *trial) stopRelays() {
	t.mu.Lock()
	relays := t.relays
	t.relays = nil
	t.mu.Unlock()
	var all sync.WaitGroup
	for _, r := range relays {
		all.Go(r.stop)
	}
	all.Wait()
}

// fail ends the scenario: the promise is broken, or the scenario cannot go on.
func (t *trial) fail(format string, args ...any) {
	t.error(format, args...)
	runtime.Goexit()
}

// error notes an observation that breaks the promise; the scenario goes on.
func (t *trial) error(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.got = append(t.got, fmt.Sprintf(format, args...))
}

// note adds a measurement or a count to the result.
func (t *trial) note(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}

// must ends the scenario on an error.
func (t *trial) must(err error, doing string, args ...any) {
	if err != nil {
		t.fail("%s: %v", fmt.Sprintf(doing, args...), err)
	}
}

// do notes what the scenario is at, for the text of a missed deadline.
func (t *trial) do(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.doing = fmt.Sprintf(format, args...)
}

// progress tells people who watch how far a long scenario is.
func (t *trial) progress(format string, args ...any) {
	if t.target.progress != nil {
		t.target.progress(t.name, fmt.Sprintf(format, args...))
	}
}

// await waits for cond and fails the scenario when it does not become true
// within the target's patience. what continues "waited for".
func (t *trial) await(what string, cond func() bool) {
	t.do("waited for %s", what)
	began := time.Now()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for !cond() {
		if time.Since(began) > t.target.Patience {
			t.fail("waited %v in vain for %s", t.target.Patience, what)
		}
		select {
		case <-t.ctx.Done():
			runtime.Goexit()
		case <-tick.C:
		}
	}
	t.do("went on after it had waited for %s", what)
}

// small makes loads smaller than short ones: under the race detector, where
// everything is many times slower, and for the suite's own tests.
var small = raceEnabled

// size is full, or short when the run is short, or less than that when loads are
// small.
func (t *trial) size(full, short int) int {
	switch {
	case small:
		return (short + 3) / 4
	case t.target.Short:
		return short
	default:
		return full
	}
}

// within tells whether something that must take at most this long did, on a
// machine that may be busy.
func within(took, most time.Duration) bool {
	slack := 8 * time.Second
	if raceEnabled {
		slack = time.Minute
	}
	return took <= most+slack
}

// open returns a new pool to the server, closed after the scenario.
func (t *trial) open() *sql.DB {
	db, err := t.target.Open(t.ctx)
	if err != nil {
		t.fail("open: %v", err)
	}
	return t.adopt(db)
}

// adopt bounds a pool, so that scenarios side by side do not use the server's
// connections up, and closes it after the scenario.
func (t *trial) adopt(db *sql.DB) *sql.DB {
	db.SetMaxOpenConns(5)
	db.SetMaxIdleConns(5)
	t.onCleanup(func() { _ = db.Close() })
	return db
}

// newBox returns an outbox over the scenario's tables.
func (t *trial) newBox(db *sql.DB, d dialect.Dialect) *outbox.Outbox {
	return t.boxOf(&t.tables, db, d)
}

// boxOf is newBox over other tables.
func (t *trial) boxOf(tables *dialect.Tables, db *sql.DB, d dialect.Dialect) *outbox.Outbox {
	box, err := outbox.New(db, d, outbox.Config{Schema: tables.Schema, Prefix: tables.Prefix, Lanes: tables.Lanes})
	if err != nil {
		t.fail("new outbox: %v", err)
	}
	return box
}

// store is the engine bound to the scenario's tables.
func (t *trial) store() dialect.Store { return t.box.Store() }

// message makes the next message of a key, with the key's next revision and a
// payload from the seed. An empty key is none.
func (t *trial) message(key string) outbox.Message { return t.messageFrom(t.rand, key) }

// messageFrom is message for another goroutine, with a source of its own.
func (t *trial) messageFrom(from *rand.Rand, key string) outbox.Message {
	payload := make([]byte, 16)
	for i := range payload {
		payload[i] = byte(from.Uint32())
	}
	m := outbox.Message{ID: t.newID(from), Topic: "conformance", Key: key, Type: "tried", ContentType: "application/octet-stream", Payload: payload}
	t.mu.Lock()
	defer t.mu.Unlock()
	if key != "" {
		t.revision[key]++
		m.Revision = t.revision[key]
	}
	return m
}

// newID is a message id from the seed and the tables' name, so that ids of
// different runs differ.
func (t *trial) newID(from *rand.Rand) uuid.UUID {
	var id uuid.UUID
	h := fnv.New64a()
	_, _ = h.Write([]byte(t.tables.Prefix + t.tables.Schema))
	a, b := from.Uint64(), from.Uint64()^h.Sum64()
	for i := range 8 {
		id[i], id[8+i] = byte(a>>(8*i)), byte(b>>(8*i))
	}
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return id
}

// write is a producer's open transaction whose messages are in the history.
type write struct {
	t        *trial
	tx       *sql.Tx
	box      *outbox.Outbox
	messages []outbox.Message
	over     bool
}

// begin opens a producer's transaction.
func (t *trial) begin() *write { return t.beginOn(t.producer) }

// beginOn is begin on another pool.
func (t *trial) beginOn(box *outbox.Outbox) *write {
	tx, err := box.DB().BeginTx(t.ctx, nil)
	t.must(err, "begin a producer's transaction")
	w := &write{t: t, tx: tx, box: box}
	t.onCleanup(func() { _ = tx.Rollback() })
	return w
}

// enqueue writes messages and must succeed.
func (w *write) enqueue(messages ...outbox.Message) {
	w.messages = append(w.messages, messages...)
	_, err := w.box.Enqueue(w.t.ctx, w.tx, messages...)
	w.t.must(err, "enqueue %d messages", len(messages))
}

// commit commits and must succeed.
func (w *write) commit() {
	err := w.tryCommit()
	w.t.must(err, "commit a producer's transaction")
}

// tryCommit commits; after an error the messages are in doubt.
func (w *write) tryCommit() error {
	err := w.tx.Commit()
	if err != nil {
		w.end(inDoubt)
		return err
	}
	w.end(committed)
	w.box.Wake()
	return nil
}

// rollBack rolls back and must succeed.
func (w *write) rollBack() {
	err := w.tx.Rollback()
	w.end(rolledBack)
	w.t.must(err, "roll back a producer's transaction")
}

func (w *write) end(f fate) {
	if w.over {
		return
	}
	w.over = true
	w.t.record(f, w.messages...)
}

// record puts messages into the history that were written by other means.
func (t *trial) record(f fate, messages ...outbox.Message) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range messages {
		m := &messages[i]
		t.wrote = append(t.wrote, written{
			id: m.ID, key: m.Key, keyed: m.HasKey(), revision: m.Revision, sum: sumOf(m), fate: f,
		})
	}
}

// enqueue commits n messages of one key in one transaction and returns them.
func (t *trial) enqueue(key string, n int) []outbox.Message {
	messages := make([]outbox.Message, n)
	for i := range messages {
		messages[i] = t.message(key)
	}
	t.enqueueAll(messages...)
	return messages
}

// enqueueAll commits the messages in one transaction.
func (t *trial) enqueueAll(messages ...outbox.Message) {
	w := t.begin()
	w.enqueue(messages...)
	w.commit()
}

// load describes what produce writes. Zero fields have small defaults.
type load struct {
	// messages in all, over keys keys ("key-0" …), perTx a transaction. Every
	// unkeyed-th message has no key; 0 is none.
	messages, keys, perTx, unkeyed int
	// rollBack is the share of transactions that are rolled back.
	rollBack float64
	// topics are used in turn by key. Default: conformance.
	topics []string
}

// produce writes a load, one transaction after the other, in an order from the
// seed: the messages of a key are in the order of their revisions.
func (t *trial) produce(l load) {
	l.messages, l.keys, l.perTx = cmp.Or(l.messages, 100), cmp.Or(l.keys, 10), cmp.Or(l.perTx, 20)
	t.do("enqueued %d messages over %d keys", l.messages, l.keys)
	for done := 0; done < l.messages; {
		if t.ctx.Err() != nil {
			runtime.Goexit()
		}
		undone := make(map[string]int64)
		batch := make([]outbox.Message, 0, l.perTx)
		for len(batch) < min(l.perTx, l.messages-done) {
			key, n := "", t.rand.IntN(l.keys)
			if l.unkeyed == 0 || t.rand.IntN(l.unkeyed) > 0 {
				key = fmt.Sprintf("key-%d", n)
			}
			m := t.message(key)
			if len(l.topics) > 0 {
				m.Topic = l.topics[n%len(l.topics)]
			}
			if _, ok := undone[key]; !ok && key != "" {
				undone[key] = m.Revision - 1
			}
			batch = append(batch, m)
		}
		w := t.begin()
		w.enqueue(batch...)
		if t.rand.Float64() < l.rollBack {
			w.rollBack()
			t.mu.Lock()
			maps.Copy(t.revision, undone) // the next ones take their place
			t.mu.Unlock()
			continue
		}
		w.commit()
		done += len(batch)
	}
}

// stats are the counts of the scenario's tables.
func (t *trial) stats() dialect.Stats {
	s, err := t.operator.Stats(t.ctx)
	t.must(err, "stats")
	return s
}

// awaitPublished waits until the broker has accepted every committed message.
// As long as some arrive, it is patient.
func (t *trial) awaitPublished() {
	const what = "every committed message to be published"
	for {
		before, done := t.broker.count(), false
		began := time.Now()
		t.await(what, func() bool {
			done = t.allPublished()
			return done || (time.Since(began) > t.target.Patience/2 && t.broker.count() > before)
		})
		if done {
			return
		}
	}
}

// allPublished tells whether the broker has accepted every committed message.
func (t *trial) allPublished() bool {
	t.broker.mu.Lock()
	defer t.broker.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	for ; t.firstMissing < len(t.wrote); t.firstMissing++ {
		if w := &t.wrote[t.firstMissing]; w.fate == committed && t.broker.times[w.id] == 0 {
			return false
		}
	}
	return true
}

// awaitEmpty waits until nothing is ready and nothing is parked but dead
// messages and what they hold.
func (t *trial) awaitEmpty() {
	t.await("the tables to be empty", func() bool {
		s := t.stats()
		return s.Ready+s.Scheduled+s.Retry == 0 && (s.Dead > 0 || s.Held == 0)
	})
}

// settleDown waits until everything is published and settled, stops the relays
// and compares the history: nothing lost, unexpected, altered or out of order,
// and no duplicate that the declared faults do not explain.
func (t *trial) settleDown() {
	t.awaitPublished()
	t.awaitEmpty()
	t.verify()
}

// verify stops the relays and compares the history.
func (t *trial) verify() {
	t.stopRelays()
	f := t.judge()
	for _, b := range f.broken() {
		t.error("%s", b)
	}
	if overlaps := t.broker.overlapping(); len(overlaps) > 0 {
		t.error("%d times: %s", len(overlaps), overlaps[0])
	}
	if f.explained+f.recovered > 0 {
		t.note("%d duplicates explained by faults, %d messages recovered", f.explained, f.recovered)
	}
	t.mu.Lock()
	bad := len(t.got) > 0
	t.mu.Unlock()
	if bad {
		runtime.Goexit()
	}
}

// judge compares the history as it stands.
func (t *trial) judge() findings {
	took, may := t.broker.history()
	t.mu.Lock()
	defer t.mu.Unlock()
	return judge(t.wrote, took, may)
}

// everything selects all messages that an operator's command is for.
var everything = outbox.Filter{All: true}
