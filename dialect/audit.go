package dialect

import (
	"context"
	"database/sql"
	"time"
)

// Auditor is an optional interface of a Store that keeps what operators did. Entries are
// added and never changed: who may act may not rewrite what he did.
type Auditor interface {
	// WriteAudit adds the entry, with the database's time, in a transaction of its own.
	// An entry with the same ID and the same Ended that is there already yields a
	// [Duplicate] error.
	WriteAudit(ctx context.Context, db DB, entry AuditEntry) error
	// Audit lists up to limit actions whose Pos is below before, newest first.
	Audit(ctx context.Context, db DB, before int64, limit int) ([]Audited, error)
}

// AuditEntry is one of the two entries of an action: that it begins, and how it ended.
// The texts are valid UTF-8 without NUL, and as long as the limits say at most.
type AuditEntry struct {
	// ID is the action's, the same in both entries.
	ID [16]byte
	// Ended tells the second entry from the first.
	Ended bool
	// Who acts, at most [MaxWho] bytes.
	Who string
	// Action is what is done, at most [MaxAction] bytes.
	Action string
	// Selection says to which messages, at most [MaxSelection] bytes.
	Selection string
	// Why is the reason that was given, empty for none, at most [MaxWhy] bytes.
	Why string
	// Changed is how many messages were changed; of the second entry only.
	Changed int64
	// Failure is why the action ended early, empty when it did not, at most [MaxReason]
	// bytes; of the second entry only.
	Failure string
}

// The most bytes of the texts of an [AuditEntry].
const (
	MaxWho       = 255
	MaxAction    = 32
	MaxSelection = 2000
	MaxWhy       = 1000
)

// Audited is an action as it is listed. Changed and Failure are those of the second entry.
type Audited struct {
	AuditEntry
	// Pos names the first entry.
	Pos int64
	// BegunAt and EndedAt are the database's times of the entries, UTC. Without the
	// second entry EndedAt is not valid: the action is under way, or whoever did it died,
	// and how many messages were changed is not known.
	BegunAt time.Time
	EndedAt sql.Null[time.Time]
}

// Viewer is an optional interface of a Store that shows people more than its counts. No
// operation locks anything, and none costs more with more messages stored.
type Viewer interface {
	// ViewLanes lists all lanes.
	ViewLanes(ctx context.Context, db DB) ([]LaneState, error)
	// ViewDone lists the newest limit done messages, newest first.
	ViewDone(ctx context.Context, db DB, limit int) ([]Settled, error)
	// ViewReasons lists the reasons of the newest limit parked messages, newest first.
	ViewReasons(ctx context.Context, db DB, limit int) ([]ParkedReason, error)
	// ViewMessage lists the rows of a message, in no order: of one that was replayed
	// there is another one for each time.
	ViewMessage(ctx context.Context, db DB, id [16]byte) ([]Standing, error)
}

// Standing is a row of a message, and so where it stands, without its content.
type Standing struct {
	// State is [Ready], the state of a parked message or the outcome of a done one.
	State string
	Lane  int
	// Seq is the place in the order; 0 where there is none yet.
	Seq   int64
	Topic string
	Key   sql.Null[string]
	Type  string
	// Attempts counts the publish attempts that failed, and the one that did not.
	Attempts int
	// Replay counts how often the message was replayed before it came here.
	Replay int
	// Reason is the last error text, or why a message was discarded; empty for none.
	Reason string
	// Age is how long ago the message was inserted, Since how long ago it came here.
	Age, Since time.Duration
	// DueIn is how long until the message is due, negative when overdue; valid for
	// scheduled and retry.
	DueIn sql.Null[time.Duration]
}

// LaneState is a lane as an operator sees it.
type LaneState struct {
	Lane int
	// Owner is who has the lease, or had it last and never gave it back; empty for nobody.
	Owner string
	Epoch int64
	// Left is how long the lease still runs, negative since it has ended; without an
	// owner it says nothing.
	Left time.Duration
	// Served is how long ago the lane was last claimed or settled; not valid for never.
	Served sql.Null[time.Duration]
}

// Settled is a done message without its content.
type Settled struct {
	// Pos grows with every row of the done table; numbers may be left out.
	Pos int64
	// Ago is how long ago it was settled.
	Ago time.Duration
	// Took is the time between its insert and that.
	Took time.Duration
	// First tells of a message that was published, and not a replay.
	First bool
}

// ParkedReason is why a message is parked, without its content. The reason is empty when
// nothing has failed.
type ParkedReason struct {
	State, Topic, Reason string
}
