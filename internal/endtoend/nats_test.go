package endtoend

import (
	"context"
	"errors"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-suite/outbox/publish/nats"
	"github.com/outbox-suite/outbox/relay"
)

func serveNATS(ctx context.Context, s spec, ready func()) error {
	n, err := natsserver.NewServer(&natsserver.Options{
		ServerName: s.Name, Host: "127.0.0.1", Port: s.Port, JetStream: true, StoreDir: s.Store, NoSigs: true, NoLog: true,
		JetStreamMaxMemory: 64 << 20, JetStreamMaxStore: 1 << 30,
	})
	if err != nil {
		return err
	}
	n.Start()
	if !n.ReadyForConnections(time.Minute) {
		return errors.New("the server does not get ready")
	}
	ready()
	<-ctx.Done()
	n.Shutdown()
	return nil
}

func connectNATS(address string) (*natsgo.Conn, jetstream.JetStream, error) {
	conn, err := natsgo.Connect(address, natsgo.MaxReconnects(-1), natsgo.ReconnectWait(50*time.Millisecond))
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		conn.Close()
	}
	return conn, js, err
}

func prepareNATS(ctx context.Context, address, topic string) error {
	conn, js, err := connectNATS(address)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: topic, Subjects: []string{topic}, Storage: jetstream.FileStorage})
	return err
}

func publishNATS(address string) (relay.Publisher, error) {
	return nats.Connect(address, nats.Config{})
}

type subscriptionNATS struct {
	conn     *natsgo.Conn
	consumer jetstream.Consumer
}

func subscribeNATS(ctx context.Context, address, topic string) (subscription, error) {
	conn, js, err := connectNATS(address)
	if err != nil {
		return nil, err
	}
	// One message on the way at a time, or one that comes again would be behind
	// others of its key.
	c, err := js.CreateOrUpdateConsumer(ctx, topic, jetstream.ConsumerConfig{
		Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 1, AckWait: time.Second,
	})
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &subscriptionNATS{conn, c}, nil
}

func (s *subscriptionNATS) next(ctx context.Context) (delivery, error) {
	for {
		m, err := s.consumer.Next(jetstream.FetchMaxWait(500 * time.Millisecond))
		switch {
		case ctx.Err() != nil:
			return delivery{}, ctx.Err()
		case errors.Is(err, natsgo.ErrTimeout), errors.Is(err, jetstream.ErrNoMessages):
			continue
		case err != nil:
			return delivery{}, err
		}
		about, err := m.Metadata()
		if err != nil {
			return delivery{}, err
		}
		decoded, err := nats.Decode(m.Headers(), m.Data())
		return delivery{decoded, m.Ack, m.Nak, about.NumDelivered > 1}, err
	}
}

func (s *subscriptionNATS) close() { s.conn.Close() }
