package publishtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/internal/proxy"
	"github.com/outbox-suite/outbox/relay"
)

// trial is one run of a scenario. fail, skip and what waits are for the
// goroutine of the scenario's run function; the rest is safe anywhere.
type trial struct {
	// ctx ends at the scenario's deadline.
	ctx    context.Context //nolint:containedctx // of this run
	target *Target

	mu       sync.Mutex
	got      []string
	skipped  string
	seq      int64
	cleanups []func()
}

const (
	// callTimeout bounds a call of Publish, as Config.PublishTimeout does.
	callTimeout = 10 * time.Second
	// soon is how long a call may go on when its context has ended. A relay
	// leaves it behind then.
	soon = time.Second
	// pollEvery is how often what arrived is looked at.
	pollEvery = 20 * time.Millisecond
	// retryEvery is the pause before a failed publish is tried again.
	retryEvery = 50 * time.Millisecond
)

// run runs a scenario and says what became of it.
func run(ctx context.Context, target *Target, s *Scenario) Result {
	r := Result{Scenario: *s, Status: Passed}
	if r.Reason = target.lacks(s.Needs); r.Reason != "" {
		r.Status = Skipped
		return r
	}
	began := time.Now()
	r.Got, r.Reason = try(ctx, target, s)
	r.Took = time.Since(began)
	issue, known := target.Known[s.Name]
	switch {
	case r.Reason != "":
		r.Status = Skipped
	case known && r.Got == "":
		r.Status, r.Got = Failed, fmt.Sprintf("it passes, but Known explains its failure by %s: remove the entry", issue)
	case known:
		r.Status, r.Reason = Known, issue
	case r.Got != "":
		r.Status = Failed
	}
	return r
}

func try(ctx context.Context, target *Target, s *Scenario) (got, skipped string) {
	ctx, cancel := context.WithTimeout(ctx, 4*target.Patience)
	defer cancel()
	t := &trial{ctx: ctx, target: target}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer t.cleanUp()
		defer func() {
			if p := recover(); p != nil {
				buf := make([]byte, 8<<10)
				t.errorf("panic: %v\n%s", p, buf[:runtime.Stack(buf, false)])
			}
		}()
		t.need(s.Needs)
		s.run(t)
	}()
	<-done
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.got, "\n"), t.skipped
}

// need skips the scenario when the publisher lacks an optional interface.
func (t *trial) need(needs []Need) {
	for _, n := range needs {
		switch p := n; p {
		case Ordered:
			if o, ok := t.publisher().(relay.Orderer); !ok || !o.KeepsOrder() {
				t.skip("the publisher does not claim to keep order by itself (relay.Orderer): the relay hands it one message a key")
			}
		case Closing:
			if _, ok := t.publisher().(io.Closer); !ok {
				t.skip("the publisher is no io.Closer")
			}
		default: // lacks has seen to it
		}
	}
}

// errorf notes a finding and goes on.
func (t *trial) errorf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	const most = 10
	switch text := fmt.Sprintf(format, args...); len(t.got) {
	case most:
		t.got = append(t.got, "…")
	case most + 1:
	default:
		t.got = append(t.got, text)
	}
}

// fail notes a finding and ends the scenario.
func (t *trial) fail(format string, args ...any) {
	t.errorf(format, args...)
	runtime.Goexit()
}

func (t *trial) skip(reason string) {
	t.mu.Lock()
	t.skipped = reason
	t.mu.Unlock()
	runtime.Goexit()
}

// must ends the scenario when something fails that is no promise.
func (t *trial) must(err error, doing string) {
	if err != nil {
		t.fail("%s: %v", doing, err)
	}
}

func (t *trial) onCleanUp(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}

func (t *trial) cleanUp() {
	for {
		t.mu.Lock()
		n := len(t.cleanups)
		if n == 0 {
			t.mu.Unlock()
			return
		}
		f := t.cleanups[n-1]
		t.cleanups = t.cleanups[:n-1]
		t.mu.Unlock()
		f()
	}
}

// publisher is a new one, closed in the end.
func (t *trial) publisher() relay.Publisher {
	p, err := t.target.New(t.ctx)
	t.must(err, "make a publisher")
	t.closeLater(p)
	return p
}

func (t *trial) closeLater(p relay.Publisher) {
	if c, ok := p.(io.Closer); ok {
		t.onCleanUp(func() { t.within("Close", func() { _ = c.Close() }) })
	}
}

// through is a publisher whose broker is behind a proxy.
func (t *trial) through() (relay.Publisher, *proxy.Proxy) {
	x, err := proxy.Listen(t.ctx, t.target.Network.Address)
	t.must(err, "make a proxy")
	t.onCleanUp(x.Close)
	p, err := t.target.Network.New(t.ctx, x.Addr())
	t.must(err, "make a publisher that goes through a proxy")
	t.closeLater(p)
	return p, x
}

// stalling is a publisher, and what makes its broker stand still and go on.
func (t *trial) stalling() (p relay.Publisher, stall, resume func()) {
	if t.target.Pause == nil || t.target.Resume == nil {
		p, x := t.through()
		return p, func() { x.Silence(true) }, func() { x.Silence(false) }
	}
	stalled := false
	resume = func() {
		if stalled {
			stalled = false
			t.must(t.target.Resume(t.outlasting()), "resume the broker")
		}
	}
	stall = func() {
		t.must(t.target.Pause(t.ctx), "pause the broker")
		stalled = true
	}
	p = t.publisher()
	t.onCleanUp(resume)
	return p, stall, resume
}

// outlasting is the scenario's context without its end: what a fault broke is
// mended in any case.
func (t *trial) outlasting() context.Context { return context.WithoutCancel(t.ctx) }

// kill kills the broker and returns what starts it again, which happens in the
// end in any case.
func (t *trial) kill() (start func()) {
	t.must(t.target.Kill(t.ctx), "kill the broker")
	started := false
	start = func() {
		if !started {
			started = true
			t.must(t.target.Start(t.outlasting()), "start the broker")
		}
	}
	t.onCleanUp(start)
	return start
}

func (t *trial) topic() string {
	topic, err := t.target.Topic(t.ctx)
	t.must(err, "make a topic")
	return topic
}

// message is the next one. An empty key is none.
func (t *trial) message(topic, key string) relay.Message {
	t.mu.Lock()
	t.seq++
	n := t.seq
	t.mu.Unlock()
	return relay.Message{
		Message: outbox.Message{
			ID: newID(), Topic: topic, Key: key, Type: "tried", ContentType: "application/json",
			Payload: fmt.Appendf(nil, `{"n":%d}`, n),
		},
		Seq: n, Lane: 1, Epoch: 1, Attempt: 1,
		CreatedAt: time.Date(2026, 1, 31, 15, 4, 5, 123_456_000, time.UTC),
	}
}

func newID() uuid.UUID {
	id, err := uuid.NewV7()
	if err != nil {
		panic(err) // there is no randomness
	}
	return id
}

// messages are n of them, each of a key of its own.
func (t *trial) messages(topic string, n int) []relay.Message {
	ms := make([]relay.Message, n)
	for i := range ms {
		ms[i] = t.message(topic, fmt.Sprintf("key-%d", i))
	}
	return ms
}

// within tells whether f returned in good time.
func (t *trial) within(what string, f func()) bool {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	for range 5 { // steps, as in call
		select {
		case <-done:
			return true
		case <-time.After(callTimeout / 5):
		}
	}
	t.errorf("%s did not return within %v", what, callTimeout)
	return false
}

// publish makes one call, in the time that a relay gives it.
func (t *trial) publish(p relay.Publisher, ms ...relay.Message) []error {
	ctx, cancel := context.WithTimeout(t.ctx, callTimeout)
	defer cancel()
	return t.call(ctx, p, ms...)
}

// undisturbed is publish where nothing but a slow machine can make it take long.
func (t *trial) undisturbed(p relay.Publisher, ms ...relay.Message) []error {
	ctx, cancel := context.WithTimeout(t.ctx, max(callTimeout, t.target.Patience))
	defer cancel()
	return t.call(ctx, p, ms...)
}

// call makes one call and returns a result for every message.
func (t *trial) call(ctx context.Context, p relay.Publisher, ms ...relay.Message) []error {
	done := make(chan []error, 1)
	// A publisher that does not return goes on reading what it was given.
	given := slices.Clone(ms)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				t.errorf("Publish panicked: %v", r)
				done <- same(len(ms), errors.New("it panicked"))
			}
		}()
		done <- p.Publish(ctx, given)
	}()
	var errs []error
	select {
	case errs = <-done:
	case <-ctx.Done():
		// In steps: a machine that stands still for long loses one of them.
		returned := false
		for left := 5; left > 0 && !returned; left-- {
			select {
			case errs = <-done:
				returned = true
			case <-time.After(soon / 5):
			}
		}
		if !returned {
			t.errorf("Publish had not returned %v after its context ended", soon)
			return same(len(ms), errors.New("it did not return"))
		}
	}
	switch {
	case errs == nil:
		errs = make([]error, len(ms))
	case len(errs) != len(ms):
		t.errorf("Publish returned %d results for %d messages", len(errs), len(ms))
		return same(len(ms), errors.New("it returned a wrong number of results"))
	}
	for _, err := range errs {
		t.keepsSecret(err)
	}
	return errs
}

func (t *trial) keepsSecret(err error) {
	if err != nil && t.target.Secret != "" && strings.Contains(err.Error(), t.target.Secret) {
		t.errorf("an error holds the secret: %v", err)
	}
}

func same(n int, err error) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// accept publishes and ends the scenario when not all is accepted.
func (t *trial) accept(p relay.Publisher, ms ...relay.Message) {
	for i, err := range t.undisturbed(p, ms...) {
		if err != nil {
			t.fail("message %d of %d was not accepted: %v", i+1, len(ms), err)
		}
	}
}

// persist publishes the messages until each is accepted, as a relay would, and
// tells whether they were.
func (t *trial) persist(p relay.Publisher, ms ...relay.Message) bool {
	deadline := time.Now().Add(t.target.Patience)
	for {
		var left []relay.Message
		var last error
		for i, err := range t.publish(p, ms...) {
			if err != nil {
				ms[i].Attempt++
				left, last = append(left, ms[i]), err
				if relay.IsPermanent(err) {
					t.errorf("a message that nothing is wrong with was refused for good: %v", err)
					return false
				}
			}
		}
		ms = left
		switch {
		case len(ms) == 0:
			return true
		case time.Now().After(deadline) || t.ctx.Err() != nil:
			t.errorf("%d messages were not accepted within %v; the last error: %v", len(ms), t.target.Patience, last)
			return false
		}
		time.Sleep(retryEvery)
	}
}

// deliver is persist for the scenario's goroutine.
func (t *trial) deliver(p relay.Publisher, ms ...relay.Message) {
	if !t.persist(p, ms...) {
		runtime.Goexit()
	}
}

// arrived is what a topic holds now.
func (t *trial) arrived(topic string) []Received {
	var all []Received
	t.await(topic, "the topic to be read", func(got []Received) bool { all = got; return true })
	return all
}

// settled is what a topic holds when nothing more arrives.
func (t *trial) settled(topic string) []Received {
	const quiet = 10
	last, since := -1, 0
	all := t.arrived(topic)
	for since < quiet {
		if len(all) == last {
			since++
		} else {
			last, since = len(all), 0
		}
		time.Sleep(pollEvery)
		all = t.arrived(topic)
	}
	return all
}

// await reads a topic until done is content with what has arrived.
func (t *trial) await(topic, what string, done func(got []Received) bool) {
	deadline := time.Now().Add(t.target.Patience)
	for {
		got, err := t.target.Consume(t.ctx, topic)
		if err == nil && done(got) {
			return
		}
		if time.Now().After(deadline) || t.ctx.Err() != nil {
			t.fail("waited %v for %s: %d messages have arrived, the last error is %v", t.target.Patience, what, len(got), err)
		}
		time.Sleep(pollEvery)
	}
}

// awaitAll waits for messages, each at least once, and compares them.
func (t *trial) awaitAll(topic string, ms ...relay.Message) {
	var all []Received
	t.await(topic, fmt.Sprintf("%d messages that were accepted", len(ms)), func(got []Received) bool {
		all = got
		ids := make(map[uuid.UUID]bool)
		for i := range got {
			ids[got[i].ID] = true
		}
		for i := range ms {
			if !ids[ms[i].ID] {
				return false
			}
		}
		return true
	})
	sent := make(map[uuid.UUID]*relay.Message)
	for i := range ms {
		sent[ms[i].ID] = &ms[i]
	}
	for i := range all {
		if m := sent[all[i].ID]; m != nil {
			for _, d := range differences(m, &all[i]) {
				t.errorf("%s", d)
			}
		}
	}
}

// count is how often a message has arrived.
func count(got []Received, id uuid.UUID) int {
	n := 0
	for i := range got {
		if got[i].ID == id {
			n++
		}
	}
	return n
}

// differences are what was altered on the way. Nil and empty payloads count as
// the same here.
func differences(sent *relay.Message, got *Received) []string {
	var found []string
	compare := func(what string, sent, got any, same bool) {
		if !same {
			found = append(found, fmt.Sprintf("%s was sent as %s and arrived as %s", what, clip(sent), clip(got)))
		}
	}
	compare("topic", sent.Topic, got.Topic, sent.Topic == got.Topic)
	compare("key", sent.Key, got.Key, sent.Key == got.Key)
	compare("having a key", sent.HasKey(), got.HasKey(), sent.HasKey() == got.HasKey())
	compare("type", sent.Type, got.Type, sent.Type == got.Type)
	compare("content type", sent.ContentType, got.ContentType, sent.ContentType == got.ContentType)
	compare("payload", sent.Payload, got.Payload, bytes.Equal(sent.Payload, got.Payload))
	compare("revision", strconv.FormatInt(sent.Revision, 10), strconv.FormatInt(got.Revision, 10), sent.Revision == got.Revision)
	compare("headers", sent.Headers, got.Headers, maps.Equal(sent.Headers, got.Headers))
	return found
}

// clip keeps a large value from flooding a finding.
func clip(v any) string {
	const most = 200
	var s string
	switch v := v.(type) {
	case bool:
		return strconv.FormatBool(v)
	case []byte:
		s = fmt.Sprintf("%q", v[:min(len(v), most)])
		if len(v) > most {
			return fmt.Sprintf("%s… (%d bytes)", s, len(v))
		}
	default:
		s = fmt.Sprintf("%q", v)
	}
	if len(s) > 4*most {
		return fmt.Sprintf("%s… (%d characters)", s[:4*most], len(s))
	}
	return s
}
