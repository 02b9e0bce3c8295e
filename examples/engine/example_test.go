package engine_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	"example.com/engine"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/relay"
)

// An order is written and announced in one transaction, and a relay publishes what was
// announced. Nothing tells the engine from one of the project's own.
func Example() {
	folder, err := os.MkdirTemp("", "engine")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(folder) //nolint:errcheck // a folder for temporary files
	if err := run(context.Background(), filepath.Join(folder, "shop.db")); err != nil {
		fmt.Println(err)
	}
	// Output: orders: placed 7 for key 7
}

func run(ctx context.Context, file string) error {
	db, err := engine.Open(file)
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, "CREATE TABLE orders (id INTEGER PRIMARY KEY)"); err != nil {
		return err
	}
	box, err := outbox.New(db, engine.New(), outbox.Config{})
	if err != nil {
		return err
	}
	if _, err := box.Migrate(ctx); err != nil {
		return err
	}

	err = box.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO orders (id) VALUES (7)"); err != nil {
			return err
		}
		_, err := box.Enqueue(ctx, tx, outbox.Message{Topic: "orders", Key: "7", Type: "placed", Payload: []byte("7")})
		return err
	})
	if err != nil {
		return err
	}

	broker := relay.PublisherFunc(func(_ context.Context, messages []relay.Message) []error {
		for i := range messages {
			m := &messages[i]
			fmt.Printf("%s: %s %s for key %s\n", m.Topic, m.Type, m.Payload, m.Key)
		}
		return make([]error, len(messages))
	})
	r, err := relay.New(box, broker, relay.Config{UntilEmpty: true})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}
