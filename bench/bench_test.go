package bench_test

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outbox-suite/outbox/bench"
)

func TestStatistics(t *testing.T) {
	samples := []float64{5, 1, 4, 2, 3}
	for p, want := range map[float64]float64{0: 1, 50: 3, 75: 4, 100: 5, 90: 4.6} {
		if got := bench.PercentileOf(samples, p); math.Abs(got-want) > 1e-9 {
			t.Errorf("percentile %v = %v, want %v", p, got, want)
		}
	}
	if !slices.Equal(samples, []float64{5, 1, 4, 2, 3}) {
		t.Errorf("the samples were changed: %v", samples)
	}
	if got := bench.PercentileOf([]float64{1, 2}, 50); got != 1.5 {
		t.Errorf("median of two = %v, want 1.5", got)
	}
	if got := bench.PercentileOf(nil, 50); got != 0 {
		t.Errorf("median of nothing = %v", got)
	}
	if got, want := bench.FigureOf(samples), (bench.Figure{Median: 3, Low: 1, High: 5, Rounds: 5}); got != want {
		t.Errorf("figure = %+v, want %+v", got, want)
	}
	// Round by round, and not where there is nothing to divide by.
	if got := bench.RatiosOf([]float64{2, 9, 3}, []float64{1, 0, 6}); !slices.Equal(got, []float64{2, 0.5}) {
		t.Errorf("ratios = %v", got)
	}
}

func TestGoals(t *testing.T) {
	ratio := func(v float64) *bench.Figure { return &bench.Figure{Median: v} }
	for _, c := range []struct {
		goal  bench.Goal
		ours  float64
		ratio *bench.Figure
		want  string
	}{
		{bench.Goal{}, 1, nil, ""},
		{bench.Goal{RatioLeast: 2}, 1, ratio(2), "yes"},
		{bench.Goal{RatioLeast: 2}, 1, ratio(1.99), "no"},
		{bench.Goal{RatioLeast: 2}, 1, nil, "no"},
		{bench.Goal{RatioMost: 1.2}, 1, ratio(1.3), "no"},
		{bench.Goal{RatioMost: 1.2}, 1, ratio(1.2), "yes"},
		{bench.Goal{Most: 3}, 3.1, nil, "no"},
		{bench.Goal{Least: 3}, 3.1, ratio(0.1), "yes"},
	} {
		if got := c.goal.Met(c.ours, c.ratio); got != c.want {
			t.Errorf("%+v with %v, %v: %q, want %q", c.goal, c.ours, c.ratio, got, c.want)
		}
	}
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 1: "1", 0.25: "0.25", 1.2345: "1.23", 12.345: "12.3", 999: "999", 123.4: "123", 1000: "1,000",
		54321: "54,300", 1234567: "1,230,000", 999999: "1,000,000", -54321: "-54,300", 0.00123: "0.00123", math.Inf(1): "–",
	} {
		if got := bench.NumberText(v); got != want {
			t.Errorf("number(%v) = %q, want %q", v, got, want)
		}
	}
}

func sample() bench.Report {
	base := bench.Figure{Median: 50, Low: 40, High: 60, Rounds: 5}
	ratio := bench.Figure{Median: 2.1, Low: 1.9, High: 2.25, Rounds: 5}
	return bench.Report{
		Engine: "some", Server: "Some <server> 1", Program: "p", Began: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Took: 90 * time.Second, Seed: 7, Scale: "quick", Rounds: 5,
		Machine:  bench.Machine{System: "linux/amd64", Cores: 2},
		Settings: []bench.Value{{Name: "sync", Value: "on"}},
		Rows: []bench.Row{
			{
				Measure: "drain", Case: "batch 1|2", Against: "loop", Unit: "messages/s", Ours: bench.Figure{Median: 105_432, Low: 1, High: 2, Rounds: 5},
				Baseline: &base, Ratio: &ratio, Target: "≥ 2", Met: "yes",
			},
			{Measure: "memory", Case: "allocations", Unit: "a message", Ours: bench.Figure{Median: 9}, Target: "≤ 5", Met: "no", Note: "all counted"},
		},
		Charts: []bench.Chart{
			{Title: "A & B", X: "x", Y: "y", Log: true, Series: []bench.Series{
				{Name: "one", Points: []bench.Point{{X: 1000, Y: 2, Low: 1, High: 3}, {X: 10, Y: 1, Low: 1, High: 1}}},
				{Name: "none"},
			}},
			{Title: "Latency", X: "x", Y: "ms", LogY: true, Series: []bench.Series{{Name: "p50", Points: []bench.Point{{X: 0, Y: 0}, {X: 1, Y: 250, Low: 200, High: 300}}}}},
			{Title: "Nothing", Series: []bench.Series{{Name: "one"}}},
		},
		Failed: []bench.Failure{{Measure: "busy", Reason: "it broke"}},
	}
}

func TestMarkdown(t *testing.T) {
	var b strings.Builder
	if err := sample().WriteMarkdown(&b, "p.svg"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Some &lt;server> 1: 1 targets met, 1 missed.",
		"](p.svg)",
		`| drain | batch 1\|2 | 105,000 messages/s | 50 (loop) | 2.1 (1.9–2.25) | ≥ 2 | yes |`,
		"| memory | allocations; all counted | 9 a message |  |  | ≤ 5 | no |",
		"busy could not be measured: it broke",
		"- Machine: linux/amd64, 2 cores\n",
		"- Scale: quick, 5 rounds, seed 7\n",
		"- Began: 2026-01-02T03:04:05Z, took 1m30s\n",
		"- Settings: sync = on\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, &b)
		}
	}
	if strings.Contains(b.String(), "not durable") {
		t.Errorf("the report says that commits were not durable:\n%s", &b)
	}
	r := sample()
	r.NotDurable = []string{"sync is off, not on"}
	b.Reset()
	if err := r.WriteMarkdown(&b, ""); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(b.String(), "**Commits were not durable** (sync is off, not on)") || strings.Contains(b.String(), "![") {
		t.Errorf("the report is\n%s", &b)
	}
}

func TestSplice(t *testing.T) {
	document := "# A\n\n<!-- bench some -->\nold\n<!-- /bench some -->\n\nB\n"
	got, err := bench.Splice(document, "some", "new\n")
	if want := strings.Replace(document, "old", "new", 1); err != nil || got != want {
		t.Errorf("Splice = %q, %v, want %q", got, err, want)
	}
	got, err = bench.Splice(document, "other", "new\n")
	if want := document + "\n## other\n\n<!-- bench other -->\nnew\n<!-- /bench other -->\n"; err != nil || got != want {
		t.Errorf("Splice = %q, %v, want %q", got, err, want)
	}
	if again, err := bench.Splice(got, "other", "new\n"); err != nil || again != got {
		t.Errorf("the second time it changes: %q, %v", again, err)
	}
	for _, broken := range []string{"<!-- bench some -->\n", "<!-- /bench some -->"} {
		if _, err := bench.Splice("x\n"+broken, "some", ""); err == nil {
			t.Errorf("a document with %q alone is taken", broken)
		}
	}
}

func TestSVG(t *testing.T) {
	var b bytes.Buffer
	if err := sample().WriteSVG(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	count := map[string]int{}
	for d := xml.NewDecoder(&b); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("no XML: %v\n%s", err, text)
		}
		if e, ok := token.(xml.StartElement); ok {
			count[e.Name.Local]++
		}
	}
	// One circle a point; a line for each series that is drawn, even without points.
	if count["circle"] != 4 || count["polyline"] != 3 || count["g"] != 2 {
		t.Errorf("elements: %v", count)
	}
	for _, want := range []string{"prefers-color-scheme: dark", "A &amp; B", ">10<", ">1,000<", ">100<"} {
		if !strings.Contains(text, want) {
			t.Errorf("the drawing lacks %q", want)
		}
	}
	for _, bad := range []string{"NaN", "Inf", "Nothing"} {
		if strings.Contains(text, bad) {
			t.Errorf("the drawing has %q", bad)
		}
	}
	if err := (bench.Report{}).WriteSVG(io.Discard); err != nil {
		t.Errorf("a report without charts: %v", err)
	}
}

func TestMeasuresAreTold(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range bench.Measures() {
		if m.Name == "" || m.About == "" || seen[m.Name] {
			t.Errorf("measure %+v", m)
		}
		seen[m.Name] = true
	}
}

// Sides come by turns of a few transactions, one side at a time however many write, and
// each counts what it took.
func TestSlices(t *testing.T) {
	const rounds = 3
	takes := map[string]time.Duration{"a": time.Millisecond, "b": 2 * time.Millisecond, "c": 3 * time.Millisecond}
	for _, c := range []struct{ writers, slice, warm, turns int }{
		{writers: 1, slice: 1, warm: 20, turns: 167}, // turns of 6 ms in a second
		{writers: 4, slice: 20, warm: 4, turns: 34},  // of 30
	} {
		var mu sync.Mutex
		var order []string
		active := map[string]int{}
		var got [][]float64
		synctest.Test(t, func(t *testing.T) {
			var err error
			got, err = bench.Sliced(t.Context(), time.Second, rounds, c.writers, func(name string) {
				mu.Lock()
				order = append(order, name)
				active[name]++
				if active[name] > c.writers || active["a"]*active["b"]+active["b"]*active["c"]+active["a"]*active["c"] > 0 {
					t.Errorf("at work beside each other: %v", active)
				}
				mu.Unlock()
				time.Sleep(takes[name])
				mu.Lock()
				active[name]--
				mu.Unlock()
			}, "a", "b", "c")
			if err != nil {
				t.Fatal(err)
			}
		})
		want := [][]float64{{1000, 1000, 1000}, {2000, 2000, 2000}, {3000, 3000, 3000}}
		if !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("%d writers: microseconds of a transaction: %v, want %v", c.writers, got, want)
		}
		if turns := c.warm + rounds*c.turns; len(order) != turns*3*c.slice {
			t.Fatalf("%d writers: %d transactions, want %d turns of three times %d", c.writers, len(order), turns, c.slice)
		}
		seen := map[string]int{}
		for turn := range slices.Chunk(order, 3*c.slice) {
			met := map[string]bool{}
			names := ""
			for slice := range slices.Chunk(turn, c.slice) {
				if len(slices.Compact(slices.Clone(slice))) != 1 || met[slice[0]] {
					t.Fatalf("%d writers: a turn is %v", c.writers, turn)
				}
				met[slice[0]] = true
				names += slice[0]
			}
			seen[names]++
		}
		if len(seen) != 6 {
			t.Errorf("%d writers: the orders within a turn are %v, want all six", c.writers, seen)
		}
	}
}

// What writers meet ends a round.
func TestSlicesEndWithAnError(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if _, err := bench.Sliced(ctx, time.Second, 1, 2, func(string) {}, "a"); err == nil || !strings.Contains(err.Error(), "enough") {
		t.Errorf("Sliced = %v, want the cause", err)
	}
}

func TestSlowPublisherSeesDisorder(t *testing.T) {
	if err := bench.Disorder(1, 2, 3, 5); err != nil {
		t.Errorf("in order: %v", err)
	}
	if err := bench.Disorder(1, 3, 2, 4, 4, 3); err == nil || !strings.Contains(err.Error(), "2 messages were published behind a newer one") {
		t.Errorf("out of order: %v, want an error that counts two", err)
	}
}

func TestProcessorTimeAddsUp(t *testing.T) {
	const (
		stat          = "cpu  100 20 30 400 50 6 7 80 9 0\ncpu0 1 2 3\n"
		later         = "cpu  130 22 38 430 58 8 9 82 99 0\n"
		before, after = ` 254 0 vda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 100 50
 254 1 vda1 1 2 3 4 5 6 7 8 9 10 11
 252 0 dm-0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 7 7
`, ` 254 0 vda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 140 75
 254 1 vda1 1 2 3 4 5 6 7 8 9 10 11
 252 0 dm-0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 46 30
`
	)
	busy, all, ok := bench.ProcessorsOf(stat)
	if !ok || busy != 1630*time.Millisecond || all != 6930*time.Millisecond {
		t.Errorf("processors = %v, %v, %v", busy, all, ok)
	}
	for _, broken := range []string{"", "cpu0 1 2 3 4 5 6 7 8\n", "cpu  1 2 3\n", "cpu  1 2 x 4 5 6 7 8\n"} {
		if _, _, ok := bench.ProcessorsOf(broken); ok {
			t.Errorf("%q is taken", broken)
		}
	}
	machine, own, rest, share, count, took := bench.Spent(stat, before, later, after, 140*time.Millisecond)
	if machine != 440*time.Millisecond || own+rest != machine || own != 140*time.Millisecond {
		t.Errorf("spent: machine %v, own %v, rest %v", machine, own, rest)
	}
	if math.Abs(share-100*44.0/84) > 0.01 {
		t.Errorf("busy: %v%%", share)
	}
	if count != 40 || took != 25*time.Millisecond {
		t.Errorf("flushes: %d in %v, want those of the disk with most", count, took)
	}
	// What the machine counts is coarse, and our own is part of it.
	if machine, own, rest, _, _, _ := bench.Spent(stat, "", stat, "", time.Millisecond); machine != own || rest != 0 {
		t.Errorf("less than a tick: machine %v, own %v, rest %v", machine, own, rest)
	}
	figures, ok := bench.CostOf(500, func() {
		began, ok := bench.ProcessTime()
		for now := began; ok && now-began < 20*time.Millisecond; {
			now, ok = bench.ProcessTime()
		}
	})
	if !ok {
		t.Skip("this system does not tell")
	}
	// Half as many messages are twice as dear.
	if own := figures[1]; own < 40 || math.Abs(figures[0]-own-figures[2]) > 1e-6 || figures[3] <= 0 || figures[3] > 100 {
		t.Errorf("figures: %v", figures)
	}
}
