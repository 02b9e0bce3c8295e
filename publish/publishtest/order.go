package publishtest

import (
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox/relay"
)

var orderScenarios = []Scenario{
	{
		Name:    "Order/KeyInSequence",
		Promise: "messages of one key that are published one after the other arrive in that order, while other keys are published beside them",
		run:     func(t *trial) { inSequence(t, t.publisher(), func() {}) },
	},
	{
		Name:    "Order/AcrossOutage",
		Promise: "when the broker is killed and each message is tried until it is accepted, no message of a key arrives before its predecessor",
		Needs:   []Need{Crash},
		run: func(t *trial) {
			inSequence(t, t.publisher(), func() {
				start := t.kill()
				time.Sleep(300 * time.Millisecond)
				start()
			})
		},
	},
	{
		Name:    "Order/AcrossStall",
		Promise: "when the broker stands still longer than a call may take, no message of a key arrives before its predecessor",
		Needs:   []Need{Stalling},
		run: func(t *trial) {
			p, stall, resume := t.stalling()
			inSequence(t, p, func() {
				stall()
				time.Sleep(6 * shortCall)
				resume()
			})
		},
	},
	{
		Name:    "Order/RunInSequence",
		Promise: "a run of a publisher that keeps order arrives in the order of its keys",
		Needs:   []Need{Ordered},
		run:     runInSequence,
	},
	{
		Name:    "Order/RunStopsAtRefusal",
		Promise: "when one message of a run is refused, no later one of its key is accepted or arrives, and other keys are not held up",
		Needs:   []Need{Ordered, Limited},
		run:     runStopsAtRefusal,
	},
	{
		Name:    "Order/RunCutInTheMiddle",
		Promise: "when the connection is cut in a run, what arrives of each key is its beginning, and after the rest was tried again all is in order",
		Needs:   []Need{Ordered, Networked},
		run:     runCutInTheMiddle,
	},
}

// shortCall bounds the calls of inSequence.
const shortCall = 500 * time.Millisecond

// inSequence publishes several keys side by side, each message until it is
// accepted, with a fault in the middle, and looks at the order.
func inSequence(t *trial, p relay.Publisher, fault func()) {
	topic := t.topic()
	const keys, each = 4, 12
	ms := make(map[string][]relay.Message)
	var all []relay.Message
	for k := range keys {
		key := fmt.Sprintf("key-%d", k)
		for range each {
			ms[key] = append(ms[key], t.message(topic, key))
		}
		all = append(all, ms[key]...)
	}
	var half, done sync.WaitGroup
	half.Add(keys)
	for _, run := range ms {
		done.Go(func() {
			reach := sync.OnceFunc(half.Done)
			defer reach()
			for i, m := range run {
				if i == each/2 {
					reach()
				}
				if !t.persistShort(p, m) {
					return
				}
			}
		})
	}
	half.Wait()
	fault()
	done.Wait()
	t.awaitAll(topic, all...)
	t.inOrder(topic, ms, true)
}

// persistShort is persist of one message with short calls, so that some end in
// a fault.
func (t *trial) persistShort(p relay.Publisher, m relay.Message) bool {
	deadline := time.Now().Add(t.target.Patience)
	for {
		ctx, cancel := contextFor(t.ctx, shortCall)
		err := t.call(ctx, p, m)[0]
		cancel()
		switch {
		case err == nil:
			return true
		case relay.IsPermanent(err):
			t.errorf("a message that nothing is wrong with was refused for good: %v", err)
			return false
		case time.Now().After(deadline) || t.ctx.Err() != nil:
			t.errorf("a message was not accepted within %v; the last error: %v", t.target.Patience, err)
			return false
		}
		m.Attempt++
		time.Sleep(retryEvery)
	}
}

// inOrder compares the first arrivals of each key with its run. Unless whole,
// what arrived may be the beginning of it.
func (t *trial) inOrder(topic string, runs map[string][]relay.Message, whole bool) {
	first := make(map[string][]uuid.UUID)
	seen := make(map[uuid.UUID]bool)
	for _, r := range t.settled(topic) {
		if !seen[r.ID] {
			seen[r.ID] = true
			first[r.Key] = append(first[r.Key], r.ID)
		}
	}
	for key, run := range runs {
		place := make(map[uuid.UUID]int)
		for i := range run {
			place[run[i].ID] = i + 1
		}
		got := first[key]
		if whole && len(got) != len(run) {
			t.errorf("%d messages of key %s were accepted and %d arrived", len(run), key, len(got))
			continue
		}
		for i, id := range got {
			if place[id] != i+1 {
				t.errorf("message %d of key %s arrived when %d of its key had arrived before", place[id], key, i)
				break
			}
		}
	}
}

// run is n messages over keys, in turn, and the same by key.
func (t *trial) run(topic string, n, keys, size int) ([]relay.Message, map[string][]relay.Message) {
	var all []relay.Message
	byKey := make(map[string][]relay.Message)
	for i := range n {
		m := t.message(topic, fmt.Sprintf("key-%d", i%keys))
		m.ContentType, m.Payload = "application/octet-stream", make([]byte, size)
		all = append(all, m)
		byKey[m.Key] = append(byKey[m.Key], m)
	}
	return all, byKey
}

func runInSequence(t *trial) {
	p, topic := t.publisher(), t.topic()
	all, byKey := t.run(topic, 300, 3, 100)
	t.accept(p, all...)
	t.awaitAll(topic, all...)
	t.inOrder(topic, byKey, true)
}

func runStopsAtRefusal(t *trial) {
	p, topic := t.publisher(), t.topic()
	all, byKey := t.run(topic, 30, 3, 100)
	const bad = 12 // of key-0
	all[bad].Payload = make([]byte, t.target.TooLarge)
	errs := t.undisturbed(p, all...)
	for i, err := range errs {
		switch after := i >= bad && all[i].Key == all[bad].Key; {
		case i == bad && !relay.IsPermanent(err):
			t.errorf("a message that is too large was not refused for good: %v", err)
		case after && err == nil:
			t.errorf("message %d was accepted although message %d, before it and of the same key, was refused", i+1, bad+1)
		case !after && all[i].Key == all[bad].Key && err != nil:
			t.errorf("message %d, before the refused one of its key, was not accepted: %v", i+1, err)
		case all[i].Key != all[bad].Key && relay.IsPermanent(err):
			t.errorf("message %d of another key was refused for good: %v", i+1, err)
		}
	}
	for _, r := range t.settled(topic) {
		for i := bad; i < len(all); i++ {
			if r.ID == all[i].ID && all[i].Key == all[bad].Key {
				t.errorf("message %d arrived although message %d, before it and of the same key, was refused", i+1, bad+1)
			}
		}
	}
	// What was held up comes in order when the refused one is out of the way.
	var rest []relay.Message
	for i, err := range errs {
		if i != bad && err != nil {
			rest = append(rest, all[i])
		}
	}
	t.deliver(p, rest...)
	key := all[bad].Key
	var without []relay.Message
	for _, m := range byKey[key] {
		if m.ID != all[bad].ID {
			without = append(without, m)
		}
	}
	byKey[key] = without
	t.inOrder(topic, byKey, true)
}

func runCutInTheMiddle(t *trial) {
	for cut := 1; cut <= 4; cut++ {
		p, x := t.through()
		topic := t.topic()
		all, byKey := t.run(topic, 120, 3, 4000)
		t.deliver(p, t.messages(t.topic(), 1)...) // the connection stands
		x.CutAt(cut, cut%2 == 0)
		ctx, cancel := contextFor(t.ctx, 4*shortCall)
		errs := t.call(ctx, p, all...)
		cancel()
		x.CutAt(-1, false)
		failed := make(map[string]bool)
		var rest []relay.Message
		for i, err := range errs {
			switch key := all[i].Key; {
			case err != nil:
				failed[key] = true
				rest = append(rest, all[i])
			case failed[key]:
				t.errorf("message %d was accepted although one before it of the same key was not", i+1)
			}
		}
		t.inOrder(topic, byKey, false)
		t.deliver(p, rest...)
		t.inOrder(topic, byKey, true)
	}
}
