package docs_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/outboxtest"
)

// snapshot tells the state of an order as it is now. The update changes nothing and
// locks the row, as every change of the order does: so the snapshot stands in its place
// among the changes, and a consumer that takes both in order ends with the right state.
func snapshot(ctx context.Context, o *outbox.Outbox, order int64) error {
	return o.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
		var state string
		err := tx.QueryRowContext(ctx, "UPDATE orders SET state = state WHERE id = $1 RETURNING state", order).Scan(&state)
		if err != nil {
			return err
		}
		key := fmt.Sprint(order)
		_, err = o.Enqueue(ctx, tx, outbox.Message{
			// The same at every run: consumers take a second one for a duplicate.
			ID:    uuid.NewSHA1(uuid.NameSpaceURL, []byte("urn:shop:snapshot-2026:"+key)),
			Topic: "orders", Key: key, Type: "order.snapshot", Payload: []byte(state),
		})
		return err
	})
}

// TestSnapshots takes snapshots while orders change: whoever takes what is published in
// order ends with the state that the database has.
func TestSnapshots(t *testing.T) {
	source, err := os.ReadFile("adopting_test.go")
	if err != nil {
		t.Fatal(err)
	}
	if code := blocks(document(t, "adopting.md"), "go"); len(code) != 1 || !strings.Contains(string(source), "\n"+code[0]+"\n") {
		t.Errorf("the function in adopting.md is not the one that is tested: %q", code)
	}
	everywhere(t, func(t *testing.T, db *sql.DB, d dialect.Dialect, heading string) {
		if strings.HasPrefix(heading, "MySQL") {
			t.Skip("MySQL has no RETURNING: select for update there")
		}
		o := migrated(t, db, d, outbox.Config{})
		if _, err := db.ExecContext(t.Context(), "CREATE TABLE orders (id INTEGER PRIMARY KEY, state VARCHAR(20) NOT NULL)"); err != nil {
			t.Fatal(err)
		}
		const orders, changes = 8, 10
		for i := range orders {
			if _, err := db.ExecContext(t.Context(), "INSERT INTO orders VALUES ($1, 'new')", i); err != nil {
				t.Fatal(err)
			}
		}
		var work sync.WaitGroup
		for i := range int64(orders) {
			work.Go(func() {
				for n := range changes {
					err := o.InTx(t.Context(), nil, func(ctx context.Context, tx *sql.Tx) error {
						state := fmt.Sprint("state ", n)
						if _, err := tx.ExecContext(ctx, "UPDATE orders SET state = $1 WHERE id = $2", state, i); err != nil {
							return err
						}
						_, err := o.Enqueue(ctx, tx, outbox.Message{Topic: "orders", Key: fmt.Sprint(i), Type: "order.changed", Payload: []byte(state)})
						return err
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
			work.Go(func() {
				if err := snapshot(t.Context(), o, i); err != nil {
					t.Error(err)
				}
			})
		}
		work.Wait()
		var broker outboxtest.Publisher
		if err := outboxtest.Drain(t.Context(), o, &broker); err != nil {
			t.Fatal(err)
		}
		for i := range orders {
			before := "new"
			for _, m := range broker.ByKey(fmt.Sprint(i)) {
				if m.Type == "order.snapshot" && string(m.Payload) != before {
					t.Errorf("order %d: a snapshot says %q behind the change to %q", i, m.Payload, before)
				}
				before = string(m.Payload)
			}
			if got := len(broker.ByKey(fmt.Sprint(i))); got != changes+1 || before != fmt.Sprint("state ", changes-1) {
				t.Errorf("order %d: %d messages, the last says %q", i, got, before)
			}
		}
	})
}
