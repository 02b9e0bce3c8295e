// Package redis is a publisher to Redis streams, and to those of what speaks its
// protocol, such as Valkey. A message is accepted when the server has answered its
// XADD, and, with Config.Replicas, when that many replicas have acknowledged it.
//
// # What Redis does not promise
//
// An answer of Redis is worth less than that of a broker made for queues:
//
//   - What it has answered may not be on its disk. Without appendonly yes a crash
//     takes all since the last snapshot; with appendfsync everysec, the default
//     then, a crash of the machine takes the last second or two. With appendfsync
//     always it is on the disk before it is answered. The publisher cannot see how
//     the server is set up.
//   - Replication is asynchronous. A failover, by Sentinel or by hand, loses what
//     the new master had not received, although it was accepted. Config.Replicas
//     makes that less likely and not impossible: WAIT says that replicas have
//     received a message, in memory, and Sentinel may still promote another one.
//   - It does not remove duplicates. A message that is published again, because an
//     answer was lost, is there twice: the consumer's inbox removes it, by the id.
//   - When maxmemory is reached, a policy other than noeviction deletes whole
//     streams to make room. Use noeviction: messages then wait in the outbox.
//   - Config.MaxLen deletes the oldest entries whether or not they were read.
//
// Where a message must not be lost on the way, use another broker, or keep it
// retained in the outbox long enough to replay it.
//
// # What a consumer gets
//
// Each message is an entry of the stream that Config.Stream makes of its topic. Its
// fields are the attributes of package cloudevents, a CloudEvent 1.0 in binary
// mode, and data, which is the payload, byte for byte. A message whose payload is
// nil has no field data and nodata is true. [Decode] reads it all back.
//
// An entry that XREADGROUP has handed out is pending until XACK, and Redis does not
// hand it out again by itself, not even when its answer was lost with the connection.
// A consumer must ask for what it has pending, with the ID 0 in place of >, at its
// start and after every error, before it reads on; XAUTOCLAIM is for what consumers
// that do not come back have pending. A client that repeats a command by itself, as
// go-redis does unless MaxRetries is -1, hides the error: the repeated XREADGROUP gets
// the next entry, and the one before it is not seen until somebody asks.
//
// # Order
//
// The messages of a call go out together. The publisher does not declare
// [relay.Orderer]: Redis takes what follows an XADD that it has refused, so a run of
// one key would not stop at a failure. The relay therefore has one message per key
// under way, and many keys.
//
// Redis Cluster is not supported.
package redis

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/outbox-suite/outbox/publish/cloudevents"
)

// Config configures a publisher. The zero value works.
type Config struct {
	// Source is the source attribute of every event. Default:
	// [cloudevents.DefaultSource].
	Source string
	// Stream makes the key of a stream of a topic. A message whose key is empty is
	// refused for good. Default: the topic itself.
	Stream func(topic string) string
	// NoCreate refuses a message for good when its stream does not exist. Default:
	// Redis makes it.
	NoCreate bool
	// MaxLen keeps about as many entries in each stream and deletes older ones,
	// read or not. Default: all are kept.
	MaxLen int64
	// Replicas is how many replicas must have acknowledged a message before it is
	// accepted. When there are fewer the outcome is unknown and the server counts
	// as unavailable. Default: none.
	Replicas int
	// ReplicaTimeout is how long replicas may take. Default: 1s.
	ReplicaTimeout time.Duration
}

func (c Config) withDefaults() (Config, error) {
	if c.Source == "" {
		c.Source = cloudevents.DefaultSource
	}
	if err := cloudevents.CheckSource(c.Source); err != nil {
		return c, fmt.Errorf("redis publisher: %w", err)
	}
	if c.Stream == nil {
		c.Stream = func(topic string) string { return topic }
	}
	if c.ReplicaTimeout == 0 {
		c.ReplicaTimeout = time.Second
	}
	switch {
	case c.MaxLen < 0:
		return c, fmt.Errorf("redis publisher: max len is %d: give a number of entries above 0", c.MaxLen)
	case c.Replicas < 0:
		return c, fmt.Errorf("redis publisher: replicas is %d: give a number that is not negative", c.Replicas)
	case c.ReplicaTimeout < time.Millisecond: // which WAIT takes for no limit
		return c, fmt.Errorf("redis publisher: replica timeout is %v: give at least 1ms", c.ReplicaTimeout)
	}
	return c, nil
}

// Publisher publishes to Redis streams. It is safe for concurrent use. It does not
// keep order by itself, see the package's documentation.
type Publisher struct {
	cfg    Config
	client *redis.Client
	own    bool
	closed chan struct{}
	once   sync.Once
}

// answerFor is how long the server may be silent.
const answerFor = 5 * time.Second

// Connect returns a publisher with connections of its own. It does not wait for
// the server: until it can be reached, and whenever it cannot, messages are
// [relay.Unavailable]. Options say where it is and how to get in; retries and time
// limits are set here.
func Connect(options *redis.Options, cfg Config) (*Publisher, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if options == nil || options.Addr == "" {
		return nil, errors.New("redis publisher: the server's address is missing: give host:port")
	}
	o := *options
	// A retry of the client would store a message twice.
	o.MaxRetries = -1
	o.DialerRetries = 1 // the relay has pauses of its own
	o.ContextTimeoutEnabled = true
	o.DialTimeout = 3 * time.Second
	o.ReadTimeout = cfg.ReplicaTimeout + answerFor
	o.WriteTimeout = answerFor
	o.Protocol = 2
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return &Publisher{cfg: cfg, client: redis.NewClient(&o), own: true, closed: make(chan struct{})}, nil
}

// New returns a publisher that uses a client of the caller's, who closes it after
// the publisher; one made for Sentinel, for example. What [Connect] sets is
// recommended: no retries, time limits, and contexts respected.
func New(client *redis.Client, cfg Config) (*Publisher, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Publisher{cfg: cfg, client: client, closed: make(chan struct{})}, nil
}

// Close ends the publisher, and its connections if [Connect] made them. Calls that
// are under way end with an error for what was not acknowledged.
func (p *Publisher) Close() error {
	p.once.Do(func() {
		close(p.closed)
		if p.own {
			go func() { _ = p.client.Close() }()
		}
	})
	return nil
}
