// Package webhook is a publisher that posts messages to an HTTP endpoint, one a
// request, as CloudEvents 1.0 in structured JSON; see package cloudevents for
// the mapping.
//
// What the endpoint answers decides:
//
//   - 2xx: accepted.
//   - 408, 425, 429 and 5xx: tried again, with the relay's own growing delays.
//     A Retry-After header is not read: one message must not slow the others.
//   - other 4xx: refused for good; the message is dead at once.
//   - 3xx and anything else: tried again, since it tells of the endpoint and not
//     of the message. Redirects are not followed.
//   - no connection (refused, unknown host, bad certificate): the endpoint is
//     [relay.Unavailable].
//   - no answer: tried again under the same id, since the outcome is unknown.
package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/outbox-suite/outbox/publish/cloudevents"
	"github.com/outbox-suite/outbox/relay"
)

// Config configures a publisher. The zero value works.
type Config struct {
	// Source is the source attribute of every event. Default:
	// [cloudevents.DefaultSource].
	Source string
	// Header is sent with every request, for example an Authorization. Default:
	// none.
	Header http.Header
	// Transport makes the requests. Default: one that follows the proxy settings
	// of the environment and keeps up to 128 idle connections.
	Transport http.RoundTripper
}

// Publisher posts to one endpoint. It is safe for concurrent use and does not
// keep order by itself. The messages of a call are posted one after the other,
// so set relay.Config.PublishSize to 1: then Config.PublishTimeout bounds each
// request, and Config.PublishConcurrency says how many are under way.
type Publisher struct {
	url    string
	source string
	header http.Header
	client *http.Client
}

// New returns a publisher that posts to an http or https URL. User and password
// in it become basic authentication. An error does not show the URL, which may
// hold a secret.
func New(endpoint string, cfg Config) (*Publisher, error) {
	u, err := url.Parse(endpoint)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, errors.New("webhook publisher: url cannot be used: write it as https://host/path")
	}
	if cfg.Source == "" {
		cfg.Source = cloudevents.DefaultSource
	}
	if err := cloudevents.CheckSource(cfg.Source); err != nil {
		return nil, fmt.Errorf("webhook publisher: %w", err)
	}
	header := cfg.Header.Clone()
	if header == nil {
		header = make(http.Header)
	}
	header.Set("Content-Type", cloudevents.ContentType)
	if header.Get("User-Agent") == "" {
		header.Set("User-Agent", "outbox-webhook")
	}
	transport := cfg.Transport
	if transport == nil {
		transport = defaultTransport()
	}
	return &Publisher{
		url: endpoint, source: cfg.Source, header: header,
		client: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

func defaultTransport() *http.Transport {
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		ForceAttemptHTTP2:   true,
		MaxIdleConns:        128,
		MaxIdleConnsPerHost: 128,
		IdleConnTimeout:     90 * time.Second,
		TLSHandshakeTimeout: 5 * time.Second,
	}
}

// Publish posts the messages one after the other. When ctx ends, those not
// accepted yet fail. Once the endpoint cannot be reached it tries no more of
// the call.
func (p *Publisher) Publish(ctx context.Context, messages []relay.Message) []error {
	errs := make([]error, len(messages))
	var body []byte
	for i := range messages {
		body = cloudevents.Append(body[:0], p.source, &messages[i])
		errs[i] = p.post(ctx, body)
		if relay.IsUnavailable(errs[i]) {
			for rest := i + 1; rest < len(errs); rest++ {
				errs[rest] = errs[i]
			}
			break
		}
	}
	return errs
}

func (p *Publisher) post(ctx context.Context, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("webhook publisher: %w", withoutURL(err))
	}
	request.Header = p.header.Clone()
	response, err := p.client.Do(request)
	if err != nil {
		return failure(err)
	}
	// A drained body lets the connection be used again; one that is long or slow
	// is not worth it, and the answer is known.
	_, _ = io.CopyN(io.Discard, response.Body, mostAnswer)
	_ = response.Body.Close()
	return verdict(response.StatusCode)
}

// mostAnswer is how much of an answer's body is read, and thrown away.
const mostAnswer = 64 << 10

// verdict is what an answer means. The error never holds the answer's body,
// which may repeat the message.
func verdict(status int) error {
	if status >= 200 && status < 300 {
		return nil
	}
	err := fmt.Errorf("webhook publisher: endpoint answered %d %s", status, http.StatusText(status))
	switch {
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests:
		return err
	case status >= 300 && status < 400:
		return fmt.Errorf("%w: redirects are not followed, use the final url", err)
	case status >= 400 && status < 500:
		return relay.Permanent(err)
	default:
		return err
	}
}

// failure is what a request without an answer means: a connection that was not
// made concerns the endpoint as a whole; else the outcome is unknown.
func failure(err error) error {
	err = withoutURL(err)
	failed := fmt.Errorf("webhook publisher: %w", err)
	var dial *net.OpError
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return failed
	case errors.As(err, &dial) && (dial.Op == "dial" || dial.Op == "proxyconnect"),
		errors.As(err, new(*net.DNSError)),
		errors.As(err, new(*tls.CertificateVerificationError)),
		errors.As(err, new(tls.RecordHeaderError)), errors.Is(err, http.ErrSchemeMismatch),
		strings.Contains(err.Error(), "TLS handshake timeout"): // net/http has no name for it
		return relay.Unavailable(failed)
	}
	return failed
}

// withoutURL takes away net/http's mention of the URL, whose query may hold a
// secret.
func withoutURL(err error) error {
	if e := (*url.Error)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}
