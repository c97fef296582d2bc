package allocator

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
func (a *Allocator) sweep(ctx context.Context, p *pool, now time.Time) time.Duration {
	m := p.lock()
	defer m.unlock()
	if !m.hasAny(func(t *traits) bool { return t.endsWithCluster }) { // most pools: all of their claims would be looked through at every reconcile
		m.nextSweep = time.Time{}
		return 0
	}
	if !m.holder || now.Before(m.nextSweep) {
		return max(0, m.nextSweep.Sub(now))
	}
	every := min(sweepEvery, a.OrphanGrace)
	m.nextSweep = now.Add(every)
	blocks, owes := 0, false
	clear(m.awaited)
	for uid, c := range m.claimants {
		if !c.kind.traits().endsWithCluster || c.deleting || c.moved || !c.hasRecord() {
			continue
		}
		blocks++
		if c.busy || a.leavesAlone(c) {
			continue
		}
		if c.told != seen {
			c.found = a.look(ctx, c)
			m.await(c)
			owes = (c.owesSighting() && m.sort(c)) || owes
			continue
		}
		if a.gateOf(ctx, c.cluster) != absent {
			continue
		}
		since := c.orphanSince
		if m.jobs >= maxJobs || (!since.IsZero() && now.Sub(since) < a.OrphanGrace) {
			continue
		}
		a.hand(m, uid, a.checkOrphan)
	}
	switch {
	case blocks == 0:
		m.nextSweep = time.Time{}
		return 0
	case owes:
		return time.Millisecond
	}
	return every
}

// checkOrphan asks the API server for the Cluster of an allocation, and deletes the allocation at the second
// sighting without one. Its block is released as at every deletion.
func (a *Allocator) checkOrphan(ctx context.Context, p *pool, c claimant) error {
	ctx, cancel := timed(ctx)
	defer cancel()
	key := c.cluster
	err := a.Live.Get(ctx, key, &clusterv1.Cluster{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("looking for Cluster %s: %w", key, err)
	}
	now, since := a.now(), c.orphanSince
	first := since.IsZero()
	m := p.lock()
	if known := m.claimants[c.owner.UID]; known != nil {
		switch {
		case err == nil:
			known.orphanSince = time.Time{}
		case first:
			known.orphanSince = now
		}
	}
	base := m.base
	m.unlock()
	if err == nil || first || now.Sub(since) < a.OrphanGrace {
		return nil
	}
	uid, rv := c.owner.UID, c.rv
	err = a.Client.Delete(ctx, c.object(), client.Preconditions{UID: &uid, ResourceVersion: &rv})
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return a.refresh(ctx, p, c) // it has changed: the next sweep decides
	case err != nil:
		return fmt.Errorf("deleting %s %s: %w", c.owner.Kind, nameOf(c.owner), err)
	}
	metrics.Orphans.WithLabelValues(p.key.Kind, p.key.Namespace, p.key.Name).Inc()
	if base != nil {
		a.Recorder.Eventf(base, c.subject(), corev1.EventTypeNormal, orphanGC, "Release",
			"%s %s was deleted: Cluster %s does not exist", c.owner.Kind, nameOf(c.owner), key)
	}
	return nil
}
