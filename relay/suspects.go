package relay

import (
	"sync"

	"github.com/google/uuid"
)

// suspects are messages for which the broker was unavailable while others got
// through: a message that makes its broker break the connection must not pass
// for an outage for ever.
type suspects struct {
	mu       sync.Mutex
	accepted map[string]int64 // messages that a destination has accepted so far
	list     map[uuid.UUID]suspect
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
		s.list = make(map[uuid.UUID]suspect)
	}
	now := s.accepted[destination]
	was, known := s.list[id]
	if known && now > was.accepted {
		was.strikes++
	}
	was.accepted = now
	s.list[id] = was
	return was.strikes >= strikesOut
}

// clear notes a message that the destination has accepted.
func (s *suspects) clear(destination string, id uuid.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.accepted == nil {
		s.accepted = make(map[string]int64)
	}
	s.accepted[destination]++
	delete(s.list, id)
}
