package main

import (
	"fmt"
	"net/url"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-suite/outbox/publish/rabbitmq"
	"github.com/outbox-suite/outbox/relay"
)

// openRabbitMQ makes a publisher to RabbitMQ. docs/cli.md has the options.
func openRabbitMQ(p *process, scheme, rest, source string) (relay.Publisher, error) {
	before, query, _ := strings.Cut(strings.TrimPrefix(rest, "//"), "?")
	servers, path, _ := strings.Cut(before, "/")
	b, err := parseBrokerURL(scheme, servers+"?"+query, "ca", "cert", "channels", "create", "exchange", "key", "max_bytes", "password_file", "prefix", "routing_key", "sasl")
	if err != nil {
		return nil, err
	}
	options := amqp.Config{Vhost: "/"}
	if path != "" {
		if options.Vhost, err = url.PathUnescape(path); err != nil || strings.Contains(path, "/") {
			return nil, fmt.Errorf("%s: what follows the / is no name of a virtual host: percent-encode it", scheme)
		}
	}
	cfg := rabbitmq.Config{Source: source}
	key, err := b.destination(scheme, "routing_key")
	if err != nil {
		return nil, err
	}
	exchange := b.options["exchange"]
	cfg.Route = func(topic string) (string, string) {
		if key == nil {
			return exchange, topic
		}
		return exchange, key(topic)
	}
	if cfg.CreateQueues, err = b.boolean(scheme, "create"); err != nil {
		return nil, err
	}
	if cfg.CreateQueues && exchange != "" {
		return nil, fmt.Errorf("%s: options create and exchange exclude each other: bind queues to the exchange yourself", scheme)
	}
	for name, n := range map[string]*int{"channels": &cfg.Channels, "max_bytes": &cfg.MaxBytes} {
		if *n, err = b.number(scheme, name); err != nil {
			return nil, err
		}
	}
	if options.TLSClientConfig, err = b.tls(scheme); err != nil {
		return nil, err
	}
	if scheme == "amqp" && options.TLSClientConfig != nil {
		return nil, fmt.Errorf("%s: options ca, cert and key are for TLS: write amqps://", scheme)
	}
	if options.SASL, err = rabbitAccess(p, scheme, b); err != nil {
		return nil, err
	}
	urls := strings.Split(b.servers, ",")
	for i := range urls {
		urls[i] = scheme + "://" + urls[i]
	}
	return rabbitmq.Connect(strings.Join(urls, ","), cfg, options)
}

// rabbitAccess is how a connection gets in; nil is the server's own guest.
func rabbitAccess(p *process, scheme string, b brokerURL) ([]amqp.Authentication, error) {
	access, err := b.access(p, scheme, "OUTBOX_RABBITMQ")
	if err != nil {
		return nil, err
	}
	switch how := b.options["sasl"]; {
	case how == "external":
		return []amqp.Authentication{&amqp.ExternalAuth{}}, nil
	case how != "" && how != "plain":
		return nil, fmt.Errorf("%s: option sasl: use plain or external", scheme)
	case access.user != "":
		return []amqp.Authentication{plainAccess{access}}, nil
	case access.password != "" || access.file != "":
		return nil, fmt.Errorf("%s: a password needs a user: give it in OUTBOX_RABBITMQ_USER or in the url", scheme)
	}
	return nil, nil
}

// plainAccess reads its password at every connection.
type plainAccess struct{ access }

func (plainAccess) Mechanism() string { return "PLAIN" }

func (a plainAccess) Response() string {
	password, err := a.read()
	if err != nil {
		password = "" // the server says no, and it is tried again
	}
	return "\x00" + a.user + "\x00" + password
}
