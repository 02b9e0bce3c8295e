package webhook_test

import (
	"bytes"
	"context"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/publish/webhook"
	"github.com/outbox-suite/outbox/relay"
)

func contextFor(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeout(t.Context(), d)
}

// requestOf is the request that a message makes.
func requestOf(t *testing.T, cfg webhook.Config, m relay.Message) (http.Header, []byte) {
	t.Helper()
	var header http.Header
	var body bytes.Buffer
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		header = r.Header.Clone()
		_, _ = body.ReadFrom(r.Body)
	})
	if err := first(open(t, s.URL, cfg).Publish(t.Context(), []relay.Message{m})); err != nil {
		t.Fatal(err)
	}
	return header, body.Bytes()
}

func TestBinaryMode(t *testing.T) {
	m := messages(1)[0]
	m.Key, m.ContentType, m.Payload = `Grüße "€" 100%`, `text/plain; charset="utf-8"`, []byte("a\x00b")
	m.Headers = map[string]string{"traceparent": "00-0af7-b7ad-01", "X-Tenant": "acme", "Authorization": "evil\r\nX-Evil: 1"}
	own := http.Header{"Ce-Id": {"evil"}, "Webhook-Id": {"evil"}, "Authorization": {"Bearer mine"}}
	header, body := requestOf(t, webhook.Config{Mode: webhook.Binary, Source: "/shop", Header: own}, m)
	if !bytes.Equal(body, m.Payload) {
		t.Errorf("the body is %q", body)
	}
	const key = "Gr%C3%BC%C3%9Fe%20%22%E2%82%AC%22%20100%25"
	for name, want := range map[string]string{
		"Content-Type": m.ContentType, "Ce-Specversion": "1.0", "Ce-Id": m.ID.String(), "Ce-Source": "/shop", "Ce-Type": m.Type,
		"Ce-Subject": key, "Ce-Partitionkey": key, "Ce-Time": "2026-02-02T02:40:00Z", "Ce-Topic": "orders", "Ce-Sequence": "1", "Ce-Attempt": "1",
		"Ce-Traceparent": "00-0af7-b7ad-01", "Authorization": "Bearer mine", "Webhook-Id": m.ID.String(),
		"Ce-Datacontenttype": "", "Ce-Data": "", "X-Tenant": "", "X-Evil": "", "Ce-Nodata": "", "Traceparent": "",
	} {
		if got := header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for name, values := range header {
		if len(values) != 1 {
			t.Errorf("%s is there %d times", name, len(values))
		}
		if strings.HasPrefix(name, "Ce-") && strings.ContainsFunc(values[0], func(r rune) bool { return r <= ' ' || r > '~' || r == '"' }) {
			t.Errorf("%s is not percent-encoded: %q", name, values[0])
		}
	}
}

// What cannot be in Content-Type, or would be taken for an event there, goes in the
// structured mode; all of it comes back.
func TestContentTypes(t *testing.T) {
	for contentType, binary := range map[string]bool{
		"": true, "application/json": true, `a/b; c="d e"`: true, "no type at all": true,
		"application/cloudevents+json": false, "Application/CloudEvents-batch+json": false, "application/cloudevents": false,
		"text/plain ": false, " text/plain": false, "text/plain\r\nX-Evil: 1": false, "text/é": false, "a\x00": false, "a\x7f": false,
	} {
		m := messages(1)[0]
		m.ContentType, m.Payload = contentType, []byte(`{"a":1}`)
		header, body := requestOf(t, webhook.Config{Mode: webhook.Binary}, m)
		if header.Get("X-Evil") != "" {
			t.Errorf("%q: it makes a header", contentType)
		}
		if got := header.Get("Ce-Id") != ""; got != binary {
			t.Errorf("%q: binary mode %v, want %v", contentType, got, binary)
		}
		got, err := webhook.Decode(header, body)
		if err != nil || got.ContentType != contentType || !bytes.Equal(got.Payload, m.Payload) || got.ID != m.ID || got.Key != m.Key {
			t.Errorf("%q: %v, got %+v", contentType, err, got)
		}
	}
}

func TestDecode(t *testing.T) {
	for _, mode := range []webhook.Mode{webhook.Structured, webhook.Binary} {
		m := messages(1)[0]
		m.Payload, m.Replay, m.Revision, m.Attempt, m.Epoch, m.Lane = nil, 2, 1<<40, 3, 1<<40, 7
		m.Headers = map[string]string{"partitionkey": "not the key", "nodata": "x", "a": "b", "X-A": "ü\t"}
		got, err := webhook.Decode(requestOf(t, webhook.Config{Mode: mode}, m))
		if err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(got.Headers, m.Headers) || got.Payload != nil || got.Replay != 2 || got.Revision != m.Revision || got.Attempt != 3 ||
			got.Epoch != m.Epoch || got.Lane != 7 || got.Seq != m.Seq || got.Topic != m.Topic || got.Type != m.Type || !got.CreatedAt.Equal(m.CreatedAt) {
			t.Errorf("mode %d: sent %+v and got %+v", mode, m, got)
		}
	}
	for contentType, body := range map[string]string{
		"application/cloudevents+json":       "",
		"application/cloudevents+json;a=b":   `{"specversion":"0.3"}`,
		"application/cloudevents+xml":        `{"specversion":"1.0"}`,
		"application/cloudevents-batch+json": `[]`,
		"application/json":                   `{}`,
		"":                                   "",
	} {
		if m, err := webhook.Decode(http.Header{"Content-Type": {contentType}}, []byte(body)); err == nil {
			t.Errorf("%q %q is read as %+v", contentType, body, m)
		}
	}
}
