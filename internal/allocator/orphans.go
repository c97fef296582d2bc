package allocator

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// ownerSweeper deletes allocations whose owner, a Cluster or a child pool, is gone. Two live reads, a grace apart, have
// to prove that.
type ownerSweeper struct {
	*Options
	scope    *servedScope
	overlaps *overlapIndex
	lookups  *cacheLookups
	writer   *objectWriter
	jobs     *claimantJobs
}

// orphanSweepInterval is how often the allocations of a pool are compared with the Clusters that they are for. The
// cache answers most of it.
const orphanSweepInterval = 15 * time.Second

// sweepOrphans finds allocations whose Cluster, or whose child pool, is gone, and dispatches a job for each that is
// due. The owner must have been seen alive, as the status of the allocation shows. Then two live reads, a grace apart,
// must return NotFound for it: any other answer keeps the allocation. Where no watch event has shown the owner yet, the
// sweep looks it up. It returns the delay until the next sweep; 0 means that none is needed.
func (sw *ownerSweeper) sweepOrphans(ctx context.Context, p *grants.Pool, now time.Time) time.Duration {
	m := p.Lock()
	defer m.Unlock()
	// Most pools have none: otherwise every reconcile would read all of their claims.
	if !m.Claimants.HasClaimantWith(func(t *grants.KindTraits) bool { return t.DeletedWithOwner }) {
		m.Owners.RequestSweep()
		return 0
	}
	if !m.Term.Holder || now.Before(m.Owners.NextSweep) {
		return max(0, m.Owners.NextSweep.Sub(now))
	}
	every := min(orphanSweepInterval, sw.OrphanGrace)
	m.Owners.BeginSweep(now.Add(every))
	blocks, statusPending := 0, false
	lookUpOwner := sw.lookups.newOwnerLookup(ctx)
	for uid, c := range m.Claimants.ByUID {
		if !c.Kind.Traits().DeletedWithOwner || c.Deleting || c.Moved || !c.HasRecord() {
			continue
		}
		blocks++
		if c.Busy || sw.scope.shouldIgnoreClaimant(c) {
			continue
		}
		found := lookUpOwner(m.Base.Key, c)
		m.Owners.RecordOwnerSeen(c, found)
		if c.NeedsOwnerPausedUpdate() {
			if m.Queues.ActiveJobs < grants.MaxJobs {
				sw.setPauseCondition(m, c)
			} else {
				m.Owners.RequestSweep() // the end of these jobs enqueues the pool
			}
			continue
		}
		if c.NeedsOwnerSeenUpdate() && m.Queues.QueueClaimant(c) && m.Queues.ToWrite[uid] != nil {
			statusPending = true // the status comes first, where it may be written
			continue
		}
		if found == grants.OwnerSeenAlive {
			c.SetOwnerMissingSince(time.Time{})
		}
		// The parent of a child pool never changes: where it is another pool than this one, the block is of no use.
		elsewhere := c.ChildPool != nil && sw.overlaps.declarationFor(*c.ChildPool).uid != ""
		seen := c.NextOwnerSeen(c.ObservedOwnerSeen)
		if found != grants.OwnerNeverSeen || seen == grants.OwnerSeenPaused || (seen != grants.OwnerSeenAlive && !elsewhere) {
			continue
		}
		since := c.OwnerMissingSince
		if m.Queues.ActiveJobs >= grants.MaxJobs || (!since.IsZero() && now.Sub(since) < sw.OrphanGrace) {
			continue
		}
		sw.jobs.startClaimantJob(m, uid, orphanCheckJob, sw.checkOrphanedClaimant)
	}
	switch {
	case blocks == 0:
		m.Owners.RequestSweep()
		return 0
	case statusPending:
		return time.Millisecond
	}
	return every
}

// setPauseCondition records in the status of an allocation that its owner was paused when it was last seen.
func (sw *ownerSweeper) setPauseCondition(m *grants.PoolState, c *grants.Claimant) {
	sw.jobs.startClaimantJob(m, c.Owner.UID, conditionJob, func(ctx context.Context, p *grants.Pool, c grants.Claimant) error {
		kind, ok := c.Kind.(grants.OwnerTrackingKind)
		if !ok || !c.NeedsOwnerPausedUpdate() {
			return nil // it was unpaused meanwhile
		}
		return sw.writer.setClaimantCondition(ctx, p, c, *kind.OwnerSeenCondition(&c, grants.OwnerSeenPaused))
	})
}

// checkOrphanedClaimant reads the owner of an allocation live, and deletes the allocation when the owner is missing the
// second time. Its block is released as at every deletion.
func (sw *ownerSweeper) checkOrphanedClaimant(ctx context.Context, p *grants.Pool, c grants.Claimant) error {
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	gone, err := sw.verifyOwnerGone(ctx, p.Key, &c)
	if err != nil {
		return err
	}
	now, since := sw.now(), c.OwnerMissingSince
	first, paused := since.IsZero(), false
	m := p.Lock()
	if known := m.Claimants.ByUID[c.Owner.UID]; known != nil {
		paused = known.NextOwnerSeen(known.ObservedOwnerSeen) == grants.OwnerSeenPaused
		switch {
		case gone == "", paused:
			known.SetOwnerMissingSince(time.Time{})
		case first:
			known.SetOwnerMissingSince(now)
		}
	}
	base := m.Base.Pool
	m.Unlock()
	if gone == "" || paused || first || now.Sub(since) < sw.OrphanGrace {
		return nil
	}
	err = exact.DeleteWithPreconditions(ctx, sw.Client, exact.WithUIDAndVersion(c.NewObject(), c.Owner.UID, c.ResourceVersion))
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return sw.writer.refreshClaimant(ctx, p, c) // it has changed: the next sweep decides
	case err != nil:
		return fmt.Errorf("deleting %s %s: %w", c.Owner.Kind, grants.NamespacedNameFromOwner(c.Owner), err)
	}
	metrics.OrphanedAllocations.WithLabelValues(p.Key.Kind, p.Key.Namespace, p.Key.Name).Inc()
	if base != nil {
		sw.Recorder.Eventf(base, c.EventObject(), corev1.EventTypeNormal, orphanGCReason, "Release",
			"%s %s was deleted: %s", c.Owner.Kind, grants.NamespacedNameFromOwner(c.Owner), gone)
	}
	return nil
}

// verifyOwnerGone reads live what an allocation of a pool is for, and returns a message if that is gone: it does not
// exist, or it is a pool that is not carved from this pool. Empty means that it exists.
func (sw *ownerSweeper) verifyOwnerGone(ctx context.Context, pool pools.Key, c *grants.Claimant) (gone string, err error) {
	owner := "Cluster " + c.Cluster.String()
	if c.ChildPool == nil {
		err = sw.Live.Get(ctx, c.Cluster, &clusterv1.Cluster{})
	} else {
		var child v1alpha1.Pool
		owner = c.ChildPool.String()
		if child, err = c.ChildPool.GetPool(ctx, sw.Live); err == nil {
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
