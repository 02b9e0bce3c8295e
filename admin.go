package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox/dialect"
)

// Stats are counts of messages and lanes.
type Stats = dialect.Stats

// Parked is a parked message as an operator sees it.
type Parked = dialect.Parked

// The states of a parked message.
const (
	Scheduled = dialect.Scheduled
	Retry     = dialect.Retry
	Held      = dialect.Held
	Dead      = dialect.Dead
)

// DefaultCount is where [Outbox.Stats] stops counting by default.
const DefaultCount = 1_000_000

// adminBatch is the most messages that one transaction of an operator's
// command changes.
const adminBatch = 500

// Filter selects messages for an operator. All fields that are set must match.
// The zero Filter is refused where it would change anything: set All to mean
// everything.
type Filter struct {
	All bool
	IDs []uuid.UUID
	// Key selects messages of one key; with an empty Key set EmptyKey.
	Key      string
	EmptyKey bool
	Topic    string
	Type     string
	// States selects parked messages. Default: dead, or any state where IDs are
	// given or messages are only listed.
	States []string
	// Since and Until select done messages by when they were settled, as ages
	// by the database's clock: less than Since ago, and at least Until ago.
	// 0 is no bound.
	Since, Until time.Duration
}

func (f Filter) toDialect() (dialect.Filter, error) {
	d := dialect.Filter{
		All: f.All, Topic: f.Topic, Type: f.Type, States: f.States,
		DoneWithin: f.Since, DoneBefore: f.Until,
	}
	for _, id := range f.IDs {
		d.IDs = append(d.IDs, id)
	}
	if f.Key != "" || f.EmptyKey {
		d.Key = sql.Null[string]{V: f.Key, Valid: true}
	}
	for _, s := range f.States {
		if !slices.Contains([]string{Scheduled, Retry, Held, Dead}, s) {
			return d, &InvalidError{Field: "state", Reason: fmt.Sprintf("%q is unknown: use scheduled, retry, held or dead", clip(s))}
		}
	}
	if f.Since < 0 || f.Until < 0 {
		return d, &InvalidError{Field: "since and until", Reason: "are ages: give durations of 0 or more"}
	}
	return d, nil
}

// selects tells whether the filter names anything at all.
func (f Filter) selects() bool {
	return f.All || len(f.IDs) > 0 || f.Key != "" || f.EmptyKey || f.Topic != "" || f.Type != "" ||
		len(f.States) > 0 || f.Since > 0 || f.Until > 0
}

// forChange is the filter of a command that changes parked messages.
func (f Filter) forChange() (dialect.Filter, error) {
	if !f.selects() {
		return dialect.Filter{}, &InvalidError{Field: "filter", Reason: "is empty: select messages by id, key, topic, type or state, or say all"}
	}
	if len(f.States) == 0 && len(f.IDs) == 0 {
		f.States = []string{Dead}
	}
	return f.toDialect()
}

// Stats counts messages and lanes. Each count stops at [DefaultCount], so that
// asking stays cheap with any backlog.
func (o *Outbox) Stats(ctx context.Context) (Stats, error) {
	s, err := o.store.Stats(ctx, o.db, DefaultCount)
	return s, o.wrap("stats", err)
}

// Parked lists up to limit parked messages with Pos above after, in Pos order;
// an empty filter lists all. To page, pass the last Pos.
func (o *Outbox) Parked(ctx context.Context, f Filter, after int64, limit int) ([]Parked, error) {
	if limit < 1 {
		return nil, fmt.Errorf("parked: %w", &InvalidError{Field: "limit", Reason: fmt.Sprintf("is %d: give a number above 0", limit)})
	}
	if !f.selects() {
		f.All = true
	}
	d, err := f.toDialect()
	if err != nil {
		return nil, fmt.Errorf("parked: %w", err)
	}
	list, err := o.store.Parked(ctx, o.db, d, after, limit)
	return list, o.wrap("parked", err)
}

// Requeue makes parked messages due at once; dead ones begin with no failed
// attempts. Ids and content stay. Messages of one key keep their order, before
// newer ones of the key. It changes at most limit messages, 0 for all, a few
// hundred a transaction, and returns how many; after an error that many are
// done. Without States or IDs only dead messages are meant.
func (o *Outbox) Requeue(ctx context.Context, f Filter, limit int) (int, error) {
	d, err := f.forChange()
	if err != nil {
		return 0, fmt.Errorf("requeue: %w", err)
	}
	n, err := inBatches(limit, func(n int) (int, error) { return o.store.Requeue(ctx, o.db, d, n) })
	if n > 0 {
		o.Wake() //nolint:contextcheck // the signal outlives the call
	}
	return n, o.wrap("requeue", err)
}

// Discard gives parked messages up: they move to done with the outcome
// discarded, and what waited behind them goes on. Bounds, count and default
// selection are those of [Outbox.Requeue].
func (o *Outbox) Discard(ctx context.Context, f Filter, limit int) (int, error) {
	d, err := f.forChange()
	if err != nil {
		return 0, fmt.Errorf("discard: %w", err)
	}
	n, err := inBatches(limit, func(n int) (int, error) { return o.store.Discard(ctx, o.db, d, n) })
	if n > 0 {
		o.Wake() //nolint:contextcheck // the signal outlives the call
	}
	return n, o.wrap("discard", err)
}

// Replay publishes done messages again, oldest first: each goes back to ready
// with the same id, marked as a replay so that a broker's duplicate window lets
// it through. Ids that are ready are skipped. Bounds and count are those of
// [Outbox.Requeue].
func (o *Outbox) Replay(ctx context.Context, f Filter, limit int) (int, error) {
	if !f.selects() {
		return 0, fmt.Errorf("replay: %w", &InvalidError{Field: "filter", Reason: "is empty: select messages by id, key, topic, type or time, or say all"})
	}
	if len(f.States) > 0 {
		return 0, fmt.Errorf("replay: %w", &InvalidError{Field: "state", Reason: "selects parked messages: use Requeue for those"})
	}
	d, err := f.toDialect()
	if err != nil {
		return 0, fmt.Errorf("replay: %w", err)
	}
	total, cursor := 0, (*dialect.Cursor)(nil)
	for limit == 0 || total < limit {
		n := adminBatch
		if limit > 0 {
			n = min(n, limit-total)
		}
		replayed, next, err := o.store.Replay(ctx, o.db, d, cursor, n)
		total += replayed
		if err != nil {
			return total, o.wrap("replay", err)
		}
		if next == nil {
			break
		}
		cursor = next
	}
	if total > 0 {
		o.Wake() //nolint:contextcheck // the signal outlives the call
	}
	return total, nil
}

// Purge deletes done messages settled at least olderThan ago, at most limit, 0
// for all, in bounded transactions, and returns how many. Messages that are
// ready or parked are never touched.
func (o *Outbox) Purge(ctx context.Context, olderThan time.Duration, limit int) (int, error) {
	if olderThan < 0 {
		return 0, fmt.Errorf("purge: %w", &InvalidError{Field: "older than", Reason: "is an age: give a duration of 0 or more"})
	}
	n, err := inBatches(limit, func(n int) (int, error) { return o.store.Purge(ctx, o.db, olderThan, n) })
	return n, o.wrap("purge", err)
}

// inBatches calls do with bounded numbers until it does less than asked, or
// limit is reached; 0 is no limit.
func inBatches(limit int, do func(n int) (int, error)) (int, error) {
	total := 0
	for limit == 0 || total < limit {
		ask := adminBatch
		if limit > 0 {
			ask = min(ask, limit-total)
		}
		n, err := do(ask)
		total += n
		if err != nil || n < ask {
			return total, err
		}
	}
	return total, nil
}
