package endtoend

import (
	"context"
	"net"
	"testing"

	"github.com/outbox-suite/outbox/relay"
)

// broker is one that the suite runs with. All of them keep the order of a key on the
// way to one consumer.
type broker struct {
	name string
	// launch gives a test a server.
	launch func(t *testing.T) server
	// prepare makes what the topic goes to.
	prepare   func(ctx context.Context, url, topic string) error
	publisher func(url string) (relay.Publisher, error)
	subscribe func(ctx context.Context, url, topic string) (subscription, error)
	// serve is the server's process, where that is a Go program.
	serve func(ctx context.Context, s spec, ready func()) error
	// with is the only engine it is tried with, unless OUTBOX_FULL is set; empty is all.
	with string
}

var brokers = []broker{
	{"nats", launchProgram("nats"), prepareNATS, publishNATS, subscribeNATS, serveNATS, ""},
	{"rabbitmq", launchRabbitMQ, prepareRabbitMQ, publishRabbitMQ, subscribeRabbitMQ, nil, ""},
	{"kafka", launchProgram("kafka"), prepareKafka, publishKafka, subscribeKafka, serveKafka, ""},
	{"redis", launchRedis, prepareRedis, publishRedis, subscribeRedis, nil, "sqlite"},
}

func brokerNamed(name string) broker {
	for _, b := range brokers {
		if b.name == name {
			return b
		}
	}
	panic("there is no broker " + name)
}

// server is a broker's server. It keeps its address and its data when it is killed and
// started.
type server interface {
	url() string
	kill(ctx context.Context) error
	start(ctx context.Context) error
}

// program is a server that is a child process.
type program struct {
	t       *testing.T
	spec    spec
	address string
	child   *child
}

func launchProgram(name string) func(t *testing.T) server {
	return func(t *testing.T) server {
		t.Helper()
		port := freePort(t)
		p := &program{t: t, spec: spec{Role: "server", Name: name, Broker: name, Port: port, Store: t.TempDir()}}
		p.address = (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}).String()
		if err := p.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.kill(context.Background()) })
		return p
	}
}

func (p *program) url() string { return p.address }

func (p *program) start(context.Context) (err error) {
	p.child, err = spawn(p.t, p.spec, func(*child, report) {})
	return err
}

func (p *program) kill(context.Context) error {
	p.child.kill()
	return nil
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
