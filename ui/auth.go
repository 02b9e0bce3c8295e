package ui

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
)

// auth decides who is let in. It keeps hashes, so that comparing takes the same time
// whatever the length of what is given.
type auth struct {
	token, user, password *[sha256.Size]byte
}

func newAuth(cfg Config) auth {
	hash := func(s string) *[sha256.Size]byte {
		if s == "" {
			return nil
		}
		sum := sha256.Sum256([]byte(s))
		return &sum
	}
	return auth{token: hash(cfg.Token), user: hash(cfg.User), password: hash(cfg.Password)}
}

// on tells whether anything is asked for.
func (a *auth) on() bool { return a.token != nil || a.password != nil }

// who returns who a request is from, and whether to let it in.
func (a *auth) who(r *http.Request) (string, bool) {
	if !a.on() {
		return "", true
	}
	const bearer = "Bearer "
	if h := r.Header.Get("Authorization"); len(h) > len(bearer) && strings.EqualFold(h[:len(bearer)], bearer) {
		return "bearer of the token", same(a.token, h[len(bearer):])
	}
	name, secret, ok := r.BasicAuth()
	if !ok || len(name) > dialect.MaxWho || !utf8.ValidString(name) || strings.ContainsRune(name, 0) {
		return "", false
	}
	user, password, token := same(a.user, name), same(a.password, secret), same(a.token, secret)
	switch {
	case user && password:
		return name, true
	case token && name != "":
		return name, true
	case token:
		return "bearer of the token", true
	}
	return "", false
}

// same compares in constant time.
func same(want *[sha256.Size]byte, got string) bool {
	sum := sha256.Sum256([]byte(got))
	return want != nil && subtle.ConstantTimeCompare(want[:], sum[:]) == 1
}

// ConfirmWithin is how long after its count an action may be confirmed.
const ConfirmWithin = 15 * time.Minute

// mostPending bounds how many actions wait for their confirmation.
const mostPending = 1000

// order is an action that waits for its confirmation: what was counted is what is done.
type order struct {
	who, action string
	filter      outbox.Filter
	limit       int
	resume      string // for a replay, the place with the times of its count
	until       time.Time
}

// pending are the orders, each under a random name that its page alone knows. So a request
// that no page of ours has made can confirm nothing, and none can twice.
type pending struct {
	mu     sync.Mutex
	orders map[string]order
}

func (p *pending) add(o order) (name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.orders == nil {
		p.orders = make(map[string]order)
	}
	now := time.Now()
	oldest := ""
	for n, other := range p.orders {
		switch {
		case now.After(other.until):
			delete(p.orders, n)
		case oldest == "" || other.until.Before(p.orders[oldest].until):
			oldest = n
		}
	}
	if len(p.orders) >= mostPending {
		delete(p.orders, oldest)
	}
	name = rand.Text()
	o.until = now.Add(ConfirmWithin)
	p.orders[name] = o
	return name
}

// take returns the order and forgets it. Another's, or one of another action, stays.
func (p *pending) take(name, who, action string) (order, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o, ok := p.orders[name]
	if !ok || o.who != who || o.action != action {
		return order{}, false
	}
	delete(p.orders, name)
	return o, time.Now().Before(o.until)
}

// get returns the order, which stays.
func (p *pending) get(name, who, action string) (order, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o, ok := p.orders[name]
	return o, ok && o.who == who && o.action == action && time.Now().Before(o.until)
}
