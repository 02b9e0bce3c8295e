package mysql

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

// WriteAudit is one statement in a transaction.
func (s *store) WriteAudit(ctx context.Context, db dialect.DB, e dialect.AuditEntry) error {
	changed := sql.Null[int64]{V: e.Changed, Valid: e.Ended}
	var failure []byte // NULL
	if e.Failure != "" {
		failure = []byte(e.Failure)
	}
	_, err := inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
		return true, exec(ctx, tx, s.sql.writeAudit, e.ID[:], e.Ended,
			[]byte(e.Who), []byte(e.Action), []byte(e.Selection), []byte(e.Why), changed, failure)
	})
	return err
}

// Audit lists in one statement.
func (s *store) Audit(ctx context.Context, db dialect.DB, before int64, limit int) (list []dialect.Audited, err error) {
	err = read(ctx, db, func(tx *sql.Tx) error {
		list, err = query(ctx, tx, func(a *dialect.Audited) []any {
			return []any{
				&a.Pos,
				idColumn{&a.ID},
				&a.Who, &a.Action, &a.Selection, &a.Why,
				timeColumn{&a.BegunAt},
				endedColumn{a},
				&a.Changed, &a.Failure,
			}
		}, s.sql.audit, before, limit)
		return err
	})
	return list, err
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
	return timeColumn{&c.a.EndedAt.V}.Scan(value)
}

// ViewLanes reads the lane rows.
func (s *store) ViewLanes(ctx context.Context, db dialect.DB) (list []dialect.LaneState, err error) {
	err = read(ctx, db, func(tx *sql.Tx) error {
		list, err = query(ctx, tx, func(l *dialect.LaneState) []any {
			return []any{&l.Lane, &l.Owner, &l.Epoch, microsColumn{&l.Left}, nullMicrosColumn{&l.Served}}
		}, s.sql.viewLanes)
		return err
	})
	return list, err
}

// ViewDone is one statement.
func (s *store) ViewDone(ctx context.Context, db dialect.DB, limit int) (list []dialect.Settled, err error) {
	err = read(ctx, db, func(tx *sql.Tx) error {
		list, err = query(ctx, tx, func(d *dialect.Settled) []any {
			return []any{&d.Pos, microsColumn{&d.Ago}, microsColumn{&d.Took}, &d.First}
		}, s.sql.viewDone, limit)
		return err
	})
	return list, err
}

// ViewReasons is one statement.
func (s *store) ViewReasons(ctx context.Context, db dialect.DB, limit int) (list []dialect.ParkedReason, err error) {
	err = read(ctx, db, func(tx *sql.Tx) error {
		list, err = query(ctx, tx, func(r *dialect.ParkedReason) []any { return []any{&r.State, &r.Topic, &r.Reason} }, s.sql.viewReasons, limit)
		return err
	})
	return list, err
}

// ViewMessage is one statement.
func (s *store) ViewMessage(ctx context.Context, db dialect.DB, id [16]byte) (list []dialect.Standing, err error) {
	err = read(ctx, db, func(tx *sql.Tx) error {
		list, err = query(ctx, tx, func(m *dialect.Standing) []any {
			return []any{
				&m.State, &m.Lane, &m.Seq, &m.Topic, &m.Key, &m.Type, &m.Attempts, &m.Replay, &m.Reason,
				microsColumn{&m.Age},
				microsColumn{&m.Since},
				nullMicrosColumn{&m.DueIn},
			}
		}, s.sql.viewMessage, id[:], id[:], id[:])
		return err
	})
	return list, err
}
