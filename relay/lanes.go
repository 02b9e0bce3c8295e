package relay

import (
	"math"
	"sync"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// lease is a lane of this relay.
type lease struct {
	dialect.Lease
	// until is when it ends unless it is renewed, by this process's monotonic clock,
	// counted from before the database was asked.
	until time.Time
	// since is when it was claimed, and published what was accepted since then.
	since     time.Time
	published int
	// idle is when the last turn in it ended, while it is kept.
	idle time.Time
	// floor is above which ready messages are looked for, and due tells that a
	// parked one is due, both as of the poll.
	floor int64
	due   bool
}

// lanes are those that a relay has to do with. A lane that a turn has emptied is kept
// for a while: the next message there costs a poll and a settle, and neither a claim
// nor a release, each of which is a commit.
type lanes struct {
	mu    sync.Mutex
	busy  map[int]bool  // a turn, a claim or a release is under way
	kept  map[int]lease // ours, with nothing to do when last seen
	ended map[int]int64 // the moment when somebody was last done with the lane
	now   int64         // moments are counted, since clocks stand still at times
	rests map[int]rest  // those left alone after a turn that failed
	miss  bool          // a busy lane had work by a poll
}

// rest is how long a lane is left alone after failures in a row.
type rest struct {
	failures int
	until    time.Time
}

func newLanes() *lanes {
	return &lanes{
		busy: make(map[int]bool), kept: make(map[int]lease),
		ended: make(map[int]int64), rests: make(map[int]rest),
	}
}

// held counts the lanes that are ours or may soon be.
func (l *lanes) held() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.busy) + len(l.kept)
}

// moment is later than what was, and not later than what will be.
func (l *lanes) moment() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now++
	return l.now
}

// take makes the lane a busy one; false if it is, if it rests, or if somebody was done
// with it after the moment before the poll that saw work in it: that work may be done.
// kept tells that the lane is held already, by the lease returned, which is good for at
// least least; one that is not is left to be given back.
func (l *lanes) take(lane int, polled int64, least time.Duration) (held lease, kept, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.miss = l.miss || l.busy[lane]
	if l.busy[lane] || now.Before(l.rests[lane].until) || l.ended[lane] > polled {
		return lease{}, false, false
	}
	held, kept = l.kept[lane]
	if kept && held.until.Sub(now) < least {
		return lease{}, false, false
	}
	delete(l.kept, lane)
	l.busy[lane] = true
	return held, kept, true
}

// missed tells whether a lane was asked for, since the last call, that was busy.
func (l *lanes) missed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	miss := l.miss
	l.miss = false
	return miss
}

// end makes a busy lane one that nobody is busy with.
func (l *lanes) end(lane int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done(lane)
}

func (l *lanes) done(lane int) {
	delete(l.busy, lane)
	l.now++
	l.ended[lane] = l.now
}

// keep makes a busy lane a kept one.
func (l *lanes) keep(held lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held.idle = time.Now()
	l.kept[held.Lane] = held
	l.done(held.Lane)
}

// stale makes the kept lanes busy that were idle for longer than most, and returns
// them, to be given back.
func (l *lanes) stale(most time.Duration) (stale []lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for lane, held := range l.kept {
		if time.Since(held.idle) >= most {
			delete(l.kept, lane)
			l.busy[lane] = true
			stale = append(stale, held)
		}
	}
	return stale
}

// shake has all kept lanes given back: the next server may be another one.
func (l *lanes) shake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for lane, held := range l.kept {
		held.idle = time.Time{}
		l.kept[lane] = held
	}
}

// next is when the first kept lane is idle for most.
func (l *lanes) next(most time.Duration) (left time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	left = math.MaxInt64
	for _, held := range l.kept {
		left = min(left, max(0, most-time.Since(held.idle)))
	}
	return left, len(l.kept) > 0
}

// rest leaves a lane alone for a pause that grows from least up to most with the turns
// in a row that came to nothing; most 0 forgets them. Otherwise a lane that cannot be
// read, or whose work cannot be done yet, would be claimed again at once, for ever.
func (l *lanes) rest(lane int, least, most time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if most == 0 {
		delete(l.rests, lane)
		return
	}
	n := l.rests[lane].failures + 1
	l.rests[lane] = rest{failures: n, until: time.Now().Add(jitter(ceiling(n, least, most)))}
}

// restMost is the longest rest of a lane that failed.
const restMost = 5 * time.Second
