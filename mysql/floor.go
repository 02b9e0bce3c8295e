package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// readyAboveRows is how many ready rows above a floor are looked at.
const readyAboveRows = 250

// Poll returns lanes to claim; it locks nothing.
func (s *store) Poll(ctx context.Context, db dialect.DB, owner string, limit int) ([]dialect.Candidate, error) {
	return s.PollAbove(ctx, db, owner, 0, limit)
}

// PollAbove implements [dialect.Sweeper]. It may look outside a transaction, which costs one
// round trip instead of five. But a proxy may send such a look to a replica, which may be
// behind for long, or for good. So only those looks are such that come soon after one in a
// transaction: what is committed is found no later than that. And only where sessions
// commit by themselves: elsewhere a look begins a transaction, and at SERIALIZABLE it
// would lock what it reads.
func (s *store) PollAbove(ctx context.Context, db dialect.DB, owner string, floor int64, limit int) (lanes []dialect.Candidate, err error) {
	if asked := s.asked.Load(); asked != 0 && monotonic()-time.Duration(asked) < lookFor {
		var all bool
		ran, err := alone(ctx, db, func(c *sql.Conn) (autocommit bool, err error) {
			lanes, all, autocommit, err = s.look(ctx, c, owner, floor, limit)
			return autocommit, err
		})
		if ran && all && !s.outdated(lanes) || err != nil {
			return lanes, err
		}
	}
	autocommit := false
	err = read(ctx, db, func(tx *sql.Tx) error {
		var all bool
		lanes, all, autocommit, err = s.look(ctx, tx, owner, floor, limit)
		if all || err != nil {
			return err
		}
		lanes, err = query(ctx, tx, func(c *dialect.Candidate) []any { return []any{&c.Lane, &c.Epoch, &c.Due} }, s.sql.poll, []byte(owner), limit)
		return err
	})
	if err == nil && autocommit {
		s.asked.Store(int64(monotonic()))
	}
	return lanes, err
}

// outdated tells whether a lane is seen as it was before it was last claimed here: by a
// replica that is behind, or by a server that took over and never saw the claim, which a poll
// in a transaction tells apart.
func (s *store) outdated(lanes []dialect.Candidate) bool {
	return slices.ContainsFunc(lanes, func(c dialect.Candidate) bool { return c.Epoch < s.claimed[c.Lane].Load() })
}

// lookFor is for how long after a poll in a transaction others may do without.
const lookFor = 250 * time.Millisecond

// seen is what a look saw of a lane: ready rows of it, or, with served, that it is free.
type seen struct {
	autocommit bool
	lane       int
	epoch      int64
	ready      int64
	due        bool
	served     sql.Null[int64]
}

// look polls by the first ready rows above a floor. all tells that there are no more, so
// that no lane is missed.
func (s *store) look(ctx context.Context, on querier, owner string, floor int64, limit int) (lanes []dialect.Candidate, all, autocommit bool, err error) {
	list, err := query(ctx, on, func(l *seen) []any {
		return []any{&l.autocommit, &l.lane, &l.epoch, &l.ready, &l.due, &l.served}
	}, s.sql.look, floor, readyAboveRows, []byte(owner))
	if err != nil {
		return nil, false, false, err
	}
	autocommit = len(list) > 0 && list[0].autocommit
	ready, rows := make(map[int]bool), int64(0)
	for _, l := range list {
		ready[l.lane] = ready[l.lane] || l.ready > 0
		rows += l.ready
	}
	list = slices.DeleteFunc(list, func(l seen) bool { return !l.served.Valid || !l.due && !ready[l.lane] })
	slices.SortFunc(list, func(a, b seen) int {
		return cmp.Or(cmp.Compare(a.served.V, b.served.V), cmp.Compare(a.lane, b.lane))
	})
	for _, l := range list[:min(limit, len(list))] {
		lanes = append(lanes, dialect.Candidate{Lane: l.lane, Epoch: l.epoch, Due: l.due})
	}
	return lanes, rows < readyAboveRows, autocommit, nil
}

// Horizon implements [dialect.Sweeper].
//
// Which transactions are running only those may know who have the PROCESS privilege.
// But a row that a transaction has inserted stands in the table before it commits, and
// can be read: so the oldest row there is, committed or not, bounds the floor, and
// nothing else is asked of the transactions. A row that is being deleted counts too,
// for the deletion may be rolled back. Whoever reads what is not committed does not see
// it, whoever reads what is committed does; in this order no row is missed, because
// what is being deleted was committed before.
//
// That leaves an insert between taking its seq and writing its first row. It stands
// still there only to wait for a lock on a gap, which the outbox itself never takes,
// and no longer than innodb_lock_wait_timeout. So what begins and runs is counted in
// time: a seq can be below the floor when it was given longer ago than that.
func (s *store) Horizon(ctx context.Context, db dialect.DB, floor int64) (h dialect.Horizon, err error) {
	began := monotonic()
	var seconds, added, there int64
	err = readAt(ctx, db, sql.LevelReadUncommitted, func(tx *sql.Tx) error {
		var name, create string
		if _, err := query1(ctx, tx, []any{&name, &create}, s.sql.newest); err != nil {
			return err
		}
		h.Newest = nextSeq(create) - 1
		if _, err := query1(ctx, tx, []any{&seconds}, lockWaitSQL); err != nil {
			return err
		}
		_, err := query1(ctx, tx, []any{&added}, s.oldest(floor))
		return err
	})
	if err != nil {
		return dialect.Horizon{}, err
	}
	err = read(ctx, db, func(tx *sql.Tx) error {
		_, err := query1(ctx, tx, []any{new(int), &there}, s.sql.readyAbove, floor, 1)
		return err
	})
	if err != nil {
		return dialect.Horizon{}, err
	}
	if h.Oldest = min(added, there); h.Oldest == 0 {
		h.Oldest = max(added, there)
	}
	wait := max(time.Duration(seconds)*time.Second, leastWait) + leastWait/5
	h.Running, h.Begun = began.Microseconds(), (monotonic() + wait).Microseconds()
	return h, nil
}

// oldest is the statement that looks for the oldest ready row above a floor.
func (s *store) oldest(floor int64) string {
	lanes := make([]string, s.tables.Lanes)
	for lane := range lanes {
		lanes[lane] = fmt.Sprintf(oldestSQL, lane, floor)
	}
	return s.name("SELECT COALESCE(MIN(o.seq), 0) FROM (\n" + strings.Join(lanes, "\nUNION ALL ") + "\n) AS o")
}

// leastWait is the default of innodb_lock_wait_timeout, which sessions of producers may
// have kept where the server's is shorter.
const leastWait = 50 * time.Second

// monotonic is the time since the process began, by a clock that nobody sets.
func monotonic() time.Duration {
	return time.Since(processBegan) //nolint:forbidigo // never set, and only compared with itself
}

var processBegan = time.Now() //nolint:forbidigo // as above

var autoIncrement = regexp.MustCompile(`(?m)^\) .*?\bAUTO_INCREMENT=(\d+)`)

// nextSeq is the number that the next row of a table will get, by the statement that
// would create it, or 1.
func nextSeq(create string) int64 {
	match := autoIncrement.FindStringSubmatch(create)
	if match == nil {
		return 1
	}
	n, err := strconv.ParseInt(match[1], 10, 64)
	if err != nil {
		return 1
	}
	return n
}
