package sqlite_test

import (
	"fmt"
	"testing"

	"github.com/outbox-suite/outbox/dialect"
)

// BenchmarkRevise commits one message of many keys a transaction: plain, with the next
// revision, and with one that is given.
func BenchmarkRevise(b *testing.B) {
	const keys = 1000
	for _, how := range []string{"Plain", "Next", "Given"} {
		b.Run(how, func(b *testing.B) {
			e := fresh(b, 16)
			reviser := e.store.(dialect.Reviser)
			n := 0
			for b.Loop() {
				m := e.message(fmt.Sprint("order-", n%keys))
				tx, err := e.db.BeginTx(e.ctx, nil)
				e.must(err)
				run := dialect.Run{Key: m.Key.V, KeyHash: m.KeyHash.V, Messages: []int{0}}
				switch how {
				case "Plain":
					e.must(e.store.Insert(e.ctx, tx, []dialect.Message{m}))
				case "Given":
					run.First = int64(n/keys) + 1
					fallthrough
				default:
					refusal, err := reviser.Revise(e.ctx, tx, []dialect.Message{m}, []dialect.Run{run})
					if err != nil || refusal != nil {
						b.Fatal(refusal, err)
					}
				}
				e.must(tx.Commit())
				n++
			}
		})
	}
}

// A transaction that cannot read still counts, and a refusal tells no number.
func TestReviseUnread(t *testing.T) {
	e := fresh(t, 4)
	reviser := e.store.(dialect.Reviser)
	tx, err := e.db.BeginTx(e.ctx, nil)
	e.must(err)
	m := e.message("key")
	run := dialect.Run{Key: m.Key.V, KeyHash: m.KeyHash.V, First: 2, Messages: []int{0}}
	refusal, err := reviser.Revise(e.ctx, writer{tx}, []dialect.Message{m}, []dialect.Run{run})
	e.must(err)
	e.equal(*refusal, dialect.Refusal{}, "refusal")
	run.First = 1
	refusal, err = reviser.Revise(e.ctx, writer{tx}, []dialect.Message{m}, []dialect.Run{run})
	e.must(err)
	e.equal(refusal == nil, true, "the next is accepted")
	if _, err := reviser.Advance(e.ctx, writer{tx}, "me", dialect.Revision{Key: "key", KeyHash: 1, Number: 3}); err == nil {
		t.Error("a consumer's transaction that cannot read was told nothing of it")
	}
	e.must(tx.Commit())
	e.equal(e.one(`SELECT count(*), max(revision) FROM {ready}`), "1 1", "messages")
}

// writer is a transaction that cannot read.
type writer struct{ dialect.Tx }
