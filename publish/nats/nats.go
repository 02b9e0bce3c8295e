// Package nats is a publisher to NATS JetStream. A message is accepted when the
// stream has acknowledged it, never before.
//
// # What a consumer gets
//
// Each message is a CloudEvent 1.0 in the binary mode of the NATS binding: the
// attributes are headers with the prefix ce-, their values percent-encoded, and
// the payload is the body, byte for byte. The attributes are those of package
// cloudevents, and one more: ce-nodata is true when the payload is nil, which a
// body cannot tell from an empty one. Headers of the message that are no
// attributes are in ce-headers, so that none of them can be taken for a command
// to the server, such as Nats-Rollup. [Decode] reads it all back.
//
// # Subjects and streams
//
// The subject is the topic, or what Config.Subject makes of it. A topic that
// makes no subject is refused for good. Streams are made by operators, not here:
// a message whose subject no stream takes is refused for good too, and the error
// says what to do. A stream that exists but has no leader at the moment is
// [relay.Unavailable], as is a server that cannot be reached: nothing is
// published to the publisher's other streams meanwhile. Where that matters, give
// each stream a publisher of its own behind package router.
//
// # What JetStream promises
//
//   - A stream with file storage keeps what it acknowledged when a server
//     process dies. The server flushes to the disk every two minutes unless its
//     sync_interval says otherwise: with one replica a power failure may take
//     what was acknowledged since. With three replicas on machines that do not
//     fail together, two of them hold it before it is acknowledged. Set
//     sync_interval: always where neither is enough.
//   - A stream with memory storage, or with the persist mode async, acknowledges
//     what a crash may take. Do not use one.
//   - A stream drops a message whose id it has seen within its duplicate window,
//     two minutes by default, and acknowledges it: that is success here. An
//     operator's replay has a new id there, so it gets through. Retries that come
//     later than the window are stored again: the consumer's inbox removes them.
//   - A limit of the stream with the discard policy old deletes what consumers
//     may not have read. That is the operator's choice.
//   - A stream without acknowledgements (no_ack) never accepts anything here.
//
// # Order
//
// Messages of one call are sent without waiting for each other's
// acknowledgements, up to Config.Window of all calls together. The publisher
// does not declare [relay.Orderer]: a server that refuses one message, for its
// size or because the stream is full, takes the next one all the same, so a run
// of one key would not stop at a failure. The relay therefore has one message
// per key under way, and many keys.
package nats

import (
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-suite/outbox/internal/redact"
	"github.com/outbox-suite/outbox/publish/cloudevents"
)

// Config configures a publisher. The zero value works.
type Config struct {
	// Source is the source attribute of every event. Default:
	// [cloudevents.DefaultSource].
	Source string
	// Subject makes a subject of a topic. What it returns is checked: a message
	// whose subject is not one, or belongs to the server, is refused for good.
	// Default: the topic itself.
	Subject func(topic string) string
	// Stream is the stream that every message must end in; one that another
	// stream takes is refused for good. Default: whichever takes the subject.
	Stream string
	// Domain is the JetStream domain, for streams behind a leaf node. Default:
	// the server's own.
	Domain string
	// Window is how many messages may wait for their acknowledgements, of all
	// calls together. Default: 1024.
	Window int
}

func (c Config) withDefaults() (Config, error) {
	if c.Source == "" {
		c.Source = cloudevents.DefaultSource
	}
	if err := cloudevents.CheckSource(c.Source); err != nil {
		return c, fmt.Errorf("nats publisher: %w", err)
	}
	if c.Subject == nil {
		c.Subject = func(topic string) string { return topic }
	}
	switch {
	case c.Window == 0:
		c.Window = 1024
	case c.Window < 0:
		return c, fmt.Errorf("nats publisher: window is %d: give a number of messages above 0", c.Window)
	}
	return c, nil
}

// Publisher publishes to JetStream. It is safe for concurrent use. It does not
// keep order by itself, see the package's documentation.
type Publisher struct {
	cfg    Config
	conn   *nats.Conn
	js     jetstream.JetStream
	own    bool          // the connection
	window chan struct{} // holds one for each message under way
	closed chan struct{}
	once   sync.Once
}

// Connect returns a publisher with a connection of its own to the servers, which
// are URLs with commas between them, as [nats.Connect] takes them. It does not
// wait for a server: until one can be reached, and whenever none can, messages
// are [relay.Unavailable]. Connections are made again for as long as it takes,
// and one whose server is silent for ten seconds is given up. Options are for
// credentials and TLS, and go before these settings.
func Connect(servers string, cfg Config, options ...nats.Option) (*Publisher, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	all := append([]nats.Option{
		nats.Name("outbox relay"),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(250 * time.Millisecond),
		// Without a connection nothing is kept back to be sent later: it fails, and
		// the relay tries it again.
		nats.ReconnectBufSize(-1),
		nats.PingInterval(5 * time.Second),
		nats.MaxPingsOutstanding(1),
		nats.FlusherTimeout(5 * time.Second),
		nats.ReconnectOnFlusherError(),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // the default prints
	}, options...)
	conn, err := nats.Connect(servers, all...)
	if err != nil {
		return nil, fmt.Errorf("nats publisher: server address or options cannot be used: %w", redact.URL(err))
	}
	p, err := newPublisher(conn, cfg)
	if err != nil {
		conn.Close()
		return nil, err
	}
	p.own = true
	return p, nil
}

// New returns a publisher that uses a connection of the caller's, who closes it
// after the publisher. What [Connect] sets is recommended: no reconnect buffer,
// no end of reconnecting, and pings every few seconds.
func New(conn *nats.Conn, cfg Config) (*Publisher, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return newPublisher(conn, cfg)
}

// forgetAfter is when the client forgets a message that was never answered. The
// call has ended long before.
const forgetAfter = 2 * time.Minute

func newPublisher(conn *nats.Conn, cfg Config) (*Publisher, error) {
	options := []jetstream.JetStreamOpt{
		jetstream.WithPublishAsyncMaxPending(1 << 30), // Window is the bound
		jetstream.WithPublishAsyncTimeout(forgetAfter),
	}
	var js jetstream.JetStream
	var err error
	if cfg.Domain != "" {
		js, err = jetstream.NewWithDomain(conn, cfg.Domain, options...)
	} else {
		js, err = jetstream.New(conn, options...)
	}
	if err != nil {
		return nil, fmt.Errorf("nats publisher: %w", err)
	}
	return &Publisher{cfg: cfg, conn: conn, js: js, window: make(chan struct{}, cfg.Window), closed: make(chan struct{})}, nil
}

// Close ends the publisher, and its connection if [Connect] made it. Calls that
// are under way end with an error for what was not acknowledged.
func (p *Publisher) Close() error {
	p.once.Do(func() {
		close(p.closed)
		p.js.CleanupPublisher()
		if p.own {
			go p.conn.Close() // which waits for a write that hangs
		}
	})
	return nil
}
