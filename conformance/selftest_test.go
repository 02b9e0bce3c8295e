package conformance_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/conformance"
	"github.com/outbox-suite/outbox/dialect"
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
			touched := regexp.MustCompile("^(" + b.touched + ")$")
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
	// forgets drops what the last owner had in hand when it did not release the lane.
	forgets bool
}

// readers are scenarios in which the suite itself reads what is ready without
// settling it, to look at it, and has a relay deliver it later.
var readers = []string{"Store/TwoDatabases", "Inbox/DuplicatesCostNoNumbers", "Purge/OnlyDone", "Settle/ExactlyTheRowsNamed", "Settle/OnlyTheMessageThatWasRead"}

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
		// Where an operator's change comes below what was read.
		touched: "Operator/InvariantHoldsUnderRaces",
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
		touched: "(Relay|Enqueue|Operator)/.*",
	},
	// Whether another relay comes for a lane in the moment that it is held is
	// chance, except where a scenario holds it up.
	"claims twice": {
		claimsTwice: true,
		fails:       []string{"Relay/StaleOwnerChangesNothing", "Relay/PublishedOnceWithoutFaults", "Relay/OrderPerKeyWithManyRelays", "Relay/ClockSkew", "Relay/NoTransactionWhilePublishing"},
		touched:     "Relay/.*|Purge/OneRelayOfMany|Enqueue/CommitIsFound|Operator/InvariantHoldsUnderRaces",
	},
	"forgets crash": {
		forgets: true,
		fails:   []string{"Relay/KilledRelayIsTakenOver", "Relay/KilledInMidPublish", "Relay/PausedRelayIsFenced", "Relay/LaneMovesInMidBatch", "Relay/ClockSkew"},
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
	return &store{Store: inner, breach: b.breach, tables: tables}, err
}

// store is a store that is wrong as its breach says.
type store struct {
	dialect.Store
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
func (s *store) Poll(ctx context.Context, db dialect.DB, owner string, limit int) ([]int, error) {
	if !s.breach.claimsTwice {
		return s.Store.Poll(ctx, db, owner, limit)
	}
	rows, err := db.QueryContext(ctx, s.sql(`SELECT DISTINCT lane FROM {ready} UNION SELECT lane FROM {parked}
		WHERE state IN ('scheduled', 'retry') AND available_at <= CAST(unixepoch('subsec') * 1e6 AS INTEGER)`))
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var lanes []int
	for rows.Next() && len(lanes) < limit {
		var lane int
		if err := rows.Scan(&lane); err != nil {
			return nil, err
		}
		lanes = append(lanes, lane)
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
	rows, err := s.Store.Ready(ctx, db, lane, after, limit)
	if err != nil || len(rows) == 0 {
		return rows, err
	}
	last := rows[len(rows)-1].Seq
	switch {
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
