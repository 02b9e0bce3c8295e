package demo

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outbox-suite/outbox/inbox"
)

// consumer reads the file and applies each message once.
type consumer struct {
	*demo
	seen     atomic.Int64  // lines read so far
	finished chan struct{} // closed when nothing more is written
	once     sync.Once

	applied int // numbers the effects in their order
}

// finish lets the consumer end at the end of the file.
func (c *consumer) finish() { c.once.Do(func() { close(c.finished) }) }

// run consumes until the file has ended. On the way it has the faults consumers
// have: a handler that fails, after which the message is delivered again, and a
// crash that loses the place in the file, after which all of it is.
func (c *consumer) run(ctx context.Context) error {
	in, err := inbox.New(c.far.Dialect(), inbox.Config{Prefix: c.prefix})
	if err != nil {
		return err
	}
	if err := in.Check(ctx, c.far.DB()); err != nil {
		return err
	}
	crashAt := int64(c.Orders * perOrder / 2)
	var at int64
	for {
		last := false
		select {
		case <-c.finished:
			last = true // what is read now is all there is
		default:
		}
		lines, err := readLines(c.file(), at)
		if err != nil {
			return err
		}
		for line := range bytes.Lines(lines) {
			if err := c.consume(ctx, in, line); err != nil {
				return err
			}
			at += int64(len(line))
			if c.seen.Add(1) == crashAt {
				c.say("the consumer crashes and begins again at the start of the file")
				at, last = 0, false
				break
			}
		}
		if last {
			return nil
		}
		if len(lines) == 0 && !pause(ctx, 5*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// readLines returns the complete lines of the file from a place on.
func readLines(path string, from int64) ([]byte, error) {
	f, err := os.Open(path) //nolint:gosec // a file of our own
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // no relay has begun yet
	}
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(f)
	return text[:bytes.LastIndexByte(text, '\n')+1], err
}

// consume applies the message of a line.
func (c *consumer) consume(ctx context.Context, in *inbox.Inbox, line []byte) error {
	var event event
	if err := json.Unmarshal(line, &event); err != nil {
		return fmt.Errorf("line is no event: %w", err)
	}
	id, err := clean(event.ID)
	if err != nil {
		return err
	}
	fails := c.applied%97 == 50
	handle := func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO %s_effects (applied, message_id, order_id, revision) VALUES (%d, '%s', %d, %d)",
			c.prefix, c.applied, id, event.Data.Order, event.Data.Revision))
		if err == nil && fails {
			return errHandler
		}
		return err
	}
	handled, err := in.Handle(ctx, c.far.DB(), "billing", id, handle)
	if errors.Is(err, errHandler) {
		fails = false
		handled, err = in.Handle(ctx, c.far.DB(), "billing", id, handle) // delivered again
	}
	if handled {
		c.applied++
	}
	return err
}

var errHandler = errors.New("the handler fails")
