package relay

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"
)

// OnDead says what becomes of a key whose message is dead.
type OnDead int

const (
	// HoldKey holds newer messages of the key back until an operator requeues
	// or discards the dead one, so that order is kept. The default.
	HoldKey OnDead = iota
	// PassKey lets newer messages of the key pass.
	PassKey
)

// NoRetention is a Config.Retention that keeps nothing of what was published.
const NoRetention time.Duration = -1

// Config configures a [Relay]. The zero value works.
type Config struct {
	// Owner names the relay in the lane table. It must be unique among running
	// relays. Default: host name, process id and a random suffix.
	Owner string
	// Workers is how many lanes are read and published from at a time. The last settle
	// of a lane that was emptied needs none. Default: 4.
	Workers int
	// Batch is the most messages read and settled at a time. Default: 500.
	Batch int
	// BatchBytes bounds a batch by the size of its payloads and headers.
	// Default: 16 MiB.
	BatchBytes int64
	// Lease is how long a lane stays with a relay that no longer renews, and so
	// how long its messages wait after a crash. A lane that was emptied a moment ago
	// (PollMax, at most a third of the lease) counts among its lanes. At least 1s.
	// Default: 15s.
	Lease time.Duration
	// Turn is how long a relay keeps a lane that does not get empty before it
	// gives others a chance. Default: 2s.
	Turn time.Duration
	// PollMin and PollMax bound the pause between polls that find nothing: it
	// starts at PollMin and doubles up to PollMax, jittered. After a poll that took 5ms or
	// more it is at least ten times as long, up to 250ms. Defaults: 25ms, 1s.
	PollMin, PollMax time.Duration
	// Listen wakes the relay by the engine's signals (see outbox.Config.Notify)
	// on a connection of its own. Default: false.
	Listen bool
	// PublishTimeout bounds one call of the publisher. Default: 10s.
	PublishTimeout time.Duration
	// PublishConcurrency is the most calls of the publisher under way at a time,
	// per worker. Default: 32. A publisher that keeps order gets one at a time.
	PublishConcurrency int
	// PublishSize is the most messages in one call of the publisher.
	// Default: 500.
	PublishSize int
	// MaxAttempts is after how many failed attempts a message is dead.
	// Default: 20.
	MaxAttempts int
	// RetryMin and RetryMax shape the delay before the next attempt: random
	// between 0 and a ceiling that starts at RetryMin, doubles with every
	// attempt and stops at RetryMax, counted from the failure. A broker may ask
	// for more, see [RetryAfter], up to RetryMax. Defaults: 1s, 5m.
	RetryMin, RetryMax time.Duration
	// BreakerMin and BreakerMax bound the pause before an unavailable
	// destination is tried again: it doubles from one to the other, jittered.
	// Defaults: 500ms, 30s.
	BreakerMin, BreakerMax time.Duration
	// OnDead says what becomes of a key whose message is dead. Default: HoldKey.
	OnDead OnDead
	// Retention is how long published messages stay in done, for replays and
	// for questions. [NoRetention] deletes them on settle. Default: 24h.
	Retention time.Duration
	// PurgeEvery is how often done messages past the retention are purged, by
	// one relay of all. Default: 1m.
	PurgeEvery time.Duration
	// Grace is how long a stop waits for publishes under way before it cancels
	// them. Default: 10s.
	Grace time.Duration
	// UntilEmpty ends Run when nothing is ready or due in any lane: what another
	// relay is publishing is, until it is settled. Parked messages that are not due
	// do not keep it. Default: false.
	UntilEmpty bool
	// Observer is told what happens. Default: none.
	Observer Observer
}

func (c Config) withDefaults() (Config, error) {
	var errs []error
	number := func(name string, v *int, def int) {
		if *v == 0 {
			*v = def
		}
		if *v < 0 {
			errs = append(errs, fmt.Errorf("%s is %d: give a number above 0", name, *v))
		}
	}
	duration := func(name string, v *time.Duration, def, least time.Duration) {
		if *v == 0 {
			*v = def
		}
		if *v < least {
			errs = append(errs, fmt.Errorf("%s is %v: give at least %v", name, *v, least))
		}
	}
	number("workers", &c.Workers, 4)
	number("batch", &c.Batch, 500)
	number("publish concurrency", &c.PublishConcurrency, 32)
	number("publish size", &c.PublishSize, 500)
	number("max attempts", &c.MaxAttempts, 20)
	if c.BatchBytes == 0 {
		c.BatchBytes = 16 << 20
	}
	if c.BatchBytes < 0 {
		errs = append(errs, fmt.Errorf("batch bytes is %d: give a number above 0", c.BatchBytes))
	}
	duration("lease", &c.Lease, 15*time.Second, time.Second)
	duration("turn", &c.Turn, 2*time.Second, time.Millisecond)
	duration("poll min", &c.PollMin, 25*time.Millisecond, time.Millisecond)
	duration("poll max", &c.PollMax, time.Second, c.PollMin)
	duration("publish timeout", &c.PublishTimeout, 10*time.Second, time.Millisecond)
	duration("retry min", &c.RetryMin, time.Second, time.Millisecond)
	duration("retry max", &c.RetryMax, 5*time.Minute, c.RetryMin)
	duration("breaker min", &c.BreakerMin, 500*time.Millisecond, time.Millisecond)
	duration("breaker max", &c.BreakerMax, 30*time.Second, c.BreakerMin)
	duration("purge every", &c.PurgeEvery, time.Minute, time.Second)
	duration("grace", &c.Grace, 10*time.Second, time.Millisecond)
	if c.Retention == 0 {
		c.Retention = 24 * time.Hour
	}
	if c.Retention < 0 && c.Retention != NoRetention {
		errs = append(errs, fmt.Errorf("retention is %v: give a duration above 0, or NoRetention to keep nothing", c.Retention))
	}
	if c.OnDead != HoldKey && c.OnDead != PassKey {
		errs = append(errs, fmt.Errorf("on dead is %d: use HoldKey or PassKey", c.OnDead))
	}
	if c.Owner == "" {
		host, _ := os.Hostname() // a missing host name only makes the owner less telling
		c.Owner = fmt.Sprintf("%.64s-%d-%08x", host, os.Getpid(), rand.Uint32())
	}
	if len(c.Owner) > maxOwner {
		errs = append(errs, fmt.Errorf("owner has %d bytes: shorten it to %d", len(c.Owner), maxOwner))
	}
	if c.Observer == nil {
		c.Observer = ObserverFunc(func(Event) {})
	}
	return c, errors.Join(errs...)
}

// keep is how long a lane that was emptied stays with the relay: long enough for the next
// poll, and short enough that the lease need not be renewed.
func (c *Config) keep() time.Duration { return min(c.PollMax, c.Lease/3) }

// maxOwner is the width of the owner column.
const maxOwner = 128

// ceiling doubles least n-1 times, up to most.
func ceiling(n int, least, most time.Duration) time.Duration {
	d := least
	for ; n > 1 && d < most; n-- {
		d *= 2
	}
	return min(d, most)
}

// retryDelay is the delay after the nth failed attempt: full jitter below the
// ceiling, so that a fleet's retries spread out.
func retryDelay(n int, least, most time.Duration) time.Duration {
	return rand.N(ceiling(n, least, most)) + time.Millisecond
}

// jitter is d, give or take a quarter.
func jitter(d time.Duration) time.Duration {
	return d*3/4 + rand.N(d/2+1)
}
