// Package conformance proves the outbox's promises on an engine and a server.
//
// One table of scenarios has two doors: [Run] makes subtests of them, for the
// engine's own tests, and [Check] runs them without package testing's help, for
// people who want to see their own server keep the promises before they trust
// it. A [Target] says how to reach the server and which faults may be done to
// it. Every scenario works in tables of its own, with a random name, which it
// makes and removes; it touches nothing else.
//
// A scenario is skipped only when the target does not offer what it needs (see
// [Need]), with Short when it is a soak, and under the race detector when it
// compares costs. A failure names the promise, what
// was observed instead, and the command that runs it again with the same seed.
//
// # Names
//
// A scenario's name is Area/WhatHolds. Names are stable: one that is retired is
// not used again.
//
// # The history
//
// Every message that a scenario writes and every publish that the broker of the
// scenario accepts is recorded, and at the end the two are compared. Lost is
// what was committed and never published, unexpected what was published and
// never committed; duplicated is what was published more often than the faults
// of the scenario explain: a message repeats only if a relay that had it
// accepted died, lost its lease or was told otherwise before it settled.
// Recovered are messages in doubt that were delivered: the commit's outcome was
// unknown, so either is right.
package conformance
