package webhook

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/outbox-suite/outbox/publish/cloudevents"
	"github.com/outbox-suite/outbox/relay"
)

// The headers of Standard Webhooks.
const (
	idHeader        = "Webhook-Id"
	timestampHeader = "Webhook-Timestamp"
	signatureHeader = "Webhook-Signature"
)

const (
	prefix = "ce-" // of attributes in the binary mode
	// events is how the content type of a whole event, or several, begins.
	events = "application/cloudevents"
)

// encode makes the header and the body of a message's request. The error is of a
// message that cannot be sent.
func (p *Publisher) encode(m *relay.Message) (http.Header, []byte, error) {
	for name, value := range m.Headers {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return nil, nil, fmt.Errorf("header %q is not UTF-8: encode it, for example as base64", name)
		}
	}
	h := p.header.Clone()
	var body []byte
	if p.mode == Binary && isPlain(m.ContentType) {
		attributes, err := cloudevents.Attributes(p.source, m)
		if err != nil {
			return nil, nil, err
		}
		if m.Key != "" {
			attributes = append(attributes, cloudevents.Attribute{Name: cloudevents.PartitionKey, Value: m.Key})
		}
		for _, a := range attributes {
			if a.Name == "datacontenttype" {
				h.Set("Content-Type", a.Value)
			} else {
				h.Set(prefix+a.Name, cloudevents.Escape(a.Value))
			}
		}
		body = bytes.Clone(m.Payload) // a request may outlast the call
	} else {
		body = cloudevents.Append(nil, p.source, m)
		if m.Key != "" {
			body = cloudevents.AppendAttribute(body, cloudevents.PartitionKey, m.Key)
		}
		h.Set("Content-Type", cloudevents.ContentType)
	}
	id, now := webhookID(m), strconv.FormatInt(time.Now().Unix(), 10)
	h.Set(idHeader, id)
	h.Set(timestampHeader, now)
	if len(p.secrets) > 0 {
		h.Set(signatureHeader, signatures(p.secrets, id, now, body))
	}
	return h, body, nil
}

// isPlain tells whether a content type arrives in Content-Type as it is, and is
// not one that tells the structured mode from the binary one.
func isPlain(contentType string) bool {
	return fits(contentType) && !isEvents(contentType)
}

func isEvents(contentType string) bool {
	return len(contentType) >= len(events) && strings.EqualFold(contentType[:len(events)], events)
}

// webhookID is what a receiver may remove duplicates by: the message's id, and a
// new one for each replay.
func webhookID(m *relay.Message) string {
	if m.Replay == 0 {
		return m.ID.String()
	}
	return m.ID.String() + "-replay-" + strconv.Itoa(m.Replay)
}

// Decode reads back a message from the header and the body of a request that a
// [Publisher] has made, for its receiver: all that a relay knows of it but Age. See
// [Verify] for who sent it.
func Decode(header http.Header, body []byte) (relay.Message, error) {
	m, err := decode(header, body)
	if err != nil {
		return m, fmt.Errorf("webhook: %w", err)
	}
	return m, nil
}

func decode(header http.Header, body []byte) (relay.Message, error) {
	contentType := header.Get("Content-Type")
	if isEvents(contentType) {
		if rest := contentType[len(events):]; !strings.HasPrefix(strings.ToLower(rest), "+json") {
			return relay.Message{}, fmt.Errorf("content type %q is not that of an event in JSON", contentType)
		}
		return cloudevents.Parse(body)
	}
	attributes := make([]cloudevents.Attribute, 0, len(header))
	if contentType != "" {
		attributes = append(attributes, cloudevents.Attribute{Name: "datacontenttype", Value: contentType})
	}
	for full, values := range header {
		if name, is := strings.CutPrefix(strings.ToLower(full), prefix); is && len(values) > 0 {
			attributes = append(attributes, cloudevents.Attribute{Name: name, Value: cloudevents.Unescape(values[0])})
		}
	}
	return cloudevents.FromAttributes(attributes, body)
}
