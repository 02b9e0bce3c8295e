// Package outbox is the transactional outbox for any of several relational
// databases: a service writes its business change and its message in one local
// transaction, and a relay delivers every committed message to a broker, at
// least once and in order per key.
//
// # Writing
//
// [New] binds an engine's dialect to the tables. [Outbox.Enqueue] takes the
// caller's transaction, so a message exists if and only if that transaction
// commits. [Outbox.InTx] is the same with the transaction's begin, commit and
// wake-up done for the caller.
//
// # Delivering
//
// Package relay claims lanes, publishes and settles. Any number of relay
// processes may run; they share the lanes. Messages of one key are in one lane,
// which one relay owns at a time, fenced by an epoch.
//
// # Consuming
//
// After a fault a message may arrive twice, under the same id. Package inbox
// removes the duplicates in the consumer's own transaction.
//
// # Operating
//
// [Outbox.Stats], [Outbox.Parked], [Outbox.Requeue], [Outbox.Discard],
// [Outbox.Replay] and [Outbox.Purge] are safe beside running relays. Nothing
// but a settle, a discard and a purge of done messages ever removes a message.
//
// # Order
//
// Order per key is the order of the database-assigned seq. Producers of one key
// that run at the same moment must take turns, usually by locking or updating
// the row of the aggregate, which a business transaction does anyway. With
// Config.Revisions the outbox has them take turns and numbers the messages of each
// key without gaps, so that package inbox can tell that none is missing.
package outbox
