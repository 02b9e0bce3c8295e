package nats_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-suite/outbox/publish/nats"
	"github.com/outbox-suite/outbox/publish/publishtest"
)

// The real server, in a process of its own so that it can be killed: this test
// binary, told so by the environment.

const (
	serverEnv = "OUTBOX_TEST_NATS_SERVER"
	user      = "app"
	password  = "hunter2"
)

type serverConfig struct {
	Name   string
	Port   int
	Store  string
	Port2  int // of the cluster; 0 is none
	Routes []string
	// NoStreams leaves JetStream out.
	NoStreams bool
}

func TestMain(m *testing.M) {
	if text := os.Getenv(serverEnv); text != "" {
		if err := serve(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// serve runs a server until standard input ends, so that it does not outlive
// the test.
func serve(text string) error {
	var c serverConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	o := &server.Options{
		ServerName: c.Name, Host: "127.0.0.1", Port: c.Port, Username: user, Password: password,
		JetStream: !c.NoStreams, StoreDir: c.Store, NoSigs: true, NoLog: true, MaxPayload: 1 << 20,
		JetStreamMaxMemory: 64 << 20, JetStreamMaxStore: 4 << 30,
	}
	if c.Port2 != 0 {
		o.Cluster = server.ClusterOpts{Name: "outbox", Host: "127.0.0.1", Port: c.Port2}
		for _, r := range c.Routes {
			u, err := url.Parse(r)
			if err != nil {
				return err
			}
			o.Routes = append(o.Routes, u)
		}
	}
	s, err := server.NewServer(o)
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		return errors.New("the server does not get ready")
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	s.Shutdown()
	return nil
}

// broker is a server that can be killed and started.
type broker struct {
	serverConfig
	cmd   *exec.Cmd
	stdin io.WriteCloser
}

func newBroker(tb testing.TB, c serverConfig) *broker {
	tb.Helper()
	b := &broker{serverConfig: c}
	if err := b.start(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = b.kill(context.Background()) })
	return b
}

func single(tb testing.TB) *broker {
	tb.Helper()
	return newBroker(tb, serverConfig{Name: "single", Port: freePort(tb), Store: tb.TempDir()})
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

func (b *broker) start(context.Context) error {
	text, err := json.Marshal(b.serverConfig)
	if err != nil {
		return err
	}
	b.cmd = exec.CommandContext(context.Background(), os.Args[0]) // the broker outlives a scenario
	b.cmd.Env = append(os.Environ(), serverEnv+"="+string(text))
	b.cmd.Stderr = os.Stderr
	if b.stdin, err = b.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := b.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := b.cmd.Start(); err != nil {
		return err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		return fmt.Errorf("the server said %q: %w", line, err)
	}
	return nil
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

func (b *broker) address() string { return fmt.Sprintf("127.0.0.1:%d", b.Port) }

// connect is a connection of the test's own.
func connect(tb testing.TB, servers string) jetstream.JetStream {
	tb.Helper()
	nc, err := natsgo.Connect(servers, natsgo.UserInfo(user, password), natsgo.MaxReconnects(-1), natsgo.ReconnectWait(50*time.Millisecond))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		tb.Fatal(err)
	}
	return js
}

func newTopic(ctx context.Context, js jetstream.JetStream, c jetstream.StreamConfig) (string, error) {
	c.Name = "S" + strings.ReplaceAll(uuid.NewString(), "-", "")
	topic := "topic." + c.Name
	c.Subjects = []string{topic}
	c.Storage = jetstream.FileStorage
	_, err := js.CreateStream(ctx, c)
	return topic, err
}

// consume reads the whole stream of a topic.
func consume(ctx context.Context, js jetstream.JetStream, topic string) ([]publishtest.Received, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	stream, err := js.Stream(ctx, topic[len("topic."):])
	if err != nil {
		return nil, err
	}
	n := int(stream.CachedInfo().State.Msgs)
	if n == 0 {
		return nil, nil
	}
	c, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1})
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.DeleteConsumer(ctx, c.CachedInfo().Name) }()
	batch, err := c.Fetch(n, jetstream.FetchMaxWait(20*time.Second))
	if err != nil {
		return nil, err
	}
	var all []publishtest.Received
	for m := range batch.Messages() {
		got, err := nats.Decode(m.Headers(), m.Data())
		if err != nil {
			return nil, err
		}
		all = append(all, publishtest.Received{Message: got.Message, Replay: got.Replay})
	}
	if len(all) < n {
		return nil, fmt.Errorf("%d of %d messages were read: %w", len(all), n, batch.Error())
	}
	return all, nil
}
