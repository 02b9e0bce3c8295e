package rabbitmq

import (
	"bytes"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-suite/outbox/publish/cloudevents"
	"github.com/outbox-suite/outbox/relay"
)

const (
	prefix = "cloudEvents_"
	// contentType is the attribute that is the property content_type instead.
	contentType = "datacontenttype"
	// shortest is how long AMQP's short strings may be, names of headers among them.
	shortest = 255
	// headerOverhead is what a header takes beside its text.
	headerOverhead = 6
	// propertiesOverhead is what the other properties take at most, with the frame.
	propertiesOverhead = 1 << 10
)

// publishing is a message as it is sent.
type publishing struct {
	exchange, key string
	headers       int // bytes of the frame with the properties, at most
	amqp.Publishing
}

// place is where a message goes as far as it is looked for before.
type place struct{ exchange, queue string }

func (m *publishing) place() place {
	if m.exchange != "" {
		return place{exchange: m.exchange}
	}
	return place{queue: m.key}
}

// encode makes what is sent of a message, with a copy of its payload.
func (p *Publisher) encode(m *relay.Message) (*publishing, error) {
	exchange, key := p.cfg.Route(m.Topic)
	if err := checkRoute(exchange, key); err != nil {
		return nil, relay.Permanent(fmt.Errorf("rabbitmq publisher: topic %q: %w", m.Topic, err))
	}
	if n := len(m.Payload); n > p.cfg.MaxBytes {
		return nil, relay.Permanent(fmt.Errorf("rabbitmq publisher: topic %q: the payload has %d bytes, and at most %d are sent: raise the publisher's limit and the broker's max_message_size, or store the payload elsewhere", m.Topic, n, p.cfg.MaxBytes))
	}
	attributes, err := cloudevents.Attributes(p.cfg.Source, m)
	if err != nil {
		return nil, relay.Permanent(fmt.Errorf("rabbitmq publisher: topic %q: %w", m.Topic, err))
	}
	out := &publishing{exchange: exchange, key: key, headers: propertiesOverhead, Publishing: amqp.Publishing{
		Headers:      make(amqp.Table, len(attributes)),
		DeliveryMode: amqp.Persistent,
		MessageId:    m.ID.String(),
		Timestamp:    m.CreatedAt,
		Type:         m.Type,
		Body:         bytes.Clone(m.Payload),
	}}
	for _, a := range attributes {
		if a.Name == contentType {
			out.ContentType = a.Value
			continue
		}
		name := prefix + a.Name
		if len(name) > shortest {
			return nil, relay.Permanent(fmt.Errorf("rabbitmq publisher: topic %q: a header's name has %d bytes, AMQP takes %d: shorten it", m.Topic, len(a.Name), shortest-len(prefix)))
		}
		out.Headers[name] = a.Value
		out.headers += headerOverhead + len(name) + len(a.Value)
	}
	if len(m.Type) > shortest || len(out.ContentType) > shortest {
		return nil, relay.Permanent(fmt.Errorf("rabbitmq publisher: topic %q: type and content type have %d and %d bytes, AMQP takes %d: shorten them", m.Topic, len(m.Type), len(out.ContentType), shortest))
	}
	return out, nil
}

func checkRoute(exchange, key string) error {
	switch {
	case exchange == "" && key == "":
		return errors.New("its queue has no name: choose another topic, or map it")
	case len(exchange) > shortest || len(key) > shortest:
		return fmt.Errorf("its exchange and routing key have %d and %d bytes, AMQP takes %d: choose another topic, or map it", len(exchange), len(key), shortest)
	}
	return nil
}

// Decode reads back a message that a [Publisher] has sent, for a consumer: all that
// a relay knows of it but Age. The payload is the delivery's body itself.
func Decode(d *amqp.Delivery) (relay.Message, error) {
	attributes := make([]cloudevents.Attribute, 0, len(d.Headers)+1)
	if d.ContentType != "" {
		attributes = append(attributes, cloudevents.Attribute{Name: contentType, Value: d.ContentType})
	}
	for name, value := range d.Headers {
		if len(name) <= len(prefix) || name[:len(prefix)] != prefix {
			continue // the broker's own, such as x-death
		}
		text, ok := value.(string)
		if !ok {
			return relay.Message{}, fmt.Errorf("rabbitmq: header %s is a %T and not a string", name, value)
		}
		attributes = append(attributes, cloudevents.Attribute{Name: name[len(prefix):], Value: text})
	}
	m, err := cloudevents.FromAttributes(attributes, d.Body)
	if err != nil {
		return m, fmt.Errorf("rabbitmq: %w", err)
	}
	return m, nil
}
