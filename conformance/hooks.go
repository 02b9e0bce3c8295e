package conformance

import (
	"context"
	"errors"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// op is one operation of a store that a relay asks for.
type op struct {
	// name is the method in lower case: poll, claim, extend, release, surface,
	// due, ready, settle.
	name  string
	lane  int // -1 for poll
	lease dialect.Lease
	// settlement is set for settle.
	settlement dialect.Settlement
}

// hooks are called around the operations of a relay's store, from many
// goroutines.
type hooks struct {
	// before runs ahead of the operation, which is not done when it returns an
	// error: the relay gets that error.
	before func(ctx context.Context, o op) error
	// after runs when the operation is done; the relay gets the error that it
	// returns. ok is what the operation said of the lease.
	after func(ctx context.Context, o op, ok bool, err error) error
}

// injected is an error that the suite causes.
type injected struct {
	class dialect.Class
	what  string
}

// Error names the fault.
func (e *injected) Error() string { return "injected fault: " + e.what }

// inject makes an error that the hooked dialect classifies as class.
func inject(class dialect.Class, what string) error { return &injected{class, what} }

// hooked is d with hooks around what its stores do for relays.
func hooked(d dialect.Dialect, h hooks) dialect.Dialect { return &hookedDialect{d, h} }

type hookedDialect struct {
	dialect.Dialect
	hooks hooks
}

// Bind implements [dialect.Dialect].
func (d *hookedDialect) Bind(tables dialect.Tables) (dialect.Store, error) {
	s, err := d.Dialect.Bind(tables)
	if err != nil {
		return nil, err
	}
	h := &hookedStore{s, d.hooks}
	if w, ok := s.(dialect.Waker); ok {
		return struct {
			*hookedStore
			dialect.Waker
		}{h, w}, nil
	}
	return h, nil
}

// Classify implements [dialect.Dialect].
func (d *hookedDialect) Classify(err error) dialect.Class {
	if i := (*injected)(nil); errors.As(err, &i) {
		return i.class
	}
	return d.Dialect.Classify(err)
}

type hookedStore struct {
	dialect.Store
	hooks hooks
}

// opKey is the context key under which statements find their operation's name.
type opKey struct{}

// opOf is the operation that a statement is part of.
func opOf(ctx context.Context) string {
	name, _ := ctx.Value(opKey{}).(string)
	return name
}

func (s *hookedStore) around(ctx context.Context, o op, do func(ctx context.Context) (bool, error)) error {
	ctx = context.WithValue(ctx, opKey{}, o.name)
	if s.hooks.before != nil {
		if err := s.hooks.before(ctx, o); err != nil {
			return err
		}
	}
	ok, err := do(ctx)
	if s.hooks.after != nil {
		err = s.hooks.after(ctx, o, ok, err)
	}
	return err
}

// Poll implements [dialect.Lanes].
func (s *hookedStore) Poll(ctx context.Context, db dialect.DB, owner string, limit int) (lanes []dialect.Candidate, err error) {
	err = s.around(ctx, op{name: "poll", lane: -1, lease: dialect.Lease{Owner: owner}}, func(ctx context.Context) (bool, error) {
		lanes, err = s.Store.Poll(ctx, db, owner, limit)
		return true, err
	})
	return lanes, err
}

// Claim implements [dialect.Lanes].
func (s *hookedStore) Claim(ctx context.Context, db dialect.DB, lane int, owner string, ttl time.Duration) (epoch int64, ok bool, err error) {
	err = s.around(ctx, op{name: "claim", lane: lane, lease: dialect.Lease{Lane: lane, Owner: owner}}, func(ctx context.Context) (bool, error) {
		epoch, ok, err = s.Store.Claim(ctx, db, lane, owner, ttl)
		return ok, err
	})
	return epoch, ok && err == nil, err
}

// Extend implements [dialect.Lanes].
func (s *hookedStore) Extend(ctx context.Context, db dialect.DB, lease dialect.Lease, ttl time.Duration) (ok bool, err error) {
	err = s.around(ctx, op{name: "extend", lane: lease.Lane, lease: lease}, func(ctx context.Context) (bool, error) {
		ok, err = s.Store.Extend(ctx, db, lease, ttl)
		return ok, err
	})
	return ok && err == nil, err
}

// Release implements [dialect.Lanes].
func (s *hookedStore) Release(ctx context.Context, db dialect.DB, lease dialect.Lease) error {
	return s.around(ctx, op{name: "release", lane: lease.Lane, lease: lease}, func(ctx context.Context) (bool, error) {
		return true, s.Store.Release(ctx, db, lease)
	})
}

// Surface implements [dialect.Turn].
func (s *hookedStore) Surface(ctx context.Context, db dialect.DB, lease dialect.Lease, limit int) (moved int, ok bool, err error) {
	err = s.around(ctx, op{name: "surface", lane: lease.Lane, lease: lease}, func(ctx context.Context) (bool, error) {
		moved, ok, err = s.Store.Surface(ctx, db, lease, limit)
		return ok, err
	})
	return moved, ok && err == nil, err
}

// Due implements [dialect.Turn].
func (s *hookedStore) Due(ctx context.Context, db dialect.DB, lane int, limit dialect.Limit) (rows []dialect.Row, err error) {
	err = s.around(ctx, op{name: "due", lane: lane}, func(ctx context.Context) (bool, error) {
		rows, err = s.Store.Due(ctx, db, lane, limit)
		return true, err
	})
	return rows, err
}

// Ready implements [dialect.Turn].
func (s *hookedStore) Ready(ctx context.Context, db dialect.DB, lane int, after int64, limit dialect.Limit) (rows []dialect.Row, err error) {
	err = s.around(ctx, op{name: "ready", lane: lane}, func(ctx context.Context) (bool, error) {
		rows, err = s.Store.Ready(ctx, db, lane, after, limit)
		return true, err
	})
	return rows, err
}

// Settle implements [dialect.Turn].
func (s *hookedStore) Settle(ctx context.Context, db dialect.DB, lease dialect.Lease, ttl time.Duration, what dialect.Settlement) (ok bool, err error) {
	err = s.around(ctx, op{name: "settle", lane: lease.Lane, lease: lease, settlement: what}, func(ctx context.Context) (bool, error) {
		ok, err = s.Store.Settle(ctx, db, lease, ttl, what)
		return ok, err
	})
	return ok && err == nil, err
}
