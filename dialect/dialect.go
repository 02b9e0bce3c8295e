package dialect

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// Dialect is one database engine. Values are immutable and safe for concurrent
// use.
type Dialect interface {
	// Name is the engine's name in lower case, for people and metrics.
	Name() string
	// Capabilities tells what the engine can do beyond the core promises.
	Capabilities() Capabilities
	// Bind renders every statement for tables. It does no I/O. Names the engine
	// cannot hold are refused with an error that names the field.
	Bind(tables Tables) (Store, error)
	// Classify says what an error returned by a Store, or by the driver in a
	// caller's own transaction, means. It returns [Other] for nil and for
	// whatever it does not know.
	Classify(err error) Class
}

// Capabilities are observable promises, not syntax.
type Capabilities struct {
	// TimeStep is the coarsest step that a stored time survives.
	TimeStep time.Duration
	// Skew tells that the database server has a clock of its own, which may
	// differ from the client's.
	Skew bool
	// Restrict tells that the engine can force sessions to be read-only, as a
	// demoted primary does, and reports it as [ReadOnly].
	Restrict bool
	// Lanes is how many lanes a new schema has unless its owner says otherwise; 0
	// stands for [DefaultLanes].
	Lanes int
}

// DefaultLanes is how many lanes a schema has where neither its owner nor the engine
// says otherwise: enough for the workers of two relays, and more would spread a batch over
// more pages (docs/decisions/0020-eight-lanes.md).
const DefaultLanes = 8

// DB is a pool or a single connection. *sql.DB and *sql.Conn implement it.
type DB interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Tx is the caller's open transaction; *sql.Tx implements it. Commit and
// Rollback are never called: they are required so that a *sql.DB or *sql.Conn,
// which would write outside the business transaction, does not compile.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	Commit() error
	Rollback() error
}

var (
	_ DB = (*sql.DB)(nil)
	_ DB = (*sql.Conn)(nil)
	_ Tx = (*sql.Tx)(nil)
)

// Tables names the tables of one outbox.
type Tables struct {
	// Schema holds the tables. Empty leaves it to the session's search path or
	// default schema.
	Schema string
	// Prefix is the name of the table of ready messages and begins the names of
	// the others: PREFIX, PREFIX_parked, PREFIX_done, PREFIX_lane, PREFIX_inbox,
	// PREFIX_meta, with a [Reviser] PREFIX_revision and PREFIX_progress, and with an
	// [Auditor] PREFIX_audit. It must not be empty.
	Prefix string
	// Lanes is the number of lanes the schema is made with, 1 to [MaxLanes].
	Lanes int
}

// MaxLanes is the largest number of lanes.
const MaxLanes = 1024

// Class says what an error means for whoever has to decide what comes next.
type Class int

// The classes of errors.
const (
	// Other errors are not cured by doing the same again.
	Other Class = iota
	// Duplicate is a violated unique key.
	Duplicate
	// Conflict is a deadlock, a lock timeout or a serialization failure: the
	// server undid the transaction or the caller must, and it may be run again
	// at once.
	Conflict
	// Transient means that the server did not do it and says it could later, or
	// that no connection could be made.
	Transient
	// OutcomeUnknown means that the connection broke, or the context ended,
	// while a statement or commit was under way: it may have taken effect.
	OutcomeUnknown
	// ReadOnly means that the session or server accepts no writes, as after a
	// failover: the connection must be replaced.
	ReadOnly
	// Missing is a table or column that does not exist.
	Missing
)

// String returns the class in lower case words.
func (c Class) String() string {
	switch c {
	case Duplicate:
		return "duplicate"
	case Conflict:
		return "conflict"
	case Transient:
		return "transient"
	case OutcomeUnknown:
		return "outcome unknown"
	case ReadOnly:
		return "read-only"
	case Missing:
		return "missing"
	default:
		return "other"
	}
}

// Store is a dialect bound to its tables. See the package documentation for
// the rules that all methods keep.
type Store interface {
	Schema
	Producer
	Lanes
	Turn
	Operator
	Inbox
}

// Schema makes and checks the tables.
type Schema interface {
	// Steps returns the DDL, one step a schema version, for a DBA to read or run.
	Steps() []Step
	// Migrate brings the schema to the newest version and returns the versions
	// applied, none when it was up to date. Processes that start at once do not
	// disturb each other. A schema of another number of lanes is a [*LanesError].
	Migrate(ctx context.Context, db DB) (applied []int, err error)
	// Inspect reports what stands in the database. A missing meta table is not
	// an error: Version is 0.
	Inspect(ctx context.Context, db DB) (Inspection, error)
}

// Step is one version of the schema.
type Step struct {
	Version int
	// Name says what the version brings.
	Name string
	// SQL is the rendered text of the step's file, comments included.
	SQL string
}

// Inspection is what stands in the database.
type Inspection struct {
	// Server is the engine's name and version as the server tells it.
	Server string
	// Version is the schema version found, 0 when there is none.
	Version int
	// Lanes is the number of lanes the schema was made with.
	Lanes int
	// Problems are findings that would break a promise: a server that is too
	// old, a missing table or lane, a session setting. Each is one sentence
	// that ends with its remedy.
	Problems []string
}

// Producer inserts.
type Producer interface {
	// Insert adds the messages in the caller's transaction, in one round trip
	// for the ready ones and one for the delayed ones; seq follows the order of
	// the slice. The id of a ready message that is ready already, or of a delayed
	// one that is scheduled already, yields a [Duplicate] error; a delayed one may
	// have the id of a ready one (see Surface).
	Insert(ctx context.Context, tx Tx, messages []Message) error
}

// Message is a message as a producer hands it over: the content columns.
type Message struct {
	Lane        int
	ID          [16]byte
	Topic       string
	Key         sql.Null[string]
	KeyHash     sql.Null[int64] // valid exactly when Key is
	Type        string
	ContentType string
	// Payload is stored byte for byte; nil (NULL) and empty are kept apart.
	Payload []byte
	// Headers is a JSON object of strings. It is opaque to the engine and comes
	// back byte for byte.
	Headers string
	// Revision is the version of the aggregate; 0 is none (NULL). A [Reviser] sets it.
	Revision int64
	// Replay counts how often the message was replayed by an operator.
	Replay int
	// Delay above 0 makes a scheduled message, due when it has passed by the
	// database's clock. It is not a column.
	Delay time.Duration
}

// Lease is the right to change one lane. Epoch is the fence.
type Lease struct {
	Lane  int
	Owner string
	Epoch int64
}

// Candidate is a lane in which a poll saw work.
type Candidate struct {
	Lane int
	// Epoch is that of the last claim of the lane, by whomever. A relay that holds the
	// lane by another one holds it no more: somebody has claimed it since, or the server
	// that answers has never seen the claim.
	Epoch int64
	// Due tells that a parked message is due, which Surface and Due are for. A relay
	// asks for neither when it is false, until a later poll says otherwise.
	Due bool
}

// Lanes hands lanes out.
type Lanes interface {
	// Poll returns at most limit lanes that are free and have a ready message or
	// a parked one that is due, least recently served first, without locking
	// anything. Free means that the lease has ended or is owner's own. The cost
	// depends on the number of lanes only.
	Poll(ctx context.Context, db DB, owner string, limit int) ([]Candidate, error)
	// Pending tells whether anything is ready or due in any lane, and whether
	// any lane is leased to another than owner.
	Pending(ctx context.Context, db DB, owner string) (work, held bool, err error)
	// Claim takes the lane for ttl if it is free (see Poll) and nobody is
	// changing it: it raises the epoch and returns it, and marks the lane as
	// served, so that one that cannot be worked on does not come first again and
	// again. ok is false when the lane is not to be had; Claim never waits for
	// another session's lock where the engine can skip it.
	Claim(ctx context.Context, db DB, lane int, owner string, ttl time.Duration) (epoch int64, ok bool, err error)
	// Extend renews the lease to ttl from now. ok is false when it is lost.
	Extend(ctx context.Context, db DB, lease Lease, ttl time.Duration) (ok bool, err error)
	// Release ends the lease now. A lost lease is not an error.
	Release(ctx context.Context, db DB, lease Lease) error
}

// Sweeper is an optional interface of a Store whose engine keeps the entries of
// deleted rows in its indexes for as long as an old snapshot is open, so that a
// look for ready messages from the start walks over all that was settled
// meanwhile. Two horizons tell a floor that keeps the look above them: a seq at
// or below which nothing is ready and nothing can be added any more.
type Sweeper interface {
	// Horizon looks at ready messages with seq above floor.
	Horizon(ctx context.Context, db DB, floor int64) (Horizon, error)
	// PollAbove is Lanes.Poll for ready messages with seq above floor.
	PollAbove(ctx context.Context, db DB, owner string, floor int64, limit int) ([]Candidate, error)
}

// Horizon is what can be seen at one moment. When Running of a later horizon has
// reached Begun of an earlier one, every transaction that was given a seq up to
// the earlier Newest has ended, and what it added is visible to the later one.
type Horizon struct {
	// Newest is the highest seq given out before.
	Newest int64
	// Begun is above the number of every transaction that had begun to write.
	Begun int64
	// Running is the number of the oldest transaction that was still writing, or
	// Begun.
	Running int64
	// Oldest is the smallest seq that was ready, 0 when none was.
	Oldest int64
}

// Limit bounds one read.
type Limit struct {
	// Rows is the most rows to return, at least 1.
	Rows int
	// Bytes stops the read after the row that brings the sum of payload and
	// header sizes to it or above. At least one row is returned. 0 is no limit.
	Bytes int64
	// Room is memory that the rows may be put into from its beginning on, whatever it
	// holds; an engine may return a part of it, or not. Whoever reads batch after batch
	// spares the memory for each. Keys and payloads that were read stay as they are: they
	// are not part of it.
	Room []Row
}

// Row is a stored message.
type Row struct {
	Message
	// Seq is the place in the order, database-assigned, increasing within the
	// table. 0 for a scheduled message, which has none yet.
	Seq int64
	// Pos names a parked row; 0 for a ready one.
	Pos int64
	// Attempts counts the publish attempts that failed so far.
	Attempts int
	// CreatedAt is the database's time at insert, UTC.
	CreatedAt time.Time
	// Age is how long ago, by the database's clock at the time of the read, the
	// message became ready: its insert, its surfacing or its replay. For a
	// parked row it counts from CreatedAt.
	Age time.Duration
	// Blocked tells of a ready row that its key has a blocking parked row. The
	// payload of such a row may be left out.
	Blocked bool
}

// Ref names the row in a [Settlement].
func (r *Row) Ref() Ref {
	if r.Pos != 0 {
		return Ref{Place: r.Pos, ID: r.ID}
	}
	return Ref{Place: r.Seq, ID: r.ID}
}

// Turn is what the owner of a lane does.
type Turn interface {
	// Surface moves up to limit scheduled messages that are due into the ready
	// table, in the order they became due, each with a fresh seq and its
	// created_at as it was. One whose id is already ready there becomes dead
	// with a reason instead: it blocks nothing and does not count as moved. ok is
	// false when the lease is lost.
	Surface(ctx context.Context, db DB, lease Lease, limit int) (moved int, ok bool, err error)
	// Due returns the retry rows of the lane that are due, by available_at, and
	// behind each that has a key the held rows of the key in seq order. A key's
	// rows come one behind the other. The rows behind the heads are a prefix of
	// what is held; the rest comes with a later call.
	Due(ctx context.Context, db DB, lane int, limit Limit) ([]Row, error)
	// Ready returns ready rows of the lane with seq above after, in seq order,
	// and says for each whether its key is blocked.
	Ready(ctx context.Context, db DB, lane int, after int64, limit Limit) ([]Row, error)
	// Settle records the outcomes in one transaction under the lease, extends
	// the lease to ttl from now, marks the lane as served, and promotes (see
	// the package documentation). It moves exactly the rows named; a row that
	// is no longer there, or whose place another message has taken, is passed
	// over. ok is false, and nothing is changed, when the lease is lost.
	Settle(ctx context.Context, db DB, lease Lease, ttl time.Duration, s Settlement) (ok bool, err error)
}

// Settlement names rows and what became of them. No row is named twice.
type Settlement struct {
	// Archive moves what was published to the done table; otherwise it is
	// deleted.
	Archive bool
	// Published are ready rows the broker has accepted.
	Published []Ref
	// PublishedParked are parked rows the broker has accepted.
	PublishedParked []Ref
	// Hold are ready rows to park behind their blocked key.
	Hold []Ref
	// Failed are ready rows to park, FailedParked parked rows to keep, in state
	// retry or dead.
	Failed       []Failure
	FailedParked []Failure
}

// Ref names one row. The place alone would not do: a server that comes back
// without its last commits, as after a failover to a replica that was behind, may
// give the same place to another message while a relay still settles the first.
type Ref struct {
	// Place is the seq of a ready row and the pos of a parked one.
	Place int64
	// ID is the id of the message that was read there.
	ID [16]byte
}

// Empty tells whether the settlement names no row.
func (s Settlement) Empty() bool {
	return len(s.Published)+len(s.PublishedParked)+len(s.Hold)+len(s.Failed)+len(s.FailedParked) == 0
}

// Failure is the outcome of a message that was not accepted.
type Failure struct {
	Ref
	// Attempts is the new number of failed attempts.
	Attempts int
	// Dead ends the attempts; otherwise the row is in state retry.
	Dead bool
	// Delay is how long from now a retry is due.
	Delay time.Duration
	// Blocking marks the row as holding its key back. It has no effect on a row
	// without a key.
	Blocking bool
	// Reason is the error text, at most [MaxReason] bytes of valid UTF-8
	// without NUL.
	Reason string
}

// MaxReason is the longest error text kept with a parked message, in bytes.
const MaxReason = 2000

// The states of a parked message.
const (
	Scheduled = "scheduled" // waits for its time, blocks nothing
	Retry     = "retry"     // failed, or next in line behind one that did; due at a time
	Held      = "held"      // waits behind a blocking row of its key
	Dead      = "dead"      // needs a person
)

// Ready is the state of a message that waits for nothing.
const Ready = "ready"

// The outcomes of a message in the done table.
const (
	Published = "published"
	Discarded = "discarded"
)

// Stats are counts for people and metrics.
type Stats struct {
	// Ready, Scheduled, Retry, Held and Dead count messages, each up to the
	// limit asked for.
	Ready, Scheduled, Retry, Held, Dead int64
	// BlockedKeys counts keys that are held back, up to the limit.
	BlockedKeys int64
	// OldestReady is the age of the oldest message that is ready, or a retry
	// that is overdue by that much; 0 when there is none.
	OldestReady time.Duration
	// LanesHeld and LanesExpired count lanes with a running lease, and lanes
	// whose owner neither renewed nor released.
	LanesHeld, LanesExpired int
	// LanesTotal is the number of lanes.
	LanesTotal int
}

// Filter selects messages. All set fields must match; a zero Filter matches
// nothing: set All to mean everything.
type Filter struct {
	All    bool
	IDs    [][16]byte
	Key    sql.Null[string]
	Topic  string
	Type   string
	States []string // parked messages only
	// DoneWithin and DoneBefore select done messages by age: settled less than
	// DoneWithin ago, and at least DoneBefore ago. 0 is no bound.
	DoneWithin, DoneBefore time.Duration
}

// Parked is a parked message as an operator sees it.
type Parked struct {
	Row
	State    string
	Blocking bool
	// Reason is the last error text.
	Reason string
	// DueIn is how long until the message is due, negative when overdue; valid
	// for scheduled and retry.
	DueIn sql.Null[time.Duration]
	// ParkedAt is the database's time at which the message was parked, UTC.
	ParkedAt time.Time
}

// Operator is what people do. Operations that change rows take the lock of
// each lane they touch, one lane a transaction, so they are safe beside running
// relays, and change at most limit messages a call; they return how many. Where
// one transaction writes at a time, it is the lock of all lanes. But for Replay,
// which has its cursor, a number below limit tells that nothing more matches: a
// call goes on with the next lane until it has limit messages.
type Operator interface {
	// Stats counts; each count stops at limit.
	Stats(ctx context.Context, db DB, limit int64) (Stats, error)
	// Parked lists messages with pos above after, in pos order. The times of a
	// filter select done messages, so they say nothing here, nor to Requeue and
	// Discard.
	Parked(ctx context.Context, db DB, filter Filter, after int64, limit int) ([]Parked, error)
	// Requeue makes dead messages due at once with no failed attempts, and retry
	// and scheduled ones that are not yet due due at once; others do not match,
	// so that a repeated call comes to an end. Of a lane the rows with the
	// smallest seq go first. A scheduled row stays scheduled, and a retry keeps
	// its attempts. Of one key
	// the row with the smallest seq becomes the head and the others wait behind
	// it, also one that was the head before, so that a run keeps its order and
	// stays before newer messages.
	Requeue(ctx context.Context, db DB, filter Filter, limit int) (int, error)
	// Discard moves parked messages to done with outcome discarded.
	Discard(ctx context.Context, db DB, filter Filter, limit int) (int, error)
	// Replay copies done messages back to ready, oldest first, under the same id
	// with Replay one above the highest of the id's done rows, and skips ids that
	// are ready or parked. It looks at up to limit rows.
	// It continues after the cursor and returns the next one; a nil next cursor
	// tells that there is no more. The first call (nil cursor) fixes the filter's
	// bounds of time and its own time in the cursor, so that what is settled again
	// meanwhile is not replayed again, also when a call is repeated with a cursor
	// that was used before.
	Replay(ctx context.Context, db DB, filter Filter, cursor *Cursor, limit int) (replayed int, next *Cursor, err error)
	// Replayable is Replay that counts and changes nothing. Given the nil cursor and a
	// limit of 0 it only fixes the bounds: next is a cursor at the begin.
	Replayable(ctx context.Context, db DB, filter Filter, cursor *Cursor, limit int) (replayable int, next *Cursor, err error)
	// Purge deletes up to limit done rows settled at least olderThan ago, oldest
	// first, skipping rows others have locked.
	Purge(ctx context.Context, db DB, olderThan time.Duration, limit int) (int, error)
	// Purgeable counts what Purge would delete, up to limit, and changes nothing.
	Purgeable(ctx context.Context, db DB, olderThan time.Duration, limit int) (int, error)
	// ClaimPurge tells whether the caller is the one to purge now: of all that
	// ask within every, one gets true.
	ClaimPurge(ctx context.Context, db DB, every time.Duration) (bool, error)
}

// Cursor is a place in the done table. It is opaque above the seam; the times
// are microseconds since 1970 UTC by the database's clock.
type Cursor struct {
	// DoneAt and Pos are those of the last row looked at.
	DoneAt, Pos int64
	// From and Until bound done_at: from From, before Until.
	From, Until int64
	// Begun is just above the time of the first call. An id that has a done row from
	// then on was settled since and is passed over.
	Begun int64
}

// FirstCursor is the place before the first done row that is within the filter's bounds of
// time at now, in microseconds since 1970 UTC by the database's clock.
// micros is how the engine counts a duration.
func FirstCursor(f Filter, now int64, micros func(time.Duration) int64) Cursor {
	c := Cursor{Begun: now + 1, Until: now - micros(f.DoneBefore) + 1}
	if f.DoneWithin > 0 {
		c.From = now - micros(f.DoneWithin) + 1
	}
	c.DoneAt = c.From
	return c
}

// Inbox remembers what consumers have processed.
type Inbox interface {
	// Record notes the message id for the consumer in the caller's transaction.
	// fresh is false when it was there; the transaction stays usable. When
	// another open transaction has recorded the same, Record waits for its end.
	Record(ctx context.Context, tx Tx, consumer, messageID string) (fresh bool, err error)
	// Recorded tells whether the id is there, committed.
	Recorded(ctx context.Context, db DB, consumer, messageID string) (bool, error)
	// PurgeInbox deletes up to limit entries recorded at least olderThan ago.
	PurgeInbox(ctx context.Context, db DB, olderThan time.Duration, limit int) (int, error)
}

// Reviser is an optional interface of a Store that counts the messages of every key,
// where they are written and where they are handled. A key is its hash and its exact
// bytes. Both counts are rows that change in the caller's transaction, so that who
// changes one waits for whoever else has, and a rollback takes it back.
type Reviser interface {
	// Revise inserts messages as [Producer.Insert] does, each with the next revision
	// of its key. All have a key and none a delay; every one is in one run. The rows of
	// the keys are taken in the order of runs, and before any message gets its seq.
	//
	// When a First is not the next revision of its key, nothing is written, the
	// refusal says of which run, and the transaction stays usable.
	Revise(ctx context.Context, tx Tx, messages []Message, runs []Run) (*Refusal, error)
	// LastRevision is the last revision of the key as the transaction has it, its own
	// messages included; 0 for none. The number in at says nothing. It may take the row
	// of the key as Revise does. A transaction that cannot read is [ErrCannotRead].
	LastRevision(ctx context.Context, tx Tx, at Revision) (last int64, err error)
	// Advance makes revision the last one that the consumer has handled of the key, if
	// it is the next, and returns the last one before that, 0 for none. It waits for
	// another open transaction that has done the same for the consumer and the key,
	// and the transaction stays usable, whatever it finds.
	Advance(ctx context.Context, tx Tx, consumer string, at Revision) (last int64, err error)
	// Progress is the last revision that the consumer has handled of the key,
	// committed; 0 for none. The number in at says nothing.
	Progress(ctx context.Context, db DB, consumer string, at Revision) (last int64, err error)
	// SetProgress makes the revision the last one handled, whatever it was before.
	SetProgress(ctx context.Context, tx Tx, consumer string, at Revision) error
}

// Run are the messages of one key in one call, in their order.
type Run struct {
	Key     string
	KeyHash int64
	// First is the revision that the first of them must get; 0 is any.
	First int64
	// Messages are their places in the call.
	Messages []int
}

// Behind says of each of n messages how many of its run come after it.
func Behind(n int, runs []Run) []int64 {
	behind := make([]int64, n)
	for i := range runs {
		for nth, m := range runs[i].Messages {
			behind[m] = int64(len(runs[i].Messages) - 1 - nth)
		}
	}
	return behind
}

// ErrCannotRead is what [LookUp] says of a transaction that cannot read.
var ErrCannotRead = errors.New("the transaction cannot read: pass a *sql.Tx, or what the engine makes of its driver's own")

// LookUp reads one number in the caller's transaction. It is not valid when there is no
// row.
func LookUp(ctx context.Context, tx any, statement string, args ...any) (n sql.Null[int64], err error) {
	asks, ok := tx.(interface {
		QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	})
	if !ok {
		return n, ErrCannotRead
	}
	if err = asks.QueryRowContext(ctx, statement, args...).Scan(&n.V); errors.Is(err, sql.ErrNoRows) {
		return n, nil
	}
	n.Valid = err == nil
	return n, err
}

// Refusal is a run whose First is not the next revision of its key.
type Refusal struct {
	// Run is its place in the call.
	Run int
	// Last is the last revision of the key, 0 for none. It is not valid when the
	// transaction is of a kind that cannot read, which an engine that has to may refuse.
	Last sql.Null[int64]
}

// Revision is a place in the order of a key.
type Revision struct {
	Key     string
	KeyHash int64
	Number  int64
}

// Partitioner is an optional interface of a Store whose engine can keep done in
// partitions, one a day (UTC), so that what is past the retention is dropped whole and
// its space returned. What no day's partition takes goes to one for the rest, so that
// archiving never fails for want of one. All other operations are the same.
type Partitioner interface {
	// PartitionSQL is DDL that puts done into partitions, for a DBA to read or run
	// behind Steps.
	PartitionSQL() string
	// PartitionDone puts a plain done table into partitions, with everything that is in
	// it. It returns false when it was in partitions. After an error that is not of class
	// [Other] it may be called again, and goes on.
	PartitionDone(ctx context.Context, db DB) (bool, error)
	// KeepPartitions makes the partitions of today and of days ahead, and drops those of
	// which everything was settled at least olderThan ago. It waits for each lock no
	// longer than about a second, and so does whoever comes behind it; a [Conflict]
	// error tells that it had to give up, and is for a later call. It does nothing to
	// a plain table, nor as a user who may not. Several at once do not disturb each other.
	KeepPartitions(ctx context.Context, db DB, olderThan time.Duration) (Partitions, error)
}

// Partitions are what KeepPartitions found and did.
type Partitions struct {
	// Partitioned tells that done is in partitions.
	Partitioned bool
	// Made and Dropped count partitions.
	Made, Dropped int
	// Denied tells that this user may not change the table, so that nothing was made or
	// dropped. An engine that finds out by trying does not set it while there is nothing
	// to do.
	Denied bool
}

// Waker is an optional interface of a Store whose engine can wake relays in
// other processes. No promise depends on it: a lost wake-up costs one poll
// interval.
type Waker interface {
	// Wake signals all listeners. It runs outside any business transaction.
	Wake(ctx context.Context, db DB) error
	// Listen calls wake at every signal until the context ends or the
	// connection is lost, and says why it ended. It needs a session of its own.
	Listen(ctx context.Context, db *sql.DB, wake func()) error
}

// Granter is an optional interface of a Store whose engine has users.
type Granter interface {
	// Grants returns the statements that give the least privileges on the tables
	// to four roles: outbox_producer, outbox_relay, outbox_operator and
	// outbox_consumer. They are for a DBA to read or run, once the tables and the
	// roles are there; each ends with a semicolon at the end of a line.
	Grants() string
}
