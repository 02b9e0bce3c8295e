package relay

import (
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
)

// suspects are messages for which the broker was unavailable while others got
// through: a message that makes its broker break the connection must not pass
// for an outage for ever.
type suspects struct {
	accepted atomic.Int64 // messages accepted by the broker so far
	any      atomic.Bool

	mu   sync.Mutex
	list map[uuid.UUID]suspect
}

type suspect struct {
	strikes  int
	accepted int64 // at the last strike
}

const (
	// strikesOut is how often others must have got through in between.
	strikesOut = 3
	// mostSuspects bounds the list; in an outage there are none to remember.
	mostSuspects = 10_000
)

// strike notes that the broker was unavailable for the message and tells
// whether that is to be held against the message.
func (s *suspects) strike(id uuid.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.list == nil || len(s.list) >= mostSuspects {
		s.list = make(map[uuid.UUID]suspect)
	}
	now := s.accepted.Load()
	was, known := s.list[id]
	if known && now > was.accepted {
		was.strikes++
	}
	was.accepted = now
	s.list[id] = was
	s.any.Store(true)
	return was.strikes >= strikesOut
}

// clear notes messages that the broker has accepted.
func (s *suspects) clear(items []*item) {
	s.accepted.Add(int64(len(items)))
	if !s.any.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, it := range items {
		delete(s.list, it.row.ID)
	}
	s.any.Store(len(s.list) > 0)
}
