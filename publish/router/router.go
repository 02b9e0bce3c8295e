// Package router is a publisher that sends each topic to another publisher, so
// that one relay serves several brokers.
//
// A route's pattern is a topic, or the beginning of topics followed by a single
// *. An exact pattern goes before all others, and a longer beginning before a
// shorter one, in whatever order the routes are given; * alone takes what no
// other pattern takes. Nothing else has a meaning in a pattern.
//
// A message whose topic no route takes is refused for good, and alone: it is
// dead until an operator has corrected the routes and requeues it.
//
// # Destinations
//
// Each route is a destination with a breaker of its own: while its publisher is
// unavailable its messages are parked and those of other routes flow. Routes
// with the same name share a breaker, and should share a publisher.
//
// # Order
//
// The router keeps order if all its publishers do, and then keeps it across them
// too: a message goes out when those before it of its key are accepted, wherever
// they went. When one publisher does not keep order, the router does not, and
// the relay has one message per key under way.
//
// # More than one destination
//
// A message has one destination. What several must get is enqueued once for
// each, in the same transaction, so that none gets it again because another
// failed: see [FanOut].
package router

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/outbox-suite/outbox/relay"
)

// Route says where topics go.
type Route struct {
	// Pattern is a topic, or the beginning of topics and a *.
	Pattern string
	// Publisher gets the messages.
	Publisher relay.Publisher
	// Name is the destination's name, in logs and metrics. Default: Pattern.
	Name string
}

// Router publishes by topic. It is safe for concurrent use if its publishers
// are.
type Router struct {
	exact    map[string]*Route
	prefixes []*Route // longest first
	routes   []Route
	ordered  bool
}

var (
	_ relay.Orderer      = (*Router)(nil)
	_ relay.Destinations = (*Router)(nil)
)

// New returns a router over the routes, of which there must be one.
func New(routes ...Route) (*Router, error) {
	r := &Router{exact: make(map[string]*Route), routes: slices.Clone(routes), ordered: true}
	var errs []error
	if len(routes) == 0 {
		errs = append(errs, errors.New("router: there are no routes: give one or more"))
	}
	seen := make(map[string]bool)
	named := make(map[string]relay.Publisher)
	for i := range r.routes {
		route := &r.routes[i]
		prefix, wild := strings.CutSuffix(route.Pattern, "*")
		switch {
		case route.Pattern == "":
			errs = append(errs, fmt.Errorf("router: route %d has no pattern: give a topic, or the beginning of topics and a *", i+1))
		case strings.Contains(prefix, "*"):
			errs = append(errs, fmt.Errorf("router: pattern %q: use one *, at the end", route.Pattern))
		case seen[route.Pattern]:
			errs = append(errs, fmt.Errorf("router: pattern %q is there twice: a topic has one destination, see FanOut", route.Pattern))
		case route.Publisher == nil:
			errs = append(errs, fmt.Errorf("router: pattern %q has no publisher", route.Pattern))
		}
		seen[route.Pattern] = true
		if route.Name == "" {
			route.Name = route.Pattern
		}
		if other, ok := named[route.Name]; ok && !same(other, route.Publisher) {
			errs = append(errs, fmt.Errorf("router: name %q stands for two publishers: give each its own", route.Name))
		}
		named[route.Name] = route.Publisher
		if wild {
			r.prefixes = append(r.prefixes, route)
		} else {
			r.exact[route.Pattern] = route
		}
		o, ok := route.Publisher.(relay.Orderer)
		r.ordered = r.ordered && ok && o.KeepsOrder()
	}
	slices.SortStableFunc(r.prefixes, func(a, b *Route) int { return len(b.Pattern) - len(a.Pattern) })
	return r, errors.Join(errs...)
}

// same tells whether two publishers are the same, as far as that can be told.
func same(a, b relay.Publisher) bool {
	if a == nil || b == nil || !reflect.ValueOf(a).Comparable() || !reflect.ValueOf(b).Comparable() {
		return true
	}
	return a == b
}

// route returns the route of a topic, or nil.
func (r *Router) route(topic string) *Route {
	if route := r.exact[topic]; route != nil {
		return route
	}
	for _, route := range r.prefixes {
		if strings.HasPrefix(topic, route.Pattern[:len(route.Pattern)-1]) {
			return route
		}
	}
	return nil
}

// Destination returns the name of the topic's route, followed by the
// destination that its publisher names, if that serves several itself. It is
// empty for a topic that no route takes.
func (r *Router) Destination(topic string) string {
	route := r.route(topic)
	if route == nil {
		return ""
	}
	if d, ok := route.Publisher.(relay.Destinations); ok {
		return route.Name + "/" + d.Destination(topic)
	}
	return route.Name
}

// KeepsOrder tells whether all publishers keep order.
func (r *Router) KeepsOrder() bool { return r.ordered }

// Close closes the publishers that are io.Closers.
func (r *Router) Close() error {
	var errs []error
	var closed []io.Closer
	for _, route := range r.routes {
		c, ok := route.Publisher.(io.Closer)
		if !ok || slices.ContainsFunc(closed, func(other io.Closer) bool {
			return reflect.ValueOf(c).Comparable() && reflect.ValueOf(other).Comparable() && other == c
		}) {
			continue
		}
		closed = append(closed, c)
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// Publish hands each message to its route's publisher: one call for each of
// them, at the same time, and further ones while a key's messages go to
// different publishers.
func (r *Router) Publish(ctx context.Context, messages []relay.Message) []error {
	if len(messages) == 0 {
		return nil
	}
	c := call{errs: make([]error, len(messages)), messages: messages, routes: make([]*Route, len(messages))}
	one := true
	for i := range messages {
		c.routes[i] = r.route(messages[i].Topic)
		one = one && c.routes[i] != nil && c.routes[i].Name == c.routes[0].Name
	}
	if one {
		return c.routes[0].Publisher.Publish(ctx, messages)
	}
	for waiting := places(len(messages)); len(waiting) > 0; {
		waiting = c.wave(ctx, waiting)
	}
	return c.errs
}

func places(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// call is one of Publish over several routes.
type call struct {
	messages []relay.Message
	routes   []*Route
	errs     []error
	failed   map[string]bool // keys
}

var errBehind = errors.New("router: a message before it of its key was not accepted")

// wave publishes those of the waiting messages whose keys are not under way to
// another route, and returns the places of the others.
func (c *call) wave(ctx context.Context, waiting []int) (later []int) {
	calls := make(map[string][]int) // by name
	var names []string
	under := make(map[string]string) // the name that a key goes to
	for _, i := range waiting {
		m, route := &c.messages[i], c.routes[i]
		name, busy := under[m.Key]
		switch {
		case m.HasKey() && c.failed[m.Key]:
			c.errs[i] = errBehind
		case m.HasKey() && busy && (route == nil || route.Name != name):
			later = append(later, i)
		case route == nil:
			c.fail(i, relay.Permanent(fmt.Errorf("router: no route takes topic %q: add one, or correct the topic, then requeue the message", m.Topic)))
		default:
			if calls[route.Name] == nil {
				names = append(names, route.Name)
			}
			calls[route.Name] = append(calls[route.Name], i)
			if m.HasKey() {
				under[m.Key] = route.Name
			}
		}
		if m.HasKey() && len(later) > 0 && later[len(later)-1] == i {
			under[m.Key] = "" // what follows it waits too
		}
	}
	results := make(chan result, len(names))
	for _, name := range names {
		go func() { results <- result{calls[name], c.publish(ctx, calls[name])} }()
	}
	for range names {
		done := <-results
		for n, i := range done.places {
			if done.errs[n] != nil {
				c.fail(i, done.errs[n])
			}
		}
	}
	return later
}

type result struct {
	places []int
	errs   []error
}

func (c *call) fail(i int, err error) {
	c.errs[i] = err
	if c.messages[i].HasKey() {
		if c.failed == nil {
			c.failed = make(map[string]bool)
		}
		c.failed[c.messages[i].Key] = true
	}
}

// leaveAfter is how long a publisher may take to notice its context's end. A
// relay waits longer, so that what other publishers accepted is known.
const leaveAfter = 500 * time.Millisecond

// publish makes one call of a route's publisher. What that does wrong concerns
// its own messages only.
func (c *call) publish(ctx context.Context, at []int) []error {
	route := c.routes[at[0]]
	messages := make([]relay.Message, len(at))
	for n, i := range at {
		messages[n] = c.messages[i]
	}
	done := make(chan []error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- all(len(messages), fmt.Errorf("router: route %q: %w", route.Name, &relay.PanicError{Value: p, Stack: debug.Stack()}))
			}
		}()
		done <- route.Publisher.Publish(ctx, messages)
	}()
	var errs []error
	select {
	case errs = <-done:
	case <-ctx.Done():
		late := time.NewTimer(leaveAfter)
		defer late.Stop()
		select {
		case errs = <-done:
		case <-late.C:
			return all(len(messages), fmt.Errorf("router: publisher of route %q did not return: %w", route.Name, context.Cause(ctx)))
		}
	}
	switch {
	case errs == nil:
		return make([]error, len(messages))
	case len(errs) != len(messages):
		return all(len(messages), fmt.Errorf("router: publisher of route %q returned %d results for %d messages", route.Name, len(errs), len(messages)))
	}
	return errs
}

func all(n int, err error) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}
