// Package endtoend holds the suite from the business transaction to the consumer's
// effect, for pairs of an engine and a broker: relays and the consumer are processes
// that are killed, broker and database are real and restarted, and in the end the
// effects are compared with the business tables. It has nothing but tests:
//
//	go test ./internal/endtoend
//
// OUTBOX_SEED repeats a run's plan, OUTBOX_FULL=1 makes it longer.
package endtoend
