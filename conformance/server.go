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
	"github.com/outbox-suite/outbox/relay"
)

// serverScenarios: what becomes of the network and of the server.
var serverScenarios = []Scenario{
	{
		Name:    "Relay/SilentConnection",
		Promise: "a relay whose connections go silent in the middle of a publish loses its lanes to another within the lease, or half a minute later where the silence cut a transaction off, and goes on when the network is back",
		Needs:   []Need{Networked},
		run:     silentConnection,
	},
	{
		Name:    "Relay/HalfOpenConnection",
		Promise: "connections that end in one direction only lose nothing and repeat nothing",
		Needs:   []Need{Networked},
		run:     halfOpenConnection,
	},
	{
		Name:    "Relay/SlowConnection",
		Promise: "on a slow network relays keep their lanes and publish every message once",
		Needs:   []Need{Networked},
		run:     slowConnection,
	},
	{
		Name:    "Relay/ReadOnlySessionsAreReplaced",
		Promise: "a relay whose sessions have become read-only, as after a failover, replaces them and goes on",
		Needs:   []Need{Restrict},
		run:     readOnlySessionsAreReplaced,
	},
	{
		Name:    "Relay/ServerRestart",
		Promise: "a server that is stopped and started under load costs no message; relays and producers go on by themselves",
		Needs:   []Need{Restart},
		alone:   true,
		timeout: 5 * time.Minute,
		run:     func(t *trial) { serverGoes(t, t.target.Stop) },
	},
	{
		Name:    "Relay/ServerCrash",
		Promise: "a server that is killed and started under load costs no committed message; relays and producers go on by themselves",
		Needs:   []Need{Crash},
		alone:   true,
		timeout: 5 * time.Minute,
		run:     func(t *trial) { serverGoes(t, t.target.Kill) },
	},
	{
		Name:    "Restore/DumpedAndRestored",
		Promise: "a dump taken in the middle of the work and restored elsewhere goes on: nothing that was not published is lost, and the order of keys is kept",
		Needs:   []Need{Restorable},
		run:     dumpedAndRestored,
	},
}

// sessionTime is how long a server bears a session that says nothing in the middle of a
// transaction, of the pools that the engines open.
const sessionTime = 30 * time.Second

func silentConnection(t *trial) {
	p, db := t.proxied()
	t.onStop(func() { p.Silence(false) })
	cut := t.startWith(relayWith{db: db})
	middle := t.gate()
	stalled := t.broker.first(1, anyMessage, after(middle, acceptIt))
	t.produce(load{messages: 200, keys: 20})
	t.await("a publish to be under way", func() bool { return stalled.seen() == 1 && middle.waiting() == 1 })
	p.Silence(true)
	began := time.Now()
	next := t.start()
	t.awaitPublished()
	t.awaitEmpty()
	// A renewal that was under way may have the lane locked until the server ends the
	// session.
	if took := time.Since(began); !within(took, leaseTime+sessionTime) {
		t.error("the lanes of the relay that went silent were taken over after %v, the lease is %v and a silent session has %v", took, leaseTime, sessionTime)
	}
	middle.open()
	t.produce(load{messages: 100, keys: 20})
	t.awaitPublished()
	t.awaitEmpty()
	next.stop()
	p.Silence(false)
	t.produce(load{messages: 100, keys: 20})
	t.awaitPublished() // by the one that was silent
	if cut.ended() {
		t.fail("the relay that went silent has ended")
	}
	t.settleDown()
}

func halfOpenConnection(t *trial) {
	p, db := t.proxied()
	// A lease long enough that none is lost: then nothing explains a duplicate.
	t.startWith(relayWith{db: db, config: patient})
	for range t.size(30, 12) {
		seen := t.broker.count()
		messages := 40 + t.rand.IntN(40)
		t.produce(load{messages: messages, keys: 20, perTx: 20})
		some := t.rand.IntN(messages)
		t.await("some of the messages to be published", func() bool { return t.broker.count() > seen+some/2 })
		p.HalfClose()
		t.awaitPublished()
	}
	t.note("%d connections were half closed", p.Cuts())
	t.settleDown()
	t.noDuplicates()
}

func slowConnection(t *trial) {
	p, db := t.proxied()
	p.Delay(40 * time.Millisecond)
	// An engine may need twenty round trips from the poll to the first publish, which
	// is more than two seconds here.
	lease := 4 * leaseTime
	if raceEnabled {
		lease = 15 * leaseTime // a machine that stands still must not cost it
	}
	slow := t.startWith(relayWith{db: db, config: func(c *relay.Config) { c.Lease, c.PublishTimeout = lease, time.Minute }})
	fast := t.start(patient)
	for range 4 {
		p.Delay(time.Duration(20+t.rand.IntN(40)) * time.Millisecond)
		t.produce(load{messages: t.size(1000, 200), keys: 50, perTx: 50})
		t.awaitPublished()
	}
	fast.stop()
	// A publish that takes longer than the lease, which must be renewed meanwhile.
	middle := t.gate()
	long := t.broker.when(anyMessage, func(c *call) error {
		middle.pass(c.ctx)
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
		c.accept()
		return nil
	})
	t.produce(load{messages: 10, keys: 10})
	began := time.Now()
	t.await("the publish to outlast the lease", func() bool { return long.seen() > 0 && time.Since(began) > 3*lease/2 })
	middle.open()
	t.settleDown()
	t.noDuplicates()
	if n := long.seen(); n != 10 {
		t.fail("10 messages whose publish outlasts the lease were tried %d times", n)
	}
	if lost := eventsOf[relay.LeaseLost](slow); len(lost) > 0 {
		t.fail("the relay behind the slow network lost its lease %d times", len(lost))
	}
}

func readOnlySessionsAreReplaced(t *trial) {
	db := t.open()
	r := t.startWith(relayWith{db: db, config: patient})
	for range t.size(3, 2) {
		t.produce(load{messages: 50, keys: 10})
		t.awaitPublished()
		t.awaitEmpty()
		// All of the pool's sessions at once, those that are in use too: the pool
		// hands one out when the relay gives it back.
		demoted := make([]*sql.Conn, db.Stats().MaxOpenConnections)
		for i := range demoted {
			conn, err := db.Conn(t.ctx)
			t.must(err, "take a connection of the relay")
			demoted[i] = conn
			t.must(t.target.Demote(t.ctx, conn), "make a session read-only")
		}
		for _, conn := range demoted {
			t.must(conn.Close(), "give a connection back")
		}
		began := time.Now()
		t.produce(load{messages: 50, keys: 10})
		t.awaitPublished()
		t.awaitEmpty()
		t.note("back to work %v after all %d sessions had become read-only", time.Since(began).Round(time.Millisecond), len(demoted))
	}
	refused := 0
	for _, e := range eventsOf[relay.Erred](r) {
		if t.target.Dialect.Classify(e.Err) == dialect.ReadOnly {
			refused++
		}
	}
	for _, e := range eventsOf[relay.SettleRetried](r) {
		if t.target.Dialect.Classify(e.Err) == dialect.ReadOnly {
			refused++
		}
	}
	if refused == 0 {
		t.fail("no operation was refused by a read-only session: the target demotes none, or the engine does not tell")
	}
	t.settleDown()
}

// keepProducing writes small transactions in a goroutine, through whatever
// becomes of the server, until stop is called. stop returns how many were
// committed, refused and in doubt.
func (t *trial) keepProducing(keys, perTx int) (stop func() (committed, refused, doubtful int)) {
	// A commit under way is let finish: one that is cut off may take effect later.
	ctx, cancel := context.WithCancel(t.ctx)
	done := make(chan struct{})
	dice := source(t.target.Seed, "producer")
	db := t.as(&t.tables, Producer)
	var counts [3]int
	var producer sync.WaitGroup
	one := func() (fate, error) {
		messages := make([]outbox.Message, perTx)
		for i := range messages {
			messages[i] = t.messageFrom(dice, fmt.Sprintf("key-%d", dice.IntN(keys)))
		}
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return rolledBack, err
		}
		defer tx.Rollback() // after a commit it does nothing
		became := committed
		if _, err = t.box.Enqueue(ctx, tx, messages...); err != nil {
			became = rolledBack
		} else if err = tx.Commit(); err != nil {
			became = inDoubt
		}
		t.record(became, messages...)
		return became, err
	}
	producer.Go(func() {
		for ctx.Err() == nil {
			became, err := one()
			counts[became]++
			pause := time.Millisecond
			if err != nil {
				pause = 20 * time.Millisecond // the server is away
			}
			select {
			case <-ctx.Done():
			case <-done:
				return
			case <-time.After(pause):
			}
		}
	})
	var once sync.Once
	end := func() {
		once.Do(func() {
			defer cancel()
			close(done)
			defer time.AfterFunc(t.target.Patience, cancel).Stop() // the server may be away
			producer.Wait()
		})
	}
	t.onStop(end)
	return func() (int, int, int) {
		end()
		return counts[committed], counts[rolledBack], counts[inDoubt]
	}
}

func serverGoes(t *trial, down func(context.Context) error) {
	// Whatever happens, the server must be there afterwards.
	isDown := false
	t.onStop(func() {
		if isDown {
			_ = t.target.Start(context.WithoutCancel(t.ctx))
		}
	})
	t.startMany(2)
	stop := t.keepProducing(20, 5)
	progress := func(when string) {
		before := t.broker.count()
		t.await("messages to flow "+when, func() bool { return t.broker.count() > before+200 })
	}
	for n := range t.size(4, 2) {
		progress(fmt.Sprintf("before the server goes down for time %d", n+1))
		isDown = true
		t.must(down(t.ctx), "take the server down")
		t.must(t.target.Start(t.ctx), "start the server")
		isDown = false
		began := time.Now()
		progress("after the server is back")
		t.note("work went on %v after the server answered", time.Since(began).Round(time.Millisecond))
	}
	committed, refused, doubtful := stop()
	t.note("%d transactions committed, %d refused, %d in doubt", committed, refused, doubtful)
	if refused+doubtful == 0 {
		t.fail("no producer noticed that the server was down")
	}
	t.settleDown()
}

func dumpedAndRestored(t *trial) {
	// What the dump finds: published messages, dead ones with what they hold back,
	// retries, delayed messages, ready ones, and a relay in the middle of a batch.
	t.broker.when(ofKey("dead"), refuse(relay.Permanent(errors.New("never"))))
	t.broker.when(ofKey("retry"), refuse(errors.New("not yet")))
	middle := t.gate()
	first := t.start(func(c *relay.Config) {
		c.Lease, c.RetryMin, c.RetryMax, c.MaxAttempts = 2*time.Second, time.Minute, time.Hour, 1000
	})
	t.produce(load{messages: 300, keys: 30, unkeyed: 10})
	t.enqueue("dead", 3)
	t.enqueue("retry", 3)
	t.await("a dead message, a retry and what they hold back", func() bool {
		s := t.stats()
		return s.Dead == 1 && s.Retry == 1 && s.Held == 4 && s.Ready == 0
	})
	stalled := t.broker.when(anyMessage, after(middle, acceptIt))
	t.produce(load{messages: 200, keys: 30, perTx: 50})
	delayed := t.message("delayed")
	delayed.Delay = time.Hour
	t.enqueueAll(delayed)
	t.await("a batch to be under way", func() bool { return stalled.seen() > 0 })
	// Some of the batch is accepted; the relay dies before it settles.
	some := stalled.seen()
	middle.open()
	t.await("some of the batch to be accepted", func() bool { return stalled.seen() >= some && t.broker.count() > 300 })
	first.kill()
	stalled.remove()

	before := t.stats()
	copied, err := t.target.Restore(t.ctx, t.tables)
	t.must(err, "dump and restore")
	t.onCleanup(func() {
		if err := copied.Remove(context.WithoutCancel(t.ctx)); err != nil {
			t.error("remove the restored copy: %v", err)
		}
	})
	own := *t.target // from here on everything goes to the copy
	own.Open, own.As = copied.Open, nil
	t.target = &own
	t.use(t.open())
	t.must(t.box.Check(t.ctx), "check the restored copy")
	s := t.stats()
	if s.Ready != before.Ready || s.Scheduled != before.Scheduled || s.Retry != before.Retry || s.Held != before.Held || s.Dead != before.Dead {
		t.fail("the copy has other counts than the original:\n    copy %+v\noriginal %+v", s, before)
	}

	// In the copy producers go on, also with keys that wait.
	t.broker.mu.Lock()
	t.broker.rules = nil // the broker takes everything now
	t.broker.mu.Unlock()
	t.produce(load{messages: 100, keys: 30})
	t.enqueue("dead", 2)
	t.enqueue("retry", 2)
	t.startMany(2)
	for _, state := range []string{dialect.Dead, dialect.Retry, dialect.Scheduled} {
		_, err := t.operator.Requeue(t.ctx, outbox.Filter{States: []string{state}}, 0)
		t.must(err, "requeue what is %s", state)
	}
	t.settleDown()
	replayed, err := t.operator.Replay(t.ctx, everything, 0)
	t.must(err, "replay")
	if replayed < t.broker.count()/2 {
		t.fail("of what was published before the dump and after only %d messages are done", replayed)
	}
}
