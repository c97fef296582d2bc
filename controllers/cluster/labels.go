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

// labelAll gives the allocations of a Cluster that came without a role, as those made by hand do, or without Cluster API's
// label, as earlier versions made them, the labels by which all of them are found. A label that there is stays.
func (r *Reconciler) labelAll(ctx context.Context, cluster *clusterv1.Cluster) error {
	for _, a := range r.Blocks.Unlabelled(client.ObjectKeyFromObject(cluster)) {
		before := a.DeepCopy()
		labels := tenancy.Labels(tenancy.Block{
			Cluster: a.Spec.TenantClusterRef, Pool: a.Spec.PoolRef, Type: a.Spec.Type, Role: tenancy.Role(a),
		})
		delete(labels, v1alpha1.ProviderConfigLabel) // it was made for none
		for k, v := range labels {
			if _, has := a.Labels[k]; !has {
				metav1.SetMetaDataLabel(&a.ObjectMeta, k, v)
			}
		}
		if err := client.IgnoreNotFound(r.Client.Patch(ctx, a, guard.SinceRead(before))); err != nil {
			return err
		}
	}
	return nil
}

// labelOurs gives an allocation that this manager made before it had a watch filter the label for that. None: nothing
// is done.
func (r *Reconciler) labelOurs(ctx context.Context, a *v1alpha1.IPAllocation) error {
	if a == nil || !a.DeletionTimestamp.IsZero() || a.Labels[v1alpha1.ProviderConfigLabel] == "" || a.Labels[clusterv1.WatchLabel] != "" {
		return nil
	}
	before := a.DeepCopy()
	if !guard.Label(a, r.WatchFilter) {
		return nil
	}
	return r.Client.Patch(ctx, a, guard.SinceRead(before))
}
