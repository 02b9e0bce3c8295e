package ui

import (
	"context"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
)

// FillSamples puts samples before the newest, every so long, as stats says.
func FillSamples(p *Page, n int, every time.Duration, stats func(i int) (s outbox.Stats, settled int64, median, slow time.Duration)) {
	newest, err := p.take(context.Background())
	if err != nil {
		panic(err)
	}
	newest.at = newest.at.Add(time.Hour) // it stays the newest
	p.sampler.ring = nil
	for i := range n {
		s, settled, median, slow := stats(i)
		p.sampler.ring = append(p.sampler.ring, sample{newest.at.Add(-time.Duration(n-i) * every), s, settled, median, slow, true})
	}
	newest.stats.OldestReady = p.sampler.ring[n-1].stats.OldestReady
	newest.settled = p.sampler.ring[n-1].settled + p.sampler.ring[n-1].settled - p.sampler.ring[n-2].settled
	newest.median, newest.slow, newest.timed = p.sampler.ring[n-1].median, p.sampler.ring[n-1].slow, true
	p.sampler.ring = append(p.sampler.ring, newest)
}

// Expire ends the time in which orders may be confirmed.
func Expire(p *Page) {
	p.pending.mu.Lock()
	defer p.pending.mu.Unlock()
	for name, o := range p.pending.orders {
		o.until = time.Now()
		p.pending.orders[name] = o
	}
}

// Kept is how many samples are kept.
func Kept(p *Page) int { return len(p.samples()) }

// Keep adds samples, so many of each moment.
func Keep(p *Page, moments ...time.Time) {
	for _, at := range moments {
		p.sampler.keep(sample{at: at})
	}
}

// Payload is a payload as it is shown.
func Payload(b []byte, show bool) (kind, text string, cut bool) {
	p := payloadOf(b, show)
	return p.Kind, p.Text, p.Cut
}

// Visible is how text is shown.
var Visible = visible

// WithoutNumbers is what reasons are compared by.
var WithoutNumbers = withoutNumbers

// Age is how a duration is shown.
var Age = age

// Rate is how many were settled a second, between two numbers so long apart.
func Rate(from, to int64, apart time.Duration) (float64, bool) {
	at := time.Now()
	return rate(sample{at: at, settled: from}, sample{at: at.Add(apart), settled: to})
}

// Times are those of the newest done messages.
func Times(done []dialect.Settled, within time.Duration) (settled int64, median, slow time.Duration, timed bool) {
	return timesOf(done, within)
}
