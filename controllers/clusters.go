package controllers

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// What the controllers of Clusters share.

// leftAlone reports whether a Cluster is moved away, paused, or not this manager's.
func leftAlone(cluster *clusterv1.Cluster, watchFilter string) bool {
	_, moved := cluster.Annotations[v1alpha1.DeleteForMoveAnnotation]
	return moved || annotations.IsPaused(cluster, cluster) || (watchFilter != "" && cluster.Labels[clusterv1.WatchLabel] != watchFilter)
}

// sinceRead patches an object with what was changed since it was read, if nobody else has written it.
func sinceRead(before client.Object) client.Patch {
	return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
}

// setTried sets an annotation of a Cluster to the pools that had nothing for it. It reports whether that is new.
func setTried(cluster *clusterv1.Cluster, annotation string, tried []tenancy.Attempt) bool {
	text := tenancy.FormatTried(tried)
	if cluster.Annotations[annotation] == text {
		return false
	}
	if text == "" {
		delete(cluster.Annotations, annotation)
	} else {
		metav1.SetMetaDataAnnotation(&cluster.ObjectMeta, annotation, text)
	}
	return true
}

// blockFor is the IPAllocation that asks a pool for load-balancer addresses of a Cluster.
func blockFor(cluster v1alpha1.ClusterReference, config *v1alpha1.ProviderConfig, name, role string, pool v1alpha1.PoolReference, count int32) *v1alpha1.IPAllocation {
	return &v1alpha1.IPAllocation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: config.Namespace, Name: name,
			Labels: tenancy.Labels(tenancy.Block{
				Cluster: cluster, Pool: pool, Type: v1alpha1.LoadBalancerAllocation, Role: role, ProviderConfig: config.Name,
			}),
		},
		Spec: v1alpha1.IPAllocationSpec{PoolRef: pool, TenantClusterRef: cluster, Type: v1alpha1.LoadBalancerAllocation, Count: &count},
	}
}

// filtered gives a block the label without which a manager with --watch-filter does not serve it. It reports whether
// that was missing.
func filtered(a *v1alpha1.IPAllocation, watchFilter string) bool {
	if watchFilter == "" || a.Labels[clusterv1.WatchLabel] == watchFilter {
		return false
	}
	metav1.SetMetaDataLabel(&a.ObjectMeta, clusterv1.WatchLabel, watchFilter)
	return true
}

// blocksOf reads the IPAllocations of a Cluster in a namespace; none: in all.
func blocksOf(ctx context.Context, from client.Reader, cluster v1alpha1.ClusterReference, namespace string) ([]*v1alpha1.IPAllocation, error) {
	list := &v1alpha1.IPAllocationList{}
	if err := from.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels(tenancy.ClusterLabels(cluster))); err != nil {
		return nil, fmt.Errorf("listing the IPAllocations of Cluster %s: %w", cluster.NamespacedName(), err)
	}
	var out []*v1alpha1.IPAllocation
	for i := range list.Items {
		if a := &list.Items[i]; tenancy.Owns(cluster, a) {
			out = append(out, a)
		}
	}
	return out, nil
}
