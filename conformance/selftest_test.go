package conformance_test

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/conformance"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/inbox"
	"github.com/outbox-suite/outbox/sqlite"
)

// Children run the broken engine too: their source is its name and the path.
func TestMain(m *testing.M) {
	conformance.Child(func(source string) (dialect.Dialect, *sql.DB, error) {
		name, path, _ := strings.Cut(source, "|")
		db, err := sqlite.Open(path)
		return &broken{Dialect: sqlite.New(), breach: breaches[name]}, db, err
	})
	os.Exit(m.Run())
}

// TestBrokenStoresAreFound runs the suite against stores that break a promise
// on purpose: exactly the scenarios that name it must fail. With the race
// detector, where all takes many times as long, only those are run.
func TestBrokenStoresAreFound(t *testing.T) {
	conformance.Small()
	for name, b := range breaches {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of the time is spent waiting
			names, patience := allBut(measuring), 12*time.Second
			names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, b.area) })
			if conformance.RaceEnabled {
				names, patience = b.fails, patience/3 // which the suite makes three times as long
			}
			if len(names) == 0 {
				t.Skip("without the race detector all scenarios are run on it")
			}
			failed := failures(t, name, b, names, 8, patience)
			for _, must := range b.fails {
				_, ok := failed[must]
				for range 2 { // where chance has a say, it is asked again
					if !ok {
						_, ok = failures(t, name, b, []string{must}, 1, 12*time.Second)[must]
					}
				}
				if !ok {
					t.Errorf("%s did not fail, three times", must)
				}
				delete(failed, must)
			}
			// The soak does everything, and so meets nearly every breach, if by chance.
			touched := regexp.MustCompile("^(Soak/.*|" + b.touched + ")$")
			maps.DeleteFunc(failed, func(name string, _ conformance.Result) bool { return touched.MatchString(name) })
			if len(failed) == 0 {
				return
			}
			// What fails on a busy machine for want of time does not fail alone.
			for other, r := range failures(t, name, b, slices.Sorted(maps.Keys(failed)), 1, 30*time.Second) {
				t.Errorf("%s failed, which does not name what is broken\n%v", other, r)
			}
		})
	}
}

// failures runs scenarios on a broken engine and returns those that fail.
func failures(t *testing.T, name string, b breach, names []string, parallel int, patience time.Duration) map[string]conformance.Result {
	t.Helper()
	folder := t.TempDir()
	at := func(target *conformance.Target, path string) {
		target.Open = func(context.Context) (*sql.DB, error) { return sqlite.Open(path) }
		target.Source = name + "|" + path
	}
	target := conformance.Target{
		Dialect:  &broken{Dialect: sqlite.New(), breach: b},
		Short:    true,
		Patience: patience,
		Place: func(_ context.Context, own *conformance.Target, suffix string) (func(context.Context) error, error) {
			at(own, filepath.Join(folder, suffix+".db"))
			return func(context.Context) error { return nil }, nil
		},
	}
	at(&target, filepath.Join(folder, "outbox.db"))
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = regexp.QuoteMeta(n)
	}
	match := regexp.MustCompile("^(" + strings.Join(quoted, "|") + ")$")
	report, err := conformance.Check(t.Context(), target, conformance.Options{Match: match, Parallel: parallel})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d scenarios, seed %d, in %v", len(report.Results), report.Seed, report.Took.Round(time.Second))
	failed := make(map[string]conformance.Result)
	for _, r := range report.Failed() {
		failed[r.Name] = r
	}
	return failed
}

// measuring scenarios tell what things cost, which no breach changes, and take
// long about it.
const measuring = "Poll/"

// allBut are the names of the scenarios that do not begin with prefix.
func allBut(prefix string) []string {
	var names []string
	for _, s := range conformance.Scenarios() {
		if !strings.HasPrefix(s.Name, prefix) {
			names = append(names, s.Name)
		}
	}
	return names
}

// breach is a way to be wrong.
type breach struct {
	// fails are the scenarios that name the promise it breaks.
	fails []string
	// touched scenarios may fail or not: the breach shows there by chance only.
	touched string
	// area is where alone it can show, and what is run on it; empty is everywhere.
	area string
	// noFence writes under whatever lease is the lane's now.
	noFence bool
	// watermark reads only what comes after the last seq that was read.
	watermark bool
	// rangeSettle settles everything up to the highest seq, not only what is named.
	rangeSettle bool
	// ignoresID settles whatever stands at the places named.
	ignoresID bool
	// markFirst takes rows out as they are read, and puts back what is settled
	// as anything but published.
	markFirst bool
	// unordered lets newer messages of a key pass one that is retried.
	unordered bool
	// claimsTwice gives lanes away whose lease has not ended.
	claimsTwice bool
	// dueUntold polls without a word on parked messages that are due.
	dueUntold bool
	// epochUntold polls without a word on the epochs.
	epochUntold bool
	// leavesOld leaves revisions that are in the memory for rows where a message has none.
	leavesOld bool
	// forgets drops what the last owner had in hand when it did not release the lane.
	forgets bool
	// ownCount numbers messages by a count of its own, which no rollback takes back.
	ownCount bool
	// believes takes the revision that a caller gives for the next.
	believes bool
	// backwards numbers the messages of a key from the last to the first.
	backwards bool
	// duplicateEnds rolls the transaction back when it finds a duplicate.
	duplicateEnds bool
	// anyNext takes every revision for the one to be handled next.
	anyNext bool
	// tellsNext tells a producer the revision behind the last.
	tellsNext bool
	// cutsNames keeps all but the last byte of the longest consumers and message ids.
	cutsNames bool
	// deadlocks has a handler's first write to a row of its own fail, as one that the
	// server has chosen in a deadlock, which an engine with one writer does not have.
	// deadlockUnknown does not know the error for a conflict.
	deadlocks, deadlockUnknown bool
	// beginless replays also what was done again since the replay began.
	beginless bool
}

// readers are scenarios in which the suite itself reads what is ready without
// settling it, to look at it, and has a relay deliver it later.
var readers = []string{"Store/TwoDatabases", "Inbox/DuplicatesCostNoNumbers", "Purge/OnlyDone", "Settle/ExactlyTheRowsNamed", "Settle/OnlyTheMessageThatWasRead", "Revision/RollbackLeavesNoGap", "Revision/CallersIsChecked", "Revision/LastIsTold"}

var breaches = map[string]breach{
	"sound": {},
	"no fence": {
		noFence: true,
		fails: []string{
			"Relay/StaleOwnerChangesNothing", "Relay/PausedRelayIsFenced", "Relay/LaneMovesInMidBatch", "Store/TwoDatabases",
			"Settle/FenceHoldsTheLane",
		},
	},
	// On an engine with one writer no commit is late; what shows is what was read
	// and had to be left: the broker was away, the relay stopped, died or lost the
	// lane. An engine with many writers shows the late commit.
	"watermark": {
		watermark: true,
		fails: append([]string{
			"Relay/OutageInMidBatch", "Relay/GracefulStop", "Relay/KilledInMidPublish", "Relay/KilledRelayIsTakenOver",
			"Relay/PausedRelayIsFenced", "Relay/LaneMovesInMidBatch", "Relay/OutageConsumesNoAttempts",
		}, readers...),
		// Where an operator's change comes below what was read, and where a scenario
		// counts what is ready by reading it twice.
		touched: "Operator/InvariantHoldsUnderRaces|Settle/FenceHoldsTheLane",
	},
	"range settle": {
		rangeSettle: true,
		fails:       []string{"Settle/ExactlyTheRowsNamed", "Settle/OnlyTheMessageThatWasRead"},
		// Where an operator's replay comes below a batch that is under way, and where
		// a probe is not the lane's first message.
		touched: "Operator/InvariantHoldsUnderRaces|Relay/OutageConsumesNoAttempts|Relay/OutageOfOneDestination",
	},
	"ignores id": {
		ignoresID: true,
		fails:     []string{"Settle/OnlyTheMessageThatWasRead"},
	},
	"mark first": {
		markFirst: true,
		fails: append([]string{
			"Relay/OutageInMidBatch", "Relay/GracefulStop", "Relay/KilledInMidPublish", "Relay/PausedRelayIsFenced",
			"Relay/LaneMovesInMidBatch", "Relay/OutageConsumesNoAttempts", "Relay/StaleOwnerChangesNothing", "Settle/CutAtEveryStep",
		}, readers[1:]...),
		// What was taken and not put back is lost where a relay dies, or an operator
		// looks, between the two.
		touched: "Relay/KilledRelayIsTakenOver|Relay/MarkNeverPrecedesAck|Operator/InvariantHoldsUnderRaces|Relay/ReplaySameID",
	},
	"unordered": {
		unordered: true,
		fails:     []string{"Purge/OnlyDone"},
		// Every scenario compares the order, and it breaks wherever a publish fails
		// and a newer message of the key comes before the next try.
		touched: "(Relay|Enqueue|Operator)/.*|Settle/OnlyTheMessageThatWasRead",
	},
	// Whether another relay comes for a lane in the moment that it is held is
	// chance, except where a scenario holds it up.
	"claims twice": {
		claimsTwice: true,
		fails:       []string{"Relay/StaleOwnerChangesNothing", "Relay/PublishedOnceWithoutFaults", "Relay/OrderPerKeyWithManyRelays", "Relay/ClockSkew", "Relay/NoTransactionWhilePublishing"},
		touched:     "Relay/.*|Revision/GapFree|Purge/OneRelayOfMany|Enqueue/CommitIsFound|Operator/InvariantHoldsUnderRaces",
	},
	// What is due is then left for ever; the scenario that names it asks the poll itself.
	"due untold": {
		dueUntold: true, area: "Relay/NewIsClaimableAtOnce",
		fails: []string{"Relay/NewIsClaimableAtOnce"},
	},
	"epoch untold": {
		epochUntold: true, area: "Relay/NewIsClaimableAtOnce",
		fails: []string{"Relay/NewIsClaimableAtOnce"},
	},
	"leaves old": {
		leavesOld: true, area: "Relay/ReadsIntoRoom",
		fails: []string{"Relay/ReadsIntoRoom"},
	},
	"forgets crash": {
		forgets: true,
		fails:   []string{"Relay/KilledRelayIsTakenOver", "Relay/KilledInMidPublish", "Relay/PausedRelayIsFenced", "Relay/LaneMovesInMidBatch", "Relay/ClockSkew"},
		touched: "Settle/FenceHoldsTheLane",
	},
	// On an engine with one writer a second producer waits whatever the store does; that
	// its messages are numbered behind those of the first shows.
	"own count": {
		ownCount: true,
		fails:    []string{"Revision/GapFree", "Revision/ProducersTakeTurns", "Revision/RollbackLeavesNoGap", "Revision/CallersIsChecked", "Revision/LastIsTold"},
	},
	"believes the caller": {
		believes: true,
		fails:    []string{"Revision/RollbackLeavesNoGap", "Revision/CallersIsChecked", "Revision/LastIsTold"},
	},
	"counts backwards": {
		backwards: true,
		fails:     []string{"Revision/GapFree", "Revision/ProducersTakeTurns", "Revision/RollbackLeavesNoGap", "Revision/CallersIsChecked", "Revision/LastIsTold"},
	},
	"tells the next": {
		tellsNext: true, area: "Revision/",
		fails: []string{"Revision/LastIsTold"},
	},
	"cuts names": {
		cutsNames: true, area: "Inbox/",
		fails: []string{"Inbox/TooLongIsRefused"}, // that they are refused is the inbox's doing
	},
	"sound in deadlocks": {deadlocks: true, area: "Inbox/"},
	"deadlock unknown": {
		deadlocks: true, deadlockUnknown: true, area: "Inbox/",
		fails: []string{"Inbox/DeadlockIsRunAgain"},
	},
	"duplicate ends": {
		duplicateEnds: true,
		fails:         []string{"Inbox/DuplicateEndsNothing", "Inbox/RollbackForgets"},
		// Where a scenario writes behind what it has recorded.
		touched: "Inbox/DeadlockIsRunAgain|Relay/ClockSkew",
	},
	"replays from the begin": {
		beginless: true,
		fails:     []string{"Operator/ReplayResumes"},
	},
	"any revision is next": {
		anyNext: true,
		fails:   []string{"Inbox/RevisionsInTurn", "Inbox/RevisionsAtOnce"},
	},
}

// broken is a dialect whose stores break a promise.
type broken struct {
	dialect.Dialect
	breach breach
}

// Bind implements [dialect.Dialect].
func (b *broken) Bind(tables dialect.Tables) (dialect.Store, error) {
	inner, err := b.Dialect.Bind(tables)
	return &store{Store: inner, Reviser: inner.(dialect.Reviser), breach: b.breach, tables: tables}, err
}

var errDeadlock = errors.New("chosen in a deadlock")

// Classify implements [dialect.Dialect].
func (b *broken) Classify(err error) dialect.Class {
	if errors.Is(err, errDeadlock) {
		if b.breach.deadlockUnknown {
			return dialect.Other
		}
		return dialect.Conflict
	}
	return b.Dialect.Classify(err)
}

// store is a store that is wrong as its breach says.
type store struct {
	dialect.Store
	dialect.Reviser
	breach breach
	tables dialect.Tables
}

// sql fills the names of the tables into a statement of SQLite.
func (s *store) sql(text string) string {
	return dialect.Expand(text, s.tables, func(name string) string { return `"` + name + `"` })
}

// Migrate implements [dialect.Schema]: what a breach remembers is in the
// database, as the real ones have it.
func (s *store) Migrate(ctx context.Context, db dialect.DB) ([]int, error) {
	applied, err := s.Store.Migrate(ctx, db)
	if err != nil {
		return applied, err
	}
	_, err = db.ExecContext(ctx, s.sql(`
		CREATE TABLE IF NOT EXISTS {name:mark} (lane INTEGER PRIMARY KEY, seq INTEGER);
		CREATE TABLE IF NOT EXISTS {name:taken} AS SELECT * FROM {ready} WHERE false`))
	return applied, err
}

// lease is l, or the lane's lease of the moment.
func (s *store) lease(ctx context.Context, db dialect.DB, l dialect.Lease) dialect.Lease {
	if s.breach.noFence {
		row := db.QueryRowContext(ctx, s.sql(`SELECT owner, epoch FROM {lane} WHERE lane = ?`), l.Lane)
		_ = row.Scan(&l.Owner, &l.Epoch) // otherwise l is as it was
	}
	return l
}

// Poll implements [dialect.Lanes].
func (s *store) Poll(ctx context.Context, db dialect.DB, owner string, limit int) ([]dialect.Candidate, error) {
	if !s.breach.claimsTwice {
		lanes, err := s.Store.Poll(ctx, db, owner, limit)
		for i := range lanes {
			lanes[i].Due = lanes[i].Due && !s.breach.dueUntold
			if s.breach.epochUntold {
				lanes[i].Epoch = 0
			}
		}
		return lanes, err
	}
	rows, err := db.QueryContext(ctx, s.sql(`SELECT lane, epoch FROM {lane} WHERE lane IN (SELECT lane FROM {ready} UNION SELECT lane FROM {parked}
		WHERE state IN ('scheduled', 'retry') AND available_at <= CAST(unixepoch('subsec') * 1e6 AS INTEGER))`))
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var lanes []dialect.Candidate
	for rows.Next() && len(lanes) < limit {
		c := dialect.Candidate{Due: true}
		if err := rows.Scan(&c.Lane, &c.Epoch); err != nil {
			return nil, err
		}
		lanes = append(lanes, c)
	}
	return lanes, rows.Err()
}

// Claim implements [dialect.Lanes].
func (s *store) Claim(ctx context.Context, db dialect.DB, lane int, owner string, ttl time.Duration) (int64, bool, error) {
	switch {
	case s.breach.claimsTwice:
		_, err := db.ExecContext(ctx, s.sql(`UPDATE {lane} SET lease_until = 0 WHERE lane = ?`), lane)
		if err != nil {
			return 0, false, err
		}
	case s.breach.forgets:
		var before string
		if err := db.QueryRowContext(ctx, s.sql(`SELECT owner FROM {lane} WHERE lane = ?`), lane).Scan(&before); err != nil {
			return 0, false, err
		}
		epoch, ok, err := s.Store.Claim(ctx, db, lane, owner, ttl)
		if ok && err == nil && before != "" && before != owner {
			_, err = db.ExecContext(ctx, s.sql(`DELETE FROM {ready} WHERE lane = ?`), lane)
		}
		return epoch, ok, err
	}
	return s.Store.Claim(ctx, db, lane, owner, ttl)
}

// Ready implements [dialect.Turn].
func (s *store) Ready(ctx context.Context, db dialect.DB, lane int, after int64, limit dialect.Limit) ([]dialect.Row, error) {
	if s.breach.watermark {
		var mark int64
		_ = db.QueryRowContext(ctx, s.sql(`SELECT seq FROM {name:mark} WHERE lane = ?`), lane).Scan(&mark) // 0 without one
		after = max(after, mark)
	}
	var old []dialect.Row
	if s.breach.leavesOld {
		old = slices.Clone(limit.Room[:cap(limit.Room)])
	}
	rows, err := s.Store.Ready(ctx, db, lane, after, limit)
	if err != nil || len(rows) == 0 {
		return rows, err
	}
	last := rows[len(rows)-1].Seq
	switch {
	case s.breach.leavesOld:
		for i := range min(len(rows), len(old)) {
			rows[i].Revision = cmp.Or(rows[i].Revision, old[i].Revision)
		}
	case s.breach.watermark:
		_, err = db.ExecContext(ctx, s.sql(`INSERT OR REPLACE INTO {name:mark} VALUES (?, ?)`), lane, last)
	case s.breach.markFirst:
		err = s.exec(ctx, db, s.sql(`INSERT INTO {name:taken} SELECT * FROM {ready} WHERE lane = ?1 AND seq > ?2 AND seq <= ?3`), lane, after, last)
		if err == nil {
			err = s.exec(ctx, db, s.sql(`DELETE FROM {ready} WHERE lane = ?1 AND seq > ?2 AND seq <= ?3`), lane, after, last)
		}
	}
	return rows, err
}

func (s *store) exec(ctx context.Context, db dialect.DB, statement string, args ...any) error {
	_, err := db.ExecContext(ctx, statement, args...)
	return err
}

// Settle implements [dialect.Turn].
func (s *store) Settle(ctx context.Context, db dialect.DB, lease dialect.Lease, ttl time.Duration, what dialect.Settlement) (bool, error) {
	var err error
	switch {
	case s.breach.rangeSettle && len(what.Published) > 0:
		what.Published, err = s.upTo(ctx, db, lease.Lane, what)
	case s.breach.ignoresID:
		what, err = s.byPlace(ctx, db, what)
	case s.breach.markFirst:
		err = s.putBack(ctx, db, what)
	case s.breach.unordered:
		what.Failed, what.FailedParked = passing(what.Failed), passing(what.FailedParked)
	}
	if err != nil {
		return false, err
	}
	return s.Store.Settle(ctx, db, s.lease(ctx, db, lease), ttl, what)
}

// upTo are the ready rows of the lane up to the highest one published, but for
// those that the settlement names otherwise.
func (s *store) upTo(ctx context.Context, db dialect.DB, lane int, what dialect.Settlement) ([]dialect.Ref, error) {
	named := make(map[dialect.Ref]bool)
	for _, row := range what.Hold {
		named[row] = true
	}
	for _, f := range what.Failed {
		named[f.Ref] = true
	}
	var highest int64
	for _, row := range what.Published {
		highest = max(highest, row.Place)
	}
	rows, err := db.QueryContext(ctx, s.sql(`SELECT seq, id FROM {ready} WHERE lane = ? AND seq <= ?`), lane, highest)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var all []dialect.Ref
	for rows.Next() {
		var row dialect.Ref
		var id []byte
		if err := rows.Scan(&row.Place, &id); err != nil {
			return nil, err
		}
		row.ID = [16]byte(id)
		if !named[row] {
			all = append(all, row)
		}
	}
	return all, rows.Err()
}

// byPlace names what stands at the places of a settlement.
func (s *store) byPlace(ctx context.Context, db dialect.DB, what dialect.Settlement) (dialect.Settlement, error) {
	there := func(statement string, row dialect.Ref) dialect.Ref {
		var id []byte
		if err := db.QueryRowContext(ctx, s.sql(statement), row.Place).Scan(&id); err == nil {
			row.ID = [16]byte(id)
		}
		return row
	}
	const ready, parked = `SELECT id FROM {ready} WHERE seq = ?`, `SELECT id FROM {parked} WHERE pos = ?`
	rows := func(statement string, list []dialect.Ref) []dialect.Ref {
		list = slices.Clone(list)
		for i := range list {
			list[i] = there(statement, list[i])
		}
		return list
	}
	failures := func(statement string, list []dialect.Failure) []dialect.Failure {
		list = slices.Clone(list)
		for i := range list {
			list[i].Ref = there(statement, list[i].Ref)
		}
		return list
	}
	what.Published, what.Hold, what.Failed = rows(ready, what.Published), rows(ready, what.Hold), failures(ready, what.Failed)
	what.PublishedParked, what.FailedParked = rows(parked, what.PublishedParked), failures(parked, what.FailedParked)
	return what, ctx.Err()
}

// putBack brings rows that were taken and are settled now.
func (s *store) putBack(ctx context.Context, db dialect.DB, what dialect.Settlement) error {
	var seqs []int64
	for _, row := range slices.Concat(what.Published, what.Hold) {
		seqs = append(seqs, row.Place)
	}
	for _, f := range what.Failed {
		seqs = append(seqs, f.Place)
	}
	list, err := json.Marshal(seqs)
	if err != nil || len(seqs) == 0 {
		return err
	}
	_, err = db.ExecContext(ctx, s.sql(`INSERT OR IGNORE INTO {ready} SELECT * FROM {name:taken} WHERE seq IN (SELECT value FROM json_each(?))`), string(list))
	return err
}

// passing are failures that hold nothing back.
func passing(failures []dialect.Failure) []dialect.Failure {
	failures = slices.Clone(failures)
	for i := range failures {
		failures[i].Blocking = failures[i].Blocking && failures[i].Dead
	}
	return failures
}

// Extend implements [dialect.Lanes].
func (s *store) Extend(ctx context.Context, db dialect.DB, lease dialect.Lease, ttl time.Duration) (bool, error) {
	return s.Store.Extend(ctx, db, s.lease(ctx, db, lease), ttl)
}

// Release implements [dialect.Lanes].
func (s *store) Release(ctx context.Context, db dialect.DB, lease dialect.Lease) error {
	return s.Store.Release(ctx, db, s.lease(ctx, db, lease))
}

// Surface implements [dialect.Turn].
func (s *store) Surface(ctx context.Context, db dialect.DB, lease dialect.Lease, limit int) (int, bool, error) {
	return s.Store.Surface(ctx, db, s.lease(ctx, db, lease), limit)
}

// counts are the counts of keys, by the prefix of the tables and the key.
var counts = struct {
	sync.Mutex
	last map[[2]string]int64
}{last: make(map[[2]string]int64)}

// Replay implements [dialect.Operator].
func (s *store) Replay(ctx context.Context, db dialect.DB, filter dialect.Filter, cursor *dialect.Cursor, limit int) (int, *dialect.Cursor, error) {
	if !s.breach.beginless || cursor == nil {
		return s.Store.Replay(ctx, db, filter, cursor, limit)
	}
	late := *cursor
	late.Begun = math.MaxInt64
	n, next, err := s.Store.Replay(ctx, db, filter, &late, limit)
	if next != nil {
		next.Begun = cursor.Begun
	}
	return n, next, err
}

// Revise implements [dialect.Reviser].
func (s *store) Revise(ctx context.Context, tx dialect.Tx, messages []dialect.Message, runs []dialect.Run) (*dialect.Refusal, error) {
	messages, runs = slices.Clone(messages), slices.Clone(runs)
	given := slices.ContainsFunc(runs, func(r dialect.Run) bool { return r.First > 0 })
	switch {
	case s.breach.ownCount, s.breach.believes && given:
		counts.Lock()
		defer counts.Unlock()
		for _, run := range runs {
			key := [2]string{s.tables.Prefix, run.Key}
			for _, i := range run.Messages {
				counts.last[key]++
				if messages[i].Revision == 0 {
					messages[i].Revision = counts.last[key]
				}
			}
		}
		return nil, s.Insert(ctx, tx, messages)
	case s.breach.backwards:
		for i := range runs {
			runs[i].Messages = slices.Clone(runs[i].Messages)
			slices.Reverse(runs[i].Messages)
		}
	}
	return s.Reviser.Revise(ctx, tx, messages, runs)
}

// Record implements [dialect.Inbox].
func (s *store) Record(ctx context.Context, tx dialect.Tx, consumer, messageID string) (bool, error) {
	switch {
	case s.breach.cutsNames:
		consumer, messageID = consumer[:min(len(consumer), inbox.MaxConsumer-1)], messageID[:min(len(messageID), inbox.MaxMessageID-1)]
	case s.breach.deadlocks && consumer == "row":
		counts.Lock()
		key := [2]string{s.tables.Prefix, messageID}
		counts.last[key]++
		first := counts.last[key] == 1
		counts.Unlock()
		if first {
			return false, errDeadlock
		}
	}
	fresh, err := s.Store.Record(ctx, tx, consumer, messageID)
	if s.breach.duplicateEnds && !fresh && err == nil {
		err = tx.Rollback()
	}
	return fresh, err
}

// LastRevision implements [dialect.Reviser].
func (s *store) LastRevision(ctx context.Context, tx dialect.Tx, at dialect.Revision) (int64, error) {
	last, err := s.Reviser.LastRevision(ctx, tx, at)
	if s.breach.tellsNext {
		last++
	}
	return last, err
}

// Advance implements [dialect.Reviser].
func (s *store) Advance(ctx context.Context, tx dialect.Tx, consumer string, at dialect.Revision) (int64, error) {
	if s.breach.anyNext {
		return at.Number - 1, s.SetProgress(ctx, tx, consumer, at)
	}
	return s.Reviser.Advance(ctx, tx, consumer, at)
}
