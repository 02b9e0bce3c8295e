package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-suite/outbox/internal/demo"
	"github.com/outbox-suite/outbox/internal/redact"
	"github.com/outbox-suite/outbox/publish/cloudevents"
	"github.com/outbox-suite/outbox/publish/nats"
	"github.com/outbox-suite/outbox/relay"
)

// closing is a demo's broker with a connection of its own.
type closing interface {
	demo.Broker
	close()
}

// demoBroker maps a URL to the broker of a demo. No error shows the URL.
func demoBroker(p *process, publish string) (closing, error) {
	scheme, rest, _ := strings.Cut(publish, ":")
	switch scheme = strings.ToLower(scheme); scheme {
	case "nats", "tls":
		b, err := parseBrokerURL(scheme, rest, "ca", "cert", "creds", "domain", "key", "password_file")
		if err != nil {
			return nil, err
		}
		options, err := natsAccess(p, scheme, b)
		return &demoNATS{url: publish, scheme: scheme, brokerURL: b, access: options}, err
	}
	return nil, errors.New("publish: the demo reads back what a broker has, and knows how for nats:// and tls://")
}

// demoAccess are the settings by which a relay gets in to a broker.
func demoAccess(p *process) (environ []string) {
	for _, name := range []string{"OUTBOX_NATS_USER", "OUTBOX_NATS_PASSWORD", "OUTBOX_NATS_TOKEN"} {
		if value := p.getenv(name); value != "" {
			environ = append(environ, name+"="+value)
		}
	}
	return environ
}

// withOptions adds options to a broker's URL.
func withOptions(publish string, options url.Values) string {
	separator := "?"
	if strings.Contains(publish, "?") {
		separator = "&"
	}
	return publish + separator + options.Encode()
}

// eventLine is a message as the demo reads it: as it would stand in a file.
func eventLine(lines []byte, m *relay.Message) []byte {
	return append(cloudevents.Append(lines, cloudevents.DefaultSource, m), '\n')
}

// demoNATS is a stream for the demo alone.
type demoNATS struct {
	brokerURL
	url, scheme string
	access      []natsgo.Option

	conn   *natsgo.Conn
	js     jetstream.JetStream
	stream jetstream.Stream
	read   uint64 // sequence number of the last message read
}

func (d *demoNATS) Make(ctx context.Context, name string) (string, error) {
	servers := strings.Split(d.servers, ",")
	for i := range servers {
		servers[i] = d.scheme + "://" + servers[i]
	}
	var err error
	// What the demo reads it asks for again, so an outage is not its end.
	d.conn, err = natsgo.Connect(strings.Join(servers, ","), slices.Concat([]natsgo.Option{natsgo.Name("outbox demo"), natsgo.MaxReconnects(-1)}, d.access)...)
	if err != nil {
		return "", fmt.Errorf("connect to the NATS server: %w", redact.URL(err))
	}
	if domain := d.options["domain"]; domain != "" {
		d.js, err = jetstream.NewWithDomain(d.conn, domain)
	} else {
		d.js, err = jetstream.New(d.conn)
	}
	if err != nil {
		return "", err
	}
	d.stream, err = d.js.CreateStream(ctx, jetstream.StreamConfig{
		Name: name, Subjects: []string{name + ".>"}, Storage: jetstream.FileStorage, Description: "a run of outbox demo: delete it if that is over",
	})
	if err != nil {
		return "", fmt.Errorf("make the NATS stream %s: %w", name, err)
	}
	return withOptions(d.url, url.Values{"prefix": {name + "."}, "stream": {name}}), nil
}

func (d *demoNATS) Read(ctx context.Context) (lines []byte, err error) {
	info, err := d.stream.Info(ctx)
	if err != nil {
		return nil, err
	}
	for d.read < info.State.LastSeq {
		raw, err := d.stream.GetMsg(ctx, d.read+1)
		if err != nil {
			return nil, err
		}
		m, err := nats.Decode(raw.Header, raw.Data)
		if err != nil {
			return nil, err
		}
		d.read++
		lines = eventLine(lines, &m)
	}
	return lines, nil
}

func (d *demoNATS) Remove(ctx context.Context) error {
	if d.stream == nil {
		return nil
	}
	name := d.stream.CachedInfo().Config.Name
	if err := d.js.DeleteStream(ctx, name); err != nil {
		return fmt.Errorf("the NATS stream %s of the demo is left behind: %w", name, err)
	}
	return nil
}

func (d *demoNATS) close() {
	if d.conn != nil {
		d.conn.Close()
	}
}
