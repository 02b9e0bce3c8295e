package relay

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/outbox-suite/outbox"
)

// Message is one attempt to publish a message. Publishers must not change it,
// nor keep it after Publish has returned unless they copy it.
type Message struct {
	outbox.Message
	// Seq is the message's place in the order of its key.
	Seq int64
	// Lane and Epoch say under which lease the attempt is made.
	Lane  int
	Epoch int64
	// Attempt counts from 1. Attempts lost to a crash are not counted.
	Attempt int
	// Replay counts how often an operator replayed the message. A publisher
	// whose broker drops duplicate ids must make it part of its duplicate id.
	Replay int
	// CreatedAt is the database's time of the enqueue, UTC.
	CreatedAt time.Time
	// Age is how long the message had been ready when it was read, by the
	// database's clock.
	Age time.Duration
}

// Publisher hands messages to a broker.
type Publisher interface {
	// Publish returns one result a message, in the same order: nil when the
	// broker has durably accepted it, otherwise why not, see [Permanent],
	// [Unavailable] and [RetryAfter]. A nil slice means that all were accepted. An unknown outcome
	// is an error: the message is published again under the same id.
	//
	// Messages of one call are of one lane and lease, and of different keys unless the
	// publisher is an [Orderer]. Calls are made concurrently. When ctx ends, by
	// Config.PublishTimeout, a lost lease or the relay's stop, Publish must
	// return soon.
	Publish(ctx context.Context, messages []Message) []error
}

// PublisherFunc is a function as a [Publisher].
type PublisherFunc func(ctx context.Context, messages []Message) []error

// Publish calls f.
func (f PublisherFunc) Publish(ctx context.Context, messages []Message) []error {
	return f(ctx, messages)
}

// Orderer is an optional interface of a [Publisher]. KeepsOrder reports that
// within one call messages of the same key reach the broker in order, and that
// when one fails no later one of its key succeeds. The relay then hands over
// whole runs instead of one message a key.
type Orderer interface {
	KeepsOrder() bool
}

// Destinations is an optional interface of a [Publisher] that serves several
// brokers. Destination names the one a topic goes to; each has a breaker of its
// own, and while one is open its messages are parked so that the others flow.
// Without it there is one destination, and while its breaker is open the relay
// stands still.
type Destinations interface {
	Destination(topic string) string
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Permanent marks err as one that no further attempt will cure: the message is
// dead at once. A nil err stays nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

// IsPermanent reports whether err was marked by [Permanent].
func IsPermanent(err error) bool {
	_, ok := errors.AsType[*permanentError](err)
	return ok
}

type unavailableError struct{ err error }

func (e *unavailableError) Error() string { return e.err.Error() }
func (e *unavailableError) Unwrap() error { return e.err }

// Unavailable marks err as a broker that cannot be reached as a whole: no
// attempt is counted against the message, and the relay waits for the broker
// with growing pauses. Where it accepts messages of other topics meanwhile, only the
// topic is left alone. A nil err stays nil.
func Unavailable(err error) error {
	if err == nil {
		return nil
	}
	return &unavailableError{err}
}

// IsUnavailable reports whether err was marked by [Unavailable].
func IsUnavailable(err error) bool {
	_, ok := errors.AsType[*unavailableError](err)
	return ok
}

type retryAfterError struct {
	err   error
	after time.Duration
}

func (e *retryAfterError) Error() string { return e.err.Error() }
func (e *retryAfterError) Unwrap() error { return e.err }

// RetryAfter marks err as one of a broker that asks to be left alone for a time:
// the message is tried again no sooner, though no later than Config.RetryMax
// says either. Only this message waits. It changes nothing for an error that is
// [Permanent], nor for one that is [Unavailable] where the publisher has a single
// destination, for then the pause is the relay's. A nil err stays nil.
func RetryAfter(err error, after time.Duration) error {
	if err == nil {
		return nil
	}
	return &retryAfterError{err, after}
}

// AskedDelay returns for how long err, marked by [RetryAfter], asks; 0 for any
// other.
func AskedDelay(err error) time.Duration {
	if e, ok := errors.AsType[*retryAfterError](err); ok {
		return max(0, e.after)
	}
	return 0
}

// PanicError is the failure of all messages of a call in which the publisher panicked.
type PanicError struct {
	// Value is what it panicked with.
	Value any
	// Stack is the goroutine's, as of the panic.
	Stack []byte
}

// Error returns the value's text, without the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("publisher panicked: %v", e.Value) }

// The kinds of errors that [ErrorKind] tells apart.
const (
	KindPermanent   = "permanent"   // marked by [Permanent]
	KindUnavailable = "unavailable" // marked by [Unavailable]
	KindTimeout     = "timeout"     // not within Config.PublishTimeout, or set aside with its topic
	KindInterrupted = "interrupted" // ended by a lost lease or the relay's stop
	KindRefused     = "refused"     // any other
)

// ErrorKind says in one word, of the few above, what kind of failure an error of an
// event is, for metrics and logs; "" for nil.
func ErrorKind(err error) string {
	switch {
	case err == nil:
		return ""
	case IsPermanent(err):
		return KindPermanent
	case IsUnavailable(err):
		return KindUnavailable
	case errors.Is(err, errPublishTimeout), errors.Is(err, errSetAside):
		return KindTimeout
	case errors.Is(err, errLeaseLost), errors.Is(err, errStopped):
		return KindInterrupted
	default:
		return KindRefused
	}
}

// call runs one Publish with its timeout and makes the result complete: a panic
// or a wrong number of results is a failure of every message, and a publisher
// that does not return when its context ends is left behind.
func (r *Relay) call(ctx context.Context, messages []Message) []error {
	ctx, cancel := context.WithTimeoutCause(ctx, r.cfg.PublishTimeout, errPublishTimeout)
	defer cancel()
	done := make(chan []error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- all(len(messages), &PanicError{Value: p, Stack: debug.Stack()})
			}
		}()
		errs := r.publisher.Publish(ctx, messages)
		for i := range errs {
			errs[i] = usable(errs[i])
		}
		done <- errs
	}()
	var errs []error
	select {
	case errs = <-done:
	case <-ctx.Done():
		late := time.NewTimer(abandonAfter)
		defer late.Stop()
		select {
		case errs = <-done:
		case <-late.C:
			return all(len(messages), fmt.Errorf("publisher did not return after its context ended: %w", context.Cause(ctx)))
		}
	}
	switch {
	case errs == nil:
		return make([]error, len(messages))
	case len(errs) != len(messages):
		return all(len(messages), fmt.Errorf("publisher returned %d results for %d messages", len(errs), len(messages)))
	}
	for i, err := range errs {
		// The cause tells a timeout from a lost lease or a stop, whatever the
		// publisher made of it.
		if err != nil && ctx.Err() != nil && !IsPermanent(err) {
			errs[i] = fmt.Errorf("%w: %w", err, context.Cause(ctx))
		}
	}
	return errs
}

// usable replaces an error that panics when it is looked at, such as a nil
// pointer of an error type, so that it cannot do so later.
func usable(err error) (safe error) {
	if err == nil {
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			safe = fmt.Errorf("publisher returned an error (%T) that panics: %v", err, p)
		}
	}()
	_ = err.Error()
	_, _ = IsPermanent(err), IsUnavailable(err)
	_, _ = uncounted(err), AskedDelay(err)
	return err
}

// abandonAfter is how long a publisher may take to notice its context's end.
const abandonAfter = time.Second

var (
	errPublishTimeout = errors.New("publish timeout")
	errLeaseLost      = errors.New("lease lost")
	errStopped        = errors.New("relay stopped")
)

func all(n int, err error) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}
