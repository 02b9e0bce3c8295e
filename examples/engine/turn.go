package engine

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// micros is a duration as the statements take it, rounded up, so that nothing is early.
func micros(d time.Duration) int64 { return int64((d + time.Microsecond - 1) / time.Microsecond) }

// list is a list as the statements take it.
func list[T any](items []T) (string, error) {
	text, err := json.Marshal(items)
	return string(text), err
}

// Insert implements [dialect.Producer]. The database runs in the program, so a statement
// for each message is no round trip; on a server it would have to be one for all.
func (s *store) Insert(ctx context.Context, tx dialect.Tx, messages []dialect.Message) error {
	for i := range messages {
		m := &messages[i]
		revision := sql.Null[int64]{V: m.Revision, Valid: m.Revision != 0}
		var payload any // NULL
		if m.Payload != nil {
			payload = m.Payload
		}
		args := []any{
			m.Lane, m.ID[:], m.Topic, m.Key, m.KeyHash, m.Type, m.ContentType, m.Headers, revision, m.Replay, payload,
		}
		query := s.sql.insertReady
		if m.Delay > 0 {
			query, args = s.sql.insertScheduled, append(args, micros(m.Delay))
		}
		if _, err := tx.ExecContext(ctx, query, args...); err != nil {
			return err
		}
	}
	return nil
}

// Poll implements [dialect.Lanes].
func (s *store) Poll(ctx context.Context, db dialect.DB, owner string, limit int) ([]dialect.Candidate, error) {
	return query(ctx, db, func(rows *sql.Rows) (c dialect.Candidate, err error) {
		err = rows.Scan(&c.Lane, &c.Epoch, &c.Due)
		return c, err
	}, s.sql.poll, owner, limit)
}

// Pending implements [dialect.Lanes].
func (s *store) Pending(ctx context.Context, db dialect.DB, owner string) (work, held bool, err error) {
	err = db.QueryRowContext(ctx, s.sql.pending, owner).Scan(&work, &held)
	return work, held, err
}

// Claim implements [dialect.Lanes].
func (s *store) Claim(ctx context.Context, db dialect.DB, lane int, owner string, ttl time.Duration) (epoch int64, ok bool, err error) {
	err = write(ctx, db, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, s.sql.claim, lane, owner, micros(ttl)).Scan(&epoch)
	})
	if errors.Is(err, sql.ErrNoRows) {
		return 0, false, nil
	}
	return epoch, err == nil, err
}

// Extend implements [dialect.Lanes].
func (s *store) Extend(ctx context.Context, db dialect.DB, lease dialect.Lease, ttl time.Duration) (ok bool, err error) {
	n, err := affected(db.ExecContext(ctx, s.sql.extend, lease.Lane, lease.Owner, lease.Epoch, micros(ttl)))
	return n == 1, err
}

// Release implements [dialect.Lanes].
func (s *store) Release(ctx context.Context, db dialect.DB, lease dialect.Lease) error {
	_, err := db.ExecContext(ctx, s.sql.release, lease.Lane, lease.Owner, lease.Epoch)
	return err
}

// errLost is for fenced alone.
var errLost = errors.New("the lease is lost")

// fenced runs do in a transaction that has locked the lane's row under the lease, which
// it renews to ttl from now unless that is 0.
func (s *store) fenced(ctx context.Context, db dialect.DB, lease dialect.Lease, ttl time.Duration, do func(tx *sql.Tx) error) (ok bool, err error) {
	err = write(ctx, db, func(tx *sql.Tx) error {
		n, err := affected(tx.ExecContext(ctx, s.sql.fence, lease.Lane, lease.Owner, lease.Epoch, micros(ttl)))
		if err != nil {
			return err
		}
		if n == 0 {
			return errLost
		}
		return do(tx)
	})
	if errors.Is(err, errLost) {
		return false, nil
	}
	return err == nil, err
}

// Surface implements [dialect.Turn].
func (s *store) Surface(ctx context.Context, db dialect.DB, lease dialect.Lease, limit int) (moved int, ok bool, err error) {
	ok, err = s.fenced(ctx, db, lease, 0, func(tx *sql.Tx) error {
		due, err := column[int64](ctx, tx, s.sql.surfaceable, lease.Lane, limit)
		if err != nil || len(due) == 0 {
			return err
		}
		positions, err := list(due)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, s.sql.surfaceTwins, positions); err != nil {
			return err
		}
		if moved, err = affected(tx.ExecContext(ctx, s.sql.surfaceReady, positions)); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, s.sql.surfaceGone, positions)
		return err
	})
	if !ok {
		moved = 0
	}
	return moved, ok, err
}

// Due implements [dialect.Turn].
func (s *store) Due(ctx context.Context, db dialect.DB, lane int, limit dialect.Limit) ([]dialect.Row, error) {
	// A transaction that only reads sees one snapshot.
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer tx.Rollback() //nolint:errcheck // there is nothing to undo
	type head struct {
		pos     int64
		keyHash sql.Null[int64]
	}
	heads, err := query(ctx, tx, func(rows *sql.Rows) (h head, err error) {
		return h, rows.Scan(&h.pos, &h.keyHash)
	}, s.sql.dueHeads, lane, limit.Rows)
	if err != nil {
		return nil, err
	}
	due := reader{limit: limit}
	for _, h := range heads {
		if err := due.read(ctx, tx, s.sql.parkedRow, h.pos); err != nil {
			return nil, err
		}
		if !h.keyHash.Valid {
			continue
		}
		if err := due.read(ctx, tx, s.sql.heldBehind, lane, h.keyHash.V, h.pos, limit.Rows); err != nil {
			return nil, err
		}
	}
	return due.rows, nil
}

// Ready implements [dialect.Turn].
func (s *store) Ready(ctx context.Context, db dialect.DB, lane int, after int64, limit dialect.Limit) ([]dialect.Row, error) {
	ready := reader{limit: limit}
	err := ready.read(ctx, db, s.sql.ready, lane, after, limit.Rows)
	return ready.rows, err
}

// Settle implements [dialect.Turn].
func (s *store) Settle(ctx context.Context, db dialect.DB, lease dialect.Lease, ttl time.Duration, what dialect.Settlement) (ok bool, err error) {
	park := append(outcomes(what.Hold, dialect.Held), failures(what.Failed)...)
	again := failures(what.FailedParked)
	return s.fenced(ctx, db, lease, ttl, func(tx *sql.Tx) error {
		// The keys come first: what is moved cannot be asked for its key.
		var keys []key
		for _, from := range []struct {
			query string
			rows  []outcome
		}{
			{s.sql.keysOfReady, park},
			{s.sql.keysOfParked, append(outcomes(what.PublishedParked, ""), again...)},
		} {
			if len(from.rows) == 0 {
				continue
			}
			rows, err := list(from.rows)
			if err != nil {
				return err
			}
			hashes, err := column[int64](ctx, tx, from.query, rows, lease.Lane)
			if err != nil {
				return err
			}
			for _, hash := range hashes {
				keys = append(keys, key{int64(lease.Lane), hash})
			}
		}
		for _, step := range []struct {
			do    bool
			query string
			rows  []outcome
		}{
			{what.Archive, s.sql.archiveReady, outcomes(what.Published, "")},
			{true, s.sql.deleteReady, outcomes(what.Published, "")},
			{what.Archive, s.sql.archiveParked, outcomes(what.PublishedParked, "")},
			{true, s.sql.deleteParked, outcomes(what.PublishedParked, "")},
			{true, s.sql.park, park},
			{true, s.sql.deleteReady, park},
			{true, s.sql.failAgain, again},
		} {
			if !step.do || len(step.rows) == 0 {
				continue
			}
			rows, err := list(step.rows)
			if err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, step.query, rows, lease.Lane); err != nil {
				return err
			}
		}
		return s.promote(ctx, tx, keys)
	})
}

// outcome is a row that a settle names, as the statements take it: place, id, state,
// attempts, delay, blocking, reason.
type outcome [7]any

func outcomes(refs []dialect.Ref, state string) []outcome {
	rows := make([]outcome, len(refs))
	for i, ref := range refs {
		rows[i] = outcome{ref.Place, hex.EncodeToString(ref.ID[:]), state, 0, 0, 0, ""}
	}
	return rows
}

func failures(failed []dialect.Failure) []outcome {
	rows := make([]outcome, len(failed))
	for i := range failed {
		f := &failed[i]
		state := dialect.Retry
		if f.Dead {
			state = dialect.Dead
		}
		rows[i] = outcome{f.Place, hex.EncodeToString(f.ID[:]), state, f.Attempts, micros(f.Delay), f.Blocking, f.Reason}
	}
	return rows
}

// key is a lane and the hash of a key there.
type key [2]int64

// promote ends every transaction that adds or removes parked rows of keys.
func (s *store) promote(ctx context.Context, tx *sql.Tx, keys []key) error {
	if len(keys) == 0 {
		return nil
	}
	text, err := list(keys)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, s.sql.promote, text); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, s.sql.demote, text)
	return err
}

// querier is a pool or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// query reads all rows of a statement.
func query[T any](ctx context.Context, q querier, scan func(rows *sql.Rows) (T, error), text string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // what a read meets is in rows.Err
	var all []T
	for rows.Next() {
		one, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, rows.Err()
}

// column reads a statement's only column.
func column[T any](ctx context.Context, q querier, text string, args ...any) ([]T, error) {
	return query(ctx, q, func(rows *sql.Rows) (value T, err error) {
		return value, rows.Scan(&value)
	}, text, args...)
}

// reader reads messages up to a limit.
type reader struct {
	limit dialect.Limit
	bytes int64
	rows  []dialect.Row
}

func (r *reader) full() bool {
	return len(r.rows) >= r.limit.Rows || (r.limit.Bytes > 0 && r.bytes >= r.limit.Bytes)
}

// read adds the rows of a statement until the reader is full.
func (r *reader) read(ctx context.Context, q querier, text string, args ...any) error {
	if r.full() {
		return nil
	}
	rows, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // what a read meets is in rows.Err
	for !r.full() && rows.Next() {
		var m dialect.Row
		if err := scanRow(rows, &m); err != nil {
			return err
		}
		r.bytes += int64(len(m.Payload) + len(m.Headers))
		r.rows = append(r.rows, m)
	}
	return rows.Err()
}

// scanRow reads what the statements select of a message, and what is behind it.
func scanRow(rows *sql.Rows, m *dialect.Row, more ...any) error {
	var id []byte
	var age, createdAt int64
	var revision sql.Null[int64]
	err := rows.Scan(append([]any{
		&m.Seq, &m.Pos, &m.Attempts, &age, &m.Blocked,
		&m.Lane, &id, &m.Topic, &m.Key, &m.KeyHash, &m.Type, &m.ContentType, &m.Headers, &revision, &m.Replay, &createdAt,
		&m.Payload,
	}, more...)...)
	copy(m.ID[:], id)
	m.Age = time.Duration(age) * time.Microsecond
	m.CreatedAt = time.UnixMicro(createdAt).UTC()
	m.Revision = revision.V
	return err
}
