package publishtest

import (
	"io"
	"sync"

	"github.com/outbox-suite/outbox/relay"
)

var concurrentScenarios = []Scenario{
	{
		Name:    "Concurrent/ManyCallers",
		Promise: "calls at the same time do not disturb each other: without a fault everything is accepted and arrives once",
		run:     manyCallers,
	},
	{
		Name:    "Concurrent/MessagesAreLeftAlone",
		Promise: "Publish does not change the messages it is given",
		run:     leftAlone,
	},
	{
		Name:    "Close/AcceptsNothingAfterwards",
		Promise: "a publisher that is closed accepts nothing, refuses nothing for good, does not hang, and may be closed again",
		Needs:   []Need{Closing},
		run:     closedAcceptsNothing,
	},
	{
		Name:    "Close/DuringPublish",
		Promise: "when a publisher is closed while calls are under way, each returns, and what it accepted is there",
		Needs:   []Need{Closing},
		run:     closedDuringPublish,
	},
}

func manyCallers(t *trial) {
	p, topic := t.publisher(), t.topic()
	const callers, calls, size = 16, 5, 5
	var mu sync.Mutex
	var all []relay.Message
	var done sync.WaitGroup
	for range callers {
		done.Go(func() {
			for range calls {
				ms := t.messages(topic, size)
				for i, err := range t.undisturbed(p, ms...) {
					if err != nil {
						t.errorf("message %d of %d was not accepted: %v", i+1, size, err)
					}
				}
				mu.Lock()
				all = append(all, ms...)
				mu.Unlock()
			}
		})
	}
	done.Wait()
	t.awaitAll(topic, all...)
	if got := t.settled(topic); len(got) != len(all) {
		t.errorf("%d messages were published and %d arrived", len(all), len(got))
	}
}

func leftAlone(t *trial) {
	p, topic := t.publisher(), t.topic()
	m := t.message(topic, "key")
	m.Headers = map[string]string{"a": "b", "c": "d"}
	call := []relay.Message{m}
	call[0].Headers = map[string]string{"a": "b", "c": "d"}
	call[0].Payload = append([]byte(nil), m.Payload...)
	t.accept(p, call...)
	for _, d := range differences(&m, &Received{Message: call[0].Message}) {
		t.errorf("the caller's message was changed: %s", d)
	}
	if call[0].ID != m.ID || call[0].Seq != m.Seq || call[0].Attempt != m.Attempt || call[0].Replay != m.Replay {
		t.errorf("the caller's message was changed")
	}
	t.awaitAll(topic, m)
}

func closedAcceptsNothing(t *trial) {
	p, topic := t.publisher(), t.topic()
	t.accept(p, t.messages(topic, 3)...)
	closer, _ := p.(io.Closer)
	if !t.within("Close", func() { _ = closer.Close() }) {
		return
	}
	for i, err := range t.publish(p, t.messages(topic, 3)...) {
		switch {
		case err == nil:
			t.errorf("message %d was accepted by a closed publisher", i+1)
		case relay.IsPermanent(err):
			t.errorf("message %d was refused for good because the publisher is closed: %v", i+1, err)
		}
	}
	t.within("a second Close", func() { _ = closer.Close() })
}

func closedDuringPublish(t *trial) {
	p, topic := t.publisher(), t.topic()
	t.accept(p, t.messages(topic, 1)...)
	closer, _ := p.(io.Closer)
	var mu sync.Mutex
	var accepted []relay.Message
	var under, done sync.WaitGroup
	const callers = 4
	under.Add(callers)
	for range callers {
		done.Go(func() {
			for n := range 100 {
				ms := t.messages(topic, 10)
				errs := t.publish(p, ms...)
				mu.Lock()
				for i, err := range errs {
					if err == nil {
						accepted = append(accepted, ms[i])
					}
				}
				mu.Unlock()
				if n == 0 {
					under.Done()
				}
				if errs[0] != nil {
					return
				}
			}
		})
	}
	under.Wait()
	t.within("Close", func() { _ = closer.Close() })
	done.Wait()
	t.awaitAll(topic, accepted...)
}
