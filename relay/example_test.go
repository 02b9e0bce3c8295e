package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/relay"
	"github.com/outbox-suite/outbox/sqlite"
)

// A service with its relay inside: Run delivers until the context ends, then
// finishes what is under way and gives its lanes back.
func ExampleRelay_Run() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	db, err := sqlite.Open(":memory:")
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

	broker := relay.PublisherFunc(func(_ context.Context, messages []relay.Message) []error {
		for _, m := range messages {
			fmt.Printf("%s: %s\n", m.Topic, m.Payload)
		}
		stop() // a service would go on
		return nil
	})
	r, err := relay.New(o, broker, relay.Config{})
	if err != nil {
		log.Fatal(err)
	}

	err = o.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
		_, err := o.Enqueue(ctx, tx, outbox.Message{Topic: "greetings", Type: "greeting", Payload: []byte(`"hello"`)})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := r.Run(ctx); err != nil {
		log.Fatal(err)
	}
	stats, err := o.Stats(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("left:", stats.Ready)
	// Output:
	// greetings: "hello"
	// left: 0
}

// Mistakes in the configuration are refused together, each with its remedy.
func ExampleNew() {
	db, err := sqlite.Open(":memory:")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	o, err := outbox.New(db, sqlite.New(), outbox.Config{})
	if err != nil {
		log.Fatal(err)
	}
	broker := relay.PublisherFunc(func(context.Context, []relay.Message) []error { return nil })
	_, err = relay.New(o, broker, relay.Config{Workers: -1, Lease: time.Millisecond})
	fmt.Println(err)
	// Output:
	// new relay: invalid: workers is -1: give a number above 0
	// lease is 1ms: give at least 1s
}

// An observer sees every outcome: here it counts what was settled.
func ExampleObserverFunc() {
	published := 0
	observer := relay.ObserverFunc(func(e relay.Event) {
		if e, ok := e.(relay.Settled); ok {
			published += e.Published // guard it where there are several workers
		}
	})
	observer.Observe(relay.Settled{Lane: 3, Published: 2})
	observer.Observe(relay.Polled{Lanes: 1})
	fmt.Println(published)
	// Output: 2
}
