package webhook_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/publish/webhook"
	"github.com/outbox-suite/outbox/relay"
)

// A publisher and its receiver, who share a secret.
func Example() {
	const secret = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3"

	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			return
		}
		if err := webhook.Verify(r.Header, body, webhook.DefaultTolerance, secret); err != nil {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		m, err := webhook.Decode(r.Header, body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		// Here the inbox removes duplicates, by m.ID.
		fmt.Printf("%s %s: %s\n", m.Type, m.Key, m.Payload)
		w.WriteHeader(http.StatusNoContent)
	}))
	defer receiver.Close()

	publisher, err := webhook.New(receiver.URL+"/orders", webhook.Config{
		Source:  "/shop",
		Secrets: []string{secret},
		Allow:   []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, // the receiver of this example is here
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer publisher.Close()

	// A relay does this: relay.New(o, publisher, relay.Config{PublishSize: 1}).
	for _, err := range publisher.Publish(context.Background(), []relay.Message{{Message: outbox.Message{
		ID: uuid.New(), Topic: "orders", Key: "42", Type: "order.placed", ContentType: "application/json", Payload: []byte(`{"total":7}`),
	}}}) {
		if err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// order.placed 42: {"total":7}
}

// Endpoints that customers have registered, each host with a breaker of its own.
func ExampleNewHosts() {
	registered := map[string]string{"customer.acme": "https://hooks.acme.example/orders"}
	publisher, err := webhook.NewHosts(func(topic string) string { return registered[topic] }, webhook.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer publisher.Close()
	fmt.Println(publisher.Destination("customer.acme"))
	for _, err := range publisher.Publish(context.Background(), []relay.Message{{Message: outbox.Message{ID: uuid.New(), Topic: "customer.gone", Type: "order.placed"}}}) {
		fmt.Println(relay.IsPermanent(err), err)
	}
	// Output:
	// hooks.acme.example
	// true webhook publisher: topic "customer.gone": it has no endpoint: name one, or correct the topic, then requeue the message
}
