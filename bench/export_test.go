package bench

import (
	"context"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/relay"
)

// What the tests look at.
var (
	NumberText   = number
	PercentileOf = percentile
	RatiosOf     = ratios
	FigureOf     = figure
	ProcessorsOf = processors
	ProcessTime  = processTime
)

// Met tells whether a goal is reached.
func (g Goal) Met(ours float64, ratio *Figure) string { return g.met(ours, ratio) }

// Sliced takes rounds of ways that do what they are told with their name, and returns
// the microseconds of a transaction by way and round.
func Sliced(ctx context.Context, round time.Duration, rounds, writers int, do func(name string), names ...string) ([][]float64, error) {
	r := &run{opts: Options{Rounds: rounds, Seed: 1}, scale: Scale{round: round, slice: 5}}
	var ways []way
	for _, name := range names {
		ways = append(ways, way{name, 1, func(_ context.Context, _ int, messages []outbox.Message) error {
			if len(messages) != 1 {
				panic("a transaction without its message")
			}
			do(name)
			return nil
		}})
	}
	return r.sliced(ctx, "test", writers, 1, ways...)
}

// Disorder is what the slow publisher finds when messages of a key come with these
// seqs, one at a time.
func Disorder(seqs ...int64) error {
	s := &slow{last: make(map[string]int64)}
	for _, seq := range seqs {
		s.Publish(context.Background(), []relay.Message{
			{Message: outbox.Message{Key: "k"}, Seq: seq}, {Message: outbox.Message{Key: "other"}, Seq: 1},
		})
	}
	return s.disorder()
}

// CostOf are the figures of what do costs, of n messages; ok is false where the system
// does not tell.
func CostOf(n int, do func()) (figures []float64, ok bool) {
	if _, ok := used(); !ok {
		return nil, false
	}
	figures, err := cost(n)(func() (time.Duration, error) { do(); return 0, nil })
	return figures, err == nil
}

// Spent is what was used between two looks at the files of Linux, by this process so
// much: of the machine, of this process, of the rest, the share in percent, and the
// flushes with the time in them.
func Spent(stat, disksBefore, statAfter, disksAfter string, own time.Duration) (machine, self, rest time.Duration, share float64, count int64, took time.Duration) {
	before, after := usage{disks: disks(disksBefore)}, usage{disks: disks(disksAfter), own: own}
	before.busy, before.all, _ = processors(stat)
	after.busy, after.all, _ = processors(statAfter)
	s := spentBetween(before, after)
	return s.machine, s.own, s.rest, s.share, s.flushes.count, s.flushes.took
}
