package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

var (
	_ dialect.Auditor = (*store)(nil)
	_ dialect.Viewer  = (*store)(nil)
)

// WriteAudit implements [dialect.Auditor].
func (s *store) WriteAudit(ctx context.Context, db dialect.DB, e dialect.AuditEntry) error {
	_, err := s.exec(ctx, db, s.sql.writeAudit, e.ID[:], e.Ended, e.Who, e.Action, e.Selection, e.Why,
		sql.Null[int64]{V: e.Changed, Valid: e.Ended}, sql.Null[string]{V: e.Failure, Valid: e.Failure != ""})
	return err
}

// Audit implements [dialect.Auditor].
func (s *store) Audit(ctx context.Context, db dialect.DB, before int64, limit int) ([]dialect.Audited, error) {
	return rowsOf(ctx, db, func(rows *sql.Rows) (a dialect.Audited, err error) {
		var id []byte
		var begun int64
		var ended sql.Null[int64]
		err = rows.Scan(&a.Pos, &id, &a.Who, &a.Action, &a.Selection, &a.Why, &begun, &ended, &a.Changed, &a.Failure)
		copy(a.ID[:], id)
		a.BegunAt = time.UnixMicro(begun).UTC()
		if a.Ended = ended.Valid; a.Ended {
			a.EndedAt = sql.Null[time.Time]{V: time.UnixMicro(ended.V).UTC(), Valid: true}
		}
		return a, err
	}, s.sql.audit, before, limit)
}

// ViewLanes implements [dialect.Viewer].
func (s *store) ViewLanes(ctx context.Context, db dialect.DB) ([]dialect.LaneState, error) {
	return rowsOf(ctx, db, func(rows *sql.Rows) (l dialect.LaneState, err error) {
		var left int64
		var served sql.Null[int64]
		err = rows.Scan(&l.Lane, &l.Owner, &l.Epoch, &left, &served)
		l.Left, l.Served = micros(left), sql.Null[time.Duration]{V: micros(served.V), Valid: served.Valid}
		return l, err
	}, s.sql.viewLanes)
}

// ViewDone implements [dialect.Viewer].
func (s *store) ViewDone(ctx context.Context, db dialect.DB, limit int) ([]dialect.Settled, error) {
	return rowsOf(ctx, db, func(rows *sql.Rows) (d dialect.Settled, err error) {
		var ago, took int64
		err = rows.Scan(&d.Pos, &ago, &took, &d.First)
		d.Ago, d.Took = micros(ago), micros(took)
		return d, err
	}, s.sql.viewDone, limit)
}

// ViewReasons implements [dialect.Viewer].
func (s *store) ViewReasons(ctx context.Context, db dialect.DB, limit int) ([]dialect.ParkedReason, error) {
	return rowsOf(ctx, db, func(rows *sql.Rows) (r dialect.ParkedReason, err error) {
		err = rows.Scan(&r.State, &r.Topic, &r.Reason)
		return r, err
	}, s.sql.viewReasons, limit)
}

// ViewMessage implements [dialect.Viewer].
func (s *store) ViewMessage(ctx context.Context, db dialect.DB, id [16]byte) ([]dialect.Standing, error) {
	return rowsOf(ctx, db, func(rows *sql.Rows) (m dialect.Standing, err error) {
		var age, since int64
		var due sql.Null[int64]
		err = rows.Scan(&m.State, &m.Lane, &m.Seq, &m.Topic, &m.Key, &m.Type, &m.Attempts, &m.Replay, &m.Reason, &age, &since, &due)
		m.Age, m.Since, m.DueIn = micros(age), micros(since), sql.Null[time.Duration]{V: micros(due.V), Valid: due.Valid}
		return m, err
	}, s.sql.viewMessage, id[:])
}

// rowsOf reads all rows of a statement.
func rowsOf[T any](ctx context.Context, q queryer, scan func(rows *sql.Rows) (T, error), statement string, args ...any) ([]T, error) {
	var all []T
	err := query(ctx, q, func(rows *sql.Rows) (bool, error) {
		v, err := scan(rows)
		all = append(all, v)
		return true, err
	}, statement, args...)
	if err != nil {
		return nil, err
	}
	return all, nil
}
