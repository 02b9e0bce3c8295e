package publishtest

import (
	"context"
	"time"

	"github.com/outbox-suite/outbox/relay"
)

var slowScenarios = []Scenario{
	{
		Name:    "Slow/ContextEndIsAnError",
		Promise: "when a call's time is over before a slow broker has answered, Publish returns soon and accepts nothing, and the messages can be tried again",
		Needs:   []Need{Stalling},
		run: func(t *trial) {
			slow(t, 2, 5, 100, func() (context.Context, context.CancelFunc) { return contextFor(t.ctx, shortCall) })
		},
	},
	{
		Name:    "Slow/LeaseLostIsAnError",
		Promise: "when a call is cancelled, as by a lost lease, before a slow broker has answered, Publish returns soon and accepts nothing",
		Needs:   []Need{Stalling},
		run: func(t *trial) {
			slow(t, 1, 5, 100, func() (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(t.ctx)
				time.AfterFunc(shortCall, cancel)
				return ctx, cancel
			})
		},
	},
	{
		Name:    "Slow/FullBuffersBlockNobody",
		Promise: "when a broker takes no more bytes and all buffers are full, a call ends with its context all the same",
		Needs:   []Need{Stalling},
		run: func(t *trial) {
			slow(t, 1, 40, 200<<10, func() (context.Context, context.CancelFunc) { return contextFor(t.ctx, shortCall) })
		},
	},
}

// slow publishes n messages to a broker that stands still, several times, and
// again when it goes on.
func slow(t *trial, times, n, size int, limited func() (context.Context, context.CancelFunc)) {
	p, stall, resume := t.stalling()
	topic := t.topic()
	t.accept(p, t.messages(topic, 1)...)
	ms := t.messages(topic, n)
	for i := range ms {
		ms[i].ContentType, ms[i].Payload = "application/octet-stream", make([]byte, size)
	}
	stall()
	for range times {
		ctx, cancel := limited()
		errs := t.call(ctx, p, ms...)
		cancel()
		for i, err := range errs {
			switch {
			case err == nil:
				t.errorf("message %d was accepted although the broker had not answered", i+1)
			case relay.IsPermanent(err):
				t.errorf("message %d was refused for good although only the broker was slow: %v", i+1, err)
			}
			ms[i].Attempt++
		}
	}
	resume()
	t.deliver(p, ms...)
	t.awaitAll(topic, ms...)
}
