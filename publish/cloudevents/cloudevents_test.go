package cloudevents_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/publish/cloudevents"
	"github.com/outbox-suite/outbox/relay"
)

func message() relay.Message {
	return relay.Message{
		Message: outbox.Message{
			ID:    uuid.MustParse("0199d3c5-6a4e-7c1e-9a53-0d5b8a3f9a11"),
			Topic: "orders", Key: "42", Type: "order.placed", ContentType: "application/json",
			Payload: []byte(`{"total":7}`),
		},
		Seq: 9_007_199_254_740_993, Lane: 3, Epoch: 5_000_000_000, Attempt: 1,
		CreatedAt: time.Date(2026, 1, 31, 15, 4, 5, 123_456_789, time.FixedZone("", 3600)),
	}
}

func Example() {
	m := message()
	m.Headers = map[string]string{"traceparent": "00-0af7-b7ad-01", "X-Tenant": "acme"}
	fmt.Printf("%s\n", cloudevents.Append(nil, "/shop/orders", &m))
	// Output:
	// {"specversion":"1.0","id":"0199d3c5-6a4e-7c1e-9a53-0d5b8a3f9a11","source":"/shop/orders","type":"order.placed","subject":"42","time":"2026-01-31T14:04:05.123456Z","datacontenttype":"application/json","topic":"orders","sequence":"9007199254740993","lane":3,"epoch":"5000000000","attempt":1,"traceparent":"00-0af7-b7ad-01","headers":"{\"X-Tenant\":\"acme\"}","data":{"total":7}}
}

// TestAttributes looks at one member at a time; absent is a member that must
// not be there.
func TestAttributes(t *testing.T) {
	const absent = "absent"
	for _, test := range []struct {
		name   string
		change func(m *relay.Message)
		want   map[string]string
	}{
		{"no key", func(m *relay.Message) { m.Key = "" }, map[string]string{"subject": absent, "emptykey": absent}},
		{"empty key", func(m *relay.Message) { m.Key, m.EmptyKey = "", true }, map[string]string{"subject": absent, "emptykey": "true"}},
		{"key that needs escapes", func(m *relay.Message) { m.Key = "a\"\\\n\x01\u2028<&>é\x7f" }, map[string]string{"subject": `"a\"\\\u000a\u0001\u2028<&>é\u007f"`}},
		{"never replayed, no revision", func(*relay.Message) {}, map[string]string{"replay": absent, "revision": absent, "headers": absent}},
		{"replayed", func(m *relay.Message) { m.Replay = 2 }, map[string]string{"replay": "2"}},
		{"revision", func(m *relay.Message) { m.Revision = 1 << 62 }, map[string]string{"revision": `"4611686018427387904"`}},

		{"no payload", func(m *relay.Message) { m.Payload = nil }, map[string]string{"data": absent, "data_base64": absent}},
		{"empty payload", func(m *relay.Message) { m.Payload = []byte{} }, map[string]string{"data": absent, "data_base64": `""`}},
		{"payload null", func(m *relay.Message) { m.Payload = []byte("null") }, map[string]string{"data": "null"}},
		{"payload unchanged", func(m *relay.Message) { m.Payload = []byte(`{"a" : 1.0, "a":2e3}`) }, map[string]string{"data": `{"a" : 1.0, "a":2e3}`}},
		{"payload of several lines", func(m *relay.Message) { m.Payload = []byte("{\r\n  \"a\": \"x  y\"\n}") }, map[string]string{"data": `{"a":"x  y"}`}},
		{"payload not JSON", func(m *relay.Message) { m.Payload = []byte("{") }, map[string]string{"data": absent, "data_base64": `"ew=="`}},
		{"payload JSON with bad UTF-8", func(m *relay.Message) { m.Payload = []byte("\"\xff\"") }, map[string]string{"data": absent, "data_base64": `"Iv8i"`}},
		{"payload JSON twice", func(m *relay.Message) { m.Payload = []byte("1 2") }, map[string]string{"data": absent, "data_base64": `"MSAy"`}},
		{"content type text", func(m *relay.Message) { m.ContentType = "text/plain" }, map[string]string{"data": absent, "data_base64": `"eyJ0b3RhbCI6N30="`}},
		{"content type +json", func(m *relay.Message) { m.ContentType = "application/vnd.acme+JSON; charset=utf-8" }, map[string]string{"data": `{"total":7}`}},
		{"content type nonsense", func(m *relay.Message) { m.ContentType = ";;json" }, map[string]string{"data": absent, "datacontenttype": `";;json"`}},

		{"legal header", func(m *relay.Message) { m.Headers = map[string]string{"tracestate": "a=b", "x1": ""} }, map[string]string{"tracestate": `"a=b"`, "x1": `""`, "headers": absent}},
		{"header with an illegal name", func(m *relay.Message) {
			m.Headers = map[string]string{"X-A": "1", "b_c": "\""}
		}, map[string]string{"X-A": absent, "b_c": absent, "headers": `"{\"X-A\":\"1\",\"b_c\":\"\\\"\"}"`}},
		{"header with a value that is no String", func(m *relay.Message) { m.Headers = map[string]string{"a": "x\ty"} }, map[string]string{"a": absent, "headers": `"{\"a\":\"x\\u0009y\"}"`}},
		{"headers named like attributes", func(m *relay.Message) {
			m.Headers = map[string]string{"id": "evil", "data": "evil", "topic": "evil", "headers": "evil"}
		}, map[string]string{
			"id": `"0199d3c5-6a4e-7c1e-9a53-0d5b8a3f9a11"`, "topic": `"orders"`, "data": `{"total":7}`,
			"headers": `"{\"data\":\"evil\",\"headers\":\"evil\",\"id\":\"evil\",\"topic\":\"evil\"}"`,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := message()
			test.change(&m)
			event := decode(t, cloudevents.Append(nil, cloudevents.DefaultSource, &m))
			for name, want := range test.want {
				got, ok := event[name]
				if !ok {
					got = absent
				}
				if got != want {
					t.Errorf("%s is %s, want %s", name, got, want)
				}
			}
		})
	}
}

// decode reads an event and fails on what a line of JSON must not be.
func decode(tb testing.TB, line []byte) map[string]string {
	tb.Helper()
	if bytes.ContainsAny(line, "\r\n") {
		tb.Fatalf("more than one line: %q", line)
	}
	if !utf8.Valid(line) || !json.Valid(line) {
		tb.Fatalf("not JSON: %q", line)
	}
	if !bytes.HasPrefix(line, []byte(cloudevents.Start)) {
		tb.Fatalf("does not begin with Start: %q", line)
	}
	event := make(map[string]string)
	d := json.NewDecoder(bytes.NewReader(line))
	_, _ = d.Token()
	for d.More() {
		name, _ := d.Token()
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			tb.Fatalf("%v in %q", err, line)
		}
		if _, twice := event[name.(string)]; twice {
			tb.Fatalf("%s is there twice in %q", name, line)
		}
		event[name.(string)] = string(value)
	}
	return event
}

func FuzzAppend(f *testing.F) {
	f.Add("orders", "42", "order.placed", "application/json", []byte(`{"a":1}`), "traceparent", "00-1", int64(1), 1)
	f.Add("", "\n", "\xff", "text/json;", []byte("[1,\r\n2]"), "X\u2028", "\x00\ufdd0", int64(-1), 0)
	f.Add("\u2029", "\"", "\\", "a/b+json", []byte("\"\xff\""), "headers", "\u0085", int64(1)<<62, -3)
	f.Fuzz(func(t *testing.T, topic, key, typ, contentType string, payload []byte, name, value string, seq int64, replay int) {
		m := message()
		m.Topic, m.Key, m.EmptyKey, m.Type, m.ContentType, m.Payload, m.Seq, m.Replay = topic, key, key == "", typ, contentType, payload, seq, replay
		m.Headers = map[string]string{name: value, name + "-": value}
		before := []byte("before\n")
		line := cloudevents.Append(before, cloudevents.DefaultSource, &m)
		if !bytes.HasPrefix(line, []byte("before\n")) {
			t.Fatal("what was in dst is changed")
		}
		event := decode(t, line[len(before):])
		text := func(member string) string {
			var s string
			if err := json.Unmarshal([]byte(event[member]), &s); err != nil {
				t.Fatalf("%s: %v", member, err)
			}
			return s
		}
		for member, want := range map[string]string{"topic": topic, "type": typ, "subject": key, "datacontenttype": contentType} {
			if _, there := event[member]; !there && want == "" {
				continue
			}
			if got := text(member); got != utf8Text(want) {
				t.Errorf("%s is %q, want %q", member, got, want)
			}
		}
		data, isData := event["data"]
		encoded, isEncoded := event["data_base64"]
		switch {
		case isData == isEncoded && payload != nil:
			t.Errorf("data %t and data_base64 %t", isData, isEncoded)
		case isData:
			var want, got bytes.Buffer
			if json.Compact(&want, payload) != nil || json.Compact(&got, []byte(data)) != nil || !bytes.Equal(want.Bytes(), got.Bytes()) {
				t.Errorf("data is %s, want %s", data, payload)
			}
		case isEncoded:
			if got, err := base64.StdEncoding.DecodeString(strings.Trim(encoded, `"`)); err != nil || !bytes.Equal(got, payload) {
				t.Errorf("data_base64 is %q (%v), want %q", got, err, payload)
			}
		}
		rest := make(map[string]string)
		if _, there := event["headers"]; there {
			if err := json.Unmarshal([]byte(text("headers")), &rest); err != nil {
				t.Fatalf("headers: %v", err)
			}
		}
		if got := rest[utf8Text(name+"-")]; got != utf8Text(value) {
			t.Errorf("header %q is %q, want %q", name+"-", got, value)
		}
		got, ok := rest[utf8Text(name)]
		if !ok {
			got = text(name)
		}
		if got != utf8Text(value) {
			t.Errorf("header %q is %q, want %q", name, got, value)
		}
	})
}

// utf8Text is s with each bad byte replaced.
func utf8Text(s string) string { return string([]rune(s)) }

func TestCheckSource(t *testing.T) {
	for _, good := range []string{cloudevents.DefaultSource, "orders", "urn:acme:orders", "https://acme.test/a?b#c", "/%C3%A9"} {
		if err := cloudevents.CheckSource(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", "a b", "/é", "/a\n", "%zz", "http://[::1", "a|b"} {
		if cloudevents.CheckSource(bad) == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	m := message()
	m.Headers = map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	var line []byte
	b.ReportAllocs()
	for b.Loop() {
		line = cloudevents.Append(line[:0], cloudevents.DefaultSource, &m)
	}
}
