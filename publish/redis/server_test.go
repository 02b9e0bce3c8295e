package redis_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	goredis "github.com/redis/go-redis/v9"

	"github.com/outbox-suite/outbox/publish/publishtest"
	"github.com/outbox-suite/outbox/publish/redis"
)

const password = "hunter2"

// broker is a redis-server that can be killed and started.
type broker struct {
	binary string
	port   int
	args   []string
	cmd    *exec.Cmd
	log    strings.Builder
}

// newBroker starts the machine's redis-server, which flushes each write.
func newBroker(tb testing.TB, args ...string) *broker {
	tb.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		if slices.Contains(strings.Split(os.Getenv("OUTBOX_REQUIRE"), ","), "redis-server") {
			tb.Fatal("OUTBOX_REQUIRE asks for redis-server, which is not installed")
		}
		tb.Skip("not run against Redis: redis-server is not installed")
	}
	b := &broker{binary: binary, port: freePort(tb)}
	b.args = append([]string{
		"--bind", "127.0.0.1", "--port", strconv.Itoa(b.port), "--dir", tb.TempDir(), "--requirepass", password, "--masterauth", password,
		"--appendonly", "yes", "--appendfsync", "always", "--save", "", "--repl-diskless-sync-delay", "0",
	}, args...)
	if err := b.start(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = b.kill(context.Background()) })
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

// start returns when the server answers.
func (b *broker) start(ctx context.Context) error {
	b.cmd = exec.CommandContext(context.Background(), b.binary, b.args...) // the broker outlives a scenario
	b.log.Reset()
	b.cmd.Stdout, b.cmd.Stderr = &b.log, &b.log
	if err := b.cmd.Start(); err != nil {
		return err
	}
	c := b.client()
	defer c.Close()
	deadline := time.Now().Add(time.Minute)
	for {
		err := c.Ping(ctx).Err()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			_ = b.kill(ctx)
			return fmt.Errorf("redis-server does not answer: %w: %s", err, b.log.String())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// kill is kill -9.
func (b *broker) kill(context.Context) error {
	if b.cmd == nil {
		return nil
	}
	_ = b.cmd.Process.Kill()
	_ = b.cmd.Wait() // it was killed
	b.cmd = nil
	return nil
}

func (b *broker) address() string { return fmt.Sprintf("127.0.0.1:%d", b.port) }

// client is one of the test's own.
func (b *broker) client() *goredis.Client {
	return goredis.NewClient(&goredis.Options{Addr: b.address(), Password: password, DisableIdentity: true, Protocol: 2})
}

func newTopic() string { return "topic:" + uuid.NewString() }

// consume reads the whole stream of a topic.
func (b *broker) consume(ctx context.Context, topic string) ([]publishtest.Received, error) {
	c := b.client()
	defer c.Close()
	entries, err := c.XRange(ctx, topic, "-", "+").Result()
	if err != nil {
		return nil, err
	}
	var all []publishtest.Received
	for _, e := range entries {
		m, err := redis.Decode(e.Values)
		if err != nil {
			return nil, err
		}
		if _, has := e.Values["data"]; has == (m.Payload == nil) {
			return nil, errors.New("a nil payload has a field")
		}
		all = append(all, publishtest.Received{Message: m.Message, Replay: m.Replay})
	}
	return all, nil
}

// quiet keeps what the client says of every failed dial out of the tests' output.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func TestMain(m *testing.M) {
	goredis.SetLogger(quiet{})
	os.Exit(m.Run())
}
