package nats

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-suite/outbox/internal/redact"
	"github.com/outbox-suite/outbox/relay"
)

// Publish sends the messages and waits for their acknowledgements, or for the
// end of ctx. Messages that were not acknowledged by then fail, and may arrive
// all the same.
func (p *Publisher) Publish(ctx context.Context, messages []relay.Message) []error {
	errs := make([]error, len(messages))
	ready := make([]prepared, 0, len(messages))
	for i := range messages {
		msg, err := p.encode(&messages[i])
		if errs[i] = err; err == nil {
			ready = append(ready, prepared{i, msg})
		}
	}
	sent := make(chan sending, len(ready))
	go p.send(ctx, ready, sent)
	missing := make(map[string]error)
	for n := range ready {
		s, ok := p.next(ctx, sent)
		if !ok {
			for _, rest := range ready[n:] {
				errs[rest.place] = p.ended(ctx, messages[rest.place].Topic)
			}
			go p.abandon(len(ready)-n, sent)
			break
		}
		errs[s.place] = p.outcome(ctx, s, messages[s.place].Topic, missing)
	}
	return errs
}

// prepared is a message of a call as it is sent.
type prepared struct {
	place int
	msg   *nats.Msg
}

// sending is a message that was handed to the client, or could not be.
type sending struct {
	prepared
	ack  jetstream.PubAckFuture
	err  error
	slot bool // it holds one of the window
}

// send hands the messages to the client, in order. It is a goroutine of its own
// because no context ends a write to a socket that is full.
func (p *Publisher) send(ctx context.Context, messages []prepared, sent chan<- sending) {
	for _, m := range messages {
		s := sending{prepared: m}
		s.ack, s.slot, s.err = p.hand(ctx, m.msg)
		sent <- s
	}
}

func (p *Publisher) hand(ctx context.Context, msg *nats.Msg) (ack jetstream.PubAckFuture, slot bool, err error) {
	select {
	case p.window <- struct{}{}:
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	case <-p.closed:
		return nil, false, errClosed
	}
	if ctx.Err() != nil { // both were ready
		return nil, true, context.Cause(ctx)
	}
	if !p.conn.IsConnected() {
		return nil, true, errDisconnected
	}
	ack, err = p.js.PublishMsgAsync(msg, jetstream.WithRetryAttempts(0))
	if err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		// Part of a message went out: nothing can follow it on this connection.
		_ = p.conn.ForceReconnect()
	}
	return ack, true, err
}

// next is the next message that was handed to the client.
func (p *Publisher) next(ctx context.Context, sent <-chan sending) (s sending, ok bool) {
	select {
	case s := <-sent:
		return s, true
	default:
	}
	select {
	case s := <-sent:
		return s, true
	case <-ctx.Done():
	case <-p.closed:
	}
	return sending{}, false
}

// abandon sees to what n messages still hold when nobody waits for them.
func (p *Publisher) abandon(n int, sent <-chan sending) {
	for range n {
		p.release(<-sent)
	}
}

func (p *Publisher) release(s sending) {
	if s.slot {
		<-p.window
	}
}

// outcome waits for a message's acknowledgement. missing remembers, for a call,
// what the server said of subjects that no stream answers for.
func (p *Publisher) outcome(ctx context.Context, s sending, topic string, missing map[string]error) error {
	defer p.release(s)
	err := s.err
	if err == nil {
		select {
		case <-s.ack.Ok(): // a duplicate too
			return nil
		case err = <-s.ack.Err():
		case <-ctx.Done():
			select {
			case <-s.ack.Ok():
				return nil
			default:
				return p.ended(ctx, topic)
			}
		case <-p.closed:
			return p.ended(ctx, topic)
		}
	}
	if errors.Is(err, jetstream.ErrNoStreamResponse) {
		why, known := missing[s.msg.Subject]
		if !known {
			why = p.whyNoStream(ctx, topic, s.msg.Subject)
			missing[s.msg.Subject] = why
		}
		return why
	}
	return p.explain(err, topic, s.msg)
}

var (
	errClosed       = errors.New("publisher is closed")
	errDisconnected = errors.New("not connected")
)

// ended is the outcome of what was not acknowledged when its time was over.
func (p *Publisher) ended(ctx context.Context, topic string) error {
	if ctx.Err() == nil {
		return relay.Unavailable(fmt.Errorf("nats publisher: %w", errClosed))
	}
	return fmt.Errorf("nats publisher: topic %q: no acknowledgement: %w", topic, context.Cause(ctx))
}

// Codes of JetStream's errors that the client has no names for.
const (
	codeClusterNotAvailable   = 10008
	codeClusterNotLeader      = 10009
	codeInsufficientResources = 10023
	codeMemoryExceeded        = 10028
	codeStorageExceeded       = 10047
	codeMessageTooLarge       = 10054
	codeStreamNotMatch        = 10060
	codeHeaderTooLarge        = 10097
	codeStreamSealed          = 10109
	codeStreamOffline         = 10118
	codeStreamOfflineReason   = 10194
)

// explain says what an error means for the message.
func (p *Publisher) explain(err error, topic string, msg *nats.Msg) error {
	failed := fmt.Errorf("nats publisher: topic %q: %w", topic, redact.URL(err))
	var api *jetstream.APIError
	switch {
	case errors.Is(err, errDisconnected):
		failed = fmt.Errorf("nats publisher: %w to %s: is the server up, and reached from here?", errDisconnected, p.hosts())
		if last := p.conn.LastError(); last != nil {
			failed = fmt.Errorf("nats publisher: %w to %s: %w", errDisconnected, p.hosts(), redact.URL(last))
		}
		return relay.Unavailable(failed)
	case errors.Is(err, nats.ErrMaxPayload):
		return relay.Permanent(fmt.Errorf("%w: payload and headers have %d bytes, the server takes %d: raise its max_payload, or store the payload elsewhere", failed, msg.Size()-len(msg.Subject), p.conn.MaxPayload()))
	case errors.Is(err, nats.ErrBadSubject), errors.Is(err, jetstream.ErrInvalidSubject):
		return relay.Permanent(failed)
	case errors.Is(err, errClosed), errors.Is(err, nats.ErrDisconnected), errors.Is(err, nats.ErrConnectionClosed),
		errors.Is(err, nats.ErrConnectionReconnecting), errors.Is(err, nats.ErrConnectionDraining),
		errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrStaleConnection),
		errors.Is(err, jetstream.ErrJetStreamPublisherClosed), errors.Is(err, jetstream.ErrConnectionClosed):
		return relay.Unavailable(failed)
	case errors.As(err, &api):
		return explainCode(api, failed, topic, p.cfg.Stream)
	}
	return failed
}

// hosts are the servers that the client knows, without what else their URLs hold.
func (p *Publisher) hosts() string {
	var hosts []string
	for _, server := range p.conn.Servers() {
		if u, err := url.Parse(server); err == nil {
			hosts = append(hosts, u.Host)
		}
	}
	return strings.Join(hosts, ", ")
}

func explainCode(api *jetstream.APIError, failed error, topic, stream string) error {
	switch api.ErrorCode {
	case codeMessageTooLarge:
		return relay.Permanent(fmt.Errorf("%w: raise the stream's max_msg_size, or store the payload elsewhere", failed))
	case codeHeaderTooLarge:
		return relay.Permanent(fmt.Errorf("%w: shorten the headers, which are percent-encoded", failed))
	case codeStreamNotMatch:
		return relay.Permanent(fmt.Errorf("%w: another stream than %q takes topic %q: correct the subjects of the streams or the name", failed, stream, topic))
	case codeStreamSealed:
		return relay.Permanent(fmt.Errorf("%w: give the topic another stream", failed))
	case codeClusterNotAvailable, codeClusterNotLeader, codeInsufficientResources, codeMemoryExceeded, codeStorageExceeded,
		codeStreamOffline, codeStreamOfflineReason, jetstream.JSErrCodeJetStreamNotEnabled, jetstream.JSErrCodeJetStreamNotEnabledForAccount:
		return relay.Unavailable(failed)
	default:
		return failed
	}
}

// askFor is how long the server may take to say why no stream answers.
const askFor = 2 * time.Second

// whyNoStream asks the server why no stream answered for a subject: because
// there is none, or because it has no leader at the moment.
func (p *Publisher) whyNoStream(ctx context.Context, topic, subject string) error {
	asking, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	stream, err := p.js.StreamNameBySubject(asking, subject)
	switch {
	case err != nil && ctx.Err() != nil:
		return p.ended(ctx, topic)
	case err == nil:
		return relay.Unavailable(fmt.Errorf("nats publisher: topic %q: stream %q has no leader at the moment", topic, stream))
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return relay.Permanent(fmt.Errorf("nats publisher: topic %q: no stream takes subject %q: create one (nats stream add --subjects '%s'), or add the subject to one, then requeue the message", topic, subject, subject))
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount), errors.Is(err, nats.ErrNoResponders):
		return relay.Unavailable(fmt.Errorf("nats publisher: JetStream does not answer: %w: enable it for the server and the account", err))
	}
	failed := fmt.Errorf("nats publisher: topic %q: no stream answers for subject %q, and the server does not say why: %w", topic, subject, redact.URL(err))
	if errors.Is(p.conn.LastError(), nats.ErrPermissionViolation) {
		return fmt.Errorf("%w: the user may need the permission to publish to $JS.API.STREAM.NAMES", failed)
	}
	// A cluster that has lost its majority is silent.
	return relay.Unavailable(failed)
}
