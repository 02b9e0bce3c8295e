package publishtest

import (
	"time"

	"github.com/outbox-suite/outbox/relay"
)

var networkScenarios = []Scenario{
	{
		Name:    "Network/CutIsRepaired",
		Promise: "when connections are reset the publisher makes new ones, and nothing is refused for good",
		Needs:   []Need{Networked},
		run:     cutIsRepaired,
	},
	{
		Name:    "Network/AnswerLost",
		Promise: "when the connection is cut after the message went out, it is not accepted unless it is there, and trying again succeeds",
		Needs:   []Need{Networked},
		run:     answerLost,
	},
	{
		Name:    "Network/HalfOpenIsNoticed",
		Promise: "when the broker's end of a connection is gone without a farewell, the publisher accepts nothing, notices, and makes a new connection",
		Needs:   []Need{Networked},
		run:     halfOpenIsNoticed,
	},
	{
		Name:    "Network/HalfClosedIsNoticed",
		Promise: "when the broker's stream ends while what is sent still arrives there, the publisher accepts nothing on it and makes a new connection",
		Needs:   []Need{Networked},
		run:     halfClosedIsNoticed,
	},
}

func cutIsRepaired(t *trial) {
	p, x := t.through()
	topic := t.topic()
	for range 3 {
		ms := t.messages(topic, 5)
		t.deliver(p, ms...)
		x.Cut()
		more := t.messages(topic, 5)
		t.deliver(p, more...)
		t.awaitAll(topic, append(ms, more...)...)
	}
}

func answerLost(t *trial) {
	p, x := t.through()
	topic := t.topic()
	var all []relay.Message
	for round := range 6 {
		t.deliver(p, t.messages(topic, 1)...) // the connection stands
		m := t.message(topic, "key")
		all = append(all, m)
		x.CutAt(1+round/2, round%2 == 0)
		ctx, cancel := contextFor(t.ctx, 2*shortCall)
		err := t.call(ctx, p, m)[0]
		cancel()
		x.CutAt(-1, false)
		if err == nil {
			t.awaitAll(topic, m)
		}
		m.Attempt++
		t.deliver(p, m)
	}
	t.awaitAll(topic, all...)
	got := t.settled(topic)
	for i := range all {
		if n := count(got, all[i].ID); t.target.Deduplicates && n != 1 {
			t.errorf("the broker removes duplicates, and message %d arrived %d times", i+1, n)
		}
	}
}

func halfOpenIsNoticed(t *trial) {
	p, x := t.through()
	topic := t.topic()
	t.deliver(p, t.messages(topic, 2)...)
	if x.Orphan() == 0 {
		t.skip("the publisher keeps no connection between calls")
	}
	m := t.message(topic, "key")
	ctx, cancel := contextFor(t.ctx, shortCall)
	err := t.call(ctx, p, m)[0]
	cancel()
	if err == nil && count(t.settled(topic), m.ID) == 0 {
		t.errorf("a message was accepted although the connection leads nowhere")
	}
	t.recovers(p, m)
	t.awaitAll(topic, m)
}

// recovers tries a message again, as a relay does whose calls are short, until
// it is accepted.
func (t *trial) recovers(p relay.Publisher, m relay.Message) {
	began := time.Now()
	for {
		m.Attempt++
		ctx, cancel := contextFor(t.ctx, 2*shortCall)
		err := t.call(ctx, p, m)[0]
		cancel()
		switch {
		case err == nil:
			return
		case relay.IsPermanent(err):
			t.fail("a message was refused for good because of its connection: %v", err)
		case time.Since(began) > t.target.Patience || t.ctx.Err() != nil:
			t.fail("for %v the publisher did not notice that its connection leads nowhere: %v", t.target.Patience, err)
		}
		time.Sleep(retryEvery)
	}
}

func halfClosedIsNoticed(t *trial) {
	p, x := t.through()
	topic := t.topic()
	t.deliver(p, t.messages(topic, 2)...)
	x.HalfClose()
	m := t.message(topic, "key")
	ctx, cancel := contextFor(t.ctx, shortCall)
	err := t.call(ctx, p, m)[0]
	cancel()
	if err == nil {
		t.awaitAll(topic, m)
	}
	t.recovers(p, m)
	t.awaitAll(topic, m)
}
