// Command encryption keeps payloads secret from the database, the relay and the broker:
// the producer seals them before Enqueue, the consumer opens them. It is envelope
// encryption: a data key seals the payloads of a process for a while and travels with
// each of them, wrapped by a key-encryption key whose id stands beside it. Once that key
// is changed, the old one is only needed to open what is still under way.
//
//	go run ./examples/encryption -db orders.db
//
// It prints what the broker gets, and then what the consumer reads.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/publish/cloudevents"
	"github.com/outbox-suite/outbox/publish/file"
	"github.com/outbox-suite/outbox/relay"
	"github.com/outbox-suite/outbox/sqlite"
)

func main() {
	path := flag.String("db", "orders.db", "the database `file`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *path, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, path string, w io.Writer) (err error) {
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

	// The producer. Before its second message the key-encryption key is changed.
	keys := &Keyring{Current: "2026", Keys: map[string][]byte{"2026": newKey(), "2027": newKey()}}
	for i, year := range []string{"2026", "2027"} {
		keys.Current = year
		m, err := New(keys).Seal(ctx, outbox.Message{
			Topic: "orders", Key: "42", Type: "order.placed", Payload: fmt.Appendf(nil, `{"card":"4111 1111 1111 111%d"}`, i),
		})
		if err != nil {
			return err
		}
		err = o.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
			_, err := o.Enqueue(ctx, tx, m) // beside the business change
			return err
		})
		if err != nil {
			return err
		}
	}

	// The relay, which has no key.
	var broker bytes.Buffer
	publisher, err := file.NewStream(&broker, file.Config{Source: "/examples/encryption"})
	if err != nil {
		return err
	}
	r, err := relay.New(o, publisher, relay.Config{UntilEmpty: true})
	if err != nil {
		return err
	}
	if err := r.Run(ctx); err != nil {
		return err
	}

	// The consumer.
	consumer := New(keys)
	for event := range bytes.Lines(broker.Bytes()) {
		sealed, err := cloudevents.Parse(event)
		if err != nil {
			return err
		}
		m, err := consumer.Open(ctx, sealed.Message)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "the broker has: %sthe consumer reads: %s\n", event, m.Payload); err != nil {
			return err
		}
	}
	return nil
}

func newKey() []byte {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return key
}
