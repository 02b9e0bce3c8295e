package kafka_test

import (
	"context"
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
	"github.com/testcontainers/testcontainers-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-suite/outbox/publish/kafka"
	"github.com/outbox-suite/outbox/publish/publishtest"
	"github.com/outbox-suite/outbox/relay"
)

// TestServers runs the suite against real servers in containers, of the images
// that the environment names. Each is one broker, whose advertised address does not
// matter.
func TestServers(t *testing.T) {
	for _, s := range []struct {
		name, env, image string
		cmd              []string
	}{
		{"kafka", "OUTBOX_IMAGE_KAFKA", "apache/kafka", nil},
		{"redpanda", "OUTBOX_IMAGE_REDPANDA", "redpandadata/redpanda", []string{"redpanda", "start", "--mode=dev-container", "--smp=1"}},
	} {
		t.Run(s.name, func(t *testing.T) {
			image := os.Getenv(s.env)
			if image == "" {
				if slices.Contains(strings.Split(os.Getenv("OUTBOX_REQUIRE"), ","), s.name) {
					t.Fatalf("OUTBOX_REQUIRE asks for %s, but %s names no image", s.name, s.env)
				}
				t.Skipf("not run against %s: %s names no image; %s would do", s.name, s.env, s.image)
			}
			b := newContainer(t, image, s.cmd)
			r := reader{"broker:9092", []kgo.Opt{b.dialer()}}
			for name, c := range map[string]kafka.Config{"plain": {}, "transactions": {TransactionalID: "shop"}} {
				t.Run(name, func(t *testing.T) {
					publishtest.Run(t, b.target(r, c))
				})
			}
		})
	}
}

// target is the suite's, of a publisher with that configuration.
func (b *container) target(r reader, c kafka.Config) publishtest.Target {
	return publishtest.Target{
		New: func(context.Context) (relay.Publisher, error) {
			return kafka.Connect("broker:9092", c, b.dialer())
		},
		Topic:   func(ctx context.Context) (string, error) { return r.newTopic(ctx, 2, nil) },
		Consume: r.consume,
		Kill:    b.kill, Start: b.start,
		Pause: b.pause, Resume: b.resume,
		Network: &publishtest.Network{
			Address: b.address,
			New: func(_ context.Context, addr string) (relay.Publisher, error) {
				return kafka.Connect(addr, c, via(addr))
			},
		},
		TooLarge: 1 << 20,
		Unknown:  "topic.nowhere", Remedy: "--create --topic topic.nowhere", Unroutable: "no/topic",
		KeepsNil: true,
		Patience: time.Minute, // a JVM starts slowly
	}
}

// container is a broker in one, whose address stays the same.
type container struct {
	address string
	docker  *client.Client
	ctr     *testcontainers.DockerContainer
}

func newContainer(t *testing.T, image string, cmd []string) *container {
	t.Helper()
	docker, err := client.New(client.FromEnv)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = docker.Close() })
	port := strconv.Itoa(freePort(t))
	b := &container{address: net.JoinHostPort("127.0.0.1", port), docker: docker}
	b.ctr, err = testcontainers.Run(t.Context(), image, testcontainers.WithCmd(cmd...),
		testcontainers.WithLabels(map[string]string{"outbox.containers.pid": strconv.Itoa(os.Getpid())}),
		testcontainers.WithExposedPorts("9092/tcp"),
		testcontainers.WithHostConfigModifier(func(hc *moby.HostConfig) {
			hc.PortBindings = network.PortMap{network.MustParsePort("9092/tcp"): {{HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: port}}}
		}))
	testcontainers.CleanupContainer(t, b.ctr, testcontainers.StopTimeout(0))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.await(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *container) dialer() kgo.Opt { return via(b.address) }

// await returns when the broker makes topics.
func (b *container) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	for {
		_, err := reader{"broker:9092", []kgo.Opt{b.dialer()}}.newTopic(ctx, 1, nil)
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (b *container) kill(ctx context.Context) error {
	_, err := b.docker.ContainerKill(ctx, b.ctr.GetContainerID(), client.ContainerKillOptions{Signal: "SIGKILL"})
	if err != nil {
		return fmt.Errorf("kill the container: %w", err)
	}
	return nil
}

func (b *container) start(ctx context.Context) error {
	if err := b.ctr.Start(ctx); err != nil {
		return err
	}
	return b.await(ctx)
}

func (b *container) pause(ctx context.Context) error {
	_, err := b.docker.ContainerPause(ctx, b.ctr.GetContainerID(), client.ContainerPauseOptions{})
	return err
}

func (b *container) resume(ctx context.Context) error {
	_, err := b.docker.ContainerUnpause(ctx, b.ctr.GetContainerID(), client.ContainerUnpauseOptions{})
	return err
}
