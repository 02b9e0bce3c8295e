package rabbitmq_test

import (
	"maps"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-suite/outbox/publish/rabbitmq"
)

func TestEncode(t *testing.T) {
	m := message("orders", "42")
	m.Headers = map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "X-Tenant": "acme"}
	m.Payload, m.Replay, m.Revision = nil, 2, 1<<40
	exchange, key, p, err := rabbitmq.Encode(&m)
	if err != nil {
		t.Fatal(err)
	}
	if exchange != "" || key != "orders" || p.DeliveryMode != amqp.Persistent || p.MessageId != m.ID.String() || p.ContentType != "application/json" || p.Type != "tried" || !p.Timestamp.Equal(m.CreatedAt) {
		t.Errorf("got exchange %q, routing key %q, %+v", exchange, key, p)
	}
	want := amqp.Table{
		"cloudEvents_specversion": "1.0", "cloudEvents_id": m.ID.String(), "cloudEvents_source": "/outbox", "cloudEvents_type": "tried",
		"cloudEvents_subject": "42", "cloudEvents_time": "2026-01-31T15:04:05.123456Z", "cloudEvents_topic": "orders",
		"cloudEvents_sequence": "7", "cloudEvents_lane": "3", "cloudEvents_epoch": "5", "cloudEvents_attempt": "1",
		"cloudEvents_replay": "2", "cloudEvents_revision": "1099511627776", "cloudEvents_nodata": "true",
		"cloudEvents_traceparent": m.Headers["traceparent"], "cloudEvents_headers": `{"X-Tenant":"acme"}`,
	}
	if !maps.Equal(p.Headers, want) {
		t.Errorf("got headers %v, want %v", p.Headers, want)
	}
	got, err := rabbitmq.Decode(&amqp.Delivery{ContentType: p.ContentType, Headers: p.Headers, Body: p.Body})
	if err != nil || got.ID != m.ID || got.Payload != nil || got.Replay != 2 || got.Revision != m.Revision || !got.CreatedAt.Equal(m.CreatedAt) || !maps.Equal(got.Headers, m.Headers) {
		t.Errorf("%v: sent %+v and got %+v", err, m, got)
	}
}

func TestDecodeForeign(t *testing.T) {
	for _, h := range []amqp.Table{
		nil,
		{"cloudEvents_specversion": "0.3"},
		{"cloudEvents_specversion": int32(1)},
		{"cloudEvents_specversion": "1.0", "cloudEvents_id": "7"},
	} {
		if _, err := rabbitmq.Decode(&amqp.Delivery{Headers: h}); err == nil {
			t.Errorf("%v is decoded", h)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("cloudEvents_headers", `{"a":"b"}`, []byte("{}"))
	f.Fuzz(func(t *testing.T, name, value string, body []byte) {
		m, err := rabbitmq.Decode(&amqp.Delivery{Headers: amqp.Table{"cloudEvents_specversion": "1.0", name: value}, Body: body})
		if err == nil && m.Payload != nil && string(m.Payload) != string(body) {
			t.Errorf("a body of %q is decoded as %q", body, m.Payload)
		}
		if err != nil && strings.Contains(err.Error(), "%!") {
			t.Errorf("%v", err)
		}
	})
}
