package kafka

import (
	"bytes"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-suite/outbox/publish/cloudevents"
	"github.com/outbox-suite/outbox/relay"
)

const (
	prefix = "ce_"
	// contentType is the header of the attribute datacontenttype.
	contentType = "content-type"
)

// What a batch, a record and a header take beside their text, at most.
const (
	batchOverhead  = 128
	recordOverhead = 48
	headerOverhead = 10
)

// encode makes a record of a message, with a copy of its payload, and says how
// many bytes it has at most.
func (p *Publisher) encode(m *relay.Message) (*kgo.Record, int, error) {
	topic := p.cfg.Topic(m.Topic)
	if !isTopic(topic) {
		return nil, 0, relay.Permanent(fmt.Errorf("kafka publisher: topic %q: %q is no name of a Kafka topic, which has up to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-': choose another topic, or map it", m.Topic, topic))
	}
	attributes, err := cloudevents.Attributes(p.cfg.Source, m)
	if err != nil {
		return nil, 0, relay.Permanent(fmt.Errorf("kafka publisher: topic %q: %w", m.Topic, err))
	}
	r := &kgo.Record{Topic: topic, Value: bytes.Clone(m.Payload), Headers: make([]kgo.RecordHeader, 0, len(attributes))}
	if m.HasKey() {
		r.Key = []byte(m.Key)
	}
	size := recordOverhead + len(r.Key) + len(r.Value)
	for _, a := range attributes {
		name := prefix + a.Name
		if a.Name == "datacontenttype" {
			name = contentType
		}
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(a.Value)})
		size += headerOverhead + len(name) + len(a.Value)
	}
	if most := p.cfg.MaxBytes - batchOverhead; size > most {
		return nil, 0, relay.Permanent(fmt.Errorf("kafka publisher: topic %q: the message has %d bytes with its headers, and at most %d are sent: raise the publisher's limit and the topic's max.message.bytes, or store the payload elsewhere", m.Topic, size, most))
	}
	return r, size, nil
}

func isTopic(name string) bool {
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return name != "" && name != "." && name != ".." && len(name) <= 249
}

// Decode reads back a message that a [Publisher] has sent, for a consumer: all
// that a relay knows of it but Age. The payload is the record's value itself.
func Decode(r *kgo.Record) (relay.Message, error) {
	attributes := make([]cloudevents.Attribute, 0, len(r.Headers))
	for _, h := range r.Headers {
		switch {
		case h.Key == contentType:
			attributes = append(attributes, cloudevents.Attribute{Name: "datacontenttype", Value: string(h.Value)})
		case len(h.Key) > len(prefix) && h.Key[:len(prefix)] == prefix:
			attributes = append(attributes, cloudevents.Attribute{Name: h.Key[len(prefix):], Value: string(h.Value)})
		}
	}
	m, err := cloudevents.FromAttributes(attributes, r.Value)
	if err != nil {
		return m, fmt.Errorf("kafka: %w", err)
	}
	return m, nil
}
