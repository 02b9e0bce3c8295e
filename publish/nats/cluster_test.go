package nats_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-suite/outbox/publish/nats"
	"github.com/outbox-suite/outbox/publish/publishtest"
	"github.com/outbox-suite/outbox/relay"
)

// cluster is three servers.
func cluster(t *testing.T) (nodes []*broker, servers string) {
	t.Helper()
	configs := make([]serverConfig, 3)
	var routes, addresses []string
	for i := range configs {
		configs[i] = serverConfig{Name: fmt.Sprintf("n%d", i), Port: freePort(t), Port2: freePort(t), Store: t.TempDir()}
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", configs[i].Port2))
		addresses = append(addresses, fmt.Sprintf("127.0.0.1:%d", configs[i].Port))
	}
	for _, c := range configs {
		c.Routes = routes
		nodes = append(nodes, newBroker(t, c))
	}
	return nodes, strings.Join(addresses, ",")
}

func await(t *testing.T, what string, done func(ctx context.Context) error) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		err := done(ctx)
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// answers waits until the leader of a topic's stream answers, without storing
// anything.
func answers(ctx context.Context, js jetstream.JetStream, topic string) error {
	for {
		_, err := js.Publish(ctx, topic, nil, jetstream.WithExpectLastSequence(1_000_000))
		var api *jetstream.APIError
		if errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence {
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
	}
}

// The node that leads the stream is killed while messages are published, and
// comes back: the suite's scenarios hold. A single node that is left is not
// enough to accept anything.
func TestCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("elections take half a minute: run without -short")
	}
	t.Parallel()
	nodes, servers := cluster(t)
	js := connect(t, servers)
	var topic string
	await(t, "a stream with three replicas", func(ctx context.Context) (err error) {
		topic, err = newTopic(ctx, js, jetstream.StreamConfig{Replicas: 3})
		return err
	})
	leader := func(ctx context.Context) (*broker, error) {
		stream, err := js.Stream(ctx, topic[len("topic."):])
		if err != nil {
			return nil, err
		}
		for _, n := range nodes {
			if c := stream.CachedInfo().Cluster; c != nil && n.Name == c.Leader {
				return n, nil
			}
		}
		return nil, fmt.Errorf("no leader among %v", stream.CachedInfo().Cluster)
	}
	var killed *broker
	target := publishtest.Target{
		New: func(context.Context) (relay.Publisher, error) {
			return nats.Connect(servers, nats.Config{}, natsgo.UserInfo(user, password), natsgo.ReconnectWait(50*time.Millisecond))
		},
		Topic: func(ctx context.Context) (string, error) {
			var err error
			for ctx.Err() == nil { // no leader just after a node was killed
				if topic, err = newTopic(ctx, js, jetstream.StreamConfig{Replicas: 3}); err == nil {
					return topic, answers(ctx, js, topic)
				}
				time.Sleep(100 * time.Millisecond)
			}
			return "", err
		},
		Consume: func(ctx context.Context, topic string) ([]publishtest.Received, error) {
			return consume(ctx, js, topic)
		},
		Kill: func(ctx context.Context) (err error) {
			if killed, err = leader(ctx); err != nil {
				return err
			}
			return killed.kill(ctx)
		},
		Start:        func(ctx context.Context) error { return killed.start(ctx) },
		Deduplicates: true, KeepsNil: true, Secret: password,
		Patience: 60 * time.Second,
	}
	match := regexp.MustCompile("^(Accept/EverythingArrives|Order/AcrossOutage)$")
	if os.Getenv("OUTBOX_FULL") != "" { // each kill costs elections, which take seconds
		match = regexp.MustCompile("^(Accept/.*|Header/.*|Order/AcrossOutage|Duplicate/.*|Outage/KilledInMidPublish|Concurrent/.*)$")
	}
	results, err := publishtest.Check(t.Context(), target, match)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		t.Logf("%s %s in %v", r.Name, r.Status, r.Took.Round(time.Millisecond))
		if r.Status != publishtest.Passed {
			t.Errorf("%s: %s%s", r.Name, r.Got, r.Reason)
		}
	}

	p, err := target.New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.(*nats.Publisher).Close()
	for _, n := range nodes[:2] {
		_ = n.kill(t.Context())
	}
	await(t, "one node of three to be unavailable", func(ctx context.Context) error {
		err := p.Publish(ctx, []relay.Message{message(topic)})[0]
		if err == nil || relay.IsPermanent(err) {
			t.Fatalf("with one node of three: %v, want that it is tried again", err)
		}
		if !relay.IsUnavailable(err) {
			return err
		}
		return nil
	})
	for _, n := range nodes[:2] {
		if err := n.start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "publish after two nodes came back", func(ctx context.Context) error {
		err := p.Publish(ctx, []relay.Message{message(topic)})[0]
		if relay.IsPermanent(err) {
			t.Fatalf("while two nodes come back: %v", err)
		}
		return err
	})
}
