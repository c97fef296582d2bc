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

// reconcileDelete releases what a deleted Cluster had, once no other finalizer is on the Cluster: while its Machines
// exist, they may still answer for its addresses.
func (r *Reconciler) reconcileDelete(ctx context.Context, cluster *clusterv1.Cluster) (reconcile.Result, error) {
	if !guard.HasOnlyOurFinalizer(cluster) {
		return reconcile.Result{}, nil
	}
	ref := v1alpha1.ClusterReference{Namespace: cluster.Namespace, Name: cluster.Name}
	left, err := lookup.ListBlocks(ctx, r.Live, ref, r.Namespace)
	if err != nil {
		return reconcile.Result{}, err
	}
	for _, a := range left {
		if a.DeletionTimestamp.IsZero() {
			if err := client.IgnoreNotFound(exact.DeleteWithPreconditions(ctx, r.Client, a)); err != nil {
				return guard.RequeueOnConflict(err, "deleting IPAllocation "+client.ObjectKeyFromObject(a).String())
			}
		}
	}
	if err := r.removePodsFinalizers(ctx, left); err != nil {
		return guard.RequeueOnConflict(err, "removing finalizers from the blocks of the Nodes of the Cluster")
	}
	if len(left) > 0 {
		return reconcile.Result{RequeueAfter: guard.WaitingResyncPeriod}, nil // their deletion enqueues the Cluster
	}
	before := cluster.DeepCopy()
	controllerutil.RemoveFinalizer(cluster, v1alpha1.TenantNetworkFinalizer)
	err = r.Client.Patch(ctx, cluster, guard.NewOptimisticPatch(before))
	return guard.RequeueOnConflict(client.IgnoreNotFound(err), "removing the finalizer from the Cluster")
}

// finishMove removes our finalizer from a Cluster that clusterctl has moved and is deleting, if clusterctl was
// interrupted before it removed all finalizers.
func (r *Reconciler) finishMove(ctx context.Context, cluster *clusterv1.Cluster) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(cluster, v1alpha1.TenantNetworkFinalizer) || guard.IsFilteredOut(cluster, r.WatchFilter) {
		return reconcile.Result{}, nil
	}
	before := cluster.DeepCopy()
	controllerutil.RemoveFinalizer(cluster, v1alpha1.TenantNetworkFinalizer)
	err := r.Client.Patch(ctx, cluster, guard.NewOptimisticPatch(before))
	return guard.RequeueOnConflict(client.IgnoreNotFound(err), "ending the move of the Cluster")
}

// releaseDeletedCluster removes the finalizers from the pod CIDR blocks of a Cluster that does not exist any more, if
// they are being deleted: its Nodes are gone with it.
func (r *Reconciler) releaseDeletedCluster(ctx context.Context, key client.ObjectKey) error {
	left := r.Blocks.PodBlocks(key)
	if len(left) == 0 {
		return nil
	}
	err := r.Live.Get(ctx, key, &clusterv1.Cluster{})
	if !apierrors.IsNotFound(err) {
		return err // the cache is behind, or does not show all namespaces
	}
	return r.removePodsFinalizers(ctx, left)
}

// removePodsFinalizers removes the finalizer from blocks that no Node uses any more, if they are being deleted. Every
// manager does that: one that serves no Nodes may have to finish what an earlier one began.
func (r *Reconciler) removePodsFinalizers(ctx context.Context, blocks []*v1alpha1.IPAllocation) error {
	var errs []error
	for _, a := range blocks {
		next := a.DeepCopy()
		if a.DeletionTimestamp == nil || ending.IsMoved(a) || !controllerutil.RemoveFinalizer(next, v1alpha1.PodsFinalizer) {
			continue
		}
		errs = append(errs, client.IgnoreNotFound(r.Client.Patch(ctx, next, guard.NewOptimisticPatch(a))))
	}
	return errors.Join(errs...)
}
