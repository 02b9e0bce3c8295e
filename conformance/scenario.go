package conformance

import (
	"slices"
	"time"
)

// Scenario is one promise and how it is tried.
type Scenario struct {
	// Name is Area/WhatHolds.
	Name string
	// Promise is the sentence that is broken when the scenario fails.
	Promise string
	// Needs are what the scenario cannot do without; none for the core.
	Needs []Need
	// Soak scenarios go on for as long as Target.Soak says.
	Soak bool

	// alone keeps other scenarios away from the server meanwhile.
	alone bool
	// measures tells that it compares costs, which the race detector changes.
	measures bool
	// timeout is the deadline around run. Default: 4m.
	timeout time.Duration
	// lanes is how many the scenario's tables have. Default: 8.
	lanes int
	run   func(t *trial)
}

// Scenarios returns all scenarios, in the order in which they are listed.
func Scenarios() []Scenario { return slices.Clone(scenarios()) }

// scenarios is the one table. Each area has a file of its own.
func scenarios() []Scenario {
	return slices.Concat(
		schemaScenarios,
		enqueueScenarios,
		contentScenarios,
		deliveryScenarios,
		retryScenarios,
		outageScenarios,
		turnScenarios,
		fenceScenarios,
		operatorScenarios,
		auditScenarios,
		faultScenarios,
		cutScenarios,
		serverScenarios,
		clockScenarios,
		storeScenarios,
		consumerScenarios,
		revisionScenarios,
		keepScenarios,
		pollScenarios,
		soakScenarios,
	)
}
