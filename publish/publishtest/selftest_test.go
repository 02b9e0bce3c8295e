package publishtest_test

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/publish/publishtest"
	"github.com/outbox-suite/outbox/relay"
)

// breach is a way to be wrong.
type breach struct {
	// fails are the scenarios that name the promise it breaks.
	fails []string
	// touched scenarios may fail or not: the breach shows there by chance only.
	touched string

	// Of the broker.
	lazy       bool // answers before what it took is durable
	shuffled   bool // puts messages before earlier ones
	repeats    bool // answers a duplicate with an error
	forgetful  bool // takes a replay for a duplicate
	foldsKeys  bool
	trims      bool // takes white space from payloads
	nilIsEmpty bool
	// message is changed on the way.
	message func(m *relay.Message)

	// Of the publisher.
	swallows    bool // reports success whatever happened
	goesOn      bool // publishes what follows a failure in a run
	noDeadline  bool // waits for the broker for as long as it takes
	keepsDead   bool // keeps the connection of a call that ran out of time
	neverDials  bool // makes one connection and no other
	scribbles   bool // changes the caller's message
	closedTakes bool // accepts what it is given after Close
	busyLoses   bool // accepts and drops when many calls are under way
	miscounts   bool // leaves the last result out
	verdict     func(topic string, err error) error
	results     func(errs []error)
	sentence    string // in every error
}

var (
	alone = []string{"Refuse/TooLargeFailsAlone", "Refuse/UnknownTopicFailsAlone", "Refuse/Unroutable"}
	stall = []string{"Slow/ContextEndIsAnError", "Slow/LeaseLostIsAnError", "Slow/FullBuffersBlockNobody"}
	down  = []string{"Outage/DownIsUnavailable", "Outage/DownAtTheStart"}
)

var breaches = map[string]breach{
	"acks before durable": {
		lazy:  true,
		fails: []string{"Accept/AckedIsDurable"},
		// Whatever is published a moment before a kill.
		touched: "Outage/.*|Order/AcrossOutage",
	},
	"goes on after a failure": {
		goesOn: true,
		fails:  []string{"Order/RunStopsAtRefusal", "Order/RunCutInTheMiddle"},
	},
	"no order": {
		shuffled: true,
		fails:    []string{"Order/KeyInSequence", "Order/AcrossOutage", "Order/AcrossStall", "Order/RunInSequence", "Order/RunStopsAtRefusal", "Order/RunCutInTheMiddle"},
	},
	"swallows errors": {
		swallows: true,
		fails: slices.Concat(alone, stall, down, []string{
			"Refuse/TooLarge", "Refuse/UnknownTopic", "Outage/RecoversByItself", "Outage/KilledInMidPublish", "Order/RunStopsAtRefusal",
			"Network/HalfOpenIsNoticed", "Order/AcrossOutage", "Close/AcceptsNothingAfterwards",
		}),
		touched: "Network/.*|Order/.*|Close/.*|Accept/AckedIsDurable",
	},
	"success on an unknown topic": {
		verdict: func(_ string, err error) error {
			if err != nil && strings.Contains(err.Error(), "no destination") {
				return nil
			}
			return err
		},
		fails: []string{"Refuse/UnknownTopic", "Refuse/UnknownTopicFailsAlone"},
	},
	"unknown topic without a remedy": {
		verdict: func(_ string, err error) error {
			if err != nil && strings.Contains(err.Error(), "no destination") {
				return relay.Permanent(errors.New("404"))
			}
			return err
		},
		fails: []string{"Refuse/UnknownTopic"},
	},
	"success on an unroutable topic": {
		verdict: func(topic string, err error) error {
			if topic == "astray" {
				return nil
			}
			return err
		},
		fails: []string{"Refuse/Unroutable"},
	},
	"too large is tried again": {
		verdict: func(_ string, err error) error {
			if err != nil && strings.Contains(err.Error(), "too large") {
				return errors.New("too large")
			}
			return err
		},
		fails: []string{"Refuse/TooLarge", "Refuse/TooLargeFailsAlone", "Order/RunStopsAtRefusal"},
	},
	"one failure fails the call": {
		results: func(errs []error) {
			for _, err := range errs {
				if err != nil {
					for i := range errs {
						errs[i] = err
					}
					return
				}
			}
		},
		fails: append([]string{"Order/RunStopsAtRefusal"}, alone...),
	},
	"results in another order": {
		results: func(errs []error) { slices.Reverse(errs) },
		fails:   append([]string{"Order/RunStopsAtRefusal", "Order/RunCutInTheMiddle"}, alone...),
		// What was accepted and what was not is told of the wrong ones.
		touched: "Outage/KilledInMidPublish|Close/DuringPublish",
	},
	"a result is missing": {
		miscounts: true,
		fails:     []string{"Accept/EverythingArrives", "Accept/LargeCall", "Concurrent/ManyCallers"},
		touched:   ".*",
	},
	"an outage is counted": {
		verdict: func(_ string, err error) error {
			if relay.IsUnavailable(err) {
				return errors.New("no connection")
			}
			return err
		},
		fails: down,
	},
	"an outage is permanent": {
		verdict: func(_ string, err error) error {
			if relay.IsUnavailable(err) {
				return relay.Permanent(errors.New("no connection"))
			}
			return err
		},
		fails:   append([]string{"Order/AcrossOutage"}, down...),
		touched: "Outage/KilledInMidPublish",
	},
	"never connects again": {
		neverDials: true,
		fails: []string{
			"Outage/RecoversByItself", "Network/CutIsRepaired", "Network/HalfOpenIsNoticed", "Network/HalfClosedIsNoticed", "Order/AcrossOutage",
		},
		touched: "Outage/.*|Network/.*|Order/.*|Slow/.*|Accept/AckedIsDurable|Duplicate/ArrivesOnce|Concurrent/.*|Close/.*",
	},
	"waits past the context": {
		noDeadline: true,
		fails:      append([]string{"Order/AcrossStall", "Network/HalfOpenIsNoticed"}, stall...),
	},
	"keeps a dead connection": {
		keepsDead: true,
		fails:     append([]string{"Order/AcrossStall", "Network/HalfOpenIsNoticed"}, stall...),
		touched:   "Network/.*|Order/.*",
	},
	"drops headers that are not ASCII": {
		message: func(m *relay.Message) {
			m.Headers = maps.Clone(m.Headers)
			maps.DeleteFunc(m.Headers, func(_, v string) bool { return strings.ContainsFunc(v, func(r rune) bool { return r > 0x7e }) })
		},
		fails: []string{"Header/TextSurvives", "Header/DefaultLimitFits", "Header/ControlsSurviveOrAreRefused"},
	},
	"line breaks become spaces": {
		message: func(m *relay.Message) {
			m.Headers = maps.Clone(m.Headers)
			for name, v := range m.Headers {
				m.Headers[name] = strings.NewReplacer("\r", " ", "\n", " ").Replace(v)
			}
		},
		fails: []string{"Header/ControlsSurviveOrAreRefused"},
	},
	"header names are folded": {
		message: func(m *relay.Message) {
			folded := make(map[string]string)
			for name, v := range m.Headers {
				folded[strings.ToLower(name)] = v
			}
			m.Headers = folded
		},
		fails: []string{"Accept/EverythingArrives", "Header/TextSurvives", "Header/ControlsSurviveOrAreRefused"},
	},
	"large headers are cut": {
		message: func(m *relay.Message) {
			m.Headers = maps.Clone(m.Headers)
			for name, v := range m.Headers {
				m.Headers[name] = v[:min(len(v), 1000)]
			}
		},
		fails: []string{"Header/DefaultLimitFits"},
	},
	"the content type is lost": {
		message: func(m *relay.Message) { m.ContentType = "application/json" },
		fails:   []string{"Accept/EverythingArrives"},
		touched: "Accept/PayloadIsExact|Slow/.*|Accept/NilIsNotEmpty|Order/.*",
	},
	"keys are folded": {foldsKeys: true, fails: []string{"Accept/KeysAreExact"}},
	"payloads are trimmed": {
		trims: true,
		fails: []string{"Accept/PayloadIsExact"},
	},
	"nil is empty": {nilIsEmpty: true, fails: []string{"Accept/NilIsNotEmpty"}},
	"a duplicate is an error": {
		repeats: true,
		fails:   []string{"Duplicate/IsSuccess", "Duplicate/ArrivesOnce", "Duplicate/ReplayGetsThrough"},
		// Whatever is tried again that was there already.
		touched: "Outage/.*|Network/.*|Order/.*|Slow/.*",
	},
	"a replay is a duplicate": {forgetful: true, fails: []string{"Duplicate/ReplayGetsThrough"}},
	"changes messages":        {scribbles: true, fails: []string{"Concurrent/MessagesAreLeftAlone"}, touched: ".*"},
	"loses under load":        {busyLoses: true, fails: []string{"Concurrent/ManyCallers"}},
	"accepts when closed": {
		closedTakes: true,
		fails:       []string{"Close/AcceptsNothingAfterwards"},
		touched:     "Close/DuringPublish",
	},
	"shows the secret": {
		sentence: "connect as app:hunter2: ",
		fails:    slices.Concat(alone, []string{"Refuse/TooLarge", "Refuse/UnknownTopic", "Outage/DownIsUnavailable", "Outage/DownAtTheStart"}),
		touched:  ".*",
	},
}

// TestBrokenPublishersAreFound runs the suite against publishers and brokers
// that break a promise on purpose: exactly the scenarios that name it must
// fail. Most of the time is spent waiting for what does not happen; without
// OUTBOX_FULL=1 in the environment only those scenarios are run.
func TestBrokenPublishersAreFound(t *testing.T) {
	t.Parallel()
	results := make(map[string][]publishtest.Result)
	var mu sync.Mutex
	var all sync.WaitGroup
	full := os.Getenv("OUTBOX_FULL") != ""
	for name, b := range breaches { // not as parallel tests, of which few run at a time: they wait
		all.Go(func() {
			match, patience := only(b.fails...), time.Second
			if full {
				match, patience = nil, 3*time.Second
			}
			r, err := publishtest.Check(t.Context(), target(t, b, patience), match)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			mu.Lock()
			defer mu.Unlock()
			results[name] = r
		})
	}
	all.Wait()
	for name, b := range breaches {
		t.Run(name, func(t *testing.T) {
			failed := make(map[string]publishtest.Result)
			var took time.Duration
			for _, r := range results[name] {
				took += r.Took
				switch r.Status {
				case publishtest.Failed:
					failed[r.Name] = r
				case publishtest.Skipped:
					t.Errorf("%s was skipped: %s", r.Name, r.Reason)
				case publishtest.Passed, publishtest.Known:
				}
			}
			t.Log(took.Round(time.Millisecond))
			for _, must := range b.fails {
				if _, ok := failed[must]; !ok {
					t.Errorf("%s did not fail", must)
				}
				delete(failed, must)
			}
			touched := regexp.MustCompile("^(" + b.touched + ")$")
			for _, r := range failed {
				if touched.MatchString(r.Name) {
					continue
				}
				// What fails on a busy machine for want of time does not fail alone.
				again, err := publishtest.Check(t.Context(), target(t, b, time.Minute), only(r.Name))
				if err != nil {
					t.Fatal(err)
				}
				if again[0].Status == publishtest.Failed {
					t.Errorf("%s failed, which does not name what is broken: %s", r.Name, again[0].Got)
				}
			}
		})
	}
}

// only matches these names.
func only(names ...string) *regexp.Regexp {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = regexp.QuoteMeta(n)
	}
	return regexp.MustCompile("^(" + strings.Join(quoted, "|") + ")$")
}

func TestRun(t *testing.T) {
	t.Parallel()
	publishtest.Run(t, target(t, breach{}, time.Minute))
}

// Names are what people rerun and write into Known: unique, and of two parts.
func TestScenarios(t *testing.T) {
	seen := make(map[string]bool)
	for _, s := range publishtest.Scenarios() {
		if area, what, ok := strings.Cut(s.Name, "/"); !ok || area == "" || what == "" || strings.Contains(what, "/") || seen[s.Name] {
			t.Errorf("name %q is not a new Area/WhatHolds", s.Name)
		}
		seen[s.Name] = true
		if s.Promise == "" || strings.HasSuffix(s.Promise, ".") {
			t.Errorf("%s: promise %q is no sentence without its full stop", s.Name, s.Promise)
		}
	}
}

// A target that offers little is told what it misses; Known inverts a scenario.
func TestSkipsAndKnown(t *testing.T) {
	full := target(t, breach{nilIsEmpty: true}, time.Minute)
	full.Known = map[string]string{"Accept/NilIsNotEmpty": "issue 9", "Accept/PayloadIsExact": "issue 10"}
	match := regexp.MustCompile("^Accept/(Nil|Payload)")
	results, err := publishtest.Check(t.Context(), full, match)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		want := map[string]publishtest.Status{"Accept/NilIsNotEmpty": publishtest.Known, "Accept/PayloadIsExact": publishtest.Failed}[r.Name]
		if r.Status != want {
			t.Errorf("%s: %s, want %s", r.Name, r.Status, want)
		}
	}
	bare := publishtest.Target{New: full.New, Topic: full.Topic, Consume: full.Consume}
	results, err = publishtest.Check(t.Context(), bare, regexp.MustCompile("^(Outage|Slow|Network|Refuse)/|/NilIs|/ArrivesOnce"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Status != publishtest.Skipped || !strings.Contains(r.Reason, "Target.") {
			t.Errorf("%s: %s %q, want it skipped and the hook named", r.Name, r.Status, r.Reason)
		}
	}
	if _, err := publishtest.Check(t.Context(), publishtest.Target{}, nil); err == nil {
		t.Error("an empty target is accepted")
	}
	bare.Known = map[string]string{"Accept/Nothing": "x"}
	if _, err := publishtest.Check(t.Context(), bare, nil); err == nil {
		t.Error("a Known that names no scenario is accepted")
	}
}

// target is a broker of its own, and a publisher to it.
func target(t *testing.T, b breach, patience time.Duration) publishtest.Target {
	t.Helper()
	k := &broker{breach: b, topics: make(map[string][]publishtest.Received), seen: make(map[string]bool)}
	if err := k.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.kill)
	open := func(_ context.Context, addr string) (relay.Publisher, error) {
		return &publisher{breach: b, addr: addr, open: make(map[net.Conn]bool)}, nil
	}
	return publishtest.Target{
		New:     func(ctx context.Context) (relay.Publisher, error) { return open(ctx, k.addr) },
		Topic:   func(context.Context) (string, error) { return k.topic(), nil },
		Consume: k.consume,
		Kill:    func(context.Context) error { k.kill(); return nil },
		Start:   k.start,
		Pause:   func(context.Context) error { k.pause.Lock(); return nil },
		Resume:  func(context.Context) error { k.pause.Unlock(); return nil },
		Network: &publishtest.Network{Address: k.addr, New: open},

		TooLarge: maxPayload + 1, Unknown: "nowhere", Remedy: "make it", Unroutable: "astray",
		Deduplicates: true, KeepsNil: true, Secret: "hunter2",
		Patience: patience,
	}
}

const maxPayload = 1 << 20

// request and answer are what travels.
type request struct {
	Received publishtest.Received
	NoData   bool // gob makes no difference between nil and empty
}

type answer struct{ Error string }

// broker is a small one with a network. What it holds survives kill.
type broker struct {
	breach
	addr  string
	pause sync.RWMutex // held while it stands still

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
	topics   map[string][]publishtest.Received
	seen     map[string]bool
	fresh    []publishtest.Received // not durable yet
	serial   int
}

func (k *broker) start(ctx context.Context) error {
	addr := k.addr
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.listener, k.addr, k.conns = l, l.Addr().String(), make(map[net.Conn]bool)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			k.mu.Lock()
			if k.listener != l {
				k.mu.Unlock()
				_ = c.Close()
				return
			}
			k.conns[c] = true
			k.mu.Unlock()
			go k.serve(c)
		}
	}()
	return nil
}

func (k *broker) kill() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.listener == nil {
		return
	}
	_ = k.listener.Close()
	k.listener = nil
	for c := range k.conns {
		_ = c.Close()
	}
	for _, m := range k.fresh {
		delete(k.seen, fmt.Sprint(m.ID, m.Replay))
	}
	k.fresh = nil
}

func (k *broker) topic() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.serial++
	topic := fmt.Sprintf("topic-%d", k.serial)
	k.topics[topic] = nil
	return topic
}

func (k *broker) consume(_ context.Context, topic string) ([]publishtest.Received, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.listener == nil {
		return nil, errors.New("the broker is down")
	}
	return slices.Clone(k.topics[topic]), nil
}

func (k *broker) serve(c net.Conn) {
	defer c.Close()
	dec, enc := gob.NewDecoder(c), gob.NewEncoder(c)
	for {
		var r request
		if dec.Decode(&r) != nil {
			return
		}
		k.pause.RLock()
		k.mu.Lock()
		var a answer
		if !k.conns[c] || k.listener == nil {
			k.mu.Unlock()
			k.pause.RUnlock()
			return
		}
		a.Error = k.take(&r)
		k.mu.Unlock()
		k.pause.RUnlock()
		if enc.Encode(a) != nil {
			return
		}
	}
}

// take stores a message and returns why not.
func (k *broker) take(r *request) string {
	m := &r.Received
	switch {
	case r.NoData && k.nilIsEmpty:
		m.Payload = []byte{}
	case r.NoData:
		m.Payload = nil
	case m.Payload == nil:
		m.Payload = []byte{}
	}
	if k.foldsKeys {
		m.Key = strings.ToLower(m.Key)
	}
	if k.trims && m.Payload != nil {
		m.Payload = []byte(strings.TrimSpace(string(m.Payload)))
	}
	held, known := k.topics[m.Topic]
	id := fmt.Sprint(m.ID, m.Replay)
	if k.forgetful {
		id = m.ID.String()
	}
	switch {
	case m.Topic == "astray":
		return "unroutable"
	case !known:
		return "no destination"
	case len(m.Payload) > maxPayload:
		return "too large"
	case k.seen[id] && k.repeats:
		return "duplicate"
	case k.seen[id]:
		return ""
	}
	k.seen[id] = true
	if k.lazy {
		k.fresh = append(k.fresh, *m)
		time.AfterFunc(100*time.Millisecond, func() { // a kill comes sooner
			k.mu.Lock()
			defer k.mu.Unlock()
			for _, m := range k.fresh {
				k.topics[m.Topic] = append(k.topics[m.Topic], m)
			}
			k.fresh = nil
		})
		return ""
	}
	k.topics[m.Topic] = append(held, *m)
	if n := len(held); k.shuffled && n > 0 && n%5 == 0 && held[n-1].Key == m.Key || k.shuffled && n%10 == 9 {
		for i := n - 1; i >= 0; i-- { // before the last of its key
			if held[i].Key == m.Key && m.Key != "" {
				all := k.topics[m.Topic]
				all[i], all[n] = all[n], all[i]
				break
			}
		}
	}
	return ""
}

// publisher is a sound one, but for its breach.
type publisher struct {
	breach
	addr string

	mu     sync.Mutex
	closed bool
	idle   []*conn
	open   map[net.Conn]bool
	dialed bool
	busy   int
}

type conn struct {
	net.Conn
	enc *gob.Encoder
	dec *gob.Decoder
}

func (p *publisher) KeepsOrder() bool { return true }

func (p *publisher) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for c := range p.open {
		_ = c.Close()
	}
	return nil
}

var errClosed = errors.New("publisher is closed")

// conn is an idle connection or a new one.
func (p *publisher) conn(ctx context.Context) (*conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed
	}
	if n := len(p.idle); n > 0 {
		c := p.idle[n-1]
		p.idle = p.idle[:n-1]
		return c, nil
	}
	if p.neverDials && p.dialed {
		return nil, relay.Unavailable(errors.New("no connection"))
	}
	p.dialed = true
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.addr)
	if err != nil {
		return nil, relay.Unavailable(err)
	}
	p.open[c] = true
	return &conn{Conn: c, enc: gob.NewEncoder(c), dec: gob.NewDecoder(c)}, nil
}

func (p *publisher) release(c *conn, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil && (!p.keepsDead || !errors.Is(err, os.ErrDeadlineExceeded)) {
		delete(p.open, c.Conn)
		_ = c.Close()
		return
	}
	p.idle = append(p.idle, c)
}

func (p *publisher) Publish(ctx context.Context, ms []relay.Message) []error {
	p.mu.Lock()
	p.busy++
	busy, closed := p.busy, p.closed
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.busy--
		p.mu.Unlock()
	}()
	if p.busyLoses && busy > 8 || p.closedTakes && closed {
		return nil
	}
	errs := make([]error, len(ms))
	bad := make(map[string]bool)
	var c *conn
	var broken error
	for i := range ms {
		m := ms[i]
		if p.scribbles {
			ms[i].Headers["published"] = "yes"
		}
		switch {
		case bad[m.Key] && m.HasKey() && !p.goesOn:
			errs[i] = errors.New("one before it failed")
		case broken != nil && !p.goesOn:
			errs[i] = broken
		default:
			errs[i] = p.one(ctx, &c, m)
			if errs[i] != nil && !relay.IsPermanent(errs[i]) {
				broken = errs[i]
			}
		}
		bad[m.Key] = bad[m.Key] || errs[i] != nil
	}
	if c != nil {
		p.release(c, nil)
	}
	for i, err := range errs {
		if err != nil && p.sentence != "" {
			errs[i] = fmt.Errorf("%s%w", p.sentence, err)
		}
		if p.verdict != nil {
			errs[i] = p.verdict(ms[i].Topic, err)
		}
		if p.swallows {
			errs[i] = nil
		}
	}
	if p.results != nil {
		p.results(errs)
	}
	if p.miscounts && len(errs) > 1 {
		return errs[1:]
	}
	return errs
}

// one publishes a message over *c, which it makes and gives up as needed.
func (p *publisher) one(ctx context.Context, c **conn, m relay.Message) error {
	if *c == nil {
		made, err := p.conn(ctx)
		if err != nil {
			return err
		}
		*c = made
	}
	if p.message != nil {
		p.message(&m)
	}
	if !p.noDeadline {
		it := *c
		stop := context.AfterFunc(ctx, func() { _ = it.SetDeadline(time.Unix(1, 0)) })
		defer stop()
	}
	var a answer
	err := (*c).enc.Encode(request{publishtest.Received{Message: m.Message, Replay: m.Replay}, m.Payload == nil})
	if err == nil {
		err = (*c).dec.Decode(&a)
	}
	if err != nil {
		p.release(*c, err)
		*c = nil
		return err
	}
	switch a.Error {
	case "":
		return nil
	case "no destination":
		return relay.Permanent(fmt.Errorf("topic %s has no destination: make it", m.Topic))
	case "duplicate":
		return errors.New(a.Error)
	default:
		return relay.Permanent(errors.New(a.Error))
	}
}
