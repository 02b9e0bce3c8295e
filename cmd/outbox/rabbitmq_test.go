package main

import (
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/testcontainers/testcontainers-go"

	"github.com/outbox-suite/outbox/publish/rabbitmq"
)

// rabbitServer is a real one in a container, or the test is skipped.
func rabbitServer(t *testing.T) (addr string, ch *amqp.Channel) {
	t.Helper()
	image := os.Getenv("OUTBOX_IMAGE_RABBITMQ_4")
	if image == "" {
		if slices.Contains(strings.Split(os.Getenv("OUTBOX_REQUIRE"), ","), "rabbitmq") {
			t.Fatal("OUTBOX_REQUIRE asks for rabbitmq, but OUTBOX_IMAGE_RABBITMQ_4 names no image")
		}
		t.Skip("not run against RabbitMQ: OUTBOX_IMAGE_RABBITMQ_4 names no image; rabbitmq:4 would do")
	}
	ctr, err := testcontainers.Run(t.Context(), image,
		testcontainers.WithEnv(map[string]string{"RABBITMQ_DEFAULT_USER": "app", "RABBITMQ_DEFAULT_PASS": "hunter2"}),
		testcontainers.WithLabels(map[string]string{"outbox.containers.pid": strconv.Itoa(os.Getpid())}),
		testcontainers.WithExposedPorts("5672/tcp"))
	testcontainers.CleanupContainer(t, ctr, testcontainers.StopTimeout(0))
	if err != nil {
		t.Fatal(err)
	}
	port, err := ctr.MappedPort(t.Context(), "5672/tcp")
	if err != nil {
		t.Fatal(err)
	}
	addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port.Num())))
	for deadline := time.Now().Add(90 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		conn, err := amqp.Dial("amqp://app:hunter2@" + addr)
		if err == nil {
			t.Cleanup(func() { _ = conn.Close() })
			ch, err = conn.Channel()
		}
		if err == nil {
			return addr, ch
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestRelayToRabbitMQ(t *testing.T) {
	addr, ch := rabbitServer(t)
	for _, queue := range []string{"shop.orders", "all"} {
		if _, err := ch.QueueDeclare(queue, true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := ch.QueueBind("all", "everything", "amq.topic", false, nil); err != nil {
		t.Fatal(err)
	}
	s := migrated(t)
	s.enqueueKeys("orders", 3, "a", "b")
	s.env["OUTBOX_RABBITMQ_USER"], s.env["OUTBOX_RABBITMQ_PASSWORD"] = "app", "hunter2"
	s.ok("", "relay", "--publish", "amqp://"+addr+"/?prefix=shop.&channels=2", "--until-empty", "--source", "/shop")
	s.env["OUTBOX_RABBITMQ_PASSWORD"] = "wrong"
	s.enqueueKeys("orders", 1, "a")
	s.ok("", "relay", "--publish", "amqp://127.0.0.1:1,"+addr+"/%2F?exchange=amq.topic&routing_key=everything&password_file="+passwordFile(t), "--until-empty")
	s.enqueueKeys("nowhere", 1, "lost")
	r := s.run(nil, "relay", "--publish", "amqp://app:hunter2@"+addr, "--until-empty")
	if r.code != exitOK || s.status("dead") != 1 || !strings.Contains(r.err, "rabbitmqadmin declare queue --name nowhere") || strings.Contains(r.err, "hunter2") {
		t.Errorf("%d dead: %v", s.status("dead"), r)
	}
	s.enqueueKeys("made", 1, "a")
	s.ok("", "relay", "--publish", "amqp://app:hunter2@"+addr+"?create=true", "--until-empty")
	for queue, want := range map[string]int{"shop.orders": 6, "all": 1, "made": 1} {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil || q.Messages != want {
			t.Errorf("queue %s has %d messages (%v), want %d", queue, q.Messages, err, want)
		}
	}
	d, _, err := ch.Get("shop.orders", true)
	if err != nil {
		t.Fatal(err)
	}
	if m, err := rabbitmq.Decode(&d); err != nil || m.Topic != "orders" || d.Headers["cloudEvents_source"] != "/shop" {
		t.Errorf("%v: got %+v", err, m)
	}
	s.enqueueKeys("made", 1, "b")
	r = s.runUntilSaid("username or password not allowed", "relay", "--publish", "amqp://app:sesame@"+addr)
	if !strings.Contains(r.err, "username or password not allowed") || strings.Contains(r.err, "sesame") || s.status("dead") != 1 {
		t.Errorf("%v", r)
	}
}

func TestRabbitMQOptionsAreRefused(t *testing.T) {
	s := migrated(t)
	for url, want := range map[string]string{
		"amqp:":                             "write it as amqp://",
		"amqp://u:hunter2%zz@h":             "percent-encode them",
		"amqp://u:p@h:hunter2":              "address cannot be used",
		"amqp://h/a/b":                      "percent-encode it",
		"amqp://h/%zz":                      "percent-encode it",
		"amqp://h/?hunter=2":                `option "hunter" is unknown: use ca, cert`,
		"amqp://h/?channels=hunter2":        "option channels: give a number above 0",
		"amqp://h/?max_bytes=0":             "option max_bytes: give a number above 0",
		"amqp://h/?create=hunter2":          "option create: give true or false",
		"amqp://h/?create=true&exchange=a":  "exclude each other",
		"amqp://h/?routing_key=a&prefix=b":  "exclude each other",
		"amqp://u@h/?sasl=hunter2":          "use plain or external",
		"amqp://u@h/?password_file=/no/f":   "option password_file: open /no/f",
		"amqp://h/?password_file=/dev/null": "needs a user",
		"amqps://h/?cert=a":                 "cert and key go together",
		"amqps://h/?ca=/no/ca":              "/no/ca",
		"amqp://h/?ca=" + caFile(t):         "write amqps://",
	} {
		if text := s.fails(exitUsage, "", []string{"relay", "--publish", url}, want); strings.Contains(text, "hunter2") {
			t.Errorf("%s: the error shows a value: %s", url, text)
		}
	}
}
