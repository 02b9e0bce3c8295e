// Package telemetry tells OpenTelemetry what a relay, its tables and an inbox do.
//
//	t, err := telemetry.New(telemetry.Config{System: "kafka"})
//	...
//	r, err := relay.New(ob, publisher, relay.Config{Observer: t})
//	...
//	stop, err := telemetry.WatchTables(ob, telemetry.Config{})
//
// It uses the API of OpenTelemetry only: what becomes of traces and metrics, and
// what they cost, is up to the providers that the program sets up.
//
// # Traces
//
// A producer that puts its trace context into the headers, as outbox.Config.Inject
// does, has every attempt to publish its message as a span in its own trace, a child
// of the span that enqueued it. A call of the publisher with several messages is a
// span of its own, with a link to and from each message's. Messages without a trace
// context have no span of their own. The headers stay as they are, so a consumer's
// spans belong to the producer's trace too.
//
// # Metrics
//
// Names and attributes follow the semantic conventions for messaging where those have
// one, which are still in development; the others begin with outbox.
//
//	messaging.client.sent.messages      attempts to publish, by error.type
//	messaging.client.operation.duration the publisher's calls
//	outbox.publish.latency              from enqueue to the broker's acknowledgement
//	outbox.relay.messages               outcomes recorded: published, held, retry, dead
//	outbox.relay.polls                  polls of the dispatcher
//	outbox.relay.lanes                  lanes that the relay works on
//	outbox.relay.leases.lost            lanes that another relay took
//	outbox.relay.messages.unsettled     accepted, not recorded: published again
//	outbox.relay.messages.unarchived    published, but not kept in done
//	outbox.relay.messages.purged        removed from done after the retention
//	outbox.relay.breakers.open          what is left alone, by destination and topic
//	outbox.relay.settle.duration        the recording of outcomes
//	outbox.relay.database.errors        operations on the database that failed
//	outbox.messages                     messages in the tables, by state
//	outbox.oldest.age                   of the oldest ready message or overdue retry
//	outbox.blocked.keys                 keys that are held back
//	outbox.lanes                        lanes by state: held, expired, free
//	outbox.inbox.messages               what became of messages in an inbox
//
// A message's error.type is one word of few, see [relay.ErrorKind]. No attribute is a
// key, an id or an error's text. A topic is one only if Config.Topics names it.
//
// Payloads and headers are in neither; a key is in traces as its hash, unless
// Config.Keys asks for it.
package telemetry
