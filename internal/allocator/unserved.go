package allocator

import (
	"context"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// reportedSet holds the mirrors for which this manager has reported that no manager serves them. It reports that once:
// whatever overwrites the report afterwards is a manager that serves the mirror.
type reportedSet struct {
	mu   sync.Mutex
	uids sets.Set[types.UID]
}

// has reports whether a UID was reported.
func (o *reportedSet) has(uid types.UID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.uids.Has(uid)
}

// add records that a UID was reported.
func (o *reportedSet) add(uid types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.uids == nil {
		o.uids = sets.New[types.UID]()
	}
	o.uids.Insert(uid)
}

// reconcileUnservedPool handles a pool that this manager does not serve. For a mirror it reports that in the condition
// Ready, since no other manager may be there to do it, and it removes our finalizer from a deleted one: it is deleted
// with the pool that it mirrors, or with its namespace.
func (a *Allocator) reconcileUnservedPool(ctx context.Context, p *grants.Pool, seen v1alpha1.Pool, refusal *grants.Refusal) (reconcile.Result, error) {
	result := reconcile.Result{RequeueAfter: a.observeUnservedPool(ctx, p, seen, refusal)}
	if _, mirror := incluster.RefForMirror(p.Key.Kind, p.Key.Name); seen == nil || !mirror || a.InClusterPools {
		return result, nil
	}
	if seen.GetDeletionTimestamp() != nil {
		return result, a.removeMirrorFinalizer(ctx, p.Key, seen)
	}
	return result, a.setUnservedCondition(ctx, seen, refusal)
}

// setUnservedCondition sets the condition Ready of a mirror to NotServed. The next manager that serves the mirror reads
// there that another provider may have served the mirrored pool meanwhile (fencePool).
func (a *Allocator) setUnservedCondition(ctx context.Context, seen v1alpha1.Pool, refusal *grants.Refusal) error {
	ready := meta.FindStatusCondition(seen.GetConditions(), v1alpha1.ReadyCondition)
	if (ready != nil && ready.Reason == v1alpha1.NotServedReason) || a.unservedReported.has(seen.GetUID()) {
		return nil
	}
	generation := seen.GetGeneration() // where no condition was set yet, as after a move, which copies no status
	if ready != nil {
		generation = ready.ObservedGeneration
	}
	next := seen.DeepCopyObject().(v1alpha1.Pool)
	meta.SetStatusCondition(&next.PoolStatus().Conditions, metav1.Condition{
		Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.NotServedReason, Message: refusal.Message,
		ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(a.APITime(a.now())),
	})
	switch err := a.updatePoolStatus(ctx, next); {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil // the watch brings the newer one, or its end
	case err != nil:
		return err
	}
	a.unservedReported.add(seen.GetUID())
	return nil
}

// wasUnserved reports whether the condition Ready of a pool shows that no manager served it.
func wasUnserved(obj v1alpha1.Pool) bool {
	ready := meta.FindStatusCondition(obj.GetConditions(), v1alpha1.ReadyCondition)
	return ready != nil && ready.Reason == v1alpha1.NotServedReason
}

// removeMirrorFinalizer removes our finalizer from a deleted mirror that no manager serves, unless a claimant has
// something under the mirror's own name, or a grant of the mirror is not finished and its claim lives. Addresses that
// the in-cluster provider has granted are no reason to keep the mirror: that provider's own finalizer keeps its pool.
func (a *Allocator) removeMirrorFinalizer(ctx context.Context, key pools.Key, seen v1alpha1.Pool) error {
	if !controllerutil.ContainsFinalizer(seen, v1alpha1.PoolFinalizer) {
		return nil
	}
	found, err := a.poolLister.listPool(ctx, key)
	if err != nil {
		return err
	}
	waits := sets.New[types.UID]() // for the IPAddress that it was granted, if any
	for _, c := range found.Claimants {
		if !c.Deleting {
			waits.Insert(c.Owner.UID)
		}
		if !c.UsesMirroredPool && (c.HasRecord() || c.PublishedRange.IsValid()) {
			return nil
		}
	}
	for _, a := range found.Addresses {
		waits.Delete(a.ClaimantUID)
		if !a.UsesMirroredPool {
			return nil
		}
	}
	if slices.ContainsFunc(grants.InFlightFromStatus(seen.PoolStatus()), func(g v1alpha1.Grant) bool { return waits.Has(types.UID(g.UID)) }) {
		return nil
	}
	next := seen.DeepCopyObject().(v1alpha1.Pool)
	controllerutil.RemoveFinalizer(next, v1alpha1.PoolFinalizer)
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	err = a.Client.Patch(ctx, next, client.MergeFromWithOptions(seen, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		return nil // the watch brings the newer one
	}
	return client.IgnoreNotFound(err)
}

// missingPoolRefusal returns the refusal for a claim whose pool does not exist. For a mirror, which no user should
// create, it names what keeps the mirror from existing.
func (a *Allocator) missingPoolRefusal(ctx context.Context, key pools.Key) *grants.Refusal {
	if a.MissingMirrorReason != nil {
		if why := a.MissingMirrorReason(ctx, key); why != "" {
			return grants.PoolNotReady("%s does not exist: %s", key, why)
		}
	}
	return grants.PoolNotReady("%s does not exist; create it, or create this object again with the right poolRef%s", key, a.overlaps.suggestPoolName(key))
}

// MirroredPoolReferrer returns a claim or IPAddress that is known to name the pool that a mirror mirrors; empty if
// there is none.
func (a *Allocator) MirroredPoolReferrer(mirror pools.Key) string {
	m := a.lockPool(mirror)
	defer m.Unlock()
	return m.Addresses.FirstMirroredPoolUser()
}

// recordForeignAddressEvent records an event that another provider serves a pool beside this manager.
func (a *Allocator) recordForeignAddressEvent(p *grants.Pool, address *grants.Address) {
	metrics.ForeignAddresses.WithLabelValues(p.Key.Kind, p.Key.Namespace, p.Key.Name).Inc()
	m := p.Lock()
	base := m.Base.Pool
	m.Unlock()
	if base == nil {
		return
	}
	a.Recorder.Eventf(base, nil, corev1.EventTypeWarning, "TwoProviders", "Allocate",
		"%s was written by another provider, which serves this pool beside this manager and may give an address twice; "+
			"stop it (kubectl butler-ipam drop-in lists what runs), and prevent its restart", address.DisplayName())
}
