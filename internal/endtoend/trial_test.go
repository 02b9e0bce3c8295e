package endtoend

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/conformance/containers"
)

// What the suite's own tests break.
const (
	noInbox        = "the consumer knows no inbox"
	acceptsAll     = "the publisher accepts whatever the broker says"
	settlesFirst   = "the relay settles before it publishes"
	publishesTwice = "the relay publishes everything twice"
	reverses       = "the publisher declares an order that it does not keep"
	enqueuesOut    = "the producer enqueues outside its transaction"
)

const writers = 4

// trial is a run of a pair.
type trial struct {
	*testing.T
	engine   engine
	broker   broker
	plan     plan
	database *containers.Server // nil if it cannot be restarted
	broken   string
	patience time.Duration // without any progress

	topic               string
	shopDSN, billingDSN string
	shop                *outbox.Outbox
	billing             *sql.DB
	server              server
	relays              []*child
	consumer            *child
	begun               int // relays, for their names
	began               time.Time

	mu         sync.Mutex
	seen       map[string]int // deliveries by message
	duplicates int            // that the inbox recognised
	troubles   map[string]int // by kind
	last       string         // trouble
	written    []planned
	found      findings // on the way
}

func newTrial(t *testing.T, e engine, b broker, shop, billing string, p plan) *trial {
	t.Helper()
	return &trial{
		T: t, engine: e, broker: b, plan: p, patience: 60 * time.Second,
		topic: "orders-" + rand.Text()[:8], shopDSN: shop, billingDSN: billing,
		began: time.Now(), seen: make(map[string]int), troubles: make(map[string]int),
	}
}

// run goes the whole way and says what did not hold.
func (r *trial) run() *findings {
	r.Helper()
	r.prepare()
	for range 2 {
		r.startRelay()
	}
	r.startConsumer()
	defer func() {
		for _, c := range append(r.relays, r.consumer) {
			c.kill()
		}
	}()
	complete := r.calm("before the faults", r.plan.before)
	for _, b := range r.plan.storm {
		if complete {
			complete = r.strike(b)
		}
	}
	if complete {
		complete = r.calm("after the faults", r.plan.after)
	}
	if complete {
		for _, c := range append(r.relays, r.consumer) {
			r.must(c.stop())
		}
	} else {
		r.logMissing()
	}
	found := check(r.collect(complete))
	found.all = append(found.all, r.found.all...)
	return found
}

// prepare makes the tables of both sides, and what the broker needs.
func (r *trial) prepare() {
	r.Helper()
	r.server = r.broker.launch(r.T)
	r.must(r.broker.prepare(r.Context(), r.server.url(), r.topic))
	bind := func(dsn string) *outbox.Outbox {
		db, err := r.engine.open(dsn)
		r.must(err)
		r.Cleanup(func() { db.Close() })
		o, err := outbox.New(db, r.engine.dialect(), outbox.Config{})
		r.must(err)
		_, err = o.Migrate(r.Context())
		r.must(err)
		return o
	}
	r.shop, r.billing = bind(r.shopDSN), bind(r.billingDSN).DB()
	exec := func(db *sql.DB, query string) {
		_, err := db.ExecContext(r.Context(), query)
		r.must(err)
	}
	// The business state, and the business's own record of every change.
	exec(r.shop.DB(), "CREATE TABLE orders (id integer PRIMARY KEY, revision integer NOT NULL)")
	exec(r.shop.DB(), "CREATE TABLE journal (message_id varchar(36) PRIMARY KEY, order_id integer NOT NULL, revision integer NOT NULL)")
	// The consumer's. Nothing but the inbox keeps an effect from being there twice.
	exec(r.billing, "CREATE TABLE copies (id integer PRIMARY KEY, changes integer NOT NULL)")
	exec(r.billing, "CREATE TABLE effects (message_id varchar(36) NOT NULL, order_id integer NOT NULL, revision integer NOT NULL, place integer NOT NULL)")
	var orders, copies []string
	for i := range r.plan.orders {
		orders, copies = append(orders, fmt.Sprintf("(%d, 0)", i+1)), append(copies, fmt.Sprintf("(%d, 0)", i+1))
	}
	exec(r.shop.DB(), "INSERT INTO orders (id, revision) VALUES "+strings.Join(orders, ", "))
	exec(r.billing, "INSERT INTO copies (id, changes) VALUES "+strings.Join(copies, ", "))
}

func (r *trial) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *trial) startRelay() {
	r.Helper()
	r.begun++
	c, err := spawn(r.T, spec{
		Role: "relay", Name: fmt.Sprintf("relay-%d", r.begun), Engine: r.engine.name, Broker: r.broker.name,
		DSN: r.shopDSN, URL: r.server.url(), Topic: r.topic, Broken: r.broken,
	}, r.heard)
	r.must(err)
	r.relays = append(r.relays, c)
}

func (r *trial) startConsumer() {
	r.Helper()
	c, err := spawn(r.T, spec{
		Role: "consumer", Name: "billing", Engine: r.engine.name, Broker: r.broker.name,
		DSN: r.billingDSN, URL: r.server.url(), Topic: r.topic, Broken: r.broken,
	}, r.heard)
	r.must(err)
	r.consumer = c
}

// heard takes a line that a relay or the consumer said.
func (r *trial) heard(c *child, line report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch line.Kind {
	case "applied":
		r.seen[line.ID]++
	case "duplicate":
		r.seen[line.ID]++
		r.duplicates++
	case "settled":
	default:
		r.troubles[line.Kind]++
		r.last = fmt.Sprintf("%s of %s: %s", line.Kind, c.Name, line.Text)
	}
}

func (r *trial) troubleCount() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.troubles {
		n += k
	}
	return n
}

func (r *trial) lastTrouble() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// await asks until the answer is yes. It gives up when no message has come to the
// consumer for long.
func (r *trial) await(ask func() bool) bool { return r.awaitFor(r.patience, ask) }

func (r *trial) awaitFor(patience time.Duration, ask func() bool) bool {
	r.Helper()
	progress, since := -1, time.Now()
	for !ask() {
		for _, c := range append(slices.Clone(r.relays), r.consumer) {
			if _, err := c.alive(); err != nil {
				r.Fatal(err)
			}
		}
		r.mu.Lock()
		now := len(r.seen)
		r.mu.Unlock()
		if now != progress {
			progress, since = now, time.Now()
		} else if time.Since(since) > patience {
			return false
		}
		time.Sleep(2 * time.Millisecond)
	}
	return true
}

// allSeen tells whether every message of these has come to the consumer.
func (r *trial) allSeen(items []planned) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, item := range items {
		if item.fate == commits && r.seen[item.id.String()] == 0 {
			return false
		}
	}
	return true
}

func (r *trial) someSeen(items []planned) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return committing(items) == 0 || slices.ContainsFunc(items, func(item planned) bool { return r.seen[item.id.String()] > 0 })
}

// logMissing says where the outbox has a few that have not come: what it has published
// is the broker's to have, or the consumer's.
func (r *trial) logMissing() {
	r.Helper()
	n := 0
	for _, item := range r.written {
		if n < 3 && !r.allSeen([]planned{item}) {
			n++
			places, err := r.shop.Find(r.Context(), item.id)
			r.Logf("%s of order %d has not come; the outbox has it at %+v, %v", item.id, item.order, places, err)
		}
	}
}

// calm is a time without faults, in which nothing may come twice. False means that
// something did not come at all.
func (r *trial) calm(when string, items []planned) bool {
	r.Helper()
	began := time.Now()
	defer func() { r.Logf("%5.1fs  %s", time.Since(began).Seconds(), when) }()
	before := r.troubleCount()
	r.write(items)
	if !r.await(func() bool { return r.allSeen(items) }) {
		r.Logf("%s: something does not arrive; the last trouble: %s", when, r.lastTrouble())
		return false
	}
	twice := r.twice(items)
	trouble := func() bool { return r.troubleCount() > before }
	if twice > 0 {
		// A relay that stood still learns only when it goes on that its lane was taken over.
		r.awaitFor(10*time.Second, trouble)
	}
	switch {
	case trouble():
		r.Logf("%s there was trouble all the same, and %d messages came twice: %s", when, twice, r.lastTrouble())
	case twice > 0:
		r.found.add("twice", "%d messages %s", twice, when)
	}
	return true
}

// twice counts the messages that have come more than once.
func (r *trial) twice(items []planned) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, item := range items {
		if r.seen[item.id.String()] > 1 {
			n++
		}
	}
	return n
}

// strike writes in three parts: messages that are under way when the fault strikes,
// such as are written at that moment, and such as are written while it lasts.
func (r *trial) strike(b blow) bool {
	r.Helper()
	third := len(b.items) / 3
	before, during, after := b.items[:third], b.items[third:2*third], b.items[2*third:]
	began := time.Now()
	r.write(before)
	if !r.await(func() bool { return r.someSeen(before) }) {
		return false
	}
	var writing sync.WaitGroup
	defer writing.Wait()
	writing.Go(func() { r.write(during) })
	heal := r.begin(b)
	writing.Go(func() { r.write(after) })
	heal()
	writing.Wait()
	ok := r.await(func() bool { return r.allSeen(b.items) })
	if !ok {
		r.Logf("after %q something does not arrive; the last trouble: %s", b.fault, r.lastTrouble())
	}
	r.Logf("%5.1fs  %s", time.Since(began).Seconds(), b.fault)
	return ok
}

// begin lets the fault strike. What it returns waits until that was felt, and mends it.
func (r *trial) begin(b blow) (heal func()) {
	r.Helper()
	consumer := r.consumer
	// There is work to come, so every fault strikes.
	await := func(struck func() bool) {
		if !r.awaitFor(time.Minute, struck) {
			r.Errorf("it was not felt that %s", b.fault)
		}
	}
	replaceConsumer := func() {
		consumer.kill()
		r.startConsumer()
	}
	switch b.fault {
	case relayDies:
		// Whichever has work dies of it; the other one is killed wherever it is.
		told := slices.Clone(r.relays)
		for _, c := range told {
			c.expectEnd()
			c.tell(tellDie)
		}
		return func() {
			await(func() bool { return slices.ContainsFunc(told, ended) })
			for _, c := range told {
				r.replaceRelay(c)
			}
		}
	case relayKilled:
		before := make(map[*child]int)
		for _, c := range r.relays {
			before[c] = c.count("settled")
		}
		return func() {
			victim := -1
			await(func() bool {
				victim = slices.IndexFunc(r.relays, func(c *child) bool { return c.count("settled") > before[c] })
				return victim >= 0
			})
			r.replaceRelay(r.relays[max(victim, 0)])
		}
	case consumerDies:
		consumer.expectEnd()
		consumer.tell(tellDie)
		return func() {
			await(func() bool { return ended(consumer) })
			replaceConsumer()
		}
	case consumerKilled:
		n := consumer.count("applied")
		return func() {
			await(func() bool { return consumer.count("applied") > n })
			replaceConsumer()
		}
	case handlerFails:
		n := consumer.count("fault handler")
		consumer.tell(tellFail)
		return func() { await(func() bool { return consumer.count("fault handler") > n }) }
	case brokerKilled:
		felt := r.feeling()
		r.must(r.server.kill(r.Context()))
		return func() {
			await(felt)
			r.must(r.server.start(r.Context()))
		}
	case serverKilled, serverStopped:
		felt := r.feeling()
		if b.fault == serverKilled {
			r.must(r.database.Kill(r.Context()))
		} else {
			r.must(r.database.Stop(r.Context()))
		}
		return func() {
			await(felt)
			r.must(r.database.Start(r.Context()))
		}
	}
	panic("there is no fault " + b.fault)
}

func ended(c *child) bool {
	alive, _ := c.alive()
	return !alive
}

// replaceRelay kills a relay that may have ended, and starts another.
func (r *trial) replaceRelay(c *child) {
	r.Helper()
	c.kill()
	r.relays = slices.DeleteFunc(r.relays, func(other *child) bool { return other == c })
	r.startRelay()
}

// feeling returns what tells whether somebody has met an error since now.
func (r *trial) feeling() func() bool {
	before := r.troubleCount()
	return func() bool { return r.troubleCount() > before }
}

// write runs business transactions, several at a time, and returns when the outcome of
// each is known.
func (r *trial) write(items []planned) {
	r.mu.Lock()
	r.written = append(r.written, items...)
	r.mu.Unlock()
	queue := make(chan planned, len(items))
	for _, item := range items {
		queue <- item
	}
	close(queue)
	var writing sync.WaitGroup
	for range writers {
		writing.Go(func() {
			for item := range queue {
				if err := r.writeOne(item); err != nil {
					r.Errorf("%s: %v", item.id, err)
				}
			}
		})
	}
	writing.Wait()
}

var errRollsBack = errors.New("this transaction was to roll back")

// writeOne repeats a transaction until it has had its planned outcome. Whether one
// that failed was committed is for the database to say.
func (r *trial) writeOne(item planned) error {
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Minute) // a server may be away meanwhile
	defer cancel()
	for {
		err := r.change(ctx, item)
		if err == nil || errors.Is(err, errRollsBack) {
			return nil
		}
		for {
			pause(ctx)
			if ctx.Err() != nil {
				return err
			}
			var n int
			row := r.shop.DB().QueryRowContext(ctx, fmt.Sprintf("SELECT count(*) FROM journal WHERE message_id = '%s'", item.id))
			if row.Scan(&n) != nil {
				continue
			}
			if n == 1 {
				return nil
			}
			break
		}
	}
}

// change is the business transaction: the order, the record of the change and the
// message stand or fall together.
func (r *trial) change(ctx context.Context, item planned) error {
	if r.broken == enqueuesOut {
		if err := r.enqueueOutside(ctx, item); err != nil {
			return err
		}
	}
	return r.shop.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
		// This locks the order, so that its writers take turns.
		if _, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE orders SET revision = revision + 1 WHERE id = %d", item.order)); err != nil {
			return err
		}
		var revision int
		if err := tx.QueryRowContext(ctx, fmt.Sprintf("SELECT revision FROM orders WHERE id = %d", item.order)).Scan(&revision); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO journal (message_id, order_id, revision) VALUES ('%s', %d, %d)",
			item.id, item.order, revision)); err != nil {
			return err
		}
		if r.broken != enqueuesOut {
			if _, err := r.shop.Enqueue(ctx, tx, r.message(item, revision)); err != nil {
				return err
			}
		}
		if item.fate == rollsBack {
			return errRollsBack
		}
		return nil
	})
}

// enqueueOutside is what an outbox is there to prevent.
func (r *trial) enqueueOutside(ctx context.Context, item planned) error {
	return r.shop.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
		_, err := r.shop.Enqueue(ctx, tx, r.message(item, 1))
		return err
	})
}

func (r *trial) message(item planned, revision int) outbox.Message {
	return outbox.Message{
		ID: item.id, Topic: r.topic, Key: key(item.order), Type: "order.changed", Revision: int64(revision),
		Payload: fmt.Appendf(nil, `{"order":%d,"revision":%d}`, item.order, revision),
	}
}

func key(order int) string { return fmt.Sprintf("order-%d", order) }

// collect reads everything back, when the outbox is empty if it is to be.
func (r *trial) collect(complete bool) (e evidence) {
	r.Helper()
	e.plan = r.written
	var err error
	if e.left, err = r.shop.Stats(r.Context()); err != nil {
		r.Fatal(err)
	}
	if !complete {
		e.left = outbox.Stats{} // it was cut short
	}
	each(r, r.shop.DB(), "SELECT message_id, order_id, revision FROM journal", func(scan func(...any) error) error {
		var c change
		err := scan(&c.id, &c.order, &c.revision)
		e.journal = append(e.journal, c)
		return err
	})
	each(r, r.billing, "SELECT message_id, order_id, revision, place FROM effects", func(scan func(...any) error) error {
		var x effect
		err := scan(&x.id, &x.order, &x.revision, &x.place)
		e.effects = append(e.effects, x)
		return err
	})
	return e
}

// each calls row for every row of a query.
func each(r *trial, db *sql.DB, query string, row func(scan func(...any) error) error) {
	r.Helper()
	rows, err := db.QueryContext(r.Context(), query)
	r.must(err)
	defer rows.Close()
	for rows.Next() {
		r.must(row(rows.Scan))
	}
	r.must(rows.Err())
}
