package nats

import (
	"github.com/nats-io/nats.go"

	"github.com/outbox-suite/outbox/relay"
)

// Encode is what a publisher with the default configuration sends.
func Encode(m *relay.Message) (*nats.Msg, error) {
	cfg, err := Config{}.withDefaults()
	if err != nil {
		return nil, err
	}
	return (&Publisher{cfg: cfg}).encode(m)
}

// UnderWay is how many messages hold a place of the window.
func (p *Publisher) UnderWay() int { return len(p.window) }
