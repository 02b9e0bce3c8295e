package kafka_test

import (
	"context"
	"net"
	"regexp"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-suite/outbox/publish/kafka"
	"github.com/outbox-suite/outbox/publish/publishtest"
	"github.com/outbox-suite/outbox/relay"
)

// via sends all connections to one address, whatever the brokers say theirs is.
func via(addr string) kgo.Opt {
	return kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr)
	})
}

func TestPublisher(t *testing.T) { testPublisher(t, kafka.Config{}) }

func TestTransactionalPublisher(t *testing.T) {
	testPublisher(t, kafka.Config{TransactionalID: "shop"})
}

func testPublisher(t *testing.T, c kafka.Config) {
	t.Helper()
	t.Parallel()
	b := newBroker(t)
	r := reader{b.address(), []kgo.Opt{auth()}}
	publishtest.Run(t, publishtest.Target{
		New: func(context.Context) (relay.Publisher, error) {
			return kafka.Connect(b.address(), c, auth())
		},
		Topic:   func(ctx context.Context) (string, error) { return r.newTopic(ctx, 2, nil) },
		Consume: r.consume,
		Kill:    b.kill, Start: b.start,
		Pause: b.pause, Resume: b.resume,
		Network: &publishtest.Network{
			Address: b.address(),
			New: func(_ context.Context, addr string) (relay.Publisher, error) {
				return kafka.Connect(addr, c, auth(), via(addr))
			},
		},
		TooLarge:   1 << 20,    // with the headers it is more than is sent
		Unroutable: "no/topic", // unknown ones are looked for for a second each: TestUnknownTopics
		KeepsNil:   true, Secret: password,
	})
}

func TestUnknownTopics(t *testing.T) { eachWay(t, testUnknownTopics) }

func testUnknownTopics(t *testing.T, c kafka.Config, options ...kfake.Opt) {
	t.Helper()
	_, r := newCluster(t, append(options, kfake.NumBrokers(2))...)
	results, err := publishtest.Check(t.Context(), publishtest.Target{
		New:     func(context.Context) (relay.Publisher, error) { return kafka.Connect(r.addr, c) },
		Topic:   func(ctx context.Context) (string, error) { return r.newTopic(ctx, 2, nil) },
		Consume: r.consume,
		Unknown: "topic.nowhere", Remedy: "--create --topic topic.nowhere",
	}, regexp.MustCompile("^Refuse/Unknown"))
	if err != nil || len(results) != 2 {
		t.Fatal(results, err)
	}
	for _, r := range results {
		if r.Status != publishtest.Passed {
			t.Errorf("%s: %s: %s", r.Name, r.Status, r.Got)
		}
	}
}
