package main

import (
	"net/http"
	"strings"

	"github.com/outbox-suite/outbox/publish/cloudevents"
	"github.com/outbox-suite/outbox/publish/discard"
	"github.com/outbox-suite/outbox/publish/file"
	"github.com/outbox-suite/outbox/publish/webhook"
	"github.com/outbox-suite/outbox/relay"
)

const publisherForms = `  stdout:              one CloudEvent a line; accepted when written
  file:path            the same, appended to a file that several relays may share;
                       accepted when it is on disk
  https://host/path    one CloudEvent a request, http or https; accepted on 2xx
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
	case found && scheme == "stdout" && rest == "":
		s, err := file.NewStream(p.stdout, file.Config{Source: source})
		return s, asUsage(err)
	case found && scheme == "file":
		if path := strings.TrimPrefix(rest, "//"); path != "" {
			f, err := file.New(path, file.Config{Source: source})
			return f, asUsage(err)
		}
		return nil, usagef("file: needs a path, for example file:out.ndjson")
	case found && (scheme == "http" || scheme == "https"):
		if cfg.PublishSize == 0 {
			cfg.PublishSize = 1 // so that the publish timeout bounds one request
		}
		header := make(http.Header)
		if auth := p.getenv("OUTBOX_WEBHOOK_AUTHORIZATION"); auth != "" {
			header.Set("Authorization", auth)
		}
		w, err := webhook.New(url, webhook.Config{Source: source, Header: header})
		return w, asUsage(err)
	case found && scheme == "discard" && rest == "":
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
