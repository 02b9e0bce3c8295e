package conformance

import (
	"bufio"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/relay"
)

// Reopen opens, in a child process, the database that Target.Source names.
type Reopen func(source string) (dialect.Dialect, *sql.DB, error)

// envChild makes a process a child of the suite.
const envChild = "OUTBOX_CONFORMANCE_CHILD"

// childReady tells that the program calls Child, without which a child process
// would do what the program does otherwise.
var childReady atomic.Bool

// Child makes the process a relay of the suite when the suite has started it as
// one, and does not return then. A program that runs the suite with a
// Target.Source calls it before anything else: a test binary in TestMain, a
// command at the start of main.
func Child(reopen Reopen) {
	if os.Getenv(envChild) == "" {
		childReady.Store(true)
		return
	}
	if err := childMain(os.Stdin, os.Stdout, reopen); err != nil {
		fmt.Fprintln(os.Stderr, "conformance child:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// point is a place in a relay's work where a child process stops and waits for
// what its parent does to it.
type point string

const (
	nowhere point = ""
	// atClaimed is behind a claim that was granted.
	atClaimed point = "claimed"
	// atPublished is before a settle: the broker has accepted, nobody knows.
	atPublished point = "published"
	// inSettle is when the settle's statements were run: before its commit, or,
	// when it is a single statement, before the relay learns that it took effect.
	inSettle point = "in settle"
	// atSettled is behind a settle.
	atSettled point = "settled"
)

// childSpec is what a child process is told first.
type childSpec struct {
	Source string
	Tables dialect.Tables
	Config relay.Config
	StopAt point
	// Skip is how often the point is passed before it stops.
	Skip int
	// Produce makes the child a producer instead of a relay.
	Produce *production `json:",omitempty"`
}

// production is what a child process enqueues in one transaction before it
// kills itself, right after the commit or instead of it.
type production struct {
	Messages []outbox.Message
	Commit   bool
}

// Lines from the child to its parent, and back.
type (
	fromChild struct {
		Call     int             `json:",omitempty"` // of a publish, from 1
		Messages []relay.Message `json:",omitempty"`
		GaveUp   bool            `json:",omitempty"` // on the answer to a publish of the messages
		Stopped  point           `json:",omitempty"`
		Event    string          `json:",omitempty"`
		Lane     int             `json:",omitempty"`
		Up       bool            `json:",omitempty"`
	}
	toChild struct {
		Call   int
		Errors []childError `json:",omitempty"`
		Resume bool         `json:",omitempty"`
	}
	childError struct {
		Text                   string `json:",omitempty"`
		Permanent, Unavailable bool   `json:",omitempty"`
	}
)

// child is a relay in a process of its own. Its broker is the scenario's: it
// publishes through a pipe.
type child struct {
	t    *trial
	name string
	cmd  *exec.Cmd
	out  *json.Encoder // to the child
	in   io.Closer
	gone chan struct{}
	ctx  context.Context //nolint:containedctx // ends with the process, for the publishes it has under way
	end  context.CancelFunc

	mu      sync.Mutex
	up      bool
	stopped point
	events  map[string]int
	stderr  strings.Builder
	killed  bool
	status  error
	writing sync.Mutex
}

// childWith says how a child process differs from the rest.
type childWith struct {
	// stopAt is where it stops, after it passed there skip times.
	stopAt point
	skip   int
	// source is Target.Source unless it goes through a proxy.
	source string
	// produce makes it a producer.
	produce *production
	config  func(c *relay.Config)
}

// spawn starts a relay in a child process.
func (t *trial) spawn(with childWith) *child {
	if !childReady.Load() {
		t.fail("the program offers child processes (Target.Source) but does not call conformance.Child at its start")
	}
	name := t.nextName()
	spec := childSpec{
		Source: cmp.Or(with.source, t.target.Source), Tables: t.tables, Config: quick(name),
		StopAt: with.stopAt, Skip: with.skip, Produce: with.produce,
	}
	if with.config != nil {
		with.config(&spec.Config)
	}
	self, err := os.Executable()
	t.must(err, "find the program's own file")
	cmd := exec.CommandContext(t.ctx, self)
	cmd.Env = append(os.Environ(), envChild+"=1")
	stdin, err := cmd.StdinPipe()
	t.must(err, "pipe to a child process")
	stdout, err := cmd.StdoutPipe()
	t.must(err, "pipe from a child process")
	ctx, end := context.WithCancel(context.WithoutCancel(t.ctx))
	c := &child{
		t: t, name: name, cmd: cmd, out: json.NewEncoder(stdin), in: stdin,
		gone: make(chan struct{}), ctx: ctx, end: end, events: make(map[string]int),
	}
	cmd.Stderr = &lockedWriter{c: c}
	t.must(cmd.Start(), "start a child process")
	go c.serve(stdout)
	t.mu.Lock()
	t.relays = append(t.relays, c)
	t.mu.Unlock()
	c.send(spec)
	isUp := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.up
	}
	t.await("the child process to come up", func() bool {
		select {
		case <-c.gone:
			if !isUp() {
				t.fail("the child process ended at its start: %v: %s", c.status, c.errors())
			}
		default:
		}
		return isUp()
	})
	return c
}

// lockedWriter collects what the child writes to its standard error.
type lockedWriter struct{ c *child }

// Write implements [io.Writer].
func (w *lockedWriter) Write(p []byte) (int, error) {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	if w.c.stderr.Len() < 16<<10 {
		w.c.stderr.Write(p)
	}
	return len(p), nil
}

func (c *child) errors() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.TrimSpace(c.stderr.String())
}

func (c *child) send(v any) {
	c.writing.Lock()
	defer c.writing.Unlock()
	_ = c.out.Encode(v) // a child that is gone hears nothing
}

// serve is the child's broker until the child is gone.
func (c *child) serve(stdout io.Reader) {
	var calls sync.WaitGroup
	lines := json.NewDecoder(bufio.NewReader(stdout))
	for {
		var line fromChild
		if err := lines.Decode(&line); err != nil {
			break // the process ended, perhaps in the middle of a line
		}
		switch {
		case line.Up:
			c.mu.Lock()
			c.up = true
			c.mu.Unlock()
		case line.GaveUp:
			c.t.broker.unheard(c.name, line.Messages)
		case line.Call > 0:
			calls.Go(func() { c.publish(line) })
		case line.Stopped != nowhere:
			c.mu.Lock()
			c.stopped = line.Stopped
			c.mu.Unlock()
		case line.Event != "":
			switch line.Event {
			case "Settled":
				c.t.broker.settled(c.name, line.Lane)
			case "LeaseLost":
				c.t.broker.fault(c.name, line.Lane)
			}
			c.mu.Lock()
			c.events[line.Event]++
			c.mu.Unlock()
		}
	}
	c.end()
	calls.Wait()
	err := c.cmd.Wait()
	c.mu.Lock()
	c.status = err
	killed := c.killed
	c.mu.Unlock()
	if killed || err != nil {
		c.t.broker.died(c.name)
	}
	close(c.gone)
}

func (c *child) publish(line fromChild) {
	errs := c.t.broker.publish(c.ctx, c.name, line.Messages)
	answer := toChild{Call: line.Call, Errors: make([]childError, len(line.Messages))}
	for i, err := range errs {
		if err != nil {
			answer.Errors[i] = childError{Text: err.Error(), Permanent: relay.IsPermanent(err), Unavailable: relay.IsUnavailable(err)}
		}
	}
	c.send(answer)
}

// awaitStop waits until the child has stopped at its point.
func (c *child) awaitStop() {
	c.t.await("the child process to stop at its point", func() bool {
		select {
		case <-c.gone:
			c.t.fail("the child process ended before it came to its point: %v: %s", c.status, c.errors())
		default:
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.stopped != nowhere
	})
}

// resume lets the child go on from its point.
func (c *child) resume() { c.send(toChild{Resume: true}) }

// kill ends the process with SIGKILL and returns when it is gone.
func (c *child) kill() {
	c.mu.Lock()
	c.killed = true
	c.mu.Unlock()
	_ = c.cmd.Process.Kill()
	<-c.gone
}

// killedItself tells whether the process, which is gone, ended by its own hand
// as a producer does.
func (c *child) killedItself() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	var exit *exec.ExitError
	if !errors.As(c.status, &exit) || exit.Exited() {
		return false // it ended with a status, so it met an error
	}
	c.killed = true // which is how it was meant to be
	return true
}

// pause stops the process where it is, with SIGSTOP; wake with proceed.
func (c *child) pause() {
	c.t.must(c.cmd.Process.Signal(pauseSignal), "pause a child process")
}

// proceed lets a paused process go on.
func (c *child) proceed() {
	c.t.must(c.cmd.Process.Signal(proceedSignal), "let a child process go on")
}

// stop asks the relay to stop gracefully and waits; a process that does not
// end in time is killed.
func (c *child) stop() {
	select {
	case <-c.gone:
	default:
		_ = c.cmd.Process.Signal(proceedSignal)
		_ = c.cmd.Process.Signal(syscall.SIGTERM)
		c.resume()
		late := time.NewTimer(time.Minute)
		defer late.Stop()
		select {
		case <-c.gone:
		case <-late.C:
			c.t.error("child process %s did not stop: %s", c.name, c.errors())
			c.kill()
		}
	}
	c.mu.Lock()
	status, killed := c.status, c.killed
	c.mu.Unlock()
	if status != nil && !killed {
		c.t.error("child process %s: %v: %s", c.name, status, c.errors())
	}
	_ = c.in.Close()
}

// events counts what the child observed of one type, by its name.
func (c *child) saw(event string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.events[event]
}

// childMain is the child process.
func childMain(stdin io.Reader, stdout io.Writer, reopen Reopen) error {
	in := json.NewDecoder(bufio.NewReader(stdin))
	var spec childSpec
	if err := in.Decode(&spec); err != nil {
		return fmt.Errorf("read what to do: %w", err)
	}
	d, db, err := reopen(spec.Source)
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(5)
	db.SetMaxIdleConns(5)

	if spec.Produce != nil {
		return produceAndDie(json.NewEncoder(stdout), d, db, spec)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := &worker{out: json.NewEncoder(stdout), spec: spec, waiting: make(map[int]chan []childError), resumed: make(chan struct{})}
	go func() {
		// A parent that is gone must not leave its children behind.
		if err := w.listen(in); err != nil {
			os.Exit(1)
		}
		cancel()
	}()

	tapped := tap(db, wire{before: w.beforeStatement, after: w.afterStatement})
	defer tapped.Close()
	tapped.SetMaxIdleConns(5)
	box, err := outbox.New(tapped, hooked(d, hooks{before: w.before, after: w.after}), outbox.Config{
		Schema: spec.Tables.Schema, Prefix: spec.Tables.Prefix, Lanes: spec.Tables.Lanes,
	})
	if err != nil {
		return err
	}
	spec.Config.Observer = relay.ObserverFunc(w.observe)
	r, err := relay.New(box, relay.PublisherFunc(w.publish), spec.Config)
	if err != nil {
		return err
	}
	w.send(fromChild{Up: true})
	return r.Run(ctx)
}

// produceAndDie is a child process that is a producer. It returns only an error.
func produceAndDie(out *json.Encoder, d dialect.Dialect, db *sql.DB, spec childSpec) error {
	box, err := outbox.New(db, d, outbox.Config{Schema: spec.Tables.Schema, Prefix: spec.Tables.Prefix, Lanes: spec.Tables.Lanes})
	if err != nil {
		return err
	}
	if err := out.Encode(fromChild{Up: true}); err != nil {
		return err
	}
	tx, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := box.Enqueue(context.Background(), tx, spec.Produce.Messages...); err != nil {
		return err
	}
	if spec.Produce.Commit {
		if err := tx.Commit(); err != nil {
			return err
		}
	}
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		return err
	}
	if err := self.Kill(); err != nil {
		return err
	}
	select {} // until the signal comes
}

// worker is the child's side of the pipe.
type worker struct {
	spec childSpec
	ops  sync.RWMutex // read-locked by every operation of the store

	mu      sync.Mutex
	out     *json.Encoder
	calls   int
	waiting map[int]chan []childError
	passed  int
	stopped bool
	resumed chan struct{}
	once    sync.Once
	first   sync.Once // poll
}

func (w *worker) send(line fromChild) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.out.Encode(line) // without a parent the process ends anyway
}

func (w *worker) listen(in *json.Decoder) error {
	for {
		var line toChild
		if err := in.Decode(&line); err != nil {
			if errors.Is(err, io.EOF) {
				return io.ErrUnexpectedEOF
			}
			return err
		}
		if line.Resume {
			w.once.Do(func() { close(w.resumed) })
			continue
		}
		w.mu.Lock()
		answer := w.waiting[line.Call]
		delete(w.waiting, line.Call)
		w.mu.Unlock()
		if answer != nil {
			answer <- line.Errors
		}
	}
}

func (w *worker) publish(ctx context.Context, messages []relay.Message) []error {
	answer := make(chan []childError, 1)
	w.mu.Lock()
	w.calls++
	call := w.calls
	w.waiting[call] = answer
	w.mu.Unlock()
	w.send(fromChild{Call: call, Messages: messages})
	errs := make([]error, len(messages))
	select {
	case told := <-answer:
		for i, e := range told {
			if e.Text == "" {
				continue
			}
			errs[i] = errors.New(e.Text)
			if e.Permanent {
				errs[i] = relay.Permanent(errs[i])
			}
			if e.Unavailable {
				errs[i] = relay.Unavailable(errs[i])
			}
		}
	case <-ctx.Done():
		for i := range errs {
			errs[i] = context.Cause(ctx)
		}
		w.send(fromChild{GaveUp: true, Messages: messages})
	}
	return errs
}

// at stops at the point, once.
func (w *worker) at(p point) {
	w.mu.Lock()
	if p != w.spec.StopAt || w.stopped {
		w.mu.Unlock()
		return
	}
	if w.passed < w.spec.Skip {
		w.passed++
		w.mu.Unlock()
		return
	}
	w.stopped = true
	w.mu.Unlock()
	if p != inSettle {
		// Nothing else must be under way at the database: a process that is paused
		// in a write would hold back others on an engine with one writer.
		w.ops.Lock()
		defer w.ops.Unlock()
	}
	w.send(fromChild{Stopped: p})
	<-w.resumed
}

func (w *worker) before(_ context.Context, o op) error {
	if o.name == "settle" && len(o.settlement.Published)+len(o.settlement.PublishedParked) > 0 {
		w.at(atPublished)
	}
	w.ops.RLock()
	return nil
}

func (w *worker) after(_ context.Context, o op, ok bool, err error) error {
	w.ops.RUnlock()
	switch {
	case o.name == "claim" && ok && err == nil:
		w.at(atClaimed)
	case o.name == "settle" && ok && err == nil:
		w.at(atSettled)
	}
	return err
}

func (w *worker) beforeStatement(s statement) error {
	if s.kind == "commit" && opOf(s.ctx) == "settle" {
		w.at(inSettle)
	}
	return nil
}

func (w *worker) afterStatement(s statement, err error) error {
	if (s.kind == "exec" || s.kind == "query") && !s.inTx && opOf(s.ctx) == "settle" {
		w.at(inSettle)
	}
	return err
}

func (w *worker) observe(e relay.Event) {
	line := fromChild{Event: eventName(e)}
	switch e := e.(type) {
	case relay.Polled:
		w.first.Do(func() { w.send(line) })
		return
	case relay.Attempted:
		return
	case relay.Claimed:
		line.Lane = e.Lane
	case relay.Settled:
		line.Lane = e.Lane
	case relay.LeaseLost:
		line.Lane = e.Lane
	case relay.Released:
		line.Lane = e.Lane
	}
	w.send(line)
}
