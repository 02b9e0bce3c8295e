package relay

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
)

// outcome is what became of a row of a batch.
type outcome int

const (
	waiting  outcome = iota // not tried yet
	left                    // tried, or behind one that was: stays where it is
	accepted                // by the broker
	held                    // behind a message of its key that failed
	failed                  // to be tried again
	died                    // to wait for an operator
)

// item is a row on its way to an outcome.
type item struct {
	row     *dialect.Row
	headers map[string]string
	next    *item // the next one of the same key
	outcome outcome
	err     error
	at      time.Time // of the failure
	counted bool      // the failure cost an attempt
	delay   time.Duration
}

// batch is a read of a lane: its rows in order, to be published and settled.
type batch struct {
	*turn
	parked bool // the rows are parked ones; otherwise ready ones
	read   time.Time
	items  []item
	heads  []*item // the first item of every key, in order
	// stuck tells that rows were left where they are, so that reading on would
	// find them again.
	stuck bool
}

// room is what a turn's batches, of which there is one at a time, are made in.
type room struct {
	rows  []dialect.Row // the largest there were
	items []item
	heads []*item
	last  map[int64]*item // of a key, by its hash
}

// sweep lets go of a batch, lest what its rows hold is kept until the next one.
func (r *room) sweep(rows []dialect.Row) {
	clear(rows)
	clear(r.items)
	clear(r.heads)
	clear(r.last)
	r.items, r.heads = r.items[:0], r.heads[:0]
}

func (t *turn) newBatch(rows []dialect.Row, parked bool) *batch {
	r := &t.room
	if r.last == nil {
		r.last = make(map[int64]*item, len(rows))
	}
	r.items = slices.Grow(r.items, len(rows))[:len(rows)]
	for i := range rows {
		row, it := &rows[i], &r.items[i]
		it.row = row
		if row.Blocked {
			it.outcome = held
			continue
		}
		it.headers, it.err = headers(row)
		if row.KeyHash.Valid {
			before := r.last[row.KeyHash.V]
			r.last[row.KeyHash.V] = it
			if before != nil {
				before.next = it
				continue
			}
		}
		r.heads = append(r.heads, it)
	}
	return &batch{turn: t, parked: parked, read: time.Now(), items: r.items, heads: r.heads}
}

// headers decodes a row's headers. If they do not decode they were written by another
// hand; the row is undeliverable as it is.
func headers(row *dialect.Row) (map[string]string, error) {
	if row.Headers == "{}" {
		return nil, nil
	}
	var h map[string]string
	if err := json.Unmarshal([]byte(row.Headers), &h); err != nil {
		return nil, Permanent(fmt.Errorf("headers are not a JSON object of strings: %w", err))
	}
	return h, nil
}

// message is what a publisher gets of an item.
func (b *batch) message(it *item) Message {
	row := it.row
	return Message{
		Message: outbox.Message{
			ID: row.ID, Topic: row.Topic, Key: row.Key.V, EmptyKey: row.Key.Valid && row.Key.V == "",
			Type: row.Type, ContentType: row.ContentType, Payload: row.Payload, Headers: it.headers, Revision: row.Revision,
		},
		Seq: row.Seq, Lane: b.lease.Lane, Epoch: b.lease.Epoch,
		Attempt: row.Attempts + 1, Replay: row.Replay, CreatedAt: row.CreatedAt, Age: row.Age,
	}
}

// settlement names what has an outcome.
func (b *batch) settlement() dialect.Settlement {
	s := dialect.Settlement{Archive: b.cfg.Retention != NoRetention}
	published := &s.Published
	if b.parked {
		published = &s.PublishedParked
	}
	for i := range b.items {
		it := &b.items[i]
		switch it.outcome {
		case accepted:
			if *published == nil {
				*published = make([]dialect.Ref, 0, len(b.items)-i)
			}
			*published = append(*published, it.row.Ref())
		case held:
			if !b.parked { // a parked row behind its head is held already
				s.Hold = append(s.Hold, it.row.Ref())
			}
		case failed, died:
			f := dialect.Failure{
				Ref: it.row.Ref(), Attempts: it.row.Attempts, Dead: it.outcome == died, Reason: reason(it.err),
				Blocking: it.row.KeyHash.Valid && (it.outcome == failed || b.cfg.OnDead == HoldKey),
			}
			if it.counted {
				f.Attempts++
			}
			if it.outcome == failed {
				f.Delay = max(0, it.delay-time.Since(it.at)) // counted from the failure
			}
			if b.parked {
				s.FailedParked = append(s.FailedParked, f)
			} else {
				s.Failed = append(s.Failed, f)
			}
		case waiting, left:
			b.stuck = true
		}
	}
	return s
}

// fail gives the item the outcome of an error and what is behind it its own.
// It reports whether the next message of the key may be published.
func (b *batch) fail(it *item, err error) (passes bool) {
	it.err, it.at = err, time.Now()
	attempt := it.row.Attempts + 1
	if IsUnavailable(err) && !errors.Is(err, errDown) {
		switch b.suspects.strike(b.destinationOf(it.row.Topic), it.row.Topic, it.row.ID) {
		case blameMessage:
			err = fmt.Errorf("others of the topic get through: %s", reason(err))
			it.err = err
		case blameTopic:
			if b.slow.wait(it.row.Topic) == 0 {
				b.slow.fail(it.row.Topic, it.at, err)
			}
		case blameDestination:
		}
	}
	switch {
	case IsPermanent(err):
		it.outcome, it.counted = died, true
	case IsUnavailable(err) && (b.destination != nil || b.parked):
		// Other destinations must flow, and so must ready messages, which are read
		// behind parked ones: out of their way.
		it.outcome = failed
		wait := max(b.down.wait(b.destinationOf(it.row.Topic)), b.slow.wait(it.row.Topic))
		it.delay = max(jitter(wait), min(AskedDelay(err), b.cfg.RetryMax))
	case uncounted(err):
		it.outcome = left
	case errors.Is(err, errSetAside):
		it.outcome, it.delay = failed, jitter(b.slow.wait(it.row.Topic))
	case attempt >= b.cfg.MaxAttempts:
		it.outcome, it.counted = died, true
	default:
		it.outcome, it.counted = failed, true
		it.delay = max(retryDelay(attempt, b.cfg.RetryMin, b.cfg.RetryMax), min(AskedDelay(err), b.cfg.RetryMax))
	}
	if it.outcome == died && b.cfg.OnDead == PassKey {
		return true
	}
	behind := held
	if it.outcome == left {
		behind = left
	}
	for next := it.next; next != nil; next = next.next {
		next.outcome = behind
	}
	return false
}

// errSetAside is the reason of a message whose topic's publishes time out, or which alone
// is unavailable.
var errSetAside = errors.New("topic is set aside: its publishes time out or it is unavailable, waiting before the next is tried")

// settled tells the observer what was recorded.
func (b *batch) settled(took time.Duration) {
	e := Settled{Lane: b.lease.Lane, Took: took}
	for i := range b.items {
		it := &b.items[i]
		switch it.outcome {
		case accepted:
			e.Published++
			e.Latency = max(e.Latency, it.row.Age+time.Since(b.read))
		case held:
			if !b.parked {
				e.Held++
			}
		case failed:
			e.Failed++
			b.observe(Failed{Message: b.message(it), Counted: it.counted, Delay: it.delay, Err: it.err})
		case died:
			e.Died++
			b.observe(Died{Message: b.message(it), Err: it.err})
		case waiting, left:
		}
	}
	b.observe(e)
}
