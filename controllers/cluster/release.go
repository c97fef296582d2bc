package cluster

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lookup"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ending"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
)

// release gives back what a deleted Cluster had, once nobody else holds the Cluster: while its machines
// exist they may still answer for its addresses.
func (r *Reconciler) release(ctx context.Context, cluster *clusterv1.Cluster) (reconcile.Result, error) {
	if !guard.IsLeft(cluster) {
		return reconcile.Result{}, nil
	}
	ref := v1alpha1.ClusterReference{Namespace: cluster.Namespace, Name: cluster.Name}
	left, err := lookup.BlocksOf(ctx, r.Live, ref, r.Namespace)
	if err != nil {
		return reconcile.Result{}, err
	}
	for _, a := range left {
		if a.DeletionTimestamp.IsZero() {
			if err := client.IgnoreNotFound(exact.Delete(ctx, r.Client, a)); err != nil {
				return guard.Retry(err, "deleting IPAllocation "+client.ObjectKeyFromObject(a).String())
			}
		}
	}
	if err := r.letGoOfPods(ctx, left); err != nil {
		return guard.Retry(err, "letting go of what the Nodes of the Cluster had")
	}
	if len(left) > 0 {
		return reconcile.Result{RequeueAfter: guard.WaitingBackstop}, nil // their end wakes us
	}
	before := cluster.DeepCopy()
	controllerutil.RemoveFinalizer(cluster, v1alpha1.TenantNetworkFinalizer)
	err = r.Client.Patch(ctx, cluster, guard.SinceRead(before))
	return guard.Retry(client.IgnoreNotFound(err), "letting go of the Cluster")
}

// endMove takes our finalizer off a Cluster that clusterctl has moved and is deleting, where clusterctl was ended before it
// took off all.
func (r *Reconciler) endMove(ctx context.Context, cluster *clusterv1.Cluster) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(cluster, v1alpha1.TenantNetworkFinalizer) || guard.IsAnothers(cluster, r.WatchFilter) {
		return reconcile.Result{}, nil
	}
	before := cluster.DeepCopy()
	controllerutil.RemoveFinalizer(cluster, v1alpha1.TenantNetworkFinalizer)
	err := r.Client.Patch(ctx, cluster, guard.SinceRead(before))
	return guard.Retry(client.IgnoreNotFound(err), "ending the move of the Cluster")
}

// releaseGone lets go of the blocks for pod CIDRs of a Cluster that does not exist any more, where they are being deleted:
// its Nodes are gone with it.
func (r *Reconciler) releaseGone(ctx context.Context, key client.ObjectKey) error {
	left := r.Blocks.Pods(key)
	if len(left) == 0 {
		return nil
	}
	err := r.Live.Get(ctx, key, &clusterv1.Cluster{})
	if !apierrors.IsNotFound(err) {
		return err // the cache is behind, or does not show all namespaces
	}
	return r.letGoOfPods(ctx, left)
}

// letGoOfPods takes the finalizer off blocks that no Node has anything of any more, where they are being deleted. It does
// so in every manager: one that serves no Nodes may have to end what an earlier one began.
func (r *Reconciler) letGoOfPods(ctx context.Context, blocks []*v1alpha1.IPAllocation) error {
	var errs []error
	for _, a := range blocks {
		next := a.DeepCopy()
		if a.DeletionTimestamp == nil || ending.IsMoved(a) || !controllerutil.RemoveFinalizer(next, v1alpha1.PodsFinalizer) {
			continue
		}
		errs = append(errs, client.IgnoreNotFound(r.Client.Patch(ctx, next, guard.SinceRead(a))))
	}
	return errors.Join(errs...)
}
