package publishtest

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/outbox-suite/outbox/relay"
)

var acceptScenarios = []Scenario{
	{
		Name:    "Accept/EverythingArrives",
		Promise: "what is accepted arrives with its id, topic, key, type, content type, headers, revision and payload as they were",
		run:     everythingArrives,
	},
	{
		Name:    "Accept/KeysAreExact",
		Promise: "keys and types arrive byte for byte, and no key and the empty key are kept apart",
		run:     keysAreExact,
	},
	{
		Name:    "Accept/PayloadIsExact",
		Promise: "a payload arrives byte for byte, whatever it holds and whatever its content type says",
		run:     payloadIsExact,
	},
	{
		Name:    "Accept/NilIsNotEmpty",
		Promise: "a nil and an empty payload arrive as such",
		Needs:   []Need{Nil},
		run:     nilIsNotEmpty,
	},
	{
		Name:    "Accept/AckedIsDurable",
		Promise: "what was accepted is there when the broker is killed at once and started again",
		Needs:   []Need{Crash},
		run:     ackedIsDurable,
	},
	{
		Name:    "Accept/LargeCall",
		Promise: "a call of 500 messages, as many as a relay hands over by default, is accepted whole and arrives once",
		run:     largeCall,
	},
}

func everythingArrives(t *trial) {
	p, topic := t.publisher(), t.topic()
	m := t.message(topic, "order-42")
	m.Type, m.ContentType, m.Revision = "order.placed", `text/plain; charset="utf-8"`, 1<<40
	m.Headers = map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "X-Tenant": "acme"}
	bare := t.message(topic, "")
	bare.Type = "t"
	other := t.topic()
	elsewhere := t.message(other, "order-42")
	t.accept(p, m, bare, elsewhere)
	t.accept(p) // a call without messages does no harm
	t.awaitAll(topic, m, bare)
	t.awaitAll(other, elsewhere)
	if got := t.settled(topic); len(got) != 2 {
		t.errorf("2 messages were published to the topic and %d arrived", len(got))
	}
}

func keysAreExact(t *trial) {
	p, topic := t.publisher(), t.topic()
	var ms []relay.Message
	for _, key := range []string{
		"a", "A", "a ", " a", "\ta", "é", "e\u0301", "a/b.c*>#", "%41", `"'\`, "a\r\nb: c", "\x01\x7f", "日本語", "🦆", "a=b;c,d",
		strings.Repeat("ü", 256),
	} {
		m := t.message(topic, key)
		m.Type = "type " + key
		if len(m.Type) > 255 {
			m.Type = m.Type[:251]
		}
		ms = append(ms, m)
	}
	empty := t.message(topic, "")
	empty.EmptyKey = true
	ms = append(ms, empty, t.message(topic, ""))
	t.accept(p, ms...)
	t.awaitAll(topic, ms...)
}

func payloadIsExact(t *trial) {
	p, topic := t.publisher(), t.topic()
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	noise := make([]byte, 64<<10)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(noise)
	var ms []relay.Message
	for _, contentType := range []string{"application/json", "application/octet-stream", "text/plain; charset=utf-8"} {
		for _, payload := range [][]byte{
			every, noise, []byte(`{"a" : 1.0, "a":2e3}`), []byte("{\r\n \"a\": 1\n}\n"), []byte("null"), []byte(`""`), {0}, []byte("\n"), []byte("\xff\xfe"), []byte("it's"),
		} {
			m := t.message(topic, fmt.Sprintf("key-%d", len(ms)))
			m.ContentType, m.Payload = contentType, payload
			ms = append(ms, m)
		}
	}
	t.accept(p, ms...)
	t.awaitAll(topic, ms...)
}

func nilIsNotEmpty(t *trial) {
	p, topic := t.publisher(), t.topic()
	none, empty := t.message(topic, "a"), t.message(topic, "b")
	none.Payload, empty.Payload = nil, []byte{}
	t.accept(p, none, empty)
	t.awaitAll(topic, none, empty)
	for _, r := range t.arrived(topic) {
		if r.ID == none.ID && r.Payload != nil {
			t.errorf("a nil payload arrived as one of %d bytes", len(r.Payload))
		}
		if r.ID == empty.ID && r.Payload == nil {
			t.errorf("an empty payload arrived as none")
		}
	}
}

func ackedIsDurable(t *trial) {
	p, topic := t.publisher(), t.topic()
	var accepted []relay.Message
	for range 3 {
		t.deliver(p, t.messages(topic, 1)...) // the connection stands
		ms := t.messages(topic, 20)
		errs := t.publish(p, ms...)
		start := t.kill()
		for i, err := range errs {
			if err == nil {
				accepted = append(accepted, ms[i])
			}
		}
		start()
	}
	if len(accepted) == 0 {
		t.fail("no message was accepted although the broker was up")
	}
	t.awaitAll(topic, accepted...)
}

func largeCall(t *trial) {
	p, topic := t.publisher(), t.topic()
	ms := t.messages(topic, 500)
	t.accept(p, ms...)
	t.awaitAll(topic, ms...)
	if got := t.settled(topic); len(got) != len(ms) {
		t.errorf("%d messages were accepted, without any fault, and %d arrived", len(ms), len(got))
	}
}
