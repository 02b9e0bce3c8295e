package oracle

import (
	"context"
	"database/sql"
	"errors"
	"slices"

	"github.com/outbox-suite/outbox/dialect"
)

var _ dialect.Reviser = (*store)(nil)

// Revise makes and raises the row of each key, two statements, and adds the messages, one
// array. With a first revision in a run, the rows of all runs are locked and read before
// any is raised, for which the transaction must be one that can read.
func (s *store) Revise(ctx context.Context, tx dialect.Tx, messages []dialect.Message, runs []dialect.Run) (*dialect.Refusal, error) {
	given := false
	for i := range runs {
		given = given || runs[i].First > 0
	}
	raise := func(run *dialect.Run) error {
		return execOne(ctx, tx, s.sql.raiseRevision, int64(len(run.Messages)), run.KeyHash, raw(run.Key), raw(run.Key))
	}
	for i := range runs {
		run := &runs[i]
		if err := begin(ctx, tx, s.sql.beginRevision, run.KeyHash, raw(run.Key)); err != nil {
			return nil, err
		}
		if !given {
			if err := raise(run); err != nil {
				return nil, err
			}
			continue
		}
		last, err := dialect.LookUp(ctx, tx, s.sql.lastRevision, run.KeyHash, raw(run.Key), raw(run.Key))
		if err == nil && !last.Valid {
			err = errUnseen
		}
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
	var b batch
	for i := range messages {
		b.add(&messages[i])
	}
	for from := 0; from < len(messages); from += mostRows {
		to := min(from+mostRows, len(messages))
		err := array(ctx, tx, s.sql.revise,
			b.lane[from:to], b.id[from:to], b.topic[from:to], b.key[from:to], b.keyHash[from:to], b.kind[from:to], b.contentType[from:to],
			b.keyHash[from:to], b.key[from:to], b.key[from:to], behind[from:to],
			b.replay[from:to], b.empty[from:to], blobs(b.headers[from:to]), blobs(b.payload[from:to]))
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// LastRevision looks the row of the key up and takes it.
func (s *store) LastRevision(ctx context.Context, tx dialect.Tx, at dialect.Revision) (int64, error) {
	last, err := dialect.LookUp(ctx, tx, s.sql.lastRevision, at.KeyHash, raw(at.Key), raw(at.Key))
	return last.V, err
}

// Advance makes the row if it is missing, locks and reads it, and writes it if the
// revision is the next.
func (s *store) Advance(ctx context.Context, tx dialect.Tx, consumer string, at dialect.Revision) (int64, error) {
	row := []any{raw(consumer), at.KeyHash, raw(at.Key)}
	if err := begin(ctx, tx, s.sql.beginProgress, row...); err != nil {
		return 0, err
	}
	last, err := dialect.LookUp(ctx, tx, s.sql.lastProgress, append(row, raw(at.Key))...)
	if err == nil && !last.Valid {
		err = errUnseen
	}
	if err == nil && last.V == at.Number-1 {
		err = exec(ctx, tx, s.sql.setProgress, at.Number, raw(consumer), at.KeyHash, raw(at.Key), raw(at.Key))
	}
	return last.V, err
}

// Progress looks the row up.
func (s *store) Progress(ctx context.Context, db dialect.DB, consumer string, at dialect.Revision) (last int64, err error) {
	err = read(ctx, db, func(tx *sql.Tx) error {
		_, err := query1(ctx, tx, []any{&last}, s.sql.progress, raw(consumer), at.KeyHash, raw(at.Key), raw(at.Key))
		return err
	})
	return last, err
}

// SetProgress makes the row if it is missing, and writes it.
func (s *store) SetProgress(ctx context.Context, tx dialect.Tx, consumer string, at dialect.Revision) error {
	row := []any{raw(consumer), at.KeyHash, raw(at.Key)}
	if err := begin(ctx, tx, s.sql.beginProgress, row...); err != nil {
		return err
	}
	return execOne(ctx, tx, s.sql.setProgress, at.Number, raw(consumer), at.KeyHash, raw(at.Key), raw(at.Key))
}

// errUnseen is a [dialect.Conflict]. At SERIALIZABLE a row that another transaction has
// made since the snapshot cannot be made (ORA-00001), nor seen or changed, of which the
// server says nothing.
var errUnseen = errors.New("the row of the key was made after the transaction's snapshot: run the transaction again")

// execOne runs a statement that changes the row of a key, which is there.
func execOne(ctx context.Context, tx dialect.Tx, statement string, args ...any) error {
	result, err := tx.ExecContext(ctx, statement, args...)
	if err != nil {
		return err
	}
	n, err := result.RowsAffected()
	if err == nil && n == 0 {
		err = errUnseen
	}
	return err
}

// begin makes a row unless it is there. Each bind stands for one occurrence: those of the
// row, which end in the key, come twice, and the key once more.
func begin(ctx context.Context, tx dialect.Tx, statement string, row ...any) error {
	err := exec(ctx, tx, statement, slices.Concat(row, row, row[len(row)-1:])...)
	if isDuplicate(err) {
		return nil
	}
	return err
}
