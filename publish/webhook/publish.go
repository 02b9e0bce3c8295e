package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/outbox-suite/outbox/internal/redact"
	"github.com/outbox-suite/outbox/relay"
)

// Publish posts the messages one after the other. When ctx ends, those not
// accepted yet fail. Once a host cannot be reached it tries no more of the call
// there.
func (p *Publisher) Publish(ctx context.Context, messages []relay.Message) []error {
	errs := make([]error, len(messages))
	var away map[string]error // by host
	for i := range messages {
		m := &messages[i]
		u, err := p.endpoint(m.Topic)
		if err != nil {
			errs[i] = relay.Permanent(fmt.Errorf("webhook publisher: topic %q: %w", m.Topic, err))
			continue
		}
		if errs[i] = away[u.Host]; errs[i] != nil {
			continue
		}
		if errs[i] = p.post(ctx, u, m); relay.IsUnavailable(errs[i]) {
			if away == nil {
				away = make(map[string]error)
			}
			away[u.Host] = errs[i]
		}
	}
	return errs
}

var errClosed = errors.New("webhook publisher: publisher is closed")

// post makes the request of a message. Its errors never hold the URL, whose path
// and query may be secret, nor anything of the answer's body, which may repeat the
// message.
func (p *Publisher) post(ctx context.Context, u *url.URL, m *relay.Message) error {
	failed := func(err error) error {
		return fmt.Errorf("webhook publisher: topic %q: host %s: %w", m.Topic, u.Host, err)
	}
	switch {
	case p.closed.Load():
		return relay.Unavailable(errClosed)
	case ctx.Err() != nil:
		return failed(context.Cause(ctx))
	}
	header, body, err := p.encode(m)
	if err != nil {
		return relay.Permanent(failed(err))
	}
	answering, cancel := context.WithCancel(ctx)
	defer cancel()
	var connected atomic.Bool
	trace := &httptrace.ClientTrace{
		GetConn: func(string) { connected.Store(false) }, // net/http tries again what an idle connection did not take
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	}
	request, err := http.NewRequestWithContext(httptrace.WithClientTrace(answering, trace), http.MethodPost, u.String(), bytes.NewReader(body))
	if err != nil {
		return relay.Permanent(failed(redact.URL(err)))
	}
	request.Header = header
	answer, err := p.client.Do(request)
	if err != nil {
		err = failed(redact.URL(err))
		unsent := errors.As(err, new(unsentError))
		if ctx.Err() == nil && (unsent || !connected.Load()) {
			// It concerns the endpoint as a whole.
			return relay.Unavailable(err)
		}
		return err // the outcome is unknown
	}
	drain(answer, cancel)
	return verdict(answer, failed)
}

// drain reads an answer's body to its end, so that the connection can be used
// again; one that is long or slow is not worth it, and the answer is known.
func drain(answer *http.Response, cancel context.CancelFunc) {
	if answer.StatusCode != http.StatusSwitchingProtocols { // after which there is no end
		enough := time.AfterFunc(drainFor, cancel)
		_, _ = io.CopyN(io.Discard, answer.Body, mostAnswer)
		enough.Stop()
	}
	_ = answer.Body.Close()
}

const (
	// mostAnswer is how much of an answer's body is read, and thrown away.
	mostAnswer = 64 << 10
	// drainFor is how long that may take.
	drainFor = 200 * time.Millisecond
)

// verdict is what an answer means.
func verdict(answer *http.Response, failed func(error) error) error {
	status := answer.StatusCode
	if status >= 200 && status < 300 {
		return nil
	}
	text := strings.TrimSpace(fmt.Sprintf("endpoint answered %d %s", status, http.StatusText(status)))
	switch {
	case status == http.StatusBadGateway, status == http.StatusServiceUnavailable, status == http.StatusGatewayTimeout:
		// It is about the endpoint as a whole.
		return relay.Unavailable(relay.RetryAfter(failed(errors.New(text)), retryAfter(answer.Header, time.Now())))
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests, status >= 500 && status < 600:
		return relay.RetryAfter(failed(errors.New(text)), retryAfter(answer.Header, time.Now()))
	case status >= 300 && status < 500:
		return relay.Permanent(failed(fmt.Errorf("%s: %s, then requeue the message", text, remedy(status))))
	}
	return failed(errors.New(text))
}

// remedy is what to do about an answer that refuses for good.
func remedy(status int) string {
	switch {
	case status < 400:
		return "redirects are not followed, give the final url"
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return "correct the authorization"
	case status == http.StatusNotFound, status == http.StatusMethodNotAllowed:
		return "correct the url"
	case status == http.StatusGone:
		return "nobody wants this any more, give another url"
	case status == http.StatusRequestEntityTooLarge:
		return "raise the endpoint's limit, or store the payload elsewhere"
	case status == http.StatusRequestHeaderFieldsTooLarge:
		return "raise the endpoint's limit, or use the structured mode"
	case status == http.StatusUnsupportedMediaType:
		return "use the other mode, or teach the endpoint this one"
	}
	return "correct the message or the endpoint"
}

// retryAfter is how long an answer asks to be left alone, or 0. An instant counts
// from the answer's own Date, since the clocks may differ.
func retryAfter(h http.Header, now time.Time) time.Duration {
	const most = 365 * 24 * time.Hour
	text := strings.TrimSpace(h.Get("Retry-After"))
	if text == "" {
		return 0
	}
	if strings.Trim(text, "0123456789") == "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil || seconds > int64(most/time.Second) { // too large a number
			return most
		}
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	return max(0, min(at.Sub(now), most))
}
