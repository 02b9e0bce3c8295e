package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
)

// MaxConsumer and MaxMessageID are the longest names of a consumer and ids of a
// message, in bytes.
const (
	MaxConsumer  = 255
	MaxMessageID = 255
)

// DefaultMinRetention is the least age at which [Inbox.Purge] removes what was
// handled, unless Config.MinRetention says otherwise.
const DefaultMinRetention = 7 * 24 * time.Hour

// NoGrace is a Config.ResumeGrace that lets [Inbox.Purge] work at once.
const NoGrace time.Duration = -1

// ErrResuming is a purge that came too soon after the consumer's start: see
// Config.ResumeGrace.
var ErrResuming = errors.New("consumer is resuming")

// Config configures an [Inbox]. The zero value works.
type Config struct {
	// Schema holds the table. Default: the session's.
	Schema string
	// Prefix begins the table's name, PREFIX_inbox. Default: outbox.
	Prefix string
	// Tries is how often [Inbox.Handle] runs its transaction, and with it the
	// handler, before it gives up on conflicts. Default: 5.
	Tries int
	// TxOptions begin the transactions of [Inbox.Handle]. Default: the
	// database's own.
	TxOptions *sql.TxOptions
	// MinRetention is the least age that [Inbox.Purge] accepts. It must be longer
	// than any message may take to come a second time: longer than the broker
	// keeps redelivering, longer than the relay keeps published messages for
	// replays if those are to be recognised, and longer than the consumer may
	// stand still. Default: [DefaultMinRetention].
	MinRetention time.Duration
	// ResumeGrace is how long after [New] every purge is refused. What was in
	// hand when a consumer stopped is redelivered when it is back, be that after
	// longer than the retention: a purge at start would forget it just before it
	// comes. [NoGrace] is for a purge that runs elsewhere, as a job, beside
	// consumers that never stand still for as long as the retention.
	// Default: 1h.
	ResumeGrace time.Duration
}

const (
	defaultPrefix      = "outbox"
	defaultTries       = 5
	defaultResumeGrace = time.Hour
)

// Inbox recognises messages that were handled before. It is safe for concurrent
// use.
type Inbox struct {
	dialect dialect.Dialect
	store   dialect.Store
	cfg     Config
	made    time.Time
}

// New returns the inbox of the databases of an engine. It checks cfg and does no
// I/O: call [Inbox.Check] at start to see that the table is there.
func New(d dialect.Dialect, cfg Config) (*Inbox, error) {
	if d == nil {
		return nil, fmt.Errorf("new inbox: %w: dialect is required", outbox.ErrInvalid)
	}
	var errs []error
	if cfg.Prefix == "" {
		cfg.Prefix = defaultPrefix
	}
	if cfg.Tries == 0 {
		cfg.Tries = defaultTries
	}
	if cfg.Tries < 0 {
		errs = append(errs, fmt.Errorf("tries is %d: give a number above 0", cfg.Tries))
	}
	if cfg.TxOptions != nil && cfg.TxOptions.ReadOnly {
		errs = append(errs, errors.New("tx options are read-only: the inbox writes, leave ReadOnly out"))
	}
	if cfg.MinRetention == 0 {
		cfg.MinRetention = DefaultMinRetention
	}
	if cfg.MinRetention < 0 {
		errs = append(errs, fmt.Errorf("min retention is %v: give a duration above 0, longer than the broker redelivers", cfg.MinRetention))
	}
	if cfg.ResumeGrace == 0 {
		cfg.ResumeGrace = defaultResumeGrace
	}
	if cfg.ResumeGrace < 0 && cfg.ResumeGrace != NoGrace {
		errs = append(errs, fmt.Errorf("resume grace is %v: give a duration above 0, or NoGrace", cfg.ResumeGrace))
	}
	// The inbox has no lanes; any number that the engine accepts will do.
	store, err := d.Bind(dialect.Tables{Schema: cfg.Schema, Prefix: cfg.Prefix, Lanes: 1})
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, fmt.Errorf("new inbox: %w: %w", outbox.ErrInvalid, err)
	}
	return &Inbox{dialect: d, store: store, cfg: cfg, made: time.Now()}, nil
}

// Check tells whether the inbox table can be read. A table that does not exist is
// [outbox.ErrNotReady], with the remedy.
func (in *Inbox) Check(ctx context.Context, db *sql.DB) error {
	_, err := in.store.Recorded(ctx, db, "outbox", "check")
	if err != nil && in.dialect.Classify(err) == dialect.Missing {
		return fmt.Errorf("inbox check (%s): %w: the table %q does not exist: run `outbox migrate`, call Migrate of an Outbox, or check schema and prefix",
			in.dialect.Name(), outbox.ErrNotReady, in.cfg.Prefix+"_inbox")
	}
	return in.wrap("inbox check", err)
}

// Handle runs f for a message unless it was handled before by this consumer. The
// message's id is recorded in the transaction that f is given, so that f's effect
// and the record of it are committed together or not at all. handled tells that f
// ran and its effect is committed; false without an error is a duplicate. Ids are
// kept per consumer: two consumers each handle the same message.
//
// When the same message arrives twice at the same moment, the second call waits
// for the first one's transaction: if that commits it returns false, otherwise it
// handles the message itself.
//
// If f returns an error or panics, the transaction is rolled back and nothing
// remains; the error comes back as f made it. f must not commit or roll back, and
// must return the error of every statement that failed: some engines end the
// transaction with such an error, and what is written afterwards stays.
//
// Deadlocks, lock timeouts and serialization failures, from a statement of f as
// well as from the commit, make Handle run the transaction again, Config.Tries
// times in all, after short random pauses: f must expect to run more than once
// and keep nothing of an earlier run. When the outcome of the commit is unknown,
// because the connection broke, Handle reads back what became of it, and cannot tell
// its own record from that of a call that handled the same message in that moment:
// then both say handled, for one effect. If it cannot find out, the error is of class
// [dialect.OutcomeUnknown]. After any error the message may be handed in again: whatever
// happened is recognised then.
//
// An empty, over-long or malformed consumer or message id is refused with an
// [*outbox.InvalidError].
func (in *Inbox) Handle(ctx context.Context, db *sql.DB, consumer, messageID string, f func(ctx context.Context, tx *sql.Tx) error) (handled bool, err error) {
	if err := checkNames(consumer, messageID); err != nil {
		return false, fmt.Errorf("inbox handle: %w", err)
	}
	return in.handle(ctx, db, mark{
		set: func(ctx context.Context, tx *sql.Tx) (bool, error) {
			return in.store.Record(ctx, tx, consumer, messageID)
		},
		is: func(ctx context.Context, db *sql.DB) (bool, error) {
			return in.store.Recorded(ctx, db, consumer, messageID)
		},
	}, f)
}

// mark is what tells that a message was handled.
type mark struct {
	// set sets it, in the handler's transaction, and is not fresh if it was set.
	set func(ctx context.Context, tx *sql.Tx) (fresh bool, err error)
	// is reads it, committed.
	is func(ctx context.Context, db *sql.DB) (bool, error)
}

// handle is Handle with any mark.
func (in *Inbox) handle(ctx context.Context, db *sql.DB, m mark, f func(ctx context.Context, tx *sql.Tx) error) (handled bool, err error) {
	if db == nil || f == nil {
		return false, fmt.Errorf("inbox handle: %w: db and handler are required", outbox.ErrInvalid)
	}
	unknown := false // a commit of ours may have taken effect
	for try := 1; ; try++ {
		stage, fresh, err := in.attempt(ctx, db, m, f)
		if stage > recording {
			unknown = false // it was not there, so no earlier commit took effect
		}
		if err == nil {
			// What is recorded after a commit with an unknown outcome is that
			// commit's doing.
			return fresh || unknown, nil
		}
		class := in.dialect.Classify(err)
		if stage == committing && class == dialect.OutcomeUnknown {
			unknown = true
			if recorded, readErr := readBack(ctx, db, m); readErr == nil && recorded {
				return true, nil
			}
			// Not there yet: the server may still be about to commit. Recording it
			// again waits for that, and so finds out for certain.
		} else if class != dialect.Conflict {
			return false, in.explain(stage, unknown, err)
		}
		if try == in.cfg.Tries || !pause(ctx, try) {
			return false, in.explain(stage, unknown, err)
		}
	}
}

// stage is how far an attempt came.
type stage int

const (
	beginning stage = iota
	recording
	handling
	committing
)

// attempt runs the transaction once.
func (in *Inbox) attempt(ctx context.Context, db *sql.DB, m mark, f func(context.Context, *sql.Tx) error) (at stage, fresh bool, err error) {
	tx, err := db.BeginTx(ctx, in.cfg.TxOptions)
	if err != nil {
		return beginning, false, err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing, after an error or a panic that one counts
	fresh, err = m.set(ctx, tx)
	if err != nil || !fresh {
		return recording, false, err
	}
	if err := f(ctx, tx); err != nil {
		return handling, false, err
	}
	switch err := tx.Commit(); {
	case err == nil:
		return committing, true, nil
	case errors.Is(err, sql.ErrTxDone) && ctx.Err() != nil:
		// The context ended before the commit was sent, and took the transaction
		// with it.
		return handling, false, context.Cause(ctx)
	case errors.Is(err, sql.ErrTxDone):
		return handling, false, errEnded
	default:
		return committing, false, err
	}
}

var errEnded = errors.New("the handler ended the transaction: leave commit and rollback to Handle")

// readBack asks a fresh connection whether the mark was set. It outlives the
// caller's context for a moment, because that may be what broke the commit.
func readBack(ctx context.Context, db *sql.DB, m mark) (bool, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readBackTimeout)
	defer cancel()
	return m.is(ctx, db)
}

const readBackTimeout = 5 * time.Second

// explain makes an attempt's error the caller's.
func (in *Inbox) explain(at stage, unknown bool, err error) error {
	if at == handling && !unknown {
		return err // as the handler made it
	}
	if gap := (*GapError)(nil); errors.As(err, &gap) {
		return fmt.Errorf("inbox handle: %w", gap)
	}
	op := map[stage]string{beginning: "begin", recording: "record", handling: "handle", committing: "commit"}[at]
	e := &outbox.Error{Op: "inbox " + op, Engine: in.dialect.Name(), Class: in.dialect.Classify(err), Err: err}
	if unknown {
		// Whatever ended the search, the commit before it may have taken effect.
		e.Class = dialect.OutcomeUnknown
	}
	return e
}

// pause waits a short random time before the next try, and reports whether the
// context is still alive.
func pause(ctx context.Context, try int) bool {
	timer := time.NewTimer(rand.N(5 * time.Millisecond << min(try, 6)))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// Record notes the message's id in the caller's transaction. fresh is false when
// the consumer has handled it before: apply no effect then. When another open
// transaction has recorded the same, Record waits for its end. The record exists
// if and only if tx commits. It retries nothing; after an error roll tx back.
func (in *Inbox) Record(ctx context.Context, tx outbox.Tx, consumer, messageID string) (fresh bool, err error) {
	if err := checkNames(consumer, messageID); err != nil {
		return false, fmt.Errorf("inbox record: %w", err)
	}
	fresh, err = in.store.Record(ctx, tx, consumer, messageID)
	return fresh, in.wrap("inbox record", err)
}

// Recorded tells whether the consumer has handled the message, in a transaction
// that is committed.
func (in *Inbox) Recorded(ctx context.Context, db *sql.DB, consumer, messageID string) (bool, error) {
	if err := checkNames(consumer, messageID); err != nil {
		return false, fmt.Errorf("inbox recorded: %w", err)
	}
	recorded, err := in.store.Recorded(ctx, db, consumer, messageID)
	return recorded, in.wrap("inbox recorded", err)
}

// purgeBatch is the most entries that one transaction of a purge removes.
const purgeBatch = 500

// Purge forgets messages handled at least olderThan ago by the database's clock,
// of all consumers, at most limit, 0 for all, in bounded transactions, and returns
// how many; after an error that many are gone. A message that comes again after
// that is handled again, so olderThan below Config.MinRetention is refused, and
// until Config.ResumeGrace has passed since [New] the error is [ErrResuming]: try
// again later.
func (in *Inbox) Purge(ctx context.Context, db *sql.DB, olderThan time.Duration, limit int) (int, error) {
	if olderThan < in.cfg.MinRetention {
		return 0, fmt.Errorf("inbox purge: %w", &outbox.InvalidError{Field: "older than", Reason: fmt.Sprintf(
			"is %v and the least is %v: a message redelivered later than that would be handled twice; if your broker's redelivery and your replays end sooner, lower Config.MinRetention",
			olderThan, in.cfg.MinRetention)})
	}
	if limit < 0 {
		return 0, fmt.Errorf("inbox purge: %w", &outbox.InvalidError{Field: "limit", Reason: fmt.Sprintf("is %d: give a number above 0, or 0 for all", limit)})
	}
	if wait := in.cfg.ResumeGrace - time.Since(in.made); wait > 0 {
		return 0, fmt.Errorf("inbox purge: %w: what was in hand when it stopped may be redelivered: purge again in %v", ErrResuming, wait.Round(time.Second))
	}
	total := 0
	for limit == 0 || total < limit {
		ask := purgeBatch
		if limit > 0 {
			ask = min(ask, limit-total)
		}
		n, err := in.store.PurgeInbox(ctx, db, olderThan, ask)
		total += n
		if err != nil || n < ask {
			return total, in.wrap("inbox purge", err)
		}
	}
	return total, nil
}

// wrap turns an engine's error into an [*outbox.Error]; nil stays nil.
func (in *Inbox) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return &outbox.Error{Op: op, Engine: in.dialect.Name(), Class: in.dialect.Classify(err), Err: err}
}

// checkNames refuses what the columns cannot hold on every engine alike.
func checkNames(consumer, messageID string) error {
	if err := checkName("consumer", "name who handles the message", consumer, MaxConsumer); err != nil {
		return err
	}
	return checkName("message id", "pass the id the message came with", messageID, MaxMessageID)
}

func checkName(field, remedy, value string, most int) error {
	switch {
	case value == "":
		return &outbox.InvalidError{Field: field, Reason: "is empty: " + remedy}
	case len(value) > most:
		return &outbox.InvalidError{Field: field, Reason: fmt.Sprintf("has %d bytes, the limit is %d: shorten it, or use its hash", len(value), most)}
	case !utf8.ValidString(value):
		return &outbox.InvalidError{Field: field, Reason: "is not valid UTF-8: encode it, for example as base64"}
	case strings.ContainsRune(value, 0):
		return &outbox.InvalidError{Field: field, Reason: "contains a NUL character: remove it"}
	}
	return nil
}
