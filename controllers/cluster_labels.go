package controllers

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// labelAll gives the allocations of a Cluster that came without a role, as those made by hand do, the labels by which
// all of them are found. A label that there is stays.
func (r *ClusterReconciler) labelAll(ctx context.Context, cluster *clusterv1.Cluster) error {
	for _, a := range r.Blocks.unlabelled(client.ObjectKeyFromObject(cluster)) {
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
		if err := client.IgnoreNotFound(r.Client.Patch(ctx, a, sinceRead(before))); err != nil {
			return err
		}
	}
	return nil
}

// labelOurs gives an allocation that this manager made before it had a watch filter the label for that. None: nothing
// is done.
func (r *ClusterReconciler) labelOurs(ctx context.Context, a *v1alpha1.IPAllocation) error {
	if a == nil || !a.DeletionTimestamp.IsZero() || a.Labels[v1alpha1.ProviderConfigLabel] == "" || a.Labels[clusterv1.WatchLabel] != "" {
		return nil
	}
	before := a.DeepCopy()
	if !filtered(a, r.WatchFilter) {
		return nil
	}
	return r.Client.Patch(ctx, a, sinceRead(before))
}

// unlabelled returns copies of the allocations of a Cluster that have no role, those that end left out.
func (b *Blocks) unlabelled(cluster types.NamespacedName) []*v1alpha1.IPAllocation {
	b.mu.Lock()
	defer b.mu.Unlock()
	of := b.byCluster[cluster]
	if of == nil {
		return nil
	}
	var out []*v1alpha1.IPAllocation
	for _, a := range of.all {
		if a.Labels[v1alpha1.AllocationRoleLabel] == "" && a.DeletionTimestamp.IsZero() {
			out = append(out, a.DeepCopy())
		}
	}
	return out
}
