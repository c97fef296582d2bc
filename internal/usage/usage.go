// Package usage records the usage of pools in memory: regular samples, for a limited time. A restart begins with none;
// use Prometheus for long-term data.
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
	// sampleInterval is the time between samples; sampleRetention is how long a sample is kept.
	sampleInterval  = time.Minute
	sampleRetention = 24 * time.Hour
)

// Sample is the usage of a pool from a moment until the next sample.
type Sample struct {
	// UnixSeconds is the time of the sample, in Unix seconds.
	UnixSeconds int64
	// Used and Total count addresses, or prefixes where the pool hands out prefixes.
	Used, Total int64
}

// History samples the usage of pools. It stores a sample only where the usage changed, so an idle pool costs one
// sample, and a busy one at most one a minute: 35 kB for a day.
type History struct {
	clock     clock.WithTicker
	listViews func() []grants.PoolView

	mu        sync.Mutex
	startedAt time.Time
	samples   map[pools.Key][]Sample
}

// NewHistory returns a history of the views that listViews returns.
func NewHistory(c clock.WithTicker, listViews func() []grants.PoolView) *History {
	return &History{clock: c, listViews: listViews, startedAt: c.Now(), samples: map[pools.Key][]Sample{}}
}

// Start takes samples until the context ends.
func (h *History) Start(ctx context.Context) error {
	tick := h.clock.NewTicker(sampleInterval)
	defer tick.Stop()
	for {
		h.takeSamples()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		}
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: it returns false, as samples are taken without an
// election, too.
func (*History) NeedLeaderElection() bool { return false }

// takeSamples records the usage that has changed, and drops old samples and pools that are gone.
func (h *History) takeSamples() {
	views := h.listViews()
	now := h.clock.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	next := make(map[pools.Key][]Sample, len(views))
	for _, v := range views {
		samples, sample := h.samples[v.Key], Sample{now.Unix(), v.Counts.Allocated, v.Counts.Total}
		if n := len(samples); n == 0 || samples[n-1].Used != sample.Used || samples[n-1].Total != sample.Total {
			samples = append(samples, sample)
		}
		next[v.Key] = trimSamples(samples, now.Add(-sampleRetention).Unix())
	}
	h.samples = next
}

// trimSamples drops the samples that ended before a time; the sample in effect at that time then begins there.
func trimSamples(samples []Sample, from int64) []Sample {
	i := 0
	for i+1 < len(samples) && samples[i+1].UnixSeconds <= from {
		i++
	}
	samples[i].UnixSeconds = max(samples[i].UnixSeconds, from)
	if i == 0 {
		return samples
	}
	return slices.Delete(samples, 0, i)
}

// TimeSpan returns the start and the end of the history: the last 24 hours, or less if the manager has started since.
func (h *History) TimeSpan() (since, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	until = h.clock.Now()
	if from := until.Add(-sampleRetention); h.startedAt.Before(from) {
		return from, until
	}
	return h.startedAt, until
}

// SamplesForPool returns the samples of a pool, oldest first. A sample is valid until the next one, the last one until
// now.
func (h *History) SamplesForPool(key pools.Key) []Sample {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.samples[key])
}
