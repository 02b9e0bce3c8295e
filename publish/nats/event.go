package nats

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/outbox-suite/outbox/publish/cloudevents"
	"github.com/outbox-suite/outbox/relay"
)

const prefix = "ce-"

// encode makes what is sent of a message, with a copy of its payload.
func (p *Publisher) encode(m *relay.Message) (*nats.Msg, error) {
	subject := p.cfg.Subject(m.Topic)
	if err := checkSubject(subject); err != nil {
		return nil, relay.Permanent(fmt.Errorf("nats publisher: topic %q: %w", m.Topic, err))
	}
	attributes, err := cloudevents.Attributes(p.cfg.Source, m)
	if err != nil {
		return nil, relay.Permanent(fmt.Errorf("nats publisher: topic %q: %w", m.Topic, err))
	}
	h := make(nats.Header, len(attributes)+2)
	for _, a := range attributes {
		h[prefix+a.Name] = []string{cloudevents.Escape(a.Value)}
	}
	h[nats.MsgIdHdr] = []string{duplicateID(m)}
	if p.cfg.Stream != "" {
		h[nats.ExpectedStreamHdr] = []string{p.cfg.Stream}
	}
	return &nats.Msg{Subject: subject, Header: h, Data: bytes.Clone(m.Payload)}, nil
}

// duplicateID is what the stream removes duplicates by: the message's id, and a
// new one for each replay.
func duplicateID(m *relay.Message) string {
	if m.Replay == 0 {
		return m.ID.String()
	}
	return m.ID.String() + "-replay-" + strconv.Itoa(m.Replay)
}

// checkSubject refuses what is no subject to publish to, and the server's own.
func checkSubject(subject string) error {
	switch {
	case subject == "":
		return errors.New("its subject is empty")
	case strings.HasPrefix(subject, "$"), strings.HasPrefix(subject, "_INBOX."):
		return fmt.Errorf("subject %q belongs to the server: choose another topic", subject)
	case strings.ContainsFunc(subject, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '*' || r == '>' }), !utf8.ValidString(subject):
		return fmt.Errorf("subject %q has a space, a control character or a wildcard: choose another topic, or map it", subject)
	case strings.HasPrefix(subject, "."), strings.HasSuffix(subject, "."), strings.Contains(subject, ".."):
		return fmt.Errorf("subject %q has an empty part: choose another topic, or map it", subject)
	}
	return nil
}

// Decode reads back a message that a [Publisher] has sent, for a consumer: all
// that a relay knows of it but Age. The payload is data itself.
func Decode(header nats.Header, data []byte) (relay.Message, error) {
	attributes := make([]cloudevents.Attribute, 0, len(header))
	for full, values := range header {
		if name, is := strings.CutPrefix(full, prefix); is && len(values) > 0 {
			attributes = append(attributes, cloudevents.Attribute{Name: name, Value: cloudevents.Unescape(values[0])})
		}
	}
	m, err := cloudevents.FromAttributes(attributes, data)
	if err != nil {
		return m, fmt.Errorf("nats: %w", err)
	}
	return m, nil
}
