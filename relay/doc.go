// Package relay delivers what the outbox holds: it claims lanes, publishes
// their messages and settles the outcomes.
//
// Any number of relays, in one process or on many machines, may run against one
// outbox. Each works on several lanes at a time, and a lane has one owner at a
// time. No transaction is open and no row is locked while a message is being
// published.
//
// # A turn
//
// Poll for a free lane with work, claim it, and then, until it is empty or the
// turn is over: bring scheduled messages that are due into their place, publish
// parked messages that are due and what is held behind them, publish ready
// messages, settle. Renewal runs beside it. Who loses the lease stops
// publishing and changes nothing any more. A lane that was emptied stays with the
// relay for a moment, so that the next message there waits for no claim.
//
// # Outcomes
//
// A [Publisher] says for each message whether the broker has durably accepted
// it. An error is retried with growing, jittered delays until
// Config.MaxAttempts, then the message is dead: it waits for an operator.
// [Permanent] errors make it dead at once. [Unavailable] says that the broker
// cannot be reached at all: no message is blamed, a breaker waits and probes.
// Behind a message that failed, newer ones of its key are held; other keys go
// on.
package relay
