package sqlite

import (
	"context"
	"database/sql"
	"errors"

	"github.com/outbox-suite/outbox/dialect"
)

var _ dialect.Reviser = (*store)(nil)

// Revise implements [dialect.Reviser]. As [store.Insert], it is not interrupted.
func (s *store) Revise(ctx context.Context, tx dialect.Tx, messages []dialect.Message, runs []dialect.Run) (*dialect.Refusal, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	for i := range runs {
		run := &runs[i]
		n, err := affected(tx.ExecContext(ctx, s.sql.take, run.KeyHash, run.Key, len(run.Messages), run.First))
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return s.refuse(ctx, tx, runs, i)
		}
	}
	behind := dialect.Behind(len(messages), runs)
	var args []any
	for i := range messages {
		m := &messages[i]
		args = append(args, m.Lane, m.ID[:], m.Topic, m.Key, m.KeyHash, m.Type, m.ContentType, m.Headers,
			m.KeyHash, m.Key, behind[i], m.Replay, payloadOf(m))
	}
	return nil, insert(ctx, tx, s.sql.insertReady, s.sql.revisedValues, columns(revisedValuesSQL), args)
}

// refuse gives back what the runs before the wrong one have taken.
func (s *store) refuse(ctx context.Context, tx dialect.Tx, runs []dialect.Run, wrong int) (*dialect.Refusal, error) {
	for i := range runs[:wrong] {
		run := &runs[i]
		if _, err := tx.ExecContext(ctx, s.sql.giveBack, run.KeyHash, run.Key, len(run.Messages)); err != nil {
			return nil, err
		}
	}
	refusal := &dialect.Refusal{Run: wrong}
	last, err := dialect.LookUp(ctx, tx, s.sql.lastRevision, runs[wrong].KeyHash, runs[wrong].Key)
	if errors.Is(err, dialect.ErrCannotRead) {
		return refusal, nil
	}
	refusal.Last = sql.Null[int64]{V: last.V, Valid: true}
	return refusal, err
}

// LastRevision looks the row of the key up.
func (s *store) LastRevision(ctx context.Context, tx dialect.Tx, at dialect.Revision) (int64, error) {
	last, err := dialect.LookUp(ctx, tx, s.sql.lastRevision, at.KeyHash, at.Key)
	return last.V, err
}

// Advance implements [dialect.Reviser]. As [store.Insert], it is not interrupted. See
// [store.Record] for the wait.
func (s *store) Advance(ctx context.Context, tx dialect.Tx, consumer string, at dialect.Revision) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	ctx = context.WithoutCancel(ctx)
	n, err := affected(tx.ExecContext(ctx, s.sql.advance, consumer, at.KeyHash, at.Key, at.Number))
	if err != nil {
		return 0, err
	}
	if n == 1 {
		return at.Number - 1, nil
	}
	last, err := dialect.LookUp(ctx, tx, s.sql.progress, consumer, at.KeyHash, at.Key)
	return last.V, err
}

// Progress implements [dialect.Reviser].
func (s *store) Progress(ctx context.Context, db dialect.DB, consumer string, at dialect.Revision) (int64, error) {
	last, err := dialect.LookUp(ctx, db, s.sql.progress, consumer, at.KeyHash, at.Key)
	return last.V, err
}

// SetProgress implements [dialect.Reviser]. As [store.Insert], it is not interrupted.
func (s *store) SetProgress(ctx context.Context, tx dialect.Tx, consumer string, at dialect.Revision) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	_, err := tx.ExecContext(context.WithoutCancel(ctx), s.sql.setProgress, consumer, at.KeyHash, at.Key, at.Number)
	return err
}
