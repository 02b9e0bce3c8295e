package outboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/outbox-suite/outbox/relay"
)

// ErrAnswerLost is what the relay is told of a message that [Publisher.LoseNext]
// accepted.
var ErrAnswerLost = errors.New("outboxtest: the broker's answer was lost")

// Publisher is a [relay.Publisher] that remembers what it accepted. The zero value
// accepts everything. It is safe for concurrent use and must not be copied.
type Publisher struct {
	mu       sync.Mutex
	accepted []relay.Message
	attempts int
	failing  []failure
	decide   func(relay.Message) error
	changed  chan struct{} // closed and replaced when a message is accepted
}

var _ relay.Publisher = (*Publisher)(nil)

// failure is what becomes of the next n messages.
type failure struct {
	n      int
	err    error
	accept bool
}

// Publish implements [relay.Publisher]: it keeps a copy of each message unless it
// was told to fail.
func (p *Publisher) Publish(ctx context.Context, messages []relay.Message) []error {
	p.mu.Lock()
	decide := p.decide
	p.mu.Unlock()
	errs := make([]error, len(messages))
	for i, m := range messages {
		if errs[i] = ctx.Err(); errs[i] != nil {
			continue
		}
		if decide != nil {
			errs[i] = decide(clone(m)) // without the lock: it may ask the publisher
		}
		p.mu.Lock()
		p.attempts++
		if errs[i] == nil {
			errs[i] = p.take(m)
		}
		p.mu.Unlock()
	}
	return errs
}

// take accepts the message or fails as it was told.
func (p *Publisher) take(m relay.Message) error {
	var err error
	if len(p.failing) > 0 {
		f := &p.failing[0]
		err = f.err
		accept := f.accept
		if f.n--; f.n == 0 {
			p.failing = p.failing[1:]
		}
		if !accept {
			return err
		}
	}
	p.accepted = append(p.accepted, clone(m))
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
	return err
}

// FailNext makes the next n attempts fail with err: mark it with
// [relay.Permanent] or [relay.Unavailable] to be treated as such. Calls queue up
// behind earlier ones and those of [Publisher.LoseNext]. n below 1 does nothing; a
// nil err panics.
func (p *Publisher) FailNext(n int, err error) {
	if err == nil {
		panic("outboxtest: FailNext needs an error")
	}
	p.next(failure{n: n, err: err})
}

// LoseNext makes the next n attempts a lost answer: the message is accepted, and
// the relay told [ErrAnswerLost], so that it publishes the message again under the
// same id. This is how to see that a consumer removes duplicates.
func (p *Publisher) LoseNext(n int) {
	p.next(failure{n: n, err: ErrAnswerLost, accept: true})
}

func (p *Publisher) next(f failure) {
	if f.n < 1 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failing = append(p.failing, f)
}

// FailIf has every attempt decided by f first: where it returns an error the
// message is not accepted. f is called from many goroutines at once; nil ends it.
func (p *Publisher) FailIf(f func(m relay.Message) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decide = f
}

// Messages returns what was accepted, in that order, duplicates included.
func (p *Publisher) Messages() []relay.Message {
	return p.where(func(relay.Message) bool { return true })
}

// ByKey returns what was accepted of one key, in order. "" selects the messages
// without a key and those of the empty key.
func (p *Publisher) ByKey(key string) []relay.Message {
	return p.where(func(m relay.Message) bool { return m.Key == key })
}

// ByTopic returns what was accepted of one topic, in order.
func (p *Publisher) ByTopic(topic string) []relay.Message {
	return p.where(func(m relay.Message) bool { return m.Topic == topic })
}

func (p *Publisher) where(match func(relay.Message) bool) []relay.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []relay.Message
	for _, m := range p.accepted {
		if match(m) {
			found = append(found, clone(m))
		}
	}
	return found
}

// Attempts returns how many messages the relay has tried to publish, those that
// were not accepted included.
func (p *Publisher) Attempts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.attempts
}

// Wait returns the accepted messages as soon as there are n, or an error that
// tells how many there are when ctx ends before.
func (p *Publisher) Wait(ctx context.Context, n int) ([]relay.Message, error) {
	for {
		p.mu.Lock()
		have := len(p.accepted)
		if p.changed == nil {
			p.changed = make(chan struct{})
		}
		changed := p.changed
		p.mu.Unlock()
		if have >= n {
			return p.Messages(), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return p.Messages(), fmt.Errorf("outboxtest: %d of %d messages were published: %w", have, n, context.Cause(ctx))
		}
	}
}

// Reset forgets messages, attempts and everything that was to fail.
func (p *Publisher) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.accepted, p.attempts, p.failing, p.decide = nil, 0, nil, nil
}

// clone makes a message that outlives the call.
func clone(m relay.Message) relay.Message {
	m.Payload = bytes.Clone(m.Payload)
	m.Headers = maps.Clone(m.Headers)
	return m
}
