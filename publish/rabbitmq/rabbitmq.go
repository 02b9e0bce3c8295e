// Package rabbitmq is a publisher to RabbitMQ, by AMQP 0-9-1. A message is
// accepted when the broker has confirmed it and has not returned it, never
// before.
//
// # What a consumer gets
//
// Each message is a CloudEvent 1.0 in the binary mode of the AMQP binding: the
// attributes of package cloudevents are headers with the prefix cloudEvents_, as
// strings, and the payload is the body, byte for byte. One attribute more,
// cloudEvents_nodata, is true when the payload is nil, which a body cannot tell
// from an empty one. Of the message's properties, content_type is the content
// type, message_id the id, type the type, and timestamp, in seconds, when it was
// enqueued; delivery_mode is persistent. [Decode] reads it all back.
//
// # Exchanges and queues
//
// A message goes through the default exchange to the queue whose name is the
// topic, or where Config.Route says. Exchanges, queues and bindings are made by
// operators: an exchange is looked for before it is used for the first time on a
// connection, and every message is sent as mandatory. One whose exchange does not
// exist, or that no queue takes, is refused for good, and the error says what to
// do. Config.CreateQueues makes the queues of the default exchange.
//
// # What RabbitMQ promises
//
//   - A confirm of a quorum queue says that a majority of its replicas have the
//     message on their disks. Use quorum queues.
//     One exception was seen with version 4.3: a queue that was made less than half a
//     second before the server process is killed comes back empty, whatever it had
//     confirmed. What CreateQueues makes is left alone for a second.
//   - A confirm of a durable classic queue says that its only node has written the
//     message to a file, which the operating system may not have brought to the
//     disk: it survives the end of the server process, but a power failure or the
//     loss of the machine may take it.
//   - A queue that is not durable, or is exclusive, confirms what a restart takes.
//     The publisher cannot see what a queue is. Do not use one.
//   - A confirm says that every queue that a message was routed to has it, and
//     without mandatory it says the same when there was none. Here it is always
//     set. But a message that an alternate exchange takes, or that is bound to a
//     queue that nobody reads, counts as routed.
//   - There is no window in which duplicates are removed. A message that is
//     published again, because a confirm was lost, is there twice: the consumer's
//     inbox removes it, by the id.
//   - A queue with a limit (x-max-length) drops its oldest messages, read or not,
//     unless its overflow is reject-publish: then they wait in the outbox. A time
//     to live and a delivery limit drop messages too. These are the operator's
//     choice.
//   - A queue without a majority, or whose node is away, confirms nothing: calls end
//     with their contexts, at the cost of an attempt.
//
// # Order
//
// The messages of a call go out without waiting for each other's confirms. The
// publisher does not declare [relay.Orderer]: a broker that refuses one message
// takes what was sent after it all the same, so a run of one key would not stop at
// a failure. The relay therefore has one message per key under way, and many keys.
// A queue with several consumers, or one that gives a message back, breaks the
// order behind the broker: use a single active consumer for each queue, and a
// consistent hash exchange on the header cloudEvents_subject, the key, to have
// several queues.
//
// # A broker that takes nothing
//
// One that cannot be reached is [relay.Unavailable], as is one that blocks
// publishers because its memory or disk alarm is on. A call that the alarm meets
// ends with its context; further ones fail at once until it is over.
package rabbitmq

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-suite/outbox/publish/cloudevents"
)

// Config configures a publisher. The zero value works.
type Config struct {
	// Source is the source attribute of every event. Default:
	// [cloudevents.DefaultSource].
	Source string
	// Route makes an exchange and a routing key of a topic. A message for which
	// either is longer than 255 bytes is refused for good, as is one for the default
	// exchange, which is "", without a routing key. Default: the default exchange and
	// the topic itself, which lead to the queue of that name.
	Route func(topic string) (exchange, key string)
	// CreateQueues makes the queue that the routing key names, where messages go
	// through the default exchange and it does not exist: a quorum queue. Default:
	// off.
	CreateQueues bool
	// MaxBytes is the most bytes of a payload. What is larger is refused for good. It
	// should be the broker's max_message_size, which ends the channel when it is
	// exceeded. Default: 16 MiB, as that of RabbitMQ 4.
	MaxBytes int
	// Channels is how many calls of Publish are under way at a time. Further calls
	// wait. Default: 16.
	Channels int
}

const (
	defaultMaxBytes = 16 << 20
	defaultChannels = 16
)

func (c Config) withDefaults() (Config, error) {
	if c.Source == "" {
		c.Source = cloudevents.DefaultSource
	}
	if err := cloudevents.CheckSource(c.Source); err != nil {
		return c, fmt.Errorf("rabbitmq publisher: %w", err)
	}
	if c.Route == nil {
		c.Route = func(topic string) (exchange, key string) { return "", topic }
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = defaultMaxBytes
	}
	if c.Channels == 0 {
		c.Channels = defaultChannels
	}
	switch {
	case c.MaxBytes < 0:
		return c, fmt.Errorf("rabbitmq publisher: max bytes is %d: give a number above 0", c.MaxBytes)
	case c.Channels < 0:
		return c, fmt.Errorf("rabbitmq publisher: channels is %d: give a number above 0", c.Channels)
	}
	return c, nil
}

// Publisher publishes to RabbitMQ. It is safe for concurrent use. It does not keep
// order by itself, see the package's documentation.
type Publisher struct {
	cfg     Config
	servers []string
	options amqp.Config
	places  chan struct{} // holds one for each call under way
	closed  chan struct{}
	once    sync.Once

	mu      sync.Mutex
	idle    []*slot     // the last one used is used first
	conn    *connection // nil: to be made
	dialing *dialing
}

// Connect returns a publisher with a connection of its own to one of the servers,
// which are URLs with commas between them: amqp://user:password@host:5672/vhost, or
// amqps:// for TLS. It does not wait for a server: until one can be reached, and
// whenever none can, messages are [relay.Unavailable]. A connection whose server is
// silent for nine seconds is given up. Options are for credentials, the virtual
// host and TLS, and go before what the URLs say. The client's own recovery is not
// used, since it forgets what was not confirmed.
func Connect(servers string, cfg Config, options amqp.Config) (*Publisher, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Publisher{cfg: cfg, options: options, places: make(chan struct{}, cfg.Channels), closed: make(chan struct{})}
	for s := range strings.SplitSeq(servers, ",") {
		s = strings.TrimSpace(s)
		// The error may hold a password.
		if _, err := amqp.ParseURI(s); s == "" || err != nil {
			return nil, errors.New("rabbitmq publisher: a server's address cannot be used: write it as amqp://user:password@host:port/vhost, each part percent-encoded, with commas between several")
		}
		p.servers = append(p.servers, s)
	}
	for range cfg.Channels {
		p.idle = append(p.idle, &slot{})
	}
	return p, nil
}

// Close ends the publisher and its connection. Calls that are under way end with an
// error for what was not confirmed.
func (p *Publisher) Close() error {
	p.once.Do(func() {
		close(p.closed)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.conn != nil {
			go p.conn.close()
		}
	})
	return nil
}
