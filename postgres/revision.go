package postgres

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-suite/outbox/dialect"
)

var _ dialect.Reviser = (*store)(nil)

// Revise adds the messages in one statement, also in the transaction that [InTx] gives,
// where no run has a first revision. Otherwise it is one for a single key that has a
// row, and one more where there are several or none.
func (s *store) Revise(ctx context.Context, tx dialect.Tx, messages []dialect.Message, runs []dialect.Run) (*dialect.Refusal, error) {
	var c columns
	for i := range messages {
		c.add(&messages[i])
	}
	behind := dialect.Behind(len(messages), runs)
	for i := range behind {
		c.revision[i] = &behind[i]
	}
	var k keys
	given := false
	for i := range runs {
		k.add(&runs[i])
		given = given || runs[i].First > 0
	}
	args := append(c.all(), k.hash, k.key, k.messages)
	if !given {
		return nil, run(ctx, tx, s.sql.revise, args...)
	}
	args = append(args, k.first)
	taken := len(runs) > 1 // in order, lest the missing ones come out of it
	for {
		if taken {
			if err := run(ctx, tx, s.sql.take, k.hash, k.key); err != nil {
				return nil, err
			}
		}
		n, err := exec(ctx, tx, s.sql.reviseGiven, args...)
		if err != nil || n > 0 {
			return nil, err
		}
		if !taken && runs[0].First == 1 {
			taken = true // it may be the key's first
			continue
		}
		refusal, err := s.refused(ctx, tx, runs)
		if err != nil || refusal != nil {
			return refusal, err
		}
		// The row was made between the two statements.
	}
}

// refused finds the run that is not the next, the first one that may be it where the
// transaction cannot read. A row that was made after the transaction's snapshot is a
// conflict: what the run would be is not known here.
func (s *store) refused(ctx context.Context, tx dialect.Tx, runs []dialect.Run) (*dialect.Refusal, error) {
	for i := range runs {
		if runs[i].First == 0 {
			continue
		}
		last, err := lookUp(ctx, tx, s.sql.lastRevision, runs[i].KeyHash, runs[i].Key)
		switch {
		case errors.Is(err, dialect.ErrCannotRead):
			return &dialect.Refusal{Run: i}, nil
		case err != nil:
			return nil, err
		case !last.Valid:
			if err := run(ctx, tx, s.sql.unseen, runs[i].KeyHash, runs[i].Key); err != nil {
				return nil, err
			}
		}
		if runs[i].First != last.V+1 {
			last.Valid = true
			return &dialect.Refusal{Run: i, Last: last}, nil
		}
	}
	return nil, nil
}

// keys are runs turned on their side, an array a column.
type keys struct {
	hash, messages, first []int64
	key                   []string
}

func (k *keys) add(r *dialect.Run) {
	k.hash = append(k.hash, r.KeyHash)
	k.key = append(k.key, r.Key)
	k.messages = append(k.messages, int64(len(r.Messages)))
	k.first = append(k.first, r.First)
}

// LastRevision looks the row of the key up.
func (s *store) LastRevision(ctx context.Context, tx dialect.Tx, at dialect.Revision) (int64, error) {
	last, err := lookUp(ctx, tx, s.sql.lastRevision, at.KeyHash, at.Key)
	return last.V, err
}

// Advance is one statement, and one more for the first revision of a key.
func (s *store) Advance(ctx context.Context, tx dialect.Tx, consumer string, at dialect.Revision) (int64, error) {
	for {
		last, err := lookUp(ctx, tx, s.sql.advance, consumer, at.KeyHash, at.Key, at.Number)
		if err != nil || last.Valid || at.Number != 1 {
			return last.V, err
		}
		n, err := exec(ctx, tx, s.sql.beginProgress, consumer, at.KeyHash, at.Key)
		if err != nil || n == 1 {
			return 0, err
		}
		// The row was made between the two statements.
	}
}

// Progress looks the row up.
func (s *store) Progress(ctx context.Context, db dialect.DB, consumer string, at dialect.Revision) (last int64, err error) {
	_, err = query1(ctx, db, []any{&last}, s.sql.progress, consumer, at.KeyHash, at.Key)
	return last, err
}

// SetProgress is one statement.
func (s *store) SetProgress(ctx context.Context, tx dialect.Tx, consumer string, at dialect.Revision) error {
	return run(ctx, tx, s.sql.setProgress, consumer, at.KeyHash, at.Key, at.Number)
}

// lookUp is [dialect.LookUp] for transactions of pgx too.
func lookUp(ctx context.Context, tx dialect.Tx, query string, args ...any) (n sql.Null[int64], err error) {
	native, ok := tx.(nativeTx)
	if !ok {
		n, err = dialect.LookUp(ctx, tx, query, args...)
		return n, hint(err)
	}
	if err = native.tx.QueryRow(ctx, query, args...).Scan(&n.V); errors.Is(err, pgx.ErrNoRows) {
		return n, nil
	}
	n.Valid = err == nil
	return n, hint(err)
}
