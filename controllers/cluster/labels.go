package cluster

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// labelAllocations adds the labels by which all allocations of a Cluster are found to those without a role, which users
// create, and to those without Cluster API's label, which earlier versions created. Existing labels stay.
func (r *Reconciler) labelAllocations(ctx context.Context, cluster *clusterv1.Cluster) error {
	for _, a := range r.Blocks.UnlabelledBlocks(client.ObjectKeyFromObject(cluster)) {
		before := a.DeepCopy()
		labels := tenancy.LabelsForBlock(tenancy.BlockIdentity{
			Cluster: a.Spec.TenantClusterRef, Pool: a.Spec.PoolRef, Type: a.Spec.Type, Role: tenancy.RoleForAllocation(a),
		})
		delete(labels, v1alpha1.ProviderConfigLabel) // it was created for none
		for k, v := range labels {
			if _, ok := a.Labels[k]; !ok {
				metav1.SetMetaDataLabel(&a.ObjectMeta, k, v)
			}
		}
		if err := client.IgnoreNotFound(r.Client.Patch(ctx, a, guard.NewOptimisticPatch(before))); err != nil {
			return err
		}
	}
	return nil
}

// addWatchLabel adds the watch label to an allocation that this manager created before it had a watch filter. Without
// an allocation or a filter it does nothing.
func (r *Reconciler) addWatchLabel(ctx context.Context, a *v1alpha1.IPAllocation) error {
	if a == nil || !a.DeletionTimestamp.IsZero() || a.Labels[v1alpha1.ProviderConfigLabel] == "" || a.Labels[clusterv1.WatchLabel] != "" {
		return nil
	}
	before := a.DeepCopy()
	if !guard.AddWatchLabel(a, r.WatchFilter) {
		return nil
	}
	return r.Client.Patch(ctx, a, guard.NewOptimisticPatch(before))
}
