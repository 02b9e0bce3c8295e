package sqlite

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// fenced runs f in a transaction that begins with the fence, a write to the lane
// row that matches no row when the lease is lost. Then nothing else happens in it.
func (s *store) fenced(ctx context.Context, db dialect.DB, lease dialect.Lease, f func(tx *sql.Tx) error) (ok bool, err error) {
	err = s.write(ctx, db, func(tx *sql.Tx) (err error) {
		if ok, err = fence(ctx, tx, s.sql.fence, lease); err != nil || !ok {
			return err
		}
		return f(tx)
	})
	return ok && err == nil, err
}

// fence writes to the lane row, and tells whether the lease is held.
func fence(ctx context.Context, tx *sql.Tx, statement string, lease dialect.Lease, more ...any) (held bool, err error) {
	n, err := affected(tx.ExecContext(ctx, statement, append([]any{lease.Lane, lease.Owner, lease.Epoch}, more...)...))
	return n > 0, err
}

// Surface implements [dialect.Turn]. It begins with a read and takes the writer's
// place only when something is due.
func (s *store) Surface(ctx context.Context, db dialect.DB, lease dialect.Lease, limit int) (moved int, ok bool, err error) {
	var owned, due bool
	err = db.QueryRowContext(ctx, s.sql.surfaceNeeded, lease.Lane, lease.Owner, lease.Epoch).Scan(&owned, &due)
	if err != nil || !owned || !due {
		return 0, owned && err == nil, err
	}
	ok, err = s.fenced(ctx, db, lease, func(tx *sql.Tx) error {
		var fresh, twins []int64
		err := query(ctx, tx, func(rows *sql.Rows) (bool, error) {
			var pos int64
			var isReady bool
			if err := rows.Scan(&pos, &isReady); err != nil {
				return false, err
			}
			if isReady {
				twins = append(twins, pos)
			} else {
				fresh = append(fresh, pos)
			}
			return true, nil
		}, s.sql.dueScheduled, lease.Lane, limit)
		if err != nil {
			return err
		}
		if len(twins) > 0 {
			if _, err := tx.ExecContext(ctx, s.sql.scheduledIsReady, list(twins)); err != nil {
				return err
			}
		}
		if len(fresh) == 0 {
			return nil
		}
		if moved, err = affected(tx.ExecContext(ctx, s.sql.surface, list(fresh))); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, s.sql.deleteParked, lease.Lane, list(fresh))
		return err
	})
	if err != nil || !ok {
		return 0, false, err
	}
	return moved, true, nil
}

// budget is what a read may still return.
type budget struct {
	rows  int
	bytes int64
}

func newBudget(limit dialect.Limit) *budget {
	b := budget{rows: limit.Rows, bytes: limit.Bytes}
	if b.bytes == 0 {
		b.bytes = math.MaxInt64
	}
	return &b
}

// left tells whether one row more may be read, whatever its size.
func (b *budget) left() bool { return b.rows > 0 && b.bytes > 0 }

func (b *budget) spend(row *dialect.Row) {
	b.rows--
	b.bytes -= int64(len(row.Payload) + len(row.Headers))
}

// readRows reads rows until the budget is spent.
func readRows(ctx context.Context, q queryer, b *budget, into *scanner, statement string, args ...any) ([]dialect.Row, error) {
	var all []dialect.Row
	err := query(ctx, q, func(rows *sql.Rows) (bool, error) {
		if err := into.scan(rows); err != nil {
			return false, err
		}
		b.spend(&into.row)
		all = append(all, into.row)
		return b.left(), nil
	}, statement, args...)
	if err != nil {
		return nil, err
	}
	return all, nil
}

// Due implements [dialect.Turn]. It reads heads and what is behind them from one
// snapshot: were the head discarded in between, the row that follows it would be a
// head by then, and missing from the result.
func (s *store) Due(ctx context.Context, db dialect.DB, lane int, limit dialect.Limit) ([]dialect.Row, error) {
	var due []dialect.Row
	err := s.read(ctx, db, func(tx *sql.Tx) error {
		b := newBudget(limit)
		heads, err := readRows(ctx, tx, b, parkedScanner(), s.sql.dueHeads, lane, b.rows)
		if err != nil {
			return err
		}
		runs, keys := runsOf(heads)
		for _, run := range runs {
			due = append(due, run...)
			head := run[len(run)-1]
			if !head.KeyHash.Valid {
				continue
			}
			// An even share of what is left, so that what one key does not need
			// goes to those after it.
			share := max(1, b.rows/keys)
			keys--
			if !b.left() {
				continue
			}
			held, err := readRows(ctx, tx, b, parkedScanner(), s.sql.dueHeld, lane, head.KeyHash, head.Seq, share)
			if err != nil {
				return err
			}
			due = append(due, held...)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return due, nil
}

// runsOf puts the rows of one key together, in order, leaves the others alone, and
// counts the keys. A key has more than one head only when one of them is dead or
// an operator requeued a message while a newer one was on its way.
func runsOf(heads []dialect.Row) (runs [][]dialect.Row, keys int) {
	byKey := make(map[int64]int)
	for _, head := range heads {
		if !head.KeyHash.Valid {
			runs = append(runs, []dialect.Row{head})
			continue
		}
		i, ok := byKey[head.KeyHash.V]
		if !ok {
			i = len(runs)
			byKey[head.KeyHash.V] = i
			runs = append(runs, nil)
		}
		runs[i] = append(runs[i], head)
	}
	for _, run := range runs {
		slices.SortFunc(run, func(a, b dialect.Row) int { return cmp.Compare(a.Seq, b.Seq) })
	}
	return runs, len(byKey)
}

// scanner reads the columns that ready and parked rows are read by into one row,
// again and again. More columns are read into what is appended to into.
type scanner struct {
	row                 dialect.Row
	created, age, flags int64
	into                []any
}

func newScanner() *scanner {
	s := &scanner{}
	r := &s.row
	s.into = []any{
		&r.Seq, (*id)(&r.ID), &r.Topic, &r.Key, &r.KeyHash, &r.Type, &r.ContentType, &r.Headers,
		&s.created, &r.Revision, &s.age, &s.flags, &r.Payload,
	}
	return s
}

// parkedScanner reads parkedColumns.
func parkedScanner() *scanner {
	s := newScanner()
	s.into = append(s.into, &s.row.Lane, &s.row.Pos, &s.row.Attempts)
	return s
}

func (s *scanner) scan(rows *sql.Rows) error {
	r := &s.row
	if err := rows.Scan(s.into...); err != nil {
		return err
	}
	r.CreatedAt = time.UnixMicro(s.created).UTC()
	r.Age = micros(s.age)
	r.Replay = int(s.flags >> 2)
	r.Blocked = s.flags&2 != 0
	switch {
	case r.Blocked:
		r.Payload = nil // it was not read
	case r.Payload == nil && s.flags&1 == 0:
		r.Payload = []byte{} // the driver reads an empty blob as nil
	}
	return nil
}

// micros is a number of microseconds as a duration.
func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// id reads a BLOB of 16 bytes.
type id [16]byte

// Scan implements [sql.Scanner].
func (i *id) Scan(value any) error {
	b, ok := value.([]byte)
	if !ok || len(b) != len(i) {
		return fmt.Errorf("an id is a %T of %d bytes, not a BLOB of 16", value, len(b))
	}
	copy(i[:], b)
	return nil
}

// failure is a [dialect.Failure] as the statements read it. Delay is NULL for dead.
type failure struct {
	Row      int64  `json:"row"`
	State    string `json:"state"`
	Blocking int    `json:"blocking"`
	Attempts int    `json:"attempts"`
	Delay    *int64 `json:"delay"`
	Reason   string `json:"reason"`
}

// failures is the JSON array that parkFailedSQL and failParkedSQL take, without the
// places that are taken.
func failures(all []dialect.Failure, taken places) (string, error) {
	rows := make([]failure, 0, len(all))
	for _, f := range all {
		if taken[f.Place] {
			continue
		}
		row := failure{Row: f.Place, State: dialect.Dead, Attempts: f.Attempts, Reason: f.Reason}
		if !f.Dead {
			delay := f.Delay.Microseconds()
			row.State, row.Delay = dialect.Retry, &delay
		}
		if f.Blocking {
			row.Blocking = 1
		}
		rows = append(rows, row)
	}
	text, err := json.Marshal(rows)
	return string(text), err
}

// moveRange does a settlement that publishes all the messages of a range of a lane, which
// is what most do. It returns false, having changed nothing, when this is none.
func (s *store) moveRange(ctx context.Context, tx *sql.Tx, lane int, outcome dialect.Settlement) (bool, error) {
	o := &outcome
	if len(o.Published) == 0 || len(o.PublishedParked)+len(o.Hold)+len(o.Failed)+len(o.FailedParked) > 0 {
		return false, nil
	}
	rows := slices.SortedFunc(slices.Values(o.Published), func(a, b dialect.Ref) int { return cmp.Compare(a.Place, b.Place) })
	first, last := rows[0].Place, rows[len(rows)-1].Place
	found, err := values[[]byte](ctx, tx, s.sql.messages, lane, first, last, len(rows)+1)
	if err != nil || !bytes.Equal(found[0], append(ids(rows), strings.Trim(places(nil).but(rows), "[]")...)) {
		return false, err
	}
	if o.Archive {
		if _, err := tx.ExecContext(ctx, s.sql.archiveRange, lane, first, last); err != nil {
			return false, err
		}
	}
	_, err = tx.ExecContext(ctx, s.sql.deleteRange, lane, first, last)
	return true, err
}

// ids are the ids of rows, one behind the other.
func ids(rows []dialect.Ref) []byte {
	all := make([]byte, 0, len(rows)*len(id{}))
	for i := range rows {
		all = append(all, rows[i].ID[:]...)
	}
	return all
}

// move does what a settlement says, in one lane.
func (s *store) move(ctx context.Context, tx *sql.Tx, lane int, outcome dialect.Settlement) error {
	if done, err := s.moveRange(ctx, tx, lane, outcome); done || err != nil {
		return err
	}
	// What is published, failed or held is all no longer ready.
	left := append(slices.Concat(outcome.Published, outcome.Hold), refs(outcome.Failed)...)
	ready, err := taken(ctx, tx, s.sql.takenReady, left)
	if err != nil {
		return err
	}
	parked, err := taken(ctx, tx, s.sql.takenParked, append(slices.Clone(outcome.PublishedParked), refs(outcome.FailedParked)...))
	if err != nil {
		return err
	}
	if len(outcome.Published) > 0 && outcome.Archive {
		if _, err := tx.ExecContext(ctx, s.sql.archiveReady, lane, ready.but(outcome.Published)); err != nil {
			return err
		}
	}
	var keys keys
	if len(outcome.PublishedParked) > 0 {
		gone := parked.but(outcome.PublishedParked)
		if outcome.Archive {
			if _, err := tx.ExecContext(ctx, s.sql.archiveParked, lane, gone); err != nil {
				return err
			}
		}
		if _, err := keys.of(ctx, tx, s.sql.deleteParked, lane, gone); err != nil {
			return err
		}
	}
	for _, failed := range []struct {
		rows      []dialect.Failure
		taken     places
		statement string
	}{
		{outcome.Failed, ready, s.sql.parkFailed},
		{outcome.FailedParked, parked, s.sql.failParked},
	} {
		if len(failed.rows) == 0 {
			continue
		}
		rows, err := failures(failed.rows, failed.taken)
		if err != nil {
			return err
		}
		if _, err := keys.of(ctx, tx, failed.statement, lane, rows); err != nil {
			return err
		}
	}
	if len(outcome.Hold) > 0 {
		if _, err := keys.of(ctx, tx, s.sql.hold, lane, ready.but(outcome.Hold)); err != nil {
			return err
		}
	}
	if len(left) > 0 {
		if _, err := tx.ExecContext(ctx, s.sql.deleteReady, lane, ready.but(left)); err != nil {
			return err
		}
	}
	return s.promote(ctx, tx, lane, keys)
}

// places are places of rows.
type places map[int64]bool

// taken are the places at which another message stands than the one named. It need
// be asked once: the transaction is the file's writer, so nothing comes between.
func taken(ctx context.Context, tx *sql.Tx, statement string, rows []dialect.Ref) (places, error) {
	if len(rows) == 0 {
		return nil, nil
	}
	found, err := values[int64](ctx, tx, statement, places(nil).but(rows), ids(rows))
	if err != nil || len(found) == 0 {
		return nil, err
	}
	p := make(places, len(found))
	for _, place := range found {
		p[place] = true
	}
	return p, nil
}

// but is the list of the places of rows that are none of p.
func (p places) but(rows []dialect.Ref) string {
	others := make([]int64, 0, len(rows))
	for i := range rows {
		if place := rows[i].Place; !p[place] {
			others = append(others, place)
		}
	}
	return list(others)
}

// refs are the rows that failed.
func refs(all []dialect.Failure) []dialect.Ref {
	rows := make([]dialect.Ref, len(all))
	for i := range all {
		rows[i] = all[i].Ref
	}
	return rows
}

// keys are the key hashes of parked rows that came, changed or went.
type keys map[int64]struct{}

// of runs a statement that returns the key hash of each row it changes, adds them,
// and returns the number of rows.
func (k *keys) of(ctx context.Context, tx *sql.Tx, statement string, args ...any) (int, error) {
	hashes, err := values[sql.Null[int64]](ctx, tx, statement, args...)
	if err != nil {
		return 0, err
	}
	if *k == nil {
		*k = make(keys)
	}
	for _, hash := range hashes {
		if hash.Valid {
			(*k)[hash.V] = struct{}{}
		}
	}
	return len(hashes), nil
}

// promote gives each of the keys one head, the first of its rows.
func (s *store) promote(ctx context.Context, tx *sql.Tx, lane int, keys keys) error {
	if len(keys) == 0 {
		return nil
	}
	hashes := list(slices.Sorted(maps.Keys(keys)))
	if _, err := tx.ExecContext(ctx, s.sql.demote, lane, hashes); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, s.sql.promote, lane, hashes)
	return err
}
