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

// orphanSweepInterval is how often the allocations of a pool are compared with the Clusters that they are for. The
// cache answers most of it.
const orphanSweepInterval = 15 * time.Second

// orphanGCReason is the reason of the event for an object that was removed because its owner is gone.
const orphanGCReason = "OrphanedAllocationGC"

// sweepOrphans finds allocations whose Cluster, or whose child pool, is gone, and dispatches a job for each that is
// due. The owner must have been seen alive, as the status of the allocation shows. Then two live reads, a grace apart,
// must return NotFound for it: any other answer keeps the allocation. Where no watch event has shown the owner yet, the
// sweep looks it up. It returns the delay until the next sweep; 0 means that none is needed.
func (a *Allocator) sweepOrphans(ctx context.Context, p *grants.Pool, now time.Time) time.Duration {
	m := p.Lock()
	defer m.Unlock()
	// Most pools have none: otherwise every reconcile would read all of their claims.
	if !m.Claimants.HasClaimantWith(func(t *grants.KindTraits) bool { return t.DeletedWithOwner }) {
		m.Owners.NextSweep = time.Time{}
		return 0
	}
	if !m.Record.Holder || now.Before(m.Owners.NextSweep) {
		return max(0, m.Owners.NextSweep.Sub(now))
	}
	every := min(orphanSweepInterval, a.OrphanGrace)
	m.Owners.NextSweep = now.Add(every)
	blocks, statusPending := 0, false
	clear(m.Owners.UnseenClusters)
	lookUpOwner := a.newOwnerLookup(ctx)
	for uid, c := range m.Claimants.ByUID {
		if !c.Kind.Traits().DeletedWithOwner || c.Deleting || c.Moved || !c.HasRecord() {
			continue
		}
		blocks++
		if c.Busy || a.shouldIgnoreClaimant(c) {
			continue
		}
		found := lookUpOwner(m.Base.Key, c)
		m.Owners.RecordOwnerSeen(c, found)
		if c.NeedsOwnerPausedUpdate() {
			if m.Queues.ActiveJobs < grants.MaxJobs {
				a.setPauseCondition(m, c)
			} else {
				m.Owners.NextSweep = time.Time{} // the end of these jobs enqueues the pool
			}
			continue
		}
		if c.NeedsOwnerSeenUpdate() && m.Queues.QueueClaimant(c) && m.Queues.ToWrite[uid] != nil {
			statusPending = true // the status comes first, where it may be written
			continue
		}
		if found == grants.OwnerSeenAlive {
			c.OwnerMissingSince = time.Time{}
		}
		// The parent of a child pool never changes: where it is another pool than this one, the block is of no use.
		elsewhere := c.ChildPool != nil && a.overlaps.declarationFor(*c.ChildPool).uid != ""
		seen := c.NextOwnerSeen(c.ObservedOwnerSeen)
		if found != grants.OwnerNeverSeen || seen == grants.OwnerSeenPaused || (seen != grants.OwnerSeenAlive && !elsewhere) {
			continue
		}
		since := c.OwnerMissingSince
		if m.Queues.ActiveJobs >= grants.MaxJobs || (!since.IsZero() && now.Sub(since) < a.OrphanGrace) {
			continue
		}
		a.startClaimantJob(m, uid, orphanCheckJob, a.checkOrphanedClaimant)
	}
	switch {
	case blocks == 0:
		m.Owners.NextSweep = time.Time{}
		return 0
	case statusPending:
		return time.Millisecond
	}
	return every
}

// setPauseCondition records in the status of an allocation that its owner was paused when it was last seen.
func (a *Allocator) setPauseCondition(m *grants.PoolState, c *grants.Claimant) {
	a.startClaimantJob(m, c.Owner.UID, conditionJob, func(ctx context.Context, p *grants.Pool, c grants.Claimant) error {
		kind, ok := c.Kind.(grants.OwnerTrackingKind)
		if !ok || !c.NeedsOwnerPausedUpdate() {
			return nil // it was unpaused meanwhile
		}
		return a.setClaimantCondition(ctx, p, c, *kind.OwnerSeenCondition(&c, grants.OwnerSeenPaused))
	})
}

// ObserveCluster takes a Cluster as a watch shows it, or its end. A Cluster that clusterctl moves is paused before it
// is gone, and a running one may be gone before the next sweep. It returns the pools that have something to write
// because of that.
func (a *Allocator) ObserveCluster(cluster *clusterv1.Cluster, ended bool) (keys []pools.Key) {
	found := ownerSeenFromCluster(cluster, ended)
	serves := func(c *grants.Claimant) bool { return !a.shouldIgnoreClaimant(c) }
	for _, p := range a.allPools() {
		m := p.Lock()
		if m.Owners.RecordClusterSeen(client.ObjectKeyFromObject(cluster), found, serves) {
			keys = append(keys, p.Key)
		}
		m.Unlock()
	}
	return keys
}

// checkOrphanedClaimant reads the owner of an allocation live, and deletes the allocation when the owner is missing the
// second time. Its block is released as at every deletion.
func (a *Allocator) checkOrphanedClaimant(ctx context.Context, p *grants.Pool, c grants.Claimant) error {
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	gone, err := a.verifyOwnerGone(ctx, p.Key, &c)
	if err != nil {
		return err
	}
	now, since := a.now(), c.OwnerMissingSince
	first, paused := since.IsZero(), false
	m := p.Lock()
	if known := m.Claimants.ByUID[c.Owner.UID]; known != nil {
		paused = known.NextOwnerSeen(known.ObservedOwnerSeen) == grants.OwnerSeenPaused
		switch {
		case gone == "", paused:
			known.OwnerMissingSince = time.Time{}
		case first:
			known.OwnerMissingSince = now
		}
	}
	base := m.Base.Pool
	m.Unlock()
	if gone == "" || paused || first || now.Sub(since) < a.OrphanGrace {
		return nil
	}
	err = exact.DeleteWithPreconditions(ctx, a.Client, exact.WithUIDAndVersion(c.NewObject(), c.Owner.UID, c.ResourceVersion))
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return a.refreshClaimant(ctx, p, c) // it has changed: the next sweep decides
	case err != nil:
		return fmt.Errorf("deleting %s %s: %w", c.Owner.Kind, grants.NamespacedNameFromOwner(c.Owner), err)
	}
	metrics.OrphanedAllocations.WithLabelValues(p.Key.Kind, p.Key.Namespace, p.Key.Name).Inc()
	if base != nil {
		a.Recorder.Eventf(base, c.EventObject(), corev1.EventTypeNormal, orphanGCReason, "Release",
			"%s %s was deleted: %s", c.Owner.Kind, grants.NamespacedNameFromOwner(c.Owner), gone)
	}
	return nil
}

// verifyOwnerGone reads live what an allocation of a pool is for, and returns a message if that is gone: it does not
// exist, or it is a pool that is not carved from this pool. Empty means that it exists.
func (a *Allocator) verifyOwnerGone(ctx context.Context, pool pools.Key, c *grants.Claimant) (gone string, err error) {
	owner := "Cluster " + c.Cluster.String()
	if c.ChildPool == nil {
		err = a.Live.Get(ctx, c.Cluster, &clusterv1.Cluster{})
	} else {
		var child v1alpha1.Pool
		owner = c.ChildPool.String()
		if child, err = c.ChildPool.GetPool(ctx, a.Live); err == nil {
			if parent, _ := pools.ParentPoolKey(child); parent != pool {
				return owner + " is not carved from " + pool.String(), nil
			}
		}
	}
	switch {
	case apierrors.IsNotFound(err):
		return owner + " does not exist", nil
	case err != nil:
		return "", fmt.Errorf("looking for %s: %w", owner, err)
	}
	return "", nil
}

// newOwnerLookup returns a lookup that finds out whether the owner of an IPAllocation, its Cluster or its child pool,
// is alive. It reads each Cluster, and the Clusters of each namespace, once.
func (a *Allocator) newOwnerLookup(ctx context.Context) func(pool pools.Key, c *grants.Claimant) grants.OwnerSeen {
	clusters, pausedIn := a.newClusterLookup(ctx), a.newNamespacePauseLookup(ctx)
	return func(pool pools.Key, c *grants.Claimant) grants.OwnerSeen {
		if c.ChildPool == nil {
			return clusters(c.Cluster).ownerSeen
		}
		if found := a.childPoolSeen(pool, *c.ChildPool); found != grants.OwnerSeenAlive {
			return found
		}
		switch around := pausedIn(c.ChildPool.Namespace); {
		case around != grants.OwnerNeverSeen:
			return around
		case max(c.PublishedOwnerSeen, c.ObservedOwnerSeen) >= grants.OwnerSeenPaused:
			return grants.OwnerUnknown // the Clusters that were paused may have been moved
		}
		return grants.OwnerSeenAlive
	}
}

// ownerSeenFromCluster returns how a Cluster was seen, as it is, or as it was at its end. A Cluster that clusterctl is
// deleting counts as paused for good: clusterctl may unpause it in order to move on.
func ownerSeenFromCluster(cluster *clusterv1.Cluster, ended bool) grants.OwnerSeen {
	_, marked := cluster.Annotations[v1alpha1.DeleteForMoveAnnotation]
	if annotations.IsPaused(cluster, cluster) || ending.IsMoved(cluster) || (ended && marked) {
		return grants.OwnerSeenPaused
	}
	return grants.OwnerSeenAlive
}

// newNamespacePauseLookup returns a lookup that reads how the Clusters of a pool's namespace were seen: clusterctl
// pauses the Clusters of a namespace and moves its pools away, too. OwnerNeverSeen means that there is no Cluster, or
// no longer one.
func (a *Allocator) newNamespacePauseLookup(ctx context.Context) func(namespace string) grants.OwnerSeen {
	seen := map[string]grants.OwnerSeen{"": grants.OwnerSeenAlive}
	return func(namespace string) grants.OwnerSeen {
		state, known := seen[namespace]
		if known {
			return state
		}
		clusters := &clusterv1.ClusterList{}
		state = grants.OwnerNeverSeen
		if err := a.Client.List(ctx, clusters, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
			state = grants.OwnerUnknown
		}
		for i := range clusters.Items {
			state = max(state, ownerSeenFromCluster(&clusters.Items[i], false))
		}
		seen[namespace] = state
		return state
	}
}

// childPoolSeen returns, from what the watch has shown, whether the pool that an IPAllocation is for exists, and is
// carved from the pool that the allocation names.
func (a *Allocator) childPoolSeen(parent, child pools.Key) grants.OwnerSeen {
	switch {
	case a.Namespace != "" && child.Namespace != a.Namespace:
		return grants.OwnerUnknown // out of view
	case a.overlaps.declarationFor(child).parent != parent:
		return grants.OwnerNeverSeen
	}
	return grants.OwnerSeenAlive
}
