package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// client is used by one call at a time.
type client struct {
	options       []kgo.Opt
	transactional bool
	kafka         *kgo.Client // nil: to be made
	// known are the topics that the client has published to, so that it knows
	// their partitions.
	known map[string]bool
	reads *reads
}

// reads counts what the brokers have answered.
type reads struct{ n atomic.Int64 }

// OnBrokerRead is called before the answer is looked at.
func (r *reads) OnBrokerRead(kgo.BrokerMetadata, int16, int, time.Duration, time.Duration, error) {
	r.n.Add(1)
}

func (c *client) open() error {
	if c.kafka != nil {
		return nil
	}
	r := new(reads)
	k, err := kgo.NewClient(append(append([]kgo.Opt(nil), c.options...), kgo.WithHooks(r))...)
	if err != nil {
		return fmt.Errorf("kafka publisher: %w", err)
	}
	c.kafka, c.known, c.reads = k, make(map[string]bool), r
	return nil
}

// drop gives up the client's connections, and what it may still have to send.
func (c *client) drop() {
	if c.kafka != nil {
		go c.kafka.Close()
		c.kafka = nil
	}
}

// result is what became of a record.
type result struct {
	done bool
	err  error
}

var (
	errClosed     = errors.New("publisher is closed")
	errEarly      = errors.New("sent before its time")
	errNoBroker   = errors.New("no broker answers")
	errNoResponse = errors.New("no acknowledgement")
)

const (
	// lookAfter is how long a send may take before it is asked whether there is a
	// broker at all, which is asked again after as long.
	lookAfter = 300 * time.Millisecond
	// pingFor is how long the brokers may take to answer that.
	pingFor = 3 * time.Second
)

// send sends records and returns what became of each. Those of a partition are
// one batch. The error is why some may not be done; the client is of no use then.
func (c *client) send(ctx context.Context, closed <-chan struct{}, records []*kgo.Record) ([]result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	results := make([]result, len(records))
	left := len(records)
	all := make(chan struct{})

	// The client sends nothing until it is flushed, but for a goroutine of the last
	// flush that is late. It would make two batches of one, which is no harm unless
	// the first fails while the second is made: then there was an answer meanwhile.
	before := c.reads.n.Load()
	for i, r := range records {
		c.kafka.Produce(ctx, r, func(_ *kgo.Record, err error) {
			mu.Lock()
			defer mu.Unlock()
			results[i] = result{true, err}
			if left--; left == 0 {
				close(all)
			}
		})
	}
	if !c.transactional && c.reads.n.Load() != before { // a transaction is whole in any case
		return make([]result, len(records)), errEarly
	}
	flushed := make(chan struct{})
	go func(k *kgo.Client) {
		defer close(flushed)
		_ = k.Flush(ctx)
	}(c.kafka)
	err := c.wait(ctx, closed, all)
	if err == nil {
		<-flushed // there is nothing that it could wait for
	}
	mu.Lock()
	defer mu.Unlock()
	return append([]result(nil), results...), err
}

func (c *client) wait(ctx context.Context, closed, all <-chan struct{}) error {
	look := time.NewTimer(lookAfter)
	defer look.Stop()
	gone := make(chan error, 1)
	for {
		select {
		case <-all:
			return nil
		case <-ctx.Done():
			return errNoResponse
		case <-closed:
			return errClosed
		case err := <-gone:
			if err != nil {
				return fmt.Errorf("%w: %w", errNoBroker, err)
			}
			look.Reset(lookAfter)
		case <-look.C:
			go func(k *kgo.Client) { gone <- ping(ctx, k) }(c.kafka)
		}
	}
}

// ping asks twice, because a connection of before may have been closed.
func ping(ctx context.Context, k *kgo.Client) error {
	ctx, cancel := context.WithTimeout(ctx, pingFor)
	defer cancel()
	err := k.Ping(ctx)
	if err == nil {
		return nil
	}
	if err = k.Ping(ctx); errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: a broker that closes the connection at once may want TLS, or another user or password", err)
	}
	return err
}
