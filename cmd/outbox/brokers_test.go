package main

import (
	"context"
	"encoding/pem"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/publish/kafka"
	"github.com/outbox-suite/outbox/publish/redis"
	"github.com/outbox-suite/outbox/relay"
)

func passwordFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(path, []byte("hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// caFile has a certificate.
func caFile(t *testing.T) string {
	t.Helper()
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	path := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRelayToKafka(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(2), kfake.SeedTopics(3, "shop.orders", "all"), kfake.EnableSASL(),
		kfake.Superuser("SCRAM-SHA-256", "app", "hunter2"), kfake.Superuser("SCRAM-SHA-512", "app", "hunter2"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	addrs := strings.Join(c.ListenAddrs(), ",")
	s := migrated(t)
	s.enqueueKeys("orders", 3, "a", "b")
	s.env["OUTBOX_KAFKA_USER"], s.env["OUTBOX_KAFKA_PASSWORD"] = "app", "hunter2"
	s.ok("", "relay", "--publish", "kafka://"+addrs+"/?prefix=shop.&clients=2", "--until-empty", "--source", "/shop")
	s.env["OUTBOX_KAFKA_PASSWORD"] = "wrong"
	s.enqueueKeys("orders", 1, "a")
	s.ok("", "relay", "--publish", "kafka://"+addrs+"?topic=all&sasl=scram-sha-256&transactional_id=shop&password_file="+passwordFile(t), "--until-empty")
	s.enqueueKeys("nowhere", 1, "lost")
	r := s.run(nil, "relay", "--publish", "kafka://app:hunter2@"+addrs, "--until-empty")
	if r.code != exitOK || s.status("dead") != 1 || !strings.Contains(r.err, "--create --topic nowhere") || strings.Contains(r.err, "hunter2") {
		t.Errorf("%d dead: %v", s.status("dead"), r)
	}

	k, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.SASL(scram.Auth{User: "app", Pass: "hunter2"}.AsSha256Mechanism()),
		kgo.ConsumeTopics("shop.orders", "all"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n := make(map[string]int)
	for n["shop.orders"]+n["all"] < 7 {
		f := k.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatal(n, f.Err())
		}
		f.EachRecord(func(r *kgo.Record) {
			n[r.Topic]++
			if m, err := kafka.Decode(r); err != nil || m.Topic != "orders" || r.Attrs.IsTransactional() != (r.Topic == "all") {
				t.Errorf("%v: %+v", err, m)
			}
		})
	}
	if n["shop.orders"] != 6 || n["all"] != 1 {
		t.Errorf("got %v", n)
	}
}

// redisServer is a real one, or the test is skipped.
func redisServer(t *testing.T) string {
	t.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		if slices.Contains(strings.Split(os.Getenv("OUTBOX_REQUIRE"), ","), "redis-server") {
			t.Fatal("OUTBOX_REQUIRE asks for redis-server, which is not installed")
		}
		t.Skip("not run against Redis: redis-server is not installed")
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	_ = l.Close()
	cmd := exec.CommandContext(t.Context(), binary, "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", t.TempDir(), "--requirepass", "hunter2", "--save", "")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

func TestRelayToRedis(t *testing.T) {
	addr := redisServer(t)
	s := migrated(t)
	s.enqueueKeys("orders", 3, "a", "b")
	s.env["OUTBOX_REDIS_PASSWORD"] = "hunter2"
	s.ok("", "relay", "--publish", "redis://"+addr+"/3?prefix=shop:&maxlen=1000", "--until-empty", "--source", "/shop")
	s.env["OUTBOX_REDIS_PASSWORD"] = "wrong"
	s.enqueueKeys("orders", 1, "a")
	s.ok("", "relay", "--publish", "redis://"+addr+"?stream=all&password_file="+passwordFile(t), "--until-empty")
	s.enqueueKeys("nowhere", 1, "lost")
	r := s.run(nil, "relay", "--publish", "redis://:hunter2@"+addr+"?create=false", "--until-empty")
	if r.code != exitOK || s.status("dead") != 1 || !strings.Contains(r.err, "MKSTREAM") || strings.Contains(r.err, "hunter2") {
		t.Errorf("%d dead: %v", s.status("dead"), r)
	}
	c := goredis.NewClient(&goredis.Options{Addr: addr, Password: "hunter2", DB: 3})
	defer c.Close()
	entries, err := c.XRange(t.Context(), "shop:orders", "-", "+").Result()
	if err != nil || len(entries) != 6 {
		t.Fatalf("%v: got %v", err, entries)
	}
	if m, err := redis.Decode(entries[0].Values); err != nil || m.Topic != "orders" || entries[0].Values["source"] != "/shop" {
		t.Errorf("%v: got %+v", err, m)
	}
	s.enqueueKeys("orders", 1, "b")
	r = s.runUntilSaid("WRONGPASS", "relay", "--publish", "redis://:sesame@"+addr+"?replicas=1&replica_timeout=100ms")
	if !strings.Contains(r.err, "WRONGPASS") || strings.Contains(r.err, "sesame") {
		t.Errorf("%v", r)
	}
}

// TestRedisOpenedWhileInUse opens servers while the client of the first, which shares its
// log with theirs, has something to say there; run with -race.
func TestRedisOpenedWhileInUse(t *testing.T) {
	p := &process{getenv: func(string) string { return "" }}
	open := func() relay.Publisher {
		t.Helper()
		publisher, err := openPublisher(p, "redis://127.0.0.1:1", "/", &relay.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = publisher.(*redis.Publisher).Close() })
		return publisher
	}
	first := open()
	answered := make(chan []error, 1)
	go func() {
		answered <- first.Publish(t.Context(), []relay.Message{{Message: outbox.Message{Topic: "orders"}}})
	}()
	for {
		open()
		select {
		case errs := <-answered:
			if errs[0] == nil {
				t.Error("published where no server is")
			}
			return
		case <-time.After(time.Millisecond):
		}
	}
}

func TestBrokerOptionsAreRefused(t *testing.T) {
	s := migrated(t)
	for url, want := range map[string]string{
		"kafka:":                                    "write it as kafka://",
		"kafka://h/path":                            "write it as kafka://",
		"kafka://u:hunter2%zz@h":                    "percent-encode them",
		"kafka://u:hunter2@h:port":                  "kafka publisher",
		"kafka://h,,g":                              "address is empty",
		"kafka://h/?hunter=2":                       `option "hunter" is unknown: use ca, cert`,
		"kafka://h/?clients=hunter2":                "option clients: give a number above 0",
		"kafka://h/?max_bytes=1":                    "max bytes is 1",
		"kafka://h/?create=hunter2":                 "option create: give true or false",
		"kafka://h/?topic=a&prefix=b":               "exclude each other",
		"kafka://h/?sasl=plain":                     "needs a user",
		"kafka://u:hunter2@h/?sasl=hunter2":         "use scram-sha-512",
		"kafka://u@h/?password_file=/no/f":          "option password_file: open /no/f",
		"kafka://h/?password_file=" + os.Args[0]:    "needs a user",
		"kafka://h/?cert=a":                         "cert and key go together",
		"kafka://h/?ca=/no/ca":                      "/no/ca",
		"kafka://h/?ca=/dev/null":                   "no certificates",
		"kafka://h/?ca=" + caFile(t) + "&tls=false": "leave tls out",
		"redis:":                       "write it as redis://",
		"redis://h,g":                  "name one",
		"redis://h/zero":               "no number of a database",
		"redis://u:hunter2%zz@h/0":     "percent-encode them",
		"redis://h/?maxlen=hunter2":    "option maxlen: give a number above 0",
		"redis://h/?replica_timeout=1": "give a duration",
		"redis://h/?ca=/no/ca":         "/no/ca",
		"redis://h/?ca=" + caFile(t):   "write rediss://",
		"rediss://h/0?key=a":           "cert and key go together",
	} {
		if text := s.fails(exitUsage, "", []string{"relay", "--publish", url}, want); strings.Contains(text, "hunter2") {
			t.Errorf("%s: the error shows a value: %s", url, text)
		}
	}
}
