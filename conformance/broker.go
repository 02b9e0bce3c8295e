package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox/relay"
)

// broker is where all relays of a scenario publish, those in child processes
// too: what it accepts is in one order. It can be told to misbehave by rules.
type broker struct {
	mu    sync.Mutex
	log   []accepted
	times map[uuid.UUID]int // accepted, by id
	tries map[uuid.UUID]int // tried, by id
	rules []*rule           // the newest last
	// unsettled are messages accepted from a relay in a lane since it last
	// settled there: those that a fault of the relay may repeat.
	unsettled map[string]map[int][]uuid.UUID
	// faulty relays died or were cut off: what they had unsettled may repeat.
	faulty map[string]bool
	may    map[uuid.UUID]int
	// inTry are the relays that have messages of a key under way; overlaps are keys
	// that had two at the same moment, which only a fault of one of the relays
	// explains.
	inTry    map[string][]string
	overlaps []overlap
	faults   map[string]bool
}

// overlap is two publishes of one key at the same moment.
type overlap struct {
	relays []string
	what   string
}

func newBroker() *broker {
	return &broker{
		times: make(map[uuid.UUID]int), tries: make(map[uuid.UUID]int),
		unsettled: make(map[string]map[int][]uuid.UUID), faulty: make(map[string]bool),
		may: make(map[uuid.UUID]int), inTry: make(map[string][]string), faults: make(map[string]bool),
	}
}

// call is one message on its way to the broker.
type call struct {
	ctx     context.Context //nolint:containedctx // of this call
	relay   string
	message *relay.Message
	// accept takes the message: from now on the broker has it.
	accept func()
}

// reaction is what the broker does with a message: it calls accept or not, and
// what it returns is what the relay is told.
type reaction func(c *call) error

// acceptIt is how a broker in good health reacts.
func acceptIt(c *call) error {
	c.accept()
	return nil
}

// loseAnswer accepts the message and tells the relay that it went wrong.
func loseAnswer(c *call) error {
	c.accept()
	return errors.New("broker: the answer was lost")
}

// refuse tells the relay err; wrap it with relay.Permanent or Unavailable.
func refuse(err error) reaction { return func(*call) error { return err } }

// hang does nothing until the relay gives up.
func hang(c *call) error {
	<-c.ctx.Done()
	return context.Cause(c.ctx)
}

// after waits until the gate is open or the relay gives up, then reacts.
func after(g *gate, then reaction) reaction {
	return func(c *call) error {
		g.pass(c.ctx)
		return then(c)
	}
}

// match selects messages.
type match func(m *relay.Message) bool

func anyMessage(*relay.Message) bool { return true }

func ofTopic(topic string) match { return func(m *relay.Message) bool { return m.Topic == topic } }

func ofKey(key string) match { return func(m *relay.Message) bool { return m.Key == key } }

func ofID(ids ...uuid.UUID) match {
	return func(m *relay.Message) bool { return slices.Contains(ids, m.ID) }
}

// rule is a reaction for some messages.
type rule struct {
	b     *broker
	match match
	react reaction
	left  int // how often it still applies; below 0 without end
	hits  int
}

// when makes the broker react to the messages that match; the newest rule that
// matches counts. It applies until it is removed.
func (b *broker) when(m match, r reaction) *rule { return b.rule(m, r, -1) }

// first is when for the first n messages that match.
func (b *broker) first(n int, m match, r reaction) *rule { return b.rule(m, r, n) }

func (b *broker) rule(m match, r reaction, n int) *rule {
	b.mu.Lock()
	defer b.mu.Unlock()
	ru := &rule{b: b, match: m, react: r, left: n}
	b.rules = append(b.rules, ru)
	return ru
}

// remove ends the rule for messages that come from now on.
func (r *rule) remove() {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	r.left = 0
}

// seen is how many messages the rule met.
func (r *rule) seen() int {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	return r.hits
}

// publish takes what a relay hands over.
func (b *broker) publish(ctx context.Context, name string, messages []relay.Message) []error {
	errs := make([]error, len(messages))
	failed := make(map[string]bool) // keys, for a publisher that keeps order
	for i := range messages {
		m := &messages[i]
		if m.HasKey() && failed[m.Key] {
			errs[i] = errors.New("broker: an earlier message of the key failed")
			continue
		}
		errs[i] = b.one(ctx, name, m)
		if errs[i] != nil && m.HasKey() {
			failed[m.Key] = true
		}
	}
	return errs
}

func (b *broker) one(ctx context.Context, name string, m *relay.Message) error {
	b.mu.Lock()
	b.tries[m.ID]++
	if m.HasKey() {
		if b.inTry[m.Key] = append(b.inTry[m.Key], name); len(b.inTry[m.Key]) > 1 {
			b.overlaps = append(b.overlaps, overlap{
				relays: slices.Clone(b.inTry[m.Key]),
				what:   fmt.Sprintf("two publishes of key %.40q were under way at the same moment (relays %v, lane %d, epoch %d)", m.Key, b.inTry[m.Key], m.Lane, m.Epoch),
			})
		}
	}
	react := reaction(acceptIt)
	for _, r := range slices.Backward(b.rules) {
		if r.left != 0 && r.match(m) {
			r.left--
			r.hits++
			react = r.react
			break
		}
	}
	b.mu.Unlock()

	took := false
	err := react(&call{ctx: ctx, relay: name, message: m, accept: func() {
		if !took {
			took = true
			b.accept(name, m)
		}
	}})
	b.mu.Lock()
	defer b.mu.Unlock()
	if m.HasKey() {
		i := slices.Index(b.inTry[m.Key], name)
		b.inTry[m.Key] = slices.Delete(b.inTry[m.Key], i, i+1)
	}
	if took && (err != nil || ctx.Err() != nil) {
		b.may[m.ID]++ // the relay was told otherwise, or was not there to be told
	}
	return err
}

func (b *broker) accept(name string, m *relay.Message) {
	a := accepted{
		id: m.ID, key: m.Key, keyed: m.HasKey(), revision: m.Revision, sum: sumOf(&m.Message),
		replay: m.Replay, relay: name, lane: m.Lane, epoch: m.Epoch, attempt: m.Attempt,
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.log = append(b.log, a)
	b.times[m.ID]++
	if b.unsettled[name] == nil {
		b.unsettled[name] = make(map[int][]uuid.UUID)
	}
	b.unsettled[name][m.Lane] = append(b.unsettled[name][m.Lane], m.ID)
}

// settled notes that a relay recorded what it had published in a lane.
func (b *broker) settled(name string, lane int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.unsettled[name], lane)
}

// fault declares that what the relay has not settled in the lane may repeat.
func (b *broker) fault(name string, lane int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults[name] = true
	for _, id := range b.unsettled[name][lane] {
		b.may[id]++
	}
	delete(b.unsettled[name], lane)
}

// died declares that all that the relay had not settled may repeat.
func (b *broker) died(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults[name] = true
	b.faulty[name] = true
}

// unheard declares that the answer to a relay's publish comes too late, as when this
// process stood still: its messages may repeat, even before the publish is over.
func (b *broker) unheard(name string, messages []relay.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults[name] = true
	for i := range messages {
		b.may[messages[i].ID]++
	}
}

// history returns what was accepted, in order, and how often each id may repeat.
func (b *broker) history() ([]accepted, map[uuid.UUID]int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	may := maps.Clone(b.may)
	for name := range b.faulty {
		for _, ids := range b.unsettled[name] {
			for _, id := range ids {
				may[id]++
			}
		}
	}
	return slices.Clone(b.log), may
}

// overlapping returns the overlaps that no fault explains.
func (b *broker) overlapping() (all []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, o := range b.overlaps {
		if !slices.ContainsFunc(o.relays, func(name string) bool { return b.faults[name] }) {
			all = append(all, o.what)
		}
	}
	return all
}

// count is how often messages that match were accepted.
func (b *broker) count(ids ...uuid.UUID) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(ids) == 0 {
		return len(b.log)
	}
	n := 0
	for _, id := range ids {
		n += b.times[id]
	}
	return n
}

// tried is how often the message was handed over, accepted or not.
func (b *broker) tried(id uuid.UUID) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tries[id]
}

// publisher is the broker as one relay's publisher.
type publisher struct {
	b    *broker
	name string
}

// Publish implements [relay.Publisher].
func (p publisher) Publish(ctx context.Context, messages []relay.Message) []error {
	return p.b.publish(ctx, p.name, messages)
}

// orderly is a publisher that keeps order by itself.
type orderly struct{ publisher }

// KeepsOrder implements [relay.Orderer].
func (orderly) KeepsOrder() bool { return true }

// byTopic is a publisher whose topics are destinations of their own.
type byTopic struct{ publisher }

// Destination implements [relay.Destinations].
func (byTopic) Destination(topic string) string { return topic }

// gate holds back whoever comes to it until it is opened.
type gate struct {
	opened chan struct{}
	once   sync.Once
	mu     sync.Mutex
	came   int
}

func newGate() *gate { return &gate{opened: make(chan struct{})} }

// gate makes a gate that is opened at the latest when the scenario ends.
func (t *trial) gate() *gate {
	g := newGate()
	t.onStop(g.open)
	return g
}

// open lets everybody pass, now and later.
func (g *gate) open() { g.once.Do(func() { close(g.opened) }) }

// pass waits until the gate is open, or the context ends.
func (g *gate) pass(ctx context.Context) {
	g.mu.Lock()
	g.came++
	g.mu.Unlock()
	select {
	case <-g.opened:
	case <-ctx.Done():
	}
}

// waiting is how many came to the gate so far.
func (g *gate) waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.came
}
