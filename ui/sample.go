package ui

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
)

// Samples is how many samples are kept: at the default of 10s, an hour of them.
const Samples = 360

// Newest is of how many done messages a sample looks at how long they took.
const Newest = 200

// sample is what was seen at one moment.
type sample struct {
	at    time.Time
	stats outbox.Stats
	// settled is the highest number that a row of the done table has, 0 for none.
	settled int64
	// median and slow are how long half and 95 of 100 of the newest messages took at
	// most; timed tells that there are any that were settled since the sample before.
	median, slow time.Duration
	timed        bool
}

// sampler takes samples and keeps the newest.
type sampler struct {
	every time.Duration

	mu      sync.Mutex
	taking  chan struct{} // closed when the sample that is being taken is there; nil when none is
	ring    []sample
	lastErr error
}

// fresh is how old the newest sample may be to stand for now.
const fresh = time.Second

// Run takes samples until ctx ends. Without it they are taken when somebody looks.
func (p *Page) Run(ctx context.Context) {
	tick := time.NewTicker(p.sampler.every)
	defer tick.Stop()
	for {
		if _, err := p.sample(ctx); err != nil && ctx.Err() == nil {
			p.log.WarnContext(ctx, "ui: sample failed", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sample returns the newest sample, a new one if that is not fresh. Of several callers one
// asks the database.
func (p *Page) sample(ctx context.Context) (sample, error) {
	s := &p.sampler
	for {
		s.mu.Lock()
		if n := len(s.ring); n > 0 && time.Since(s.ring[n-1].at) < fresh {
			defer s.mu.Unlock()
			return s.ring[n-1], nil
		}
		if s.taking == nil {
			break
		}
		taking := s.taking
		s.mu.Unlock()
		select {
		case <-taking:
		case <-ctx.Done():
			return sample{}, ctx.Err()
		}
		s.mu.Lock()
		err := s.lastErr
		s.mu.Unlock()
		if err != nil {
			return sample{}, err
		}
	}
	taking := make(chan struct{})
	s.taking = taking
	s.mu.Unlock()
	// One that leaves does not take the sample from the others.
	taken, err := p.take(context.WithoutCancel(ctx))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taking, s.lastErr = nil, err
	close(taking)
	if err != nil {
		return sample{}, err
	}
	s.keep(taken)
	return taken, nil
}

// keep adds a sample. One that came soon after the one before takes its place, so that the
// ring covers its time however often somebody looks.
func (s *sampler) keep(taken sample) {
	n := len(s.ring)
	if n >= 2 && taken.at.Sub(s.ring[n-2].at) < s.every {
		s.ring[n-1] = taken
		return
	}
	if n == Samples {
		s.ring = slices.Delete(s.ring, 0, 1)
	}
	s.ring = append(s.ring, taken)
}

// samples are those that are kept, oldest first.
func (p *Page) samples() []sample {
	p.sampler.mu.Lock()
	defer p.sampler.mu.Unlock()
	return slices.Clone(p.sampler.ring)
}

// take asks the database.
func (p *Page) take(ctx context.Context) (sample, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errSlow)
	defer cancel()
	stats, err := p.box.Store().Stats(ctx, p.box.DB(), CountLimit)
	if err != nil {
		return sample{}, err
	}
	taken := sample{stats: stats}
	if p.viewer != nil {
		done, err := p.viewer.ViewDone(ctx, p.box.DB(), Newest)
		if err != nil {
			return sample{}, err
		}
		taken.settled, taken.median, taken.slow, taken.timed = timesOf(done, 2*p.sampler.every)
	}
	taken.at = time.Now()
	return taken, nil
}

// timesOf are the highest number of the rows, and how long those took that were settled
// within a time.
func timesOf(done []dialect.Settled, within time.Duration) (settled int64, median, slow time.Duration, timed bool) {
	var took []time.Duration
	for _, d := range done {
		settled = max(settled, d.Pos)
		if d.First && d.Ago <= within {
			took = append(took, max(d.Took, 0))
		}
	}
	if len(took) == 0 {
		return settled, 0, 0, false
	}
	slices.Sort(took)
	return settled, took[len(took)/2], took[len(took)*95/100], true
}

// rate is how many rows were settled a second between two samples; not known where the
// numbers went back, as they do when the table is made anew.
func rate(from, to sample) (float64, bool) {
	seconds := to.at.Sub(from.at).Seconds()
	if from.settled == 0 && to.settled == 0 {
		return 0, true
	}
	if seconds <= 0 || to.settled < from.settled || from.settled == 0 {
		return 0, false
	}
	return float64(to.settled-from.settled) / seconds, true
}
