package allocator

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
)

// sweepEvery is how often the allocations of a pool are compared with the Clusters they are for. The
// cache answers most of it.
const sweepEvery = 15 * time.Second

// orphanGC is the reason of the event that tells of something that was removed because its owner is gone.
const orphanGC = "OrphanedAllocationGC"

// sweep looks for allocations whose Cluster is gone, and hands out a job for each that is due. The Cluster has to
// have been seen alive, as the status of the allocation says. Then an allocation has to be found without it twice, a
// grace apart, by a live read that says NotFound: any other answer keeps it. Where nobody has seen the Cluster yet,
// sweep looks for it. It returns when to come back.
func (a *Allocator) sweep(ctx context.Context, p *grants.Pool, now time.Time) time.Duration {
	m := p.Lock()
	defer m.Unlock()
	if !m.HasAny(func(t *grants.Traits) bool { return t.EndsWithCluster }) { // most pools: all of their claims would be looked through at every reconcile
		m.NextSweep = time.Time{}
		return 0
	}
	if !m.Holder || now.Before(m.NextSweep) {
		return max(0, m.NextSweep.Sub(now))
	}
	every := min(sweepEvery, a.OrphanGrace)
	m.NextSweep = now.Add(every)
	blocks, owes := 0, false
	clear(m.Awaited)
	for uid, c := range m.Claimants {
		if !c.Kind.Traits().EndsWithCluster || c.Deleting || c.Moved || !c.HasRecord() {
			continue
		}
		blocks++
		if c.Busy || a.leavesAlone(c) {
			continue
		}
		if c.Told != grants.Seen {
			c.Found = a.look(ctx, c)
			m.Await(c)
			owes = (c.OwesSighting() && m.Sort(c)) || owes
			continue
		}
		if a.gateOf(ctx, c.Cluster) != grants.ClusterAbsent {
			continue
		}
		since := c.OrphanSince
		if m.Jobs >= grants.MaxJobs || (!since.IsZero() && now.Sub(since) < a.OrphanGrace) {
			continue
		}
		a.hand(m, uid, a.checkOrphan)
	}
	switch {
	case blocks == 0:
		m.NextSweep = time.Time{}
		return 0
	case owes:
		return time.Millisecond
	}
	return every
}

// checkOrphan asks the API server for the Cluster of an allocation, and deletes the allocation at the second
// sighting without one. Its block is released as at every deletion.
func (a *Allocator) checkOrphan(ctx context.Context, p *grants.Pool, c grants.Claimant) error {
	ctx, cancel := timed(ctx)
	defer cancel()
	key := c.Cluster
	err := a.Live.Get(ctx, key, &clusterv1.Cluster{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("looking for Cluster %s: %w", key, err)
	}
	now, since := a.now(), c.OrphanSince
	first := since.IsZero()
	m := p.Lock()
	if known := m.Claimants[c.Owner.UID]; known != nil {
		switch {
		case err == nil:
			known.OrphanSince = time.Time{}
		case first:
			known.OrphanSince = now
		}
	}
	base := m.Base
	m.Unlock()
	if err == nil || first || now.Sub(since) < a.OrphanGrace {
		return nil
	}
	uid, rv := c.Owner.UID, c.Version
	err = a.Client.Delete(ctx, c.Object(), client.Preconditions{UID: &uid, ResourceVersion: &rv})
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return a.refresh(ctx, p, c) // it has changed: the next sweep decides
	case err != nil:
		return fmt.Errorf("deleting %s %s: %w", c.Owner.Kind, grants.NameOf(c.Owner), err)
	}
	metrics.Orphans.WithLabelValues(p.Key.Kind, p.Key.Namespace, p.Key.Name).Inc()
	if base != nil {
		a.Recorder.Eventf(base, c.Subject(), corev1.EventTypeNormal, orphanGC, "Release",
			"%s %s was deleted: Cluster %s does not exist", c.Owner.Kind, grants.NameOf(c.Owner), key)
	}
	return nil
}

// look finds out from the cache whether the Cluster of an IPAllocation is alive. While the Cluster is paused nothing
// is written, so nothing is to be said.
func (a *Allocator) look(ctx context.Context, c *grants.Claimant) grants.Sighting {
	key := c.Cluster
	if a.Namespace != "" && key.Namespace != a.Namespace {
		return grants.Unlooked // not ours to see
	}
	switch a.gateOf(ctx, key) {
	case grants.ClusterOpen:
		return grants.Seen
	case grants.ClusterAbsent:
		return grants.Unseen
	case grants.ClusterPaused, grants.ClusterUnknown:
	}
	return grants.Unlooked
}
