package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-suite/outbox/relay"
)

// Publish sends the messages and waits for their confirms, or for the end of ctx.
// Messages that were not confirmed by then fail, and may arrive all the same.
func (p *Publisher) Publish(ctx context.Context, messages []relay.Message) []error {
	c := &call{p: p, messages: messages, states: make([]state, len(messages))}
	for i := range messages {
		s := &c.states[i]
		s.publishing, s.err = p.encode(&messages[i])
		s.done = s.err != nil
	}
	select {
	case p.places <- struct{}{}:
		s := p.take()
		c.run(ctx, s)
		p.give(s)
		<-p.places
	case <-ctx.Done():
		c.fail(fmt.Errorf("rabbitmq publisher: no channel is free: %w", context.Cause(ctx)))
	case <-p.closed:
		c.fail(relay.Unavailable(fmt.Errorf("rabbitmq publisher: %w", errClosed)))
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
	// alone is set when the server has closed a channel for one of several
	// messages: they are sent one at a time until it is found which.
	alone bool
}

// state is what became of a message so far.
type state struct {
	*publishing
	done bool
	err  error
}

// run sends wave after wave until every message is done.
func (c *call) run(ctx context.Context, s *slot) {
	for {
		wave := c.next()
		if len(wave) == 0 {
			return
		}
		select {
		case <-c.p.closed:
			c.fail(relay.Unavailable(fmt.Errorf("rabbitmq publisher: %w", errClosed)))
			return
		default:
		}
		if ctx.Err() != nil {
			c.fail(fmt.Errorf("rabbitmq publisher: not sent: %w", context.Cause(ctx)))
			return
		}
		ch, err := s.usable(ctx, c.p)
		if err != nil {
			c.fail(err)
			return
		}
		wave, err = c.prepare(ctx, ch.conn, wave)
		if err != nil {
			c.fail(err)
			return
		}
		if len(wave) == 0 {
			continue
		}
		sent := make([]*publishing, len(wave))
		for n, i := range wave {
			sent[n] = c.states[i].publishing
		}
		results, why := ch.send(ctx, c.p.closed, sent)
		left := c.settle(ch.conn, wave, results)
		if why == nil {
			continue
		}
		s.drop()
		switch {
		case !errors.Is(why, errException):
			c.fail(stopped(ctx, ch.conn, why))
			return
		case len(left) == 1: // it is to blame
			i := left[0]
			c.states[i].done, c.states[i].err = true, c.explain(why, i)
			ch.conn.known.Delete(c.states[i].place())
			c.alone = false
		default:
			c.alone = true
		}
	}
}

// next chooses the messages of the next wave, in order.
func (c *call) next() []int {
	var wave []int
	for i := range c.states {
		if c.states[i].done {
			continue
		}
		wave = append(wave, i)
		if c.alone || len(wave) == waveSize {
			break
		}
	}
	return wave
}

// prepare refuses what would end the channel or the connection and returns the
// rest. The error is for the whole call.
func (c *call) prepare(ctx context.Context, conn *connection, wave []int) ([]int, error) {
	var rest []int
	checked := make(map[place]error)
	for _, i := range wave {
		s := &c.states[i]
		err, known := checked[s.place()]
		if !known {
			err = conn.check(ctx, c.p, s.publishing)
			checked[s.place()] = err
		}
		most := conn.amqp.Config.FrameSize
		switch {
		case isUnanswered(err):
			return nil, stopped(ctx, conn, err)
		case err != nil:
			s.done, s.err = true, c.explain(err, i)
		case most > 0 && s.headers > most:
			s.done, s.err = true, relay.Permanent(fmt.Errorf("rabbitmq publisher: topic %q: headers and other attributes have up to %d bytes, and a frame of the server's has %d: shorten the headers, or raise frame_max", c.messages[i].Topic, s.headers, most))
		default:
			rest = append(rest, i)
		}
	}
	return rest, nil
}

// settle notes what became of a wave, and returns whose outcomes are not known.
func (c *call) settle(conn *connection, wave []int, results []result) (left []int) {
	for n, i := range wave {
		s, r := &c.states[i], &results[n]
		switch topic := c.messages[i].Topic; {
		case r.returned != nil:
			s.done, s.err = true, c.unroutable(conn, i, r.returned)
		case !r.done:
			left = append(left, i)
		case r.nacked:
			s.done, s.err = true, fmt.Errorf("rabbitmq publisher: topic %q: the server did not take it (nack): a queue is full and rejects, or has failed", topic)
		default:
			s.done = true
		}
	}
	return left
}

// fail ends the call for all messages that are not done.
func (c *call) fail(err error) {
	for i := range c.states {
		if s := &c.states[i]; !s.done {
			s.done, s.err = true, err
		}
	}
}

// unroutable is the outcome of a message that was returned.
func (c *call) unroutable(conn *connection, i int, r *amqp.Return) error {
	s, topic := &c.states[i], c.messages[i].Topic
	switch {
	case s.exchange != "":
		return relay.Permanent(fmt.Errorf("rabbitmq publisher: topic %q: exchange %q has no queue for routing key %q (%s): bind one (rabbitmqadmin declare binding --source %s --destination-type queue --destination QUEUE --routing-key %s), then requeue the message",
			topic, s.exchange, s.key, strings.ToLower(r.ReplyText), s.exchange, s.key))
	case c.p.cfg.CreateQueues:
		conn.known.Delete(s.place())
		return fmt.Errorf("rabbitmq publisher: topic %q: queue %q was deleted: it is made again", topic, s.key)
	}
	return relay.Permanent(fmt.Errorf("rabbitmq publisher: topic %q: there is no queue %q (%s): declare it (rabbitmqadmin declare queue --name %s --type quorum --durable true), then requeue the message",
		topic, s.key, strings.ToLower(r.ReplyText), s.key))
}

// explain says what an answer of the server means for a message.
func (c *call) explain(err error, i int) error {
	s, topic := &c.states[i], c.messages[i].Topic
	failed := fmt.Errorf("rabbitmq publisher: topic %q: %w", topic, err)
	switch {
	case isCode(err, amqp.NotFound):
		return relay.Permanent(fmt.Errorf("%w: declare the exchange (rabbitmqadmin declare exchange --name %s --type topic --durable true) and bind a queue to it, then requeue the message", failed, s.exchange))
	case isCode(err, amqp.PreconditionFailed) && strings.Contains(err.Error(), "message size"):
		return relay.Permanent(fmt.Errorf("%w: raise the server's max_message_size, or store the payload elsewhere", failed))
	case isCode(err, amqp.AccessRefused):
		return fmt.Errorf("%w: the user needs the permission for it", failed)
	}
	return failed
}

// isUnanswered tells whether an error is none of the server's about the question.
func isUnanswered(err error) bool {
	return errors.Is(err, errNoAnswer) || errors.Is(err, errClosed) || errors.Is(err, errLost)
}

// stopped is the outcome of what was not confirmed when a wave ended.
func stopped(ctx context.Context, conn *connection, why error) error {
	failed := fmt.Errorf("rabbitmq publisher: %w", why)
	if reason := conn.blocked.Load(); reason != nil {
		return relay.Unavailable(fmt.Errorf("%w: %w: %s", failed, errBlocked, *reason))
	}
	if ctx.Err() != nil && !errors.Is(why, errLost) && !errors.Is(why, errClosed) {
		return fmt.Errorf("%w: %w", failed, context.Cause(ctx))
	}
	// A connection that the server ends for what was sent there must not count as a
	// server that is away, or the message to blame would be tried for ever.
	var e *amqp.Error
	if errors.As(why, &e) && e.Server && e.Code != amqp.ConnectionForced {
		return failed
	}
	return relay.Unavailable(failed)
}
