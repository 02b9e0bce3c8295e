package mysql_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	driverpkg "github.com/go-sql-driver/mysql"

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

// TestLargeBatch inserts more than a packet holds.
func TestLargeBatch(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		var largest int64
		f.ok(f.plain.QueryRowContext(f.Context(), `SELECT @@max_allowed_packet`).Scan(&largest))
		n := int(largest>>20) + 4
		payload := bytes.Repeat([]byte{0, '\'', '\\', 255}, 1<<18)
		var messages []dialect.Message
		for i := range n {
			m := message(fmt.Sprint(i), "")
			m.Payload = payload
			if i%10 == 9 {
				m.Delay = time.Hour
			}
			messages = append(messages, m)
		}
		f.insert(messages...)
		f.is("messages", f.count(`SELECT (SELECT COUNT(*) FROM {ready}) + (SELECT COUNT(*) FROM {parked})`), n)
		rows, err := f.store.Ready(t.Context(), f.db, 1, 0, dialect.Limit{Rows: 100, Bytes: 3<<20 - 100})
		f.ok(err)
		f.is("rows", len(rows), 3)
		f.is("payload", bytes.Equal(rows[2].Payload, payload), true)
	})
}

// TestTooLarge refuses a message that no packet can hold, and leaves the transaction
// as it was.
func TestTooLarge(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		var largest int
		f.ok(f.plain.QueryRowContext(f.Context(), `SELECT @@max_allowed_packet`).Scan(&largest))
		over, under, small := message("over", ""), message("under", ""), message("small", "")
		over.Payload = make([]byte, largest-(16<<10))
		under.Payload = bytes.Repeat([]byte{0}, largest-(17<<10))
		tx := f.begin()
		f.ok(f.store.Insert(t.Context(), tx, []dialect.Message{small}))
		for range 2 {
			if err := f.store.Insert(t.Context(), tx, []dialect.Message{over}); !errors.Is(err, driverpkg.ErrPktTooLarge) {
				t.Fatalf("error: %v", err)
			}
		}
		f.ok(f.store.Insert(t.Context(), tx, []dialect.Message{under}))
		f.ok(tx.Commit())
		f.is("ready", f.readyTopics(), []string{"small", "under"})
		rows, err := f.store.Ready(t.Context(), f.db, 1, f.seq("small"), dialect.Limit{Rows: 1})
		f.ok(err)
		f.is("payload", bytes.Equal(rows[0].Payload, under.Payload), true)
		f.settle(f.claim(1, "me"), dialect.Settlement{Archive: true, Published: f.refs("under")})
		f.is("archived", f.count(`SELECT LENGTH(payload) FROM {done}`), len(under.Payload))
	})
}
