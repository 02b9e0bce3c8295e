package nats_test

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"testing"

	natsgo "github.com/nats-io/nats.go"

	"github.com/outbox-suite/outbox/publish/nats"
	"github.com/outbox-suite/outbox/relay"
)

func ExampleDecode() {
	m := natsgo.Msg{
		Data: []byte(`{"total":7}`),
		Header: natsgo.Header{
			"ce-specversion": {"1.0"}, "ce-id": {"0199d3c5-6a4e-7c1e-9a53-0d5b8a3f9a11"}, "ce-source": {"/shop"},
			"ce-type": {"order.placed"}, "ce-subject": {"Gr%C3%BC%C3%9Fe"}, "ce-topic": {"orders"}, "ce-attempt": {"2"},
			"ce-datacontenttype": {"application/json"}, "ce-traceparent": {"00-0af7-b7ad-01"}, "ce-headers": {`{%22X-Tenant%22:%22acme%22}`},
		},
	}
	got, err := nats.Decode(m.Header, m.Data)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(got.ID, got.Key, got.Type, got.Attempt, got.Headers)
	fmt.Printf("%s\n", got.Payload)
	// Output:
	// 0199d3c5-6a4e-7c1e-9a53-0d5b8a3f9a11 Grüße order.placed 2 map[X-Tenant:acme traceparent:00-0af7-b7ad-01]
	// {"total":7}
}

func TestDecodeForeign(t *testing.T) {
	for _, h := range []natsgo.Header{
		nil,
		{"ce-specversion": {"0.3"}},
		{"ce-specversion": {"1.0"}, "ce-id": {"7"}},
		{"ce-specversion": {"1.0"}, "ce-sequence": {"x"}},
		{"ce-specversion": {"1.0"}, "ce-time": {"yesterday"}},
		{"ce-specversion": {"1.0"}, "ce-headers": {"["}},
	} {
		if _, err := nats.Decode(h, nil); err == nil {
			t.Errorf("%v is decoded", h)
		}
	}
}

// FuzzEvent sends what it can through the header's form on the wire: all of it
// comes back, or the message is refused for good.
func FuzzEvent(f *testing.F) {
	f.Add("orders", "42", "order.placed", "application/json", []byte("{}"), "traceparent", "00-1", int64(1), 0, false)
	f.Add("a.b", "\r\nce-id: x", "%41\xff", "", []byte(nil), "X:\r\n", " \x00\u2028\" ", int64(-1), 3, true)
	f.Add("a", " ", "\t", "a/b", []byte{0}, "headers", "\u0085", int64(1)<<62, -3, true)
	f.Fuzz(func(t *testing.T, topic, key, typ, contentType string, payload []byte, name, value string, revision int64, replay int, none bool) {
		m := message(topic)
		m.Key, m.Type, m.ContentType, m.Revision, m.Replay = key, typ, contentType, revision, replay
		m.EmptyKey = key == ""
		m.Payload = bytes.Clone(payload)
		if m.Payload == nil {
			m.Payload = []byte{}
		}
		if none {
			m.Payload = nil
		}
		m.Headers = map[string]string{name: value}
		msg, err := nats.Encode(&m)
		if err != nil {
			if !relay.IsPermanent(err) {
				t.Fatalf("refused, but not for good: %v", err)
			}
			return
		}
		var wire bytes.Buffer
		wire.WriteString("NATS/1.0\r\n")
		if err := http.Header(msg.Header).Write(&wire); err != nil {
			t.Fatal(err)
		}
		wire.WriteString("\r\n")
		header, err := natsgo.DecodeHeadersMsg(wire.Bytes())
		if err != nil {
			t.Fatalf("%q: %v", wire.String(), err)
		}
		got, err := nats.Decode(header, msg.Data)
		if err != nil {
			t.Fatalf("%q: %v", wire.String(), err)
		}
		if got.ID != m.ID || got.Topic != topic || got.Key != key || got.HasKey() != m.HasKey() || got.Type != typ || got.ContentType != contentType ||
			got.Revision != revision || got.Replay != replay || !maps.Equal(got.Headers, m.Headers) || !bytes.Equal(got.Payload, m.Payload) ||
			(got.Payload == nil) != none || got.Seq != m.Seq || got.Lane != m.Lane || got.Epoch != m.Epoch || got.Attempt != m.Attempt || !got.CreatedAt.Equal(m.CreatedAt) {
			t.Errorf("sent %+v and got %+v", m, got)
		}
	})
}
