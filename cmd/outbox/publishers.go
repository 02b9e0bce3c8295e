package main

import (
	"bytes"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	natsgo "github.com/nats-io/nats.go"

	"github.com/outbox-suite/outbox/publish/cloudevents"
	"github.com/outbox-suite/outbox/publish/discard"
	"github.com/outbox-suite/outbox/publish/file"
	"github.com/outbox-suite/outbox/publish/nats"
	"github.com/outbox-suite/outbox/relay"
)

const publisherForms = `  stdout:              one CloudEvent a line; accepted when written
  file:path            the same, appended to a file that several relays may share;
                       accepted when it is on disk
  https://host/path    one CloudEvent a request, http or https; accepted on 2xx;
                       options follow a #, as in #mode=binary&allow=10.0.0.0/8
  nats://host:4222     one CloudEvent a message to NATS JetStream, also tls://;
                       accepted when the stream has acknowledged it
  kafka://host:9092    one CloudEvent a record to Kafka; accepted when all in-sync
                       replicas have it
  redis://host:6379/0  one CloudEvent an entry to a Redis stream, also rediss://;
                       accepted when the server has answered
  amqp://host:5672/vhost
                       one CloudEvent a message to RabbitMQ, also amqps://; accepted
                       when the broker has confirmed it
  discard:             accepted and thrown away
`

// openPublisher maps a URL to a publisher. No error shows the URL, which may
// hold a secret. cfg gets what the publisher needs of it, where no flag says
// otherwise.
func openPublisher(p *process, url, source string, cfg *relay.Config) (relay.Publisher, error) {
	scheme, rest, found := strings.Cut(url, ":")
	if url == "" {
		return nil, usagef("no publisher: set OUTBOX_PUBLISH or give --publish, one of\n%s", publisherForms)
	}
	if err := cloudevents.CheckSource(source); err != nil {
		return nil, usageError{err}
	}
	scheme = strings.ToLower(scheme)
	switch {
	case !found:
		return nil, usagef("publisher has no colon: write it as one of\n%s", publisherForms)
	case rest != "" && (scheme == "stdout" || scheme == "discard"):
		return nil, usagef("publisher %s: takes nothing behind its colon", scheme)
	case scheme == "stdout":
		s, err := file.NewStream(p.stdout, file.Config{Source: source})
		return s, asUsage(err)
	case scheme == "file":
		if path := strings.TrimPrefix(rest, "//"); path != "" {
			f, err := file.New(path, file.Config{Source: source})
			return f, asUsage(err)
		}
		return nil, usagef("file: needs a path, for example file:out.ndjson")
	case scheme == "http" || scheme == "https":
		if cfg.PublishSize == 0 {
			cfg.PublishSize = 1 // so that the publish timeout bounds one request
		}
		w, err := openWebhook(p, scheme, url, source)
		return w, asUsage(err)
	case scheme == "nats" || scheme == "tls":
		n, err := openNATS(p, scheme, rest, source)
		return n, asUsage(err)
	case scheme == "kafka":
		k, err := openKafka(p, scheme, rest, source)
		return k, asUsage(err)
	case scheme == "redis" || scheme == "rediss":
		r, err := openRedis(p, scheme, rest, source)
		return r, asUsage(err)
	case scheme == "amqp" || scheme == "amqps":
		a, err := openRabbitMQ(p, scheme, rest, source)
		return a, asUsage(err)
	case scheme == "discard":
		return discard.New(), nil
	}
	return nil, usagef("publisher is unknown: use one of\n%s", publisherForms)
}

func asUsage(err error) error {
	if err == nil {
		return nil
	}
	return usageError{err}
}

// brokerURL is the URL of a broker's servers, of which there may be several with
// commas between them, which no URL of the standard library may have.
type brokerURL struct {
	servers string // host:port,host:port
	user    *url.Userinfo
	options map[string]string
}

// parseBrokerURL reads what is after the scheme. Options that are not among
// known are refused. No error shows a value.
func parseBrokerURL(scheme, rest string, known ...string) (brokerURL, error) {
	var b brokerURL
	rest, query, _ := strings.Cut(strings.TrimPrefix(rest, "//"), "?")
	hosts, path, _ := strings.Cut(rest, "/")
	if at := strings.LastIndex(hosts, "@"); at >= 0 {
		u, err := url.Parse("//" + hosts[:at+1] + "host")
		if err != nil {
			return b, fmt.Errorf("%s: user and password cannot be read: percent-encode them, or give them in the environment", scheme)
		}
		b.user, hosts = u.User, hosts[at+1:]
	}
	if hosts == "" || path != "" {
		return b, fmt.Errorf("%s: url cannot be used: write it as %s://host:port,host:port/?option=value", scheme, scheme)
	}
	b.servers = hosts
	var err error
	b.options, err = parseOptions(scheme, query, known)
	return b, err
}

// parseOptions reads what follows the ? of a broker or the # of a webhook.
func parseOptions(scheme, query string, known []string) (map[string]string, error) {
	options := make(map[string]string)
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, fmt.Errorf("%s: options cannot be read: write them as option=value&option=value, percent-encoded", scheme)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch {
		case !slices.Contains(known, name):
			return nil, fmt.Errorf("%s: option %s is unknown: use %s", scheme, shown(name), strings.Join(known, ", "))
		case len(values[name]) > 1:
			return nil, fmt.Errorf("%s: option %q is there twice", scheme, name)
		case values[name][0] == "":
			return nil, fmt.Errorf("%s: option %q is empty: give it a value, or leave it out", scheme, name)
		}
		options[name] = values[name][0]
	}
	return options, nil
}

// openNATS makes a publisher to JetStream. docs/cli.md has the options.
func openNATS(p *process, scheme, rest, source string) (relay.Publisher, error) {
	b, err := parseBrokerURL(scheme, rest, "ca", "cert", "creds", "domain", "key", "password_file", "prefix", "stream", "window")
	if err != nil {
		return nil, err
	}
	cfg := nats.Config{Source: source, Stream: b.options["stream"], Domain: b.options["domain"]}
	if prefix := b.options["prefix"]; prefix != "" {
		cfg.Subject = func(topic string) string { return prefix + topic }
	}
	if text := b.options["window"]; text != "" {
		if cfg.Window, err = strconv.Atoi(text); err != nil || cfg.Window < 1 {
			return nil, fmt.Errorf("%s: option window: give a number of messages above 0", scheme)
		}
	}
	options, err := natsAccess(p, scheme, b)
	if err != nil {
		return nil, err
	}
	servers := strings.Split(b.servers, ",")
	for i := range servers {
		servers[i] = scheme + "://" + servers[i]
	}
	return nats.Connect(strings.Join(servers, ","), cfg, options...)
}

// natsAccess is how a connection gets in: by a credentials file, a token, or
// user and password, whose file is read again at every connection; and TLS.
func natsAccess(p *process, scheme string, b brokerURL) ([]natsgo.Option, error) {
	var options []natsgo.Option
	user, password, token := p.getenv("OUTBOX_NATS_USER"), p.getenv("OUTBOX_NATS_PASSWORD"), p.getenv("OUTBOX_NATS_TOKEN")
	if b.user != nil {
		user = b.user.Username()
		if given, ok := b.user.Password(); ok {
			password = given
		}
	}
	passwordFile, creds := b.options["password_file"], b.options["creds"]
	for option, file := range map[string]string{"password_file": passwordFile, "creds": creds} {
		if file != "" {
			if _, err := os.ReadFile(file); err != nil { //nolint:gosec // the operator names it
				return nil, fmt.Errorf("%s: option %s: %w", scheme, option, err)
			}
		}
	}
	switch {
	case creds != "":
		options = append(options, natsgo.UserCredentials(creds))
	case user != "" && passwordFile != "":
		options = append(options, natsgo.UserInfoHandler(func() (string, string) {
			text, err := os.ReadFile(passwordFile) //nolint:gosec // the operator names it
			if err != nil {
				return user, "" // the server says no, and it is tried again
			}
			return user, string(bytes.TrimRight(text, "\r\n"))
		}))
	case passwordFile != "":
		return nil, fmt.Errorf("%s: option password_file needs a user: give it in OUTBOX_NATS_USER or in the url", scheme)
	case user != "":
		options = append(options, natsgo.UserInfo(user, password))
	case token != "":
		options = append(options, natsgo.Token(token))
	}

	cert, key := b.options["cert"], b.options["key"]
	switch {
	case (cert == "") != (key == ""):
		return nil, fmt.Errorf("%s: options cert and key go together: give both", scheme)
	case cert != "":
		options = append(options, natsgo.ClientCert(cert, key))
	}
	if ca := b.options["ca"]; ca != "" {
		options = append(options, natsgo.RootCAs(ca))
	}
	return options, nil
}
