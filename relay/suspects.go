package relay

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// suspects are messages for which their destination was unavailable while others
// got through to it: a message that makes its broker break the connection must
// not pass for an outage for ever.
type suspects struct {
	any atomic.Bool // the list is not empty

	mu   sync.Mutex
	list map[uuid.UUID]suspect
	// accepted counts messages by destination, while there are suspects.
	accepted map[string]int64
}

type suspect struct {
	strikes  int
	accepted int64 // by its destination, at the last strike
}

const (
	// strikesOut is how often others must have got through in between.
	strikesOut = 3
	// mostSuspects bounds the list; in an outage there are none to remember.
	mostSuspects = 10_000
)

// strike notes that the destination was unavailable for the message, which was
// tried, and tells whether that is to be held against the message.
func (s *suspects) strike(destination string, id uuid.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.list == nil || len(s.list) >= mostSuspects {
		s.list, s.accepted = make(map[uuid.UUID]suspect), make(map[string]int64)
	}
	now := s.accepted[destination]
	was, known := s.list[id]
	if known && now > was.accepted {
		was.strikes++
	}
	was.accepted = now
	s.list[id] = was
	s.any.Store(true)
	return was.strikes >= strikesOut
}

// clear notes a message that the destination has accepted.
func (s *suspects) clear(destination string, id uuid.UUID) {
	if !s.any.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.list, id)
	s.accepted[destination]++
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
