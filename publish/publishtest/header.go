package publishtest

import (
	"fmt"
	"strings"

	"github.com/outbox-suite/outbox/relay"
)

var headerScenarios = []Scenario{
	{
		Name:    "Header/TextSurvives",
		Promise: "every header that Enqueue takes arrives, name and value as they were, and stands for nothing else at the broker",
		run:     textSurvives,
	},
	{
		Name:    "Header/ControlsSurviveOrAreRefused",
		Promise: "a header with line breaks, NUL or bytes that are no text arrives as it was, or its message alone is refused for good",
		run:     controlsSurvive,
	},
	{
		Name:    "Header/DefaultLimitFits",
		Promise: "headers as large as Enqueue takes by default arrive",
		run:     limitFits,
	},
}

func textSurvives(t *trial) {
	p, topic := t.publisher(), t.topic()
	m := t.message(topic, "key")
	m.Headers = map[string]string{
		"umlaut": "Grüße", "combining": "e\u0301", "emoji": "🦆", "cjk": "日本語", "empty": "", "space": " a  b ", "tab": "\ta\t",
		"quote": `"a\"b`, "percent": "100%41%zz", "separators": "a,b;c=d:e", "encoded-word": "=?utf-8?q?=C3=BC?=", "base64": "aGVsbG8=",
		"line-separator": "a\u2028b\u0085c", "bell": "a\x07\x1b\x7f", "json": `{"a":["\n"]}`,
		"X-Case": "upper", "x-case": "lower", "X_Under": "under",
		// Names that mean something elsewhere.
		"id": "1", "source": "2", "type": "3", "key": "4", "topic": "5", "subject": "6", "headers": "7", "data": "8", "replay": "9",
		"content-type": "text/x-evil", "Content-Type": "text/x-evil", "ce-id": "evil", "ce_id": "evil", "Status": "503", "message-id": "evil",
		"Nats-Msg-Id": "same", "Nats-Rollup": "all", "Nats-Expected-Stream": "evil", "Host": "evil", "Content-Length": "1", "x-delay": "1000000", "CC": "evil",
		"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b,c=d",
	}
	// Every character that a name may have.
	for c := byte('!'); c < 0x7f; c++ {
		if c != ':' {
			m.Headers["name"+string(rune(c))] = string(rune(c))
		}
	}
	twin := t.message(topic, "twin")
	twin.Headers = map[string]string{"Nats-Msg-Id": "same", "message-id": "evil"}
	t.accept(p, m)
	t.accept(p, twin)
	t.awaitAll(topic, m, twin)
}

func controlsSurvive(t *trial) {
	p, topic := t.publisher(), t.topic()
	var ms []relay.Message
	for name, value := range map[string]string{
		"crlf": "a\r\nX-Evil: 1\r\n\r\nbody", "lf": "a\nb", "cr": "a\rb", "nul": "a\x00b", "binary": "\xff\xfe\x80", "half": "\xc3",
		"surrogate": "\xed\xa0\x80", "break in\r\nX-Evil: name": "v", "space in name": "v", "": "empty name", "colon:": "v", "näme": "v", "n\x00": "v",
	} {
		m := t.message(topic, "key "+fmt.Sprint(len(ms)))
		m.Headers = map[string]string{name: value, "beside": "it"}
		ms = append(ms, m)
	}
	plain := t.message(topic, "plain")
	ms = append(ms, plain)
	var accepted []relay.Message
	for i, err := range t.undisturbed(p, ms...) {
		switch {
		case err == nil:
			accepted = append(accepted, ms[i])
		case ms[i].ID == plain.ID:
			t.errorf("a message without headers, in the same call, was not accepted: %v", err)
		case !relay.IsPermanent(err):
			t.errorf("headers %q are not accepted, and would be tried again and again: %v", ms[i].Headers, err)
		}
	}
	t.awaitAll(topic, accepted...)
	if got := t.settled(topic); len(got) > len(accepted) {
		t.errorf("%d messages were accepted and %d arrived", len(accepted), len(got))
	}
}

func limitFits(t *trial) {
	p, topic := t.publisher(), t.topic()
	large, many := t.message(topic, "large"), t.message(topic, "many")
	large.Headers = map[string]string{"large": strings.Repeat("ü", 8000)} // 16 KiB as JSON, with the name
	many.Headers = make(map[string]string)
	for i := range 500 {
		many.Headers[fmt.Sprintf("header%d", i)] = "0123456789"
	}
	t.accept(p, large, many)
	t.awaitAll(topic, large, many)
}
