package bench

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// loop is the hand-written relay: lock, publish, mark, in one transaction.
type loop struct {
	r       *run
	db      *sql.DB
	query   string
	mark    func(ids []int64) (string, []any)
	tables  tables
	publish func(payload []byte) // nil: thrown away
}

// loopPause is how long the loop sleeps when it found nothing.
const loopPause = 100 * time.Millisecond

func (r *run) loop(db *sql.DB, t tables, batch int, mark func([]int64) (string, []any)) *loop {
	return &loop{r: r, db: db, query: t.expand(r.base.Select(batch)), mark: mark, tables: t}
}

// turn is one transaction. It returns how many messages there were.
func (l *loop) turn(ctx context.Context) (n int, err error) {
	err = l.r.inTx(ctx, l.db, func(tx *sql.Tx) error {
		ids, payloads, err := l.read(ctx, tx)
		n = len(ids)
		if err != nil || n == 0 {
			return err
		}
		if l.publish != nil {
			for _, p := range payloads {
				l.publish(p)
			}
		}
		query, args := l.mark(ids)
		_, err = tx.ExecContext(ctx, l.tables.expand(query), args...)
		return err
	})
	return n, err
}

func (l *loop) read(ctx context.Context, tx *sql.Tx) (ids []int64, payloads [][]byte, err error) {
	rows, err := tx.QueryContext(ctx, l.query)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var (
			id                                    int64
			topic, kind, contentType, headersText string
			key                                   sql.NullString
			message, body                         []byte
			created                               any
		)
		if err := rows.Scan(&id, &message, &topic, &key, &kind, &contentType, &headersText, &body, &created); err != nil {
			return nil, nil, err
		}
		ids, payloads = append(ids, id), append(payloads, body)
	}
	return ids, payloads, rows.Err()
}

// drain empties the table of n messages with so many loops beside each other and
// returns how long it took.
func (l *loop) drain(ctx context.Context, n, loops int) (time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var moved atomic.Int64
	var group sync.WaitGroup
	began := time.Now()
	for range loops {
		group.Go(func() {
			for moved.Load() < int64(n) && ctx.Err() == nil {
				k, err := l.turn(ctx)
				switch {
				case err != nil:
					cancel(err)
					return
				case k == 0:
					time.Sleep(time.Millisecond) // others have the rest
				}
				moved.Add(int64(k))
			}
		})
	}
	group.Wait()
	return time.Since(began), context.Cause(ctx)
}

// follow publishes what comes until ctx ends.
func (l *loop) follow(ctx context.Context, batch int) error {
	for {
		n, err := l.turn(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was told to stop
		}
		if err != nil && l.r.target.Dialect.Classify(err) != dialect.Conflict {
			return err
		}
		if n == batch {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(loopPause):
		}
	}
}
