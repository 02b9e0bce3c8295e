package telemetry

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/inbox"
)

// Inbox is an [inbox.Inbox] that counts what became of messages, by consumer:
// handled, duplicate, gap or failed. The consumers' names are attributes, so there
// must be few.
type Inbox struct {
	*inbox.Inbox
	messages metric.Int64Counter
}

// NewInbox returns in, counted. It makes the instrument.
func NewInbox(in *inbox.Inbox, cfg Config) (*Inbox, error) {
	if in == nil {
		return nil, fmt.Errorf("new telemetry inbox: %w: inbox is required", outbox.ErrInvalid)
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("new telemetry inbox: %w", err)
	}
	m := cfg.meter()
	i := &Inbox{Inbox: in, messages: m.counter("outbox.inbox.messages", "{message}", "Messages that came to an inbox, by what became of them.")}
	if m.err != nil {
		return nil, fmt.Errorf("new telemetry inbox: %w", m.err)
	}
	return i, nil
}

// Handle is [inbox.Inbox.Handle], counted.
func (i *Inbox) Handle(ctx context.Context, db *sql.DB, consumer, messageID string, f func(ctx context.Context, tx *sql.Tx) error) (handled bool, err error) {
	handled, err = i.Inbox.Handle(ctx, db, consumer, messageID, f)
	i.count(ctx, consumer, handled, err)
	return handled, err
}

// HandleNext is [inbox.Inbox.HandleNext], counted.
func (i *Inbox) HandleNext(ctx context.Context, db *sql.DB, consumer, key string, revision int64, f func(ctx context.Context, tx *sql.Tx) error) (handled bool, err error) {
	handled, err = i.Inbox.HandleNext(ctx, db, consumer, key, revision, f)
	i.count(ctx, consumer, handled, err)
	return handled, err
}

// Record is [inbox.Inbox.Record], counted, whether the transaction commits or not.
func (i *Inbox) Record(ctx context.Context, tx outbox.Tx, consumer, messageID string) (fresh bool, err error) {
	fresh, err = i.Inbox.Record(ctx, tx, consumer, messageID)
	i.count(ctx, consumer, fresh, err)
	return fresh, err
}

// RecordNext is [inbox.Inbox.RecordNext], counted, whether the transaction commits or
// not.
func (i *Inbox) RecordNext(ctx context.Context, tx outbox.Tx, consumer, key string, revision int64) (fresh bool, err error) {
	fresh, err = i.Inbox.RecordNext(ctx, tx, consumer, key, revision)
	i.count(ctx, consumer, fresh, err)
	return fresh, err
}

func (i *Inbox) count(ctx context.Context, consumer string, handled bool, err error) {
	outcome := "duplicate"
	switch {
	case errors.Is(err, inbox.ErrGap):
		outcome = "gap"
	case err != nil:
		outcome = "failed"
	case handled:
		outcome = "handled"
	}
	i.messages.Add(ctx, 1, with(outcomeKey.String(outcome), semconv.MessagingConsumerGroupName(consumer)))
}
