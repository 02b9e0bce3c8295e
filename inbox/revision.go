package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
)

// MaxKey is the longest key of a message, in bytes.
const MaxKey = 512

// ErrGap is a message that comes before one of its key that the consumer has not
// handled. errors.As with [*GapError] tells which.
var ErrGap = errors.New("revision is ahead of the next")

// GapError is a message whose revision is above the next of its key. It matches
// [ErrGap].
type GapError struct {
	// Consumer and Key are those of the call.
	Consumer, Key string
	// Expected is the revision that the consumer has to handle next.
	Expected int64
	// Given is the message's.
	Given int64
}

// Error names both revisions, without the key.
func (e *GapError) Error() string {
	return fmt.Sprintf("revision is %d and consumer %q has to handle %d of the key first: "+
		"hand the message in again when that has come, or call Skip if it never will", e.Given, e.Consumer, e.Expected)
}

// Is reports whether target is [ErrGap].
func (e *GapError) Is(target error) bool { return target == ErrGap }

// HandleNext is [Inbox.Handle] for a message that has a key and a revision, as every one
// with a key has from an outbox with Config.Revisions: it runs f if the revision is the
// next that the consumer has to handle of the key, 1 at the beginning. One that is not
// above the last is a duplicate, replays included. One that is further ahead is refused
// with a [*GapError] that leaves everything as it was; f does not run.
//
// What it keeps is one number for a consumer and a key, not the ids of messages, and
// [Inbox.Purge] does not forget it. A message handled by one of the two methods is new to
// the other. It needs an engine whose Store is a [dialect.Reviser]; otherwise the error
// matches [errors.ErrUnsupported].
func (in *Inbox) HandleNext(ctx context.Context, db *sql.DB, consumer, key string, revision int64, f func(ctx context.Context, tx *sql.Tx) error) (handled bool, err error) {
	at, reviser, err := in.revision(consumer, key, revision)
	if err != nil {
		return false, fmt.Errorf("inbox handle: %w", err)
	}
	return in.handle(ctx, db, mark{
		set: func(ctx context.Context, tx *sql.Tx) (bool, error) { return advance(ctx, reviser, tx, consumer, at) },
		is: func(ctx context.Context, db *sql.DB) (bool, error) {
			last, err := reviser.Progress(ctx, db, consumer, at)
			return last >= revision, err
		},
	}, f)
}

// RecordNext is [Inbox.Record] for a message that has a key and a revision: see
// [Inbox.HandleNext]. After a duplicate and after a [*GapError] tx can go on. tx must be
// one that can read: a *sql.Tx, or an engine's adapter for its driver's.
func (in *Inbox) RecordNext(ctx context.Context, tx outbox.Tx, consumer, key string, revision int64) (fresh bool, err error) {
	at, reviser, err := in.revision(consumer, key, revision)
	if err != nil {
		return false, fmt.Errorf("inbox record: %w", err)
	}
	fresh, err = advance(ctx, reviser, tx, consumer, at)
	if gap := (*GapError)(nil); errors.As(err, &gap) {
		return false, fmt.Errorf("inbox record: %w", gap)
	}
	return fresh, in.wrap("inbox record", err)
}

// Progress is the last revision of the key that the consumer has handled, in a
// transaction that is committed; 0 is none.
func (in *Inbox) Progress(ctx context.Context, db *sql.DB, consumer, key string) (int64, error) {
	at, reviser, err := in.revision(consumer, key, 1)
	if err != nil {
		return 0, fmt.Errorf("inbox progress: %w", err)
	}
	last, err := reviser.Progress(ctx, db, consumer, at)
	return last, in.wrap("inbox progress", err)
}

// Skip has the consumer go on behind revision, whatever it has handled of the key: the
// next is the one after. It is for a consumer that begins in the middle, and for what
// never comes, such as a message that an operator has discarded. It takes effect with
// tx.
func (in *Inbox) Skip(ctx context.Context, tx outbox.Tx, consumer, key string, revision int64) error {
	at, reviser, err := in.revision(consumer, key, revision)
	if err != nil {
		return fmt.Errorf("inbox skip: %w", err)
	}
	return in.wrap("inbox skip", reviser.SetProgress(ctx, tx, consumer, at))
}

// advance takes the revision if it is the next, and tells whether it was.
func advance(ctx context.Context, reviser dialect.Reviser, tx outbox.Tx, consumer string, at dialect.Revision) (fresh bool, err error) {
	last, err := reviser.Advance(ctx, tx, consumer, at)
	if err == nil && at.Number > last+1 {
		err = &GapError{Consumer: consumer, Key: at.Key, Expected: last + 1, Given: at.Number}
	}
	return err == nil && at.Number == last+1, err
}

// revision checks a call's arguments.
func (in *Inbox) revision(consumer, key string, number int64) (dialect.Revision, dialect.Reviser, error) {
	at := dialect.Revision{Key: key, KeyHash: dialect.KeyHash(key), Number: number}
	reviser, ok := in.store.(dialect.Reviser)
	if !ok {
		return at, nil, fmt.Errorf("%s keeps no revisions: handle the message by its id: %w", in.dialect.Name(), errors.ErrUnsupported)
	}
	if err := checkName("consumer", "name who handles the message", consumer, MaxConsumer); err != nil {
		return at, nil, err
	}
	switch {
	case len(key) > MaxKey:
		return at, nil, &outbox.InvalidError{Field: "key", Reason: fmt.Sprintf("has %d bytes, the limit is %d: pass the key the message came with", len(key), MaxKey)}
	case !utf8.ValidString(key) || strings.ContainsRune(key, 0):
		return at, nil, &outbox.InvalidError{Field: "key", Reason: "is not UTF-8 without NUL: pass the key the message came with"}
	case number < 1:
		return at, nil, &outbox.InvalidError{Field: "revision", Reason: fmt.Sprintf("is %d: a message without one is handled by its id", number)}
	}
	return at, reviser, nil
}
