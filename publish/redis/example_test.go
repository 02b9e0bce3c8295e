package redis_test

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	goredis "github.com/redis/go-redis/v9"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/publish/redis"
	"github.com/outbox-suite/outbox/relay"
)

// A publisher that keeps about a million entries in each stream. A relay gets it as
// its publisher, and waits for the server, which is not there.
func Example() {
	p, err := redis.Connect(&goredis.Options{Addr: "127.0.0.1:1"}, redis.Config{
		Source: "/shop",
		Stream: func(topic string) string { return "shop:" + topic },
		MaxLen: 1_000_000,
	})
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
