package outboxtest_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/outboxtest"
	"github.com/outbox-suite/outbox/relay"
	"github.com/outbox-suite/outbox/sqlite"
)

// placeOrder is the code under test.
func placeOrder(ctx context.Context, o *outbox.Outbox, order string) error {
	return o.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
		_, err := o.Enqueue(ctx, tx,
			outbox.Message{Topic: "orders", Key: order, Type: "order.placed"},
			outbox.Message{Topic: "mails", Key: order, Type: "mail.wanted"},
		)
		return err
	})
}

// A test on another database uses Drain and Publisher alone.
func ExampleDrain() {
	ctx := context.Background()
	db, err := sqlite.Open(":memory:") // or any other
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	o, err := outbox.New(db, sqlite.New(), outbox.Config{})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := o.Migrate(ctx); err != nil {
		log.Fatal(err)
	}

	if err := placeOrder(ctx, o, "order-1"); err != nil {
		log.Fatal(err)
	}
	var broker outboxtest.Publisher
	broker.FailNext(1, fmt.Errorf("not now")) // it is tried again
	broker.LoseNext(1)                        // and this one comes twice
	if err := outboxtest.Drain(ctx, o, &broker); err != nil {
		log.Fatal(err)
	}
	for _, m := range broker.ByKey("order-1") {
		fmt.Println(m.Type)
	}
	fmt.Println("attempts:", broker.Attempts())
	// Output:
	// order.placed
	// order.placed
	// mail.wanted
	// attempts: 4
}

// A publisher decides by message.
func ExamplePublisher_FailIf() {
	var broker outboxtest.Publisher
	broker.FailIf(func(m relay.Message) error {
		if m.Topic == "mails" {
			return relay.Permanent(fmt.Errorf("no mail today"))
		}
		return nil
	})
	errs := broker.Publish(context.Background(), []relay.Message{
		{Message: outbox.Message{Topic: "orders"}},
		{Message: outbox.Message{Topic: "mails"}},
	})
	fmt.Println(errs, len(broker.Messages()))
	// Output: [<nil> no mail today] 1
}
