package inbox_test

import (
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/inbox"
)

// TestRevisionsAtAnyIsolation: consumers that are handed all revisions of a key at the
// same time handle each once, whatever their transactions see of each other.
func TestRevisionsAtAnyIsolation(t *testing.T) {
	for _, level := range []sql.IsolationLevel{sql.LevelDefault, sql.LevelRepeatableRead, sql.LevelSerializable} {
		t.Run(level.String(), func(t *testing.T) {
			everywhere(t, func(t *testing.T, g target) {
				if level == sql.LevelRepeatableRead && g.dialect.Name() == "sqlite" {
					t.Skip("SQLite has no such level")
				}
				in := g.inbox(t, inbox.Config{TxOptions: &sql.TxOptions{Isolation: level}, Tries: 50})
				const most = 20
				var handled atomic.Int64
				var all sync.WaitGroup
				for range 4 {
					all.Go(func() {
						for revision := int64(1); revision <= most; {
							did, err := in.HandleNext(t.Context(), g.db, "billing", "k1", revision, g.effect(1))
							switch gap := (*inbox.GapError)(nil); {
							case errors.As(err, &gap):
								revision = gap.Expected // what it saw may be old
								continue
							case g.dialect.Classify(err) == dialect.Conflict:
								continue
							case err != nil:
								t.Errorf("revision %d: %v", revision, err)
								return
							case did:
								handled.Add(1)
							}
							revision++
						}
					})
				}
				all.Wait()
				if n := g.count(t, 1); n != most || handled.Load() != most {
					t.Errorf("%d revisions were handled %d times with %d effects", most, handled.Load(), n)
				}
			})
		})
	}
}
