package rabbitmq_test

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/publish/rabbitmq"
	"github.com/outbox-suite/outbox/relay"
)

// A publisher that sends all topics through one exchange. A relay gets it as its
// publisher, and waits for the broker, which is not there.
func ExampleConnect() {
	p, err := rabbitmq.Connect("amqp://shop:secret@127.0.0.1:1/shop", rabbitmq.Config{
		Source: "/shop",
		Route:  func(topic string) (exchange, key string) { return "events", topic },
	}, amqp.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	errs := p.Publish(ctx, []relay.Message{{Message: outbox.Message{ID: uuid.New(), Topic: "orders", Key: "42", Type: "order.placed"}}})
	fmt.Println("unavailable:", relay.IsUnavailable(errs[0]))
	// Output:
	// unavailable: true
}

func ExampleDecode() {
	m, err := rabbitmq.Decode(&amqp.Delivery{
		ContentType: "application/json",
		Headers: amqp.Table{
			"cloudEvents_specversion": "1.0", "cloudEvents_id": "0199d3c5-6a4e-7c1e-9a53-0d5b8a3f9a11", "cloudEvents_source": "/shop",
			"cloudEvents_type": "order.placed", "cloudEvents_subject": "42", "cloudEvents_topic": "orders", "cloudEvents_attempt": "2",
			"cloudEvents_headers": `{"X-Tenant":"acme"}`,
		},
		Body: []byte(`{"total":7}`),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(m.ID, m.Topic, m.Key, m.Type, m.ContentType, m.Attempt, m.Headers)
	fmt.Printf("%s\n", m.Payload)
	// Output:
	// 0199d3c5-6a4e-7c1e-9a53-0d5b8a3f9a11 orders 42 order.placed application/json 2 map[X-Tenant:acme]
	// {"total":7}
}
