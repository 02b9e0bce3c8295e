package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-suite/outbox/relay"
)

// Publish sends the messages and waits for their acknowledgements, or for the end
// of ctx. Messages that were not acknowledged by then fail, and may arrive all the
// same. A message that follows one of its key that failed is not sent.
func (p *Publisher) Publish(ctx context.Context, messages []relay.Message) []error {
	if len(messages) == 0 {
		return nil
	}
	c := &call{p: p, messages: messages, states: make([]state, len(messages)), limits: make(map[string]int), topics: make(map[string]error)}
	for i := range messages {
		s := &c.states[i]
		s.record, s.size, s.err = p.encode(&messages[i])
		s.done = s.err != nil
	}
	if k, release, err := p.acquire(ctx, messages); err == nil {
		c.run(ctx, k)
		release()
	} else {
		c.fail(err)
	}
	errs := make([]error, len(messages))
	for i := range errs {
		errs[i] = c.states[i].err
	}
	return errs
}

// call is one call of Publish.
type call struct {
	p        *Publisher
	messages []relay.Message
	states   []state
	// limits are how many messages of a topic are sent at a time, since a batch
	// was refused.
	limits map[string]int
	// topics are those of which nothing more is sent, and why.
	topics map[string]error
	// apart has each wave be of one topic, since a transaction of several failed and
	// which of them is to blame did not show.
	apart bool
}

// state is what became of a message so far.
type state struct {
	record *kgo.Record
	size   int
	done   bool
	err    error
}

type key struct {
	is   bool
	text string
}

var errFollows = errors.New("kafka publisher: not sent, because a message before it, of the same key, was not accepted")

// run sends wave after wave until every message is done.
func (c *call) run(ctx context.Context, k *client) {
	for {
		wave := c.next(k)
		if len(wave) == 0 {
			return
		}
		select {
		case <-c.p.closed:
			c.fail(relay.Unavailable(fmt.Errorf("kafka publisher: %w", errClosed)))
			return
		default:
		}
		if ctx.Err() != nil {
			c.fail(fmt.Errorf("kafka publisher: not sent: %w", context.Cause(ctx)))
			return
		}
		if err := k.open(); err != nil {
			c.fail(err)
			return
		}
		records := make([]*kgo.Record, len(wave))
		for n, i := range wave {
			r := *c.states[i].record // which is the client's from then on
			records[n] = &r
		}
		send := k.send
		if k.transactional {
			send = k.transact
		}
		results, why := send(ctx, c.p.closed, records)
		if k.transactional && !c.apart && c.hides(ctx, wave, records, results) {
			c.apart = true
			continue
		}
		if why != nil {
			k.drop()
			if errors.Is(why, errEarly) {
				continue
			}
		}
		c.settle(ctx, k, wave, records, results)
		if why != nil {
			c.fail(c.stopped(ctx, why))
			return
		}
	}
}

// next chooses the messages of the next wave, in order: of each topic no more
// than surely fit into one batch, of each key those of one topic, and nothing of a
// key of which something failed.
func (c *call) next(k *client) []int {
	type room struct{ messages, bytes int }
	rooms := make(map[string]*room)
	failed, waits := make(map[key]bool), make(map[key]bool)
	at := make(map[key]string)
	var wave []int
	for i := range c.states {
		s, m := &c.states[i], &c.messages[i]
		id := key{m.HasKey(), m.Key}
		if s.done {
			if s.err != nil && id.is {
				failed[id] = true
			}
			continue
		}
		topic := s.record.Topic
		if failed[id] {
			s.done, s.err = true, errFollows
			continue
		}
		if err := c.topics[topic]; err != nil {
			s.done, s.err = true, err
			failed[id] = id.is
			continue
		}
		r := rooms[topic]
		if r == nil {
			r = &room{len(c.states), c.p.cfg.MaxBytes - batchOverhead}
			switch {
			case c.apart && len(rooms) > 0:
				r.messages = 0
			case !k.transactional && (!k.known[topic] || k.kafka == nil):
				r.messages = 1 // the partitions are not known yet
			}
			if limit, ok := c.limits[topic]; ok {
				r.messages = min(r.messages, limit)
			}
			rooms[topic] = r
		}
		full := r.messages < 1 || r.bytes < s.size
		if full {
			r.messages = 0 // nothing overtakes
		}
		if elsewhere, ok := at[id]; full || id.is && (waits[id] || ok && elsewhere != topic) {
			waits[id] = id.is
			continue
		}
		r.messages--
		r.bytes -= s.size
		if id.is {
			at[id] = topic
		}
		wave = append(wave, i)
	}
	return wave
}

// settle notes what became of a wave.
func (c *call) settle(ctx context.Context, k *client, wave []int, records []*kgo.Record, results []result) {
	type partition struct {
		topic  string
		number int32
	}
	inBatch := make(map[partition]int)
	inWave := make(map[string]int)
	refused, accepted := make(map[string]bool), make(map[string]bool)
	for n := range wave {
		inWave[records[n].Topic]++
		if results[n].done {
			inBatch[partition{records[n].Topic, records[n].Partition}]++
		}
	}
	for n, i := range wave {
		s, r := &c.states[i], records[n]
		switch err := results[n].err; {
		case !results[n].done:
		case err == nil:
			s.done, accepted[r.Topic] = true, true
			k.known[r.Topic] = true // until it is dropped
		case isRefusal(err) && inBatch[partition{r.Topic, r.Partition}] > 1:
			refused[r.Topic] = true // another one may be to blame
		default:
			s.done, s.err = true, c.explain(ctx, err, &c.messages[i], r.Topic)
			if !isRefusal(err) {
				c.topics[r.Topic] = s.err
			}
			if !relay.IsPermanent(s.err) {
				k.drop() // the outcome may not be known
			}
		}
	}
	for topic, n := range inWave {
		switch limit, ok := c.limits[topic]; {
		case refused[topic]:
			c.limits[topic] = max(1, n/2)
		case ok && accepted[topic]: // not what was aborted because of another topic
			c.limits[topic] = 2 * limit
		}
	}
}

// hides tells whether a transaction failed for reasons that it gave of several topics,
// though it may be for one of them.
func (c *call) hides(ctx context.Context, wave []int, records []*kgo.Record, results []result) bool {
	blamed := make(map[string]bool)
	for n, i := range wave {
		if err := results[n].err; err != nil && !isRefusal(err) && !relay.IsUnavailable(c.explain(ctx, err, &c.messages[i], records[n].Topic)) {
			blamed[records[n].Topic] = true
		}
	}
	return len(blamed) > 1
}

// fail ends the call for all messages that are not done.
func (c *call) fail(err error) {
	for i := range c.states {
		if s := &c.states[i]; !s.done {
			s.done, s.err = true, err
		}
	}
}

// stopped is the outcome of what was not acknowledged when a wave ended.
func (c *call) stopped(ctx context.Context, why error) error {
	if errors.Is(why, errNoResponse) && ctx.Err() != nil {
		return fmt.Errorf("kafka publisher: %w: %w", why, context.Cause(ctx))
	}
	return relay.Unavailable(fmt.Errorf("kafka publisher: %w", why))
}

// isRefusal tells whether the broker has refused a batch for one of its records.
func isRefusal(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge) || errors.Is(err, kerr.InvalidRecord)
}

// explain says what an error means for the message.
func (c *call) explain(ctx context.Context, err error, m *relay.Message, topic string) error {
	failed := fmt.Errorf("kafka publisher: topic %q: %w", m.Topic, err)
	if topic != m.Topic {
		failed = fmt.Errorf("kafka publisher: topic %q (Kafka's %q): %w", m.Topic, topic, err)
	}
	var broker *kerr.Error
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("kafka publisher: topic %q: %w: %w", m.Topic, errNoResponse, context.Cause(ctx))
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge):
		return relay.Permanent(fmt.Errorf("%w: raise the topic's max.message.bytes, or store the payload elsewhere", failed))
	case errors.Is(err, kerr.InvalidRecord):
		return relay.Permanent(fmt.Errorf("%w: a compacted topic takes no message without a key", failed))
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID):
		return relay.Permanent(fmt.Errorf("%w: create it (kafka-topics.sh --create --topic %s), then requeue the message", failed, topic))
	case errors.Is(err, kerr.InvalidTopicException):
		return relay.Permanent(fmt.Errorf("%w: choose another topic, or map it", failed))
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return fmt.Errorf("%w: the user needs the permission to write to it", failed)
	case errors.Is(err, kerr.ClusterAuthorizationFailed):
		return fmt.Errorf("%w: the user needs the permission IdempotentWrite on the cluster", failed)
	case errors.Is(err, kerr.TransactionalIDAuthorizationFailed):
		return fmt.Errorf("%w: the user needs the permissions Write and Describe on the transactional id %q", failed, c.p.transactionalID(m.Lane))
	case isFenced(err):
		return relay.Unavailable(fmt.Errorf("%w: another relay has the lane's transactional id %q, or it took too long; if it happens all the time, another outbox uses the id", failed, c.p.transactionalID(m.Lane)))
	case c.p.cfg.TransactionalID != "" && isAborted(err):
		return relay.Unavailable(failed)
	case errors.As(err, &broker) && !broker.Retriable:
		return failed
	case broker == nil && !isConnection(err):
		return failed
	}
	return relay.Unavailable(failed)
}

func isConnection(err error) bool {
	return errors.Is(err, kgo.ErrRecordRetries) || errors.Is(err, kgo.ErrRecordTimeout) || errors.Is(err, kgo.ErrClientClosed) || errors.Is(err, errTransaction) || kgo.IsRetryableBrokerErr(err)
}
