package mysql

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"

	"github.com/outbox-suite/outbox/dialect"
)

var _ dialect.Reviser = (*store)(nil)

// Revise counts, mostly in one statement, and adds the messages, mostly in another. A
// run with a first revision takes a statement of its own, and two for a key's first.
func (s *store) Revise(ctx context.Context, tx dialect.Tx, messages []dialect.Message, runs []dialect.Run) (*dialect.Refusal, error) {
	most, err := mostOf(ctx, tx, messages)
	if err != nil {
		return nil, err
	}
	if refusal, err := s.count(ctx, tx, runs); err != nil || refusal != nil {
		return refusal, err
	}
	behind := dialect.Behind(len(messages), runs)
	var b batch
	for i := range messages {
		m := &messages[i]
		if b.full(m, most) {
			if err := b.send(ctx, tx, s.sql.insert, s.sql.revised); err != nil {
				return nil, err
			}
		}
		b.add(m, m.KeyHash, []byte(m.Key.V), behind[i])
	}
	return nil, b.send(ctx, tx, s.sql.insert, s.sql.revised)
}

// count raises the rows of the keys in the order of runs.
func (s *store) count(ctx context.Context, tx dialect.Tx, runs []dialect.Run) (*dialect.Refusal, error) {
	given := func(r dialect.Run) bool { return r.First > 0 }
	if !slices.ContainsFunc(runs, given) {
		for part := range slices.Chunk(runs, mostRows) {
			if err := s.next(ctx, tx, part); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
	for i := range runs {
		if !given(runs[i]) {
			if err := s.next(ctx, tx, runs[i:i+1]); err != nil {
				return nil, err
			}
			continue
		}
		refusal, err := s.given(ctx, tx, &runs[i])
		if err != nil {
			return nil, err
		}
		if refusal == nil {
			continue
		}
		for _, run := range runs[:i] {
			if _, err := tx.ExecContext(ctx, s.sql.giveBack, len(run.Messages), run.KeyHash, []byte(run.Key)); err != nil {
				return nil, err
			}
		}
		refusal.Run = i
		return refusal, nil
	}
	return nil, nil
}

// next raises the rows of keys, whatever they are at.
func (s *store) next(ctx context.Context, tx dialect.Tx, runs []dialect.Run) error {
	var args []any
	for i := range runs {
		args = append(args, runs[i].KeyHash, []byte(runs[i].Key), len(runs[i].Messages))
	}
	_, err := tx.ExecContext(ctx, s.sql.nextRevision+nextRevisionRow+strings.Repeat(", "+nextRevisionRow, len(runs)-1)+nextRevisionEnd, args...)
	return err
}

// given raises the row of a key if the revision is the next.
func (s *store) given(ctx context.Context, tx dialect.Tx, run *dialect.Run) (*dialect.Refusal, error) {
	if run.First == 1 {
		if _, err := tx.ExecContext(ctx, s.sql.beginRevision, run.KeyHash, []byte(run.Key)); err != nil {
			return nil, err
		}
	}
	for {
		ok, err := changed(tx.ExecContext(ctx, s.sql.givenRevision, len(run.Messages), run.KeyHash, []byte(run.Key), run.First))
		if err != nil || ok {
			return nil, err
		}
		last, err := dialect.LookUp(ctx, tx, s.sql.lastRevision, run.KeyHash, []byte(run.Key))
		switch {
		case errors.Is(err, dialect.ErrCannotRead):
			return &dialect.Refusal{}, nil
		case err != nil:
			return nil, err
		case last.V != run.First-1:
			return &dialect.Refusal{Last: sql.Null[int64]{V: last.V, Valid: true}}, nil
		}
		// The row was made between the two statements.
	}
}

// LastRevision looks the row of the key up and takes it.
func (s *store) LastRevision(ctx context.Context, tx dialect.Tx, at dialect.Revision) (int64, error) {
	last, err := dialect.LookUp(ctx, tx, s.sql.lastRevision, at.KeyHash, []byte(at.Key))
	return last.V, err
}

// Advance is one statement where the revision is the next, and one more for the first.
func (s *store) Advance(ctx context.Context, tx dialect.Tx, consumer string, at dialect.Revision) (int64, error) {
	row := []any{[]byte(consumer), at.KeyHash, []byte(at.Key)}
	if at.Number == 1 {
		if _, err := tx.ExecContext(ctx, s.sql.beginProgress, row...); err != nil {
			return 0, err
		}
	}
	for {
		ok, err := changed(tx.ExecContext(ctx, s.sql.advance, slices.Concat(row, []any{at.Number})...))
		if err != nil {
			return 0, err
		}
		if ok {
			return at.Number - 1, nil
		}
		if last, err := dialect.LookUp(ctx, tx, s.sql.lastProgress, row...); err != nil || last.V != at.Number-1 {
			return last.V, err
		}
		// The row was made between the two statements.
	}
}

// Progress looks the row up.
func (s *store) Progress(ctx context.Context, db dialect.DB, consumer string, at dialect.Revision) (last int64, err error) {
	err = read(ctx, db, func(tx *sql.Tx) error {
		_, err := query1(ctx, tx, []any{&last}, s.sql.progress, []byte(consumer), at.KeyHash, []byte(at.Key))
		return err
	})
	return last, err
}

// SetProgress is one statement.
func (s *store) SetProgress(ctx context.Context, tx dialect.Tx, consumer string, at dialect.Revision) error {
	_, err := tx.ExecContext(ctx, s.sql.setProgress, []byte(consumer), at.KeyHash, []byte(at.Key), at.Number)
	return err
}

// changed tells whether a statement changed a row.
func changed(result sql.Result, err error) (bool, error) {
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}
