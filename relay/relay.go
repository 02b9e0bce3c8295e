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
	floors      floors      // the dispatcher's
	shaken      atomic.Bool // an operation on the database failed
	suspects    suspects
	arrivals    arrivals

	mu    sync.Mutex
	ran   bool
	lanes map[int]bool // those this relay is working on
	rests map[int]rest // those left alone after a turn that failed
}

// rest is how long a lane is left alone after failures in a row.
type rest struct {
	failures int
	until    time.Time
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
		woken: make(chan struct{}, 1),
		lanes: make(map[int]bool), rests: make(map[int]rest),
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
	r.mu.Lock()
	ran := r.ran
	r.ran = true
	r.mu.Unlock()
	if ran {
		return fmt.Errorf("relay: %w: Run was called before: make another relay", outbox.ErrInvalid)
	}
	if err := r.outbox.Check(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // stopped before it began is stopped
		}
		return fmt.Errorf("relay: %w", err)
	}
	defer r.outbox.OnWake(r.Wake)()

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

// dispatch hands free lanes with work to idle workers.
func (r *Relay) dispatch(ctx, work, publish context.Context) {
	var turns sync.WaitGroup
	defer turns.Wait()
	busy := 0
	finished := make(chan struct{}, r.cfg.Workers)
	pause := r.cfg.PollMin
	for {
		// Take note of workers that are idle again; wait for one if there is none.
		for busy > 0 {
			if busy == r.cfg.Workers {
				<-finished // a stop ends turns soon
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
					defer func() { finished <- struct{}{} }()
					defer r.forget(lease.Lane)
					r.turn(ctx, work, publish, lease, probe)
				})
			}
			if probe && started == 0 {
				r.down.forgo("")
			}
		}
		switch {
		case started > 0:
			pause = r.cfg.PollMin
			continue
		case wait > 0:
		case busy == 0 && r.cfg.UntilEmpty && r.empty(ctx):
			return
		default:
			wait = jitter(pause)
			pause = min(pause*2, r.cfg.PollMax)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-r.woken:
			pause = r.cfg.PollMin
		case <-finished:
			busy--
			pause = r.cfg.PollMin
		}
		timer.Stop()
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
	began := time.Now()
	// The lanes we work on are ours and come back too; and twice as many as we
	// need, since other relays may be after the same ones.
	lanes, floor, err := r.poll(ctx, 2*n+r.working())
	if err != nil {
		r.erred(ctx, "poll", err)
		return
	}
	r.observe(Polled{Lanes: len(lanes), Took: time.Since(began)})
	// Relays that polled at the same moment got the same lanes: shuffle, so
	// that they do not all try them in the same order.
	rand.Shuffle(len(lanes), func(i, j int) { lanes[i], lanes[j] = lanes[j], lanes[i] })
	claimed := 0
	for _, lane := range lanes {
		if claimed == n || ctx.Err() != nil {
			return
		}
		if !r.remember(lane) {
			continue
		}
		began := time.Now()
		epoch, ok, err := r.store.Claim(work, r.db, lane, r.cfg.Owner, r.cfg.Lease)
		if err != nil || !ok {
			r.forget(lane)
			if err != nil {
				// A claim that took effect all the same is taken again: the lane is
				// ours by the table and not among those we work on.
				r.erred(work, "claim", err)
				return
			}
			continue
		}
		r.observe(Claimed{Lane: lane, Epoch: epoch})
		claimed++
		if !yield(lease{
			Lease: dialect.Lease{Lane: lane, Owner: r.cfg.Owner, Epoch: epoch},
			until: began.Add(r.cfg.Lease), floor: floor,
		}) {
			return
		}
	}
}

// lease is a claimed lane; until is when it ends unless it is renewed, by this
// process's monotonic clock, counted from before the claim. Ready messages are
// looked for above floor.
type lease struct {
	dialect.Lease
	until time.Time
	floor int64
}

func (r *Relay) working() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.lanes)
}

// remember marks the lane as being worked on; false if it was, or rests.
func (r *Relay) remember(lane int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lanes[lane] || time.Now().Before(r.rests[lane].until) {
		return false
	}
	r.lanes[lane] = true
	return true
}

func (r *Relay) forget(lane int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.lanes, lane)
}

// restLane leaves a lane alone for a pause that grows up to most with the turns in
// a row that came to nothing; 0 forgets them. Otherwise a lane that cannot be read,
// or whose work cannot be done yet, would be claimed again at once, for ever.
func (r *Relay) restLane(lane int, most time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if most == 0 {
		delete(r.rests, lane)
		return
	}
	n := r.rests[lane].failures + 1
	r.rests[lane] = rest{failures: n, until: time.Now().Add(jitter(ceiling(n, r.cfg.PollMin, most)))}
}

// restMost is the longest rest of a lane that failed.
const restMost = 5 * time.Second

// empty tells whether there is nothing to do for any relay.
func (r *Relay) empty(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Lease)
	defer cancel()
	work, held, err := r.store.Pending(ctx, r.db, r.cfg.Owner)
	if err != nil {
		r.erred(ctx, "poll", err)
		return false
	}
	return !work && !held
}

// erred observes a failed operation and replaces connections that a failover
// has made read-only.
func (r *Relay) erred(ctx context.Context, op string, err error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return // by a stop or a lost lease, which are observed as such; a timeout is another error
	}
	r.shaken.Store(true)
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
