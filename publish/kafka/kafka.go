// Package kafka is a publisher to Apache Kafka and to what speaks its protocol,
// such as Redpanda. A message is accepted when all in-sync replicas of its
// partition have it, never before: set the topic's min.insync.replicas to 2 or
// more, or all of them may be the leader alone.
//
// # What a consumer gets
//
// Each message is a record: its key is the record's key, null without a key and
// empty for the empty key; its payload is the value, byte for byte. A nil payload
// is a null value, which is a tombstone where the topic is compacted; an empty
// payload stays empty. The rest is in headers, a CloudEvent 1.0 in the binary mode
// of the Kafka binding: the attributes of package cloudevents with the prefix ce_,
// as UTF-8, and the content type as content-type. [Decode] reads it all back.
//
// The record's timestamp is when it was sent, since that is what the topic's
// retention counts from: a message that had to wait, or that is replayed from last
// month, must not be deleted at once. When it was enqueued is in ce_time.
//
// # Topics
//
// The Kafka topic is the message's topic, or what Config.Topic makes of it.
// Topics are made by operators: a message to one that does not exist is refused
// for good after it was looked for for about a second, and the error says what to
// do. Config.CreateTopics lets the broker make them.
//
// # Order
//
// The publisher declares [relay.Orderer]: the relay hands it whole runs of a key.
// What it sends at a time is one batch for each partition, of which a broker takes
// all or nothing, and the next batch goes out when it knows that the one before
// was taken. Of a batch that is refused for one of its records, halves are tried
// until that record is found; nothing of its key follows it. An outcome that is
// not known, and a call whose context has ended, stop the call, and the
// connection is made anew.
//
// One call at a time uses one of Config.Clients clients, each with connections
// and a producer id of its own, so that calls do not disturb each other's batches.
//
// Within a partition a consumer gets the records of a key in order. When an
// operator adds partitions to a topic, Kafka itself gives keys other partitions,
// and what is read from the old and the new one is not in order.
//
// # Duplicates
//
// The producer is idempotent: the client's own retries are not stored twice. A
// message that the relay publishes again, because an outcome was not known, is:
// the consumer's inbox removes it, by the id. Transactions keep such duplicates from
// nobody, as a relay may die after the commit.
//
// # Transactions
//
// What Config.TransactionalID adds is a fence at the broker: each lane has a producer
// of its own, whose transactional id ends in the lane's number, and what a call sends
// is in a transaction, several where something of it is refused. When another relay
// has taken the lane and published there, what the relay before still sends or commits
// is refused by the broker; it is [relay.Unavailable], so that no attempt is counted,
// the messages stay where they are, and the turn in the lane is over. That relay's
// settlements are refused by the database as ever.
//
// Consumers must read with isolation.level=read_committed, which is not the default
// of most clients: others see what was aborted. A transaction that a relay has not
// ended, because it died or its time was over, is aborted when the lane is published
// to again, or by the broker after 30 s; so long such consumers wait behind it.
//
// The broker fences by who came last, and knows no leases: a relay that stands still
// from before its first call under a lease until after the next owner's takes the
// lane's producer from that owner. The owner's call is Unavailable, and the next one
// takes it back. So a stale relay is fenced once the lane's owner has published, and
// until then the lease alone stops it.
//
// The user needs the permissions Write and Describe on the transactional ids. The
// transactions were tried with kfake, which speaks Kafka's protocol, and never against
// a real broker.
package kafka

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-suite/outbox/publish/cloudevents"
)

// Config configures a publisher. The zero value works.
type Config struct {
	// Source is the source attribute of every event. Default:
	// [cloudevents.DefaultSource].
	Source string
	// Topic makes a Kafka topic of a message's topic. A message whose Kafka topic
	// has no valid name is refused for good. Default: the topic itself.
	Topic func(topic string) string
	// CreateTopics lets brokers that are set up for it make topics that do not
	// exist, with their default number of partitions. Default: off.
	CreateTopics bool
	// MaxBytes is the most bytes of a message, with its headers, and of a batch,
	// before compression. What is larger is refused for good. It should be the
	// max.message.bytes of the topics. Default: 1 MiB.
	MaxBytes int
	// Clients is how many calls of Publish are under way at a time. Further calls
	// wait. With TransactionalID each lane has a client of its own, for one call at a
	// time, and this is how many are kept while they are not used: fewer than there
	// are lanes make clients come and go. Default: 8, with TransactionalID 64.
	Clients int
	// TransactionalID makes what a call sends a transaction of the lane's own producer,
	// with this, a dash and the lane as its transactional id, so that the brokers fence
	// a relay that has lost its lease. It must be this outbox's alone on these brokers,
	// the same for all of its relays, and the publisher serve no other outbox.
	// Consumers must read committed. Default: no transactions.
	TransactionalID string
}

const (
	defaultMaxBytes = 1 << 20
	defaultClients  = 8
	defaultLanes    = 64
	// transactionFor is after how long the broker aborts a transaction.
	transactionFor = 30 * time.Second
	// leastBytes holds any message without payload and headers.
	leastBytes = 16 << 10
	mostBytes  = 64 << 20 // below what the client sends in one request
)

func (c Config) withDefaults() (Config, error) {
	if c.Source == "" {
		c.Source = cloudevents.DefaultSource
	}
	if err := cloudevents.CheckSource(c.Source); err != nil {
		return c, fmt.Errorf("kafka publisher: %w", err)
	}
	if c.Topic == nil {
		c.Topic = func(topic string) string { return topic }
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = defaultMaxBytes
	}
	if c.MaxBytes < leastBytes || c.MaxBytes > mostBytes {
		return c, fmt.Errorf("kafka publisher: max bytes is %d: give a number from %d to %d", c.MaxBytes, leastBytes, mostBytes)
	}
	if c.Clients == 0 {
		c.Clients = defaultClients
		if c.TransactionalID != "" {
			c.Clients = defaultLanes
		}
	}
	if c.Clients < 0 {
		return c, fmt.Errorf("kafka publisher: clients is %d: give a number above 0", c.Clients)
	}
	return c, nil
}

// Publisher publishes to Kafka. It is safe for concurrent use.
type Publisher struct {
	cfg     Config
	options []kgo.Opt
	clients chan *client // without transactions
	lanes   lanes        // with them
	closed  chan struct{}
	once    sync.Once
}

// Connect returns a publisher to the brokers, which are host:port with commas
// between them; the port is 9092 where there is none. It does not wait for a
// broker: until one can be reached, and whenever none can, messages are
// [relay.Unavailable]. Options are for credentials and TLS; those that this
// package sets, such as acknowledgements and batching, cannot be changed.
func Connect(brokers string, cfg Config, options ...kgo.Opt) (*Publisher, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	var seeds []string
	for b := range strings.SplitSeq(brokers, ",") {
		if b = strings.TrimSpace(b); b == "" {
			return nil, errors.New("kafka publisher: a broker's address is empty: write them as host:port,host:port")
		}
		seeds = append(seeds, b)
	}
	p := &Publisher{cfg: cfg, clients: make(chan *client, cfg.Clients), closed: make(chan struct{})}
	p.options = append([]kgo.Opt{kgo.ClientID("outbox-relay")}, options...)
	p.options = append(p.options,
		kgo.SeedBrokers(seeds...),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ManualFlushing(),
		kgo.MaxBufferedRecords(1<<30),                        // a call is the bound
		kgo.ProducerBatchMaxBytes(int32(cfg.MaxBytes)),       //nolint:gosec // at most mostBytes
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)), // as other clients do
		kgo.RecordRetries(8),
		kgo.UnknownTopicRetries(4),
		kgo.MetadataMinAge(250*time.Millisecond),
		kgo.RetryBackoffFn(func(tries int) time.Duration { return min(time.Second, 50*time.Millisecond<<min(tries, 5)) }),
		kgo.DialTimeout(3*time.Second),
		kgo.ProduceRequestTimeout(5*time.Second),
		kgo.RequestTimeoutOverhead(5*time.Second),
		kgo.DisableClientMetrics(),
	)
	if cfg.CreateTopics {
		p.options = append(p.options, kgo.AllowAutoTopicCreation())
	}
	if cfg.TransactionalID != "" {
		p.lanes = lanes{most: cfg.Clients, clients: make(map[int]*laneClient)}
		k, err := kgo.NewClient(p.transactional(0)...)
		if err != nil { // options that cannot be used
			return nil, fmt.Errorf("kafka publisher: %w", err)
		}
		k.Close()
		return p, nil
	}
	for range cfg.Clients {
		p.clients <- &client{options: p.options}
	}
	c := <-p.clients // options that cannot be used show here
	defer func() { p.clients <- c }()
	if err := c.open(); err != nil {
		return nil, err
	}
	return p, nil
}

// KeepsOrder reports that a message of a key is accepted, and arrives, only when
// those before it in its call were accepted: [relay.Orderer].
func (p *Publisher) KeepsOrder() bool { return true }

// Close ends the publisher. Calls that are under way end with an error for what
// was not acknowledged.
func (p *Publisher) Close() error {
	p.once.Do(func() {
		close(p.closed)
		go func() {
			if p.cfg.TransactionalID != "" {
				p.lanes.close()
				return
			}
			for range p.cfg.Clients {
				(<-p.clients).drop()
			}
		}()
	})
	return nil
}
