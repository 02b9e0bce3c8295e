package oracle_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// TestOrder gives seq in the order of the slice, which is not that of the ids, also
// where that takes several statements.
func TestOrder(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		var messages []dialect.Message
		var want []string
		for i := range 2500 {
			m := message(fmt.Sprint(i), keyIn(i%3))
			want = append(want, m.Topic)
			messages = append(messages, m)
		}
		f.insert(messages...)
		f.is("order", f.readyTopics(), want)
		f.ok(f.store.Insert(t.Context(), nil, nil))
	})
}

// TestLargeBatch inserts payloads and headers of all sizes at once, in order, those of
// more than RAW holds among those of less.
func TestLargeBatch(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		var messages []dialect.Message
		for i, size := range []int{0, 1, 1999, 2000, 2001, 4000, 4001, 32767, 32768, 1 << 20, 5 << 20, 3} {
			m := message(fmt.Sprint(size), keyIn(i%2))
			m.Payload = bytes.Repeat([]byte{0, 255, '\\', '\'', byte(i)}, size/5+1)[:size]
			m.Headers = fmt.Sprintf(`{"a":"%s"}`, bytes.Repeat([]byte{'x'}, min(size, 1<<16)))
			messages = append(messages, m)
		}
		messages[5].Payload = nil
		check := func(what string) {
			t.Helper()
			rows, err := f.store.Ready(t.Context(), f.db, 1, 0, dialect.Limit{Rows: 100})
			f.ok(err)
			f.is("rows", len(rows), len(messages))
			for i, m := range messages {
				if !same(rows[i].Message, m) {
					t.Errorf("%s: message %d of %s bytes has %d bytes of payload, %d of headers", what, i, m.Topic, len(rows[i].Payload), len(rows[i].Headers))
				}
			}
		}
		f.insert(messages...)
		check("in one batch")
		f.clear()
		for _, m := range messages {
			f.insert(m)
		}
		check("one by one")
		f.clear()
		for i := range messages {
			messages[i].Delay = time.Duration(i+1) * time.Microsecond
		}
		f.insert(messages...)
		moved, ok, err := f.store.Surface(t.Context(), f.db, f.claim(1, "me"), 100)
		f.ok(err)
		f.is("surfaced", fmt.Sprint(moved, ok), fmt.Sprint(len(messages), true))
		check("surfaced")
	})
}
