// Package proxy is a TCP proxy that does to connections what networks do:
// delays, silence, half-closed and cut connections.
package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// Proxy forwards connections to one address. All methods are safe for
// concurrent use.
type Proxy struct {
	listener net.Listener
	target   string
	links    sync.WaitGroup

	mu     sync.Mutex
	open   map[*link]struct{}
	closed bool
	refuse bool
	delay  time.Duration
	// silent is open while bytes are swallowed instead of forwarded.
	silent bool
	// countdown cuts a link when it reaches 0; -1 is off.
	countdown int
	answer    bool // let the fatal message through and swallow its answer
	cuts      int
}

var dialer = net.Dialer{Timeout: 5 * time.Second}

type link struct {
	client, server net.Conn
	mute           bool // the server's bytes are swallowed: the cut is under way
	lost           bool // all bytes are swallowed, for good
}

// Listen starts a proxy on a free local port.
func Listen(ctx context.Context, target string) (*Proxy, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: l, target: target, open: make(map[*link]struct{}), countdown: -1}
	p.links.Go(p.accept)
	return p, nil
}

// Addr is where the proxy listens, host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Close cuts everything and ends the proxy.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.listener.Close()
	p.Cut()
	p.links.Wait()
}

// Cut resets all connections and returns how many there were.
func (p *Proxy) Cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.open)
	for l := range p.open {
		l.reset()
	}
	p.cuts += n
	return n
}

// CutAt resets the connection that carries the nth message from a client, from
// 1, counted over all connections from now on. With answer the message still
// reaches the server and only its answer is lost; otherwise the server never
// sees it. A message is what arrives in one read.
func (p *Proxy) CutAt(n int, answer bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.countdown, p.answer = n, answer
}

// Armed tells whether a CutAt has not struck yet.
func (p *Proxy) Armed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.countdown > 0
}

// Cuts is how many connections were cut so far.
func (p *Proxy) Cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

// HalfClose ends the stream from the server on all connections, while what
// clients send still arrives there.
func (p *Proxy) HalfClose() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.open {
		l.mute = true
		if c, ok := l.client.(*net.TCPConn); ok {
			_ = c.CloseWrite()
		}
	}
	p.cuts += len(p.open)
}

// Refuse makes the proxy close new connections at once.
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = on
}

// Silence swallows everything in both directions while connections stay open,
// as a network does that drops packets. What was swallowed is lost, so the
// connections of the time are of no use afterwards and are cut when it ends.
func (p *Proxy) Silence(on bool) {
	p.mu.Lock()
	was := p.silent
	p.silent = on
	p.mu.Unlock()
	if was && !on {
		p.Cut()
	}
}

// Orphan swallows everything on the connections of now, for good, and leaves
// new ones alone: what is left of a connection whose peer is gone. It returns
// how many there were.
func (p *Proxy) Orphan() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.open {
		l.lost = true
	}
	return len(p.open)
}

// Delay holds every message back in both directions.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		p.links.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	p.mu.Lock()
	refuse := p.refuse || p.closed
	p.mu.Unlock()
	if refuse {
		_ = client.Close()
		return
	}
	server, err := dialer.DialContext(context.Background(), "tcp", p.target)
	if err != nil {
		_ = client.Close()
		return
	}
	l := &link{client: client, server: server}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		l.reset()
		return
	}
	p.open[l] = struct{}{}
	p.mu.Unlock()

	var pipes sync.WaitGroup
	pipes.Go(func() { p.pipe(l, client, server, true) })
	pipes.Go(func() { p.pipe(l, server, client, false) })
	pipes.Wait()
	p.mu.Lock()
	delete(p.open, l)
	p.mu.Unlock()
	_ = client.Close()
	_ = server.Close()
}

func (p *Proxy) pipe(l *link, from, to net.Conn, up bool) {
	// When one side ends, so does the other.
	defer func() {
		if c, ok := to.(*net.TCPConn); ok {
			_ = c.CloseWrite()
		}
		p.mu.Lock()
		mute := l.mute
		p.mu.Unlock()
		if !mute || up {
			_ = l.client.Close()
			_ = l.server.Close()
		}
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && !p.forward(l, to, buf[:n], up) {
			return
		}
		if err != nil {
			return
		}
	}
}

// forward passes a message on; false ends the link.
func (p *Proxy) forward(l *link, to io.Writer, message []byte, up bool) bool {
	p.mu.Lock()
	delay, silent, mute := p.delay, p.silent || l.lost, l.mute
	cut := false
	if up && p.countdown > 0 {
		p.countdown--
		cut = p.countdown == 0
		if cut {
			p.countdown = -1
			p.cuts++
			l.mute = p.answer
		}
	}
	answer := p.answer
	p.mu.Unlock()
	if delay > 0 {
		time.Sleep(delay) // what the proxy is for
	}
	switch {
	case cut && !answer:
		l.reset()
		return false
	case !up && mute: // the answer that is lost
		l.reset()
		return false
	case silent:
		return true
	}
	_, err := to.Write(message)
	return err == nil
}

// reset ends both connections without the usual farewell.
func (l *link) reset() {
	for _, c := range []net.Conn{l.client, l.server} {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
	}
}
