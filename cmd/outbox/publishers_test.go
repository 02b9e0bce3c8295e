package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-suite/outbox/publish/nats"
)

// natsServer is a server with a stream for the subjects shop.>.
func natsServer(t *testing.T) (addr string, js jetstream.JetStream) {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: -1, Username: "app", Password: "hunter2", JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the server does not get ready")
	}
	nc, err := natsgo.Connect(s.ClientURL(), natsgo.UserInfo("app", "hunter2"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "SHOP", Subjects: []string{"shop.>"}}); err != nil {
		t.Fatal(err)
	}
	return s.Addr().String(), js
}

func TestRelayToNATS(t *testing.T) {
	addr, js := natsServer(t)
	s := migrated(t)
	s.enqueueKeys("orders", 3, "a", "b")
	s.env["OUTBOX_NATS_USER"], s.env["OUTBOX_NATS_PASSWORD"] = "app", "hunter2"
	s.ok("", "relay", "--publish", "nats://"+addr+"/?prefix=shop.&stream=SHOP&window=10", "--until-empty", "--source", "/shop")

	s.env["OUTBOX_NATS_PASSWORD"] = "wrong"
	path := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(path, []byte("hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.enqueueKeys("orders", 1, "a")
	s.enqueueKeys("nowhere", 1, "lost")
	r := s.run(nil, "relay", "--publish", "nats://127.0.0.1:1,"+addr+"?prefix=shop.&password_file="+path, "--until-empty")
	if r.code != exitOK || s.status("dead") != 0 {
		t.Errorf("%v", r)
	}
	s.enqueueKeys("nowhere", 1, "lost")
	r = s.run(nil, "relay", "--publish", "nats://app:hunter2@"+addr, "--until-empty")
	if r.code != exitOK || s.status("dead") != 1 || !strings.Contains(r.err, "no stream takes subject") || strings.Contains(r.err, "hunter2") {
		t.Errorf("%d dead: %v", s.status("dead"), r)
	}

	stream, err := js.Stream(t.Context(), "SHOP")
	if err != nil {
		t.Fatal(err)
	}
	const want = 8
	if n := stream.CachedInfo().State.Msgs; n != want {
		t.Fatalf("the stream has %d messages, want %d", n, want)
	}
	raw, err := stream.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	m, err := nats.Decode(raw.Header, raw.Data)
	if err != nil || raw.Subject != "shop.orders" || m.Topic != "orders" || raw.Header.Get("ce-source") != "/shop" {
		t.Errorf("%v: got %s %v %+v", err, raw.Subject, raw.Header, m)
	}
}

// A server that lets nobody in is waited for, and the log says why without the
// password.
func TestRelayToNATSWithoutAccess(t *testing.T) {
	addr, _ := natsServer(t)
	s := migrated(t)
	s.enqueueKeys("shop.orders", 1, "a")
	r := s.runUntilSaid("Authorization Violation", "relay", "--publish", "nats://app:sesame@"+addr)
	if !strings.Contains(r.err, "Authorization Violation") || strings.Contains(r.err, "sesame") || s.status("dead") != 0 {
		t.Errorf("%v", r)
	}
}

func TestNATSOptionsAreRefused(t *testing.T) {
	s := migrated(t)
	for url, want := range map[string]string{
		"nats:":                                 "write it as nats://",
		"nats://":                               "write it as nats://",
		"nats://h/path":                         "write it as nats://",
		"nats://u:hunter2%zz@h":                 "percent-encode them",
		"nats://u:hunter2@h:port":               "server address or options cannot be used",
		"nats://h/?hunter=2":                    `option "hunter" is unknown: use ca, cert`,
		"nats://h/?stream=":                     `option "stream" is empty`,
		"nats://h/?stream=hunter2&stream":       `option "stream" is there twice`,
		"nats://h/?%zz=hunter2":                 "options cannot be read",
		"nats://h/?window=hunter2":              "give a number of messages above 0",
		"nats://h/?creds=/no/file":              "option creds: open /no/file",
		"nats://u@h/?password_file=/no/f":       "option password_file: open /no/f",
		"nats://h/?password_file=" + os.Args[0]: "needs a user",
		"nats://h/?cert=a":                      "cert and key go together",
		"nats://h/?cert=/no/a&key=/no/b":        "/no/a",
		"tls://h/?ca=/no/ca":                    "/no/ca",
	} {
		if text := s.fails(exitUsage, "", []string{"relay", "--publish", url}, want); strings.Contains(text, "hunter2") {
			t.Errorf("%s: the error shows a value: %s", url, text)
		}
	}
}
