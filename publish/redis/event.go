package redis

import (
	"bytes"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/outbox-suite/outbox/publish/cloudevents"
	"github.com/outbox-suite/outbox/relay"
)

// data is the field of the payload.
const data = "data"

// encode makes an entry of a message, with a copy of its payload.
func (p *Publisher) encode(m *relay.Message) (*redis.XAddArgs, error) {
	stream := p.cfg.Stream(m.Topic)
	if stream == "" {
		return nil, relay.Permanent(fmt.Errorf("redis publisher: topic %q: its stream has no name: choose another topic, or map it", m.Topic))
	}
	attributes, err := cloudevents.Attributes(p.cfg.Source, m)
	if err != nil {
		return nil, relay.Permanent(fmt.Errorf("redis publisher: topic %q: %w", m.Topic, err))
	}
	values := make([]any, 0, 2*len(attributes)+2)
	for _, a := range attributes {
		values = append(values, a.Name, a.Value)
	}
	if m.Payload != nil {
		values = append(values, data, bytes.Clone(m.Payload))
	}
	return &redis.XAddArgs{Stream: stream, NoMkStream: p.cfg.NoCreate, MaxLen: p.cfg.MaxLen, Approx: p.cfg.MaxLen > 0, ID: "*", Values: values}, nil
}

// Decode reads back a message that a [Publisher] has sent, from the fields of its
// entry, for a consumer: all that a relay knows of it but Age.
func Decode(values map[string]any) (relay.Message, error) {
	attributes := make([]cloudevents.Attribute, 0, len(values))
	var payload []byte
	for name, value := range values {
		text, ok := value.(string)
		switch {
		case !ok:
			return relay.Message{}, fmt.Errorf("redis: field %s is a %T and not a string", name, value)
		case name == data:
			payload = []byte(text)
		default:
			attributes = append(attributes, cloudevents.Attribute{Name: name, Value: text})
		}
	}
	m, err := cloudevents.FromAttributes(attributes, payload)
	if err != nil {
		return m, fmt.Errorf("redis: %w", err)
	}
	return m, nil
}
