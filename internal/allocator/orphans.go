package allocator

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ending"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// sweepEvery is how often the allocations of a pool are compared with the Clusters they are for. The
// cache answers most of it.
const sweepEvery = 15 * time.Second

// orphanGC is the reason of the event that tells of something that was removed because its owner is gone.
const orphanGC = "OrphanedAllocationGC"

// sweep looks for allocations of which the Cluster, or the pool that they are for, is gone, and hands out a job for each
// that is due. That has to have been seen alive, as the status of the allocation says. Then an allocation has to be found
// without it twice, a grace apart, by a live read that says NotFound: any other answer keeps it. What nobody has seen yet
// sweep looks for. It returns when to come back.
func (a *Allocator) sweep(ctx context.Context, p *grants.Pool, now time.Time) time.Duration {
	m := p.Lock()
	defer m.Unlock()
	if !m.HasAny(func(t *grants.Traits) bool { return t.EndsWithOwner }) { // most pools: all of their claims would be looked through at every reconcile
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
	look := a.lookAtOwners(ctx)
	for uid, c := range m.Claimants {
		if !c.Kind.Traits().EndsWithOwner || c.Deleting || c.Moved || !c.HasRecord() {
			continue
		}
		blocks++
		if c.Busy || a.leavesAlone(c) {
			continue
		}
		found := look(m.Key, c)
		m.NoteSighting(c, found)
		if c.OwesPause() {
			if m.Jobs < grants.MaxJobs {
				a.tellPause(m, c)
			} else {
				m.NextSweep = time.Time{} // the end of these jobs wakes the pool
			}
			continue
		}
		if c.OwesSighting() && m.Sort(c) && m.Todo[uid] != nil {
			owes = true // the status comes first, where it may be written
			continue
		}
		if found == grants.Seen {
			c.OrphanSince = time.Time{}
		}
		// Which pool another one is carved from never changes: where it is another one than this, nobody waits for the block.
		elsewhere := c.Child != nil && a.overlaps.declared(*c.Child).uid != ""
		says := c.SaysAfter(c.Found)
		if found != grants.Unseen || says == grants.Paused || (says != grants.Seen && !elsewhere) {
			continue
		}
		since := c.OrphanSince
		if m.Jobs >= grants.MaxJobs || (!since.IsZero() && now.Sub(since) < a.OrphanGrace) {
			continue
		}
		a.hand(m, uid, looking, a.checkOrphan)
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

// tellPause has the status of an allocation say that what it is for was paused when it was last seen.
func (a *Allocator) tellPause(m *grants.Memory, c *grants.Claimant) {
	a.hand(m, c.Owner.UID, telling, func(ctx context.Context, p *grants.Pool, c grants.Claimant) error {
		kind, is := c.Kind.(grants.Sighter)
		if !is || !c.OwesPause() {
			return nil // it was unpaused meanwhile
		}
		return a.tellHold(ctx, p, c, *kind.Sighted(&c, grants.Paused))
	})
}

// ObserveCluster takes a Cluster as a watch shows it, or the end of it. What clusterctl moves is paused before it is gone, and
// what runs may be gone before the next sweep. It returns the pools that have something to write for that.
func (a *Allocator) ObserveCluster(cluster *clusterv1.Cluster, ended bool) (keys []pools.Key) {
	found := sightingOf(cluster, ended)
	serves := func(c *grants.Claimant) bool { return !a.leavesAlone(c) }
	for _, p := range a.all() {
		m := p.Lock()
		if m.NoteCluster(client.ObjectKeyFromObject(cluster), found, serves) {
			keys = append(keys, p.Key)
		}
		m.Unlock()
	}
	return keys
}

// checkOrphan asks the API server for what an allocation is for, and deletes the allocation at the second sighting
// without it. Its block is released as at every deletion.
func (a *Allocator) checkOrphan(ctx context.Context, p *grants.Pool, c grants.Claimant) error {
	ctx, cancel := timed(ctx)
	defer cancel()
	gone, err := a.withoutOwner(ctx, p.Key, &c)
	if err != nil {
		return err
	}
	now, since := a.now(), c.OrphanSince
	first, paused := since.IsZero(), false
	m := p.Lock()
	if known := m.Claimants[c.Owner.UID]; known != nil {
		paused = known.SaysAfter(known.Found) == grants.Paused
		switch {
		case gone == "", paused:
			known.OrphanSince = time.Time{}
		case first:
			known.OrphanSince = now
		}
	}
	base := m.Base
	m.Unlock()
	if gone == "" || paused || first || now.Sub(since) < a.OrphanGrace {
		return nil
	}
	err = exact.Delete(ctx, a.Client, exact.As(c.Object(), c.Owner.UID, c.Version))
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return a.refresh(ctx, p, c) // it has changed: the next sweep decides
	case err != nil:
		return fmt.Errorf("deleting %s %s: %w", c.Owner.Kind, grants.NameOf(c.Owner), err)
	}
	metrics.Orphans.WithLabelValues(p.Key.Kind, p.Key.Namespace, p.Key.Name).Inc()
	if base != nil {
		a.Recorder.Eventf(base, c.Subject(), corev1.EventTypeNormal, orphanGC, "Release",
			"%s %s was deleted: %s", c.Owner.Kind, grants.NameOf(c.Owner), gone)
	}
	return nil
}

// withoutOwner reads live what an allocation of a pool is for, and says if that is gone: there is none of that name, or it
// is carved from another pool. Empty: it is there.
func (a *Allocator) withoutOwner(ctx context.Context, pool pools.Key, c *grants.Claimant) (gone string, err error) {
	is := "Cluster " + c.Cluster.String()
	if c.Child == nil {
		err = a.Live.Get(ctx, c.Cluster, &clusterv1.Cluster{})
	} else {
		var child v1alpha1.Pool
		is = c.Child.String()
		if child, err = c.Child.Get(ctx, a.Live); err == nil {
			if parent, _ := pools.ParentOf(child); parent != pool {
				return is + " is not carved from " + pool.String(), nil
			}
		}
	}
	switch {
	case apierrors.IsNotFound(err):
		return is + " does not exist", nil
	case err != nil:
		return "", fmt.Errorf("looking for %s: %w", is, err)
	}
	return "", nil
}

// lookAtOwners returns what finds out whether that is alive which an IPAllocation of a pool is for. Each Cluster, and each
// namespace, is looked at once.
func (a *Allocator) lookAtOwners(ctx context.Context) func(pool pools.Key, c *grants.Claimant) grants.Sighting {
	clusters, pausedIn := a.lookAtClusters(ctx), a.findPaused(ctx)
	return func(pool pools.Key, c *grants.Claimant) grants.Sighting {
		if c.Child == nil {
			return clusters(c.Cluster).seen
		}
		if found := a.lookForChild(pool, *c.Child); found != grants.Seen {
			return found
		}
		switch around := pausedIn(c.Child.Namespace); {
		case around != grants.Unseen:
			return around
		case max(c.Told, c.Found) >= grants.Paused:
			return grants.Unlooked // the Clusters that were paused may have been moved
		}
		return grants.Seen
	}
}

// sightingOf is what a Cluster shows, as it is, or as it was at its end. What clusterctl is deleting is paused for good: it may be
// unpaused to move on.
func sightingOf(cluster *clusterv1.Cluster, ended bool) grants.Sighting {
	_, marked := cluster.Annotations[v1alpha1.DeleteForMoveAnnotation]
	if annotations.IsPaused(cluster, cluster) || ending.IsMoved(cluster) || (ended && marked) {
		return grants.Paused
	}
	return grants.Seen
}

// findPaused returns what finds out how a pool was seen that is in a namespace: clusterctl pauses the Clusters of a namespace and
// takes its pools away, too. Unseen: there is no Cluster, or none any more.
func (a *Allocator) findPaused(ctx context.Context) func(namespace string) grants.Sighting {
	seen := map[string]grants.Sighting{"": grants.Seen}
	return func(namespace string) grants.Sighting {
		is, known := seen[namespace]
		if known {
			return is
		}
		clusters := &clusterv1.ClusterList{}
		is = grants.Unseen
		if err := a.Client.List(ctx, clusters, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
			is = grants.Unlooked
		}
		for i := range clusters.Items {
			is = max(is, sightingOf(&clusters.Items[i], false))
		}
		seen[namespace] = is
		return is
	}
}

// lookForChild finds out from what the watch has shown whether the pool is there that an IPAllocation is for, and is carved
// from the pool that the allocation names.
func (a *Allocator) lookForChild(parent, child pools.Key) grants.Sighting {
	switch {
	case a.Namespace != "" && child.Namespace != a.Namespace:
		return grants.Unlooked // not ours to see
	case a.overlaps.declared(child).parent != parent:
		return grants.Unseen
	}
	return grants.Seen
}
