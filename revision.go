package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/outbox-suite/outbox/dialect"
)

// revise writes the messages that have a key, each with its revision, and returns the
// others.
func (o *Outbox) revise(ctx context.Context, tx Tx, all []dialect.Message) (rest []dialect.Message, err error) {
	var keyed []dialect.Message
	var places []int // of keyed in all
	for i := range all {
		if all[i].Key.Valid {
			keyed, places = append(keyed, all[i]), append(places, i)
		} else {
			rest = append(rest, all[i])
		}
	}
	if len(keyed) == 0 {
		return rest, nil
	}
	runs, wrong := runsOf(keyed)
	if wrong == nil {
		refusal, err := o.reviser.Revise(ctx, tx, keyed, runs)
		if err != nil {
			return nil, o.wrap("enqueue", err)
		}
		if refusal == nil {
			return rest, nil
		}
		wrong = refused(keyed, &runs[refusal.Run], refusal)
	}
	wrong.Index = places[wrong.Index]
	return nil, fmt.Errorf("enqueue: %w", wrong)
}

// LastRevision is the last revision of the key as tx has it: behind an Enqueue in tx the
// one that the key's last message got there, those before it in the call having got the
// ones below. 0 is none, and the empty key is a key. Before an Enqueue it may make other
// producers of the key wait, or not, and another may be the first to enqueue.
//
// It is one round trip more, needs Config.Revisions, or the error matches
// [errors.ErrUnsupported], and a tx that can read, or it matches
// [dialect.ErrCannotRead].
func (o *Outbox) LastRevision(ctx context.Context, tx Tx, key string) (int64, error) {
	if o.reviser == nil {
		return 0, fmt.Errorf("last revision: this outbox counts none: set Config.Revisions: %w", errors.ErrUnsupported)
	}
	last, err := o.reviser.LastRevision(ctx, tx, dialect.Revision{Key: key, KeyHash: dialect.KeyHash(key)})
	return last, o.wrap("last revision", err)
}

// runsOf are the messages by key, in an order that is the same for all producers, so
// that they wait for each other and not in a circle. A revision that does not follow
// from one before it in the same run is wrong whatever the database has.
func runsOf(keyed []dialect.Message) ([]dialect.Run, *RevisionError) {
	byKey := make(map[string]int, len(keyed))
	var runs []dialect.Run
	for i := range keyed {
		m := &keyed[i]
		at, ok := byKey[m.Key.V]
		if !ok {
			at = len(runs)
			byKey[m.Key.V] = at
			runs = append(runs, dialect.Run{Key: m.Key.V, KeyHash: m.KeyHash.V})
		}
		run := &runs[at]
		before := int64(len(run.Messages))
		if m.Revision > 0 {
			switch {
			case run.First == 0 && m.Revision > before:
				run.First = m.Revision - before
			case run.First == 0: // too low for whatever the key is at
				return nil, &RevisionError{Index: i, Key: run.Key, Given: m.Revision}
			case m.Revision != run.First+before:
				return nil, &RevisionError{Index: i, Key: run.Key, Expected: run.First + before, Given: m.Revision}
			}
		}
		run.Messages = append(run.Messages, i)
	}
	slices.SortFunc(runs, func(a, b dialect.Run) int {
		return cmp.Or(cmp.Compare(a.KeyHash, b.KeyHash), cmp.Compare(a.Key, b.Key))
	})
	return runs, nil
}

// refused is what a refusal says of the first message of the run that has a revision.
func refused(keyed []dialect.Message, run *dialect.Run, refusal *dialect.Refusal) *RevisionError {
	e := &RevisionError{Key: run.Key, Given: run.First}
	for n, i := range run.Messages {
		if given := keyed[i].Revision; given > 0 {
			e.Index, e.Given = i, given
			if refusal.Last.Valid {
				e.Expected = refusal.Last.V + 1 + int64(n)
			}
			break
		}
	}
	return e
}
