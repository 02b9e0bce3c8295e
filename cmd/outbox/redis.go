package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/outbox-suite/outbox/publish/redis"
	"github.com/outbox-suite/outbox/relay"
)

// openRedis makes a publisher to Redis. docs/cli.md has the options.
func openRedis(p *process, scheme, rest, source string) (relay.Publisher, error) {
	before, query, _ := strings.Cut(strings.TrimPrefix(rest, "//"), "?")
	servers, path, _ := strings.Cut(before, "/")
	b, err := parseBrokerURL(scheme, servers+"?"+query, "ca", "cert", "create", "key", "maxlen", "password_file", "prefix", "replica_timeout", "replicas", "stream")
	if err != nil {
		return nil, err
	}
	host, err := oneServer(b.servers, "6379")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", scheme, err)
	}
	options := &goredis.Options{Addr: host}
	if path != "" {
		if options.DB, err = strconv.Atoi(path); err != nil || options.DB < 0 {
			return nil, fmt.Errorf("%s: what follows the / is no number of a database", scheme)
		}
	}
	cfg := redis.Config{Source: source}
	if cfg.Stream, err = b.destination(scheme, "stream"); err != nil {
		return nil, err
	}
	maxLen, err := b.number(scheme, "maxlen")
	if err != nil {
		return nil, err
	}
	cfg.MaxLen = int64(maxLen)
	if cfg.Replicas, err = b.number(scheme, "replicas"); err != nil {
		return nil, err
	}
	if text := b.options["replica_timeout"]; text != "" {
		if cfg.ReplicaTimeout, err = time.ParseDuration(text); err != nil || cfg.ReplicaTimeout < time.Millisecond {
			return nil, fmt.Errorf("%s: option replica_timeout: give a duration such as 500ms", scheme)
		}
	}
	if b.options["create"] != "" {
		create, err := b.boolean(scheme, "create")
		if err != nil {
			return nil, err
		}
		cfg.NoCreate = !create
	}
	if options.TLSConfig, err = b.tls(scheme); err != nil {
		return nil, err
	}
	switch {
	case scheme == "rediss" && options.TLSConfig == nil:
		options.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	case scheme == "redis" && options.TLSConfig != nil:
		return nil, fmt.Errorf("%s: options ca, cert and key are for TLS: write rediss://", scheme)
	}
	access, err := b.access(p, scheme, "OUTBOX_REDIS")
	if err != nil {
		return nil, err
	}
	if access.password != "" || access.file != "" {
		options.CredentialsProviderContext = func(context.Context) (string, string, error) {
			password, err := access.read()
			return access.user, password, err
		}
	}
	silence()
	return redis.Connect(options, cfg)
}

// silence stills the log of go-redis, since the relay says it, once. That log is the
// process's, and clients that are there already read it: it is set before the first.
var silence = sync.OnceFunc(func() { goredis.SetLogger(silent{}) })

// silent is a log of go-redis that nobody reads.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// oneServer is the only server, with a port.
func oneServer(servers, port string) (string, error) {
	if strings.Contains(servers, ",") {
		return "", errors.New("several servers are given: name one")
	}
	if _, given, err := net.SplitHostPort(servers); err == nil && given != "" {
		return servers, nil
	}
	return net.JoinHostPort(strings.Trim(strings.TrimSuffix(servers, ":"), "[]"), port), nil
}
