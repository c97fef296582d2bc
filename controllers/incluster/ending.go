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

// whileEnding is when a pool is looked at again that somebody names still. The mirror changes when an address is
// released, and wakes it; a claim that has none goes unseen.
const whileEnding = time.Minute

// end lets a deleted pool go. One that was not handed over takes its mirror along, which stays while addresses are in
// use. One that was leaves it behind, as a pool of its own, when nobody names the old one any more (ADR 38).
func (r *Reconciler) end(ctx context.Context, pool *unstructured.Unstructured, mirror v1alpha1.Pool) (reconcile.Result, error) {
	if ending.IsMoved(pool) {
		// The mirror goes where the pool goes. clusterctl takes all finalizers off, unless it is ended before that.
		err := r.finalizer(ctx, pool, controllerutil.RemoveFinalizer)
		return guard.Retry(err, "ending the move of "+pool.GetName())
	}
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(mirror), mirror)
	switch {
	case apierrors.IsNotFound(err), err == nil && incluster.Ended(mirror):
		return reconcile.Result{}, r.finalizer(ctx, pool, controllerutil.RemoveFinalizer)
	case err != nil || !incluster.Mirrors(mirror, pool) || mirror.GetDeletionTimestamp() != nil:
		return reconcile.Result{}, err
	case !incluster.Given(mirror):
		// As it was read: it may have been handed over since.
		err := exact.Delete(ctx, r.Client, mirror)
		return guard.Retry(client.IgnoreNotFound(err), "deleting "+mirror.GetName())
	}
	who := r.Names(pools.KeyOf(mirror))
	if who == "" {
		// Before the list: a grant to a claim that comes after it is a write of the mirror, and the one below fails.
		if mirror, err = pools.KeyOf(mirror).Get(ctx, r.Live); err != nil || !incluster.Given(mirror) {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
		if who, err = r.whoNames(ctx, pool); err != nil {
			return reconcile.Result{}, err
		}
	}
	if who != "" {
		return reconcile.Result{RequeueAfter: whileEnding}, r.tellEnding(ctx, pool, mirror, who)
	}
	before := mirror.DeepCopyObject().(client.Object)
	incluster.End(mirror)
	if err := r.Client.Patch(ctx, mirror, guard.SinceRead(before)); err != nil {
		return guard.Retry(client.IgnoreNotFound(err), "making a pool of its own of "+mirror.GetName())
	}
	r.Recorder.Eventf(mirror, nil, corev1.EventTypeNormal, "Ended", "Mirror",
		"%s %s has ended, which nothing names any more: this pool is one of its own, and its spec is yours", r.kind.Name, pool.GetName())
	return reconcile.Result{}, r.finalizer(ctx, pool, controllerutil.RemoveFinalizer)
}

// tellEnding has the mirror say who keeps its pool, and grant nothing more to those that name that.
func (r *Reconciler) tellEnding(ctx context.Context, pool *unstructured.Unstructured, mirror v1alpha1.Pool, who string) error {
	text := fmt.Sprintf("%s %s is being deleted, and waits until nothing names it any more: %s does; replace its machine by one whose template names %s %s",
		r.kind.Name, pool.GetName(), who, pools.KeyOf(mirror).Kind, mirror.GetName())
	if mirror.GetAnnotations()[incluster.EndingAnnotation] != text {
		before := mirror.DeepCopyObject().(client.Object)
		incluster.Annotate(mirror, incluster.EndingAnnotation, text, true)
		if err := r.Client.Patch(ctx, mirror, client.MergeFrom(before)); err != nil {
			return client.IgnoreNotFound(err)
		}
		r.Recorder.Eventf(pool, nil, corev1.EventTypeWarning, "Ending", "Mirror", "%s", text)
	}
	return r.report(ctx, pool, mirror)
}

// whoNames reads live which claim or IPAddress names a pool; empty: none.
func (r *Reconciler) whoNames(ctx context.Context, pool *unstructured.Unstructured) (string, error) {
	is := func(ref ipamv1.IPPoolReference) bool {
		return ref.APIGroup == incluster.GroupVersion.Group && ref.Kind == r.kind.Name && ref.Name == pool.GetName()
	}
	claims, addresses := &ipamv1.IPAddressClaimList{}, &ipamv1.IPAddressList{}
	// Addresses before claims: a claim goes after its address.
	for _, list := range []client.ObjectList{addresses, claims} {
		if err := r.Live.List(ctx, list, client.InNamespace(pool.GetNamespace())); err != nil {
			return "", fmt.Errorf("looking for who names a pool that is being deleted: %w", err)
		}
	}
	for i := range claims.Items {
		if c := &claims.Items[i]; is(c.Spec.PoolRef) {
			return "IPAddressClaim " + c.Namespace + "/" + c.Name, nil
		}
	}
	for i := range addresses.Items {
		if a := &addresses.Items[i]; is(a.Spec.PoolRef) {
			return "IPAddress " + a.Namespace + "/" + a.Name, nil
		}
	}
	return "", nil
}
