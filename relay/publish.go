package relay

import (
	"errors"
	"math/rand/v2"
	"time"
)

// publish gives the batch's items their outcomes: in order within a key,
// concurrently across keys. Items it does not get to stay waiting.
func (b *batch) publish() {
	switch {
	case b.probe:
		b.publishProbe()
	case b.ordered:
		b.publishRuns()
	default:
		b.publishHeads()
	}
}

// publishProbe hands over the first message of any key, not always of the same
// one: the broker may be back, and only that message break it.
func (b *batch) publishProbe() {
	var ready []*item
	for _, it := range b.heads {
		if it.outcome == waiting && it.err == nil {
			ready = append(ready, it)
		}
	}
	if len(ready) > 0 && b.stop.Err() == nil && b.publishing.Err() == nil {
		b.probed = true
		b.finish(b.try([]*item{ready[rand.IntN(len(ready))]}))
	}
}

// result is a finished call of the publisher.
type result struct {
	items []*item
	errs  []error
}

// publishRuns hands whole runs, in order, to a publisher that keeps order.
func (b *batch) publishRuns() {
	for i := 0; i < len(b.items); {
		var chunk []*item
		var stop bool
		chunk, i, stop = b.run(i)
		if b.finishRun(b.try(chunk)) {
			i = 0 // before anything that is behind it
		}
		if stop {
			return
		}
	}
}

// run collects the next call's items from place i on, and returns the place
// behind them and whether nothing more may be published.
func (b *batch) run(i int) (chunk []*item, next int, stop bool) {
	for ; i < len(b.items) && len(chunk) < b.cfg.PublishSize; i++ {
		it := &b.items[i]
		if it.outcome != waiting {
			continue
		}
		if it.err != nil { // it did not decode
			if len(chunk) > 0 {
				return chunk, i, false // what is before it first
			}
			b.fail(it, it.err)
			continue
		}
		verdict := b.admit(it.row.Topic)
		switch {
		case verdict.stop:
			return chunk, i, true
		case verdict.err != nil:
			b.fail(it, verdict.err)
		case verdict.probe && len(chunk) > 0:
			b.forgo(it.row.Topic)
			return chunk, i, false // the probe is a call of its own
		case verdict.probe:
			return []*item{it}, i + 1, false
		default:
			chunk = append(chunk, it)
		}
	}
	return chunk, i, false
}

// finishRun is finish for a run: what follows a dead message of its key in the
// same call was refused because of it, and is tried again.
func (b *batch) finishRun(r result) (again bool) {
	var dead map[int64]bool
	for i, it := range r.items {
		switch key := it.row.KeyHash; {
		case it.outcome != waiting:
		case r.errs[i] == nil:
			it.outcome = accepted
		case key.Valid && dead[key.V]:
			again = true
			for next := it.next; next != nil; next = next.next {
				next.outcome = waiting // also what was not to be tried for its topic
			}
		case b.fail(it, r.errs[i]) && key.Valid:
			if dead == nil {
				dead = make(map[int64]bool)
			}
			dead[key.V] = true
		}
	}
	return again
}

// publishHeads hands over one message a key at a time, several calls at once.
func (b *batch) publishHeads() {
	q := newQueue()
	push := func(it *item) {
		for it != nil && it.outcome == waiting {
			if it.err == nil {
				q.push(it)
				return
			}
			if !b.fail(it, it.err) { // it did not decode
				return
			}
			it = it.next
		}
	}
	for _, it := range b.heads {
		push(it)
	}
	results := make(chan result)
	calls := 0
	for {
		for calls < b.cfg.PublishConcurrency {
			chunk := b.take(q, push)
			if len(chunk) == 0 {
				break
			}
			calls++
			go func() { results <- b.try(chunk) }()
		}
		if calls == 0 {
			return
		}
		done := <-results
		calls--
		q.finished(done.items[0].row.Topic)
		for _, it := range b.finish(done) {
			push(it.next)
		}
	}
}

// take chooses the messages of the next call; none when nothing may be
// published now.
func (b *batch) take(q *queue, push func(*item)) []*item {
	for {
		topic, ok := q.next(b.cfg.PublishConcurrency)
		if !ok {
			return nil
		}
		verdict := b.admit(topic)
		switch {
		case verdict.stop:
			q.clear()
			return nil
		case verdict.err != nil:
			for _, it := range q.pop(topic, len(b.items)) {
				if b.fail(it, verdict.err) {
					push(it.next)
				}
			}
			q.finished(topic)
		case verdict.probe:
			return q.pop(topic, 1)
		default:
			// Spread what is ready over the calls there may be.
			spread := (q.ready(topic) + b.cfg.PublishConcurrency - 1) / b.cfg.PublishConcurrency
			return q.pop(topic, min(spread, b.cfg.PublishSize))
		}
	}
}

// verdict says whether a topic's messages may be published now.
type verdict struct {
	stop  bool  // publish nothing more in this batch
	err   error // the outcome of the topic's messages, without a try
	probe bool  // one message only, to see whether the destination is back
}

func (b *batch) admit(topic string) verdict {
	if b.stop.Err() != nil || b.publishing.Err() != nil || time.Now().After(b.validUntil()) {
		return verdict{stop: true}
	}
	var v verdict
	if b.destination == nil {
		if b.down.wait("") > 0 {
			return verdict{stop: true}
		}
	} else {
		ok, probe, _ := b.down.allow(b.destination(topic))
		if !ok {
			return verdict{err: Unavailable(errDown)}
		}
		v.probe = probe
	}
	ok, probe, _ := b.slow.allow(topic)
	if !ok {
		if v.probe {
			b.down.forgo(b.destination(topic))
		}
		return verdict{err: errSetAside}
	}
	v.probe = v.probe || probe
	return v
}

var errDown = errors.New("destination is unavailable")

// forgo gives back a probe that is not used now.
func (b *batch) forgo(topic string) {
	b.slow.forgo(topic)
	if b.destination != nil {
		b.down.forgo(b.destination(topic))
	}
}

// try makes one call.
func (b *batch) try(chunk []*item) result {
	if len(chunk) == 0 {
		return result{}
	}
	messages := make([]Message, len(chunk))
	for i, it := range chunk {
		messages[i] = b.message(it)
	}
	began := time.Now()
	errs := b.call(b.publishing, messages)
	b.judge(chunk, errs, began)
	for i, it := range chunk {
		if errs[i] == nil {
			b.suspects.clear(b.destinationOf(it.row.Topic), it.row.Topic, it.row.ID)
		}
	}
	b.observe(Attempted{Lane: b.lease.Lane, Messages: messages, Errors: errs, Waited: began.Sub(b.read), Took: time.Since(began)})
	return result{items: chunk, errs: errs}
}

// judge tells the breakers what a call says about its destinations.
func (b *batch) judge(chunk []*item, errs []error, began time.Time) {
	// Almost always one topic and one destination, and one call a message: no maps.
	topics, destinations := make(findings, 0, 4), make(findings, 0, 4)
	for i, it := range chunk {
		if topic := topics.of(it.row.Topic); errs[i] == nil && !topic.reached {
			topic.reached = true
			b.arrivals.note(b.destinationOf(it.row.Topic), it.row.Topic)
		}
	}
	for i, it := range chunk {
		topic, whole := topics.of(it.row.Topic), destinations.of(b.destinationOf(it.row.Topic))
		switch err := errs[i]; {
		case IsUnavailable(err) && !b.probe && (b.slow.wait(it.row.Topic) > 0 || b.arrivals.others(whole.name, topic.name, began)):
			topic.bad = err // and not the destination, which others reach
		case IsUnavailable(err):
			whole.bad = err
		case errors.Is(err, errPublishTimeout):
			topic.bad = err
		case err == nil || !uncounted(err):
			topic.reached, whole.reached = true, true
		}
	}
	destinations.tell(b.down, began)
	topics.tell(b.slow, began)
}

// finding is what a call says about a topic or a destination: one error that speaks
// of it as a whole, or that it was reached.
type finding struct {
	name    string
	bad     error
	reached bool
}

type findings []finding

// of is the finding about name. It is good until the next call.
func (f *findings) of(name string) *finding {
	for i := len(*f) - 1; i >= 0; i-- {
		if (*f)[i].name == name {
			return &(*f)[i]
		}
	}
	*f = append(*f, finding{name: name})
	return &(*f)[len(*f)-1]
}

func (f findings) tell(b *breakers, began time.Time) {
	for i := range f {
		switch one := &f[i]; {
		case one.bad != nil:
			b.fail(one.name, began, one.bad)
		case one.reached:
			b.succeed(one.name)
		default:
			b.forgo(one.name)
		}
	}
}

// finish notes the outcomes of a call and returns the items behind which the
// next message of the key may be published.
func (b *batch) finish(r result) (passed []*item) {
	for i, it := range r.items {
		if r.errs[i] == nil {
			it.outcome = accepted
			passed = append(passed, it)
			continue
		}
		if b.fail(it, r.errs[i]) {
			passed = append(passed, it)
		}
	}
	return passed
}

// queue holds the items that may be published, by topic, so that a slow topic
// does not take all the calls.
type queue struct {
	topics []string // round robin
	at     int
	items  map[string][]*item
	calls  map[string]int
}

func newQueue() *queue {
	return &queue{items: make(map[string][]*item, 1), calls: make(map[string]int, 1)}
}

func (q *queue) push(it *item) {
	topic := it.row.Topic
	if _, ok := q.items[topic]; !ok {
		q.topics = append(q.topics, topic)
	}
	q.items[topic] = append(q.items[topic], it)
}

// next returns the topic whose turn it is and counts a call for it; finished
// takes the call back. With several topics none gets more than half the calls.
func (q *queue) next(most int) (topic string, ok bool) {
	if len(q.topics) > 1 {
		most = max(1, most/2)
	}
	for range q.topics {
		topic := q.topics[q.at%len(q.topics)]
		q.at++
		if len(q.items[topic]) > 0 && q.calls[topic] < most {
			q.calls[topic]++
			return topic, true
		}
	}
	return "", false
}

func (q *queue) finished(topic string) { q.calls[topic]-- }

func (q *queue) ready(topic string) int { return len(q.items[topic]) }

// pop takes up to n items of the topic, the oldest first.
func (q *queue) pop(topic string, n int) []*item {
	items := q.items[topic]
	n = min(n, len(items))
	q.items[topic] = items[n:]
	return items[:n:n]
}

// clear drops what was not taken.
func (q *queue) clear() {
	for topic := range q.items {
		q.items[topic] = nil
	}
}
