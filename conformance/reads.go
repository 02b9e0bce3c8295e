package conformance

import (
	"context"

	"github.com/outbox-suite/outbox/dialect"
)

// reading is d whose stores tell f what a relay has read: op is ready or due.
// f is called from many goroutines.
func reading(d dialect.Dialect, f func(op string, rows []dialect.Row)) dialect.Dialect {
	return &readingDialect{d, f}
}

type readingDialect struct {
	dialect.Dialect
	f func(op string, rows []dialect.Row)
}

// Bind implements [dialect.Dialect].
func (d *readingDialect) Bind(tables dialect.Tables) (dialect.Store, error) {
	s, err := d.Dialect.Bind(tables)
	if err != nil {
		return nil, err
	}
	return &readingStore{s, d.f}, nil
}

type readingStore struct {
	dialect.Store
	f func(op string, rows []dialect.Row)
}

// Due implements [dialect.Turn].
func (s *readingStore) Due(ctx context.Context, db dialect.DB, lane int, limit dialect.Limit) ([]dialect.Row, error) {
	rows, err := s.Store.Due(ctx, db, lane, limit)
	s.f("due", rows)
	return rows, err
}

// Ready implements [dialect.Turn].
func (s *readingStore) Ready(ctx context.Context, db dialect.DB, lane int, after int64, limit dialect.Limit) ([]dialect.Row, error) {
	rows, err := s.Store.Ready(ctx, db, lane, after, limit)
	s.f("ready", rows)
	return rows, err
}
