package ui

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
)

// Config configures a [Page]. The zero value is a page at "/" that only shows.
type Config struct {
	// Path is where the page is mounted; it begins and ends with a slash. Default: /.
	Path string
	// Token lets in whoever gives it, as the password of any name, or as a bearer token.
	// At least [LeastToken] bytes. Default: none.
	Token string
	// User and Password let in whoever gives both. At least [LeastPassword] bytes of
	// password. Default: none.
	User, Password string
	// Hosts are the names by which the page is reached, besides localhost and
	// addresses. A request for another one is refused: a name that an attacker controls
	// can be made to lead here. Default: none.
	Hosts []string
	// Sample is the time between two samples of the charts. Default: 10s.
	Sample time.Duration
	// Log gets what goes wrong, and who was refused or did what, without content of
	// messages and without secrets. Default: nothing.
	Log *slog.Logger
}

// The least bytes of secrets.
const (
	LeastToken    = 16
	LeastPassword = 12
)

// What the page reads at most.
const (
	// CountLimit is where counts stop.
	CountLimit = 100_000
	// ConfirmLimit is where the count before an action stops.
	ConfirmLimit = 1000
	// patience is how long the database may take for one page.
	patience = 10 * time.Second
)

// Page is the operator's web page. It is safe for concurrent use.
type Page struct {
	box     *outbox.Outbox
	viewer  dialect.Viewer // nil where the engine has none
	path    string
	hosts   []string
	auth    auth
	log     *slog.Logger
	handler http.Handler
	sampler sampler
	pending pending
}

var _ http.Handler = (*Page)(nil)

// New returns the page of an outbox. It checks cfg and does no I/O. A page that lets
// people act needs an engine that keeps an audit ([outbox.Outbox.Audits]).
func New(box *outbox.Outbox, cfg Config) (*Page, error) {
	if box == nil {
		return nil, errors.New("new ui: outbox is nil: pass the one to show")
	}
	p := &Page{
		box: box, path: cmp.Or(cfg.Path, "/"), log: cfg.Log,
		auth: newAuth(cfg),
	}
	var errs []error
	if !strings.HasPrefix(p.path, "/") || !strings.HasSuffix(p.path, "/") || strings.ContainsAny(p.path, "{}?#% \\") ||
		strings.TrimSuffix(path.Clean(p.path), "/")+"/" != p.path {
		errs = append(errs, fmt.Errorf("path is %q: begin and end it with a slash, with no other beside it and no dots alone, and use plain characters", p.path))
	}
	switch {
	case cfg.Token != "" && len(cfg.Token) < LeastToken:
		errs = append(errs, fmt.Errorf("token has %d bytes: give at least %d, for example from `openssl rand -hex 32`", len(cfg.Token), LeastToken))
	case (cfg.User == "") != (cfg.Password == ""):
		errs = append(errs, errors.New("user and password go together: give both or none"))
	case cfg.Password != "" && len(cfg.Password) < LeastPassword:
		errs = append(errs, fmt.Errorf("password has %d bytes: give at least %d", len(cfg.Password), LeastPassword))
	case strings.Contains(cfg.User, ":"):
		errs = append(errs, errors.New("user contains a colon, which ends it in basic authentication: leave it out"))
	case len(cfg.User) > dialect.MaxWho:
		errs = append(errs, fmt.Errorf("user has %d bytes: the audit keeps at most %d", len(cfg.User), dialect.MaxWho))
	case p.auth.on() && !box.Audits():
		errs = append(errs, fmt.Errorf("%s keeps no audit, without which nobody may act: leave token and password out", box.Dialect().Name()))
	}
	for _, h := range cfg.Hosts {
		name := strings.ToLower(strings.TrimSuffix(h, "."))
		if name == "" || strings.ContainsAny(name, ":/@ ") {
			errs = append(errs, fmt.Errorf("host is %q: give the name alone, without scheme and port", h))
		}
		p.hosts = append(p.hosts, name)
	}
	if cfg.Sample < 0 {
		errs = append(errs, fmt.Errorf("sample is %v: give a duration above 0", cfg.Sample))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("new ui: %w", err)
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	p.viewer, _ = box.Store().(dialect.Viewer)
	p.sampler.every = cmp.Or(cfg.Sample, 10*time.Second)
	p.handler = p.routes()
	return p, nil
}

// Loopback tells whether an address that a server listens on, host:port, can be reached
// from its own machine alone.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// Acts tells whether people may act: a token or a password is configured.
func (p *Page) Acts() bool { return p.auth.on() }

// ServeHTTP answers requests for the page's path and below it.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.handler.ServeHTTP(w, r) }

func (p *Page) routes() http.Handler {
	mux := http.NewServeMux()
	at := func(path string, h func(http.ResponseWriter, *http.Request) error) {
		mux.HandleFunc("GET "+p.path+path, func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeoutCause(r.Context(), patience, errSlow)
			defer cancel()
			if err := h(w, r.WithContext(ctx)); err != nil {
				p.fail(w, r, err)
			}
		})
	}
	at("{$}", p.overview)
	at("parked", p.parked)
	at("parked/{pos}", p.message)
	at("replay", p.replay)
	at("audit", p.audit)
	at("act/{action}", p.confirm)
	mux.HandleFunc("POST "+p.path+"act/{action}", func(w http.ResponseWriter, r *http.Request) {
		// As long as it takes: it goes on in small transactions, and ends with the request.
		if err := p.act(w, r); err != nil {
			p.fail(w, r, err)
		}
	})
	for name, a := range assets {
		mux.Handle("GET "+p.path+"assets/"+name, a)
	}
	at("", func(http.ResponseWriter, *http.Request) error { return errNotFound })
	return p.secured(http.NewCrossOriginProtection().Handler(mux))
}

// secured is what all answers have in common.
func (p *Page) secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "+
			"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if !p.knows(r.Host) {
			p.log.WarnContext(r.Context(), "ui: refused a request for an unknown host", "remote", r.RemoteAddr)
			http.Error(w, "This page is not known under that host name: name it in the configuration (outbox ui --host), or use an address.", http.StatusMisdirectedRequest)
			return
		}
		who, ok := p.auth.who(r)
		if !ok {
			if r.Header.Get("Authorization") != "" {
				p.log.WarnContext(r.Context(), "ui: refused a wrong token or password", "remote", r.RemoteAddr)
			}
			h.Set("WWW-Authenticate", `Basic realm="outbox: your name, and the token or password", charset="UTF-8"`)
			http.Error(w, "Give your name, and the token or password that was configured.", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), whoKey{}, who)))
	})
}

// knows tells whether a request's host is one that leads here: a name can be made to
// lead here by whoever owns it, an address cannot.
func (p *Page) knows(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	return name == "localhost" || slices.Contains(p.hosts, name)
}

type whoKey struct{}

// whoOf is who a request is from; empty where nobody was asked.
func whoOf(r *http.Request) string {
	who, _ := r.Context().Value(whoKey{}).(string)
	return who
}

// failure is an answer other than 200.
type failure struct {
	status        int
	title, Advice string
}

// Error is what the page says of it.
func (f failure) Error() string { return f.title }

var (
	errNotFound = failure{http.StatusNotFound, "There is no such page", "Go to the overview, or back."}
	errReadOnly = failure{http.StatusForbidden, "This page only shows", "To act, configure a token or a user with a password: see the documentation of outbox ui."}
	errSlow     = fmt.Errorf("no answer from the database within %v", patience)
)

// fail answers a request that went wrong.
func (p *Page) fail(w http.ResponseWriter, r *http.Request, err error) {
	f := failure{http.StatusServiceUnavailable, "The database did not answer as it should", ""}
	switch {
	case errors.As(err, &f):
	case errors.Is(err, outbox.ErrInvalid):
		f = failure{http.StatusBadRequest, "That cannot be done", err.Error()}
	case r.Context().Err() != nil:
		return // nobody waits for the answer
	default:
		if errors.Is(err, context.DeadlineExceeded) {
			err = errSlow
		}
		p.log.ErrorContext(r.Context(), "ui: request failed", "path", r.URL.Path, "error", err)
		f.Advice = err.Error()
	}
	p.render(w, r, f.status, "error", f.title, f)
}

//go:embed pages/*.html
var pageFiles embed.FS

//go:embed assets/*
var assetFiles embed.FS

// asset is a file that pages refer to, by its content's hash.
type asset struct {
	content []byte
	kind    string
	hash    string
}

var assets = loadAssets()

func loadAssets() map[string]asset {
	all := make(map[string]asset)
	kinds := map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
	files, err := fs.ReadDir(assetFiles, "assets")
	if err != nil {
		panic(err) // embedded
	}
	for _, f := range files {
		content, err := assetFiles.ReadFile("assets/" + f.Name())
		if err != nil {
			panic(err) // embedded
		}
		sum := sha256.Sum256(content)
		all[f.Name()] = asset{content, kinds[f.Name()[strings.LastIndexByte(f.Name(), '.'):]], hex.EncodeToString(sum[:6])}
	}
	return all
}

// ServeHTTP serves the file, which may be kept: another content has another URL.
func (a asset) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", a.kind)
	w.Header().Set("Cache-Control", "private, max-age=86400")
	_, _ = w.Write(a.content)
}

var templates = parsePages()

func parsePages() map[string]*template.Template {
	all := make(map[string]*template.Template)
	layout := template.Must(template.New("layout.html").Funcs(functions).ParseFS(pageFiles, "pages/layout.html"))
	files, err := fs.Glob(pageFiles, "pages/*.html")
	if err != nil {
		panic(err) // a fixed pattern
	}
	for _, f := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(f, "pages/"), ".html")
		if name != "layout" {
			all[name] = template.Must(template.Must(layout.Clone()).ParseFS(pageFiles, f))
		}
	}
	return all
}

// view is what every template is given.
type view struct {
	Title  string
	Page   string
	Root   string
	Prefix string
	Engine string
	Who    string
	Acts   bool
	Data   any
}

// Asset is the URL of an asset.
func (v view) Asset(name string) string { return v.Root + "assets/" + name + "?v=" + assets[name].hash }

// render writes a page.
func (p *Page) render(w http.ResponseWriter, r *http.Request, status int, page, title string, data any) {
	tables := p.box.Tables()
	name := tables.Prefix
	if tables.Schema != "" {
		name = tables.Schema + "." + name
	}
	v := view{
		Title: title, Page: page, Root: p.path, Prefix: name, Engine: p.box.Dialect().Name(),
		Who: whoOf(r), Acts: p.auth.on(), Data: data,
	}
	var b bytes.Buffer
	if err := templates[page].ExecuteTemplate(&b, "layout.html", v); err != nil {
		p.log.ErrorContext(r.Context(), "ui: page failed", "page", page, "error", err)
		http.Error(w, "The page could not be made.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes())
}
