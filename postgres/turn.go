package postgres

import (
	"context"
	"database/sql"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outbox-suite/outbox/dialect"
)

// Poll returns lanes to claim; one statement that locks nothing.
func (s *store) Poll(ctx context.Context, db dialect.DB, owner string, limit int) ([]dialect.Candidate, error) {
	return s.PollAbove(ctx, db, owner, 0, limit)
}

// PollAbove implements [dialect.Sweeper].
func (s *store) PollAbove(ctx context.Context, db dialect.DB, owner string, floor int64, limit int) ([]dialect.Candidate, error) {
	return query(ctx, db, candidate, s.sql.poll, owner, limit, floor)
}

func candidate(c *dialect.Candidate) []any { return []any{&c.Lane, &c.Epoch, &c.Due} }

// Horizon implements [dialect.Sweeper]. The sequence is read first: whoever was given a
// seq by then had a transaction number before, and the second statement sees it.
func (s *store) Horizon(ctx context.Context, db dialect.DB, floor int64) (h dialect.Horizon, err error) {
	if _, err := query1(ctx, db, []any{&h.Newest}, s.sql.lastSeq, s.name("{ready}")); err != nil {
		return h, err
	}
	_, err = query1(ctx, db, []any{&h.Begun, &h.Running, &h.Oldest}, s.sql.horizon, floor)
	return h, err
}

// Pending tells whether there is work, and whether others are at it.
func (s *store) Pending(ctx context.Context, db dialect.DB, owner string) (work, held bool, err error) {
	_, err = query1(ctx, db, []any{&work, &held}, s.sql.pending, owner)
	return work, held, err
}

// Claim takes a lane in one statement, passing by a locked one.
func (s *store) Claim(ctx context.Context, db dialect.DB, lane int, owner string, ttl time.Duration) (epoch int64, ok bool, err error) {
	ok, err = query1(ctx, db, []any{&epoch}, s.sql.claim, lane, owner, micros(ttl))
	return epoch, ok, err
}

// Extend renews a lease in one statement.
func (s *store) Extend(ctx context.Context, db dialect.DB, lease dialect.Lease, ttl time.Duration) (bool, error) {
	n, err := exec(ctx, db, s.sql.extend, lease.Lane, lease.Owner, lease.Epoch, micros(ttl))
	return n == 1, err
}

// Release ends a lease in one statement.
func (s *store) Release(ctx context.Context, db dialect.DB, lease dialect.Lease) error {
	_, err := exec(ctx, db, s.sql.release, lease.Lane, lease.Owner, lease.Epoch)
	return err
}

// surfacedTwice is the reason of a scheduled message that found its id taken.
const surfacedTwice = "a message with this id is ready already"

// Surface looks first and locks nothing when nothing is due. Otherwise it moves
// the due messages in one statement behind the fence, in a transaction that does
// not wait long for others: it is then a [dialect.Conflict].
func (s *store) Surface(ctx context.Context, db dialect.DB, lease dialect.Lease, limit int) (moved int, ok bool, err error) {
	var due bool
	if _, err := query1(ctx, db, []any{&ok, &due}, s.sql.surfaceDue, lease.Lane, lease.Owner, lease.Epoch); err != nil || !ok || !due {
		return 0, ok && err == nil, err
	}
	ok, err = inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
		if _, err := exec(ctx, tx, surfaceTimeoutSQL); err != nil {
			return false, err
		}
		var held bool
		_, err := query1(ctx, tx, []any{&moved, &held}, s.sql.surface,
			lease.Lane, lease.Owner, lease.Epoch, limit, s.name("{ready}"), surfacedTwice)
		return held, err
	})
	if err != nil || !ok {
		return 0, false, err
	}
	return moved, true, nil
}

// Ready reads a batch in one statement.
func (s *store) Ready(ctx context.Context, db dialect.DB, lane int, after int64, limit dialect.Limit) ([]dialect.Row, error) {
	return messages(ctx, db, batchOf{lane, limit, readyColumns, decodeReady}, s.sql.ready, lane, after, limit.Rows, bytes(limit))
}

// Due reads the heads that are due and what waits behind them in one statement.
func (s *store) Due(ctx context.Context, db dialect.DB, lane int, limit dialect.Limit) ([]dialect.Row, error) {
	return messages(ctx, db, batchOf{lane, limit, parkedColumns, decodeParked}, s.sql.due, lane, limit.Rows, bytes(limit))
}

func bytes(limit dialect.Limit) int64 {
	if limit.Bytes <= 0 {
		return math.MaxInt64
	}
	return limit.Bytes
}

// Settle is one statement when nothing but ready rows that were published is
// named, which is the usual case, and one transaction otherwise.
func (s *store) Settle(ctx context.Context, db dialect.DB, lease dialect.Lease, ttl time.Duration, t dialect.Settlement) (bool, error) {
	if len(t.PublishedParked)+len(t.Hold)+len(t.Failed)+len(t.FailedParked) == 0 {
		return s.settlePublished(ctx, db, lease, ttl, t)
	}
	return inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
		ok, err := s.settlePublished(ctx, tx, lease, ttl, t)
		if err != nil || !ok {
			return false, err
		}
		return true, s.settleParked(ctx, tx, lease.Lane, t)
	})
}

// settlePublished is the fence and the ready rows that were published.
func (s *store) settlePublished(ctx context.Context, on querier, lease dialect.Lease, ttl time.Duration, t dialect.Settlement) (ok bool, err error) {
	text := s.sql.settle
	if t.Archive {
		text = s.sql.settleArchive
	}
	named := refs(t.Published)
	var least, greatest any // NULL where no row is named
	if place := named[0].([]int64); len(place) > 0 {
		least, greatest = slices.Min(place), slices.Max(place)
	}
	var idle string
	_, err = query1(ctx, on, []any{&ok, &idle}, text,
		lease.Lane, lease.Owner, lease.Epoch, micros(ttl), named[0], named[1], least, greatest)
	return ok, err
}

// settleParked is everything that changes parked rows, and what follows for
// their keys.
func (s *store) settleParked(ctx context.Context, tx *sql.Tx, lane int, t dialect.Settlement) error {
	publishParked := s.sql.publishParked
	if t.Archive {
		publishParked = s.sql.publishParkedArchive
	}
	steps := []struct {
		rows int
		text string
		args []any
	}{
		{len(t.PublishedParked), publishParked, refs(t.PublishedParked)},
		{len(t.Failed), s.sql.fail, failures(t.Failed)},
		{len(t.FailedParked), s.sql.failParked, failures(t.FailedParked)},
		{len(t.Hold), s.sql.hold, refs(t.Hold)},
	}
	var keys []int64
	for _, step := range steps {
		if step.rows == 0 {
			continue
		}
		changed, err := query(ctx, tx, one[int64], step.text, append([]any{lane}, step.args...)...)
		if err != nil {
			return err
		}
		keys = append(keys, changed...)
	}
	return s.promote(ctx, tx, lane, keys)
}

// promote sees to it that the first row of each key is its head. The caller
// holds the lane row's lock.
func (s *store) promote(ctx context.Context, tx *sql.Tx, lane int, keys []int64) error {
	if len(keys) == 0 {
		return nil
	}
	slices.Sort(keys)
	_, err := exec(ctx, tx, s.sql.promote, lane, slices.Compact(keys))
	return err
}

// refs turns the names of rows on their side: an array of places and one of ids.
func refs(list []dialect.Ref) []any {
	place, id := make([]int64, len(list)), make([]pgtype.UUID, len(list))
	for i := range list {
		place[i], id[i] = list[i].Place, pgtype.UUID{Bytes: list[i].ID, Valid: true}
	}
	return []any{place, id}
}

// failures turns failures on their side, an array a column.
func failures(list []dialect.Failure) []any {
	var (
		row, delay     []int64
		id             []pgtype.UUID
		attempts       []int32
		dead, blocking []bool
		reason         []string
	)
	for _, f := range list {
		row = append(row, f.Place)
		id = append(id, pgtype.UUID{Bytes: f.ID, Valid: true})
		attempts = append(attempts, int32(min(f.Attempts, math.MaxInt32))) //nolint:gosec // bounded
		dead = append(dead, f.Dead)
		delay = append(delay, micros(f.Delay))
		blocking = append(blocking, f.Blocking)
		reason = append(reason, f.Reason)
	}
	return []any{row, id, attempts, dead, delay, blocking, reason}
}
