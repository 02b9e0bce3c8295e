// Package webhook is a publisher that posts messages to HTTP endpoints, one a
// request.
//
// # What an endpoint gets
//
// Each message is a CloudEvent 1.0; its attributes are those of package
// cloudevents, and partitionkey, which repeats the key for those who look for it
// there. In the structured mode, the default, the body is the event in JSON. In
// the binary mode the body is the payload, byte for byte, Content-Type is its
// content type, and the attributes are headers with the prefix ce-, their values
// percent-encoded; ce-nodata is true when the payload is nil. A message whose
// content type cannot stand in Content-Type, or would there be taken for an event
// itself, is sent in the structured mode all the same. Headers of the message that
// are no attributes are in headers, so that none of them can become a header of the
// request. [Decode] reads both modes back.
//
// JSON data in the structured mode is a value: of its bytes, space between tokens
// may go. Servers often take no more than 8 KiB of headers, which the structured
// mode stays far below and the binary mode may not.
//
// Each request has a webhook-id, which is the same at every attempt and a new one
// for an operator's replay, and a webhook-timestamp, the time of the attempt. With
// Config.Secrets it also has a webhook-signature after Standard Webhooks, over the
// two and the body; [Verify] checks it. In the binary mode the attributes are not in
// the body and so are not signed.
//
// # What its answer means
//
//   - 2xx: accepted.
//   - 502, 503 and 504: the endpoint is [relay.Unavailable] as a whole; its messages
//     wait and none of them loses an attempt.
//   - 408, 425, 429 and other 5xx: tried again, not before the time that Retry-After
//     says as far as the relay goes along with it, see [relay.RetryAfter].
//   - other 4xx: refused for good; the message is dead at once.
//   - 3xx: refused for good too. Redirects are not followed.
//   - anything else: tried again.
//   - no connection (refused, unknown host, bad certificate, an address that is not
//     allowed, a proxy that says no): the endpoint is [relay.Unavailable].
//   - no answer on a connection: tried again under the same id, since the outcome is
//     unknown, and counted, since the message may be why.
//
// # Which addresses are reached
//
// An endpoint that others choose can be chosen so that a request reaches what only
// this machine can. So connections are made to addresses of the public internet
// alone, and to those of Config.Allow. The address is looked at when the connection
// is made: a name that means another address then than before changes nothing.
//
// Behind a proxy it is the proxy that looks names up and connects. The proxy itself
// may be anywhere; an endpoint that is written as an address is still checked here,
// and one that is a name is the proxy's to judge. The name has to be in ASCII (xn--)
// then, since other characters may stand for those of an address.
//
// # Order
//
// The relay has one message per key under way, and many keys. One request is made
// after the other within a call: set relay.Config.PublishSize to 1, so that
// Config.PublishTimeout there bounds each request, and Config.PublishConcurrency says
// how many are under way.
package webhook

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/outbox-suite/outbox/publish/cloudevents"
	"github.com/outbox-suite/outbox/relay"
)

// Mode is how an event is put into a request.
type Mode int

const (
	// Structured has the whole event in the body, as JSON. The default.
	Structured Mode = iota
	// Binary has the payload in the body and all else in headers.
	Binary
)

// Config configures a publisher. The zero value works.
type Config struct {
	// Source is the source attribute of every event. Default:
	// [cloudevents.DefaultSource].
	Source string
	// Mode is how an event is put into a request. Default: [Structured].
	Mode Mode
	// Secrets sign every request: each makes a signature, so that a receiver that
	// knows any one of them accepts it while they are changed. Each is whsec_ and
	// the base64 of 24 to 64 bytes. Default: none, and no signature.
	Secrets []string
	// Header is sent with every request, for example an Authorization. Default:
	// none.
	Header http.Header
	// Allow are the addresses that may be reached besides those of the public
	// internet. Default: none.
	Allow []netip.Prefix
	// TLS configures connections of https. Default: the system's certificates.
	TLS *tls.Config
	// Proxy says which proxy a request goes through, if any. Default:
	// [http.ProxyFromEnvironment].
	Proxy func(*http.Request) (*url.URL, error)
	// Transport makes the requests instead of one of the package's own; Allow, TLS
	// and Proxy are then its business. It tells of connections by
	// net/http/httptrace, as [http.Transport] does. Default: none.
	Transport http.RoundTripper
}

// Publisher posts to one endpoint. It is safe for concurrent use and does not
// keep order by itself.
type Publisher struct {
	mode     Mode
	source   string
	header   http.Header
	secrets  [][]byte
	client   *http.Client
	endpoint func(topic string) (*url.URL, error)
	own      *transport // nil: the caller's
	closed   atomic.Bool
}

// Hosts is a [Publisher] to several endpoints. Each host is a destination with a
// breaker of its own: while one is unavailable its messages are parked and those to
// the others flow.
type Hosts struct{ *Publisher }

var _ relay.Destinations = Hosts{}

// New returns a publisher that posts to an http or https URL. User and password
// in it become basic authentication. An error does not show the URL, which may
// hold a secret.
func New(endpoint string, cfg Config) (*Publisher, error) {
	u, err := parse(endpoint)
	if err != nil {
		return nil, fmt.Errorf("webhook publisher: %w", err)
	}
	p, err := newPublisher(cfg)
	if err != nil {
		return nil, err
	}
	if p.own != nil {
		if err := p.own.checkLiteral(u); err != nil {
			return nil, fmt.Errorf("webhook publisher: %w", err)
		}
	}
	p.endpoint = func(string) (*url.URL, error) { return u, nil }
	return p, nil
}

// NewHosts returns a publisher that posts to the URL that endpoint names for a
// topic, each as [New] takes it; an empty one says that there is none, and the
// message is refused for good, as it is when the URL cannot be used. Endpoint is
// called at each attempt, and concurrently.
func NewHosts(endpoint func(topic string) string, cfg Config) (Hosts, error) {
	p, err := newPublisher(cfg)
	if err != nil {
		return Hosts{}, err
	}
	p.endpoint = func(topic string) (*url.URL, error) {
		text := endpoint(topic)
		if text == "" {
			return nil, errors.New("it has no endpoint: name one, or correct the topic, then requeue the message")
		}
		return parse(text)
	}
	return Hosts{p}, nil
}

// Destination returns the host of the topic's endpoint, or nothing without one.
func (h Hosts) Destination(topic string) string {
	u, err := h.endpoint(topic)
	if err != nil {
		return ""
	}
	return strings.ToLower(u.Host)
}

func parse(endpoint string) (*url.URL, error) {
	u, err := url.Parse(endpoint)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" {
		return nil, errors.New("url cannot be used: write it as https://host/path")
	}
	return u, nil
}

func newPublisher(cfg Config) (*Publisher, error) {
	var errs []error
	if cfg.Source == "" {
		cfg.Source = cloudevents.DefaultSource
	}
	errs = append(errs, cloudevents.CheckSource(cfg.Source))
	if cfg.Mode != Structured && cfg.Mode != Binary {
		errs = append(errs, fmt.Errorf("mode is %d: use Structured or Binary", cfg.Mode))
	}
	secrets, err := decodeSecrets(cfg.Secrets)
	errs = append(errs, err, checkHeader(cfg.Header))
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("webhook publisher: %w", err)
	}
	p := &Publisher{mode: cfg.Mode, source: cfg.Source, header: cfg.Header.Clone(), secrets: secrets}
	if p.header == nil {
		p.header = make(http.Header)
	}
	if p.header.Get("User-Agent") == "" {
		p.header.Set("User-Agent", "outbox-webhook")
	}
	through := cfg.Transport
	if through == nil {
		p.own = newTransport(cfg)
		through = p.own
	}
	p.client = &http.Client{
		Transport:     through,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return p, nil
}

// checkHeader refuses what a request could not be sent with. It shows no value.
func checkHeader(h http.Header) error {
	for name, values := range h {
		switch http.CanonicalHeaderKey(name) {
		case "Host", "Content-Length", "Content-Type", "Transfer-Encoding", "Trailer", "Connection":
			return fmt.Errorf("header %s cannot be set: leave it out", name)
		}
		if name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r) }) {
			return fmt.Errorf("header %q: the name is none of HTTP", name)
		}
		if slices.ContainsFunc(values, func(v string) bool { return !fits(v) }) {
			return fmt.Errorf("header %s: its value has a line break, another control character, or bytes beyond ASCII", name)
		}
	}
	return nil
}

// fits tells whether a value can be that of a header, and arrives as it is.
func fits(value string) bool {
	return strings.TrimSpace(value) == value &&
		!strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r >= 0x7f })
}

// Close ends the publisher: what is under way is finished, and nothing further is
// sent.
func (p *Publisher) Close() error {
	p.closed.Store(true)
	if p.own != nil {
		p.own.CloseIdleConnections()
	}
	return nil
}
