package conformance

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Status is how a scenario ended.
type Status string

// The statuses.
const (
	Passed  Status = "passed"
	Failed  Status = "failed"
	Skipped Status = "skipped"
	// Known is a failure that Target.Known expects.
	Known Status = "known"
)

// Result is how one scenario ended.
type Result struct {
	Name    string `json:"name"`
	Promise string `json:"promise"`
	Status  Status `json:"status"`
	// Reason says why it was skipped, or which issue explains a known failure.
	Reason string `json:"reason,omitempty"`
	// Got is what was observed instead of the promise.
	Got string `json:"got,omitempty"`
	// Rerun is the command that runs the scenario again with the same seed.
	Rerun string `json:"rerun,omitempty"`
	// Notes are measurements and counts worth reading.
	Notes []string `json:"notes,omitempty"`
	// Took is in nanoseconds in JSON.
	Took time.Duration `json:"took"`
}

// String is the text of a failure.
func (r Result) String() string {
	text := fmt.Sprintf("promise: %s\n    got: %s", r.Promise, strings.ReplaceAll(r.Got, "\n", "\n         "))
	if r.Rerun != "" {
		text += "\n  rerun: " + r.Rerun
	}
	return text
}

// Report is the outcome of a [Check].
type Report struct {
	// Engine is the dialect's name and Server what the server says of itself.
	Engine string `json:"engine"`
	Server string `json:"server"`
	// Program is what ran the check: the module's version, Go's, and the system.
	Program string    `json:"program"`
	Began   time.Time `json:"began"`
	Seed    uint64    `json:"seed"`
	// Short tells that loads were small.
	Short bool `json:"short"`
	// Chosen is how many scenarios were to run. Of a check that ended early there are fewer results.
	Chosen int `json:"chosen"`
	// Results are in the order of [Scenarios].
	Results []Result      `json:"results"`
	Took    time.Duration `json:"took"`
}

// Failed returns the results of scenarios that failed.
func (r Report) Failed() []Result {
	var failed []Result
	for _, res := range r.Results {
		if res.Status == Failed {
			failed = append(failed, res)
		}
	}
	return failed
}

// Options choose what [Check] runs. The zero value runs everything.
type Options struct {
	// Match selects scenarios by name. Default: all.
	Match *regexp.Regexp
	// Parallel is how many scenarios run at a time. Default: 3.
	Parallel int
	// Rerun returns the command that runs one scenario again.
	Rerun func(scenario string, seed uint64) string
	// OnResult is told each result as it comes, one call at a time.
	OnResult func(Result)
	// OnProgress is told how far a long scenario is, in words for people. Calls
	// may come from several goroutines.
	OnProgress func(scenario, how string)
}

const defaultParallel = 3

// Check runs the scenarios against the target and reports. The error tells that
// the check itself could not be done, not that a scenario failed: see
// [Report.Failed]. When ctx ends, so does the check, with an error and the
// results so far; scenarios that were under way have none.
func Check(ctx context.Context, target Target, opts Options) (Report, error) {
	target, err := target.withDefaults()
	if err != nil {
		return Report{}, err
	}
	if target.Seed == 0 {
		if target.Seed, err = seed(); err != nil {
			return Report{}, err
		}
	}
	if opts.Parallel < 1 {
		opts.Parallel = defaultParallel
	}
	target.progress = opts.OnProgress
	began := time.Now()
	report := Report{
		Engine: target.Dialect.Name(), Program: program(), Began: began.UTC().Truncate(time.Second),
		Seed: target.Seed, Short: target.Short,
	}
	if report.Server, err = server(ctx, target); err != nil {
		return report, fmt.Errorf("conformance: %w", err)
	}
	var chosen []Scenario
	for _, s := range scenarios() {
		if opts.Match == nil || opts.Match.MatchString(s.Name) {
			chosen = append(chosen, s)
		}
	}
	if len(chosen) == 0 {
		return report, fmt.Errorf("conformance: no scenario matches %q", opts.Match)
	}

	report.Chosen = len(chosen)
	results := make([]Result, len(chosen))
	var mu sync.Mutex
	one := func(i int) {
		res := run(ctx, &target, &chosen[i])
		if ctx.Err() != nil {
			return // it was cut off, which says nothing of the promise
		}
		if res.Status == Failed && opts.Rerun != nil {
			res.Rerun = opts.Rerun(res.Name, target.Seed)
		}
		mu.Lock()
		defer mu.Unlock()
		results[i] = res
		if opts.OnResult != nil {
			opts.OnResult(res)
		}
	}
	slots := make(chan struct{}, opts.Parallel)
	var running sync.WaitGroup
	for i := range chosen {
		if chosen[i].alone {
			continue
		}
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		running.Go(func() {
			defer func() { <-slots }()
			one(i)
		})
	}
	running.Wait()
	for i := range chosen {
		if chosen[i].alone && ctx.Err() == nil {
			one(i)
		}
	}
	for _, r := range results {
		if r.Name != "" {
			report.Results = append(report.Results, r)
		}
	}
	report.Took = time.Since(began)
	if ctx.Err() != nil {
		return report, fmt.Errorf("conformance: ended early: %w", context.Cause(ctx))
	}
	return report, nil
}

// seed is OUTBOX_SEED or a random one, never 0.
func seed() (uint64, error) {
	text := os.Getenv("OUTBOX_SEED")
	if text == "" {
		return uint64(rand.Uint32()) + 1, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("conformance: OUTBOX_SEED is %q: give a whole number above 0", text)
	}
	return n, nil
}

// run runs one scenario on the target.
func run(ctx context.Context, target *Target, s *Scenario) Result {
	res := Result{Name: s.Name, Promise: s.Promise, Status: Passed}
	if why := target.lacks(s.Needs); why != "" {
		res.Status, res.Reason = Skipped, why
		return res
	}
	if s.measures && raceEnabled {
		res.Status, res.Reason = Skipped, "it compares costs, which the race detector changes"
		return res
	}
	began := time.Now()
	res.Got, res.Notes = try(ctx, target, s)
	res.Took = time.Since(began)
	if res.Got != "" {
		res.Status = Failed
	}
	if issue, ok := target.Known[s.Name]; ok {
		res.Reason = issue
		if res.Status == Passed {
			res.Status, res.Got = Failed, "it holds, though it is known not to: remove it from Target.Known"
		} else {
			res.Status = Known
		}
	}
	return res
}

// source is the source of the scenario's random choices.
func source(seed uint64, name string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}
