// Package publishtest is one suite of scenarios for every publisher: what a
// relay may rely on when Publish says that a broker has accepted a message, and
// when it says that it has not.
//
// A publisher's own test hands [Run] a [Target], a struct of functions that
// make publishers, read back what arrived, and do to the broker what networks
// and operators do:
//
//	func TestPublisher(t *testing.T) {
//		publishtest.Run(t, publishtest.Target{
//			New:     newPublisher,
//			Topic:   makeTopic,
//			Consume: readBack,
//			Kill:    kill, Start: start,
//			…
//		})
//	}
//
// What a new publisher needs: a helper that starts the broker in a process or a
// container of its own, so that kill means kill -9; a Topic that makes a
// destination with a fresh name; a Consume that reads that destination from its
// beginning, in the broker's own terms, and turns what it finds into [Received];
// and the values of the last group of fields. Consume is best written with
// another client or connection than the publisher's, since it is called while
// the publisher's are cut.
//
// A scenario is skipped only when the target lacks a hook that it needs, when
// the broker does not claim what it tries, or when the publisher does not have
// the optional interface that it is about. The message says which.
//
// The scenarios run one after the other, because most of them stop the broker,
// and each has topics of its own. Names are stable.
//
// What no scenario tries: a power failure, which takes what a broker has
// accepted but not yet flushed to its disk; what a broker promises there
// belongs in its publisher's documentation.
package publishtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/relay"
)

// Target is a publisher and a broker, and what may be done to it. New, Topic and
// Consume are required.
type Target struct {
	// New returns a publisher to the broker under test. One that is an io.Closer
	// is closed by the suite.
	New func(ctx context.Context) (relay.Publisher, error)
	// Topic makes a destination, empty and used by nobody else, and returns the
	// topic that leads there.
	Topic func(ctx context.Context) (string, error)
	// Consume returns all that has arrived at a topic so far, the same messages
	// again at every call, and those of one key in the order in which a consumer
	// gets them. It is called after faults too. An error is tried again until
	// Patience ends.
	Consume func(ctx context.Context, topic string) ([]Received, error)

	// Kill ends the broker at once, as kill -9 does, and Start starts it again
	// with what it has on disk. Each returns when it is done. nil: not available.
	Kill, Start func(ctx context.Context) error
	// Pause makes the broker stand still with its connections open, and Resume
	// ends that. Each returns when it is done, which a signal's sender must wait
	// for. nil: a silent network stands in, if there is a Network.
	Pause, Resume func(ctx context.Context) error
	// Network is how to reach the broker through another address; nil for a
	// broker without a network.
	Network *Network

	// TooLarge is a number of payload bytes that the broker surely refuses. 0: it
	// has no limit.
	TooLarge int
	// Unknown is a topic whose destination does not exist, and Remedy is part of
	// the advice that the error must give, besides the topic. Empty: every topic
	// has a destination.
	Unknown, Remedy string
	// Unroutable is a topic that leads nowhere for another reason: no queue is
	// bound, or the broker has no such names. Empty: there is none.
	Unroutable string
	// Deduplicates claims that the broker drops the second of two messages with
	// the same id.
	Deduplicates bool
	// KeepsNil claims that a nil and an empty payload arrive as such.
	KeepsNil bool

	// Secret is what New uses to get in. No error may hold it. Empty: there is
	// none.
	Secret string
	// Known maps a scenario to the issue that explains why it fails here. It is
	// run all the same, and passing is a failure, so that the entry goes away.
	Known map[string]string
	// Patience is how long a scenario waits for something that must happen.
	// Default: one minute.
	Patience time.Duration
}

// Network is the way to a broker.
type Network struct {
	// Address is the broker's, host:port.
	Address string
	// New returns a publisher that reaches the broker through addr and in no other
	// way, as New of the target otherwise.
	New func(ctx context.Context, addr string) (relay.Publisher, error)
}

// Received is a message as a consumer gets it.
type Received struct {
	outbox.Message
	// Replay is the replay marker.
	Replay int
}

// Need is something beyond the core that a scenario cannot do without.
type Need string

// The needs.
const (
	// Crash is a broker that can be killed and started: Target.Kill, Target.Start.
	Crash Need = "kill and start of the broker"
	// Stalling is a broker that can be made to stand still: Target.Pause and
	// Target.Resume, or Target.Network.
	Stalling Need = "a broker that stands still"
	// Networked is a broker that is reached through a network: Target.Network.
	Networked Need = "a network to the broker"
	// Limited is a broker that refuses large messages: Target.TooLarge.
	Limited Need = "a limit on the payload"
	// Missing is a topic without a destination: Target.Unknown.
	Missing Need = "an unknown topic"
	// Astray is a topic that cannot be routed: Target.Unroutable.
	Astray Need = "an unroutable topic"
	// Duplicates is the claim of that name: Target.Deduplicates.
	Duplicates Need = "removal of duplicates"
	// Nil is the claim of that name: Target.KeepsNil.
	Nil Need = "nil payloads"
	// Ordered is a publisher that is a [relay.Orderer] and keeps order.
	Ordered Need = "a publisher that keeps order"
	// Closing is a publisher that is an io.Closer.
	Closing Need = "a publisher that is closed"
)

// lacks returns why a scenario cannot run on the target, or "". Whether the
// publisher has an optional interface shows only when there is one.
func (t *Target) lacks(needs []Need) string {
	missing := map[Need]struct {
		absent bool
		why    string
	}{
		Crash:      {t.Kill == nil || t.Start == nil, "the target offers no kill and start of the broker (Target.Kill, Target.Start)"},
		Stalling:   {(t.Pause == nil || t.Resume == nil) && t.Network == nil, "the target offers no pause of the broker (Target.Pause, Target.Resume) and no network (Target.Network)"},
		Networked:  {t.Network == nil, "the target offers no network to the broker (Target.Network)"},
		Limited:    {t.TooLarge == 0, "the broker has no limit on the payload (Target.TooLarge)"},
		Missing:    {t.Unknown == "", "the target knows no topic without a destination (Target.Unknown)"},
		Astray:     {t.Unroutable == "", "the target knows no topic that cannot be routed (Target.Unroutable)"},
		Duplicates: {!t.Deduplicates, "the broker does not claim to remove duplicates (Target.Deduplicates)"},
		Nil:        {!t.KeepsNil, "the broker does not claim to keep nil and empty apart (Target.KeepsNil)"},
	}
	for _, n := range needs {
		if m := missing[n]; m.absent {
			return m.why
		}
	}
	return ""
}

const defaultPatience = time.Minute

func (t Target) withDefaults() (Target, error) {
	if t.New == nil || t.Topic == nil || t.Consume == nil {
		return t, errors.New("publishtest: target: New, Topic and Consume are required")
	}
	if t.Patience == 0 {
		t.Patience = defaultPatience
	}
	for name := range t.Known {
		if !slices.ContainsFunc(scenarios(), func(s Scenario) bool { return s.Name == name }) {
			return t, fmt.Errorf("publishtest: target: Known names %q, which is no scenario", name)
		}
	}
	return t, nil
}

// Scenario is one promise and how it is tried.
type Scenario struct {
	// Name is Area/WhatHolds.
	Name string
	// Promise is the sentence that is broken when the scenario fails.
	Promise string
	// Needs are what the scenario cannot do without; none for the core.
	Needs []Need

	run func(t *trial)
}

// Scenarios returns all scenarios, in the order in which they run.
func Scenarios() []Scenario { return slices.Clone(scenarios()) }

// scenarios is the one table. Each area has a file of its own.
func scenarios() []Scenario {
	return slices.Concat(
		acceptScenarios,
		headerScenarios,
		orderScenarios,
		duplicateScenarios,
		refuseScenarios,
		outageScenarios,
		slowScenarios,
		networkScenarios,
		concurrentScenarios,
	)
}

// Status is how a scenario ended.
type Status string

// The statuses.
const (
	Passed  Status = "passed"
	Failed  Status = "failed"
	Skipped Status = "skipped"
	// Known is a failure that Target.Known explains.
	Known Status = "known"
)

// Result is what became of a scenario.
type Result struct {
	Scenario
	Status Status
	// Got is what was observed instead of the promise, one line a finding.
	Got string
	// Reason is why it was skipped, or the issue of a known failure.
	Reason string
	Took   time.Duration
}

// Check runs the scenarios whose names match, all for nil, and returns their
// results in order. The error is about the target.
func Check(ctx context.Context, target Target, match *regexp.Regexp) ([]Result, error) {
	target, err := target.withDefaults()
	if err != nil {
		return nil, err
	}
	var results []Result
	for _, s := range scenarios() {
		if match == nil || match.MatchString(s.Name) {
			results = append(results, run(ctx, &target, &s))
		}
	}
	return results, ctx.Err()
}

// Run runs every scenario as a subtest Area/WhatHolds of t.
func Run(t *testing.T, target Target) {
	t.Helper()
	target, err := target.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	byArea := make(map[string][]Scenario)
	var areas []string
	for _, s := range scenarios() {
		area, _, _ := strings.Cut(s.Name, "/")
		if byArea[area] == nil {
			areas = append(areas, area)
		}
		byArea[area] = append(byArea[area], s)
	}
	for _, area := range areas {
		t.Run(area, func(t *testing.T) {
			for _, s := range byArea[area] {
				_, what, _ := strings.Cut(s.Name, "/")
				t.Run(what, func(t *testing.T) { report(t, run(t.Context(), &target, &s)) })
			}
		})
	}
}

func report(t *testing.T, r Result) {
	t.Helper()
	switch r.Status {
	case Skipped:
		t.Skip(r.Reason)
	case Known:
		t.Logf("known (%s): %s", r.Reason, r.Got)
	case Failed:
		t.Errorf("\npromise: %s\n    got: %s\n  rerun: %s", r.Promise, strings.ReplaceAll(r.Got, "\n", "\n         "), goTest(t.Name()))
	case Passed:
	}
}

// goTest is the command that runs the test of that name again.
func goTest(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return fmt.Sprintf("go test %s -run '%s'", folder(), strings.Join(parts, "/"))
}

// folder is the package under test, as go test is told from the module's root.
func folder() string {
	dir, err := os.Getwd()
	if err != nil {
		return "."
	}
	for root := dir; ; root = filepath.Dir(root) {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			rel, err := filepath.Rel(root, dir)
			if err != nil {
				return "."
			}
			return "./" + filepath.ToSlash(rel)
		}
		if root == filepath.Dir(root) {
			return "."
		}
	}
}
