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

// onceTold are the mirrors of which this manager has said that nobody serves them. It says so once: what says otherwise
// afterwards is a manager that does.
type onceTold struct {
	mu   sync.Mutex
	uids sets.Set[types.UID]
}

// has reports whether it was said of a UID.
func (o *onceTold) has(uid types.UID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.uids.Has(uid)
}

// note notes that it was said of a UID.
func (o *onceTold) note(uid types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.uids == nil {
		o.uids = sets.New[types.UID]()
	}
	o.uids.Insert(uid)
}

// leave deals with a pool that this manager does not serve. Of a mirror it says so, since nobody else may be there to
// do it, and it lets one go that is deleted: with the pool that it mirrors, or with its namespace.
func (a *Allocator) leave(ctx context.Context, p *grants.Pool, seen v1alpha1.Pool, no *grants.Refusal) (reconcile.Result, error) {
	result := reconcile.Result{RequeueAfter: a.notOurs(ctx, p, seen, no)}
	if _, mirror := incluster.MirroredBy(p.Key.Kind, p.Key.Name); seen == nil || !mirror || a.InClusterPools {
		return result, nil
	}
	if seen.GetDeletionTimestamp() != nil {
		return result, a.removeMirrorFinalizer(ctx, p.Key, seen)
	}
	return result, a.tellUnserved(ctx, seen, no)
}

// tellUnserved says in the condition Ready of a mirror that nobody serves it. Whoever serves it next reads there that
// somebody else may have served what it mirrors meanwhile (fence).
func (a *Allocator) tellUnserved(ctx context.Context, seen v1alpha1.Pool, no *grants.Refusal) error {
	ready := meta.FindStatusCondition(seen.GetConditions(), v1alpha1.ReadyCondition)
	if (ready != nil && ready.Reason == v1alpha1.NotServedReason) || a.saidUnserved.has(seen.GetUID()) {
		return nil
	}
	generation := seen.GetGeneration() // where nothing was said yet, as after a move, which copies no status
	if ready != nil {
		generation = ready.ObservedGeneration
	}
	next := seen.DeepCopyObject().(v1alpha1.Pool)
	meta.SetStatusCondition(&next.PoolStatus().Conditions, metav1.Condition{
		Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.NotServedReason, Message: no.Message,
		ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(a.APITime(a.now())),
	})
	switch err := a.updateStatus(ctx, next); {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil // the watch brings the newer one, or its end
	case err != nil:
		return err
	}
	a.saidUnserved.note(seen.GetUID())
	return nil
}

// wasUnserved reports whether a pool says that nobody served it.
func wasUnserved(obj v1alpha1.Pool) bool {
	ready := meta.FindStatusCondition(obj.GetConditions(), v1alpha1.ReadyCondition)
	return ready != nil && ready.Reason == v1alpha1.NotServedReason
}

// removeMirrorFinalizer takes our finalizer off a deleted mirror that nobody serves, unless somebody has something
// under its own name, or a grant of it is not finished and its claim lives. What the in-cluster provider has given is
// no reason to keep it: its own finalizer keeps the pool.
func (a *Allocator) removeMirrorFinalizer(ctx context.Context, key pools.Key, seen v1alpha1.Pool) error {
	if !controllerutil.ContainsFinalizer(seen, v1alpha1.PoolFinalizer) {
		return nil
	}
	found, err := a.lists.list(ctx, key)
	if err != nil {
		return err
	}
	waits := sets.New[types.UID]() // for the IPAddress that it was granted, if it was
	for _, c := range found.Claimants {
		if !c.Deleting {
			waits.Insert(c.Owner.UID)
		}
		if !c.Mirrored && (c.HasRecord() || c.Shown.IsValid()) {
			return nil
		}
	}
	for _, a := range found.Attached {
		waits.Delete(a.ClaimantUID)
		if !a.Mirrored {
			return nil
		}
	}
	if slices.ContainsFunc(grants.InFlightOf(seen.PoolStatus()), func(g v1alpha1.Grant) bool { return waits.Has(types.UID(g.UID)) }) {
		return nil
	}
	next := seen.DeepCopyObject().(v1alpha1.Pool)
	controllerutil.RemoveFinalizer(next, v1alpha1.PoolFinalizer)
	ctx, cancel := timed(ctx)
	defer cancel()
	err = a.Client.Patch(ctx, next, client.MergeFromWithOptions(seen, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		return nil // the watch brings the newer one
	}
	return client.IgnoreNotFound(err)
}

// missing tells a claim that its pool does not exist. Of a mirror, which nobody is to create, it says what keeps it
// from being there.
func (a *Allocator) missing(ctx context.Context, key pools.Key) *grants.Refusal {
	if a.Unmirrored != nil {
		if why := a.Unmirrored(ctx, key); why != "" {
			return grants.NotReady("%s does not exist: %s", key, why)
		}
	}
	return grants.NotReady("%s does not exist; create it, or create this object again with the right poolRef%s", key, a.overlaps.meant(key))
}

// NamesMirrored returns which claim or IPAddress is known to name what a mirror mirrors, nothing if none is.
func (a *Allocator) NamesMirrored(mirror pools.Key) string {
	m := a.locked(mirror)
	defer m.Unlock()
	return m.NamesMirrored()
}

// tellStranger tells that another provider serves a pool beside this manager.
func (a *Allocator) tellStranger(p *grants.Pool, address *grants.Attached) {
	metrics.Strangers.WithLabelValues(p.Key.Kind, p.Key.Namespace, p.Key.Name).Inc()
	m := p.Lock()
	base := m.Base
	m.Unlock()
	if base == nil {
		return
	}
	a.Recorder.Eventf(base, nil, corev1.EventTypeWarning, "TwoProviders", "Allocate",
		"%s was written by another provider, which serves this pool beside this manager and may give an address twice; "+
			"stop it (kubectl butler-ipam drop-in says what runs), and have nothing start it again", address.Text())
}
