package conformance

import (
	"database/sql"

	"github.com/outbox-suite/outbox/internal/proxy"
)

// proxied starts a TCP proxy before the server, closed after the scenario, and
// returns it with a pool that goes through it. The scenario needs Networked.
func (t *trial) proxied() (*proxy.Proxy, *sql.DB) {
	p := t.newProxy()
	db, err := t.target.Network.Open(t.ctx, p.Addr())
	t.must(err, "open through the proxy")
	return p, t.adopt(db)
}

// newProxy starts a TCP proxy before the server.
func (t *trial) newProxy() *proxy.Proxy {
	p, err := proxy.Listen(t.ctx, t.target.Network.Address)
	t.must(err, "start a proxy")
	t.onCleanup(p.Close)
	return p
}
