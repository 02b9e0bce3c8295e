package endtoend

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

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/internal/proxy"
	"github.com/outbox-suite/outbox/publish/redis"
	"github.com/outbox-suite/outbox/relay"
)

// serverRedis is the machine's redis-server. It flushes each write, and so keeps what it
// has answered when it is killed.
type serverRedis struct {
	binary, address string
	args            []string
	cmd             *exec.Cmd
}

func launchRedis(t *testing.T) server {
	t.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		if slices.Contains(strings.Split(os.Getenv("OUTBOX_REQUIRE"), ","), "redis-server") {
			t.Fatal("OUTBOX_REQUIRE asks for redis-server, which is not installed")
		}
		t.Skip("not run with Redis: redis-server is not installed")
	}
	port := strconv.Itoa(freePort(t))
	s := &serverRedis{binary: binary, address: net.JoinHostPort("127.0.0.1", port), args: []string{
		"--bind", "127.0.0.1", "--port", port, "--dir", t.TempDir(), "--appendonly", "yes", "--appendfsync", "always", "--save", "",
	}}
	if err := s.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.kill(context.Background()) })
	return s
}

func (s *serverRedis) url() string { return s.address }

// start returns when the server answers.
func (s *serverRedis) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	s.cmd = exec.CommandContext(context.WithoutCancel(ctx), s.binary, s.args...)
	if err := s.cmd.Start(); err != nil {
		return err
	}
	c := clientRedis(s.address)
	defer c.Close()
	for {
		err := c.Ping(ctx).Err()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			_ = s.kill(ctx)
			return fmt.Errorf("redis-server does not answer: %w", err)
		}
		pause(ctx)
	}
}

func (s *serverRedis) kill(context.Context) error {
	_ = s.cmd.Process.Kill() // it may have ended
	_ = s.cmd.Wait()
	return nil
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// clientRedis repeats nothing by itself: an XREADGROUP that is repeated for want of an
// answer gets the next entry, and the one in the answer that was lost stays with the
// consumer, who never heard of it.
func clientRedis(address string) *goredis.Client {
	return goredis.NewClient(&goredis.Options{Addr: address, DisableIdentity: true, Protocol: 2, MaxRetries: -1})
}

func prepareRedis(ctx context.Context, address, topic string) error {
	c := clientRedis(address)
	defer c.Close()
	return c.XGroupCreateMkStream(ctx, topic, "billing", "0").Err()
}

func publishRedis(address string) (relay.Publisher, error) {
	return redis.Connect(&goredis.Options{Addr: address}, redis.Config{})
}

// subscriptionRedis is the group's only consumer, whose name stays: what it had in hand
// comes first. So it must end with any error, as what it has in hand is unknown then.
type subscriptionRedis struct {
	client  *goredis.Client
	topic   string
	pending bool
}

func subscribeRedis(_ context.Context, address, topic string) (subscription, error) {
	return &subscriptionRedis{clientRedis(address), topic, true}, nil
}

func (s *subscriptionRedis) next(ctx context.Context) (delivery, error) {
	for {
		from := ">"
		if s.pending {
			from = "0"
		}
		got, err := s.client.XReadGroup(ctx, &goredis.XReadGroupArgs{
			Group: "billing", Consumer: "billing-1", Streams: []string{s.topic, from}, Count: 1, Block: 100 * time.Millisecond,
		}).Result()
		switch {
		case errors.Is(err, goredis.Nil):
			continue
		case err != nil:
			return delivery{}, err
		case len(got[0].Messages) == 0:
			s.pending = false
			continue
		}
		entry := got[0].Messages[0]
		m, err := redis.Decode(entry.Values)
		return delivery{m, func() error { return s.client.XAck(ctx, s.topic, "billing", entry.ID).Err() }, func() error { return errAgain }, false}, err
	}
}

func (s *subscriptionRedis) close() { _ = s.client.Close() }

// TestRedisLostAnswer loses each request of the consumer in turn, and each answer. Every
// message comes all the same, and none before an earlier one.
func TestRedisLostAnswer(t *testing.T) {
	address := launchRedis(t).url()
	publisher, err := publishRedis(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = publisher.(*redis.Publisher).Close() })
	messages := []relay.Message{{Message: outbox.Message{ID: uuid.New(), Type: "a"}}, {Message: outbox.Message{ID: uuid.New(), Type: "b"}}}
	for _, answer := range []bool{false, true} {
		requests := 0
		for struck := true; struck; {
			requests++
			t.Run(fmt.Sprintf("%d/%t", requests, answer), func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				topic := "topic-" + uuid.NewString()
				if err := prepareRedis(ctx, address, topic); err != nil {
					t.Fatal(err)
				}
				for _, m := range messages {
					m.Topic = topic
					if err := errors.Join(publisher.Publish(ctx, []relay.Message{m})...); err != nil {
						t.Fatal(err)
					}
				}
				p, err := proxy.Listen(ctx, address)
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close()
				p.CutAt(requests, answer)
				var came []string
				for !slices.Contains(came, "b") && ctx.Err() == nil {
					readRedis(ctx, p.Addr(), topic, func(m relay.Message) {
						if !slices.Contains(came, m.Type) {
							came = append(came, m.Type)
						}
					})
				}
				if !slices.Equal(came, []string{"a", "b"}) {
					t.Errorf("%q came, not a and then b", came)
				}
				struck = !p.Armed()
			})
			if t.Failed() {
				return
			}
		}
		// One asks what is pending, and two each read a message and acknowledge it.
		if requests <= 5 {
			t.Errorf("only %d requests were lost", requests-1)
		}
	}
}

// readRedis reads up to message b, or until the subscription breaks.
func readRedis(ctx context.Context, address, topic string, came func(relay.Message)) {
	sub, err := subscribeRedis(ctx, address, topic)
	if err != nil {
		return
	}
	defer sub.close()
	for {
		d, err := sub.next(ctx)
		if err != nil {
			return
		}
		came(d.Message)
		if d.ack() != nil || d.Type == "b" {
			return
		}
	}
}
