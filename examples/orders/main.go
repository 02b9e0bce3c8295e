// Command orders is a small service with an outbox: it places orders, a relay in
// the same process publishes what happened as CloudEvents on standard output, and
// what is not published when it stops is published when it starts again.
//
//	go run ./examples/orders -db orders.db -place 3
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/publish/file"
	"github.com/outbox-suite/outbox/relay"
	"github.com/outbox-suite/outbox/sqlite"
)

func main() {
	path := flag.String("db", "orders.db", "the database `file`")
	n := flag.Int("place", 1, "how many orders to place, a `number`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *path, *n, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// run places n orders and publishes what there is to publish.
func run(ctx context.Context, path string, n int, w io.Writer) (err error) {
	db, err := sqlite.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	o, err := outbox.New(db, sqlite.New(), outbox.Config{})
	if err != nil {
		return err
	}
	if _, err := o.Migrate(ctx); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL, state TEXT NOT NULL)`); err != nil {
		return err
	}

	for i := range n {
		if err := place(ctx, o, 100*(i+1)); err != nil {
			return err
		}
	}

	// A service would run the relay beside its work, until it stops.
	publisher, err := file.NewStream(w, file.Config{Source: "/examples/orders"})
	if err != nil {
		return err
	}
	r, err := relay.New(o, publisher, relay.Config{UntilEmpty: true})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// place makes an order, pays it, and tells of both in the same transaction.
func place(ctx context.Context, o *outbox.Outbox, total int) error {
	return o.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
		var id int64
		if err := tx.QueryRowContext(ctx, "INSERT INTO orders (total, state) VALUES (?, 'paid') RETURNING id", total).Scan(&id); err != nil {
			return err
		}
		data, err := json.Marshal(map[string]any{"order": id, "total": total})
		if err != nil {
			return err
		}
		key := fmt.Sprint(id)
		_, err = o.Enqueue(ctx, tx,
			outbox.Message{Topic: "orders", Key: key, Type: "order.placed", Payload: data},
			outbox.Message{Topic: "orders", Key: key, Type: "order.paid", Payload: data},
		)
		return err
	})
}
