package incluster

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ending"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// deletionRequeueDelay is after how long a deleted pool that is still referenced is checked again. The mirror changes
// when an address is released, and enqueues the pool; a claim without an address disappears unnoticed.
const deletionRequeueDelay = time.Minute

// reconcileDelete releases a deleted pool. A pool that was not handed over takes its mirror along, which stays while
// addresses are in use. A pool that was handed over leaves the mirror behind, as a pool of its own, once nothing names
// the old pool any more (ADR 38).
func (r *Reconciler) reconcileDelete(ctx context.Context, pool *unstructured.Unstructured, mirror v1alpha1.Pool) (reconcile.Result, error) {
	if ending.IsMoved(pool) {
		// The mirror goes where the pool goes. clusterctl removes all finalizers, unless it is interrupted before that.
		err := r.patchFinalizer(ctx, pool, controllerutil.RemoveFinalizer)
		return guard.RequeueOnConflict(err, "ending the move of "+pool.GetName())
	}
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(mirror), mirror)
	switch {
	case apierrors.IsNotFound(err), err == nil && incluster.IsEnded(mirror):
		return reconcile.Result{}, r.patchFinalizer(ctx, pool, controllerutil.RemoveFinalizer)
	case err != nil || !incluster.IsMirrorOf(mirror, pool) || mirror.GetDeletionTimestamp() != nil:
		return reconcile.Result{}, err
	case !incluster.HasHandedOverAnnotation(mirror):
		// Delete the mirror as it was read: it may have been handed over since.
		err := exact.DeleteWithPreconditions(ctx, r.Client, mirror)
		return guard.RequeueOnConflict(client.IgnoreNotFound(err), "deleting "+mirror.GetName())
	}
	referrer := r.MirroredPoolReferrer(pools.KeyForPool(mirror))
	if referrer == "" {
		// Read the mirror before the list: a grant to a claim that comes after it is a write of the mirror, so the
		// patch below fails.
		if mirror, err = pools.KeyForPool(mirror).GetPool(ctx, r.Live); err != nil || !incluster.HasHandedOverAnnotation(mirror) {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
		if referrer, err = r.findPoolReferrer(ctx, pool); err != nil {
			return reconcile.Result{}, err
		}
	}
	if referrer != "" {
		return reconcile.Result{RequeueAfter: deletionRequeueDelay}, r.markMirrorEnding(ctx, pool, mirror, referrer)
	}
	before := mirror.DeepCopyObject().(client.Object)
	incluster.EndMirror(mirror)
	if err := r.Client.Patch(ctx, mirror, guard.NewOptimisticPatch(before)); err != nil {
		return guard.RequeueOnConflict(client.IgnoreNotFound(err), "making a pool of its own of "+mirror.GetName())
	}
	r.Recorder.Eventf(mirror, nil, corev1.EventTypeNormal, "Ended", "Mirror",
		"%s %s was deleted and is no longer referenced; this pool is now independent and you own its spec", r.kind.Name, pool.GetName())
	return reconcile.Result{}, r.patchFinalizer(ctx, pool, controllerutil.RemoveFinalizer)
}

// markMirrorEnding records on the mirror what keeps its pool, and makes it grant nothing more to those that name that
// pool.
func (r *Reconciler) markMirrorEnding(ctx context.Context, pool *unstructured.Unstructured, mirror v1alpha1.Pool, referrer string) error {
	text := fmt.Sprintf("%s %s is being deleted, and is kept while %s names it; replace its machine by one whose template names %s %s",
		r.kind.Name, pool.GetName(), referrer, pools.KeyForPool(mirror).Kind, mirror.GetName())
	if mirror.GetAnnotations()[incluster.EndingAnnotation] != text {
		before := mirror.DeepCopyObject().(client.Object)
		incluster.SetOrRemoveAnnotation(mirror, incluster.EndingAnnotation, text, true)
		if err := r.Client.Patch(ctx, mirror, client.MergeFrom(before)); err != nil {
			return client.IgnoreNotFound(err)
		}
		r.Recorder.Eventf(pool, nil, corev1.EventTypeWarning, "Ending", "Mirror", "%s", text)
	}
	return r.updatePoolCounts(ctx, pool, mirror)
}

// findPoolReferrer returns a claim or an IPAddress that names a pool, by a live read; empty if there is none.
func (r *Reconciler) findPoolReferrer(ctx context.Context, pool *unstructured.Unstructured) (string, error) {
	namesPool := func(ref ipamv1.IPPoolReference) bool {
		return ref.APIGroup == incluster.GroupVersion.Group && ref.Kind == r.kind.Name && ref.Name == pool.GetName()
	}
	claims, addresses := &ipamv1.IPAddressClaimList{}, &ipamv1.IPAddressList{}
	// List addresses before claims: a claim is deleted after its address.
	for _, list := range []client.ObjectList{addresses, claims} {
		if err := r.Live.List(ctx, list, client.InNamespace(pool.GetNamespace())); err != nil {
			return "", fmt.Errorf("listing the references to a pool that is being deleted: %w", err)
		}
	}
	for i := range claims.Items {
		if c := &claims.Items[i]; namesPool(c.Spec.PoolRef) {
			return "IPAddressClaim " + c.Namespace + "/" + c.Name, nil
		}
	}
	for i := range addresses.Items {
		if a := &addresses.Items[i]; namesPool(a.Spec.PoolRef) {
			return "IPAddress " + a.Namespace + "/" + a.Name, nil
		}
	}
	return "", nil
}
