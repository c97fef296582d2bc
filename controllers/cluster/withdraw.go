package cluster

import (
	"context"
	"fmt"
	"slices"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lookup"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// withdrawBlocks cleans up a Cluster that has come to request nothing any more: it deletes what was requested; then,
// when a user has deleted what was granted, it removes our finalizer; and last the condition, which shows that there is
// something to clean up. A block that was requested while that ended is noticed by itself (hasRequestedBlocks).
func (r *Reconciler) withdrawBlocks(ctx context.Context, cluster *clusterv1.Cluster, why string) (reconcile.Result, error) {
	if currentCondition(cluster) == nil && !r.hasRequestedBlocks(cluster) {
		return reconcile.Result{}, nil
	}
	ref := v1alpha1.ClusterReference{Namespace: cluster.Namespace, Name: cluster.Name}
	blocks, err := lookup.ListBlocks(ctx, r.Live, ref, r.Namespace)
	if err != nil {
		return reconcile.Result{}, err
	}
	unanswered, stays := tenancy.DecideWithdrawal(blocks, why)
	for _, a := range unanswered {
		// The block may have been granted since it was read.
		err := exact.DeleteWithPreconditions(ctx, r.Client, a)
		if client.IgnoreNotFound(err) != nil {
			return guard.RequeueOnConflict(err, fmt.Sprintf("deleting IPAllocation %s, which is wanted no more", client.ObjectKeyFromObject(a)))
		}
	}
	if stays != "" {
		return r.reportDecision(ctx, cluster, tenancy.Decision{Action: tenancy.ActionDone, Reason: v1alpha1.AllocationsRemainReason, Message: stays})
	}
	if len(unanswered) > 0 {
		return reconcile.Result{RequeueAfter: guard.WaitingResyncPeriod}, nil // their deletion enqueues the Cluster
	}
	if err := r.cleanUpCluster(ctx, cluster, blocks); err != nil {
		return guard.RequeueOnConflict(client.IgnoreNotFound(err), "removing the finalizer from the Cluster")
	}
	err = r.patchConditions(ctx, cluster, func(c *clusterv1.Cluster) { conditions.Delete(c, v1alpha1.NetworkReadyCondition) })
	return guard.RequeueOnConflict(client.IgnoreNotFound(err), "taking off the condition NetworkReady")
}

// hasRequestedBlocks reports whether a Cluster has IPAllocations that the manager created: those of growth always are,
// another one is if the Cluster has our finalizer, which is added before the first block.
func (r *Reconciler) hasRequestedBlocks(cluster *clusterv1.Cluster) bool {
	served := controllerutil.ContainsFinalizer(cluster, v1alpha1.TenantNetworkFinalizer)
	return slices.ContainsFunc(r.Blocks.LoadBalancerBlocks(client.ObjectKeyFromObject(cluster)), func(a *v1alpha1.IPAllocation) bool {
		return !tenancy.NewCurrentAllocation(a).Manual && (served || tenancy.RoleForAllocation(a) == v1alpha1.GrowthRole)
	})
}

// cleanUpCluster removes from a Cluster what was recorded there for load balancers.
func (r *Reconciler) cleanUpCluster(ctx context.Context, cluster *clusterv1.Cluster, blocks []*v1alpha1.IPAllocation) error {
	next := cluster.DeepCopy()
	changed := tenancy.SetAttemptsAnnotation(next, v1alpha1.TriedPoolsAnnotation, nil)
	changed = tenancy.SetAttemptsAnnotation(next, v1alpha1.TriedGrowthPoolsAnnotation, nil) || changed
	ofPods := slices.ContainsFunc(blocks, func(a *v1alpha1.IPAllocation) bool { return a.Spec.Type == v1alpha1.PodsAllocation })
	if !ofPods && !r.NeedsPodCIDRs(ctx, cluster) {
		changed = controllerutil.RemoveFinalizer(next, v1alpha1.TenantNetworkFinalizer) || changed
	}
	if !changed {
		return nil
	}
	return r.Client.Patch(ctx, next, guard.NewOptimisticPatch(cluster))
}
