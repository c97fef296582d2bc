// Package usage remembers how full pools were: a sample now and then, in memory, for some time. A restart
// begins anew; Prometheus is for what is to be kept.
package usage

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

const (
	// every is how often a sample is taken, and kept how long it is remembered.
	every = time.Minute
	kept  = 24 * time.Hour
)

// Sample is how full a pool was from a moment until the next sample.
type Sample struct {
	// At is in Unix seconds.
	At int64
	// Used and Total are numbers of addresses, or of prefixes where the pool hands out prefixes.
	Used, Total int64
}

// History samples the usage of pools. A pool at rest costs one sample, one in motion at most one a minute:
// a day of it takes 35 kB.
type History struct {
	clock clock.WithTicker
	look  func() []grants.View

	mu    sync.Mutex
	since time.Time
	pools map[pools.Key][]Sample
}

// New returns a history of what look shows.
func New(c clock.WithTicker, look func() []grants.View) *History {
	return &History{clock: c, look: look, since: c.Now(), pools: map[pools.Key][]Sample{}}
}

// Start takes samples until the context ends.
func (h *History) Start(ctx context.Context) error {
	tick := h.clock.NewTicker(every)
	defer tick.Stop()
	for {
		h.sample()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		}
	}
}

// NeedLeaderElection tells the manager that it samples whether or not it is elected.
func (*History) NeedLeaderElection() bool { return false }

// sample notes what has changed, and forgets what is too old and pools that are gone.
func (h *History) sample() {
	views := h.look()
	now := h.clock.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	next := make(map[pools.Key][]Sample, len(views))
	for _, v := range views {
		was, is := h.pools[v.Key], Sample{now.Unix(), v.Counts.Allocated, v.Counts.Total}
		if n := len(was); n == 0 || was[n-1].Used != is.Used || was[n-1].Total != is.Total {
			was = append(was, is)
		}
		next[v.Key] = trimmed(was, now.Add(-kept).Unix())
	}
	h.pools = next
}

// trimmed drops what ended before a moment; the sample that held then begins there.
func trimmed(samples []Sample, from int64) []Sample {
	i := 0
	for i+1 < len(samples) && samples[i+1].At <= from {
		i++
	}
	samples[i].At = max(samples[i].At, from)
	if i == 0 {
		return samples
	}
	return slices.Delete(samples, 0, i)
}

// Span is from when to when the history is: a day until now, less if the manager has started since.
func (h *History) Span() (since, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	until = h.clock.Now()
	if from := until.Add(-kept); h.since.Before(from) {
		return from, until
	}
	return h.since, until
}

// Of returns the samples of a pool, oldest first; a sample holds until the next one, the last until now.
func (h *History) Of(key pools.Key) []Sample {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.pools[key])
}
