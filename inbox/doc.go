// Package inbox removes duplicates in the consumer's own transaction.
//
// A relay delivers at least once: after a fault a message may arrive again,
// under the same id. [Inbox.Handle] notes the id in the transaction that applies
// the message's effect, so that the two stand or fall together: a message whose
// effect is committed is recognised from then on, and one whose handler failed
// comes back as if it had never been seen.
//
// # What the database needs
//
// One table, PREFIX_inbox, in the database the effects are written to. The
// outbox's own migration makes it, so a service that both consumes and publishes
// has it already. A database that only consumes runs the same migration, by
// `outbox migrate` or outbox.Outbox.Migrate; the other tables stay empty and cost
// nothing. Where that is unwelcome, the inbox table and its index may be taken
// from `outbox schema` and made alone: this package touches nothing else, and
// [Inbox.Check] asks for nothing else. It needs the rights to SELECT and INSERT
// there, and to DELETE for [Inbox.Purge].
//
// # Revisions
//
// Where the outbox numbers the messages of a key (Config.Revisions there),
// [Inbox.HandleNext] recognises them by key and revision instead of by id, and
// notices one that is missing as well. It keeps one row for a consumer and a key, in
// PREFIX_progress, and needs the rights to SELECT, INSERT and UPDATE there.
//
// # What an effect is
//
// Exactly what the transaction holds. A handler that also calls another service
// or publishes by itself does that again when the transaction is run again: hand
// such effects on through an outbox in the same transaction.
package inbox
