package webhook

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"
)

// transport makes requests on connections to addresses that are allowed, or
// through a proxy.
type transport struct {
	allow           []netip.Prefix
	proxy           func(*http.Request) (*url.URL, error)
	direct, proxied *http.Transport
}

// proxyKey is the context's key of the proxy that was chosen for a request, so
// that it is chosen once.
type proxyKey struct{}

func newTransport(cfg Config) *transport {
	t := &transport{allow: cfg.Allow, proxy: cfg.Proxy}
	if t.proxy == nil {
		t.proxy = http.ProxyFromEnvironment
	}
	dialer := net.Dialer{
		Timeout:         5 * time.Second,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	guarded := dialer
	guarded.Control = t.control
	t.direct = &http.Transport{
		DialContext:            guarded.DialContext,
		TLSClientConfig:        cfg.TLS.Clone(),
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 5 * time.Second},
		MaxIdleConns:           128,
		MaxIdleConnsPerHost:    128,
		IdleConnTimeout:        30 * time.Second,
		TLSHandshakeTimeout:    5 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true, // nobody reads the answer
	}
	t.proxied = t.direct.Clone()
	t.proxied.DialContext = dialer.DialContext
	t.proxied.Proxy = func(r *http.Request) (*url.URL, error) {
		proxy, _ := r.Context().Value(proxyKey{}).(*url.URL)
		if proxy == nil {
			return nil, errNoProxy
		}
		return proxy, nil
	}
	t.proxied.OnProxyConnectResponse = func(_ context.Context, _ *url.URL, _ *http.Request, answer *http.Response) error {
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("proxy answered %d %s", answer.StatusCode, http.StatusText(answer.StatusCode))
		}
		return nil
	}
	return t
}

// unsentError is of a request that did not leave.
type unsentError struct{ err error }

func (e unsentError) Error() string { return e.err.Error() }
func (e unsentError) Unwrap() error { return e.err }

var errNoProxy = errors.New("proxy is not known")

// RoundTrip makes a request.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	proxy, err := t.proxy(r)
	if err != nil { // which may show a password
		return nil, unsentError{errors.New("the proxy that is configured cannot be used")}
	}
	if proxy == nil {
		return t.direct.RoundTrip(r)
	}
	err = t.checkLiteral(r.URL)
	switch host := r.URL.Hostname(); {
	case err != nil:
	case isNumber(host):
		err = errors.New("host is a number, which a proxy may take for any address: write the address as usual")
	case isSpecial(host):
		err = errors.New("host has characters that may stand for those of any address: write the name in ASCII (xn--)")
	}
	if err != nil {
		return nil, unsentError{err}
	}
	answer, err := t.proxied.RoundTrip(r.WithContext(context.WithValue(r.Context(), proxyKey{}, proxy)))
	if err == nil && answer.StatusCode == http.StatusProxyAuthRequired {
		_ = answer.Body.Close()
		return nil, unsentError{errors.New("proxy answered 407 Proxy Authentication Required")}
	}
	return answer, err
}

// CloseIdleConnections closes what is not in use.
func (t *transport) CloseIdleConnections() {
	t.direct.CloseIdleConnections()
	t.proxied.CloseIdleConnections()
}

// control is called for each address before the connection is made.
func (t *transport) control(_, address string, _ syscall.RawConn) error {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return errors.New("address cannot be read, so it is not connected to")
	}
	return t.check(a.Addr())
}

// checkLiteral checks the host of a URL if it is an address.
func (t *transport) checkLiteral(u *url.URL) error {
	if a, err := netip.ParseAddr(u.Hostname()); err == nil {
		return t.check(a)
	}
	return nil
}

// isNumber tells whether a host that is no address in the usual form may be read
// as one: 127.1, 0x7f000001, 127.0.0.1. with a dot at its end.
func isNumber(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return false
	}
	labels := strings.Split(strings.TrimRight(host, "."), ".")
	last := labels[len(labels)-1]
	_, err := strconv.ParseUint(last, 0, 64)
	return err == nil || last != "" && strings.Trim(last, "0123456789") == ""
}

// isSpecial tells whether a host that is no address has characters that are not of
// names: net/http asks a proxy for 127.0.0.1 where it is written with full-width dots,
// digits in circles or a soft hyphen.
func isSpecial(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return false
	}
	return strings.ContainsFunc(host, func(r rune) bool { return r >= utf8.RuneSelf || r == '%' })
}

func (t *transport) check(a netip.Addr) error {
	a = behind(a.WithZone(""))
	for _, p := range t.allow {
		if p.Contains(a) {
			return nil
		}
	}
	if isPublic(a) {
		return nil
	}
	return fmt.Errorf("address %s is not of the public internet: correct the endpoint, or name the address in allow", a)
}

var (
	mapped = netip.MustParsePrefix("64:ff9b::/96") // of NAT64
	global = netip.MustParsePrefix("2000::/3")     // all that is assigned of IPv6 for the public
)

// reserved are the addresses that are not of the public, or that mean something to
// a machine alone, among those that may be.
var reserved = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
	"224.0.0.0/4", "240.0.0.0/4",
	"168.63.129.16/32", // what Azure answers its machines by
	"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
)

func prefixes(texts ...string) []netip.Prefix {
	all := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		all[i] = netip.MustParsePrefix(text)
	}
	return all
}

// behind is the address of IPv4 that one of IPv6 stands for, or the address.
func behind(a netip.Addr) netip.Addr {
	a = a.Unmap()
	if mapped.Contains(a) {
		bytes := a.As16()
		return netip.AddrFrom4([4]byte(bytes[12:]))
	}
	return a
}

func isPublic(a netip.Addr) bool {
	if a.Is6() && !global.Contains(a) {
		return false
	}
	for _, p := range reserved {
		if p.Contains(a) {
			return false
		}
	}
	return true
}
