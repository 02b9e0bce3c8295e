package kafka_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/publish/kafka"
	"github.com/outbox-suite/outbox/relay"
	"github.com/outbox-suite/outbox/sqlite"
)

// A message on its way from a transaction through a relay and a topic to a consumer.
// kfake, which speaks Kafka's protocol, stands for the brokers.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, "shop.orders"))
	if err != nil {
		log.Fatal(err)
	}
	defer cluster.Close()
	brokers := strings.Join(cluster.ListenAddrs(), ",")

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
	publisher, err := kafka.Connect(brokers, kafka.Config{Source: "/shop", Topic: func(topic string) string { return "shop." + topic }})
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

	// The consumer. It commits what it has handled, and nothing before.
	consumer, err := kgo.NewClient(kgo.SeedBrokers(brokers), kgo.ConsumerGroup("billing"), kgo.ConsumeTopics("shop.orders"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())
	if err != nil {
		log.Fatal(err)
	}
	defer consumer.Close()
	got := consumer.PollRecords(ctx, 1)
	if err := got.Err(); err != nil {
		log.Fatal(err)
	}
	for _, record := range got.Records() {
		m, err := kafka.Decode(record)
		if err != nil {
			log.Fatal(err)
		}
		// Here the inbox removes duplicates, by m.ID.
		fmt.Printf("%s: %s of %s: %s\n", record.Topic, m.Type, record.Key, m.Payload)
		if err := consumer.CommitRecords(ctx, record); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// shop.orders: order.placed of 42: {"total":7}
}
