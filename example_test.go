package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/relay"
	"github.com/outbox-suite/outbox/sqlite"
)

// shop opens an outbox and a business table in memory.
func shop(ctx context.Context) *outbox.Outbox {
	db, err := sqlite.Open(":memory:")
	if err != nil {
		log.Fatal(err)
	}
	o, err := outbox.New(db, sqlite.New(), outbox.Config{})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := o.Migrate(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := db.ExecContext(ctx, "CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT)"); err != nil {
		log.Fatal(err)
	}
	return o
}

// place enqueues one message a name, as in "order-1".
func place(ctx context.Context, o *outbox.Outbox, keys ...string) {
	err := o.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
		for _, key := range keys {
			if _, err := o.Enqueue(ctx, tx, outbox.Message{Topic: "orders", Key: key, Type: "order.placed"}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}

// deliver runs a relay until everything that can go is published.
func deliver(ctx context.Context, o *outbox.Outbox, publish func(m relay.Message) error) {
	publisher := relay.PublisherFunc(func(_ context.Context, messages []relay.Message) []error {
		errs := make([]error, len(messages))
		for i, m := range messages {
			errs[i] = publish(m)
		}
		return errs
	})
	r, err := relay.New(o, publisher, relay.Config{UntilEmpty: true, Workers: 1, PublishConcurrency: 1})
	if err != nil {
		log.Fatal(err)
	}
	if err := r.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

func ExampleNew() {
	ctx := context.Background()
	db, err := sqlite.Open(":memory:")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	o, err := outbox.New(db, sqlite.New(), outbox.Config{})
	if err != nil {
		log.Fatal(err)
	}
	if err := o.Check(ctx); errors.Is(err, outbox.ErrNotReady) {
		fmt.Println("the tables are not there yet")
	}
	applied, err := o.Migrate(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("schema versions applied:", applied)
	fmt.Println("ready:", o.Check(ctx) == nil)
	// Output:
	// the tables are not there yet
	// schema versions applied: [1 2 3]
	// ready: true
}

// The business change and its message stand or fall together.
func ExampleOutbox_Enqueue() {
	ctx := context.Background()
	o := shop(ctx)

	tx, err := o.DB().BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer tx.Rollback() // after the commit it does nothing
	if _, err := tx.ExecContext(ctx, "INSERT INTO orders VALUES (42, 'placed')"); err != nil {
		log.Fatal(err)
	}
	ids, err := o.Enqueue(ctx, tx, outbox.Message{
		Topic:   "orders",
		Key:     "42", // messages of one order stay in order
		Type:    "order.placed",
		Payload: []byte(`{"order":42}`),
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		log.Fatal(err)
	}
	o.Wake() // publish now, not at the next poll

	deliver(ctx, o, func(m relay.Message) error {
		fmt.Printf("%s %s to %s: %s\n", m.Type, m.Key, m.Topic, m.Payload)
		fmt.Println("the id Enqueue returned:", m.ID == ids[0])
		return nil
	})
	// Output:
	// order.placed 42 to orders: {"order":42}
	// the id Enqueue returned: true
}

// A message that breaks a limit is refused before anything is written.
func ExampleOutbox_Enqueue_invalid() {
	ctx := context.Background()
	o := shop(ctx)
	err := o.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
		_, err := o.Enqueue(ctx, tx, outbox.Message{Type: "order.placed"})
		return err
	})
	if invalid, ok := errors.AsType[*outbox.InvalidError](err); ok {
		fmt.Println(invalid.Field)
	}
	fmt.Println(err)
	// Output:
	// topic
	// enqueue: topic is empty: say where the message goes
}

// InTx begins, commits and wakes the relays; an error rolls everything back.
func ExampleOutbox_InTx() {
	ctx := context.Background()
	o := shop(ctx)
	for _, order := range []int{1, 2} {
		err := o.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, "INSERT INTO orders VALUES (?, 'placed')", order); err != nil {
				return err
			}
			if _, err := o.Enqueue(ctx, tx, outbox.Message{Topic: "orders", Key: fmt.Sprint(order), Type: "order.placed"}); err != nil {
				return err
			}
			if order == 2 {
				return errors.New("the card was declined")
			}
			return nil
		})
		if err != nil {
			fmt.Printf("order %d: %v\n", order, err)
		}
	}
	deliver(ctx, o, func(m relay.Message) error {
		fmt.Printf("order %s: published\n", m.Key)
		return nil
	})
	// Output:
	// order 2: the card was declined
	// order 1: published
}

// A dead message holds the newer ones of its key back. Once the reason is gone,
// an operator requeues it, and the key goes on in order.
func ExampleOutbox_Requeue() {
	ctx := context.Background()
	o := shop(ctx)
	place(ctx, o, "order-1", "order-1", "order-2")

	known := false // to the broker
	publish := func(m relay.Message) error {
		if m.Key == "order-1" && !known {
			return relay.Permanent(errors.New("the broker does not know this topic"))
		}
		fmt.Println("published:", m.Key)
		return nil
	}
	deliver(ctx, o, publish)

	parked, err := o.Parked(ctx, outbox.Filter{}, 0, 100)
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range parked {
		fmt.Printf("parked: %s, %s, %q\n", m.Key.V, m.State, m.Reason)
	}

	known = true
	n, err := o.Requeue(ctx, outbox.Filter{Topic: "orders"}, 0)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("requeued:", n)
	deliver(ctx, o, publish)
	// Output:
	// published: order-2
	// parked: order-1, dead, "the broker does not know this topic"
	// parked: order-1, held, ""
	// requeued: 1
	// published: order-1
	// published: order-1
}

// Discard gives a message up: it moves to done, and what waited behind it goes on.
func ExampleOutbox_Discard() {
	ctx := context.Background()
	o := shop(ctx)
	place(ctx, o, "order-1", "order-1")
	calls := 0
	publish := func(m relay.Message) error {
		if calls++; calls == 1 {
			return relay.Permanent(errors.New("too large"))
		}
		fmt.Println("published:", m.Key)
		return nil
	}
	deliver(ctx, o, publish)
	n, err := o.Discard(ctx, outbox.Filter{Key: "order-1"}, 0)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("discarded:", n)
	deliver(ctx, o, publish)
	// Output:
	// discarded: 1
	// published: order-1
}

// Replay publishes once more what was published before, under the same ids, for
// example for a consumer that lost its data.
func ExampleOutbox_Replay() {
	ctx := context.Background()
	o := shop(ctx)
	place(ctx, o, "order-1", "order-2")
	publish := func(m relay.Message) error {
		fmt.Printf("published: %s, replay %d\n", m.Key, m.Replay)
		return nil
	}
	deliver(ctx, o, publish)
	n, err := o.Replay(ctx, outbox.Filter{Key: "order-1"}, 0)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("replayed:", n)
	deliver(ctx, o, publish)
	// Unordered output:
	// published: order-1, replay 0
	// published: order-2, replay 0
	// replayed: 1
	// published: order-1, replay 1
}
