package webhook_test

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/internal/proxy"
	"github.com/outbox-suite/outbox/publish/webhook"
	"github.com/outbox-suite/outbox/relay"
)

func TestAddresses(t *testing.T) {
	for addr, public := range map[string]bool{
		"8.8.8.8": true, "1.1.1.1": true, "9.255.255.255": true, "11.0.0.0": true, "100.63.255.255": true, "100.128.0.0": true,
		"172.15.255.255": true, "172.32.0.0": true, "192.167.255.255": true, "223.255.255.255": true,
		"[2606:4700::1111]": true, "[2a00::1]": true, "[::ffff:8.8.8.8]": true, "[64:ff9b::808:808]": true, "[2001:200::1]": true,

		"127.0.0.1": false, "127.255.255.254": false, "0.0.0.0": false, "0.1.2.3": false, "10.0.0.1": false, "172.16.0.1": false,
		"172.31.255.255": false, "192.168.1.1": false, "100.64.0.1": false, "100.100.100.200": false, "169.254.169.254": false,
		"192.0.0.192": false, "192.0.2.1": false, "192.88.99.1": false, "198.18.0.1": false, "198.51.100.1": false, "203.0.113.1": false,
		"224.0.0.1": false, "240.0.0.1": false, "255.255.255.255": false, "168.63.129.16": false,

		"[::]": false, "[::1]": false, "[::127.0.0.1]": false, "[::ffff:127.0.0.1]": false, "[::ffff:169.254.169.254]": false, "[::ffff:0.0.0.0]": false,
		"[64:ff9b::7f00:1]": false, "[64:ff9b::169.254.169.254]": false, "[64:ff9b:1::808:808]": false, "[2002:7f00:1::]": false, "[2002:808:808::]": false,
		"[2001::1]": false, "[2001:db8::1]": false, "[3fff::1]": false, "[fc00::1]": false, "[fd00:ec2::254]": false, "[fe80::1]": false,
		"[fe80::1%25eth0]": false, "[fec0::1]": false, "[ff02::1]": false, "[100::1]": false, "[4000::1]": false,
	} {
		_, err := webhook.New("http://"+addr+":8080/secret", webhook.Config{})
		if (err == nil) != public {
			t.Errorf("%s: %v, want it of the public internet: %v", addr, err, public)
		}
		secretFree(t, err)
	}
}

func TestAllow(t *testing.T) {
	allow := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/8")}
	for addr, ok := range map[string]bool{
		"10.1.2.3": true, "[::ffff:10.1.2.3]": true, "[64:ff9b::10.1.2.3]": true, "[fd00::1]": true,
		"10.2.0.1": false, "127.0.0.1": false, "[fc00::1]": false, "[::ffff:10.2.0.1]": false,
	} {
		if _, err := webhook.New("http://"+addr, webhook.Config{Allow: allow}); (err == nil) != ok {
			t.Errorf("%s: %v, want it allowed: %v", addr, err, ok)
		}
	}
}

// A name is looked at when the connection is made, by the address it means then.
func TestNamesAreCheckedWhenDialled(t *testing.T) {
	var got atomic.Int64
	s := serve(t, func(http.ResponseWriter, *http.Request) { got.Add(1) })
	port := s.URL[strings.LastIndex(s.URL, ":"):]
	for _, host := range []string{"localhost", "LOCALHOST", "127.0.0.1"} {
		h, err := webhook.NewHosts(func(string) string { return "http://" + host + port }, webhook.Config{})
		if err != nil {
			t.Fatal(err)
		}
		err = first(h.Publish(t.Context(), messages(1)))
		if !relay.IsUnavailable(err) || !strings.Contains(err.Error(), "name the address in allow") {
			t.Errorf("%s: %v, want it unavailable and the remedy", host, err)
		}
	}
	if got.Load() != 0 {
		t.Errorf("%d requests arrived", got.Load())
	}
	p, err := webhook.New("http://localhost"+port, webhook.Config{Allow: loopback})
	if err != nil {
		t.Fatal(err)
	}
	if err := first(p.Publish(t.Context(), messages(1))); err != nil || got.Load() != 1 {
		t.Errorf("allowed: %v", err)
	}
}

// through is a Config.Proxy.
func through(addr string) func(*http.Request) (*url.URL, error) {
	return func(*http.Request) (*url.URL, error) { return url.Parse(addr) }
}

func TestProxy(t *testing.T) {
	status := http.StatusOK
	var asked []string
	px := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.Host)
		if r.Method == http.MethodConnect && status == http.StatusOK {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.WriteHeader(status)
	})
	try := func(endpoint string, proxy func(*http.Request) (*url.URL, error)) error {
		t.Helper()
		h, err := webhook.NewHosts(func(string) string { return endpoint }, webhook.Config{Proxy: proxy})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		err = first(h.Publish(t.Context(), messages(1)))
		secretFree(t, err)
		return err
	}
	good := through(strings.Replace(px.URL, "http://", "http://user:secret@", 1))

	// The proxy may be anywhere, and looks names up itself.
	if err := try("http://hooks.invalid/x", good); err != nil || len(asked) != 1 || asked[0] != "POST hooks.invalid" {
		t.Errorf("by name: %v, the proxy was asked for %v", err, asked)
	}
	asked = nil
	for _, host := range []string{"127.0.0.1", "10.0.0.1", "[::ffff:169.254.169.254]", "2130706433", "127.1", "0x7f000001", "0x7f.1", "0177.1", "127.0.0.1.", "08.9"} {
		if err := try("http://"+host+"/secret", good); !relay.IsUnavailable(err) {
			t.Errorf("%s: %v, want it unavailable", host, err)
		}
	}
	// net/http maps a name to ASCII before it asks for a tunnel.
	for _, host := range []string{"①②⑦.⓪.⓪.①", "127。0。0。1", "127.0.0.1%C2%AD", "0ⅹ7f000001", "127.0.0.1%25lo", "127.0.0.1..", "bücher.invalid"} {
		for _, scheme := range []string{"http://", "https://"} {
			if err := try(scheme+host+"/secret", good); !relay.IsUnavailable(err) {
				t.Errorf("%s%s: %v, want it unavailable", scheme, host, err)
			}
		}
	}
	if len(asked) != 0 {
		t.Errorf("the proxy was asked for %v", asked)
	}
	if err := try("http://8.8.8.8/x", good); err != nil {
		t.Errorf("an address of the public internet: %v", err)
	}
	if err := try("https://hooks.invalid/x", good); !relay.IsUnavailable(err) || !strings.Contains(err.Error(), "403") {
		t.Errorf("a proxy that does not connect: %v, want it unavailable", err)
	}
	status = http.StatusProxyAuthRequired
	for _, endpoint := range []string{"http://hooks.invalid/x", "https://hooks.invalid/x"} {
		if err := try(endpoint, good); !relay.IsUnavailable(err) || !strings.Contains(err.Error(), "407") {
			t.Errorf("%s: a proxy that lets nobody in: %v, want it unavailable", endpoint, err)
		}
	}
	if err := try("http://hooks.invalid/x", func(*http.Request) (*url.URL, error) { return nil, errors.New("user:secret@proxy") }); !relay.IsUnavailable(err) {
		t.Errorf("a proxy that cannot be used: %v, want it unavailable", err)
	}
	if err := try("http://hooks.invalid/x", through("http://127.0.0.1:1")); !relay.IsUnavailable(err) {
		t.Errorf("a proxy that is away: %v, want it unavailable", err)
	}
	// Without a proxy for it, a request is guarded.
	if err := try(px.URL, func(*http.Request) (*url.URL, error) { return nil, nil }); !relay.IsUnavailable(err) || !strings.Contains(err.Error(), "name the address in allow") {
		t.Errorf("no proxy: %v, want the address refused", err)
	}
}

// A proxy of the caller's that changes its mind opens no way around the guard.
func TestProxyIsChosenOnce(t *testing.T) {
	var calls, got atomic.Int64
	px := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	inside := serve(t, func(http.ResponseWriter, *http.Request) { got.Add(1) })
	h, err := webhook.NewHosts(
		func(string) string { return "http://localhost" + inside.URL[strings.LastIndex(inside.URL, ":"):] },
		webhook.Config{Proxy: func(*http.Request) (*url.URL, error) {
			if calls.Add(1)%2 == 1 {
				return url.Parse(px.URL)
			}
			return nil, nil
		}},
	)
	if err != nil {
		t.Fatal(err)
	}
	for range 6 {
		_ = h.Publish(t.Context(), messages(1))
	}
	if got.Load() != 0 {
		t.Errorf("%d requests reached what is not allowed", got.Load())
	}
}

// A connection of HTTP/2 that leads nowhere is noticed, since it is shared.
func TestHalfOpenHTTP2(t *testing.T) {
	var major atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { major.Store(int64(r.ProtoMajor)) }))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	x, err := proxy.Listen(t.Context(), s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.Close)
	p := open(t, "https://"+x.Addr(), webhook.Config{TLS: s.Client().Transport.(*http.Transport).TLSClientConfig})
	if err := first(p.Publish(t.Context(), messages(1))); err != nil || major.Load() != 2 {
		t.Fatalf("%v, with HTTP/%d", err, major.Load())
	}
	if x.Orphan() == 0 {
		t.Fatal("no connection is kept")
	}
	deadline := time.Now().Add(2 * time.Minute)
	for {
		ctx, cancel := contextFor(t, 300*time.Millisecond)
		err := first(p.Publish(ctx, messages(1)))
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the connection is still in use: %v", err)
		}
	}
}

// What breaks before there is a connection concerns the endpoint, and not the
// message.
func TestHandshakeIsCut(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	if err := first(open(t, "https://"+l.Addr().String(), webhook.Config{}).Publish(t.Context(), messages(1))); !relay.IsUnavailable(err) {
		t.Errorf("got %v, want it unavailable", err)
	}
}

// When the time of a call is over before there is a connection, that is of the
// call: a lost lease tells nothing of the endpoint.
func TestContextEndsInHandshake(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0") // which says nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	ctx, cancel := contextFor(t, 200*time.Millisecond)
	defer cancel()
	err = first(open(t, "https://"+l.Addr().String(), webhook.Config{}).Publish(ctx, messages(1)))
	if err == nil || relay.IsUnavailable(err) || relay.IsPermanent(err) {
		t.Errorf("got %v, want an error that is tried again", err)
	}
}

// roundTrip is a transport of the caller's.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// An idle connection that took nothing is followed by a new one, which counts.
func TestSecondConnectionFails(t *testing.T) {
	p, err := webhook.New("http://host.invalid", webhook.Config{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		trace := httptrace.ContextClientTrace(r.Context())
		trace.GetConn("host.invalid:80")
		trace.GotConn(httptrace.GotConnInfo{Reused: true})
		trace.GetConn("host.invalid:80")
		return nil, errors.New("connection refused")
	})})
	if err != nil {
		t.Fatal(err)
	}
	if err := first(p.Publish(t.Context(), messages(1))); !relay.IsUnavailable(err) {
		t.Errorf("got %v, want it unavailable", err)
	}
}

// A host that cannot be reached is tried once in a call.
func TestAwayIsTriedOnce(t *testing.T) {
	var tries atomic.Int64
	p, err := webhook.New("http://host.invalid", webhook.Config{Proxy: func(*http.Request) (*url.URL, error) {
		tries.Add(1)
		return url.Parse("http://127.0.0.1:1")
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i, err := range p.Publish(t.Context(), messages(5)) {
		if !relay.IsUnavailable(err) {
			t.Errorf("message %d: %v, want it unavailable", i, err)
		}
	}
	if n := tries.Load(); n != 1 {
		t.Errorf("%d tries, want 1", n)
	}
}
