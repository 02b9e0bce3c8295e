package ui_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/relay"
	"github.com/outbox-suite/outbox/sqlite"
)

// newBox is an outbox on a file of its own.
func newBox(t *testing.T, lanes int) *outbox.Outbox {
	t.Helper()
	db, err := sqlite.Open(filepath.Join(t.TempDir(), "o.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	box, err := outbox.New(db, sqlite.New(), outbox.Config{Lanes: lanes})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := box.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return box
}

// put enqueues messages and returns their ids.
func put(t *testing.T, box *outbox.Outbox, messages ...outbox.Message) []uuid.UUID {
	t.Helper()
	tx, err := box.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	ids, err := box.Enqueue(t.Context(), tx, messages...)
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	return ids
}

// answers is a publisher that fails with what it says of a message.
type answers func(relay.Message) error

// Publish implements [relay.Publisher].
func (a answers) Publish(_ context.Context, messages []relay.Message) []error {
	errs := make([]error, len(messages))
	for i, m := range messages {
		errs[i] = a(m)
	}
	return errs
}

// drain runs a relay until nothing is ready or due.
func drain(t *testing.T, box *outbox.Outbox, answer answers) {
	t.Helper()
	r, err := relay.New(box, answer, relay.Config{UntilEmpty: true, RetryMin: time.Hour, RetryMax: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// refuse makes all messages dead, for the reason.
func refuse(reason string) answers {
	return func(relay.Message) error { return relay.Permanent(errors.New(reason)) }
}

// shop fills an outbox with what an operator of a shop may find in the morning.
func shop(t *testing.T, box *outbox.Outbox) {
	t.Helper()
	message := func(topic, key, kind string, n int) outbox.Message {
		payload, err := json.Marshal(map[string]any{"order": n, "customer": fmt.Sprintf("c-%04d", n%977), "total": fmt.Sprintf("%d.%02d", 12+n%80, n%100), "currency": "EUR", "lines": []map[string]any{{"sku": fmt.Sprintf("SKU-%05d", n*37%99991), "quantity": 1 + n%4}}})
		if err != nil {
			t.Fatal(err)
		}
		return outbox.Message{
			Topic: topic, Key: key, Type: kind, Payload: payload, Revision: int64(1 + n%5),
			Headers: map[string]string{"traceparent": fmt.Sprintf("00-4bf92f3577b34da6a3ce929d0e0e%04x-00f067aa0ba902b7-01", n), "tenant": "eu-west"},
		}
	}
	var all []outbox.Message
	for n := range 240 {
		all = append(all, message("shop.orders", fmt.Sprintf("order-%d", 48210+n%90), "order.placed", n))
	}
	for n := range 60 {
		all = append(all, message("shop.payments", fmt.Sprintf("payment-%d", 9120+n%21), "payment.captured", n))
	}
	for n := range 30 {
		all = append(all, message("shop.shipments", fmt.Sprintf("parcel-%d", 771200+n), "parcel.label_requested", n))
	}
	for n := range 9 {
		m := message("shop.reminders", fmt.Sprintf("cart-%d", 5510+n), "cart.abandoned", n)
		m.Delay = time.Duration(20+11*n) * time.Minute
		all = append(all, m)
	}
	put(t, box, all...)
	drain(t, box, func(m relay.Message) error {
		switch n := len(m.Key) + int(m.Key[len(m.Key)-1]); {
		case m.Topic == "shop.payments" && n%5 == 0:
			return relay.Permanent(fmt.Errorf("publish to shop.payments: 422: schema payment/%d rejects the event: required property \"iban\" is missing", 7))
		case m.Topic == "shop.shipments" && n%3 == 0:
			return fmt.Errorf("publish to shop.shipments: 429 Too Many Requests: retry after %ds", 30+n%9)
		case m.Topic == "shop.orders" && m.Key == "order-48223":
			return relay.Permanent(errors.New("message of 1,204,311 bytes is larger than the stream's max_msg_size of 1,048,576"))
		}
		return nil
	})
	var ready []outbox.Message
	for n := range 38 {
		ready = append(ready, message("shop.orders", fmt.Sprintf("order-%d", 48400+n), "order.placed", 300+n))
	}
	put(t, box, ready...)
}
