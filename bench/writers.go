package bench

import (
	"context"
	"database/sql"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/relay"
)

// business runs the business change, and whatever insert adds to it, in one
// transaction.
func (r *run) business(ctx context.Context, db *sql.DB, t tables, number int, insert inserter, messages []outbox.Message) error {
	query := t.expand(r.base.Business)
	return r.inTx(ctx, db, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, query, number, 1); err != nil || insert == nil {
			return err
		}
		return insert(ctx, tx, messages)
	})
}

// withCommit is business with what is enqueued sent together with the commit.
func (r *run) withCommit(ctx context.Context, db *sql.DB, t tables, number int, o *outbox.Outbox, messages []outbox.Message) error {
	return r.base.WithCommit(ctx, db, t.expand(r.base.Business), []any{number, 1}, func(tx outbox.Tx) error {
		_, err := o.Enqueue(ctx, tx, messages...)
		return err
	})
}

// way is one way to do a business transaction, with so many messages.
type way struct {
	name     string
	messages int
	do       func(ctx context.Context, i int, messages []outbox.Message) error
}

// businessWay is business as a way.
func (r *run) businessWay(name string, db *sql.DB, t tables, insert inserter, messages int) way {
	if insert == nil {
		messages = 0
	}
	return way{name, messages, func(ctx context.Context, i int, messages []outbox.Message) error {
		return r.business(ctx, db, t, i, insert, messages)
	}}
}

// slice has writers do n transactions between them and returns how long that took.
func (r *run) slice(ctx context.Context, w way, src *source, writers, n int) (time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	batches := make([][]outbox.Message, n)
	if w.messages > 0 { // made before the clock runs
		for i := range batches {
			var err error
			if batches[i], err = src.next(w.messages); err != nil {
				return 0, err
			}
		}
	}
	var next atomic.Int64 // whoever is free takes it, so that nobody waits long for the last
	write := func() {
		for ctx.Err() == nil {
			i := int(next.Add(1)) - 1
			if i >= n {
				return
			}
			if err := w.do(ctx, i, batches[i]); err != nil {
				cancel(err)
				return
			}
		}
	}
	var group sync.WaitGroup
	began := time.Now()
	for range writers - 1 {
		group.Go(write)
	}
	write() // here, so that one writer's transaction does not start a goroutine
	group.Wait()
	return time.Since(began), context.Cause(ctx)
}

// sliceOf is how many transactions of so many messages a writer does before it is the
// next way's turn. One writer does one. Several need more: they begin and end together,
// which is not how they commit beside each other. Slices of large transactions take
// about as long.
func (s Scale) sliceOf(writers, messages int) int {
	if writers == 1 {
		return 1
	}
	return max(s.slice/(1+messages/25), 1)
}

// warm is how many transactions of each way a writer does before they count.
const warm = 20

// sliced takes rounds of the ways in slices of a few transactions, so that whatever
// slows the machine down for a while slows all ways down alike. In each turn every way
// has a slice, all writers at once, in an order by chance: no way always comes behind
// the same other. A round is as long as the scale says, in time and in turns. Turns before the first, which do
// not count, open connections and prepare statements. What is returned is how
// long a writer's transaction took, in microseconds, by way and round.
func (r *run) sliced(ctx context.Context, what string, writers, messages int, ways ...way) ([][]float64, error) {
	src := r.source(0, small)
	order := rand.New(rand.NewPCG(r.opts.Seed, 0))
	each := r.scale.sliceOf(writers, messages)
	turn := func(total []time.Duration) error {
		for _, i := range order.Perm(len(ways)) {
			took, err := r.slice(ctx, ways[i], src, writers, writers*each)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", what, ways[i].name, err)
			}
			total[i] += took
		}
		return nil
	}
	for range max(warm/each, 1) {
		if err := turn(make([]time.Duration, len(ways))); err != nil {
			return nil, err
		}
	}
	samples := make([][]float64, len(ways))
	for round := range r.opts.Rounds {
		r.progress("%s: by turns, round %d of %d", what, round+1, r.opts.Rounds)
		total := make([]time.Duration, len(ways))
		turns := 0
		for began := time.Now(); turns < r.scale.turns || time.Since(began) < r.scale.round; turns++ {
			if err := turn(total); err != nil {
				return nil, err
			}
		}
		for i := range ways {
			samples[i] = append(samples[i], total[i].Seconds()*1e6/float64(turns*each))
		}
	}
	return samples, nil
}

func enqueueCost(ctx context.Context, r *run) error {
	db, err := r.pool(ctx, 0)
	if err != nil {
		return err
	}
	o, err := r.outbox(ctx)
	if err != nil {
		return err
	}
	t, err := r.loopTables(ctx)
	if err != nil {
		return err
	}
	if err := r.statements(ctx, db, o, t); err != nil {
		return err
	}
	for _, writers := range []int{1, 8} {
		for _, messages := range []int{1, 10, 100} {
			what := fmt.Sprintf("messages %d, writers %d", messages, writers)
			if err := r.tidy(ctx, append(tablesOf(o), t.loop, t.business)...); err != nil {
				return err
			}
			got, err := r.sliced(ctx, what, writers, messages,
				r.businessWay("Enqueue", db, t, enqueueIn(o), messages),
				r.businessWay("INSERT", db, t, r.insertIn(t), messages),
				r.businessWay("bare transaction", db, t, nil, messages))
			if err != nil {
				return err
			}
			insert := row{what: what, unit: "µs/transaction", less: true, ours: got[0], against: "hand-written INSERT", base: got[1]}
			bare := row{what: what, unit: "µs/transaction", less: true, ours: got[0], against: "transaction without messages", base: got[2]}
			if messages == 1 && writers == 1 {
				insert.goal, insert.fallback = "enqueue/insert", Goal{Text: "≤ 1.05 × the INSERT", RatioMost: 1.05}
				bare.goal, bare.fallback = "enqueue/bare", Goal{Text: "≤ 1.3 × the bare transaction", RatioMost: 1.3}
			}
			r.emit(insert)
			r.emit(bare)
		}
	}
	if r.base.WithCommit == nil {
		return nil
	}
	return r.enqueueWithCommit(ctx, db, o, t)
}

// enqueueWithCommit compares a message that travels with the commit with the bare
// transaction.
func (r *run) enqueueWithCommit(ctx context.Context, db *sql.DB, o *outbox.Outbox, t tables) error {
	if err := r.tidy(ctx, append(tablesOf(o), t.business)...); err != nil {
		return err
	}
	const what = "messages 1, writers 1, sent with the commit"
	// The bare side goes the same way, with nothing to send.
	of := func(name string, messages int) way {
		return way{name, messages, func(ctx context.Context, i int, messages []outbox.Message) error {
			return r.withCommit(ctx, db, t, i, o, messages)
		}}
	}
	got, err := r.sliced(ctx, what, 1, 1, of("with the commit", 1), of("bare transaction", 0))
	if err != nil {
		return err
	}
	for _, samples := range got { // a rate
		for i, micros := range samples {
			samples[i] = 1e6 / micros
		}
	}
	r.emit(row{
		what: what, unit: "transactions/s", ours: got[0], against: "transaction without messages", base: got[1],
		goal: "enqueue/commit", fallback: Goal{Text: "≥ 0.9 × the bare transaction", RatioLeast: 0.9},
	})
	return nil
}

// statements counts what a transaction asks of the driver.
func (r *run) statements(ctx context.Context, db *sql.DB, o *outbox.Outbox, t tables) error {
	for _, messages := range []int{1, 100} {
		asked := func(insert inserter) (float64, error) {
			var c counter
			through := tap(db, &c)
			defer through.Close() //nolint:errcheck // its connections only
			const each = 3
			w := r.businessWay("", through, t, insert, messages)
			if _, err := r.slice(ctx, w, r.source(0, small), 1, each); err != nil {
				return 0, err
			}
			return float64(c.asked.Load()) / each, nil
		}
		var figures [3]float64
		for i, insert := range []inserter{enqueueIn(o), r.insertIn(t), nil} {
			var err error
			if figures[i], err = asked(insert); err != nil {
				return err
			}
		}
		w := row{
			what: fmt.Sprintf("messages %d: statements beside the business change", messages), unit: "a transaction", less: true,
			ours: []float64{figures[0] - figures[2]}, against: "hand-written INSERT", base: []float64{figures[1] - figures[2]},
		}
		if messages == 1 {
			w.goal, w.fallback = "enqueue/statements", Goal{Text: "1", Most: 1}
		}
		r.emit(w)
	}
	return nil
}

// pace has writers commit one message a transaction at a steady rate for a while,
// and returns when each commit returned.
func (r *run) pace(ctx context.Context, t tables, insert inserter, wake func(), rate int, during time.Duration) (committed []time.Time, err error) {
	db, err := r.pool(ctx, 0)
	if err != nil {
		return nil, err
	}
	n := max(int(float64(rate)*during.Seconds()), 1)
	writers := 16
	if r.base.OneWriter {
		writers = 2
	}
	messages, err := r.source(0, small).next(n)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		messages[i].Payload = binary.BigEndian.AppendUint64(nil, uint64(i))
		messages[i].Payload = append(messages[i].Payload, make([]byte, small-8)...)
	}
	committed = make([]time.Time, n)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var group sync.WaitGroup
	began := time.Now()
	for range writers {
		group.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				time.Sleep(time.Until(began.Add(time.Duration(i) * time.Second / time.Duration(rate))))
				if err := r.business(ctx, db, t, i, insert, messages[i:i+1]); err != nil {
					cancel(err)
					return
				}
				committed[i] = time.Now()
				if wake != nil {
					wake()
				}
			}
		})
	}
	group.Wait()
	if took := time.Since(began); took > during*11/10 {
		r.mu.Lock()
		defer r.mu.Unlock()
		if least, ok := r.reached[rate]; !ok || perSecond(n, took) < least {
			r.reached[rate] = perSecond(n, took)
		}
	}
	return committed, context.Cause(ctx)
}

// arrivals notes when each of n messages was published.
type arrivals struct {
	at   []atomic.Int64 // since began
	left atomic.Int64
	done chan struct{}
	from time.Time
}

func newArrivals(n int) *arrivals {
	a := &arrivals{at: make([]atomic.Int64, n), done: make(chan struct{}), from: time.Now()}
	a.left.Store(int64(n))
	return a
}

func (a *arrivals) note(payload []byte) {
	if len(payload) < 8 {
		return
	}
	i := binary.BigEndian.Uint64(payload)
	if i < uint64(len(a.at)) && a.at[i].CompareAndSwap(0, int64(time.Since(a.from))) && a.left.Add(-1) == 0 {
		close(a.done)
	}
}

// wait waits for all and returns the median and the 99th percentile of the times
// since committed, in milliseconds. The first tenth, while things warm up, is left
// out.
func (a *arrivals) wait(ctx context.Context, committed []time.Time) ([]float64, error) {
	select {
	case <-a.done:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(stalled):
		return nil, fmt.Errorf("%d messages were not published after %v", a.left.Load(), stalled)
	}
	var ms []float64
	for i := len(committed) / 10; i < len(committed); i++ {
		// A relay may be faster than the answer to the commit.
		ms = append(ms, max(0, a.from.Add(time.Duration(a.at[i].Load())).Sub(committed[i]).Seconds()*1e3))
	}
	return []float64{percentile(ms, 50), percentile(ms, 99)}, nil
}

func latency(ctx context.Context, r *run) error {
	for _, rate := range r.scale.rates {
		n := max(int(float64(rate)*r.scale.paced.Seconds()), 1)
		ours := func(woken bool) func(context.Context) ([]float64, error) {
			return func(ctx context.Context) ([]float64, error) { return r.relayLatency(ctx, rate, n, woken) }
		}
		loop := func(ctx context.Context) ([]float64, error) { return r.loopLatency(ctx, rate, n) }
		what := fmt.Sprintf("%d/s", rate)
		got, err := r.rounds(ctx, r.opts.Rounds, what, side{"wake-up", ours(true)}, side{"polling", ours(false)}, side{"loop", loop})
		if err != nil {
			return err
		}
		if least, ok := r.reached[rate]; ok {
			r.note(fmt.Sprintf("latency: the writers could not keep up with %d/s: they reached %s/s or more", rate, number(least)))
		}
		chart := Chart{Title: "Commit to publish", X: "messages/s", Y: "ms", Log: true, LogY: true}
		for i, mode := range []string{"wake-up", "polling"} {
			for j, p := range []string{"p50", "p99"} {
				w := row{
					what: fmt.Sprintf("%s, %s, %s", what, mode, p), unit: "ms", less: true,
					ours: got[i][j], against: "loop every 100 ms", base: got[2][j],
				}
				switch {
				case p == "p50" && mode == "wake-up" && rate == 500:
					w.goal, w.fallback = "latency/wake-up", Goal{Text: "≤ 3 ms", Most: 3}
				case p == "p50" && mode == "polling":
					w.goal, w.fallback = "latency/polling", Goal{Text: "≤ the interval of 1 s", Most: 1000}
				}
				r.emit(w)
				r.plot(chart, mode+" "+p, float64(rate), got[i][j])
			}
		}
		r.plot(chart, "loop p50", float64(rate), got[2][0])
		r.plot(chart, "loop p99", float64(rate), got[2][1])
	}
	return nil
}

func (r *run) relayLatency(ctx context.Context, rate, n int, woken bool) ([]float64, error) {
	o, err := r.outbox(ctx)
	if err != nil {
		return nil, err
	}
	t, err := r.loopTables(ctx)
	if err != nil {
		return nil, err
	}
	a := newArrivals(n)
	publisher := ordered(func(messages []relay.Message) {
		for i := range messages {
			a.note(messages[i].Payload)
		}
	})
	stop, err := r.start(ctx, fleet{outbox: o, relays: 1, publisher: publisher, shared: woken})
	if err != nil {
		return nil, err
	}
	var wake func()
	if woken {
		wake = o.Wake
	}
	committed, err := r.pace(ctx, t, enqueueIn(o), wake, rate, r.scale.paced)
	var figures []float64
	if err == nil {
		figures, err = a.wait(ctx, committed)
	}
	if met := stop(); met != nil {
		r.note("a relay met an error and went on: " + met.Error())
	}
	if err != nil {
		return nil, err
	}
	return figures, r.drop(ctx, append(tablesOf(o), t.loop, t.business)...)
}

func (r *run) loopLatency(ctx context.Context, rate, n int) ([]float64, error) {
	t, err := r.loopTables(ctx)
	if err != nil {
		return nil, err
	}
	db, err := r.pool(ctx, 1)
	if err != nil {
		return nil, err
	}
	a := newArrivals(n)
	const batch = 500
	l := r.loop(db, t, batch, r.base.Update)
	l.publish = a.note
	following, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- l.follow(following, batch) }()
	committed, err := r.pace(ctx, t, r.insertIn(t), nil, rate, r.scale.paced)
	var figures []float64
	if err == nil {
		figures, err = a.wait(ctx, committed)
	}
	cancel()
	if err := firstOf(err, <-ended); err != nil {
		return nil, err
	}
	return figures, r.drop(ctx, t.loop, t.business)
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// ordered is a publisher that accepts everything and keeps order.
type ordered func(messages []relay.Message)

// Publish accepts all messages.
func (o ordered) Publish(_ context.Context, messages []relay.Message) []error {
	o(messages)
	return nil
}

// KeepsOrder returns true: nothing ever fails.
func (ordered) KeepsOrder() bool { return true }

const busyWriters = 8

// enqueueing has writers commit one message a transaction, as fast as they can,
// until stop is called, which returns the latencies in milliseconds.
func (r *run) enqueueing(ctx context.Context, t tables, insert inserter) (stop func() ([]float64, error), err error) {
	db, err := r.pool(ctx, 0)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var ended atomic.Bool
	var group sync.WaitGroup
	took := make([][]float64, busyWriters)
	for w := range busyWriters {
		src := r.source(uint64(100+w), small)
		group.Go(func() {
			// One at least, however short the time is.
			for i := 0; (i == 0 || !ended.Load()) && ctx.Err() == nil; i++ {
				messages, err := src.next(1)
				began := time.Now()
				if err == nil {
					err = r.business(ctx, db, t, i, insert, messages)
				}
				if err != nil {
					cancel(err)
					return
				}
				took[w] = append(took[w], time.Since(began).Seconds()*1e3)
			}
		})
	}
	return func() ([]float64, error) {
		ended.Store(true)
		group.Wait()
		err := context.Cause(ctx)
		cancel(nil)
		var all []float64
		for _, t := range took {
			all = append(all, t...)
		}
		return all, err
	}, nil
}

func busy(ctx context.Context, r *run) error {
	n := r.scale.drain
	// Each returns the writers' 99th percentile and what was drained a second.
	ours := func(drained bool) func(context.Context) ([]float64, error) {
		return func(ctx context.Context) ([]float64, error) {
			o, err := r.filled(ctx, n, small)
			if err != nil {
				return nil, err
			}
			t, err := r.loopTables(ctx)
			if err != nil {
				return nil, err
			}
			rate, ms, err := r.beside(ctx, t, enqueueIn(o), n, drained, func() (time.Duration, error) {
				return r.drain(ctx, n, fleet{outbox: o, relays: 1, config: relay.Config{Batch: 1000, Retention: relay.NoRetention}})
			})
			if err != nil {
				return nil, err
			}
			return []float64{ms, rate}, r.drop(ctx, append(tablesOf(o), t.loop, t.business)...)
		}
	}
	loop := func(drained bool) func(context.Context) ([]float64, error) {
		return func(ctx context.Context) ([]float64, error) {
			t, err := r.filledLoop(ctx, n, small)
			if err != nil {
				return nil, err
			}
			db, err := r.pool(ctx, 1)
			if err != nil {
				return nil, err
			}
			rate, ms, err := r.beside(ctx, t, r.insertIn(t), n, drained, func() (time.Duration, error) {
				return r.loop(db, t, 1000, r.base.Update).drain(ctx, n, 1)
			})
			if err != nil {
				return nil, err
			}
			return []float64{ms, rate}, r.drop(ctx, t.loop, t.business)
		}
	}
	what := fmt.Sprintf("writers %d", busyWriters)
	got, err := r.rounds(ctx, r.opts.Rounds, what,
		side{"with a relay", ours(true)}, side{"without", ours(false)}, side{"with the loop", loop(true)}, side{"without the loop", loop(false)})
	if err != nil {
		return err
	}
	r.emit(row{what: what + ": drained", unit: "messages/s", ours: got[0][1], against: "loop with UPDATE", base: got[2][1]})
	r.emit(row{what: what + ": p99 of a writer's transaction with a relay", unit: "ms", less: true, ours: got[0][0], against: "without a relay", base: got[1][0]})
	r.emit(row{what: what + ": p99 of a writer's transaction with a relay", unit: "ms", less: true, ours: got[0][0], against: "with the loop", base: got[2][0]})
	return nil
}

// beside runs drain beside writers, or the writers alone for as long as polls are
// measured.
func (r *run) beside(ctx context.Context, t tables, insert inserter, n int, drained bool, drain func() (time.Duration, error)) (rate, p99 float64, err error) {
	stop, err := r.enqueueing(ctx, t, insert)
	if err != nil {
		return 0, 0, err
	}
	if drained {
		var took time.Duration
		took, err = drain()
		rate = perSecond(n, took)
	} else {
		select {
		case <-time.After(r.scale.polls):
		case <-ctx.Done():
		}
	}
	ms, stopErr := stop()
	return rate, percentile(ms, 99), firstOf(err, stopErr)
}
