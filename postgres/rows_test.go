package postgres_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/outbox-suite/outbox/dialect"
)

// TestBatchBothWays reads batches from the driver's buffer and through database/sql:
// they are the same, and no payload is part of another one's memory.
func TestBatchBothWays(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		var messages []dialect.Message
		blocked, other := keyIn(0), keyIn(1)
		for i := range 600 {
			m := message(fmt.Sprint(i), []string{blocked, other, ""}[i%3])
			m.Type = fmt.Sprint("type ", i%100) // more than a batch is expected to share
			if size := []int{-1, 0, 1, 7, 200, 1023, 1024, 1025, 5000}[i%9]; size < 0 {
				m.Payload = nil
			} else {
				m.Payload = bytes.Repeat([]byte{byte(i)}, size)
			}
			m.Replay, m.Revision = i%4, int64(i%5)
			messages = append(messages, m)
		}
		f.insert(messages...)
		lease := f.claim(1, "me")
		f.settle(lease, dialect.Settlement{Failed: []dialect.Failure{
			{Ref: f.ref("0"), Attempts: 3, Blocking: true},
			{Ref: f.ref("2"), Attempts: 1},
		}})
		boxed := f.open(with(f.dsn, "default_query_exec_mode", "simple_protocol"))

		read := func(db dialect.DB) (ready, due []dialect.Row) {
			ready, err := f.store.Ready(t.Context(), db, 1, 0, dialect.Limit{Rows: 500})
			f.ok(err)
			due, err = f.store.Due(t.Context(), db, 1, dialect.Limit{Rows: 500})
			f.ok(err)
			for _, list := range [][]dialect.Row{ready, due} {
				for i := range list {
					list[i].Age = 0
				}
			}
			return ready, due
		}
		ready, due := read(f.db)
		readyBoxed, dueBoxed := read(boxed)
		f.is("ready rows", len(ready), 500)
		f.is("rows that are due", len(due), 2)
		f.is("ready rows through database/sql", fmt.Sprintf("%+v", readyBoxed), fmt.Sprintf("%+v", ready))
		f.is("rows that are due, through database/sql", fmt.Sprintf("%+v", dueBoxed), fmt.Sprintf("%+v", due))
		for _, r := range due {
			if r.Pos == 0 || r.Attempts == 0 || r.Lane != 1 {
				t.Errorf("a row that is due came back as %+v", r)
			}
		}

		for i := range ready {
			_ = append(ready[i].Payload, "somebody else's"...)
		}
		want := slices.Delete(slices.Clone(messages), 0, 1)
		want = slices.Delete(want, 1, 2)
		for i, r := range ready {
			if r.Blocked != (r.Key.V == blocked) {
				t.Fatalf("message %s: blocked is %t", r.Topic, r.Blocked)
			}
			if r.Blocked {
				want[i].Payload = nil
			}
			if !same(r.Message, want[i]) {
				t.Fatalf("message %s came back as %+v", r.Topic, r)
			}
		}
	})
}

// TestSettleInAnyOrder names rows from the last to the first, with others between them.
func TestSettleInAnyOrder(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.run(keyIn(0), 7)
		all := f.readyTopics()
		named := f.refs(all[1], all[3], all[5])
		slices.Reverse(named)
		f.settle(f.claim(1, "me"), dialect.Settlement{Archive: true, Published: named})
		f.is("ready", f.readyTopics(), []string{all[0], all[2], all[4], all[6]})
		f.is("done", f.list(`SELECT topic FROM {done} ORDER BY done_at, pos`), []string{all[1], all[3], all[5]})
		f.settle(f.claim(1, "me"), dialect.Settlement{})
		f.is("ready when none was named", f.readyTopics(), []string{all[0], all[2], all[4], all[6]})
	})
}
