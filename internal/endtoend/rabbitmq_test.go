package endtoend

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	moby "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/testcontainers/testcontainers-go"

	"github.com/outbox-suite/outbox/publish/rabbitmq"
	"github.com/outbox-suite/outbox/relay"
)

// serverRabbitMQ is a real one in a container, of the image that the environment
// names. The tests share it, since it takes seconds to start, and have a queue each.
type serverRabbitMQ struct {
	address string
	docker  *client.Client
	ctr     *testcontainers.DockerContainer
}

var rabbitMQ *serverRabbitMQ

// removeRabbitMQ is for the end of all tests.
func removeRabbitMQ() error {
	if rabbitMQ == nil {
		return nil
	}
	_ = rabbitMQ.docker.Close()
	return testcontainers.TerminateContainer(rabbitMQ.ctr, testcontainers.StopTimeout(0))
}

func launchRabbitMQ(t *testing.T) server {
	t.Helper()
	if rabbitMQ != nil {
		// A test before this one may have failed with the server down.
		if err := rabbitMQ.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		return rabbitMQ
	}
	const env = "OUTBOX_IMAGE_RABBITMQ_4"
	image := os.Getenv(env)
	if image == "" {
		if slices.Contains(strings.Split(os.Getenv("OUTBOX_REQUIRE"), ","), "rabbitmq") {
			t.Fatalf("OUTBOX_REQUIRE asks for rabbitmq, but %s names no image", env)
		}
		t.Skipf("not run with RabbitMQ: %s names no image; rabbitmq:4 would do", env)
	}
	docker, err := client.New(client.FromEnv)
	if err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(freePort(t))
	s := &serverRabbitMQ{address: net.JoinHostPort("127.0.0.1", port), docker: docker}
	s.ctr, err = testcontainers.Run(t.Context(), image,
		testcontainers.WithEnv(map[string]string{"RABBITMQ_DEFAULT_USER": "app", "RABBITMQ_DEFAULT_PASS": "hunter2"}),
		testcontainers.WithLabels(map[string]string{"outbox.containers.pid": strconv.Itoa(os.Getpid())}),
		testcontainers.WithExposedPorts("5672/tcp"),
		testcontainers.WithHostConfigModifier(func(hc *moby.HostConfig) {
			hc.PortBindings = network.PortMap{network.MustParsePort("5672/tcp"): {{HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: port}}}
		}))
	if s.ctr != nil {
		rabbitMQ = s
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := s.await(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *serverRabbitMQ) url() string { return "amqp://app:hunter2@" + s.address }

// await returns when the server lets clients in.
func (s *serverRabbitMQ) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	for {
		conn, err := dialRabbitMQ(s.url())
		if err == nil {
			return conn.Close()
		}
		if ctx.Err() != nil {
			return err
		}
		pause(ctx)
	}
}

func (s *serverRabbitMQ) kill(ctx context.Context) error {
	if _, err := s.docker.ContainerKill(ctx, s.ctr.GetContainerID(), client.ContainerKillOptions{Signal: "SIGKILL"}); err != nil {
		return fmt.Errorf("kill the container: %w", err)
	}
	return nil
}

func (s *serverRabbitMQ) start(ctx context.Context) error {
	if err := s.ctr.Start(ctx); err != nil {
		return err
	}
	return s.await(ctx)
}

func dialRabbitMQ(url string) (*amqp.Connection, error) {
	return amqp.DialConfig(url, amqp.Config{Dial: amqp.DefaultDial(3 * time.Second)})
}

func prepareRabbitMQ(ctx context.Context, url, topic string) error {
	conn, err := dialRabbitMQ(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	// A single active consumer, so that one that takes over gets what the one before
	// had in its hands first. Without a limit of deliveries what comes back goes
	// behind the others; with the default of 20 a database that is away for a while
	// would cost messages.
	_, err = ch.QueueDeclare(topic, true, false, false, false, amqp.Table{
		amqp.QueueTypeArg: amqp.QueueTypeQuorum, "x-single-active-consumer": true, "x-delivery-limit": 1_000_000,
	})
	if err != nil {
		return err
	}
	// The server writes the name of a quorum queue to its disk half a second after it
	// made it, and nothing tells when it has.
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Second):
		return nil
	}
}

func publishRabbitMQ(url string) (relay.Publisher, error) {
	return rabbitmq.Connect(url, rabbitmq.Config{}, amqp.Config{})
}

type subscriptionRabbitMQ struct {
	conn       *amqp.Connection
	deliveries <-chan amqp.Delivery
}

func subscribeRabbitMQ(ctx context.Context, url, topic string) (_ subscription, err error) {
	conn, err := dialRabbitMQ(url)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = conn.Close()
		}
	}()
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Qos(20, 0, false); err != nil {
		return nil, err
	}
	s := &subscriptionRabbitMQ{conn: conn}
	s.deliveries, err = ch.ConsumeWithContext(ctx, topic, "", false, false, false, false, nil)
	return s, err
}

func (s *subscriptionRabbitMQ) next(ctx context.Context) (delivery, error) {
	select {
	case <-ctx.Done():
		return delivery{}, ctx.Err()
	case d, open := <-s.deliveries:
		if !open {
			return delivery{}, errors.New("the channel is closed")
		}
		m, err := rabbitmq.Decode(&d)
		// One of many in hand that is given back alone would come behind the others.
		return delivery{m, func() error { return d.Ack(false) }, func() error { return errAgain }, false}, err
	}
}

func (s *subscriptionRabbitMQ) close() { _ = s.conn.Close() }
