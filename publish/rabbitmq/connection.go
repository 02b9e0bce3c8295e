package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-suite/outbox/relay"
)

const (
	dialFor  = 3 * time.Second
	greetFor = 5 * time.Second // TLS, credentials and virtual host
	// heartbeat is negotiated with the server. The client gives a connection up that
	// was silent for one and a half of it.
	heartbeat  = 6 * time.Second
	goodbyeFor = time.Second
	// settleFor is how long a new queue is left alone. RabbitMQ 4.3 writes the name of a
	// quorum queue to the disk half a second after it made it, and when it is killed
	// before, starts the queue anew, without what it had confirmed.
	settleFor = time.Second
)

// connection is one to a server. It is not used any more when it is gone.
type connection struct {
	amqp *amqp.Connection
	raw  net.Conn
	// blocked is why the server takes no messages, or nil.
	blocked atomic.Pointer[string]
	// known are the exchanges, and the queues of the default one, that were there.
	known sync.Map
	gone  chan struct{}
	err   error // when gone
}

// dialing is a connection that is being made, for all who wait for it.
type dialing struct {
	done chan struct{}
	conn *connection
	err  error
}

// connected returns the connection, and makes one if there is none.
func (p *Publisher) connected(ctx context.Context) (*connection, error) {
	p.mu.Lock()
	if p.conn != nil && p.conn.alive() {
		defer p.mu.Unlock()
		return p.conn, nil
	}
	d := p.dialing
	if d == nil {
		d = &dialing{done: make(chan struct{})}
		p.dialing = d
		go p.dial(d)
	}
	p.mu.Unlock()
	select {
	case <-d.done:
		return d.conn, d.err
	case <-ctx.Done():
		return nil, fmt.Errorf("rabbitmq publisher: not connected: %w", context.Cause(ctx))
	case <-p.closed:
		return nil, relay.Unavailable(fmt.Errorf("rabbitmq publisher: %w", errClosed))
	}
}

// dial tries the servers, the last one that failed last of all.
func (p *Publisher) dial(d *dialing) {
	failed := errors.New("rabbitmq publisher: not connected")
	for range p.servers {
		var err error
		if d.conn, err = p.dialOne(p.servers[0]); err == nil {
			break
		}
		failed = fmt.Errorf("%w: %w", failed, err)
		p.servers = append(p.servers[1:], p.servers[0])
	}
	if d.conn == nil {
		d.err = relay.Unavailable(failed)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conn, p.dialing = d.conn, nil
	select {
	case <-p.closed:
		if d.conn != nil {
			go d.conn.close()
		}
	default:
	}
	close(d.done)
}

func (p *Publisher) dialOne(server string) (*connection, error) {
	c := &connection{gone: make(chan struct{})}
	o := p.options
	dial := o.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialFor}).Dial
	}
	o.Dial = func(network, addr string) (net.Conn, error) {
		conn, err := dial(network, addr)
		if err != nil {
			return nil, err
		}
		c.raw = conn
		return conn, conn.SetDeadline(time.Now().Add(greetFor)) // the client takes it away
	}
	if o.Heartbeat == 0 {
		o.Heartbeat = heartbeat
	}
	o.Recovery = nil
	// The client writes to this, and to the one for TLS.
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName("outbox relay")
	maps.Copy(properties, o.Properties)
	o.Properties = properties
	if o.TLSClientConfig != nil {
		o.TLSClientConfig = o.TLSClientConfig.Clone()
	}
	var err error
	if c.amqp, err = amqp.DialConfig(server, o); err != nil {
		if c.raw != nil {
			_ = c.raw.Close()
		}
		return nil, err
	}
	go c.watch(c.amqp.NotifyBlocked(make(chan amqp.Blocking, 16)), c.amqp.NotifyClose(make(chan *amqp.Error, 1)))
	return c, nil
}

// watch sees to what the server says of the connection, until it is gone.
func (c *connection) watch(blocks <-chan amqp.Blocking, closes <-chan *amqp.Error) {
	for {
		select {
		case b, ok := <-blocks:
			switch {
			case !ok:
				blocks = nil
			case b.Active:
				c.blocked.Store(&b.Reason)
			default:
				c.blocked.Store(nil)
			}
		case err := <-closes:
			if c.err = amqp.ErrClosed; err != nil { // a nil *amqp.Error is no nil error
				c.err = err
			}
			close(c.gone)
			// The client closes it only when nobody hangs in a write to it.
			_ = c.raw.Close()
			return
		}
	}
}

func (c *connection) alive() bool { return !c.amqp.IsClosed() }

// close says goodbye, if the server listens.
func (c *connection) close() {
	limit := time.AfterFunc(goodbyeFor, func() { _ = c.raw.Close() })
	defer limit.Stop()
	_ = c.amqp.Close()
}

// ask waits for what has an answer of the server to wait for.
func (c *connection) ask(ctx context.Context, closed <-chan struct{}, question func() error) error {
	answer := make(chan error, 1)
	go func() { answer <- question() }()
	select {
	case err := <-answer:
		if err != nil && !c.alive() {
			return fmt.Errorf("%w: %w", errLost, err)
		}
		return err
	case <-ctx.Done():
		return errNoAnswer
	case <-closed:
		return errClosed
	case <-c.gone:
		return fmt.Errorf("%w: %w", errLost, c.err)
	}
}

// check looks for a message's exchange, or makes its queue if that is wanted. What
// was there once is not looked for again.
func (c *connection) check(ctx context.Context, p *Publisher, m *publishing) error {
	if m.exchange == "" && !p.cfg.CreateQueues {
		return nil // mandatory tells
	}
	if _, known := c.known.Load(m.place()); known {
		return nil
	}
	err := c.ask(ctx, p.closed, func() error {
		if m.exchange != "" {
			return c.scratch(func(ch *amqp.Channel) error {
				return ch.ExchangeDeclarePassive(m.exchange, amqp.ExchangeTopic, true, false, false, false, nil) // of any type
			})
		}
		err := c.scratch(func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclarePassive(m.key, true, false, false, false, nil) // of any type
			return err
		})
		if !isCode(err, amqp.NotFound) {
			return err
		}
		err = c.scratch(func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(m.key, true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum})
			return err
		})
		time.Sleep(settleFor)
		return err
	})
	if err == nil {
		c.known.Store(m.place(), true)
	}
	return err
}

// scratch lends a channel for a question, since an answer of no closes it.
func (c *connection) scratch(f func(*amqp.Channel) error) error {
	ch, err := c.amqp.Channel()
	if err != nil {
		return err
	}
	defer func() { _ = ch.Close() }()
	return f(ch)
}

func isCode(err error, code int) bool {
	var e *amqp.Error
	return errors.As(err, &e) && e.Code == code
}
