package cloudevents

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/outbox-suite/outbox/relay"
)

// Parse reads back a message from the event that [Append] made of it: all that a
// relay knows of it but Age. The payload is what is in data, as it is written
// there, or in data_base64. An unknown attribute is a header.
func Parse(event []byte) (relay.Message, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(event, &members); err != nil {
		return relay.Message{}, fmt.Errorf("event is not a JSON object: %w", err)
	}
	var payload []byte
	data, has := members["data"]
	encoded, hasEncoded := members["data_base64"]
	switch {
	case has && hasEncoded:
		return relay.Message{}, errors.New("event has both data and data_base64")
	case has:
		payload = data
	case hasEncoded:
		if err := json.Unmarshal(encoded, &payload); err != nil {
			return relay.Message{}, fmt.Errorf("data_base64: %w", err)
		}
	}
	delete(members, "data")
	delete(members, "data_base64")
	attributes := make([]Attribute, 0, len(members))
	for name, value := range members {
		text := string(value) // of a number or a Boolean
		if value[0] == '"' {
			if err := json.Unmarshal(value, &text); err != nil {
				return relay.Message{}, fmt.Errorf("attribute %s: %w", name, err)
			}
		}
		if name != noData { // which means nothing here
			attributes = append(attributes, Attribute{name, text})
		}
	}
	m, err := FromAttributes(attributes, payload)
	if err != nil {
		return m, err
	}
	m.Payload = payload
	if value, ok := members[noData]; ok {
		var text string
		if err := json.Unmarshal(value, &text); err != nil {
			return m, fmt.Errorf("attribute %s: %w", noData, err)
		}
		if m.Headers == nil {
			m.Headers = make(map[string]string)
		}
		m.Headers[noData] = text
	}
	return m, nil
}
