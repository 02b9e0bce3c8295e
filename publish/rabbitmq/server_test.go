package rabbitmq_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	moby "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/testcontainers/testcontainers-go"
	tcexec "github.com/testcontainers/testcontainers-go/exec"

	"github.com/outbox-suite/outbox/publish/publishtest"
	"github.com/outbox-suite/outbox/publish/rabbitmq"
)

const (
	user     = "app"
	password = "hunter2"
)

// broker is a real server in a container, of the image that the environment names.
// Its address stays the same when it is killed and started.
type broker struct {
	address string
	docker  *client.Client
	ctr     *testcontainers.DockerContainer

	mu   sync.Mutex
	conn *amqp.Connection // of the test's own
	read map[string][]publishtest.Received
}

func newBroker(tb testing.TB) *broker {
	tb.Helper()
	const env = "OUTBOX_IMAGE_RABBITMQ_4"
	image := os.Getenv(env)
	if image == "" {
		if slices.Contains(strings.Split(os.Getenv("OUTBOX_REQUIRE"), ","), "rabbitmq") {
			tb.Fatalf("OUTBOX_REQUIRE asks for rabbitmq, but %s names no image", env)
		}
		tb.Skipf("not run against RabbitMQ: %s names no image; rabbitmq:4 would do", env)
	}
	docker, err := client.New(client.FromEnv)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = docker.Close() })
	port := strconv.Itoa(freePort(tb))
	b := &broker{address: net.JoinHostPort("127.0.0.1", port), docker: docker, read: make(map[string][]publishtest.Received)}
	b.ctr, err = testcontainers.Run(tb.Context(), image,
		testcontainers.WithEnv(map[string]string{"RABBITMQ_DEFAULT_USER": user, "RABBITMQ_DEFAULT_PASS": password}),
		testcontainers.WithLabels(map[string]string{"outbox.containers.pid": strconv.Itoa(os.Getpid())}),
		testcontainers.WithExposedPorts("5672/tcp"),
		testcontainers.WithHostConfigModifier(func(hc *moby.HostConfig) {
			hc.PortBindings = network.PortMap{network.MustParsePort("5672/tcp"): {{HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: port}}}
		}))
	testcontainers.CleanupContainer(tb, b.ctr, testcontainers.StopTimeout(0))
	if err != nil {
		tb.Fatal(err)
	}
	if err := b.await(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return b
}

func freePort(tb testing.TB) int {
	tb.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func (b *broker) url() string { return "amqp://" + user + ":" + password + "@" + b.address }

// await returns when the server lets clients in.
func (b *broker) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	for {
		_, err := b.channel()
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (b *broker) kill(ctx context.Context) error {
	if _, err := b.docker.ContainerKill(ctx, b.ctr.GetContainerID(), client.ContainerKillOptions{Signal: "SIGKILL"}); err != nil {
		return fmt.Errorf("kill the container: %w", err)
	}
	for { // the mapping of its port outlives the signal
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", b.address)
		if err != nil {
			return ctx.Err()
		}
		_ = conn.Close()
		time.Sleep(10 * time.Millisecond)
	}
}

func (b *broker) start(ctx context.Context) error {
	if err := b.ctr.Start(ctx); err != nil {
		return err
	}
	return b.await(ctx)
}

func (b *broker) pause(ctx context.Context) error {
	_, err := b.docker.ContainerPause(ctx, b.ctr.GetContainerID(), client.ContainerPauseOptions{})
	return err
}

func (b *broker) resume(ctx context.Context) error {
	_, err := b.docker.ContainerUnpause(ctx, b.ctr.GetContainerID(), client.ContainerUnpauseOptions{})
	return err
}

// control runs rabbitmqctl.
func (b *broker) control(tb testing.TB, args ...string) {
	tb.Helper()
	code, out, err := b.ctr.Exec(context.Background(), append([]string{"rabbitmqctl"}, args...), tcexec.Multiplexed())
	if err != nil {
		tb.Fatal(err)
	}
	if text, _ := io.ReadAll(out); code != 0 {
		tb.Fatalf("rabbitmqctl %q: exit %d: %s", args, code, text)
	}
}

// channel is one of the test's own.
func (b *broker) channel() (*amqp.Channel, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn == nil || b.conn.IsClosed() {
		conn, err := amqp.DialConfig(b.url(), amqp.Config{Dial: amqp.DefaultDial(3 * time.Second)})
		if err != nil {
			return nil, err
		}
		b.conn = conn
	}
	return b.conn.Channel()
}

// declare makes a queue of a type and with arguments.
func (b *broker) declare(queue, kind string, args amqp.Table) error {
	ch, err := b.channel()
	if err != nil {
		return err
	}
	defer ch.Close()
	all := amqp.Table{amqp.QueueTypeArg: kind}
	maps.Copy(all, args)
	_, err = ch.QueueDeclare(queue, true, false, false, false, all)
	return err
}

// newTopic makes a queue that a crash does not take: the server writes the name of a
// quorum queue to its disk half a second after it made it, and forgets what is in
// the queue when it is killed before.
func (b *broker) newTopic(kind string) (string, error) {
	topic := "topic." + uuid.NewString()
	if err := b.declare(topic, kind, nil); err != nil {
		return "", err
	}
	if kind == amqp.QueueTypeQuorum {
		time.Sleep(time.Second)
	}
	return topic, nil
}

// consume takes what is in the queue and returns it after what it took before. What
// comes again because its acknowledgement was lost is not counted twice.
func (b *broker) consume(_ context.Context, topic string) ([]publishtest.Received, error) {
	ch, err := b.channel()
	if err != nil {
		return nil, err
	}
	defer ch.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		d, ok, err := ch.Get(topic, false)
		if err != nil {
			return nil, err
		}
		if !ok {
			return slices.Clone(b.read[topic]), nil
		}
		m, err := rabbitmq.Decode(&d)
		if err != nil {
			return nil, err
		}
		if d.MessageId != m.ID.String() || d.ContentType != m.ContentType || d.Type != m.Type || d.DeliveryMode != amqp.Persistent ||
			!d.Timestamp.Equal(m.CreatedAt.Truncate(time.Second)) {
			return nil, fmt.Errorf("the properties of %+v are %+v", m, d)
		}
		again := d.Redelivered && slices.ContainsFunc(b.read[topic], func(r publishtest.Received) bool { return r.ID == m.ID })
		if !again {
			b.read[topic] = append(b.read[topic], publishtest.Received{Message: m.Message, Replay: m.Replay})
		}
		if err := d.Ack(false); err != nil {
			return nil, err
		}
	}
}
