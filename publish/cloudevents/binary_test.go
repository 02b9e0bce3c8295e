package cloudevents_test

import (
	"bytes"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/publish/cloudevents"
	"github.com/outbox-suite/outbox/relay"
)

func ExampleAttributes() {
	attributes, err := cloudevents.Attributes("/shop", &relay.Message{
		Message: outbox.Message{
			ID: uuid.MustParse("0199d3c5-6a4e-7c1e-9a53-0d5b8a3f9a11"), Topic: "orders", Key: "Grüße", Type: "order.placed",
			Headers: map[string]string{"traceparent": "00-0af7-b7ad-01", "X-Tenant": "acme"},
		},
		Seq: 7, Lane: 3, Epoch: 5, Attempt: 2, CreatedAt: time.Date(2026, 1, 31, 15, 4, 5, 0, time.UTC),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, a := range attributes {
		fmt.Println(a.Name, cloudevents.Escape(a.Value))
	}
	// Output:
	// specversion 1.0
	// id 0199d3c5-6a4e-7c1e-9a53-0d5b8a3f9a11
	// source /shop
	// type order.placed
	// subject Gr%C3%BC%C3%9Fe
	// time 2026-01-31T15:04:05Z
	// topic orders
	// sequence 7
	// lane 3
	// epoch 5
	// attempt 2
	// nodata true
	// traceparent 00-0af7-b7ad-01
	// headers {%22X-Tenant%22:%22acme%22}
}

// FuzzAttributes sends what it can through the binary mode: all of it comes
// back, or a header that is no text is refused.
func FuzzAttributes(f *testing.F) {
	f.Add("orders", "42", "order.placed", "application/json", []byte("{}"), "traceparent", "00-1", int64(1), 0, false)
	f.Add("a b", "\r\nce-id: x", "%41\xff", "", []byte(nil), "X:\r\n", " \x00\u2028\" ", int64(-1), 3, true)
	f.Add("", " ", "\t", "a/b", []byte{0}, "nodata", "true", int64(1)<<62, -3, false)
	f.Add("", "", "", "", []byte{}, "headers", "\u0085", int64(0), 0, true)
	f.Fuzz(func(t *testing.T, topic, key, typ, contentType string, payload []byte, name, value string, revision int64, replay int, none bool) {
		m := relay.Message{
			Message: outbox.Message{
				ID: uuid.New(), Topic: topic, Key: key, EmptyKey: key == "", Type: typ, ContentType: contentType,
				Payload: append([]byte{}, payload...), Revision: revision, Headers: map[string]string{name: value},
			},
			Seq: 7, Lane: 3, Epoch: 5, Attempt: 2, Replay: replay, CreatedAt: time.Date(2026, 1, 31, 15, 4, 5, 123_456_000, time.UTC),
		}
		if none {
			m.Payload = nil
		}
		attributes, err := cloudevents.Attributes(cloudevents.DefaultSource, &m)
		if err != nil {
			if strings.ToValidUTF8(name+value, "") == name+value {
				t.Fatal(err)
			}
			return
		}
		for i, a := range attributes {
			attributes[i].Value = cloudevents.Unescape(cloudevents.Escape(a.Value))
		}
		got, err := cloudevents.FromAttributes(attributes, append([]byte(nil), payload...))
		if err != nil {
			t.Fatalf("%q: %v", attributes, err)
		}
		if got.ID != m.ID || got.Topic != topic || got.Key != key || got.HasKey() != m.HasKey() || got.Type != typ || got.ContentType != contentType ||
			got.Revision != revision || got.Replay != replay || !maps.Equal(got.Headers, m.Headers) || !bytes.Equal(got.Payload, m.Payload) ||
			(got.Payload == nil) != none || got.Seq != m.Seq || got.Lane != m.Lane || got.Epoch != m.Epoch || got.Attempt != m.Attempt || !got.CreatedAt.Equal(m.CreatedAt) {
			t.Errorf("sent %+v and got %+v", m, got)
		}
	})
}

func TestFromAttributesForeign(t *testing.T) {
	one := cloudevents.Attribute{Name: "specversion", Value: "1.0"}
	for _, as := range [][]cloudevents.Attribute{
		nil,
		{{Name: "specversion", Value: "0.3"}},
		{one, {Name: "id", Value: "7"}},
		{one, {Name: "attempt", Value: "x"}},
		{one, {Name: "time", Value: "yesterday"}},
		{one, {Name: "headers", Value: "["}},
	} {
		if _, err := cloudevents.FromAttributes(as, nil); err == nil {
			t.Errorf("%v is read", as)
		}
	}
}
