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

// earlier is the first block that a Cluster has of a ProviderConfig of another namespace, which it named before; nil: none.
func (r *Reconciler) earlier(ctx context.Context, ref v1alpha1.ClusterReference) (*v1alpha1.IPAllocation, error) {
	blocks, err := lookup.BlocksOf(ctx, r.Live, ref, r.Namespace)
	if err != nil {
		return nil, err
	}
	for _, a := range blocks {
		if a.Name == tenancy.Name(ref) && a.Spec.Type == v1alpha1.LoadBalancerAllocation {
			return a, nil
		}
	}
	return nil, nil //nolint:nilnil // none is an answer
}

// keep leaves a Cluster the first block that it has of another ProviderConfig: it has one, whatever its label says. One that
// was asked for and is not granted is given up, and the ProviderConfig that the Cluster names now is asked next.
func (r *Reconciler) keep(ctx context.Context, cluster *clusterv1.Cluster, config *v1alpha1.ProviderConfig, a *v1alpha1.IPAllocation) (reconcile.Result, error) {
	at, name := tenancy.StandingOf(a), client.ObjectKeyFromObject(a)
	switch {
	case at.Deleting:
		return r.report(ctx, cluster, tenancy.Decision{
			Action: tenancy.Wait, Reason: v1alpha1.ReconcilingReason, Message: fmt.Sprintf("the earlier IPAllocation %s is being released", name),
		})
	case at.Phase == v1alpha1.AllocationAllocated || at.Manual:
		d := tenancy.Decision{Action: tenancy.Wait, Reason: v1alpha1.ReconcilingReason}
		if at.Phase == v1alpha1.AllocationAllocated {
			d.Action, d.Reason = tenancy.Done, v1alpha1.ReadyReason
		}
		d.Message = fmt.Sprintf("%s; the Cluster keeps IPAllocation %s, and gets one of ProviderConfig %s/%s when you delete that", at.Message, name, config.Namespace, config.Name)
		return r.report(ctx, cluster, d)
	}
	err := exact.Delete(ctx, r.Client, a)
	if client.IgnoreNotFound(err) != nil {
		return guard.Retry(err, "giving up an IPAllocation of another ProviderConfig")
	}
	return r.report(ctx, cluster, tenancy.Decision{
		Action: tenancy.Wait, Reason: v1alpha1.ReconcilingReason, Message: fmt.Sprintf("the earlier IPAllocation %s is not wanted any more", name),
	})
}
