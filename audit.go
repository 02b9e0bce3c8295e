package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/internal/shell"
)

// Audited is an action of an operator as the audit has it.
type Audited = dialect.Audited

// The actions of an [Operator] as the audit names them.
const (
	ActionRequeue = "requeue"
	ActionDiscard = "discard"
	ActionReplay  = "replay"
	ActionPurge   = "purge"
	// ActionDrop is of partitions of done, and its number is theirs.
	ActionDrop = "drop partitions"
)

// Operator is a person, or a program in its place, who changes messages, and why. What
// it does is kept in the audit: that it begins, before anything is changed, and how it
// ended. When the first cannot be written, nothing is changed. The second is written when
// the context has ended, too; when it cannot be, the error says so, and the audit shows
// an action without an end, as it does when the process dies meanwhile.
//
// With an engine whose Store is no [dialect.Auditor] nothing is kept; [Outbox.Audits]
// tells. An Operator is safe for concurrent use.
type Operator struct {
	o        *Outbox
	who, why string
}

// As returns the operator who, for example the name of a user, with the reason why, which
// may be empty. Both are kept in the audit.
func (o *Outbox) As(who, why string) (*Operator, error) {
	if who == "" {
		return nil, fmt.Errorf("operator: %w", &InvalidError{Field: "who", Reason: "is empty: say who acts"})
	}
	for _, f := range []struct {
		name, value string
		most        int
	}{{"who", who, dialect.MaxWho}, {"reason", why, dialect.MaxWhy}} {
		if err := checkText(f.name, f.value, f.most); err != nil {
			return nil, fmt.Errorf("operator: %w", err)
		}
	}
	return &Operator{o: o, who: who, why: why}, nil
}

// Requeue is [Outbox.Requeue], kept in the audit.
func (p *Operator) Requeue(ctx context.Context, f Filter, limit int) (int, error) {
	return p.parked(ctx, ActionRequeue, f, limit, p.o.Requeue)
}

// Discard is [Outbox.Discard], kept in the audit.
func (p *Operator) Discard(ctx context.Context, f Filter, limit int) (int, error) {
	return p.parked(ctx, ActionDiscard, f, limit, p.o.Discard)
}

func (p *Operator) parked(ctx context.Context, action string, f Filter, limit int, change func(context.Context, Filter, int) (int, error)) (int, error) {
	if _, err := f.forChange(); err != nil {
		return 0, fmt.Errorf("%s: %w", action, err)
	}
	f = f.ofParked()
	return p.act(ctx, action, limited(f.String(), limit), func() (int, error) { return change(ctx, f, limit) })
}

// Replay is [Outbox.Replay], kept in the audit.
func (p *Operator) Replay(ctx context.Context, f Filter, limit int) (int, error) {
	return p.ReplayWith(ctx, f, ReplayOptions{Limit: limit})
}

// ReplayWith is [Outbox.ReplayWith], kept in the audit unless it is a dry run.
func (p *Operator) ReplayWith(ctx context.Context, f Filter, opts ReplayOptions) (int, error) {
	if _, _, err := p.o.replayOf(f, opts); err != nil {
		return 0, err
	}
	if opts.DryRun {
		return p.o.ReplayWith(ctx, f, opts)
	}
	selection := limited(f.String(), opts.Limit)
	if opts.Resume != "" {
		selection += " --resume " + shell.Quote(opts.Resume)
	}
	return p.act(ctx, ActionReplay, selection, func() (int, error) { return p.o.ReplayWith(ctx, f, opts) })
}

// KeepPartitions is [Outbox.KeepPartitions], kept in the audit with the number of
// partitions that were dropped.
func (p *Operator) KeepPartitions(ctx context.Context, olderThan time.Duration) (kept dialect.Partitions, err error) {
	if _, ok := p.o.store.(dialect.Partitioner); !ok || olderThan < 0 {
		return p.o.KeepPartitions(ctx, olderThan) // which has nothing to do, or refuses it
	}
	_, err = p.act(ctx, ActionDrop, "--older-than "+olderThan.String(), func() (int, error) {
		kept, err = p.o.KeepPartitions(ctx, olderThan)
		return kept.Dropped, err
	})
	return kept, err
}

// Purge is [Outbox.Purge], kept in the audit.
func (p *Operator) Purge(ctx context.Context, olderThan time.Duration, limit int) (int, error) {
	if olderThan < 0 {
		return p.o.Purge(ctx, olderThan, limit) // which refuses it
	}
	return p.act(ctx, ActionPurge, limited("--older-than "+olderThan.String(), limit),
		func() (int, error) { return p.o.Purge(ctx, olderThan, limit) })
}

// The end of an action is written in so many tries, with pauses, within that time.
const (
	auditTries = 5
	auditPause = 200 * time.Millisecond
	auditTime  = 10 * time.Second
)

// act keeps what do does in the audit.
func (p *Operator) act(ctx context.Context, action, selection string, do func() (int, error)) (int, error) {
	auditor, ok := p.o.store.(dialect.Auditor)
	if !ok {
		return do()
	}
	id, err := uuid.NewV7()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", action, err)
	}
	entry := dialect.AuditEntry{ID: id, Who: p.who, Action: action, Selection: cut(selection, dialect.MaxSelection), Why: p.why}
	if err := auditor.WriteAudit(ctx, p.o.db, entry); err != nil {
		return 0, fmt.Errorf("%s: nothing is changed, because the audit cannot be written: %w", action, p.o.wrap("audit", err))
	}
	n, err := do()
	entry.Ended, entry.Changed = true, int64(n)
	if err != nil {
		entry.Failure = cut(strings.ToValidUTF8(strings.ReplaceAll(err.Error(), "\x00", ""), "�"), dialect.MaxReason)
	}
	if ending := p.end(ctx, auditor, entry); ending != nil {
		ending = fmt.Errorf("the audit does not say how the %s ended: %w", action, ending)
		if err == nil {
			return n, ending
		}
		return n, fmt.Errorf("%w; %w", err, ending)
	}
	return n, err
}

// end writes the second entry, whatever has become of the context.
func (p *Operator) end(ctx context.Context, auditor dialect.Auditor, entry dialect.AuditEntry) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditTime)
	defer cancel()
	for try := 1; ; try++ {
		err := auditor.WriteAudit(ctx, p.o.db, entry)
		switch class := p.o.dialect.Classify(err); {
		case err == nil, class == dialect.Duplicate && try > 1: // an earlier try has done it
			return nil
		case try == auditTries || class != dialect.Conflict && class != dialect.Transient && class != dialect.OutcomeUnknown:
			return p.o.wrap("audit", err)
		}
		select {
		case <-time.After(auditPause):
		case <-ctx.Done():
			return p.o.wrap("audit", ctx.Err())
		}
	}
}

// Audits tells whether the engine keeps what operators do.
func (o *Outbox) Audits() bool {
	_, ok := o.store.(dialect.Auditor)
	return ok
}

// Audit lists up to limit actions of operators with Pos below before, 0 for the newest,
// newest first. To page, pass the last Pos. With an engine whose Store is no
// [dialect.Auditor] the error matches [errors.ErrUnsupported].
func (o *Outbox) Audit(ctx context.Context, before int64, limit int) ([]Audited, error) {
	if limit < 1 {
		return nil, fmt.Errorf("audit: %w", &InvalidError{Field: "limit", Reason: fmt.Sprintf("is %d: give a number above 0", limit)})
	}
	auditor, ok := o.store.(dialect.Auditor)
	if !ok {
		return nil, fmt.Errorf("audit (%s): %w", o.dialect.Name(), errors.ErrUnsupported)
	}
	list, err := auditor.Audit(ctx, o.db, cmp.Or(before, math.MaxInt64), limit)
	return list, o.wrap("audit", err)
}

// Requeueable counts the messages that [Outbox.Requeue] would change now, up to limit, 0
// for all. It reads them, a few at a time.
func (o *Outbox) Requeueable(ctx context.Context, f Filter, limit int) (int, error) {
	return o.countParked(ctx, ActionRequeue, f, limit, func(m *Parked) bool {
		switch m.State {
		case Dead:
			return true
		case Retry, Scheduled:
			return m.DueIn.Valid && m.DueIn.V > 0
		}
		return false
	})
}

// Replayable counts the messages that [Outbox.Replay] would replay now, up to limit, 0 for
// all.
func (o *Outbox) Replayable(ctx context.Context, f Filter, limit int) (int, error) {
	return o.ReplayWith(ctx, f, ReplayOptions{Limit: limit, DryRun: true})
}

// Discardable counts the messages that [Outbox.Discard] would change now, as
// [Outbox.Requeueable] does.
func (o *Outbox) Discardable(ctx context.Context, f Filter, limit int) (int, error) {
	return o.countParked(ctx, ActionDiscard, f, limit, func(*Parked) bool { return true })
}

func (o *Outbox) countParked(ctx context.Context, action string, f Filter, limit int, affects func(*Parked) bool) (int, error) {
	if _, err := f.forChange(); err != nil {
		return 0, fmt.Errorf("%s: %w", action, err)
	}
	f = f.ofParked()
	n, after := 0, int64(0)
	for {
		list, err := o.Parked(ctx, f, after, countBatch)
		if err != nil {
			return n, err
		}
		for i := range list {
			if affects(&list[i]) {
				if n++; n == limit {
					return n, nil
				}
			}
			after = list[i].Pos
		}
		if len(list) < countBatch {
			return n, nil
		}
	}
}

// countBatch is how many messages are read at once to be counted, with their payloads.
const countBatch = 20

// String is the selection as the flags of the command line say it.
func (f Filter) String() string {
	var b strings.Builder
	add := func(flag, value string) {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString("--" + flag)
		if value != "" {
			b.WriteString(" " + value)
		}
	}
	if f.All {
		add("all", "")
	}
	for _, id := range f.IDs {
		add("id", id.String())
	}
	if f.Key != "" || f.EmptyKey {
		add("key", shell.Quote(f.Key))
	}
	for _, o := range []struct{ flag, value string }{{"topic", f.Topic}, {"type", f.Type}} {
		if o.value != "" {
			add(o.flag, shell.Quote(o.value))
		}
	}
	for _, s := range f.States {
		add("state", shell.Quote(s))
	}
	if f.Since > 0 {
		add("since", f.Since.String())
	}
	if f.Until > 0 {
		add("until", f.Until.String())
	}
	return b.String()
}

func limited(selection string, limit int) string {
	if limit > 0 {
		selection += " --limit " + strconv.Itoa(limit)
	}
	return selection
}

// cut keeps a text to so many bytes.
func cut(s string, most int) string {
	const mark = "…"
	if len(s) <= most {
		return s
	}
	s = s[:most-len(mark)]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + mark
}
