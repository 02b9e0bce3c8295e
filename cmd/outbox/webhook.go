package main

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"strings"

	"github.com/outbox-suite/outbox/publish/webhook"
	"github.com/outbox-suite/outbox/relay"
)

// openWebhook makes a publisher to an endpoint. What is behind a ? belongs to the
// endpoint, so options are behind a #, which no server gets to see. docs/cli.md has
// them.
func openWebhook(p *process, scheme, url, source string) (relay.Publisher, error) {
	url, query, _ := strings.Cut(url, "#")
	options, err := parseOptions(scheme, query, []string{"allow", "authorization_file", "ca", "cert", "key", "mode", "secrets_file"})
	if err != nil {
		return nil, err
	}
	b := brokerURL{options: options}
	cfg := webhook.Config{Source: source, Header: make(http.Header)}
	switch options["mode"] {
	case "", "structured":
	case "binary":
		cfg.Mode = webhook.Binary
	default:
		return nil, fmt.Errorf("%s: option mode: use structured or binary", scheme)
	}
	if cfg.Allow, err = b.prefixes(scheme, "allow"); err != nil {
		return nil, err
	}
	if cfg.TLS, err = b.tls(scheme); err != nil {
		return nil, err
	}
	if scheme == "http" && cfg.TLS != nil {
		return nil, fmt.Errorf("%s: options ca, cert and key are for TLS: write https://", scheme)
	}
	secrets, err := b.secret(p, scheme, "secrets_file", "OUTBOX_WEBHOOK_SECRETS")
	if err != nil {
		return nil, err
	}
	cfg.Secrets = strings.Fields(secrets)
	authorization, err := b.secret(p, scheme, "authorization_file", "OUTBOX_WEBHOOK_AUTHORIZATION")
	if err != nil {
		return nil, err
	}
	if authorization != "" {
		cfg.Header.Set("Authorization", authorization)
	}
	return webhook.New(url, cfg)
}

// secret reads the file that an option names, or else the environment.
func (b brokerURL) secret(p *process, scheme, option, variable string) (string, error) {
	path := b.options[option]
	if path == "" {
		return p.getenv(variable), nil
	}
	text, err := os.ReadFile(path) //nolint:gosec // the operator names it
	if err != nil {
		return "", fmt.Errorf("%s: option %s: %w", scheme, option, err)
	}
	if strings.TrimSpace(string(text)) == "" {
		return "", fmt.Errorf("%s: option %s: the file is empty", scheme, option)
	}
	return strings.TrimSpace(string(text)), nil
}

// prefixes reads an option of addresses, and networks in the form 10.0.0.0/8, with
// commas between them.
func (b brokerURL) prefixes(scheme, option string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	text := b.options[option]
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		if a, err := netip.ParseAddr(part); err == nil && a.Zone() == "" {
			all = append(all, netip.PrefixFrom(a, a.BitLen()))
			continue
		}
		prefix, err := netip.ParsePrefix(part)
		if err != nil {
			return nil, fmt.Errorf("%s: option %s: give addresses such as 10.1.2.3, or networks such as 10.0.0.0/8, with commas between them", scheme, option)
		}
		all = append(all, prefix)
	}
	return all, nil
}
