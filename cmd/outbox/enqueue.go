package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
)

var enqueueCommand = command{
	name: "enqueue", summary: "write messages from standard input, one JSON object a line", args: " < messages.ndjson",
	help: `
Reads one JSON object a line and writes them as messages, all in one transaction or
--tx-size lines in each. Blank lines are passed over. A line that is refused is named
by its number, and nothing of its transaction is kept. With one transaction, a slow
input keeps it open, and on SQLite keeps others from writing: use --tx-size then.

  topic         where it goes; required
  type          what happened; required
  key           what order is kept within; absent or null: no key; "" is a key
  data          the payload, any JSON, kept byte for byte as in the line
  data_base64   the payload, any bytes; without both there is none
  id            a UUID; default: a new one
  headers       an object of strings
  content_type  of the payload; default: application/json
  available_in  hold it back so long: "90s", or a number of seconds
  revision      the version of the aggregate, a whole number

Example:
  echo '{"topic":"orders","key":"42","type":"order.placed","data":{"total":7}}' |
    outbox enqueue --dsn sqlite:orders.db`,
	setup: func(fs *flag.FlagSet) action {
		var e enqueuer
		e.target.flags(fs)
		number := func(p *int, name, usage string) {
			fs.Func(name, usage, func(s string) error {
				n, err := strconv.Atoi(s)
				if err != nil || n < 1 {
					return errors.New("give a number above 0")
				}
				*p = n
				return nil
			})
		}
		number(&e.txSize, "tx-size", "how many `lines` a transaction has; default: all of them")
		number(&e.target.limits.Payload, "max-payload", "the most `bytes` of a payload (default 1048576)")
		fs.BoolVar(&e.target.revisions, "revisions", false, "give messages with a key the next revision of it, as all producers of these tables do")
		fs.BoolVar(&e.printIDs, "print-ids", false, "print the messages' ids, a line each, when they are committed")
		fs.BoolVar(&e.json, "json", false, "print a JSON object: enqueued, transactions")
		return e.run
	},
}

// A chunk is what one insert writes: bounded in number and bytes, so that
// memory is for any input.
var chunkMessages = 1000 // smaller in tests

const chunkBytes = 4 << 20

// chunk is a part of a transaction.
type chunk struct {
	messages []outbox.Message
	lines    []int // of the messages
	given    bool  // an id was given, so that one may be a duplicate
	last     int   // line of the transaction so far
	end      bool  // the transaction is complete; then there may be no messages
	err      error // the input ended with an error; nothing else is set
}

type enqueuer struct {
	target         target
	txSize         int
	printIDs, json bool

	out          *opened
	tx           *sql.Tx
	enqueued     int // committed
	transactions int
	last         int // line committed
	open         int // messages in the open transaction
	ids          []uuid.UUID
	shown        time.Time
}

func (e *enqueuer) run(ctx context.Context, p *process) error {
	if e.printIDs && e.json {
		return usagef("print-ids and json are both set: choose one")
	}
	var err error
	if e.out, err = e.target.open(ctx, p); err != nil {
		return err
	}
	defer e.out.close()

	chunks := make(chan chunk) // parsing runs beside writing
	reading, stop := context.WithCancel(ctx)
	defer stop()
	go e.read(reading, p.stdin, chunkMessages, chunks) // may outlive this call: stdin may be silent
	err = e.write(ctx, p, chunks)
	if e.tx != nil {
		_ = e.tx.Rollback() // what counts is the error that led here
	}
	e.clearProgress(p)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, e.kept())
	}
	switch {
	case e.json:
		return writeJSON(p.stdout, map[string]int{"enqueued": e.enqueued, "transactions": e.transactions})
	case e.printIDs:
		_, err = fmt.Fprintf(p.stderr, "%s enqueued\n", messages(e.enqueued))
	default:
		_, err = fmt.Fprintf(p.stdout, "%s enqueued\n", messages(e.enqueued))
	}
	return err
}

// kept says what stays after an error.
func (e *enqueuer) kept() string {
	if e.transactions == 0 {
		return "nothing was enqueued"
	}
	return fmt.Sprintf("lines 1-%d are committed (%s), nothing after them", e.last, messages(e.enqueued))
}

// read parses the input into chunks of at most so many messages until it ends or ctx does.
func (e *enqueuer) read(ctx context.Context, in io.Reader, most int, chunks chan<- chunk) {
	defer close(chunks)
	payload := e.target.limits.Payload
	if payload == 0 {
		payload = 1 << 20
	}
	l := lines{r: bufio.NewReaderSize(in, 64<<10), most: 2*payload + 128<<10}
	var c chunk
	size, inTx := 0, 0
	send := func(end bool) bool {
		c.end, c.last = end, l.number
		select {
		case chunks <- c:
		case <-ctx.Done():
			return false
		}
		c, size = chunk{}, 0
		return true
	}
	for {
		line, err := l.next()
		if errors.Is(err, io.EOF) {
			if inTx > 0 {
				send(true)
			}
			return
		}
		var m outbox.Message
		var given bool
		if err == nil {
			if m, given, err = parse(line); err != nil {
				err = lineError{l.number, err}
			}
		}
		if err != nil {
			c = chunk{err: err}
			send(false)
			return
		}
		c.messages = append(c.messages, m)
		c.lines = append(c.lines, l.number)
		c.given = c.given || given
		size += len(line)
		inTx++
		end := inTx == e.txSize
		if end {
			inTx = 0
		}
		if (end || len(c.messages) == most || size >= chunkBytes) && !send(end) {
			return
		}
	}
}

// write writes the chunks.
func (e *enqueuer) write(ctx context.Context, p *process, chunks <-chan chunk) error {
	for {
		var c chunk
		var ok bool
		select {
		case c, ok = <-chunks:
		case <-ctx.Done(): // the input may be silent
			return context.Cause(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !ok:
			return nil
		case c.err != nil:
			return c.err
		}
		if err := e.insert(ctx, c); err != nil {
			return err
		}
		if c.end {
			if err := e.commit(p, c.last); err != nil {
				return err
			}
		}
		e.progress(p)
	}
}

func (e *enqueuer) insert(ctx context.Context, c chunk) error {
	if len(c.messages) == 0 {
		return nil
	}
	if e.tx == nil {
		tx, err := e.out.DB().BeginTx(ctx, nil)
		if err != nil {
			return fmt.Errorf("begin: %w", err)
		}
		e.tx = tx
	}
	if c.given {
		if _, err := e.tx.ExecContext(ctx, "SAVEPOINT before_chunk"); err != nil {
			return fmt.Errorf("savepoint: %w", err)
		}
	}
	ids, err := e.out.Enqueue(ctx, e.tx, c.messages...)
	if c.given && errors.Is(err, outbox.ErrDuplicateID) {
		return e.duplicate(ctx, c, err)
	}
	if err != nil {
		return named(c, err)
	}
	e.open += len(c.messages)
	if e.printIDs {
		e.ids = append(e.ids, ids...)
	}
	return nil
}

// named names the line that an error of Enqueue is about.
func named(c chunk, err error) error {
	if invalid := (*outbox.InvalidError)(nil); errors.As(err, &invalid) {
		return lineError{c.lines[invalid.Index], fmt.Errorf("%s %s", invalid.Field, invalid.Reason)}
	}
	if wrong := (*outbox.RevisionError)(nil); errors.As(err, &wrong) {
		line := c.lines[wrong.Index]
		wrong.Index = 0 // the line says it
		return lineError{line, wrong}
	}
	return fmt.Errorf("lines %d-%d: %w", c.lines[0], c.lines[len(c.lines)-1], err)
}

// duplicate finds the line whose id is not new, by writing the chunk again one
// by one. The transaction is lost in any case.
func (e *enqueuer) duplicate(ctx context.Context, c chunk, found error) error {
	if _, err := e.tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT before_chunk"); err != nil {
		return named(c, found)
	}
	for i, m := range c.messages {
		if _, err := e.out.Enqueue(ctx, e.tx, m); errors.Is(err, outbox.ErrDuplicateID) {
			return lineError{c.lines[i], fmt.Errorf("id %s is enqueued already", m.ID)}
		} else if err != nil {
			break
		}
	}
	return named(c, found)
}

func (e *enqueuer) commit(p *process, last int) error {
	err := e.tx.Commit()
	e.tx = nil
	if err != nil {
		if e.out.Dialect().Classify(err) == dialect.OutcomeUnknown {
			return fmt.Errorf("commit of lines %d-%d: it is not known whether it took effect: %w", e.last+1, last, err)
		}
		return fmt.Errorf("commit of lines %d-%d: %w", e.last+1, last, err)
	}
	e.enqueued += e.open
	e.open = 0
	e.transactions++
	e.last = last
	if len(e.ids) == 0 {
		return nil
	}
	w := bufio.NewWriter(p.stdout)
	for _, id := range e.ids {
		_, _ = w.WriteString(id.String() + "\n") // Flush returns the error
	}
	e.ids = e.ids[:0]
	return w.Flush()
}

// progress shows how far it is, to a person only.
func (e *enqueuer) progress(p *process) {
	if time.Since(e.shown) < 200*time.Millisecond || !isTerminal(p.stderr) {
		return
	}
	e.shown = time.Now()
	p.tell("\r%s …", messages(e.enqueued+e.open))
}

func (e *enqueuer) clearProgress(p *process) {
	if !e.shown.IsZero() {
		p.tell("\r\x1b[K")
	}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
