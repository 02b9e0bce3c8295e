package cloudevents_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/publish/cloudevents"
	"github.com/outbox-suite/outbox/relay"
)

// FuzzParse writes events and reads them back: all of a text comes back, and of a
// JSON payload its value.
func FuzzParse(f *testing.F) {
	f.Add("orders", "42", "order.placed", "application/json", []byte(`{"a" : 1.0, "a":2e3}`), "traceparent", "00-1", int64(1), 0, false)
	f.Add("a b", "\r\nce-id: x", "%41", "", []byte(nil), "X:\r\n", " \x00\u2028\" ", int64(-1), 3, true)
	f.Add("", " ", "\t", "a/b", []byte{0}, "nodata", "true", int64(1)<<62, -3, false)
	f.Add("", "", "", "application/json", []byte("null"), "partitionkey", "mine", int64(0), 0, false)
	f.Add("", "k", "", "a/b+json", []byte("\n[1,\r\n2]\n"), "data", "x", int64(0), 1, false)
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
		event := cloudevents.Append(nil, cloudevents.DefaultSource, &m)
		if key != "" {
			event = cloudevents.AppendAttribute(event, cloudevents.PartitionKey, key)
		}
		if !json.Valid(event) {
			t.Fatalf("%s is no JSON", event)
		}
		got, err := cloudevents.Parse(event)
		if err != nil {
			t.Fatalf("%s: %v", event, err)
		}
		for _, text := range []string{topic, key, typ, contentType, name, value} {
			if !utf8.ValidString(text) {
				return // it was replaced, and that was all that had to hold
			}
		}
		same := bytes.Equal(got.Payload, m.Payload)
		if !same && bytes.ContainsAny(payload, " \t\r\n") && json.Valid(payload) && json.Valid(got.Payload) {
			var sent, read bytes.Buffer
			_, _ = json.Compact(&sent, payload), json.Compact(&read, got.Payload)
			same = bytes.Equal(sent.Bytes(), read.Bytes())
		}
		if got.ID != m.ID || got.Topic != topic || got.Key != key || got.HasKey() != m.HasKey() || got.Type != typ || got.ContentType != contentType ||
			got.Revision != revision || got.Replay != replay || !maps.Equal(got.Headers, m.Headers) || !same ||
			(got.Payload == nil) != none || got.Seq != m.Seq || got.Lane != m.Lane || got.Epoch != m.Epoch || got.Attempt != m.Attempt || !got.CreatedAt.Equal(m.CreatedAt) {
			t.Errorf("sent %+v as\n%s\nand got %+v", m, event, got)
		}
	})
}

func TestParseForeign(t *testing.T) {
	for _, event := range []string{
		"", "null", "[]", "7", `{"specversion":"1.0"`, `{}`, `{"specversion":"0.3"}`, `{"specversion":1.0,"id":7}`,
		`{"specversion":"1.0","attempt":"x"}`, `{"specversion":"1.0","attempt":1.5}`, `{"specversion":"1.0","data_base64":"%"}`,
		`{"specversion":"1.0","data_base64":"","data":1}`, `{"specversion":"1.0","data_base64":7}`, `{"specversion":"1.0","nodata":7}`,
	} {
		if m, err := cloudevents.Parse([]byte(event)); err == nil {
			t.Errorf("%s is read as %+v", event, m)
		}
	}
}
