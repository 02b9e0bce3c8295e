package tail

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/outbox-suite/outbox/dialect"
)

// Config configures a [Tail]. The zero value works.
type Config struct {
	// Every is how often the server is told how far the log was read, so that it can
	// remove it, and asked how far that is behind. A stream that was silent for three
	// times as long is given up. At least 10ms. Default: 10s.
	Every time.Duration
	// RetryMin and RetryMax bound the pause before a stream that ended is begun again:
	// it doubles from one to the other, jittered. Defaults: 250ms, 30s.
	RetryMin, RetryMax time.Duration
	// Observe is told what happens. It must return at once. Default: nothing is told.
	Observe func(Event)
}

func (c Config) withDefaults() (Config, error) {
	var errs []error
	duration := func(name string, v *time.Duration, def, least time.Duration) {
		if *v == 0 {
			*v = def
		}
		if *v < least {
			errs = append(errs, fmt.Errorf("%s is %v: give at least %v", name, *v, least))
		}
	}
	duration("every", &c.Every, 10*time.Second, 10*time.Millisecond)
	duration("retry min", &c.RetryMin, 250*time.Millisecond, time.Millisecond)
	duration("retry max", &c.RetryMax, 30*time.Second, c.RetryMin)
	if c.Observe == nil {
		c.Observe = func(Event) {}
	}
	return c, errors.Join(errs...)
}

// Event is one of the event types of this package.
type Event interface{ event() }

type (
	// Streaming is the begin of a stream, through the slot of that name.
	Streaming struct{ Slot string }
	// Lost is the end of a stream, or a vain attempt to begin one. Until the next,
	// after Wait, there is polling alone.
	Lost struct {
		Err  error
		Wait time.Duration
	}
	// Watched is what the server says of the slot, every Config.Every.
	Watched struct {
		Slot string
		// Behind is how much of the log was written and not read yet, and Retained
		// how much the server keeps for the slot, both in bytes.
		Behind, Retained int64
		// Status is the slot's wal_status, empty before PostgreSQL 13. From
		// "unreserved" on, the server is about to take the slot away.
		Status string
	}
	// Unwatched is a vain attempt to ask for that. The stream goes on.
	Unwatched struct{ Err error }
)

func (Streaming) event() {}
func (Lost) event()      {}
func (Watched) event()   {}
func (Unwatched) event() {}

// Tail reads the log and wakes a relay. It is safe for concurrent use; Run is called
// once at a time.
type Tail struct {
	db     *sql.DB
	tables dialect.Tables
	wake   func()
	cfg    Config
	// again is how long after the last commit there is one more wake-up, since a commit
	// is in the log a moment before others can see it.
	again time.Duration
}

// New returns a tail for the outbox of that name. It does no I/O. Connections are made as
// db's are, a pool of pgx that reaches the server itself and not a pooler: it may be
// another than the relay's, and its user another, who needs no table. wake is called at
// every commit that enqueued, and once more a moment after the last, from several
// goroutines; it must not block: [relay.Relay.Wake].
//
// [relay.Relay.Wake]: https://pkg.go.dev/github.com/outbox-suite/outbox/relay#Relay.Wake
func New(db *sql.DB, tables dialect.Tables, wake func(), cfg Config) (*Tail, error) {
	if db == nil || wake == nil || tables.Prefix == "" {
		return nil, errors.New("new tail: db, the tables' prefix and wake are required")
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("new tail: %w", err)
	}
	return &Tail{db: db, tables: tables, wake: wake, cfg: cfg, again: 5 * time.Millisecond}, nil
}

// Run reads the log until ctx ends, and then returns. A stream that ends, or cannot be
// begun, is observed and begun again. Each begins with a wake-up, for what was committed
// while nobody read.
func (t *Tail) Run(ctx context.Context) {
	for n := 1; ; n++ {
		began := time.Now()
		err := hint(t.stream(ctx))
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > t.cfg.RetryMax {
			n = 1
		}
		pause := t.cfg.RetryMin
		for i := 1; i < n && pause < t.cfg.RetryMax; i++ {
			pause *= 2
		}
		pause = min(pause, t.cfg.RetryMax)
		pause = pause*3/4 + rand.N(pause/2+1)
		t.cfg.Observe(Lost{Err: err, Wait: pause})
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// stream reads the log through a slot of its own until something ends it.
func (t *Tail) stream(ctx context.Context) error {
	if err := t.published(ctx); err != nil {
		return err
	}
	conn, err := t.connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp(ctx, conn)
	if err := t.lookForUs(ctx, conn); err != nil {
		return err
	}

	// 64 random bits: names are the server's, not the database's.
	slot := fmt.Sprintf("outbox_tail_%016x", rand.Uint64())
	// This waits for the transactions that are writing.
	if _, err := pglogrepl.CreateReplicationSlot(ctx, conn, slot, "pgoutput", pglogrepl.CreateReplicationSlotOptions{
		Temporary: true, Mode: pglogrepl.LogicalReplication, SnapshotAction: "NOEXPORT_SNAPSHOT",
	}); err != nil {
		return fmt.Errorf("create a replication slot: %w", err)
	}
	if err := pglogrepl.StartReplication(ctx, conn, slot, 0, pglogrepl.StartReplicationOptions{
		Mode:       pglogrepl.LogicalReplication,
		PluginArgs: []string{"proto_version '1'", "publication_names " + literal(quote(publication(t.tables)))},
	}); err != nil {
		return fmt.Errorf("start replication: %w", err)
	}
	t.cfg.Observe(Streaming{Slot: slot})
	t.wake()

	var r reader
	ctx, stop := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer stop(nil)
	watch.Go(func() { stop(t.watch(ctx, slot, &r.read)) })
	err = t.receive(ctx, conn, &r)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// lookForUs has the server look whether we are still there while a command of ours waits,
// as the making of a slot may for hours. Otherwise the slot of a process that was killed
// meanwhile stays until then, and that of the next beside it.
func (t *Tail) lookForUs(ctx context.Context, conn *pgconn.PgConn) error {
	// The second statement is the first under the setting, with which the looks begin.
	err := conn.Exec(ctx, fmt.Sprintf("SET client_connection_check_interval = %d; SELECT 1", t.cfg.Every.Milliseconds())).Close()
	if code(err) != "" { // it does not know the setting, before PostgreSQL 14, or cannot look
		return nil
	}
	return err
}

// receive passes the stream to the reader, and tells the server every Config.Every how
// far it has come, for which it wants an answer: a stream that is cut in silence must not
// pass for an idle one.
func (t *Tail) receive(ctx context.Context, conn *pgconn.PgConn, r *reader) error {
	again := time.AfterFunc(time.Hour, t.wake)
	defer again.Stop()
	heard := time.Now()
	next := heard.Add(t.cfg.Every)
	for {
		until, cancel := context.WithDeadline(ctx, next)
		msg, err := conn.ReceiveMessage(until)
		cancel()
		switch {
		case err == nil:
			heard = time.Now()
		case ctx.Err() != nil || !pgconn.Timeout(err):
			return fmt.Errorf("read the log: %w", err)
		}
		answer := false
		switch msg := msg.(type) {
		case *pgproto3.ErrorResponse:
			return fmt.Errorf("read the log: %w", pgconn.ErrorResponseToPgError(msg))
		case *pgproto3.CopyData:
			var woken bool
			if woken, answer, err = r.take(msg.Data); err != nil {
				return fmt.Errorf("read the log: %w", err)
			}
			if woken {
				t.wake()
				again.Reset(t.again)
			}
		}
		now := time.Now()
		if !answer && now.Before(next) {
			continue
		}
		if silent := now.Sub(heard); silent > 3*t.cfg.Every {
			return fmt.Errorf("read the log: the server was silent for %v", silent.Round(time.Millisecond))
		}
		next = now.Add(t.cfg.Every)
		if err := pglogrepl.SendStandbyStatusUpdate(ctx, conn, pglogrepl.StandbyStatusUpdate{
			WALWritePosition: pglogrepl.LSN(r.read.Load()), ReplyRequested: !answer,
		}); err != nil {
			return fmt.Errorf("report to the server: %w", err)
		}
	}
}

// reader follows a stream of pgoutput, version 1 of its protocol: each transaction comes
// whole and when it is committed, in the order of commits.
type reader struct {
	read     atomic.Uint64 // up to where in the log
	enqueued bool          // the transaction that is being read has inserted something
}

// take reads one message of the stream. It tells whether a transaction that enqueued
// has ended, and whether the server wants to hear how far we are.
func (r *reader) take(data []byte) (woken, answer bool, err error) {
	if len(data) == 0 {
		return false, false, errors.New("a message without content")
	}
	switch data[0] {
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		alive, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		if err != nil {
			return false, false, err
		}
		r.reached(alive.ServerWALEnd)
		return false, alive.ReplyRequested, nil
	case pglogrepl.XLogDataByteID:
		part, err := pglogrepl.ParseXLogData(data[1:])
		if err != nil {
			return false, false, err
		}
		r.reached(part.WALStart)
		if len(part.WALData) == 0 {
			return false, false, nil
		}
		switch pglogrepl.MessageType(part.WALData[0]) {
		case pglogrepl.MessageTypeInsert:
			r.enqueued = true
		case pglogrepl.MessageTypeCommit:
			// Before PostgreSQL 15 transactions come that inserted nothing here.
			woken, r.enqueued = r.enqueued, false
		default:
		}
	}
	return woken, false, nil
}

// reached notes a position. What is behind it is of no more use: a wake-up that is lost
// costs one poll.
func (r *reader) reached(lsn pglogrepl.LSN) {
	if at := uint64(lsn); at > r.read.Load() {
		r.read.Store(at)
	}
}

// watch asks the server about the slot until ctx ends, or until the publication does not
// serve any more: from PostgreSQL 18 on the server streams nothing then, and says nothing.
func (t *Tail) watch(ctx context.Context, slot string, read *atomic.Uint64) error {
	tick := time.NewTicker(t.cfg.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		call, cancel := context.WithTimeout(ctx, t.cfg.Every)
		w := Watched{Slot: slot}
		err := t.db.QueryRowContext(call, watchSQL, slot, pglogrepl.LSN(read.Load()).String()).Scan(&w.Behind, &w.Retained, &w.Status)
		if err == nil {
			t.cfg.Observe(w)
			err = t.published(call)
		}
		cancel()
		switch {
		case errors.Is(err, errUnpublished):
			return err
		case errors.Is(err, sql.ErrNoRows): // the stream ends too
		case err != nil && ctx.Err() == nil:
			t.cfg.Observe(Unwatched{Err: err})
		}
	}
}

// watchSQL reads one slot. wal_status is not a column before PostgreSQL 13.
const watchSQL = `
SELECT greatest(pg_wal_lsn_diff(pg_current_wal_lsn(), $2::pg_lsn), 0)::bigint,
       pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint,
       coalesce(to_jsonb(s) ->> 'wal_status', '')
FROM pg_replication_slots AS s WHERE slot_name = $1 AND restart_lsn IS NOT NULL`

// connect makes a connection for replication, with the settings of the pool's.
func (t *Tail) connect(ctx context.Context) (*pgconn.PgConn, error) {
	pooled, err := t.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = pooled.Close() }()
	var config *pgconn.Config
	if err := pooled.Raw(func(driverConn any) error {
		for {
			switch c := driverConn.(type) {
			case *stdlib.Conn:
				config = &c.Conn().Config().Config // a copy
				return nil
			case interface{ Raw() driver.Conn }: // a tracing wrapper
				driverConn = c.Raw()
			default:
				return fmt.Errorf("connection is a %T: open the pool through pgx's stdlib to read the log", driverConn)
			}
		}
	}); err != nil {
		return nil, err
	}
	config.RuntimeParams["replication"] = "database"
	config.RuntimeParams["application_name"] = "outbox tail"
	return pgconn.ConnectConfig(ctx, config)
}

// hangUp ends the connection, and with it the slot.
func hangUp(ctx context.Context, conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
	// Where a call was interrupted, the server is asked to cancel it: a command that
	// waits, as the making of a slot does, does not notice that nobody is there.
	select {
	case <-conn.CleanupDone():
	case <-ctx.Done():
	}
}
