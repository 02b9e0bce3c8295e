package webhook_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/publish/cloudevents"
	"github.com/outbox-suite/outbox/publish/webhook"
	"github.com/outbox-suite/outbox/relay"
)

func TestMain(m *testing.M) {
	_ = os.Setenv("NO_PROXY", "*") // the endpoints are here
	os.Exit(m.Run())
}

func messages(n int) []relay.Message {
	all := make([]relay.Message, n)
	for i := range all {
		all[i] = relay.Message{
			Message: outbox.Message{
				ID: uuid.New(), Topic: "orders", Key: fmt.Sprint(i), Type: "order.placed", ContentType: "application/json",
				Payload: []byte(`{"password":"hunter2"}`),
			},
			Seq: int64(i + 1), Attempt: 1, CreatedAt: time.Unix(1_770_000_000, 0),
		}
	}
	return all
}

// serve starts an endpoint.
func serve(t *testing.T, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(handler)
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // refused handshakes are meant
	s.Start()
	t.Cleanup(s.Close)
	return s
}

func open(t *testing.T, url string, cfg webhook.Config) *webhook.Publisher {
	t.Helper()
	p, err := webhook.New(url, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPostsOneEventARequest(t *testing.T) {
	var mu sync.Mutex
	var bodies []string
	var header http.Header
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		bodies = append(bodies, r.Method+" "+r.URL.Path+" "+string(body))
		header = r.Header
		w.WriteHeader(http.StatusAccepted)
	})
	own := http.Header{"X-Tenant": {"acme"}}
	p := open(t, strings.Replace(s.URL, "http://", "http://user:secret@", 1)+"/hook", webhook.Config{Source: "/shop", Header: own})
	sent := messages(3)
	for i, err := range p.Publish(t.Context(), sent) {
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(bodies) != len(sent) {
		t.Fatalf("%d requests, want %d", len(bodies), len(sent))
	}
	for i := range sent {
		if want := "POST /hook " + string(cloudevents.Append(nil, "/shop", &sent[i])); bodies[i] != want {
			t.Errorf("request %d is\n%s\nwant\n%s", i, bodies[i], want)
		}
	}
	for name, want := range map[string]string{
		"Content-Type": "application/cloudevents+json; charset=utf-8", "X-Tenant": "acme", "Authorization": "Basic dXNlcjpzZWNyZXQ=",
	} {
		if got := header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if len(own) != 1 {
		t.Error("the caller's header is changed")
	}
}

func TestAnswers(t *testing.T) {
	const accepted, retried, dead = "accepted", "tried again", "dead"
	for _, test := range []struct {
		status int
		want   string
	}{
		{200, accepted},
		{201, accepted},
		{202, accepted},
		{204, accepted},
		{299, accepted},
		{300, retried},
		{302, retried},
		{307, retried},
		{308, retried},
		{400, dead},
		{401, dead},
		{404, dead},
		{408, retried},
		{410, dead},
		{413, dead},
		{422, dead},
		{425, retried},
		{429, retried},
		{500, retried},
		{501, retried},
		{503, retried},
		{599, retried},
		{600, retried},
	} {
		t.Run(fmt.Sprint(test.status), func(t *testing.T) {
			var requests atomic.Int64
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				w.Header().Set("Location", "/elsewhere")
				w.Header().Set("Retry-After", "3600")
				w.WriteHeader(test.status)
				if test.status != http.StatusNoContent {
					_, _ = io.Copy(w, r.Body) // as some do; it must not reach the error
				}
			})
			err := first(open(t, s.URL+"/?token=secret", webhook.Config{}).Publish(t.Context(), messages(1)))
			got := accepted
			switch {
			case relay.IsUnavailable(err):
				got = "unavailable"
			case relay.IsPermanent(err):
				got = dead
			case err != nil:
				got = retried
			}
			if got != test.want {
				t.Errorf("%s (%v), want %s", got, err, test.want)
			}
			if n := requests.Load(); n != 1 {
				t.Errorf("%d requests, want 1", n)
			}
			secretFree(t, err)
			if err != nil && !strings.Contains(err.Error(), fmt.Sprint(test.status)) {
				t.Errorf("error %q does not name the status", err)
			}
		})
	}
}

func first(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return errs[0]
}

func secretFree(t *testing.T, err error) {
	t.Helper()
	if err != nil && (strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "hunter2")) {
		t.Errorf("error %q shows a secret", err)
	}
}

func TestNoConnectionIsUnavailable(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := "http://" + l.Addr().String()
	_ = l.Close()
	stranger := httptest.NewUnstartedServer(http.NotFoundHandler())
	stranger.Config.ErrorLog = log.New(io.Discard, "", 0)
	stranger.StartTLS()
	defer stranger.Close()
	plain := serve(t, func(http.ResponseWriter, *http.Request) {})
	for name, url := range map[string]string{
		"refused":             refused,
		"unknown host":        "http://no-such-host.invalid",
		"unknown certificate": stranger.URL,
		"no TLS at all":       strings.Replace(plain.URL, "http:", "https:", 1),
	} {
		t.Run(name, func(t *testing.T) {
			errs := open(t, url+"/?token=secret", webhook.Config{}).Publish(t.Context(), messages(3))
			if len(errs) != 3 {
				t.Fatalf("%d results", len(errs))
			}
			for i, err := range errs {
				if !relay.IsUnavailable(err) {
					t.Errorf("message %d: %v, want unavailable", i, err)
				}
				secretFree(t, err)
			}
		})
	}
}

// TestUnknownOutcome: the endpoint may have accepted.
func TestUnknownOutcome(t *testing.T) {
	s := serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	errs := open(t, s.URL, webhook.Config{}).Publish(t.Context(), messages(2))
	for i, err := range errs {
		if err == nil || relay.IsUnavailable(err) || relay.IsPermanent(err) {
			t.Errorf("message %d: %v, want an error that is tried again", i, err)
		}
	}
}

func TestContextEnds(t *testing.T) {
	var requests atomic.Int64
	arrived, hang := make(chan struct{}, 9), make(chan struct{})
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1) == 1 {
			return // accepted
		}
		arrived <- struct{}{}
		<-hang
	})
	defer close(hang)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("lease lost")
	go func() {
		<-arrived
		cancel(cause)
	}()
	errs := open(t, s.URL, webhook.Config{}).Publish(ctx, messages(4))
	if len(errs) != 4 || errs[0] != nil {
		t.Fatalf("results %v, want the first accepted", errs)
	}
	for i, err := range errs[1:] {
		if err == nil || relay.IsUnavailable(err) || relay.IsPermanent(err) {
			t.Errorf("message %d: %v, want an error that is tried again", i+1, err)
		}
	}
	if !errors.Is(errs[3], cause) {
		t.Errorf("error %v does not tell why it was not sent", errs[3])
	}
	if n := requests.Load(); n != 2 {
		t.Errorf("%d requests, want 2: nothing is sent after the end", n)
	}
}

func TestConnectionIsUsedAgain(t *testing.T) {
	var connections atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write(bytes.Repeat([]byte("x"), 8<<10))
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	p := open(t, s.URL, webhook.Config{})
	for range 5 {
		_ = p.Publish(t.Context(), messages(4))
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections for requests one after the other, want 1", n)
	}
}

// TestEndlessAnswer sends a body without an end.
func TestEndlessAnswer(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 32<<10)); err != nil {
				return
			}
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := first(open(t, s.URL, webhook.Config{}).Publish(ctx, messages(1))); err != nil {
		t.Error(err)
	}
	if ctx.Err() != nil {
		t.Error("the body was read to the end of the context")
	}
}

func TestNewRefuses(t *testing.T) {
	for _, url := range []string{"", "hook", "ftp://host/secret", "http://", "https:///secret", "http://host:port/secret", "http://user:secret@[::1/", "http:secret"} {
		_, err := webhook.New(url, webhook.Config{})
		if err == nil {
			t.Errorf("%q is accepted", url)
		}
		secretFree(t, err)
	}
	if _, err := webhook.New("http://host", webhook.Config{Source: "a b"}); err == nil {
		t.Error("a source that is no URI reference is accepted")
	}
}
