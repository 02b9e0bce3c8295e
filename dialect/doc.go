// Package dialect is the seam between the outbox and a database engine.
//
// An engine performs operations; it does not hand out SQL. A [Dialect] is
// bound to a set of [Tables] once, which renders every statement and refuses
// names the engine cannot quote, and yields a [Store]. All that crosses the
// seam afterwards is plain data.
//
// # Rules every Store keeps
//
//   - Durations cross the seam, instants do not: leases and delays are computed
//     by the database's clock. The only instants are those read for display.
//   - A Store never retries, never logs and keeps no state of its own between
//     calls. Policy lives above it.
//   - Every method is safe for concurrent use.
//   - Every write of a relay carries its [Lease] and changes nothing unless the
//     lane row still holds that owner and epoch. The check locks the lane row
//     first: a check that does not lock is not a fence.
//   - A method that changes several rows does so in one transaction and, when it
//     returns an error, has changed nothing, unless [Dialect.Classify] says
//     [OutcomeUnknown] for that error. Every operation may be repeated after an
//     unknown outcome: the second run changes nothing that the first did.
//   - After an error inside a transaction nothing more is run on it but Rollback.
//   - Errors come back as the driver made them, wrapped at most, so that
//     errors.As reaches the driver's type. They never contain a payload.
//
// # Head and held rows
//
// Within one key the parked rows in state retry or dead that hold the key back
// carry a mark (column "blocking"). A key with such a row is blocked: its newer
// messages become held rows. Whoever adds or removes parked rows of a key ends
// its transaction by promoting: when a key has held rows and no blocking one,
// the held row with the smallest seq becomes a blocking row in state retry that
// is due at once. So a held row is never left without a head.
package dialect
