package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/outbox-suite/outbox/publish/kafka"
	"github.com/outbox-suite/outbox/relay"
)

// openKafka makes a publisher to Kafka. docs/cli.md has the options.
func openKafka(p *process, scheme, rest, source string) (relay.Publisher, error) {
	b, err := parseBrokerURL(scheme, rest, "ca", "cert", "clients", "create", "key", "max_bytes", "password_file", "prefix", "sasl", "tls", "topic", "transactional_id")
	if err != nil {
		return nil, err
	}
	cfg := kafka.Config{Source: source, TransactionalID: b.options["transactional_id"]}
	if cfg.Topic, err = b.destination(scheme, "topic"); err != nil {
		return nil, err
	}
	if cfg.CreateTopics, err = b.boolean(scheme, "create"); err != nil {
		return nil, err
	}
	for name, n := range map[string]*int{"clients": &cfg.Clients, "max_bytes": &cfg.MaxBytes} {
		if *n, err = b.number(scheme, name); err != nil {
			return nil, err
		}
	}
	config, err := b.tls(scheme)
	if err != nil {
		return nil, err
	}
	encrypted, err := b.boolean(scheme, "tls")
	if err != nil {
		return nil, err
	}
	var options []kgo.Opt
	switch {
	case config != nil && b.options["tls"] != "" && !encrypted:
		return nil, fmt.Errorf("%s: options ca, cert and key make the connection TLS: leave tls out", scheme)
	case config != nil:
		options = append(options, kgo.DialTLSConfig(config))
	case encrypted:
		options = append(options, kgo.DialTLSConfig(&tls.Config{MinVersion: tls.VersionTLS12}))
	}
	mechanism, err := kafkaAccess(p, scheme, b)
	if err != nil {
		return nil, err
	}
	if mechanism != nil {
		options = append(options, kgo.SASL(mechanism))
	}
	return kafka.Connect(b.servers, cfg, options...)
}

// kafkaAccess is how a connection gets in, or nil.
func kafkaAccess(p *process, scheme string, b brokerURL) (sasl.Mechanism, error) {
	access, err := b.access(p, scheme, "OUTBOX_KAFKA")
	if err != nil {
		return nil, err
	}
	how := b.options["sasl"]
	if access.user == "" {
		if how != "" || access.file != "" || access.password != "" {
			return nil, fmt.Errorf("%s: a password or the option sasl needs a user: give it in OUTBOX_KAFKA_USER or in the url", scheme)
		}
		return nil, nil
	}
	hashed := func(context.Context) (scram.Auth, error) {
		password, err := access.read()
		return scram.Auth{User: access.user, Pass: password}, err
	}
	switch how {
	case "", "scram-sha-512":
		return scram.Sha512(hashed), nil
	case "scram-sha-256":
		return scram.Sha256(hashed), nil
	case "plain":
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			password, err := access.read()
			return plain.Auth{User: access.user, Pass: password}, err
		}), nil
	}
	return nil, fmt.Errorf("%s: option sasl: use scram-sha-512, scram-sha-256 or plain", scheme)
}

// access is a user, and a password or the file that holds it, which is read at
// every connection.
type access struct{ user, password, file string }

// access takes the user from the URL, or from the environment.
func (b brokerURL) access(p *process, scheme, prefix string) (access, error) {
	a := access{p.getenv(prefix + "_USER"), p.getenv(prefix + "_PASSWORD"), b.options["password_file"]}
	if b.user != nil {
		a.user = b.user.Username()
		if given, ok := b.user.Password(); ok {
			a.password = given
		}
	}
	if a.file != "" {
		if _, err := a.read(); err != nil {
			return a, fmt.Errorf("%s: option password_file: %w", scheme, err)
		}
	}
	return a, nil
}

func (a access) read() (string, error) {
	if a.file == "" {
		return a.password, nil
	}
	text, err := os.ReadFile(a.file)
	return strings.TrimRight(string(text), "\r\n"), err
}

// destination maps a topic by the options prefix and one, which is for all topics.
func (b brokerURL) destination(scheme, one string) (func(topic string) string, error) {
	prefix, all := b.options["prefix"], b.options[one]
	switch {
	case prefix != "" && all != "":
		return nil, fmt.Errorf("%s: options prefix and %s exclude each other: give one", scheme, one)
	case all != "":
		return func(string) string { return all }, nil
	case prefix != "":
		return func(topic string) string { return prefix + topic }, nil
	}
	return nil, nil
}

// number reads an option; 0 is absent.
func (b brokerURL) number(scheme, name string) (int, error) {
	text := b.options[name]
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%s: option %s: give a number above 0", scheme, name)
	}
	return n, nil
}

func (b brokerURL) boolean(scheme, name string) (bool, error) {
	text := b.options[name]
	if text == "" {
		return false, nil
	}
	yes, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("%s: option %s: give true or false", scheme, name)
	}
	return yes, nil
}

// tls reads the options ca, cert and key; nil without them.
func (b brokerURL) tls(scheme string) (*tls.Config, error) {
	ca, cert, key := b.options["ca"], b.options["cert"], b.options["key"]
	if ca == "" && cert == "" && key == "" {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		text, err := os.ReadFile(ca) //nolint:gosec // the operator names it
		if err != nil {
			return nil, fmt.Errorf("%s: option ca: %w", scheme, err)
		}
		if config.RootCAs = x509.NewCertPool(); !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s: option ca: %s has no certificates in PEM", scheme, ca)
		}
	}
	switch {
	case (cert == "") != (key == ""):
		return nil, fmt.Errorf("%s: options cert and key go together: give both", scheme)
	case cert != "":
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("%s: options cert and key: %w", scheme, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
