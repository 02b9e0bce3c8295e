package router

import (
	"maps"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
)

// FanOut returns a copy of a message for each topic, to be enqueued together:
// from then on each is published, retried and parked for itself. The id of each
// is made of the message's id and the topic (a UUID of version 5), so the same
// message fanned out again has the same ids; a message without an id gets a new
// one first. A topic that is given twice counts once.
func FanOut(m outbox.Message, topics ...string) []outbox.Message {
	if m.ID == (uuid.UUID{}) {
		m.ID = uuid.Must(uuid.NewV7())
	}
	seen := make(map[string]bool, len(topics))
	messages := make([]outbox.Message, 0, len(topics))
	for _, topic := range topics {
		if seen[topic] {
			continue
		}
		seen[topic] = true
		one := m
		one.ID = uuid.NewSHA1(m.ID, []byte(topic))
		one.Topic = topic
		one.Headers = maps.Clone(m.Headers)
		messages = append(messages, one)
	}
	return messages
}
