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
	"net/netip"
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

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

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
	cfg.Allow = loopback
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
		event := cloudevents.AppendAttribute(cloudevents.Append(nil, "/shop", &sent[i]), "partitionkey", sent[i].Key)
		if want := "POST /hook " + string(event); bodies[i] != want {
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
	const accepted, retried, unavailable, dead = "accepted", "tried again", "unavailable", "dead"
	for _, test := range []struct {
		status int
		want   string
	}{
		{200, accepted},
		{201, accepted},
		{202, accepted},
		{204, accepted},
		{299, accepted},
		{101, retried},
		{300, dead},
		{301, dead},
		{302, dead},
		{304, dead},
		{307, dead},
		{308, dead},
		{400, dead},
		{401, dead},
		{403, dead},
		{404, dead},
		{408, retried},
		{410, dead},
		{413, dead},
		{415, dead},
		{422, dead},
		{425, retried},
		{429, retried},
		{431, dead},
		{500, retried},
		{501, retried},
		{502, unavailable},
		{503, unavailable},
		{504, unavailable},
		{505, retried},
		{599, retried},
		{600, retried},
	} {
		t.Run(fmt.Sprint(test.status), func(t *testing.T) {
			var requests atomic.Int64
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				w.Header().Set("Location", "/elsewhere")
				w.Header().Set("Retry-After", "3600")
				if test.status == http.StatusSwitchingProtocols {
					w.Header().Set("Upgrade", "x")
					w.Header().Set("Connection", "Upgrade")
				}
				w.WriteHeader(test.status)
				if test.status > 101 && test.status != http.StatusNoContent {
					_, _ = io.Copy(w, r.Body) // as some do; it must not reach the error
				}
			})
			err := first(open(t, s.URL+"/?token=secret", webhook.Config{}).Publish(t.Context(), messages(1)))
			got := accepted
			switch {
			case relay.IsUnavailable(err):
				got = unavailable
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
			if relay.IsPermanent(err) && !strings.HasSuffix(err.Error(), ", then requeue the message") {
				t.Errorf("error %q does not say what to do", err)
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

func TestRetryAfter(t *testing.T) {
	date := func(at time.Time) string { return at.UTC().Format(http.TimeFormat) }
	now := time.Now()
	const year = 365 * 24 * time.Hour
	for _, test := range []struct {
		value, date string
		want        time.Duration
	}{
		{"", "", 0},
		{"0", "", 0},
		{"7", "", 7 * time.Second},
		{" 120 ", "", 2 * time.Minute},
		{"99999999999", "", year},
		{strings.Repeat("9", 99), "", year},
		{"-7", "", 0},
		{"7.5", "", 0},
		{"soon", "", 0},
		// The answer's own clock counts, whatever it says.
		{date(now.Add(time.Hour)), date(now.Add(50 * time.Minute)), 10 * time.Minute},
		{date(now.Add(-time.Hour)), date(now.Add(-2 * time.Hour)), time.Hour},
		{date(now.Add(-time.Hour)), date(now), 0},
		{date(now.Add(100 * year)), date(now), year},
		{now.UTC().Add(time.Minute).Format(time.RFC850), date(now), time.Minute},
		{now.UTC().Add(time.Minute).Format(time.ANSIC), date(now), time.Minute},
		{date(now.Add(time.Hour)), "garbage", time.Hour},
	} {
		s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", test.value)
			if test.date != "" {
				w.Header().Set("Date", test.date)
			}
			w.WriteHeader(http.StatusServiceUnavailable)
		})
		err := first(open(t, s.URL, webhook.Config{}).Publish(t.Context(), messages(1)))
		got := relay.AskedDelay(err)
		if err == nil || got > test.want || got < test.want-5*time.Second {
			t.Errorf("%q at %q: got %v, want %v", test.value, test.date, got, test.want)
		}
	}
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
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
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
	for name, cfg := range map[string]webhook.Config{
		"source":       {Source: "a b"},
		"mode":         {Mode: 7},
		"line break":   {Header: http.Header{"X-A": {"ok", "secret\r\nX-B: c"}}},
		"beyond ASCII": {Header: http.Header{"X-A": {"secret ü"}}},
		"bytes":        {Header: http.Header{"X-A": {"secret \xff"}}},
		"name":         {Header: http.Header{"X A:": {"secret"}}},
		"empty name":   {Header: http.Header{"": {"secret"}}},
		"host":         {Header: http.Header{"host": {"secret"}}},
		"content type": {Header: http.Header{"Content-Type": {"secret"}}},
	} {
		_, err := webhook.New("http://host", cfg)
		_, other := webhook.NewHosts(func(string) string { return "" }, cfg)
		if err == nil || other == nil {
			t.Errorf("%s is accepted", name)
		}
		secretFree(t, err)
	}
}

// TestSlowAnswer: the answer is known when its header is there.
func TestSlowAnswer(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write([]byte("x"))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i, err := range open(t, s.URL, webhook.Config{}).Publish(ctx, messages(2)) {
		if err != nil {
			t.Errorf("message %d: %v", i, err)
		}
	}
	if ctx.Err() != nil {
		t.Error("the answer was thrown away at the end of the context")
	}
}

// TestHugeHeader: an answer cannot fill the memory.
func TestHugeHeader(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Huge", strings.Repeat("x", 1<<20))
	})
	err := first(open(t, s.URL, webhook.Config{}).Publish(t.Context(), messages(1)))
	if err == nil || relay.IsPermanent(err) || relay.IsUnavailable(err) {
		t.Errorf("got %v, want an error that is tried again", err)
	}
}

// TestRedirectsAreNotFollowed looks at where they lead.
func TestRedirectsAreNotFollowed(t *testing.T) {
	var led atomic.Int64
	other := serve(t, func(http.ResponseWriter, *http.Request) { led.Add(1) })
	for status := 300; status < 309; status++ {
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", other.URL+"/secret")
			w.WriteHeader(status)
		})
		err := first(open(t, s.URL, webhook.Config{}).Publish(t.Context(), messages(1)))
		if !relay.IsPermanent(err) {
			t.Errorf("%d: %v, want it refused for good", status, err)
		}
		secretFree(t, err)
	}
	if n := led.Load(); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

func TestHosts(t *testing.T) {
	var got atomic.Int64
	s := serve(t, func(http.ResponseWriter, *http.Request) { got.Add(1) })
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := l.Addr().String()
	_ = l.Close()
	h, err := webhook.NewHosts(func(topic string) string {
		switch topic {
		case "here":
			return s.URL + "/?token=secret"
		case "away":
			return "http://user:secret@" + refused
		case "bad":
			return "secret:"
		case "upper":
			return "https://HOOKS.example/secret"
		}
		return ""
	}, webhook.Config{Allow: loopback})
	if err != nil {
		t.Fatal(err)
	}
	ms := messages(6)
	for i, topic := range []string{"away", "here", "none", "bad", "away", "here"} {
		ms[i].Topic = topic
	}
	errs := h.Publish(t.Context(), ms)
	for i, err := range errs {
		secretFree(t, err)
		switch ms[i].Topic {
		case "here":
			if err != nil {
				t.Errorf("%d: %v, want it accepted", i, err)
			}
		case "away":
			if !relay.IsUnavailable(err) {
				t.Errorf("%d: %v, want unavailable", i, err)
			}
		default:
			if !relay.IsPermanent(err) || !strings.Contains(err.Error(), ms[i].Topic) {
				t.Errorf("%d: %v, want it refused for good, with its topic", i, err)
			}
		}
	}
	if got.Load() != 2 {
		t.Errorf("%d requests, want 2", got.Load())
	}
	for topic, want := range map[string]string{"here": strings.TrimPrefix(s.URL, "http://"), "away": refused, "none": "", "bad": "", "upper": "hooks.example"} {
		if got := h.Destination(topic); got != want {
			t.Errorf("topic %s: destination %q, want %q", topic, got, want)
		}
	}
	var _ relay.Destinations = h
	if _, ok := any(h.Publisher).(relay.Destinations); ok {
		t.Error("a publisher to one endpoint names destinations: its backlog would be parked in an outage")
	}
}
