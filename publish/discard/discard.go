// Package discard is a publisher that accepts every message and keeps none, to
// measure a relay and to drain an outbox on purpose.
package discard

import (
	"context"

	"github.com/outbox-suite/outbox/relay"
)

// New returns the publisher. It is safe for concurrent use and keeps order.
func New() relay.Publisher { return publisher{} }

type publisher struct{}

// Publish accepts all messages.
func (publisher) Publish(context.Context, []relay.Message) []error { return nil }

// KeepsOrder returns true: nothing ever fails.
func (publisher) KeepsOrder() bool { return true }
