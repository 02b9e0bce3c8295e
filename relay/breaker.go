package relay

import (
	"sync"
	"time"
)

// breakers keeps destinations that failed as a whole from being tried by every
// worker: after a failure a destination is left alone for a pause that doubles,
// then one worker probes it.
type breakers struct {
	least, most time.Duration
	observer    Observer
	topics      bool // what they are of are topics

	mu   sync.Mutex
	open map[string]*breaker
}

type breaker struct {
	failures int
	until    time.Time
	probing  bool
}

func newBreakers(c Config) *breakers {
	return &breakers{least: c.BreakerMin, most: c.BreakerMax, observer: c.Observer, open: make(map[string]*breaker)}
}

// allow tells whether the destination may be tried now, and whether this try is
// the probe, whose outcome the caller must report by fail, succeed or forgo.
// Otherwise it tells how long to wait.
func (b *breakers) allow(destination string) (ok, probe bool, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	br := b.open[destination]
	if br == nil {
		return true, false, 0
	}
	if wait := time.Until(br.until); wait > 0 {
		return false, false, wait
	}
	if br.probing {
		return false, false, b.least
	}
	br.probing = true
	return true, true, 0
}

// wait is how long the destination is left alone, without asking for a probe.
func (b *breakers) wait(destination string) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if br := b.open[destination]; br != nil {
		return max(time.Until(br.until), b.least)
	}
	return 0
}

// fail opens the breaker. Failures of calls that began before it opened do not
// count again.
func (b *breakers) fail(destination string, began time.Time, err error) {
	b.mu.Lock()
	br := b.open[destination]
	if br != nil && !br.probing && began.Before(br.until) {
		b.mu.Unlock()
		return
	}
	if br == nil {
		br = &breaker{}
		b.open[destination] = br
	}
	br.failures++
	br.probing = false
	wait := jitter(ceiling(br.failures, b.least, b.most))
	br.until = time.Now().Add(wait)
	b.mu.Unlock()
	if b.topics {
		b.observer.Observe(BreakerOpened{Topic: destination, Wait: wait, Err: err})
		return
	}
	b.observer.Observe(BreakerOpened{Destination: destination, Wait: wait, Err: err})
}

// succeed closes the breaker.
func (b *breakers) succeed(destination string) {
	b.mu.Lock()
	_, was := b.open[destination]
	delete(b.open, destination)
	b.mu.Unlock()
	switch {
	case was && b.topics:
		b.observer.Observe(BreakerClosed{Topic: destination})
	case was:
		b.observer.Observe(BreakerClosed{Destination: destination})
	}
}

// forgo gives a probe back that came to no outcome.
func (b *breakers) forgo(destination string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if br := b.open[destination]; br != nil {
		br.probing = false
	}
}
