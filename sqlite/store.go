package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// store is SQLite bound to its tables.
type store struct {
	tables dialect.Tables
	sql    statements
	// writing is held by the one write transaction of this store that runs.
	writing chan struct{}
	// settlements wait for it together.
	settlements settlements
	// unpackable is how many reads more need not try to be packed.
	unpackable atomic.Int64
}

// statements are the rendered statements, named as in queries.go.
type statements struct {
	lockSchema, unlockSchema, findObjects, meta, countLanes, probeWrite string

	insertReady, insertScheduled string

	poll, pending, claim, extend, release string

	surfaceNeeded, fence, dueScheduled, surface, scheduledIsReady string
	dueHeads, dueHeld, packed, ready                              string
	settle, takenReady, takenParked                               string
	archiveReady, archiveParked, deleteReady, deleteParked        string
	messages, archiveRange, deleteRange                           string
	parkFailed, failParked, hold, demote, promote                 string

	stats, parked, lanesOfIDs, lanesOf, lockLane, selectParkedOfIDs, selectParked string
	requeueUnplaced, requeueKeyless, requeueKeyed, discard                        string
	now, selectDoneOfIDs, selectDone, replay, purgeNeeded, purgeDone, purgeable   string
	claimPurgeNeeded, claimPurge                                                  string

	record, recorded, purgeInboxNeeded, purgeInbox string

	take, giveBack, lastRevision, revisedValues string
	advance, progress, setProgress              string

	writeAudit, audit, viewLanes, viewDone, viewReasons string
	viewMessage                                         string
}

func newStore(tables dialect.Tables) *store {
	render := func(text string) string { return dialect.Expand(text, tables, quote) }
	return &store{
		tables:  tables,
		writing: make(chan struct{}, 1),
		sql: statements{
			lockSchema:   render(lockSchemaSQL),
			unlockSchema: render(unlockSchemaSQL),
			findObjects:  render(findObjectsSQL),
			meta:         render(metaSQL),
			countLanes:   render(countLanesSQL),
			probeWrite:   render(probeWriteSQL),

			insertReady:     render(insertReadySQL),
			insertScheduled: render(insertScheduledSQL),

			poll:    render(pollSQL),
			pending: render(pendingSQL),
			claim:   render(claimSQL),
			extend:  render(extendSQL),
			release: render(releaseSQL),

			surfaceNeeded:    render(surfaceNeededSQL),
			fence:            render(fenceSQL),
			dueScheduled:     render(dueScheduledSQL),
			surface:          render(surfaceSQL),
			scheduledIsReady: render(scheduledIsReadySQL),
			dueHeads:         render(dueHeadsSQL),
			dueHeld:          render(dueHeldSQL),
			packed:           render(packedSQL),
			ready:            render(readySQL),
			settle:           render(settleSQL),
			messages:         render(messagesSQL),
			archiveRange:     render(archiveRangeSQL),
			deleteRange:      render(deleteRangeSQL),
			archiveReady:     render(archiveReadySQL),
			archiveParked:    render(archiveParkedSQL),
			takenReady:       render(takenReadySQL),
			takenParked:      render(takenParkedSQL),
			deleteReady:      render(deleteReadySQL),
			deleteParked:     render(deleteParkedSQL),
			parkFailed:       render(parkFailedSQL),
			failParked:       render(failParkedSQL),
			hold:             render(holdSQL),
			demote:           render(demoteSQL),
			promote:          render(promoteSQL),

			stats:             render(statsSQL),
			parked:            render(parkedSQL),
			lanesOfIDs:        render(lanesOfIDsSQL),
			lanesOf:           render(lanesOfSQL),
			lockLane:          render(lockLaneSQL),
			selectParkedOfIDs: render(selectParkedOfIDsSQL),
			selectParked:      render(selectParkedSQL),
			requeueUnplaced:   render(requeueUnplacedSQL),
			requeueKeyless:    render(requeueKeylessSQL),
			requeueKeyed:      render(requeueKeyedSQL),
			discard:           render(discardSQL),
			now:               render(nowSQL),
			selectDoneOfIDs:   render(selectDoneOfIDsSQL),
			selectDone:        render(selectDoneSQL),
			replay:            render(replaySQL),
			purgeNeeded:       render(purgeNeededSQL),
			purgeable:         render(purgeableSQL),
			purgeDone:         render(purgeDoneSQL),
			claimPurgeNeeded:  render(claimPurgeNeededSQL),
			claimPurge:        render(claimPurgeSQL),

			record:           render(recordSQL),
			recorded:         render(recordedSQL),
			purgeInboxNeeded: render(purgeInboxNeededSQL),
			purgeInbox:       render(purgeInboxSQL),

			take:          render(takeSQL),
			giveBack:      render(giveBackSQL),
			lastRevision:  render(lastRevisionSQL),
			revisedValues: render(revisedValuesSQL),
			advance:       render(advanceSQL),
			progress:      render(progressSQL),
			setProgress:   render(setProgressSQL),

			writeAudit:  render(writeAuditSQL),
			audit:       render(auditSQL),
			viewLanes:   render(viewLanesSQL),
			viewDone:    render(viewDoneSQL),
			viewReasons: render(viewReasonsSQL), viewMessage: render(viewMessageSQL),
		},
	}
}

// lock waits for the store's write transactions before this one; unlock lets the
// next one run.
func (s *store) lock(ctx context.Context) error {
	select {
	case s.writing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *store) unlock() { <-s.writing }

// write runs f in a transaction, which commits when f returns nil. The first
// statement of f must be a write.
//
// An interrupted write makes SQLite roll the transaction back, and what followed
// would commit by itself. So f returns at the first error, and nothing but
// Rollback comes after.
func (s *store) write(ctx context.Context, db dialect.DB, f func(tx *sql.Tx) error) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.unlock()
	return s.transaction(ctx, db, f)
}

// transaction is write with the writer's place held.
func (s *store) transaction(ctx context.Context, db dialect.DB, f func(tx *sql.Tx) error) error {
	tx, end, err := begin(ctx, db)
	if err != nil {
		return err
	}
	defer end()
	if err := f(tx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return ended(ctx, tx.Commit())
}

// askAnew is how long a transaction asks for the file before it begins to ask anew.
// SQLite pauses between two looks, first for 1 ms and in the end for 100, so beside
// writers that never pause who has waited for long hardly ever gets it (decision 0021).
const askAnew = 50 * time.Millisecond

// begin begins a transaction that writes. It waits for other writers for as long as the
// connection's busy_timeout says, which is as before when it returns. end gives the
// transaction up, unless it was committed, and its connection back.
func begin(ctx context.Context, db dialect.DB) (tx *sql.Tx, end func(), err error) {
	pool, ok := db.(*sql.DB)
	if !ok { // somebody's own, with its own way to begin
		tx, err = db.BeginTx(ctx, nil)
		return tx, func() { rollback(tx) }, err
	}
	conn, err := pool.Conn(ctx)
	if err != nil {
		return nil, nil, err
	}
	if tx, err = beginOn(ctx, conn); err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return tx, func() { rollback(tx); _ = conn.Close() }, nil
}

func beginOn(ctx context.Context, conn *sql.Conn) (*sql.Tx, error) {
	var ms int64
	if err := conn.QueryRowContext(ctx, "PRAGMA busy_timeout").Scan(&ms); err != nil {
		return nil, err
	}
	patience := time.Duration(ms) * time.Millisecond
	if patience <= askAnew {
		return conn.BeginTx(ctx, nil)
	}
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// Were the transaction's context to end, database/sql would end the transaction, and
	// with some drivers close conn, while it is used here, which is a nil pointer there.
	// So the context is looked at between the asks, and the statements that follow end with it.
	ask := func() (*sql.Tx, error) { return conn.BeginTx(context.WithoutCancel(ctx), nil) }
	var tx *sql.Tx
	err := setPatience(ctx, conn, askAnew) // which may have been done even if it failed
	if err == nil {
		tx, err = ask()
	}
	// An ask takes somewhat longer than it is to, or no time where it is refused at once.
	for left := patience - askAnew; left > 0 && patient.Err() == nil && (Dialect{}).Classify(err) == dialect.Conflict; left -= askAnew {
		if left < askAnew {
			if err = setPatience(ctx, conn, left); err != nil {
				break
			}
		}
		tx, err = ask()
	}
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	if failed := setPatience(context.WithoutCancel(ctx), conn, patience); failed != nil {
		// A connection that stays impatient would fail the application's transactions.
		if err == nil {
			rollback(tx)
		}
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		return nil, errors.Join(err, failed)
	}
	return tx, err
}

// setPatience is how long a connection's transactions wait for other writers.
func setPatience(ctx context.Context, conn *sql.Conn, patience time.Duration) error {
	_, err := conn.ExecContext(ctx, "PRAGMA busy_timeout = "+strconv.FormatInt(patience.Milliseconds(), 10))
	return err
}

// read runs f in a transaction that only reads, and so sees one state of the
// database without a lock.
func (s *store) read(ctx context.Context, db dialect.DB, f func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer rollback(tx)
	return ended(ctx, f(tx))
}

// rollback ends a transaction that may have ended: then there is nothing to say.
func rollback(tx *sql.Tx) { _ = tx.Rollback() }

// ended names the reason when database/sql ended a transaction because its context
// did, and says only that it has ended.
func ended(ctx context.Context, err error) error {
	if errors.Is(err, sql.ErrTxDone) && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// exec runs one statement in a transaction of its own and returns how many rows it
// matched.
func (s *store) exec(ctx context.Context, db dialect.DB, statement string, args ...any) (n int, err error) {
	err = s.write(ctx, db, func(tx *sql.Tx) (err error) {
		n, err = affected(tx.ExecContext(ctx, statement, args...))
		return err
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// affected is the number of rows of a result.
func affected(result sql.Result, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	n, err := result.RowsAffected()
	return int(n), err
}

// queryer reads: a pool, a connection or a transaction.
type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// query reads all rows of a statement and closes it before it returns: an open
// read keeps the WAL from being checkpointed. It stops early when scan returns
// false.
func query(ctx context.Context, q queryer, scan func(rows *sql.Rows) (more bool, err error), statement string, args ...any) error {
	rows, err := q.QueryContext(ctx, statement, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if more, err := scan(rows); err != nil || !more {
			return err
		}
	}
	// The last step of a statement that writes is where it commits.
	return rows.Err()
}

// values reads a statement of one column.
func values[T any](ctx context.Context, q queryer, statement string, args ...any) ([]T, error) {
	var all []T
	err := query(ctx, q, func(rows *sql.Rows) (bool, error) {
		var v T
		err := rows.Scan(&v)
		all = append(all, v)
		return true, err
	}, statement, args...)
	if err != nil {
		return nil, err
	}
	return all, nil
}

// list is a JSON array of numbers, which json_each turns into rows.
func list(numbers []int64) string {
	text := make([]byte, 0, 2+12*len(numbers))
	text = append(text, '[')
	for i, n := range numbers {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(text, n, 10)
	}
	return string(append(text, ']'))
}

// texts is a JSON array of strings.
func texts(all []string) string {
	text, err := json.Marshal(all)
	if err != nil {
		panic(fmt.Sprintf("sqlite: strings always marshal: %v", err))
	}
	return string(text)
}

// Insert implements [dialect.Producer]. Of a transaction in which it failed the
// caller must roll back everything, as always.
//
// It looks at the context before it begins, and then no more: SQLite rolls back
// the whole transaction when a write in it is interrupted, and what the caller
// wrote next would commit by itself. The wait for the writer's place, if the
// transaction has not got it yet, ends with busy_timeout.
func (s *store) Insert(ctx context.Context, tx dialect.Tx, messages []dialect.Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	var ready, scheduled []any
	for i := range messages {
		if m := &messages[i]; m.Delay > 0 {
			scheduled = append(appendContent(scheduled, m), m.Delay.Microseconds())
		} else {
			ready = appendContent(ready, m)
		}
	}
	if err := insert(ctx, tx, s.sql.insertReady, readyValuesSQL, columns(readyValuesSQL), ready); err != nil {
		return err
	}
	return insert(ctx, tx, s.sql.insertScheduled, scheduledValuesSQL, columns(scheduledValuesSQL), scheduled)
}

// appendContent appends the content columns of a message in the order of the
// insert statements.
func appendContent(args []any, m *dialect.Message) []any {
	var revision sql.Null[int64]
	if m.Revision != 0 {
		revision = sql.Null[int64]{V: m.Revision, Valid: true}
	}
	return append(args, m.Lane, m.ID[:], m.Topic, m.Key, m.KeyHash, m.Type, m.ContentType, m.Headers,
		revision, m.Replay, payloadOf(m))
}

// payloadOf is a payload as an argument: a nil slice in an any would be an empty blob
// to the driver.
func payloadOf(m *dialect.Message) any {
	if m.Payload == nil {
		return nil
	}
	return m.Payload
}

// columns is how many arguments a row takes that names no table.
func columns(row string) int { return strings.Count(row, "?") }

// insert runs statement for the rows in args, many rows at a time.
func insert(ctx context.Context, tx dialect.Tx, statement, row string, columns int, args []any) error {
	const most = 100 // rows a statement; more are not faster, see BenchmarkInsert
	for len(args) > 0 {
		n := min(len(args)/columns, most)
		text := statement + strings.Repeat(row+", ", n-1) + row
		if _, err := tx.ExecContext(ctx, text, args[:n*columns]...); err != nil {
			return err
		}
		args = args[n*columns:]
	}
	return nil
}

// Poll implements [dialect.Lanes]. It is one read and never waits for a writer.
func (s *store) Poll(ctx context.Context, db dialect.DB, owner string, limit int) (lanes []dialect.Candidate, err error) {
	err = query(ctx, db, func(rows *sql.Rows) (bool, error) {
		var c dialect.Candidate
		if err := rows.Scan(&c.Lane, &c.Epoch, &c.Due); err != nil {
			return false, err
		}
		lanes = append(lanes, c)
		return true, nil
	}, s.sql.poll, owner, limit)
	return lanes, err
}

// Pending implements [dialect.Lanes].
func (s *store) Pending(ctx context.Context, db dialect.DB, owner string) (work, held bool, err error) {
	err = db.QueryRowContext(ctx, s.sql.pending, owner).Scan(&work, &held)
	return work, held, err
}

// Claim implements [dialect.Lanes]. SQLite cannot skip a lock: Claim waits for the
// file's writer, up to busy_timeout.
func (s *store) Claim(ctx context.Context, db dialect.DB, lane int, owner string, ttl time.Duration) (epoch int64, ok bool, err error) {
	var epochs []int64
	err = s.write(ctx, db, func(tx *sql.Tx) (err error) {
		epochs, err = values[int64](ctx, tx, s.sql.claim, lane, owner, ttl.Microseconds())
		return err
	})
	if err != nil || len(epochs) == 0 {
		return 0, false, err
	}
	return epochs[0], true, nil
}

// Extend implements [dialect.Lanes].
func (s *store) Extend(ctx context.Context, db dialect.DB, lease dialect.Lease, ttl time.Duration) (bool, error) {
	n, err := s.exec(ctx, db, s.sql.extend, lease.Lane, lease.Owner, lease.Epoch, ttl.Microseconds())
	return n == 1, err
}

// Release implements [dialect.Lanes].
func (s *store) Release(ctx context.Context, db dialect.DB, lease dialect.Lease) error {
	_, err := s.exec(ctx, db, s.sql.release, lease.Lane, lease.Owner, lease.Epoch)
	return err
}

// Record implements [dialect.Inbox]. As [store.Insert], it is not interrupted.
// Another open transaction that has recorded anything is the file's writer, and
// waited for, unless the caller's has read before it writes: then it is refused
// with a [dialect.Conflict], which BEGIN IMMEDIATE avoids.
func (s *store) Record(ctx context.Context, tx dialect.Tx, consumer, messageID string) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	n, err := affected(tx.ExecContext(context.WithoutCancel(ctx), s.sql.record, consumer, messageID))
	return n == 1, err
}

// Recorded implements [dialect.Inbox].
func (s *store) Recorded(ctx context.Context, db dialect.DB, consumer, messageID string) (recorded bool, err error) {
	err = db.QueryRowContext(ctx, s.sql.recorded, consumer, messageID).Scan(&recorded)
	return recorded, err
}

// PurgeInbox implements [dialect.Inbox].
func (s *store) PurgeInbox(ctx context.Context, db dialect.DB, olderThan time.Duration, limit int) (int, error) {
	return s.purge(ctx, db, s.sql.purgeInboxNeeded, s.sql.purgeInbox, olderThan, limit)
}
