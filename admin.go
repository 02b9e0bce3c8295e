package outbox

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/binary"
	"errors"
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

// Standing is where a message stands, without its content.
type Standing = dialect.Standing

// The states of a message: it is ready, parked in one of four, or done in one of two.
const (
	Ready     = dialect.Ready
	Scheduled = dialect.Scheduled
	Retry     = dialect.Retry
	Held      = dialect.Held
	Dead      = dialect.Dead
	Published = dialect.Published
	Discarded = dialect.Discarded
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
	return f.ofParked().toDialect()
}

// ofParked is what a filter means for a command that changes parked messages: dead ones,
// where nothing else is said.
func (f Filter) ofParked() Filter {
	if len(f.States) == 0 && len(f.IDs) == 0 {
		f.States = []string{Dead}
	}
	return f
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

// Find tells where a message stands, the latest place first. A message that was replayed
// stands in done once for each time it was published, and where it is now. Nothing is
// returned for a message that was never committed here, or is gone: published without a
// retention, or purged. It reads by index and locks nothing. With an engine whose Store
// is no [dialect.Viewer] the error matches [errors.ErrUnsupported].
func (o *Outbox) Find(ctx context.Context, id uuid.UUID) ([]Standing, error) {
	viewer, ok := o.store.(dialect.Viewer)
	if !ok {
		return nil, fmt.Errorf("find (%s): %w", o.dialect.Name(), errors.ErrUnsupported)
	}
	list, err := viewer.ViewMessage(ctx, o.db, id)
	slices.SortStableFunc(list, func(a, b Standing) int { return cmp.Compare(a.Since, b.Since) })
	return list, o.wrap("find", err)
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
// it through. Ids that are ready or parked are skipped. Bounds and count are those of
// [Outbox.Requeue].
func (o *Outbox) Replay(ctx context.Context, f Filter, limit int) (int, error) {
	return o.ReplayWith(ctx, f, ReplayOptions{Limit: limit})
}

// ReplayOptions say how a replay goes. The zero value replays all that match, as fast
// as it can be done.
type ReplayOptions struct {
	// Limit is the most messages to replay. 0 is no limit.
	Limit int
	// Rate is the most messages a second, in smaller steps the smaller it is, so that
	// relays and producers keep their pace. 0 is no bound.
	Rate int
	// DryRun counts what would be replayed, and changes nothing.
	DryRun bool
	// Resume goes on from a place that Progress was told, or [ReplayError] has. The
	// filter is the same; its times are those of the first call, whatever they say now.
	Resume string
	// Progress is called before the first step and after each, with the number of
	// messages so far in this call, and the place to resume from. It must return soon.
	Progress func(messages int, resume string)
}

// ReplayError is a replay that ended before its end. It wraps the error.
type ReplayError struct {
	// Replayed is how many messages were replayed before.
	Replayed int
	// Resume is the place to go on from: see [ReplayOptions].
	Resume string
	Err    error
}

// Error is that of the error wrapped.
func (e *ReplayError) Error() string { return e.Err.Error() }

// Unwrap returns the error wrapped.
func (e *ReplayError) Unwrap() error { return e.Err }

// ReplayWith is [Outbox.Replay] with options. It replays in steps, each a transaction
// of its own, and returns how many messages that were, or would be. A step that is
// under way when ctx ends is finished first.
//
// An error behind the first step is a [*ReplayError]. To resume from any place of
// the replay, the first as well, marks no message twice: a message that waits is
// skipped, and so is one that was done since the replay began. That takes the
// message's new row in done; where relays keep nothing of what was published, what
// lies behind the place resumed from is replayed again.
func (o *Outbox) ReplayWith(ctx context.Context, f Filter, opts ReplayOptions) (int, error) {
	d, cursor, err := o.replayOf(f, opts)
	if err != nil {
		return 0, err
	}
	step := o.store.Replay
	if opts.DryRun {
		step = o.store.Replayable
	}
	if cursor == nil {
		if _, cursor, err = o.store.Replayable(ctx, o.db, d, nil, 0); err != nil || cursor == nil {
			return 0, o.wrap("replay", err)
		}
	}
	r := replay{limit: opts.Limit, rate: opts.Rate, began: time.Now()} //nolint:forbidigo // a pace is this process's own
	if opts.DryRun {
		r.rate = 0
	}
	defer func() { //nolint:contextcheck // the signal outlives the call
		if r.done > 0 && !opts.DryRun {
			o.Wake()
		}
	}()
	for {
		place := o.place(d, *cursor)
		if opts.Progress != nil {
			opts.Progress(r.done, place)
		}
		n := r.next()
		if n == 0 {
			return r.done, nil
		}
		err := r.wait(ctx)
		if err == nil {
			var did int
			did, cursor, err = r.step(ctx, func(ctx context.Context) (int, *dialect.Cursor, error) {
				return step(ctx, o.db, d, cursor, n)
			})
			r.done += did
		}
		if err != nil {
			return r.done, &ReplayError{Replayed: r.done, Resume: place, Err: o.wrap("replay", err)}
		}
		if cursor == nil {
			return r.done, nil
		}
	}
}

// replay is how far a replay is, and its pace.
type replay struct {
	limit, rate, done int
	began             time.Time
}

// next is how many rows the next step may look at: at a rate those of a tenth of a
// second.
func (r *replay) next() int {
	n := adminBatch
	if r.rate > 0 {
		n = min(n, max(1, r.rate/10))
	}
	if r.limit > 0 {
		n = min(n, r.limit-r.done)
	}
	return n
}

// wait waits until the rate allows the next step.
func (r *replay) wait(ctx context.Context) error {
	if r.rate == 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	due := r.began.Add(time.Duration(float64(r.done) / float64(r.rate) * float64(time.Second)))
	if late := time.Since(due); late > replayLate { //nolint:forbidigo // a pace is this process's own
		r.began = r.began.Add(late) // what a stall has cost is not made up for
	}
	timer := time.NewTimer(time.Until(due)) //nolint:forbidigo // a pace is this process's own
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// replayLate is how late a step may be without the pace beginning anew.
const replayLate = 100 * time.Millisecond

// replayGrace is how long a step may go on after the end of the caller's context.
const replayGrace = 10 * time.Second

// step runs one step to its end, so that its outcome is known.
func (r *replay) step(ctx context.Context, do func(context.Context) (int, *dialect.Cursor, error)) (int, *dialect.Cursor, error) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		timer := time.NewTimer(replayGrace)
		defer timer.Stop()
		select {
		case <-own.Done():
		case <-timer.C:
			cancel()
		}
	})()
	return do(own)
}

// place writes a cursor as text, with a sum over the tables and the filter, whose
// times are in the cursor.
func (o *Outbox) place(f dialect.Filter, c dialect.Cursor) string {
	b := make([]byte, 0, 44)
	for _, n := range []int64{c.DoneAt, c.Pos, c.From, c.Until, c.Begun} {
		b = binary.BigEndian.AppendUint64(b, uint64(n)) //nolint:gosec // the same 64 bits
	}
	return base64.RawURLEncoding.EncodeToString(append(b, o.selection(f)...))
}

// replayOf refuses what cannot be replayed, and returns the selection and, with
// [ReplayOptions.Resume], where it goes on.
func (o *Outbox) replayOf(f Filter, opts ReplayOptions) (d dialect.Filter, from *dialect.Cursor, err error) {
	invalid := func(field, reason string) error { return &InvalidError{Field: field, Reason: reason} }
	switch {
	case !f.selects():
		err = invalid("filter", "is empty: select messages by id, key, topic, type or time, or say all")
	case len(f.States) > 0:
		err = invalid("state", "selects parked messages: use Requeue for those")
	case opts.Limit < 0 || opts.Rate < 0:
		err = invalid("limit and rate", "are numbers of messages: give 0 or more")
	default:
		d, err = f.toDialect()
	}
	if err == nil && opts.Resume != "" {
		from = new(dialect.Cursor)
		*from, err = o.resume(d, opts.Resume)
	}
	if err != nil {
		return d, nil, fmt.Errorf("replay: %w", err)
	}
	return d, from, nil
}

// resume is place turned back.
func (o *Outbox) resume(f dialect.Filter, place string) (dialect.Cursor, error) {
	b, err := base64.RawURLEncoding.DecodeString(place)
	switch {
	case err != nil || len(b) != 44:
		return dialect.Cursor{}, &InvalidError{Field: "resume", Reason: "is no place of a replay: give it as it was told"}
	case !bytes.Equal(b[40:], o.selection(f)):
		return dialect.Cursor{}, &InvalidError{Field: "resume", Reason: "is of a replay of other messages: give the same outbox and selection again"}
	}
	var n [5]int64
	for i := range n {
		n[i] = int64(binary.BigEndian.Uint64(b[8*i:])) //nolint:gosec // the same 64 bits
	}
	return dialect.Cursor{DoneAt: n[0], Pos: n[1], From: n[2], Until: n[3], Begun: n[4]}, nil
}

// selection is a sum over the tables and what a filter selects.
func (o *Outbox) selection(f dialect.Filter) []byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %x %q %q %q",
		o.tables.Schema, o.tables.Prefix, fmt.Sprint(f.Key), f.IDs, f.Topic, f.Type, fmt.Sprint(f.All)))
	return sum[:4]
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

// Purgeable counts what [Outbox.Purge] would delete now, and changes nothing. The
// count stops at [DefaultCount].
func (o *Outbox) Purgeable(ctx context.Context, olderThan time.Duration) (int, error) {
	if olderThan < 0 {
		return 0, fmt.Errorf("purge: %w", &InvalidError{Field: "older than", Reason: "is an age: give a duration of 0 or more"})
	}
	n, err := o.store.Purgeable(ctx, o.db, olderThan, DefaultCount)
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
