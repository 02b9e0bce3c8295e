package bench

import (
	"context"
	"fmt"
	"strings"

	"github.com/outbox-suite/outbox/relay"
)

// Measure is one thing that is measured.
type Measure struct {
	// Name is what Options.Match selects by.
	Name string
	// About says in one sentence what is measured, and against what.
	About string
	// Target is what is aimed for, where something is.
	Target string

	run func(ctx context.Context, r *run) error
}

// Measures returns all measures, in the order in which they are taken.
func Measures() []Measure {
	return []Measure{
		{
			Name:   "enqueue",
			About:  "a business transaction with 1, 10 and 100 messages, by 1 and 8 writers, against hand-written INSERTs of the same columns and against the transaction without messages",
			Target: "one message: one statement, within 5% of the hand-written INSERT, at most 30% above the bare transaction",
			run:    enqueueCost,
		},
		{
			Name:   "drain",
			About:  "messages a second from a backlog into nowhere, at four batch sizes, two sizes of payload, with and without retention, one relay against one hand-written loop",
			Target: "batch 1000, 200 B: at least 2 times the loop with retention 0, 1.3 times with 24 h",
			run:    drainRates,
		},
		{
			Name:   "cpu",
			About:  "the processor time that 1,000 messages of a drain cost: the machine's, this process's, and by subtraction the server's and the kernel's, how busy the processors were, and the disk's flushes, where the system tells; against both loops",
			Target: "",
			run:    processorTime,
		},
		{
			Name:   "workers",
			About:  "the drain rate of one relay with 1, 2, 4 and 8 workers, against as many hand-written loops beside each other, which keep no order",
			Target: "",
			run:    workerRates,
		},
		{
			Name:   "relays",
			About:  "the drain rate of 1, 2 and 4 relays of 4 workers, in one process with pools of their own and each in a process, all of them running before the clock does, against one relay",
			Target: "never below one relay",
			run:    relayRates,
		},
		{
			Name:   "slow-publisher",
			About:  "messages a second over 1,000 keys when publishing a message takes 1 ms, by one relay and by two, against the loop, which publishes one after the other; and two relays against one when it takes 50 ms, so that neither the database nor the processors are the limit",
			Target: "1 ms: one relay at least 20,000/s, two at least 30,000/s; 50 ms: two at least 1.5 times one; in order",
			run:    slowPublisher,
		},
		{
			Name:   "growth",
			About:  "the drain rate from backlogs of 10,000 messages up to millions",
			Target: "the rate stays within 10% of that of the smallest",
			run:    growth,
		},
		{
			Name:   "idle-poll",
			About:  "how long a poll takes that finds nothing, with many done messages, against empty tables and against the loop's",
			Target: "at most 1.2 times the empty one",
			run:    idlePoll,
		},
		{
			Name:   "latency",
			About:  "the time from the commit to the publish at a steady rate, with wake-ups within the process and with polling, against the loop with a pause of 100 ms",
			Target: "median with wake-ups at 500/s at most 3 ms, with polling at most the poll interval of 1 s",
			run:    latency,
		},
		{
			Name:   "blocked-key",
			About:  "the drain rate of all other keys while one blocked key holds back a great many messages, against the same without",
			Target: "at least 95%",
			run:    blockedKey,
		},
		{
			Name:   "old-snapshot",
			About:  "the drain rate in cycles of fill and drain while a transaction keeps an old snapshot open, against the same without, and the loop's likewise",
			Target: "at least 80% of without",
			run:    oldSnapshot,
		},
		{
			Name:   "busy",
			About:  "the drain rate while 8 writers enqueue, and the writers' 99th percentile with and without a relay, against the loop",
			Target: "",
			run:    busy,
		},
		{
			Name:   "memory",
			About:  "allocations and bytes allocated for each message in a process that drains, driver included and nothing subtracted, and the heap in use at the end of a long drain against its beginning",
			Target: "at most 12 allocations a message; the heap does not grow",
			run:    memory,
		},
		{
			Name:   "round-trips",
			About:  "statements, begins and commits that the driver is asked for, for each message drained",
			Target: "",
			run:    roundTrips,
		},
		{
			Name:   "rows-locked",
			About:  "rows that are locked at the moment before a batch's commit, one message of it having failed, against a turn of the loop",
			Target: "",
			run:    rowsLocked,
		},
		{
			Name:   "log-bytes",
			About:  "bytes that the server writes to its log for each message, when it is enqueued and when it is drained",
			Target: "",
			run:    logBytes,
		},
		{
			Name:   "idle-cpu",
			About:  "processor time of an idle relay, for each minute, against the loop with a pause of 100 ms",
			Target: "",
			run:    idleCPU,
		},
	}
}

// forms are the hand-written loop's ways to mark what is published.
func (r *run) forms() []struct {
	name string
	mark func([]int64) (string, []any)
} {
	return []struct {
		name string
		mark func([]int64) (string, []any)
	}{{"loop with UPDATE", r.base.Update}, {"loop with DELETE", r.base.Delete}}
}

func retention(name string) relay.Config {
	if name == "0" {
		return relay.Config{Retention: relay.NoRetention}
	}
	return relay.Config{}
}

func bytesOf(size int) string {
	if size >= 1024 {
		return fmt.Sprintf("%d KiB", size/1024)
	}
	return fmt.Sprintf("%d B", size)
}

func drainRates(ctx context.Context, r *run) error {
	for _, size := range []int{small, large} {
		for _, batch := range []int{1, 10, 100, 1000} {
			n := r.scale.batch(batch, size)
			var sides []side
			kept := []string{"0", "24h"}
			for _, k := range kept {
				cfg := retention(k)
				cfg.Batch = batch
				sides = append(sides, side{"retention " + k, r.drainRate(n, size, fleet{relays: 1, config: cfg})})
			}
			forms := r.forms()
			for _, f := range forms {
				sides = append(sides, side{f.name, r.loopRate(n, size, batch, 1, f.mark)})
			}
			what := fmt.Sprintf("batch %d, %s", batch, bytesOf(size))
			got, err := r.rounds(ctx, r.opts.Rounds, what, sides...)
			if err != nil {
				return err
			}
			for i, k := range kept {
				for j, f := range forms {
					w := row{
						what: fmt.Sprintf("%s, retention %s", what, k), unit: "messages/s",
						ours: got[i][0], against: f.name, base: got[len(kept)+j][0],
					}
					if batch == 1000 && size == small {
						// drain/update/0, drain/delete/24h, …
						w.goal = fmt.Sprintf("drain/%s/%s", strings.ToLower(strings.Fields(f.name)[2]), k)
						switch w.goal {
						case "drain/update/0":
							w.fallback = Goal{Text: "≥ 2 × the loop", RatioLeast: 2}
						case "drain/update/24h":
							w.fallback = Goal{Text: "≥ 1.3 × the loop", RatioLeast: 1.3}
						}
					}
					r.emit(w)
				}
			}
			if size == small {
				chart := Chart{Title: "Drain by batch size, 200 B", X: "batch", Y: "messages/s", Log: true}
				r.plot(chart, "relay, retention 0", float64(batch), got[0][0])
				r.plot(chart, "relay, retention 24 h", float64(batch), got[1][0])
				r.plot(chart, "hand-written loop", float64(batch), got[2][0])
			}
		}
	}
	return nil
}

func workerRates(ctx context.Context, r *run) error {
	n := r.scale.batch(1000, small)
	counts := []int{1, 2, 4, 8}
	var sides []side
	for _, workers := range counts {
		cfg := relay.Config{Batch: 1000, Retention: relay.NoRetention, Workers: workers}
		sides = append(sides,
			side{fmt.Sprintf("%d workers", workers), r.drainRate(n, small, fleet{relays: 1, config: cfg})},
			side{fmt.Sprintf("%d loops", workers), r.loopRate(n, small, 1000, workers, r.base.Update)})
	}
	got, err := r.rounds(ctx, r.opts.Rounds, "batch 1000", sides...)
	if err != nil {
		return err
	}
	chart := Chart{Title: "Drain by workers", X: "workers", Y: "messages/s"}
	for i, workers := range counts {
		ours, base := got[2*i][0], got[2*i+1][0]
		r.emit(row{
			what: fmt.Sprintf("workers %d", workers), unit: "messages/s", ours: ours,
			against: fmt.Sprintf("loops beside each other: %d", workers), base: base,
		})
		r.plot(chart, "relay", float64(workers), ours)
		r.plot(chart, "hand-written loops", float64(workers), base)
	}
	return nil
}

func relayRates(ctx context.Context, r *run) error {
	n := r.scale.batch(1000, small)
	counts := []int{1, 2, 4}
	chart := Chart{Title: "Drain by relays", X: "relays", Y: "messages/s"}
	compare := func(what, single, plural, more string, start func(count int) starter) error {
		var sides []side
		for _, count := range counts {
			sides = append(sides, side{fmt.Sprintf("%s: %d", plural, count), r.standing(n, start(count))})
		}
		got, err := r.rounds(ctx, r.opts.Rounds, what, sides...)
		if err != nil {
			return err
		}
		for i, count := range counts {
			if count > 1 {
				r.emit(row{
					what: fmt.Sprintf("relays %d%s", count, more), unit: "messages/s", ours: got[i][0], against: "one " + single, base: got[0][0],
					goal: fmt.Sprintf("relays/%d", count), fallback: Goal{Text: "≥ one relay", RatioLeast: 1},
				})
			}
			r.plot(chart, plural+", publishing takes no time", float64(count), got[i][0])
		}
		return nil
	}
	err := compare("batch 1000", "relay", "relays", "", r.inProcess)
	if err != nil || r.target.Process == nil {
		return err
	}
	return compare("processes", "process", "processes", ", each a process", r.asProcesses)
}

func growth(ctx context.Context, r *run) error {
	const loopMost = 1_000_000 // the loop's curve is clear by then
	cfg := relay.Config{Batch: 1000, Retention: relay.NoRetention}
	chart := Chart{Title: "Drain by size of the backlog", X: "ready messages", Y: "messages/s", Log: true}
	for _, n := range r.scale.sizes {
		// The smallest is taken beside every size: the machine may have changed.
		least := r.scale.sizes[0]
		sides := []side{
			{fmt.Sprintf("relay with %d", n), r.drainRate(n, small, fleet{relays: 1, config: cfg})},
			{fmt.Sprintf("relay with %d", least), r.drainRate(least, small, fleet{relays: 1, config: cfg})},
		}
		if n <= loopMost {
			sides = append(sides, side{fmt.Sprintf("loop with %d", n), r.loopRate(n, small, 1000, 1, r.base.Update)})
		}
		if n == least {
			sides = []side{sides[0], sides[2]}
		}
		got, err := r.rounds(ctx, r.few(n), fmt.Sprintf("%d messages", n), sides...)
		if err != nil {
			return err
		}
		what := number(float64(n)) + " ready messages"
		if n != least {
			r.emit(row{
				what: what, unit: "messages/s", ours: got[0][0],
				against: number(float64(least)) + " ready messages", base: got[1][0],
				goal: "growth", fallback: Goal{Text: "≥ 0.9 × the smallest", RatioLeast: 0.9},
			})
		}
		r.plot(chart, "relay", float64(n), got[0][0])
		if n <= loopMost {
			base := got[len(got)-1][0]
			r.emit(row{what: what, unit: "messages/s", ours: got[0][0], against: "loop with UPDATE", base: base})
			r.plot(chart, "hand-written loop", float64(n), base)
		}
	}
	return nil
}
