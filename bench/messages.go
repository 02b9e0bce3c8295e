package bench

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
)

const (
	keys        = 1000
	small       = 200     // bytes of a payload
	large       = 8 << 10 // bytes of a payload
	topic       = "orders"
	kind        = "order.placed"
	contentType = "application/json"
	headers     = "{}"
)

// source makes messages, the same for both sides.
type source struct {
	random *rand.Rand
	noise  []byte
	size   int
}

func (r *run) source(stream uint64, size int) *source {
	s := &source{random: rand.New(rand.NewPCG(r.opts.Seed, stream)), size: size}
	// Letters by chance, so that a server that compresses does not win.
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
	s.noise = make([]byte, max(64<<10, 2*size))
	for i := range s.noise {
		s.noise[i] = letters[s.random.IntN(len(letters))]
	}
	return s
}

func (s *source) next(n int) ([]outbox.Message, error) {
	messages := make([]outbox.Message, n)
	for i := range messages {
		id, err := uuid.NewV7()
		if err != nil {
			return nil, err
		}
		at := s.random.IntN(len(s.noise) - s.size + 1)
		messages[i] = outbox.Message{
			ID: id, Topic: topic, Key: fmt.Sprintf("order-%d", s.random.IntN(keys)), Type: kind, Payload: s.noise[at : at+s.size],
		}
	}
	return messages, nil
}

// inserter writes messages in a transaction, one way or the other.
type inserter func(ctx context.Context, tx *sql.Tx, messages []outbox.Message) error

// enqueueIn is the outbox's way.
func enqueueIn(o *outbox.Outbox) inserter {
	return func(ctx context.Context, tx *sql.Tx, messages []outbox.Message) error {
		_, err := o.Enqueue(ctx, tx, messages...)
		return err
	}
}

// insertIn is the hand-written way, of the same columns.
func (r *run) insertIn(t tables) inserter {
	statements := make(map[int]string)
	var mu sync.Mutex
	return func(ctx context.Context, tx *sql.Tx, messages []outbox.Message) error {
		mu.Lock()
		query, ok := statements[len(messages)]
		if !ok {
			query = t.expand(r.base.Insert(len(messages)))
			statements[len(messages)] = query
		}
		mu.Unlock()
		args := make([]any, 0, 7*len(messages))
		for i := range messages {
			m := &messages[i]
			args = append(args, r.base.MessageID(m.ID), m.Topic, m.Key, m.Type, contentType, headers, m.Payload)
		}
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	}
}

const (
	fillBatch   = 500
	fillWriters = 4
)

// fillAtOnce enqueues n messages in one transaction and returns when it began to
// commit.
func (r *run) fillAtOnce(ctx context.Context, o *outbox.Outbox, n int) (committing time.Time, err error) {
	src := r.source(0, small)
	err = r.inTx(ctx, o.DB(), func(tx *sql.Tx) error {
		for left := n; left > 0; {
			messages, err := src.next(min(left, fillBatch))
			if err != nil {
				return err
			}
			if _, err := o.Enqueue(ctx, tx, messages...); err != nil {
				return fmt.Errorf("fill: %w", err)
			}
			left -= len(messages)
		}
		committing = time.Now()
		return nil
	})
	o.Wake() //nolint:contextcheck // a wake-up has no context
	return committing, err
}

// fill writes n messages with payloads of size.
func (r *run) fill(ctx context.Context, insert inserter, n, size int) error {
	db, err := r.pool(ctx, 0)
	if err != nil {
		return err
	}
	writers := fillWriters
	if r.base.OneWriter {
		writers = 1
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	for w := range writers {
		share := n / writers
		if w == 0 {
			share += n % writers
		}
		group.Go(func() {
			src := r.source(uint64(w), size) //nolint:gosec // a small number
			for share > 0 && ctx.Err() == nil {
				messages, err := src.next(min(share, fillBatch))
				if err == nil {
					err = r.inTx(ctx, db, func(tx *sql.Tx) error { return insert(ctx, tx, messages) })
				}
				if err != nil {
					cancel(fmt.Errorf("fill: %w", err))
					return
				}
				share -= len(messages)
			}
		})
	}
	group.Wait()
	return context.Cause(ctx)
}

// inTx runs f in a transaction, again when the server undid it for a conflict, after a
// short pause by chance: otherwise the same ones meet again.
func (r *run) inTx(ctx context.Context, db *sql.DB, f func(tx *sql.Tx) error) error {
	for try := 1; ; try++ {
		err := once(ctx, db, f)
		if err == nil || try == maxTries || ctx.Err() != nil || r.target.Dialect.Classify(err) != dialect.Conflict {
			return err
		}
		wait(ctx, rand.N(time.Duration(try)*time.Millisecond))
	}
}

const maxTries = 20

func once(ctx context.Context, db *sql.DB, f func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}
