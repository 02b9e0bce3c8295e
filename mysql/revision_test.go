package mysql_test

import (
	"fmt"
	"testing"

	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
)

// BenchmarkRevise commits one message of many keys a transaction: plain, with the next
// revision, and with one that is given.
func BenchmarkRevise(b *testing.B) {
	const keys = 1000
	for _, engine := range []string{"mysql", "mariadb"} {
		for _, server := range containers.Servers(b, engine) {
			for _, how := range []string{"Plain", "Next", "Given"} {
				b.Run(engine+"="+server.Version+"/"+how, func(b *testing.B) {
					f := unmigrated(b, server.DSN)
					f.migrate()
					reviser := f.store.(dialect.Reviser)
					n := 0
					for b.Loop() {
						m := message("orders", fmt.Sprint("order-", n%keys))
						tx, err := f.db.BeginTx(b.Context(), nil)
						f.ok(err)
						run := dialect.Run{Key: m.Key.V, KeyHash: m.KeyHash.V, Messages: []int{0}}
						switch how {
						case "Plain":
							f.ok(f.store.Insert(b.Context(), tx, []dialect.Message{m}))
						case "Given":
							run.First = int64(n/keys) + 1
							fallthrough
						default:
							refusal, err := reviser.Revise(b.Context(), tx, []dialect.Message{m}, []dialect.Run{run})
							if err != nil || refusal != nil {
								b.Fatal(refusal, err)
							}
						}
						f.ok(tx.Commit())
						n++
					}
				})
			}
		}
	}
}
