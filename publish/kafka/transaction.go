package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-suite/outbox/relay"
)

// lanes are the clients of a publisher with transactions, one a lane.
type lanes struct {
	most int // of clients that nobody uses

	mu      sync.Mutex
	clients map[int]*laneClient
	uses    int64
}

// laneClient is the producer of a lane. Its transactional id makes the broker refuse
// what one before it still sends.
type laneClient struct {
	client
	turn  chan struct{} // for the call that uses it
	epoch int64         // of the lease of the last call
	// calls use it or wait for their turn; used is when the last one ended.
	calls int
	used  int64
}

// transactional are the options of a lane's client.
func (p *Publisher) transactional(lane int) []kgo.Opt {
	return append(slices.Clone(p.options), kgo.TransactionalID(p.transactionalID(lane)), kgo.TransactionTimeout(transactionFor))
}

func (p *Publisher) transactionalID(lane int) string {
	return p.cfg.TransactionalID + "-" + strconv.Itoa(lane)
}

var errLanes = errors.New("kafka publisher: a call with TransactionalID has messages of several lanes or leases: hand them over in a call each")

// errTransaction is of the connection unless it wraps what a broker has said.
var errTransaction = errors.New("the transaction cannot be begun or committed")

// acquire returns the client for a call, and what gives it back.
func (p *Publisher) acquire(ctx context.Context, messages []relay.Message) (*client, func(), error) {
	if p.cfg.TransactionalID != "" {
		return p.acquireLane(ctx, messages)
	}
	select {
	case k := <-p.clients:
		return k, func() { p.clients <- k }, nil
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("kafka publisher: no client is free: %w", context.Cause(ctx))
	case <-p.closed:
		return nil, nil, relay.Unavailable(fmt.Errorf("kafka publisher: %w", errClosed))
	}
}

func (p *Publisher) acquireLane(ctx context.Context, messages []relay.Message) (*client, func(), error) {
	lane, epoch := messages[0].Lane, messages[0].Epoch
	for i := range messages {
		if messages[i].Lane != lane || messages[i].Epoch != epoch {
			return nil, nil, errLanes
		}
	}
	l := &p.lanes
	l.mu.Lock()
	c := l.clients[lane]
	if c == nil {
		c = &laneClient{client: client{options: p.transactional(lane), transactional: true}, turn: make(chan struct{}, 1)}
		l.clients[lane] = c
	}
	c.calls++
	l.mu.Unlock()
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		l.release(c)
		return nil, nil, fmt.Errorf("kafka publisher: another call uses the lane's producer: %w", context.Cause(ctx))
	case <-p.closed:
		l.release(c)
		return nil, nil, relay.Unavailable(fmt.Errorf("kafka publisher: %w", errClosed))
	}
	// Between two leases that follow each other nobody else can have had the lane.
	if epoch != c.epoch && epoch != c.epoch+1 {
		c.drop()
	}
	c.epoch = epoch
	return &c.client, func() {
		<-c.turn
		l.release(c)
	}, nil
}

// release notes the end of a call, and gives up the client that was not used for
// longest when there are too many.
func (l *lanes) release(c *laneClient) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.uses++
	c.calls, c.used = c.calls-1, l.uses
	if len(l.clients) <= l.most {
		return
	}
	oldest := -1
	for lane, c := range l.clients {
		if c.calls == 0 && (oldest < 0 || c.used < l.clients[oldest].used) {
			oldest = lane
		}
	}
	if oldest >= 0 {
		l.clients[oldest].drop()
		delete(l.clients, oldest)
	}
}

// close waits for the calls that are under way and gives up all clients.
func (l *lanes) close() {
	l.mu.Lock()
	var all []*laneClient
	for _, c := range l.clients {
		all = append(all, c)
	}
	l.mu.Unlock()
	for _, c := range all {
		c.turn <- struct{}{}
		c.drop()
		<-c.turn
	}
}

// transact sends records in one transaction: those without an error are committed, or
// else none is, and those that are not to blame are not done. Then the client is
// dropped, and the next one's start aborts what is left of the transaction.
func (c *client) transact(ctx context.Context, closed <-chan struct{}, records []*kgo.Record) (results []result, why error) {
	defer func() {
		for i := range results {
			if why != nil || results[i].err != nil {
				c.drop()
				return
			}
		}
	}()
	undone := func(err error) []result {
		results := make([]result, len(records))
		if err != nil {
			err = fmt.Errorf("%w: %w", errTransaction, err)
		}
		for i := range results {
			results[i] = result{err != nil, err}
		}
		return results
	}
	err, why := c.do(ctx, closed, func(ctx context.Context, k *kgo.Client) error {
		if _, _, err := k.ProducerID(ctx); err != nil { // loaded here, where it can be interrupted
			return err
		}
		return k.BeginTransaction()
	})
	if err != nil || why != nil {
		return undone(err), why
	}
	results, why = c.send(ctx, closed, records)
	failed := why != nil
	for i := range results {
		failed = failed || results[i].err != nil
	}
	if failed {
		for i := range results {
			results[i].done = results[i].err != nil
		}
		return results, why
	}
	err, why = c.do(ctx, closed, commit)
	if err != nil || why != nil {
		return undone(err), why
	}
	return results, nil
}

// commit commits a transaction of which all records are acknowledged. A record to a topic
// that is new to the client (franz-go 1.22.3) is sent, and may be acknowledged, before the
// client has noted the topic's partitions; of those that it finds then it commits, and if
// it finds none it aborts, or does nothing, and returns nil. Aborting what is buffered,
// which is nothing, waits for the lock under which it notes them.
func commit(ctx context.Context, k *kgo.Client) error {
	if err := k.AbortBufferedRecords(ctx); err != nil {
		return err
	}
	return k.EndTransaction(ctx, kgo.TryCommit)
}

// do calls f, which is left behind where wait gives up.
func (c *client) do(ctx context.Context, closed <-chan struct{}, f func(context.Context, *kgo.Client) error) (err, why error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	var result error
	go func(k *kgo.Client) {
		defer close(done)
		result = f(ctx, k)
	}(c.kafka)
	if why := c.wait(ctx, closed, done); why != nil {
		return nil, why
	}
	return result, nil
}

// isFenced tells whether the broker takes nothing more from a producer, because another
// has its transactional id or its transaction took too long.
func isFenced(err error) bool {
	for _, e := range []error{kerr.InvalidProducerEpoch, kerr.ProducerFenced, kerr.InvalidTxnState} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// isAborted tells whether a transaction came to nothing and a new one may not.
func isAborted(err error) bool {
	for _, e := range []error{kerr.TransactionAbortable, kerr.InvalidProducerIDMapping, kerr.UnknownProducerID, kerr.OutOfOrderSequenceNumber, kerr.OperationNotAttempted} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
