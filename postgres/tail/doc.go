// Package tail wakes relays by PostgreSQL's write-ahead log: the moment a transaction
// that enqueued something is committed, by whatever producer in whatever language, and
// without a poll, a signal or a statement of the producer's.
//
//	r, err := relay.New(box, publisher, relay.Config{})
//	...
//	t, err := tail.New(box.DB(), box.Tables(), r.Wake, tail.Config{})
//	...
//	if err := t.Check(ctx); err != nil { // what the server lacks, with the remedy
//		return err
//	}
//	go t.Run(ctx)
//	return r.Run(ctx)
//
// What is published, in which order, retries, parking and the fence are the relay's,
// and it reads the messages from their table. The log says when to look. So nothing
// depends on the log: while it cannot be read, the relay polls as it does without, and
// it polls for what no commit announces, a retry or a delayed message that comes due.
//
// A Tail reads through a replication slot of its own that is temporary: the server drops
// it when the connection ends, for whatever reason, so a relay that is away keeps no log
// from being removed. One that is there and does not read does, until the server's
// wal_sender_timeout or max_slot_wal_keep_size; [Watched] tells how far it is behind.
//
// It needs wal_level = logical; a user with the REPLICATION attribute; a connection to
// the server itself, since poolers pass no replication on; a free one of max_wal_senders
// and of max_replication_slots; and a publication, see [Publish].
package tail
