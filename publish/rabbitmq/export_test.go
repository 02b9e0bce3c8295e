package rabbitmq

import (
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-suite/outbox/relay"
)

// Encode is what a publisher with the default configuration sends.
func Encode(m *relay.Message) (exchange, key string, p amqp.Publishing, err error) {
	cfg, err := Config{}.withDefaults()
	if err != nil {
		return "", "", p, err
	}
	out, err := (&Publisher{cfg: cfg}).encode(m)
	if err != nil {
		return "", "", p, err
	}
	return out.exchange, out.key, out.Publishing, nil
}

// Returned has a channel read a return and confirms that are there together, and
// reports of each message whether it counts as returned when all are confirmed.
func Returned(ids []string, returned int) []bool {
	messages := make([]*publishing, len(ids))
	for i, id := range ids {
		messages[i] = &publishing{Publishing: amqp.Publishing{MessageId: id}}
	}
	w := newWave(1, messages)
	c := &channel{wave: w, gone: make(chan struct{})}
	confirms, returns, closes := make(chan amqp.Confirmation, len(ids)), make(chan amqp.Return, 1), make(chan *amqp.Error)
	returns <- amqp.Return{MessageId: ids[returned]}
	for i := range ids {
		confirms <- amqp.Confirmation{DeliveryTag: uint64(i) + 1, Ack: true}
	}
	close(closes)
	go c.read(confirms, returns, closes)
	for waiting := true; waiting; { // so that it looks before anything else happens
		select {
		case <-w.done:
			waiting = false
		default:
		}
	}
	all := make([]bool, len(ids))
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range w.results {
		all[i] = w.results[i].returned != nil
	}
	close(confirms)
	return all
}
