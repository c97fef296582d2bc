package allocator

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
)

// unservedPools observes the pools that this manager does not serve, among them those of other shards. It grants and
// releases nothing of them. Where no manager serves a mirror, it reports that on the mirror, once.
type unservedPools struct {
	*Options
	reported reportedSet

	scope      *servedScope
	pools      *poolSet
	relations  *poolRelations
	lookups    *cacheLookups
	exclusions *rangeExcluder
	status     *statusWriter
	metadata   *poolMetadata
	jobs       *claimantJobs
}

// reportedSet holds the mirrors for which this manager has reported that no manager serves them. It reports that once:
// whatever overwrites the report afterwards is a manager that serves the mirror.
type reportedSet struct {
	mu   sync.Mutex
	uids sets.Set[types.UID]
}

// has reports whether a UID was reported.
func (rs *reportedSet) has(uid types.UID) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.uids.Has(uid)
}

// add records that a UID was reported.
func (rs *reportedSet) add(uid types.UID) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.uids == nil {
		rs.uids = sets.New[types.UID]()
	}
	rs.uids.Insert(uid)
}

// reconcileUnservedPool handles a pool that this manager does not serve. For a mirror it reports that in the condition
// Ready, since no other manager may be there to do it, and it removes our finalizer from a deleted one: it is deleted
// with the pool that it mirrors, or with its namespace.
func (up *unservedPools) reconcileUnservedPool(ctx context.Context, p *grants.Pool, seen v1alpha1.Pool, refusal *grants.Refusal) (reconcile.Result, error) {
	result := reconcile.Result{RequeueAfter: up.observeUnservedPool(ctx, p, seen, refusal)}
	if _, mirror := incluster.RefForMirror(p.Key.Kind, p.Key.Name); seen == nil || !mirror || up.InClusterPools {
		return result, nil
	}
	if seen.GetDeletionTimestamp() != nil {
		return result, up.metadata.removeMirrorFinalizer(ctx, p.Key, seen)
	}
	return result, up.setUnservedCondition(ctx, seen, refusal)
}

// observeUnservedPool keeps the state of a pool that this manager does not serve at all up to date, and writes a
// refusal to the claims that have none yet: a manager that serves the pool has the last word. Only the pool's holder
// releases the addresses of the claims. It returns the delay until the next reconcile.
func (up *unservedPools) observeUnservedPool(ctx context.Context, p *grants.Pool, seen v1alpha1.Pool, refusal *grants.Refusal) (wait time.Duration) {
	up.observePoolOnly(p, seen, up.now())
	clusters := up.lookups.newClusterLookup(ctx)
	m := p.Lock()
	m.BeginReconcile()
	var toRefuse []*grants.Claimant
	m.Queues.Waiting.Scan(func(c *grants.Claimant) bool {
		clusterNotReady := c.Cluster.Name != "" && clusters(c.Cluster).state != grants.ClusterReady
		if c.IsDue(up.now()) && !clusterNotReady && !up.scope.shouldIgnoreClaimant(c) && c.PublishedRefusal() == (grants.Refusal{}) {
			toRefuse = append(toRefuse, c)
		}
		return true
	})
	m.Unlock()
	up.jobs.refuseClaimants(p, toRefuse, refusal)
	m = p.Lock()
	defer m.Unlock()
	return m.EndReconcile(up.now(), m.Queues.NextRetryDelay(up.now()))
}

// observePoolOnly keeps the state of a pool of another shard as it is on the API server, and does nothing for the pool:
// it writes nothing to its claims, and releases nothing. The spec counts for overlaps, and the claims count for the
// quotas of Clusters.
func (up *unservedPools) observePoolOnly(p *grants.Pool, seen v1alpha1.Pool, now time.Time) {
	if seen != nil {
		up.relations.publishDeclaration(seen)
	}
	m := p.Lock()
	if seen != nil && m.RefreshBasePool(seen, up.ManagerID, now) {
		countLostTerm(p.Key)
	}
	if seen == nil && m.ClearBasePool() {
		metrics.DeletePoolGauges(p.Key.Kind, p.Key.Namespace, p.Key.Name)
	}
	m.Claimants.Gone.Rotate(now)
	up.relations.enqueueChildren(m)
	m.Unlock()
	if seen == nil {
		up.relations.withdrawDeclaration(p.Key)
	}
	up.exclusions.enqueueOlderPools(p)
	up.pools.dropUnusedPool(p)
}

// setUnservedCondition sets the condition Ready of a mirror to NotServed. The next manager that serves the mirror reads
// there that another provider may have served the mirrored pool meanwhile (fencePool).
func (up *unservedPools) setUnservedCondition(ctx context.Context, seen v1alpha1.Pool, refusal *grants.Refusal) error {
	ready := meta.FindStatusCondition(seen.GetConditions(), v1alpha1.ReadyCondition)
	if (ready != nil && ready.Reason == v1alpha1.NotServedReason) || up.reported.has(seen.GetUID()) {
		return nil
	}
	generation := seen.GetGeneration() // where no condition was set yet, as after a move, which copies no status
	if ready != nil {
		generation = ready.ObservedGeneration
	}
	next := seen.DeepCopyObject().(v1alpha1.Pool)
	meta.SetStatusCondition(&next.PoolStatus().Conditions, metav1.Condition{
		Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.NotServedReason, Message: refusal.Message,
		ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(up.APITime(up.now())),
	})
	switch err := up.status.updatePoolStatus(ctx, next); {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil // the watch brings the newer one, or its end
	case err != nil:
		return err
	}
	up.reported.add(seen.GetUID())
	return nil
}
