package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/outbox-suite/outbox/ui"
)

var uiCommand = command{
	name: "ui", summary: "serve the operator's web page",
	help: `
Serves a page that shows what waits, what is stuck and who holds the lanes, lists parked
messages with why, and shows what operators did. It loads nothing from elsewhere.

Without a token or a password it only shows, and only to this machine. With one, in
OUTBOX_UI_TOKEN, or OUTBOX_UI_USER and OUTBOX_UI_PASSWORD, or in a file, the browser asks
for a name and the token or password, and the page requeues, discards and replays: after
a count, with a reason, and with an entry in the audit.

Example:
  (umask 077; openssl rand -hex 32 > token)
  outbox ui --listen 127.0.0.1:8464 --token-file token`,
	setup: func(fs *flag.FlagSet) action {
		var s uiServer
		s.target.flags(fs)
		fs.StringVar(&s.listen, "listen", "127.0.0.1:8464", "the `address` to listen on, host:port; another than loopback takes a token or a password")
		s.access.flags(fs)
		fs.StringVar(&s.path, "path", "/", "the `path` of the page, behind a proxy that keeps it")
		fs.StringVar(&s.cert, "cert", "", "a `file` with the certificate, for TLS")
		fs.StringVar(&s.key, "key", "", "a `file` with the certificate's key")
		fs.StringVar(&s.log.format, "log-format", "text", "the log's `format`: text or json")
		fs.StringVar(&s.log.level, "log-level", "info", "the least `level` that is logged: debug, info, warn or error")
		return s.run
	},
}

// uiAccess is who may use the page, and by which names it is reached.
type uiAccess struct {
	tokenFile, passwordFile string
	hosts                   []string
}

func (a *uiAccess) flags(fs *flag.FlagSet) {
	fs.StringVar(&a.tokenFile, "token-file", "", "a `file` with the token, in place of OUTBOX_UI_TOKEN")
	fs.StringVar(&a.passwordFile, "password-file", "", "a `file` with the password of OUTBOX_UI_USER, in place of OUTBOX_UI_PASSWORD")
	fs.Func("host", "a `name` by which browsers reach the page, besides localhost and addresses; may be repeated", func(s string) error {
		a.hosts = append(a.hosts, s)
		return nil
	})
}

// config reads the secrets.
func (a *uiAccess) config(p *process) (ui.Config, error) {
	cfg := ui.Config{User: p.getenv("OUTBOX_UI_USER"), Hosts: a.hosts}
	for _, s := range []struct {
		flag, file, env string
		into            *string
	}{
		{"token-file", a.tokenFile, "OUTBOX_UI_TOKEN", &cfg.Token},
		{"password-file", a.passwordFile, "OUTBOX_UI_PASSWORD", &cfg.Password},
	} {
		*s.into = p.getenv(s.env)
		if s.file == "" {
			continue
		}
		text, err := os.ReadFile(s.file)
		if err != nil {
			return cfg, fmt.Errorf("%s: %w", s.flag, err)
		}
		if *s.into = strings.TrimRight(string(text), "\r\n"); *s.into == "" {
			return cfg, usagef("%s: the file is empty", s.flag)
		}
	}
	return cfg, nil
}

// mayServe refuses to show the page to other machines unasked.
func mayServe(page *ui.Page, address string) error {
	if !page.Acts() && !ui.Loopback(address) {
		return usagef("listen is not on loopback, so that everybody on the network could read messages: " +
			"set OUTBOX_UI_TOKEN, for example to the output of `openssl rand -hex 32`, or listen on 127.0.0.1")
	}
	return nil
}

type uiServer struct {
	target    target
	access    uiAccess
	listen    string
	path      string
	cert, key string
	log       logFlags
}

// uiGrace is how long a stop waits for requests under way.
const uiGrace = 10 * time.Second

func (s *uiServer) run(ctx context.Context, p *process) error {
	log, err := s.log.logger(p.stderr)
	if err != nil {
		return err
	}
	if (s.cert == "") != (s.key == "") {
		return usagef("cert and key go together: give both or none")
	}
	cfg, err := s.access.config(p)
	if err != nil {
		return err
	}
	o, err := s.target.open(ctx, p)
	if err != nil {
		return err
	}
	defer o.close()
	cfg.Path, cfg.Log = s.path, log
	page, err := ui.New(o.Outbox, cfg)
	if err != nil {
		return usageError{err}
	}
	if err := mayServe(page, s.listen); err != nil {
		return err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", s.listen)
	if err != nil {
		return err
	}
	acting, interrupt := context.WithCancel(context.WithoutCancel(ctx))
	defer interrupt()
	server := newServer(acting, page)
	scheme, served := "http", make(chan error, 1)
	if s.cert != "" {
		scheme = "https"
	} else if !ui.Loopback(s.listen) {
		log.Warn("the page is served without TLS, so that the network sees the token: give --cert and --key, or put a proxy before it")
	}
	mode := "it only shows: to act, set OUTBOX_UI_TOKEN"
	if page.Acts() {
		mode = "it asks for the token or password"
	}
	if _, err := fmt.Fprintf(p.stdout, "%s://%s%s (%s)\n", scheme, l.Addr(), s.path, mode); err != nil {
		_ = l.Close()
		return err
	}
	sampling, stop := context.WithCancel(ctx)
	defer stop()
	go page.Run(sampling)
	go func() {
		if s.cert != "" {
			served <- server.ServeTLS(l, s.cert, s.key)
		} else {
			served <- server.Serve(l)
		}
	}()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), uiGrace)
	defer cancel()
	// An action that takes longer ends between two of its steps, and says so in the audit.
	defer time.AfterFunc(uiGrace/2, interrupt).Stop()
	if err := server.Shutdown(grace); err != nil {
		return errors.Join(err, server.Close())
	}
	return nil
}
