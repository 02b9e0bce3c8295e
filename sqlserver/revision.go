package sqlserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/outbox-suite/outbox/dialect"
)

var _ dialect.Reviser = (*store)(nil)

// Revise makes and raises the row of each key, two statements, and adds the messages,
// mostly in one more. With a first revision in a run, the rows of all runs are locked and
// read before any is raised, for which the transaction must be one that can read.
func (s *store) Revise(ctx context.Context, tx dialect.Tx, messages []dialect.Message, runs []dialect.Run) (*dialect.Refusal, error) {
	given := false
	for i := range runs {
		given = given || runs[i].First > 0
	}
	raise := func(run *dialect.Run) error {
		_, err := tx.ExecContext(ctx, s.sql.raiseRevision, run.KeyHash, []byte(run.Key), int64(len(run.Messages)))
		return err
	}
	for i := range runs {
		run := &runs[i]
		if err := begin(ctx, tx, s.sql.beginRevision, run.KeyHash, []byte(run.Key)); err != nil {
			return nil, err
		}
		if !given {
			if err := raise(run); err != nil {
				return nil, err
			}
			continue
		}
		last, err := dialect.LookUp(ctx, tx, s.sql.lastRevision, run.KeyHash, []byte(run.Key))
		if err != nil {
			return nil, err
		}
		if run.First > 0 && run.First != last.V+1 {
			return &dialect.Refusal{Run: i, Last: sql.Null[int64]{V: last.V, Valid: true}}, nil
		}
	}
	for i := range runs {
		if given {
			if err := raise(&runs[i]); err != nil {
				return nil, err
			}
		}
	}
	behind := dialect.Behind(len(messages), runs)
	b := batch{text: s.sql.revise}
	for i := range messages {
		m := &messages[i]
		size := len(m.Payload) + len(m.Headers)
		if b.full(size) {
			if err := b.send(ctx, tx); err != nil {
				return nil, err
			}
		}
		b.add(m, size)
		b.rows[len(b.rows)-1].Revision = &behind[i]
	}
	return nil, b.send(ctx, tx)
}

// LastRevision looks the row of the key up and takes it.
func (s *store) LastRevision(ctx context.Context, tx dialect.Tx, at dialect.Revision) (int64, error) {
	last, err := dialect.LookUp(ctx, tx, s.sql.lastRevision, at.KeyHash, []byte(at.Key))
	return last.V, err
}

// Advance makes the row if it is missing, locks and reads it, and writes it if the
// revision is the next.
func (s *store) Advance(ctx context.Context, tx dialect.Tx, consumer string, at dialect.Revision) (int64, error) {
	row := []any{[]byte(consumer), at.KeyHash, []byte(at.Key)}
	if err := begin(ctx, tx, s.sql.beginProgress, row...); err != nil {
		return 0, err
	}
	last, err := dialect.LookUp(ctx, tx, s.sql.lastProgress, row...)
	if err == nil && last.V == at.Number-1 {
		_, err = tx.ExecContext(ctx, s.sql.setProgress, append(row, at.Number)...)
	}
	return last.V, err
}

// Progress looks the row up.
func (s *store) Progress(ctx context.Context, db dialect.DB, consumer string, at dialect.Revision) (last int64, err error) {
	err = read(ctx, db, func(tx *sql.Tx) error {
		_, err := query1(ctx, tx, []any{&last}, s.sql.progress, []byte(consumer), at.KeyHash, []byte(at.Key))
		return err
	})
	return last, err
}

// SetProgress makes the row if it is missing, and writes it.
func (s *store) SetProgress(ctx context.Context, tx dialect.Tx, consumer string, at dialect.Revision) error {
	row := []any{[]byte(consumer), at.KeyHash, []byte(at.Key)}
	if err := begin(ctx, tx, s.sql.beginProgress, row...); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, s.sql.setProgress, append(row, at.Number)...)
	return err
}

// errHidden is a [dialect.Conflict].
var errHidden = errors.New("another transaction has made the row of the key, and this one's snapshot does not have it: run the transaction again")

// begin makes a row unless it is there. Where another transaction has made it since the
// statement looked, a second look finds it; but not at SNAPSHOT, where what follows would
// change no row and tell nobody.
func begin(ctx context.Context, tx dialect.Tx, statement string, args ...any) error {
	_, err := tx.ExecContext(ctx, statement, args...)
	if isDuplicate(err) {
		_, err = tx.ExecContext(ctx, statement, args...)
	}
	if isDuplicate(err) {
		return fmt.Errorf("%w: %w", errHidden, err)
	}
	return err
}
