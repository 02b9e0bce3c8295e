package publishtest

import (
	"strings"

	"github.com/outbox-suite/outbox/relay"
)

var refuseScenarios = []Scenario{
	{
		Name:    "Refuse/TooLarge",
		Promise: "a message that is too large is refused for good, and the publisher goes on",
		Needs:   []Need{Limited},
		run: func(t *trial) {
			p, topic := t.publisher(), t.topic()
			m := t.message(topic, "large")
			m.ContentType, m.Payload = "application/octet-stream", make([]byte, t.target.TooLarge)
			refused(t, t.undisturbed(p, m)[0], "a message that is too large")
			next := t.message(topic, "large")
			t.deliver(p, next)
			t.awaitAll(topic, next)
			if n := count(t.settled(topic), m.ID); n > 0 {
				t.errorf("the message that is too large arrived")
			}
		},
	},
	{
		Name:    "Refuse/TooLargeFailsAlone",
		Promise: "a message that is too large fails alone in its call",
		Needs:   []Need{Limited},
		run: func(t *trial) {
			topic := t.topic()
			m := t.message(topic, "bad")
			m.ContentType, m.Payload = "application/octet-stream", make([]byte, t.target.TooLarge)
			failsAlone(t, topic, m)
		},
	},
	{
		Name:    "Refuse/UnknownTopic",
		Promise: "a message to a topic whose destination does not exist is refused for good, and the error names the topic and the remedy",
		Needs:   []Need{Missing},
		run: func(t *trial) {
			err := t.undisturbed(t.publisher(), t.message(t.target.Unknown, "key"))[0]
			refused(t, err, "a message to an unknown topic")
			for _, part := range []string{t.target.Unknown, t.target.Remedy} {
				if err != nil && !strings.Contains(err.Error(), part) {
					t.errorf("the error does not say %q: %v", part, err)
				}
			}
		},
	},
	{
		Name:    "Refuse/UnknownTopicFailsAlone",
		Promise: "a message to a topic whose destination does not exist fails alone in its call",
		Needs:   []Need{Missing},
		run:     func(t *trial) { failsAlone(t, t.topic(), t.message(t.target.Unknown, "bad")) },
	},
	{
		Name:    "Refuse/Unroutable",
		Promise: "a message that cannot be routed is refused for good, alone in its call",
		Needs:   []Need{Astray},
		run: func(t *trial) {
			refused(t, t.undisturbed(t.publisher(), t.message(t.target.Unroutable, "key"))[0], "a message that cannot be routed")
			failsAlone(t, t.topic(), t.message(t.target.Unroutable, "bad"))
		},
	},
}

func refused(t *trial, err error, what string) {
	switch {
	case err == nil:
		t.errorf("%s was accepted", what)
	case relay.IsUnavailable(err):
		t.errorf("%s opens the breaker, as if the broker were away: %v", what, err)
	case !relay.IsPermanent(err):
		t.errorf("%s would be tried again and again: %v", what, err)
	}
}

// failsAlone publishes a bad message among good ones, in one call, several times
// so that the result's place matters.
func failsAlone(t *trial, topic string, bad relay.Message) {
	p := t.publisher()
	var good []relay.Message
	for at := range 4 {
		ms := t.messages(topic, 3)
		good = append(good, ms...)
		call := append(append(append([]relay.Message(nil), ms[:at]...), bad), ms[at:]...)
		for i, err := range t.undisturbed(p, call...) {
			switch {
			case i == at && !relay.IsPermanent(err):
				t.errorf("message %d of the call, the bad one, was not refused for good: %v", i+1, err)
			case i != at && err != nil:
				t.errorf("message %d was not accepted because message %d of the call is bad: %v", i+1, at+1, err)
			}
		}
	}
	t.awaitAll(topic, good...)
}
