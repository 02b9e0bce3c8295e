package conformance_test

import (
	"context"
	"database/sql"
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
// on purpose: exactly the scenarios that name it must fail.
func TestBrokenStoresAreFound(t *testing.T) {
	for name, b := range breaches {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			at := func(target *conformance.Target, path string) {
				target.Open = func(context.Context) (*sql.DB, error) { return sqlite.Open(path) }
				target.Source = name + "|" + path
			}
			target := conformance.Target{
				Dialect:  &broken{Dialect: sqlite.New(), breach: b},
				Short:    true,
				Patience: 15 * time.Second,
				Place: func(_ context.Context, own *conformance.Target, suffix string) (func(context.Context) error, error) {
					at(own, filepath.Join(folder, suffix+".db"))
					return func(context.Context) error { return nil }, nil
				},
			}
			at(&target, filepath.Join(folder, "outbox.db"))
			report, err := conformance.Check(t.Context(), target, conformance.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("seed %d", report.Seed)
			want := make(map[string]bool)
			for _, name := range b.fails {
				want[name] = true
			}
			by := regexp.MustCompile("^(" + b.touched + ")$")
			for _, r := range report.Failed() {
				if !want[r.Name] && !by.MatchString(r.Name) {
					t.Errorf("%s failed, which does not name what is broken\n%v", r.Name, r)
				}
				delete(want, r.Name)
			}
			for _, name := range slices.Sorted(maps.Keys(want)) {
				t.Errorf("%s did not fail", name)
			}
		})
	}
}

// breach is a way to be wrong.
type breach struct {
	// fails are the scenarios that name the promise it breaks.
	fails []string
	// touched scenarios may fail or not: the breach shows there by chance only.
	touched string
	// noFence writes under whatever lease is the lane's now.
	noFence bool
}

var breaches = map[string]breach{
	"sound": {},
	"no fence": {
		noFence: true,
		fails:   []string{"Relay/StaleOwnerChangesNothing", "Relay/PausedRelayIsFenced"},
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

// lease is l, or the lane's lease of the moment.
func (s *store) lease(ctx context.Context, db dialect.DB, l dialect.Lease) dialect.Lease {
	if s.breach.noFence {
		row := db.QueryRowContext(ctx, s.sql(`SELECT owner, epoch FROM {lane} WHERE lane = ?`), l.Lane)
		_ = row.Scan(&l.Owner, &l.Epoch) // otherwise l is as it was
	}
	return l
}

// Settle implements [dialect.Turn].
func (s *store) Settle(ctx context.Context, db dialect.DB, lease dialect.Lease, ttl time.Duration, what dialect.Settlement) (bool, error) {
	return s.Store.Settle(ctx, db, s.lease(ctx, db, lease), ttl, what)
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
