package relay

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
)

// Relay delivers the messages of one outbox. It is safe for concurrent use;
// Run is called once.
type Relay struct {
	outbox    *outbox.Outbox
	db        *sql.DB
	store     dialect.Store
	classify  func(error) dialect.Class
	publisher Publisher
	ordered   bool
	// destination names a topic's destination; nil when there is only one.
	destination func(topic string) string
	cfg         Config
	observe     func(Event)
	down        *breakers // by destination: unavailable as a whole
	slow        *breakers // by topic: publishes time out, or it alone is unavailable
	woken       chan struct{}
	floors      floors        // the dispatcher's
	polling     time.Duration // what the last poll took; the dispatcher's
	shaken      atomic.Bool   // an operation on the database failed
	suspects    suspects
	arrivals    arrivals
	lanes       *lanes
	ran         atomic.Bool
}

// New returns a relay. It checks cfg and does no I/O.
func New(o *outbox.Outbox, p Publisher, cfg Config) (*Relay, error) {
	if o == nil || p == nil {
		return nil, fmt.Errorf("new relay: %w: outbox and publisher are required", outbox.ErrInvalid)
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("new relay: %w: %w", outbox.ErrInvalid, err)
	}
	if cfg.Listen && o.DB().Stats().MaxOpenConnections == 1 {
		return nil, fmt.Errorf("new relay: %w: listen is set, but it needs a connection of its own and the pool has one: allow more, or leave it out", outbox.ErrInvalid)
	}
	if _, ok := o.Store().(dialect.Waker); cfg.Listen && !ok {
		return nil, fmt.Errorf("new relay: %w: listen is set, but %s cannot wake other processes: leave it out, polling finds every message", outbox.ErrInvalid, o.Dialect().Name())
	}
	r := &Relay{
		outbox: o, db: o.DB(), store: o.Store(), classify: o.Dialect().Classify,
		publisher: p, cfg: cfg, observe: cfg.Observer.Observe,
		down: newBreakers(cfg), slow: newBreakers(cfg),
		woken: make(chan struct{}, 1), lanes: newLanes(),
	}
	r.slow.topics = true
	if p, ok := p.(Orderer); ok {
		r.ordered = p.KeepsOrder()
	}
	if p, ok := p.(Destinations); ok {
		r.destination = p.Destination
	}
	return r, nil
}

// destinationOf is the topic's destination, empty when there is only one.
func (r *Relay) destinationOf(topic string) string {
	if r.destination == nil {
		return ""
	}
	return r.destination(topic)
}

// Wake makes an idle relay poll at once. It never blocks.
func (r *Relay) Wake() {
	select {
	case r.woken <- struct{}{}:
	default: // one is waiting already and will find everything
	}
}

// Run checks the database and delivers messages until ctx ends. Then it claims
// nothing more, lets publishes under way finish within Config.Grace, settles
// what was accepted, releases its lanes and returns nil. With
// Config.UntilEmpty it also returns nil when there is nothing left to do.
//
// It returns an error only at start, when the database is not ready (see
// [outbox.Outbox.Check]) or cannot be reached, or when it was called before.
// Errors later on are observed and survived.
func (r *Relay) Run(ctx context.Context) error {
	if r.ran.Swap(true) {
		return fmt.Errorf("relay: %w: Run was called before: make another relay", outbox.ErrInvalid)
	}
	if err := r.outbox.Check(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // stopped before it began is stopped
		}
		return fmt.Errorf("relay: %w", err)
	}
	defer r.outbox.OnWake(r.Wake)()
	r.observe(Started{Owner: r.cfg.Owner})

	// work outlives ctx, so that what was accepted is settled after a stop.
	work, cancelWork := context.WithCancelCause(context.WithoutCancel(ctx))
	// publish ends after the grace period.
	publish, cancelPublish := context.WithCancelCause(work)
	defer cancelPublish(errStopped)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-ctx.Done():
		case <-work.Done():
		}
		if ctx.Err() == nil {
			return // there was nothing left to do
		}
		r.observe(Stopping{})
		if !sleep(work, r.cfg.Grace) {
			return
		}
		cancelPublish(errStopped)
		if sleep(work, abandonAfter+r.cfg.Grace) {
			cancelWork(errStopped) // the database does not answer either
		}
	})
	defer watch.Wait()
	defer cancelWork(errStopped)

	side, stopSide := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer stopSide()
	beside.Go(func() { r.purge(side) })
	if r.cfg.Listen {
		beside.Go(func() { r.listen(side) })
	}
	r.dispatch(ctx, work, publish)
	return nil
}

// dispatch hands lanes with work to idle workers, and gives lanes back that were kept
// for long enough.
func (r *Relay) dispatch(ctx, work, publish context.Context) {
	var turns sync.WaitGroup
	giveBack := func(idle time.Duration) {
		if stale := r.lanes.stale(idle); len(stale) > 0 {
			turns.Go(func() { r.giveBack(work, stale) })
		}
	}
	defer func() {
		giveBack(0)
		turns.Wait()
		r.giveBack(work, r.lanes.stale(0)) // a turn that ended at the same moment
	}()
	busy := 0
	finished := make(chan bool, r.cfg.Workers) // true while the lane is still busy
	pause := r.cfg.PollMin
	for {
		// Take note of workers that are idle again; wait for one if there is none.
		for busy > 0 {
			if busy == r.cfg.Workers {
				r.await(finished, giveBack) // a stop ends turns soon
				busy--
				continue
			}
			select {
			case <-finished:
				busy--
				continue
			default:
			}
			break
		}
		if ctx.Err() != nil {
			return
		}
		giveBack(r.cfg.keep())
		idle := r.cfg.Workers - busy
		started, wait := 0, time.Duration(0)
		ok, probe := true, false
		if r.destination == nil {
			ok, probe, wait = r.down.allow("")
		}
		if ok {
			if probe {
				idle = 1
			}
			for lease := range r.claim(ctx, work, idle) {
				started++
				busy++
				turns.Go(func() {
					free := false
					r.turn(ctx, work, publish, lease, probe, func() {
						free = true
						finished <- true
					})
					if free {
						r.Wake() // for what came to the lane meanwhile
					} else {
						finished <- false
					}
				})
			}
			if probe && started == 0 {
				r.down.forgo("")
			}
		}
		switch {
		case started == idle:
			pause = r.cfg.PollMin
			continue
		case started > 0:
			// All that was offered is being worked on. What comes next wakes us, or was
			// seen by nobody yet.
			wait, pause = r.cfg.PollMin, r.cfg.PollMin
		case wait > 0:
		case busy == 0 && r.cfg.UntilEmpty && r.empty(ctx):
			return
		default:
			wait = jitter(pause)
			if r.polling >= pollSlow {
				wait = max(wait, min(pollShare*r.polling, pollShareMost))
			}
			pause = min(pause*2, r.cfg.PollMax)
		}
		next := time.Now().Add(wait)
		for waiting := true; waiting; {
			left, kept := r.lanes.next(r.cfg.keep())
			timer := time.NewTimer(min(time.Until(next), left))
			select {
			case <-ctx.Done():
				waiting = false
			case <-timer.C:
				if waiting = kept && time.Now().Before(next); waiting {
					giveBack(r.cfg.keep())
				}
			case <-r.woken:
				waiting, pause = false, r.cfg.PollMin
			case free := <-finished:
				busy--
				if !free {
					waiting, pause = false, r.cfg.PollMin
				}
			}
			timer.Stop()
		}
	}
}

// After a poll that was slow a pause is so many times as long at least, or relays with nothing
// to do would hold up those that have; but no longer than that for this reason.
const (
	pollSlow      = 5 * time.Millisecond
	pollShare     = 10
	pollShareMost = 250 * time.Millisecond
)

// await waits for a worker. When that takes long this relay has more to do than it can,
// and others shall have the lanes that are kept.
func (r *Relay) await(finished <-chan bool, giveBack func(idle time.Duration)) {
	timer := time.NewTimer(2 * r.cfg.PollMin)
	defer timer.Stop()
	for {
		select {
		case <-finished:
			return
		case <-timer.C:
			// Again and again: a lane whose last settle took long is kept later.
			giveBack(0)
			timer.Reset(r.cfg.keep())
		}
	}
}

// claim takes up to n lanes that are free and have work, each when it is asked for the
// next, so that work on the first need not wait for the last. A stop, which ends ctx,
// does not cut a claim off: one that takes effect all the same would keep its
// lane from others until the lease ends.
func (r *Relay) claim(ctx, work context.Context, n int) iter.Seq[lease] {
	return func(yield func(lease) bool) { r.claimEach(ctx, work, n, yield) }
}

func (r *Relay) claimEach(ctx, work context.Context, n int, yield func(lease) bool) {
	r.look(ctx)
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Lease)
	defer cancel()
	work, cancelWork := context.WithTimeout(work, r.cfg.Lease)
	defer cancelWork()
	began, polled := time.Now(), r.lanes.moment()
	// The lanes that are ours come back too; and twice as many as we need, since
	// other relays may be after the same ones.
	lanes, floor, err := r.poll(ctx, 2*n+r.lanes.held())
	if err != nil {
		r.erred(ctx, "poll", err)
		return
	}
	r.polling = time.Since(began)
	r.observe(Polled{Lanes: len(lanes), Took: r.polling})
	// Relays that polled at the same moment got the same lanes: shuffle, so
	// that they do not all try them in the same order.
	rand.Shuffle(len(lanes), func(i, j int) { lanes[i], lanes[j] = lanes[j], lanes[i] })
	claimed := 0
	for _, candidate := range lanes {
		if claimed == n || ctx.Err() != nil {
			return
		}
		l, kept, ok := r.lanes.take(candidate.Lane, polled, r.cfg.Lease/2)
		if !ok {
			continue
		}
		if kept && l.Epoch != candidate.Epoch {
			// Another owner had it since, or it is another server, which has lost our claim:
			// what was known of the one before does not count.
			r.observe(LeaseLost{Lane: l.Lane, Epoch: l.Epoch})
			r.forget()
			kept, floor = false, 0
		}
		if !kept {
			if l, ok, err = r.claimOne(work, candidate.Lane); err != nil || !ok {
				r.lanes.end(candidate.Lane)
				if err != nil {
					// A claim that took effect all the same is taken again: the lane is
					// ours by the table and not among those we work on.
					r.erred(work, "claim", err)
					return
				}
				continue
			}
			r.observe(Claimed{Lane: l.Lane, Epoch: l.Epoch})
		}
		l.floor, l.due = floor, candidate.Due
		claimed++
		if !yield(l) {
			return
		}
	}
}

func (r *Relay) claimOne(ctx context.Context, lane int) (l lease, ok bool, err error) {
	began := time.Now()
	epoch, ok, err := r.store.Claim(ctx, r.db, lane, r.cfg.Owner, r.cfg.Lease)
	return lease{
		Lease: dialect.Lease{Lane: lane, Owner: r.cfg.Owner, Epoch: epoch},
		since: began, until: began.Add(r.cfg.Lease),
	}, ok, err
}

// giveBack releases lanes that were kept.
func (r *Relay) giveBack(work context.Context, held []lease) {
	ctx, cancel := context.WithTimeout(work, r.cfg.Lease)
	defer cancel()
	for i := range held {
		r.release(ctx, &held[i])
		r.lanes.end(held[i].Lane)
	}
	if r.lanes.missed() {
		r.Wake()
	}
}

// release ends a lease. One that cannot be ended now ends by itself, or is claimed
// again.
func (r *Relay) release(ctx context.Context, l *lease) {
	if err := r.store.Release(ctx, r.db, l.Lease); err != nil {
		r.erred(ctx, "release", err)
	}
	r.observe(Released{Lane: l.Lane, Epoch: l.Epoch, Published: l.published, Took: time.Since(l.since)})
}

// empty tells whether there is nothing to do for any relay.
func (r *Relay) empty(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Lease)
	defer cancel()
	// What another relay has in hand is ready or due until it is settled, and a lane that
	// it only keeps has nothing to wait for.
	work, _, err := r.store.Pending(ctx, r.db, r.cfg.Owner)
	if err != nil {
		r.erred(ctx, "poll", err)
		return false
	}
	return !work
}

// forget has the floor forgotten by the polls, and kept lanes given back: the next server
// may be another one.
func (r *Relay) forget() {
	r.shaken.Store(true)
	r.lanes.shake()
}

// erred observes a failed operation and replaces connections that a failover
// has made read-only.
func (r *Relay) erred(ctx context.Context, op string, err error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return // by a stop or a lost lease, which are observed as such; a timeout is another error
	}
	r.forget()
	r.observe(Erred{Op: op, Err: err})
	r.replaceReadOnly(ctx, err)
}

func (r *Relay) replaceReadOnly(ctx context.Context, err error) {
	if r.classify(err) != dialect.ReadOnly {
		return
	}
	// The pool cannot be told which connection it was: drop the idle ones. Each
	// that is taken here is closed by ErrBadConn, so the loop ends.
	for range r.db.Stats().Idle {
		conn, err := r.db.Conn(ctx)
		if err != nil {
			return
		}
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		_ = conn.Close()
	}
}

// listen wakes the relay by the engine's signals, and tries again when the
// connection is lost: polling carries on meanwhile.
func (r *Relay) listen(ctx context.Context) {
	waker, ok := r.store.(dialect.Waker)
	if !ok {
		return
	}
	for n := 1; ctx.Err() == nil; n++ {
		began := time.Now()
		err := waker.Listen(ctx, r.db, r.Wake)
		if ctx.Err() != nil {
			return
		}
		r.observe(Erred{Op: "listen", Err: err})
		if time.Since(began) > r.cfg.PollMax {
			n = 1
		}
		sleep(ctx, jitter(ceiling(n, r.cfg.PollMin, 30*time.Second)))
	}
}

// purge removes done messages past the retention; of all relays one does it in
// each period.
func (r *Relay) purge(ctx context.Context) {
	retention := r.cfg.Retention
	if retention == NoRetention {
		// Nothing published is kept, but discarded messages are.
		retention = 24 * time.Hour
	}
	for sleep(ctx, jitter(r.cfg.PurgeEvery)) {
		mine, err := r.store.ClaimPurge(ctx, r.db, r.cfg.PurgeEvery/2)
		if err != nil {
			r.erred(ctx, "claim purge", err)
			continue
		}
		if !mine {
			continue
		}
		began, total := time.Now(), 0
		dropped, age := r.keepPartitions(ctx, retention)
		// Small batches, and an end before the next relay's turn.
		for ctx.Err() == nil && time.Since(began) < r.cfg.PurgeEvery/2 {
			n, err := r.store.Purge(ctx, r.db, age, purgeBatch)
			total += n
			if err != nil {
				r.erred(ctx, "purge", err)
				break
			}
			if n < purgeBatch {
				break
			}
		}
		r.observe(Purged{Messages: total, Partitions: dropped, Took: time.Since(began)})
	}
}

// keepPartitions makes and drops the partitions of done, if it has some, and returns how
// many it dropped and from which age on messages are left to be deleted: those of a
// partition go together, a day after the first of them is old enough. What is older
// stands where nothing could be dropped.
func (r *Relay) keepPartitions(ctx context.Context, retention time.Duration) (dropped int, age time.Duration) {
	p, ok := r.store.(dialect.Partitioner)
	if !ok {
		return 0, retention
	}
	kept, err := p.KeepPartitions(ctx, r.db, retention)
	if err != nil {
		r.erred(ctx, "partition", err)
	}
	if kept.Partitioned {
		retention += partitionLength + time.Hour
	}
	return kept.Dropped, retention
}

// partitionLength is how long a partition of done is filled.
const partitionLength = 24 * time.Hour

const purgeBatch = 1000

// sleep waits and reports whether the context is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
