package mysql_test

import (
	"testing"
	"time"

	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
)

// BenchmarkBatch reads and settles a batch of a thousand messages.
func BenchmarkBatch(b *testing.B) {
	const batch = 1000
	for _, engine := range []string{"mysql", "mariadb"} {
		for _, server := range containers.Servers(b, engine) {
			for name, archive := range map[string]bool{"Delete": false, "Archive": true} {
				b.Run(engine+"="+server.Version+"/"+name, func(b *testing.B) {
					f := unmigrated(b, server.DSN)
					f.migrate()
					lease := f.claim(1, "me")
					for b.Loop() {
						b.StopTimer()
						f.fill(1, batch)
						b.StartTimer()
						rows, err := f.store.Ready(b.Context(), f.db, 1, 0, dialect.Limit{Rows: batch})
						f.ok(err)
						s := dialect.Settlement{Archive: archive}
						for _, r := range rows {
							s.Published = append(s.Published, dialect.Ref{Place: r.Seq, ID: r.ID})
						}
						ok, err := f.store.Settle(b.Context(), f.db, lease, time.Hour, s)
						f.ok(err)
						if !ok || len(rows) != batch {
							b.Fatal(ok, len(rows))
						}
					}
					b.ReportMetric(batch*float64(b.N)/b.Elapsed().Seconds(), "messages/s")
				})
			}
		}
	}
}
