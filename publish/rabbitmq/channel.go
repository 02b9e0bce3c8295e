package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-suite/outbox/relay"
)

// waveSize is how many messages of a call wait for their confirms at a time.
const waveSize = 512

// slot is a place for a channel, which one call uses at a time.
type slot struct{ ch *channel }

func (p *Publisher) take() *slot {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.idle) - 1
	s := p.idle[last]
	p.idle = p.idle[:last]
	return s
}

func (p *Publisher) give(s *slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, s)
}

// drop gives up the channel, and what may still be confirmed there.
func (s *slot) drop() {
	if s.ch != nil {
		go func(ch *amqp.Channel) { _ = ch.Close() }(s.ch.amqp)
		s.ch = nil
	}
}

// channel is a channel in confirm mode. One wave of messages is under way on it at
// a time.
type channel struct {
	conn *connection
	amqp *amqp.Channel
	sent uint64 // how many messages, which is the last one's delivery tag

	mu   sync.Mutex
	wave *wave

	// gone is closed when nothing more is confirmed, and err is why.
	gone chan struct{}
	err  error
}

// wave is what becomes of messages that are sent together.
type wave struct {
	first   uint64 // the delivery tag of the first
	places  map[string][]int
	results []result
	left    int
	done    chan struct{} // nothing is left
}

// result is what became of a message.
type result struct {
	done     bool
	nacked   bool
	returned *amqp.Return
}

func newWave(first uint64, messages []*publishing) *wave {
	w := &wave{first: first, places: make(map[string][]int), results: make([]result, len(messages)), left: len(messages), done: make(chan struct{})}
	for i, m := range messages {
		w.places[m.MessageId] = append(w.places[m.MessageId], i)
	}
	return w
}

// usable returns the slot's channel, and opens one if there is none. It does not
// wait for a server that blocks publishers.
func (s *slot) usable(ctx context.Context, p *Publisher) (*channel, error) {
	conn, err := p.connected(ctx)
	if err != nil {
		return nil, err
	}
	if reason := conn.blocked.Load(); reason != nil {
		return nil, relay.Unavailable(fmt.Errorf("rabbitmq publisher: not sent: %w: %s", errBlocked, *reason))
	}
	if s.ch != nil && s.ch.conn == conn && s.ch.alive() {
		return s.ch, nil
	}
	s.ch = nil
	opened := make(chan *channel, 1)
	err = conn.ask(ctx, p.closed, func() error {
		ch, err := conn.open()
		opened <- ch
		return err
	})
	if err != nil {
		go func() { // when it is late
			if ch := <-opened; ch != nil {
				_ = ch.amqp.Close()
			}
		}()
		return nil, stopped(ctx, conn, fmt.Errorf("no channel is opened: %w", err))
	}
	s.ch = <-opened
	return s.ch, nil
}

func (c *channel) alive() bool {
	select {
	case <-c.gone:
		return false
	default:
		return c.conn.alive()
	}
}

// open makes a channel. It waits for the server as long as the connection lives.
func (c *connection) open() (*channel, error) {
	ac, err := c.amqp.Channel()
	if err != nil {
		return nil, err
	}
	ch := &channel{conn: c, amqp: ac, gone: make(chan struct{})}
	// Both have room for all that can be under way: the client drops what it cannot
	// hand over for some seconds, and a return that is dropped would be an acceptance.
	confirms := ac.NotifyPublish(make(chan amqp.Confirmation, waveSize))
	returns := ac.NotifyReturn(make(chan amqp.Return, waveSize))
	closes := ac.NotifyClose(make(chan *amqp.Error, 1))
	go ch.read(confirms, returns, closes)
	if err := ac.Confirm(false); err != nil {
		return nil, err
	}
	return ch, nil
}

// read notes returns and confirms, until the channel is closed. The server sends a
// message's return before its confirm, so whenever there is a confirm, its return
// has been handed over too: all returns that are there are noted first.
func (c *channel) read(confirms <-chan amqp.Confirmation, returns <-chan amqp.Return, closes <-chan *amqp.Error) {
	for confirm := range confirms {
		c.mu.Lock()
		for more := true; more; {
			select {
			case r, ok := <-returns:
				if more = ok; ok {
					c.wave.note(&r)
				}
			default:
				more = false
			}
		}
		c.wave.confirm(confirm)
		c.mu.Unlock()
	}
	c.err = amqp.ErrClosed
	if err := <-closes; err != nil {
		c.err = err
	}
	close(c.gone)
}

// note notes a return, of every message with that id.
func (w *wave) note(r *amqp.Return) {
	if w == nil {
		return
	}
	for _, i := range w.places[r.MessageId] {
		w.results[i].returned = r
	}
}

func (w *wave) confirm(c amqp.Confirmation) {
	if w == nil || c.DeliveryTag < w.first || c.DeliveryTag-w.first >= uint64(len(w.results)) {
		return
	}
	r := &w.results[c.DeliveryTag-w.first]
	if r.done {
		return
	}
	r.done, r.nacked = true, !c.Ack
	if w.left--; w.left == 0 {
		close(w.done)
	}
}

var (
	errClosed    = errors.New("publisher is closed")
	errNoConfirm = errors.New("no confirm")
	// errException is a channel that the server has closed, for one of its messages.
	errException = errors.New("channel closed")
	errLost      = errors.New("connection lost")
	errNoAnswer  = errors.New("no answer")
	errBlocked   = errors.New("the server blocks publishers")
)

// send sends messages and returns what became of each. The error is why some may
// not be done; the channel is of no use then.
func (c *channel) send(ctx context.Context, closed <-chan struct{}, messages []*publishing) ([]result, error) {
	w := newWave(c.sent+1, messages)
	c.mu.Lock()
	c.wave = w
	c.mu.Unlock()
	over := make(chan struct{})
	defer close(over)
	// A goroutine of its own, because no context ends a write to a socket that is full.
	failed := make(chan error, 1)
	go func() {
		for _, m := range messages {
			select {
			case <-over:
				return
			default:
			}
			if _, err := c.amqp.PublishWithDeferredConfirm(m.exchange, m.key, true, false, m.Publishing); err != nil {
				failed <- err
				return
			}
		}
	}()
	var why error
	for waiting := true; waiting; {
		waiting = false
		select {
		case <-w.done:
			c.sent += uint64(len(messages))
		case <-ctx.Done():
			why = errNoConfirm
		case <-closed:
			why = errClosed
		case <-c.conn.gone:
			why = fmt.Errorf("%w: %w", errLost, c.conn.err)
		case <-c.gone:
			if why = fmt.Errorf("%w: %w", errException, c.err); !c.conn.alive() {
				why = fmt.Errorf("%w: %w", errLost, c.err)
			}
		case err := <-failed:
			if errors.Is(err, amqp.ErrClosed) { // the reason follows
				failed = nil
				waiting = true
				break
			}
			why = fmt.Errorf("%w: %w", errLost, err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wave = nil
	return w.results, why
}
