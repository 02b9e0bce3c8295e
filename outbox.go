package outbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox/dialect"
)

// Tx is the open transaction that carries the business change. A *sql.Tx is
// one; an engine package may adapt its driver's native transaction.
type Tx = dialect.Tx

// Config configures an [Outbox]. The zero value works.
type Config struct {
	// Schema holds the tables. Default: the session's.
	Schema string
	// Prefix names the tables. Default: outbox.
	Prefix string
	// Lanes is how many lanes the schema has: the most relays' workers that can
	// be busy at once. It is fixed when the schema is made. Default: what the
	// engine's [dialect.Capabilities] name, or [dialect.DefaultLanes].
	Lanes int
	// Limits bound what Enqueue accepts.
	Limits Limits
	// Inject adds headers from the caller's context to every message enqueued,
	// for example traceparent. A message's own header of the same name wins.
	// With OpenTelemetry:
	//
	//	func(ctx context.Context, headers map[string]string) {
	//		otel.GetTextMapPropagator().Inject(ctx, propagation.MapCarrier(headers))
	//	}
	Inject func(ctx context.Context, headers map[string]string)
	// Notify makes [Outbox.Wake] signal relays in other processes too, on a
	// connection of its own after the commit, several wake-ups in one signal.
	// Only engines whose Store is a [dialect.Waker] can. Default: false, since
	// polling finds every message.
	Notify bool
	// Revisions gives every message with a key the next revision of its key, 1, 2, 3
	// and so on, without gaps: in the producer's transaction, by the row of the key,
	// for which producers of the same key wait until that transaction has ended. So
	// they take turns, without a lock of their own. A message that has a Revision must
	// have that one, or Enqueue refuses it with a [*RevisionError]; [Outbox.LastRevision]
	// tells which one a message got. Messages with a key
	// cannot be delayed then. All producers of a table must have the same setting, and
	// only engines whose Store is a [dialect.Reviser] can. Default: false.
	Revisions bool
}

// DefaultPrefix is what the names of the tables begin with by default.
const DefaultPrefix = "outbox"

// Outbox writes messages beside business changes and is the operator's door to
// them. It is safe for concurrent use.
type Outbox struct {
	db      *sql.DB
	dialect dialect.Dialect
	store   dialect.Store
	tables  dialect.Tables
	limits  Limits
	inject  func(context.Context, map[string]string)
	reviser dialect.Reviser // nil without Config.Revisions
	wakeups wakeups
}

// New returns the outbox of a database. It checks cfg and does no I/O: call
// [Outbox.Check] at start to see that the database agrees. db is used by
// everything but Enqueue, and is not closed.
func New(db *sql.DB, d dialect.Dialect, cfg Config) (*Outbox, error) {
	if db == nil || d == nil {
		return nil, fmt.Errorf("new outbox: %w: db and dialect are required", ErrInvalid)
	}
	tables := dialect.Tables{Schema: cfg.Schema, Prefix: cfg.Prefix, Lanes: cfg.Lanes}
	if tables.Prefix == "" {
		tables.Prefix = DefaultPrefix
	}
	if tables.Lanes == 0 {
		tables.Lanes = cmp.Or(d.Capabilities().Lanes, dialect.DefaultLanes)
	}
	limits, err := cfg.Limits.withDefaults()
	store, bindErr := d.Bind(tables)
	if err := errors.Join(err, bindErr); err != nil {
		return nil, fmt.Errorf("new outbox: %w: %w", ErrInvalid, err)
	}
	o := &Outbox{db: db, dialect: d, store: store, tables: tables, limits: limits, inject: cfg.Inject}
	if cfg.Notify {
		waker, ok := store.(dialect.Waker)
		if !ok {
			return nil, fmt.Errorf("new outbox: %w: notify is set, but %s cannot wake other processes: leave it out, polling finds every message", ErrInvalid, d.Name())
		}
		o.wakeups.remote = &notifier{waker: waker, db: db}
	}
	if cfg.Revisions {
		reviser, ok := store.(dialect.Reviser)
		if !ok {
			return nil, fmt.Errorf("new outbox: %w: revisions is set, but %s cannot count the messages of a key: leave it out, or give every message its Revision", ErrInvalid, d.Name())
		}
		o.reviser = reviser
	}
	return o, nil
}

// Enqueue writes messages in tx, in one round trip, and returns their ids in
// the order given. They exist if and only if tx commits; of one key they are
// published in this order, after those enqueued by transactions that committed
// before. Call [Outbox.Wake] after the commit, or use [Outbox.InTx], to have
// them published at once rather than at the next poll.
//
// A message that breaks a limit is refused with an [*InvalidError] before
// anything is written, and with Config.Revisions a revision that is not the next
// with a [*RevisionError]. After any other error roll tx back. An id that is ready or
// scheduled already is [ErrDuplicateID].
func (o *Outbox) Enqueue(ctx context.Context, tx Tx, messages ...Message) ([]uuid.UUID, error) {
	if len(messages) == 0 {
		return nil, nil
	}
	if tx == nil {
		return nil, fmt.Errorf("enqueue: %w", &InvalidError{Field: "transaction", Reason: "is nil: pass the one of the business change"})
	}
	records := make([]dialect.Message, len(messages))
	ids := make([]uuid.UUID, len(messages))
	for i, m := range messages {
		r, err := o.record(ctx, m)
		if err != nil {
			if invalid := (*InvalidError)(nil); errors.As(err, &invalid) {
				invalid.Index = i
			}
			return nil, fmt.Errorf("enqueue: %w", err)
		}
		records[i], ids[i] = r, r.ID
	}
	if o.reviser != nil {
		rest, err := o.revise(ctx, tx, records)
		if err != nil {
			return nil, err
		}
		if records = rest; len(records) == 0 {
			return ids, nil
		}
	}
	if err := o.store.Insert(ctx, tx, records); err != nil {
		return nil, o.wrap("enqueue", err)
	}
	return ids, nil
}

// InTx runs f in a transaction of the outbox's database, commits it if f
// returns nil, rolls it back otherwise or if f panics, and wakes the relays
// after the commit. An error of the commit is of class
// [dialect.OutcomeUnknown] when it may have taken effect.
func (o *Outbox) InTx(ctx context.Context, opts *sql.TxOptions, f func(ctx context.Context, tx *sql.Tx) error) error {
	tx, err := o.db.BeginTx(ctx, opts)
	if err != nil {
		return o.wrap("begin", err)
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing, after an error that one counts
	if err := f(ctx, tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return o.wrap("commit", err)
	}
	o.Wake() //nolint:contextcheck // the signal outlives the call
	return nil
}

// Migrate makes the tables or brings them to this version's schema and returns
// the versions applied. A schema that is named and missing is made too, where
// the engine has schemas. It is safe when several processes start at once.
func (o *Outbox) Migrate(ctx context.Context) ([]int, error) {
	applied, err := o.store.Migrate(ctx, o.db)
	return applied, o.wrap("migrate", err)
}

// PartitionDone puts the done table into partitions, one a day (UTC), with everything
// that is in it, and returns false when it was. Relays find it out by themselves: they
// drop days that are past the retention whole, so that their space is returned. It
// takes the tables' owner. See docs/retention.md for what it costs. An engine that has
// no such partitions refuses with [errors.ErrUnsupported].
func (o *Outbox) PartitionDone(ctx context.Context) (bool, error) {
	p, ok := o.store.(dialect.Partitioner)
	if !ok {
		return false, fmt.Errorf("partition done: %s keeps done in one table: %w", o.dialect.Name(), errors.ErrUnsupported)
	}
	did, err := p.PartitionDone(ctx, o.db)
	if err != nil {
		return did, o.wrap("partition done", err)
	}
	_, err = p.KeepPartitions(ctx, o.db, forever)
	return did, o.wrap("partition done", err)
}

// KeepPartitions makes the partitions of done for the days ahead, and drops those of
// which everything was settled at least olderThan ago. It does nothing to a table that
// is not in partitions, or as a user who may not. Relays do it by themselves after
// their retention.
func (o *Outbox) KeepPartitions(ctx context.Context, olderThan time.Duration) (dialect.Partitions, error) {
	if olderThan < 0 {
		return dialect.Partitions{}, fmt.Errorf("keep partitions: %w", &InvalidError{Field: "older than", Reason: "is an age: give a duration of 0 or more"})
	}
	p, ok := o.store.(dialect.Partitioner)
	if !ok {
		return dialect.Partitions{}, nil
	}
	kept, err := p.KeepPartitions(ctx, o.db, olderThan)
	return kept, o.wrap("keep partitions", err)
}

// forever is an age that nothing has.
const forever = 100 * 365 * 24 * time.Hour

// Schema returns the DDL that Migrate runs, for people to read or run.
func (o *Outbox) Schema() []dialect.Step { return o.store.Steps() }

// Check compares the database with what the outbox needs: server version,
// session settings, tables, schema version, number of lanes. Every finding is
// in the error, which matches [ErrNotReady], with its remedy.
func (o *Outbox) Check(ctx context.Context) error {
	in, err := o.store.Inspect(ctx, o.db)
	if err != nil {
		return o.wrap("check", err)
	}
	problems := in.Problems
	steps := o.store.Steps()
	switch newest := steps[len(steps)-1].Version; {
	case in.Version == 0:
		where := ""
		if o.tables.Schema != "" {
			where = fmt.Sprintf(" in schema %q", o.tables.Schema)
		}
		problems = append(problems, fmt.Sprintf("the tables with prefix %q do not exist%s: run `outbox migrate`, call Migrate, or check schema and prefix", o.tables.Prefix, where))
	case in.Version < newest:
		problems = append(problems, fmt.Sprintf("the schema is version %d and this program needs %d: run `outbox migrate` or call Migrate", in.Version, newest))
	case in.Version > newest:
		problems = append(problems, fmt.Sprintf("the schema is version %d and this program knows %d: upgrade the program", in.Version, newest))
	}
	if in.Version > 0 && in.Lanes != o.tables.Lanes {
		problems = append(problems, (&dialect.LanesError{Schema: in.Lanes, Set: o.tables.Lanes}).Error())
	}
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("check (%s): %w: %s", o.dialect.Name(), ErrNotReady, strings.Join(problems, "; "))
}

// Inspect reports what stands in the database.
func (o *Outbox) Inspect(ctx context.Context) (dialect.Inspection, error) {
	in, err := o.store.Inspect(ctx, o.db)
	return in, o.wrap("inspect", err)
}

// DB returns the database of the outbox.
func (o *Outbox) DB() *sql.DB { return o.db }

// Dialect returns the engine of the outbox.
func (o *Outbox) Dialect() dialect.Dialect { return o.dialect }

// Store returns the engine bound to the outbox's tables, for relays.
func (o *Outbox) Store() dialect.Store { return o.store }

// Tables returns the names of the tables, defaults filled in.
func (o *Outbox) Tables() dialect.Tables { return o.tables }
