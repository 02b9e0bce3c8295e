package nats_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/publish/nats"
	"github.com/outbox-suite/outbox/relay"
	"github.com/outbox-suite/outbox/sqlite"
)

// A message on its way from a transaction through a relay and a stream to a consumer.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	address, stop := startServer()
	defer stop()

	// An operator makes the stream.
	conn, err := natsgo.Connect(address)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		log.Fatal(err)
	}
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "SHOP", Subjects: []string{"shop.>"}})
	if err != nil {
		log.Fatal(err)
	}

	// The service.
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
	err = o.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
		_, err := o.Enqueue(ctx, tx, outbox.Message{Topic: "orders", Key: "42", Type: "order.placed", Payload: []byte(`{"total":7}`)})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}

	// The relay.
	publisher, err := nats.Connect(address, nats.Config{Source: "/shop", Subject: func(topic string) string { return "shop." + topic }})
	if err != nil {
		log.Fatal(err)
	}
	defer publisher.Close()
	r, err := relay.New(o, publisher, relay.Config{UntilEmpty: true}) // a service would go on
	if err != nil {
		log.Fatal(err)
	}
	if err := r.Run(ctx); err != nil {
		log.Fatal(err)
	}

	// The consumer. One message on the way at a time keeps the order of keys when
	// one has to come again.
	consumer, err := stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{Durable: "billing", MaxAckPending: 1})
	if err != nil {
		log.Fatal(err)
	}
	got, err := consumer.Next()
	if err != nil {
		log.Fatal(err)
	}
	m, err := nats.Decode(got.Headers(), got.Data())
	if err != nil {
		log.Fatal(err)
	}
	// Here the inbox removes duplicates, by m.ID.
	fmt.Printf("%s: %s of %s: %s\n", got.Subject(), m.Type, m.Key, m.Payload)
	if err := got.Ack(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// shop.orders: order.placed of 42: {"total":7}
}

// startServer starts a server for the example.
func startServer() (address string, stop func()) {
	folder, err := os.MkdirTemp("", "nats-")
	if err != nil {
		log.Fatal(err)
	}
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: folder, NoLog: true, NoSigs: true})
	if err != nil {
		log.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		log.Fatal("the server does not get ready")
	}
	return s.ClientURL(), func() {
		s.Shutdown()
		s.WaitForShutdown()
		_ = os.RemoveAll(folder)
	}
}
