package relay

import "time"

// Observer is told what a relay does. Observe is called from many goroutines,
// in the relay's way: it must be safe for concurrent use and return at once.
type Observer interface {
	Observe(e Event)
}

// ObserverFunc is a function as an [Observer].
type ObserverFunc func(e Event)

// Observe calls f.
func (f ObserverFunc) Observe(e Event) { f(e) }

// Observers passes every event on to each of them, in order.
func Observers(observers ...Observer) Observer {
	return ObserverFunc(func(e Event) {
		for _, o := range observers {
			o.Observe(e)
		}
	})
}

// Event is one of the event types of this package. Slices are only valid
// during the call.
type Event interface{ event() }

type (
	// Started is a relay that has found the database ready, and begins. Owner is the one
	// its leases are under.
	Started struct {
		Owner string
	}
	// Polled is a poll and the number of lanes it offered.
	Polled struct {
		Lanes int
		Took  time.Duration
	}
	// Claimed is a lane taken.
	Claimed struct {
		Lane  int
		Epoch int64
	}
	// Surfaced are scheduled messages that came due and are ready now.
	Surfaced struct {
		Lane, Messages int
	}
	// Attempted is a finished call of the publisher. Errors holds one result a
	// message.
	Attempted struct {
		Lane     int
		Messages []Message
		Errors   []error
		// Waited is how long before the call the messages were read.
		Waited time.Duration
		Took   time.Duration
	}
	// Failed is a message that was not accepted and will be tried again after
	// Delay. Counted tells whether it cost an attempt; an unavailable broker's
	// does not.
	Failed struct {
		Message
		Counted bool
		Delay   time.Duration
		Err     error
	}
	// Died is a message that is dead: it waits for an operator.
	Died struct {
		Message
		Err error
	}
	// Settled are outcomes recorded.
	Settled struct {
		Lane                          int
		Published, Held, Failed, Died int
		Took                          time.Duration
		// Latency is, for the oldest message published, the time from ready to
		// settled.
		Latency time.Duration
	}
	// SettleRetried is a settle that failed and is tried again. The messages
	// are not published again.
	SettleRetried struct {
		Lane, Try int
		Err       error
	}
	// ArchiveFailed is a settle whose messages left the outbox without being
	// kept in done: the done table needs an operator.
	ArchiveFailed struct {
		Lane, Messages int
		Err            error
	}
	// LeaseLost is a lane that another relay took or may have taken, while this one worked
	// in it or kept it. Accepted messages that were not settled will be published again by
	// the new owner.
	LeaseLost struct {
		Lane     int
		Epoch    int64
		Accepted int
	}
	// Released is a lane given back: at the end of a turn, or after it was kept for a
	// while, empty.
	Released struct {
		Lane  int
		Epoch int64
		// Published counts the messages accepted, and Took is the time, since it was
		// claimed.
		Published int
		Took      time.Duration
	}
	// BreakerOpened is a destination that is left alone for Wait, then probed.
	// The destination is empty when the publisher names none. Where Topic is set it
	// is only that topic that is left alone, because its publishes time out.
	BreakerOpened struct {
		Destination string
		Topic       string
		Wait        time.Duration
		Err         error
	}
	// BreakerClosed is a destination, or a topic, that is back.
	BreakerClosed struct {
		Destination string
		Topic       string
	}
	// Purged are done messages removed after the retention, one by one or with the
	// partition that they were in.
	Purged struct {
		Messages, Partitions int
		Took                 time.Duration
	}
	// Erred is an operation on the database that failed. The relay goes on.
	Erred struct {
		Op  string
		Err error
	}
	// Stopping is the begin of a graceful stop.
	Stopping struct{}
)

func (Started) event()       {}
func (Polled) event()        {}
func (Claimed) event()       {}
func (Surfaced) event()      {}
func (Attempted) event()     {}
func (Failed) event()        {}
func (Died) event()          {}
func (Settled) event()       {}
func (SettleRetried) event() {}
func (ArchiveFailed) event() {}
func (LeaseLost) event()     {}
func (Released) event()      {}
func (BreakerOpened) event() {}
func (BreakerClosed) event() {}
func (Purged) event()        {}
func (Erred) event()         {}
func (Stopping) event()      {}
