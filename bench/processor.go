package bench

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// usage is what the machine and this process have used so far.
type usage struct {
	busy, all time.Duration // of the machine's processors
	own       time.Duration // of this process
	disks     map[string]flushes
}

// flushes are those of a disk.
type flushes struct {
	count int64
	took  time.Duration
}

// used asks the system; ok is false where it does not tell.
func used() (u usage, ok bool) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return u, false
	}
	if u.busy, u.all, ok = processors(string(text)); !ok {
		return u, false
	}
	if u.own, ok = processTime(); !ok {
		return u, false
	}
	if text, err := os.ReadFile("/proc/diskstats"); err == nil {
		u.disks = disks(string(text))
	}
	return u, true
}

// processors reads the first line of /proc/stat. Time that a hypervisor gave to others
// was not busy here, and a guest's is in the user's already.
func processors(stat string) (busy, all time.Duration, ok bool) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[0] != "cpu" {
		return 0, 0, false
	}
	const tick = 10 * time.Millisecond // as the kernel tells it on all that Go runs on
	for i, name := range []string{"user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"} {
		if i+1 == len(fields) {
			break
		}
		n, err := strconv.ParseInt(fields[i+1], 10, 64)
		if err != nil {
			return 0, 0, false
		}
		all += time.Duration(n) * tick
		if name != "idle" && name != "iowait" && name != "steal" {
			busy += time.Duration(n) * tick
		}
	}
	return busy, all, true
}

// disks reads the flushes in /proc/diskstats, which is told of whole disks, by kernels
// from 5.5.
func disks(diskstats string) map[string]flushes {
	all := make(map[string]flushes)
	for line := range strings.Lines(diskstats) {
		const name, count, took = 2, 18, 19
		fields := strings.Fields(line)
		if len(fields) <= took {
			continue
		}
		n, err := strconv.ParseInt(fields[count], 10, 64)
		ms, errMS := strconv.ParseInt(fields[took], 10, 64)
		if firstOf(err, errMS) == nil {
			all[fields[name]] = flushes{n, time.Duration(ms) * time.Millisecond}
		}
	}
	return all
}

// spent is what was used between two looks.
type spent struct {
	machine, own, rest time.Duration
	share              float64 // of the processors that was busy, in percent
	flushes            flushes // of the disk that had most
}

func spentBetween(before, after usage) (s spent) {
	s.own = after.own - before.own
	// The machine's is counted in hundredths of a second; our own is part of it.
	s.machine = max(after.busy-before.busy, s.own)
	s.rest = s.machine - s.own
	if all := after.all - before.all; all > 0 {
		s.share = min(100, 100*s.machine.Seconds()/all.Seconds())
	}
	for name, f := range after.disks {
		// A disk that is made of others tells the same flushes again: no sum.
		if n := f.count - before.disks[name].count; n > s.flushes.count {
			s.flushes = flushes{n, f.took - before.disks[name].took}
		}
	}
	return s
}

// cost is the gauge of what n messages cost, for 1,000 of them.
func cost(n int) gauge {
	return func(do func() (time.Duration, error)) ([]float64, error) {
		before, _ := used()
		if _, err := do(); err != nil {
			return nil, err
		}
		after, _ := used()
		s := spentBetween(before, after)
		each := func(d time.Duration) float64 { return d.Seconds() * 1e3 * 1000 / float64(n) }
		return []float64{
			each(s.machine), each(s.own), each(s.rest), s.share,
			float64(s.flushes.count) * 1000 / float64(n), each(s.flushes.took),
		}, nil
	}
}

// processorTime compares what a drain costs, where the system tells.
func processorTime(ctx context.Context, r *run) error {
	if _, ok := used(); !ok {
		r.note("cpu: this system does not tell what its processors do")
		return nil
	}
	if err := r.calm(ctx); err != nil {
		return err
	}
	n := r.scale.batch(1000, small)
	kept := []string{"0", "24h"}
	var sides []side
	for _, k := range kept {
		cfg := retention(k)
		cfg.Batch = 1000
		sides = append(sides, side{"retention " + k, r.drained(n, small, fleet{relays: 1, config: cfg}, cost(n))})
	}
	forms := r.forms()
	for _, f := range forms {
		sides = append(sides, side{f.name, r.loopDrained(n, small, 1000, 1, f.mark, cost(n))})
	}
	got, err := r.rounds(ctx, r.opts.Rounds, "batch 1000, 200 B", sides...)
	if err != nil {
		return err
	}
	const millis = "ms for 1,000 messages"
	figures := []struct{ what, unit string }{
		{"processor time of the machine", millis},
		{"of this process", millis},
		{"of the rest: the server and the kernel", millis},
		{"processors that were busy", "%"},
		{"flushes of the disk", "for 1,000 messages"},
		{"time in flushes", millis},
	}
	const rest, count, took = 2, 4, 5
	told := false // a disk that needs no flushes has none
	for _, s := range got {
		told = told || figure(s[count]).High > 0
	}
	for i, k := range kept {
		for j, what := range figures {
			if j == rest && r.base.Within || (j == count || j == took) && !told {
				continue
			}
			for l, f := range forms {
				if j >= count && l > 0 {
					break // both loops commit as often
				}
				r.emit(row{
					what: fmt.Sprintf("batch 1000, retention %s: %s", k, what.what), unit: what.unit, less: what.unit != "%",
					ours: got[i][j], against: f.name, base: got[len(kept)+l][j],
				})
			}
		}
	}
	return nil
}

// calm notes when the machine does other things, which would count as ours.
func (r *run) calm(ctx context.Context) error {
	const most = 5 // percent
	before, _ := used()
	wait(ctx, r.scale.polls)
	after, _ := used()
	if s := spentBetween(before, after); s.share > most {
		r.note(fmt.Sprintf("cpu: before the drains began, the machine was busy with other things: %s%% of its processors", number(s.share)))
	}
	return context.Cause(ctx)
}

// busyRate is the gauge of messages a second, and of the share of the processors that
// was busy, in percent.
func busyRate(n int) gauge {
	return func(do func() (time.Duration, error)) ([]float64, error) {
		before, _ := used()
		took, err := do()
		after, _ := used()
		return []float64{perSecond(n, took), spentBetween(before, after).share}, err
	}
}
