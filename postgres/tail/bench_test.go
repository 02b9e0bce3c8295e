package tail_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/postgres"
	"github.com/outbox-suite/outbox/postgres/tail"
	"github.com/outbox-suite/outbox/relay"
)

// BenchmarkLatency has writers commit one message a transaction at a steady rate, beside
// one relay that learns of them in one way or another, and reports the time from commit to
// publish. Where the server has pg_stat_statements, it reports the statements that all of
// that takes a message, and where it is on this machine, the processor time its sessions
// take for it. Say how many messages with -benchtime, for example 5000x.
func BenchmarkLatency(b *testing.B) {
	server := containers.Servers(b, "postgres")[0]
	for _, rate := range []int{10, 100, 500} {
		for _, mode := range []string{"polling", "waking", "listening", "tailing"} {
			b.Run(fmt.Sprintf("rate=%d/%s", rate, mode), func(b *testing.B) { measure(b, server.DSN, rate, mode) })
		}
	}
}

func measure(b *testing.B, dsn string, rate int, mode string) { //nolint:thelper // the benchmark itself
	ctx := b.Context()
	ok := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	open := func() *sql.DB {
		db, err := postgres.Open(dsn)
		ok(err)
		b.Cleanup(func() { _ = db.Close() })
		return db
	}
	db := open()
	schema := "bench_" + random()
	named := outbox.Config{Schema: schema, Notify: mode == "listening"}
	producer, err := outbox.New(open(), postgres.New(), named)
	ok(err)
	box, err := outbox.New(open(), postgres.New(), named)
	ok(err)
	_, err = box.Migrate(ctx)
	ok(err)
	defer func() {
		_, _ = db.ExecContext(context.Background(), dialect.Expand(`DROP SCHEMA {schema} CASCADE`, box.Tables(), quote))
		_, _ = db.ExecContext(context.Background(), `DROP PUBLICATION IF EXISTS `+quote(schema+".outbox_tail"))
	}()

	committed, published := make([]atomic.Int64, b.N), make([]atomic.Int64, b.N)
	began := time.Now()
	var left atomic.Int64
	left.Store(int64(b.N))
	all := make(chan struct{})
	r, err := relay.New(box, relay.PublisherFunc(func(_ context.Context, messages []relay.Message) []error {
		for _, m := range messages {
			if i, _ := strconv.Atoi(string(m.Payload)); published[i].CompareAndSwap(0, int64(time.Since(began))) && left.Add(-1) == 0 {
				close(all)
			}
		}
		return make([]error, len(messages))
	}), relay.Config{Listen: mode == "listening"})
	ok(err)
	running, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer stop()
	group.Go(func() { _ = r.Run(running) })
	wake := func() {}
	switch mode {
	case "waking":
		wake = r.Wake
	case "listening":
		wake = producer.Wake
	case "tailing":
		ok(tail.Publish(ctx, db, box.Tables()))
		streaming := make(chan struct{}, 10)
		t, err := tail.New(box.DB(), box.Tables(), r.Wake, tail.Config{Observe: func(e tail.Event) {
			if _, begins := e.(tail.Streaming); begins {
				streaming <- struct{}{}
			}
		}})
		ok(err)
		group.Go(func() { t.Run(running) })
		<-streaming
	}

	statements, processor := statementsOf(ctx, db), processorOf(ctx, db)
	b.ResetTimer()
	start := time.Now()
	var next atomic.Int64
	var writing sync.WaitGroup
	for range 8 {
		writing.Go(func() {
			for i := int(next.Add(1)) - 1; i < b.N; i = int(next.Add(1)) - 1 {
				time.Sleep(time.Until(start.Add(time.Duration(i) * time.Second / time.Duration(rate))))
				tx, err := producer.DB().BeginTx(ctx, nil)
				if err == nil {
					_, err = producer.Enqueue(ctx, tx, outbox.Message{
						Topic: "orders", Key: strconv.Itoa(i % 1000), Type: "made", Payload: strconv.AppendInt(nil, int64(i), 10),
					})
				}
				if err == nil {
					err = tx.Commit()
				}
				if err != nil {
					b.Error(err)
					return
				}
				committed[i].Store(int64(time.Since(began)))
				wake()
			}
		})
	}
	writing.Wait()
	took := time.Since(start)
	<-all
	b.StopTimer()
	if n := statementsOf(ctx, db); n > 0 {
		b.ReportMetric(float64(n-statements)/float64(b.N), "statements/op")
	}
	if d := processorOf(ctx, db); d > 0 {
		b.ReportMetric(float64((d-processor).Microseconds())/float64(b.N), "server-µs/op")
	}
	var ms []float64
	for i := b.N / 10; i < b.N; i++ {
		// The relay may be faster than the answer to the commit.
		ms = append(ms, max(0, float64(published[i].Load()-committed[i].Load())/1e6))
	}
	slices.Sort(ms)
	b.ReportMetric(ms[len(ms)/2], "p50-ms")
	b.ReportMetric(ms[len(ms)*99/100], "p99-ms")
	b.ReportMetric(float64(b.N)/took.Seconds(), "messages/s")
}

// statementsOf counts the statements the database has run, 0 where nobody counts.
func statementsOf(ctx context.Context, db *sql.DB) (n int64) {
	_ = db.QueryRowContext(ctx, `SELECT sum(calls)::bigint FROM pg_stat_statements`).Scan(&n)
	return n
}

// processorOf is the processor time of the server's processes, 0 where they are
// elsewhere. Time of sessions that have ended is left out.
func processorOf(ctx context.Context, db *sql.DB) (total time.Duration) {
	rows, err := db.QueryContext(ctx, `SELECT pid FROM pg_stat_activity`)
	if err != nil {
		return 0
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var pid int
		if rows.Scan(&pid) != nil {
			return 0
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || !strings.HasPrefix(string(stat), fmt.Sprintf("%d (postgres)", pid)) {
			continue
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+2:]))
		for _, field := range fields[11:13] { // utime and stime, in hundredths of a second
			ticks, _ := strconv.Atoi(field)
			total += time.Duration(ticks) * 10 * time.Millisecond
		}
	}
	if rows.Err() != nil {
		return 0
	}
	return total
}
