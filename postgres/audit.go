package postgres

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

// WriteAudit is one statement.
func (s *store) WriteAudit(ctx context.Context, db dialect.DB, e dialect.AuditEntry) error {
	_, err := exec(ctx, db, s.sql.writeAudit, uuidText(e.ID), e.Ended, e.Who, e.Action, e.Selection, e.Why,
		sql.Null[int64]{V: e.Changed, Valid: e.Ended}, sql.Null[string]{V: e.Failure, Valid: e.Failure != ""})
	return err
}

// Audit lists in one statement.
func (s *store) Audit(ctx context.Context, db dialect.DB, before int64, limit int) ([]dialect.Audited, error) {
	return query(ctx, db, func(a *dialect.Audited) []any {
		return []any{
			&a.Pos,
			uuidColumn{&a.ID},
			&a.Who, &a.Action, &a.Selection, &a.Why,
			utcColumn{&a.BegunAt},
			endedColumn{a},
			&a.Changed, &a.Failure,
		}
	}, s.sql.audit, before, limit)
}

// endedColumn scans when an action ended, if it did.
type endedColumn struct{ a *dialect.Audited }

// Scan implements [sql.Scanner].
func (c endedColumn) Scan(value any) error {
	c.a.Ended = value != nil
	c.a.EndedAt = sql.Null[time.Time]{Valid: c.a.Ended}
	if !c.a.Ended {
		return nil
	}
	return utcColumn{&c.a.EndedAt.V}.Scan(value)
}

// ViewLanes reads the lane rows.
func (s *store) ViewLanes(ctx context.Context, db dialect.DB) ([]dialect.LaneState, error) {
	return query(ctx, db, func(l *dialect.LaneState) []any {
		return []any{&l.Lane, &l.Owner, &l.Epoch, microsColumn{&l.Left}, nullMicrosColumn{&l.Served}}
	}, s.sql.viewLanes)
}

// ViewDone is one statement.
func (s *store) ViewDone(ctx context.Context, db dialect.DB, limit int) ([]dialect.Settled, error) {
	return query(ctx, db, func(d *dialect.Settled) []any {
		return []any{&d.Pos, microsColumn{&d.Ago}, microsColumn{&d.Took}, &d.First}
	}, s.sql.viewDone, limit)
}

// ViewReasons is one statement.
func (s *store) ViewReasons(ctx context.Context, db dialect.DB, limit int) ([]dialect.ParkedReason, error) {
	return query(ctx, db, func(r *dialect.ParkedReason) []any { return []any{&r.State, &r.Topic, &r.Reason} }, s.sql.viewReasons, limit)
}

// ViewMessage is one statement.
func (s *store) ViewMessage(ctx context.Context, db dialect.DB, id [16]byte) ([]dialect.Standing, error) {
	return query(ctx, db, func(m *dialect.Standing) []any {
		return []any{
			&m.State, &m.Lane, &m.Seq, &m.Topic, &m.Key, &m.Type, &m.Attempts, &m.Replay, &m.Reason,
			microsColumn{&m.Age},
			microsColumn{&m.Since},
			nullMicrosColumn{&m.DueIn},
		}
	}, s.sql.viewMessage, uuidText(id))
}
