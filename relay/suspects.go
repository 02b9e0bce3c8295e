package relay

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// suspects are messages for which their destination was unavailable while others
// got through to it: a message that makes its broker break the connection must
// not pass for an outage for ever, nor must a topic that alone is unavailable.
type suspects struct {
	any atomic.Bool // the list is not empty

	mu   sync.Mutex
	list map[uuid.UUID]suspect
	// Messages accepted, while there are suspects.
	byTopic, byDestination map[string]int64
}

type suspect struct {
	// How often others got through between two tries: of its topic, and only of
	// other topics of its destination.
	strikes, passed int
	// Accepted at the last try.
	topic, destination int64
}

// blame says what an error that speaks of an unavailable destination is laid to.
type blame int

const (
	blameDestination blame = iota
	blameTopic
	blameMessage
)

const (
	// strikesOut is how often others must have got through in between.
	strikesOut = 3
	// mostSuspects bounds the list; in an outage there are none to remember.
	mostSuspects = 10_000
)

// strike notes that the destination was unavailable for the message, which was
// tried, and tells what that is to be held against. It is the message only where
// others of its topic got through again since the last try: other topics prove
// nothing against it, since its own may be unavailable alone, and nor does what
// got through before an outage.
func (s *suspects) strike(destination, topic string, id uuid.UUID) blame {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.list == nil || len(s.list) >= mostSuspects {
		s.list, s.byTopic, s.byDestination = make(map[uuid.UUID]suspect), make(map[string]int64), make(map[string]int64)
	}
	was, known := s.list[id]
	now := was
	now.topic, now.destination = s.byTopic[topic], s.byDestination[destination]
	to := blameDestination
	switch {
	case !known:
	case now.topic > was.topic:
		now.strikes++
		if now.strikes >= strikesOut {
			to = blameMessage
		}
	case now.destination > was.destination:
		now.passed++
		if now.passed >= strikesOut {
			to = blameTopic
		}
	}
	s.list[id] = now
	s.any.Store(true)
	return to
}

// clear notes a message that the destination has accepted.
func (s *suspects) clear(destination, topic string, id uuid.UUID) {
	if !s.any.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.list, id)
	s.byTopic[topic]++
	s.byDestination[destination]++
	s.any.Store(len(s.list) > 0)
}

// arrivals tell when a destination last accepted a message, by topic: where others get
// through, a topic that is unavailable is so alone, as one whose replicas are away.
type arrivals struct {
	mu   sync.Mutex
	last map[string]arrival // by destination
}

type arrival struct {
	topic string
	at    time.Time
	other time.Time // the last one of another topic
}

// note notes that the destination has accepted a message of the topic.
func (a *arrivals) note(destination, topic string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last == nil {
		a.last = make(map[string]arrival)
	}
	now := a.last[destination]
	if now.topic != topic {
		now.topic, now.other = topic, now.at
	}
	now.at = time.Now()
	a.last[destination] = now
}

// others tells whether the destination has accepted a message of another topic since
// then.
func (a *arrivals) others(destination, topic string, since time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	last := a.last[destination]
	if last.topic == topic {
		last.at = last.other
	}
	return !last.at.IsZero() && !last.at.Before(since)
}
