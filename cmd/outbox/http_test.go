package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/outboxtest"
	"github.com/outbox-suite/outbox/relay"
	"github.com/outbox-suite/outbox/telemetry"
)

// get reads a path of a server.
func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(b)
}

// await asks until the status is the one wanted.
func await(t *testing.T, url string, want int) {
	t.Helper()
	for {
		status, _ := get(t, url)
		if status == want {
			return
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("%s answers %d, not %d", url, status, want)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// serving runs `outbox relay --http` and returns where it is served and how it is
// stopped.
func serving(t *testing.T, s *shell, args ...string) (base string, log *buffer, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	log = &buffer{}
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, &process{stdout: io.Discard, stderr: log, getenv: func(name string) string { return s.env[name] }},
			append([]string{"relay", "--publish", "discard:"}, args...))
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if code := <-done; code != exitOK {
			t.Errorf("exit code %d: %s", code, log.String())
		}
	})
	t.Cleanup(stop)
	for base == "" {
		if _, rest, ok := strings.Cut(log.String(), "address="); ok && strings.Contains(rest, "\n") {
			address, _, _ := strings.Cut(rest, "\n")
			_, port, err := net.SplitHostPort(strings.Trim(address, `"`))
			if err != nil {
				t.Fatal(err)
			}
			base = "http://127.0.0.1:" + port
		}
		if t.Context().Err() != nil || len(done) > 0 {
			t.Fatalf("it is not served: %s", log.String())
		}
		time.Sleep(time.Millisecond)
	}
	return base, log, stop
}

// TestRelayHTTP runs the command and asks it all it serves.
func TestRelayHTTP(t *testing.T) {
	s := migrated(t)
	s.enqueueKeys("orders", 3, "key-of-ann")
	s.env["OUTBOX_HTTP"] = "127.0.0.1:0"
	base, _, stop := serving(t, s, "--metric-topics", "orders")
	await(t, base+"/readyz", http.StatusOK)
	await(t, base+"/healthz", http.StatusOK)
	const published = `outbox_relay_messages_total{outcome="published"} 3`
	var metrics string
	for !strings.Contains(metrics, published) {
		_, metrics = get(t, base+"/metrics")
	}
	for _, want := range []string{
		`messaging_client_sent_messages_total{messaging_destination_name="orders",messaging_operation_name="send",messaging_system="discard"} 3`,
		`outbox_messages{state="dead"} 0`, "go_goroutines ", "go_gc_gogc_percent 400", `go_sql_open_connections{db_name="outbox"}`, `service_name="outbox"`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics lacks %q:\n%s", want, metrics)
		}
	}
	for _, secret := range []string{"key-of-ann", "hunter2"} {
		if strings.Contains(metrics, secret) {
			t.Errorf("/metrics shows %q", secret)
		}
	}
	if status, page := get(t, base+"/"); status != http.StatusOK || !strings.Contains(page, "<html") {
		t.Errorf("/ answers %d: %s", status, page)
	}
	stop()
	if conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(base, "http://")); err == nil {
		conn.Close()
		t.Error("the address is still served")
	}
}

// The operator's page is not for everybody on the network.
func TestRelayHTTPOnAllAddresses(t *testing.T) {
	for token, want := range map[string]int{"": http.StatusNotFound, "0123456789abcdef0123456789abcdef": http.StatusUnauthorized} {
		s := migrated(t)
		s.env["OUTBOX_UI_TOKEN"] = token
		base, _, _ := serving(t, s, "--http", "0.0.0.0:0")
		if status, page := get(t, base+"/"); status != want {
			t.Errorf("with the token %q / answers %d, not %d: %s", token, status, want, page)
		}
		if status, _ := get(t, base+"/metrics"); status != http.StatusOK {
			t.Errorf("with the token %q /metrics answers %d", token, status)
		}
	}
}

func TestHTTPAddressCannotBeServed(t *testing.T) {
	s := migrated(t)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s.fails(exitFailed, "", []string{"relay", "--publish", "discard:", "--http", l.Addr().String()}, "http: ", "choose another address")
	s.fails(exitUsage, "", []string{"relay", "--publish", "discard:", "--http", "9464"}, "write host:port")
}

// ask asks a check of a server that is not served.
func ask(t *testing.T, s *site, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	s.mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
	return w.Code, strings.TrimSpace(w.Body.String())
}

func TestReady(t *testing.T) {
	ob := outboxtest.New(t, outbox.Config{})
	s, err := newSite(ob, slog.New(slog.DiscardHandler), telemetry.Config{}, time.Minute, failsEvery, 4)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	want := func(status int, text string) {
		t.Helper()
		if code, body := ask(t, s, "/readyz"); code != status || body != text {
			t.Errorf("/readyz is %d %q, want %d %q", code, body, status, text)
		}
	}
	want(503, "the relay has not polled yet")
	s.observer.Observe(relay.Polled{})
	asked := time.Now()
	want(200, "ok")
	if _, err := ob.DB().ExecContext(t.Context(), "DROP TABLE outbox_meta"); err != nil {
		t.Fatal(err)
	}
	if code, body := ask(t, s, "/readyz"); code != 200 && time.Since(asked) < checkEvery {
		t.Errorf("/readyz is %d %q: the database is asked again so soon", code, body)
	}
	for code := 200; code == 200 && t.Context().Err() == nil; time.Sleep(10 * time.Millisecond) {
		code, _ = ask(t, s, "/readyz")
	}
	want(503, "the database lacks something: see `outbox status`")
	s.observer.Observe(relay.Stopping{})
	want(503, "the relay is stopping")
	if code, _ := ask(t, s, "/healthz"); code != 200 {
		t.Errorf("/healthz is %d while the relay stops", code)
	}
	// Another page is one line.
	s.mux.Handle("/", http.NotFoundHandler())
	if code, _ := ask(t, s, "/metrics"); code != 200 {
		t.Errorf("/metrics is %d beside another page", code)
	}
}

// The answer says nothing of what a driver's error tells.
func TestReadyHidesTheError(t *testing.T) {
	c := &checks{pulse: newPulse(time.Minute, failsEvery, 4, nil), check: func(context.Context) error { return errors.New("dial tcp 10.1.2.3: user ann") }}
	if got := c.database(t.Context()); got != "the database does not answer" {
		t.Errorf("got %q", got)
	}
}

// What is alive is told from what is stuck, without waiting.
func TestPulse(t *testing.T) {
	const quiet = time.Minute
	for name, test := range map[string]struct {
		events []relay.Event
		stuck  string
	}{
		"no poll":         {nil, "has not polled"},
		"idle":            {[]relay.Event{nil, relay.Polled{}}, ""},
		"database away":   {[]relay.Event{nil, relay.Erred{Op: "poll"}}, ""},
		"only purges":     {[]relay.Event{nil, relay.Purged{}, relay.Erred{Op: "purge"}}, "has not polled"},
		"a silent lane":   {[]relay.Event{relay.Claimed{Lane: 3}, nil, relay.Polled{}}, "lane 3"},
		"a lane at work":  {[]relay.Event{relay.Claimed{Lane: 3}, nil, relay.Attempted{Lane: 3}, relay.Polled{}}, ""},
		"settles go on":   {[]relay.Event{relay.Claimed{Lane: 3}, nil, relay.SettleRetried{Lane: 3}, relay.Polled{}}, ""},
		"a lane released": {[]relay.Event{relay.Claimed{Lane: 3}, relay.Released{Lane: 3}, nil, relay.Polled{}}, ""},
		"a lane lost":     {[]relay.Event{relay.Claimed{Lane: 3}, relay.LeaseLost{Lane: 3}, nil, relay.Polled{}}, ""},
		"a call comes back from a lost lane": {[]relay.Event{
			relay.Claimed{Lane: 3}, relay.LeaseLost{Lane: 3}, relay.Attempted{Lane: 3}, relay.SettleRetried{Lane: 3}, nil, relay.Polled{},
		}, ""},
		"all busy": {[]relay.Event{
			relay.Claimed{Lane: 1}, relay.Claimed{Lane: 2}, nil, relay.Settled{Lane: 1}, relay.Settled{Lane: 2},
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPulse(quiet, failsEvery, 2, nil)
				for _, e := range test.events {
					if e == nil {
						time.Sleep(quiet)
						continue
					}
					p.Observe(e)
				}
				if test.events == nil {
					time.Sleep(quiet)
				}
				time.Sleep(quiet / 2)
				if got := p.stuck(); (got == "") != (test.stuck == "") || !strings.Contains(got, test.stuck) {
					t.Errorf("stuck: %q, want %q", got, test.stuck)
				}
			})
		})
	}
}

// What fails again and again makes the relay not ready, though it polls.
func TestPulseFailure(t *testing.T) {
	denied, waiting := errors.New("permission denied"), errors.New("lock timeout")
	type events = []relay.Event // 20 s apart
	claim, settle := relay.Erred{Op: "claim", Err: denied}, relay.SettleRetried{Lane: 1, Err: denied}
	surface, waits := relay.Erred{Op: "surface", Err: denied}, relay.Erred{Op: "surface", Err: waiting}
	for name, test := range map[string]struct {
		events events
		want   string
	}{
		"none":             {events{relay.Polled{}, relay.Polled{}, relay.Polled{}}, ""},
		"claims":           {events{claim, relay.Polled{}, claim, relay.Polled{}, claim}, "failed to claim for"},
		"settles":          {events{settle, settle, relay.Polled{}, settle}, "failed to settle for"},
		"reads":            {events{relay.Erred{Op: "read ready"}, relay.Claimed{}, relay.Erred{Op: "read ready"}}, "failed to read ready for"},
		"not for long":     {events{claim, relay.Polled{}}, ""},
		"a lane is had":    {events{claim, claim, relay.Claimed{}, claim}, ""},
		"settled again":    {events{settle, settle, relay.Settled{Lane: 2}, settle}, ""},
		"others' business": {events{waits, waits, waits}, ""},
		"surfacing":        {events{surface, relay.Claimed{}, surface, waits}, "failed to surface for"},
		"surfaced again":   {events{surface, surface, relay.Surfaced{}, surface}, ""},
		"purges":           {events{relay.Erred{Op: "purge", Err: denied}, relay.Erred{Op: "purge", Err: denied}, relay.Polled{}}, ""},
		"long ago":         {events{claim, claim, claim, nil, nil, nil, nil, nil, nil, nil}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPulse(time.Hour, failsEvery, 2, func(err error) bool { return errors.Is(err, waiting) })
				for _, e := range test.events {
					if e != nil {
						p.Observe(e)
					}
					time.Sleep(20 * time.Second)
				}
				if got := p.failure(); (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
					t.Errorf("failure: %q, want %q", got, test.want)
				}
			})
		})
	}
}

// What hangs for as long as a long lease before it fails is one spell all the same.
func TestPulseFailsSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lease = 5 * time.Minute
		p := newPulse(time.Hour, failsEvery+lease, 2, nil)
		for range 3 {
			p.Observe(relay.Erred{Op: "read ready"})
			time.Sleep(lease)
		}
		if got := p.failure(); !strings.Contains(got, "failed to read ready for 15m") {
			t.Errorf("failure: %q", got)
		}
	})
}

// pipes is a listener of connections in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{} }

// A body that does not come keeps no connection, and one that came ends no action.
func TestWithBody(t *testing.T) {
	for name, test := range map[string]struct{ sent, want string }{
		"none":      {"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", " 200 "},
		"missing":   {"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n", " 400 "},
		"cut short": {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nwhy", " 400 "},
		"chunked":   {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nwhy\r\n", " 400 "},
		"too large": {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999\r\n\r\n" + strings.Repeat("x", mostBody+1), " 400 "},
		"whole":     {"POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 3\r\n\r\nwhy", " 200 "},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &http.Server{ReadHeaderTimeout: time.Second, Handler: withBody(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					time.Sleep(10 * bodyTimeout) // an action
					if body, err := io.ReadAll(r.Body); err != nil || string(body) != "why" && r.Method == http.MethodPost || r.Context().Err() != nil {
						w.WriteHeader(http.StatusTeapot)
					}
				}))}
				listener := make(pipes)
				go func() { _ = server.Serve(listener) }()
				client, conn := net.Pipe()
				defer client.Close()
				listener <- conn
				close(listener)
				go func() { _, _ = io.WriteString(client, test.sent) }()
				answer, err := io.ReadAll(client)
				if line, _, _ := strings.Cut(string(answer), "\n"); err != nil || !strings.Contains(line, test.want) {
					t.Errorf("answered %q, %v", line, err)
				}
			})
		})
	}
}

func TestSystem(t *testing.T) {
	for url, want := range map[string]string{
		"stdout:": "stdout", "file:x": "file", "HTTPS://h": "webhook", "nats://h": "nats", "tls://h": "nats",
		"kafka://h": "kafka", "rediss://u:secret@h": "redis", "amqps://h": "rabbitmq",
	} {
		if got := system(url); got != want {
			t.Errorf("%s is %q, want %q", url, got, want)
		}
	}
}
