package outbox

import (
	"errors"
	"fmt"

	"github.com/outbox-suite/outbox/dialect"
)

// What callers decide by, with errors.Is.
var (
	// ErrInvalid is a message or an argument that is refused before anything is
	// written. errors.As with [*InvalidError] tells the field.
	ErrInvalid = errors.New("invalid")
	// ErrDuplicateID is a message whose id is ready or scheduled already. Roll
	// back the transaction: some engines allow nothing else after it.
	ErrDuplicateID = errors.New("message id is enqueued already")
	// ErrRevision is a message whose revision is not the next one of its key, with
	// Config.Revisions. Nothing was written and the transaction can go on. errors.As
	// with [*RevisionError] tells which one is.
	ErrRevision = errors.New("revision is not the next")
	// ErrNotReady is a database that does not have what the outbox needs: see
	// [Outbox.Check]. The text names each finding and its remedy.
	ErrNotReady = errors.New("database is not ready for the outbox")
)

// InvalidError is the reason why a message or an argument was refused. It
// matches [ErrInvalid].
type InvalidError struct {
	// Index is the place of the message in the call, from 0.
	Index int
	// Field is the message's or the argument's name in lower case words.
	Field string
	// Reason says what is wrong and what to do, without the field's content.
	Reason string
}

// Error names the message, the field and the remedy.
func (e *InvalidError) Error() string {
	if e.Index > 0 {
		return fmt.Sprintf("message %d: %s %s", e.Index, e.Field, e.Reason)
	}
	return e.Field + " " + e.Reason
}

// Is reports whether target is [ErrInvalid].
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// RevisionError is a revision that the caller gave and that is not the next one of the
// key: a gap, or one that is there already. It matches [ErrRevision].
type RevisionError struct {
	// Index is the place of the message in the call, from 0.
	Index int
	// Key is the message's.
	Key string
	// Expected is the revision that the message would have to have; 0 when that is
	// not known, as in a transaction of a kind that cannot read.
	Expected int64
	// Given is the revision it has.
	Given int64
}

// Error names the message, the field and both revisions, without the key.
func (e *RevisionError) Error() string {
	text := fmt.Sprintf("revision is %d", e.Given)
	if e.Expected > 0 {
		text += fmt.Sprintf(" and the next of its key is %d", e.Expected)
	} else {
		text += " and not the next of its key"
	}
	if e.Index > 0 {
		text = fmt.Sprintf("message %d: %s", e.Index, text)
	}
	return text + ": another change of the aggregate came first, or one was not enqueued"
}

// Is reports whether target is [ErrRevision].
func (e *RevisionError) Is(target error) bool { return target == ErrRevision }

// Error is a failed operation on the database. Unwrap yields the driver's
// error.
type Error struct {
	// Op is the operation, for example "enqueue".
	Op string
	// Engine is the dialect's name.
	Engine string
	// Class says what the error means.
	Class dialect.Class
	Err   error
}

// Error names the operation, the engine, what is wrong where that is known, and
// the cause.
func (e *Error) Error() string {
	text := e.Op + " (" + e.Engine + "): "
	switch e.Class {
	case dialect.Duplicate:
		text += ErrDuplicateID.Error() + ": "
	case dialect.Missing:
		text += "a table or column is missing: run `outbox migrate`, call Migrate, or check schema and prefix: "
	default:
	}
	return text + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is the sentinel of the error's class:
// [ErrDuplicateID] for [dialect.Duplicate], [ErrNotReady] for [dialect.Missing].
func (e *Error) Is(target error) bool {
	switch e.Class {
	case dialect.Duplicate:
		return target == ErrDuplicateID
	case dialect.Missing:
		return target == ErrNotReady
	default:
		return false
	}
}

// wrap turns an engine's error into an [*Error]; nil stays nil.
func (o *Outbox) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Engine: o.dialect.Name(), Class: o.dialect.Classify(err), Err: err}
}
