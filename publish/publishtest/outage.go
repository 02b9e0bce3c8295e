package publishtest

import (
	"context"
	"time"

	"github.com/outbox-suite/outbox/relay"
)

var outageScenarios = []Scenario{
	{
		Name:    "Outage/DownIsUnavailable",
		Promise: "while the broker is down Publish says that it is unavailable, of every message and before its context ends",
		Needs:   []Need{Crash},
		run:     downIsUnavailable,
	},
	{
		Name:    "Outage/RecoversByItself",
		Promise: "when the broker is back the same publisher goes on, and what failed meanwhile is accepted",
		Needs:   []Need{Crash},
		run:     recoversByItself,
	},
	{
		Name:    "Outage/DownAtTheStart",
		Promise: "a publisher that is made while the broker is down says so, or is unavailable and recovers",
		Needs:   []Need{Crash},
		run:     downAtTheStart,
	},
	{
		Name:    "Outage/KilledInMidPublish",
		Promise: "when the broker is killed while many publish, nothing is accepted that is not there afterwards, and nothing is refused for good",
		Needs:   []Need{Crash},
		run:     killedInMidPublish,
	},
}

func downIsUnavailable(t *trial) {
	p, topic := t.publisher(), t.topic()
	t.accept(p, t.messages(topic, 3)...)
	t.kill()
	t.unavailable(p, topic)
}

// unavailable waits until the publisher has noticed an outage and then looks at
// what it says of it.
func (t *trial) unavailable(p relay.Publisher, topic string) {
	deadline, lates := time.Now().Add(t.target.Patience), 0
	for noticed := 0; noticed < 3; {
		ctx, cancel := contextFor(t.ctx, callTimeout)
		errs := t.call(ctx, p, t.messages(topic, 3)...)
		late := ctx.Err() != nil
		cancel()
		all := true
		for _, err := range errs {
			switch {
			case err == nil:
				t.fail("a message was accepted while the broker was down")
			case relay.IsPermanent(err):
				t.fail("a message was refused for good because the broker was down: %v", err)
			case !relay.IsUnavailable(err):
				all = false
				if noticed > 0 || time.Now().After(deadline) {
					t.fail("while the broker is down an attempt is counted against a message: %v", err)
				}
			}
		}
		switch {
		case all && late: // once may be the machine's doing
			if lates++; lates > 1 {
				t.fail("the broker was down and Publish waited for the end of its context")
			}
		case all:
			noticed++
		}
	}
}

func recoversByItself(t *trial) {
	p, topic := t.publisher(), t.topic()
	before := t.messages(topic, 3)
	t.accept(p, before...)
	for range 2 {
		ms := t.messages(topic, 5)
		start := t.kill()
		for i, err := range t.publish(p, ms...) {
			if err == nil {
				t.fail("message %d was accepted while the broker was down", i+1)
			}
		}
		start()
		t.deliver(p, ms...)
		t.awaitAll(topic, ms...)
	}
	t.awaitAll(topic, before...)
}

func downAtTheStart(t *trial) {
	topic := t.topic()
	start := t.kill()
	p, err := t.target.New(t.ctx)
	t.keepsSecret(err)
	if err != nil {
		start()
		return
	}
	t.closeLater(p)
	t.unavailable(p, topic)
	start()
	m := t.message(topic, "key")
	t.deliver(p, m)
	t.awaitAll(topic, m)
}

func killedInMidPublish(t *trial) {
	p, topic := t.publisher(), t.topic()
	t.accept(p, t.messages(topic, 1)...)
	type call struct {
		ms   []relay.Message
		errs []error
	}
	calls := make(chan call)
	over := make(chan struct{})
	defer close(over)
	const callers = 4
	for range callers {
		go func() {
			for range 20 {
				c := call{ms: t.messages(topic, 20)}
				c.errs = t.publish(p, c.ms...)
				select {
				case calls <- c:
				case <-over:
					return
				}
			}
		}()
	}
	var accepted, failed []relay.Message
	start := func() {}
	for n := range callers * 20 {
		if n == callers*5 {
			start = t.kill()
		}
		if n == callers*10 {
			start()
		}
		c := <-calls
		for i, err := range c.errs {
			switch {
			case err == nil:
				accepted = append(accepted, c.ms[i])
			case relay.IsPermanent(err):
				t.fail("a message was refused for good because the broker was killed: %v", err)
			default:
				failed = append(failed, c.ms[i])
			}
		}
	}
	t.awaitAll(topic, accepted...)
	if len(failed) > 0 {
		t.deliver(p, failed...)
		t.awaitAll(topic, failed...)
	}
}

func contextFor(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}
