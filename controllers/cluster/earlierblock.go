package cluster

import (
	"context"
	"fmt"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lookup"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// findEarlierBlock returns the first block that a Cluster has of a ProviderConfig of another namespace, which it named
// before; nil if there is none.
func (r *Reconciler) findEarlierBlock(ctx context.Context, ref v1alpha1.ClusterReference) (*v1alpha1.IPAllocation, error) {
	blocks, err := lookup.ListBlocks(ctx, r.Live, ref, r.Namespace)
	if err != nil {
		return nil, err
	}
	for _, a := range blocks {
		if a.Name == tenancy.InitialBlockName(ref) && a.Spec.Type == v1alpha1.LoadBalancerAllocation {
			return a, nil
		}
	}
	return nil, nil //nolint:nilnil // none is an answer
}

// keepEarlierBlock leaves a Cluster the first block that it has of another ProviderConfig: it has one, whatever its
// label is. A block that was requested and is not granted is deleted, and the ProviderConfig that the Cluster names now
// is used next.
func (r *Reconciler) keepEarlierBlock(ctx context.Context, cluster *clusterv1.Cluster, config *v1alpha1.ProviderConfig, a *v1alpha1.IPAllocation) (reconcile.Result, error) {
	at, name := tenancy.NewCurrentAllocation(a), client.ObjectKeyFromObject(a)
	switch {
	case at.Deleting:
		return r.reportDecision(ctx, cluster, tenancy.Decision{
			Action: tenancy.ActionWait, Reason: v1alpha1.ReconcilingReason, Message: fmt.Sprintf("the earlier IPAllocation %s is being released", name),
		})
	case at.Phase == v1alpha1.AllocationAllocated || at.Manual:
		d := tenancy.Decision{Action: tenancy.ActionWait, Reason: v1alpha1.ReconcilingReason}
		if at.Phase == v1alpha1.AllocationAllocated {
			d.Action, d.Reason = tenancy.ActionDone, v1alpha1.ReadyReason
		}
		d.Message = fmt.Sprintf("%s; the Cluster keeps IPAllocation %s, and gets one of ProviderConfig %s/%s when you delete that", at.Message, name, config.Namespace, config.Name)
		return r.reportDecision(ctx, cluster, d)
	}
	err := exact.DeleteWithPreconditions(ctx, r.Client, a)
	if client.IgnoreNotFound(err) != nil {
		return guard.RequeueOnConflict(err, "giving up an IPAllocation of another ProviderConfig")
	}
	return r.reportDecision(ctx, cluster, tenancy.Decision{
		Action: tenancy.ActionWait, Reason: v1alpha1.ReconcilingReason, Message: fmt.Sprintf("the earlier IPAllocation %s is no longer needed", name),
	})
}
