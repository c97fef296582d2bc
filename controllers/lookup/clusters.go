package lookup

import (
	"context"
	"fmt"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// ClustersNamingConfig returns a function that returns requests for the Clusters that name a ProviderConfig.
func ClustersNamingConfig(from client.Reader) func(context.Context, client.Object) []reconcile.Request {
	return func(ctx context.Context, config client.Object) []reconcile.Request {
		return listClustersNaming(ctx, from, config.GetName(), func(*clusterv1.Cluster) bool { return true })
	}
}

// ClustersWaitingForPool returns requests for the Clusters for which waits returns true and whose ProviderConfig names
// a pool.
func ClustersWaitingForPool(ctx context.Context, from client.Reader, obj client.Object, waits func(*clusterv1.Cluster) bool) []reconcile.Request {
	pool, ok := obj.(v1alpha1.Pool)
	if !ok {
		return nil
	}
	configs, err := listConfigsNaming(ctx, from, pool)
	if err != nil {
		log.FromContext(ctx).Error(err, "Failed to list the ProviderConfigs of a pool; Clusters waiting for it are retried by the periodic resync", "pool", pool.GetName())
	}
	var out []reconcile.Request
	for i := range configs {
		out = append(out, listClustersNaming(ctx, from, configs[i].Name, waits)...)
	}
	return out
}

// listClustersNaming returns requests for the Clusters that name a ProviderConfig and for which wanted returns true.
func listClustersNaming(ctx context.Context, from client.Reader, config string, wanted func(*clusterv1.Cluster) bool) []reconcile.Request {
	list := &clusterv1.ClusterList{}
	err := from.List(ctx, list, client.MatchingLabels{v1alpha1.ProviderConfigLabel: config}, client.UnsafeDisableDeepCopy)
	if err != nil {
		log.FromContext(ctx).Error(err, "Failed to list the Clusters of a ProviderConfig; they are retried by the periodic resync", "providerConfig", config)
	}
	var out []reconcile.Request
	for i := range list.Items {
		if c := &list.Items[i]; wanted(c) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(c)})
		}
	}
	return out
}

// ListBlocks reads the IPAllocations of a Cluster in a namespace, or in all namespaces if it is empty.
func ListBlocks(ctx context.Context, from client.Reader, cluster v1alpha1.ClusterReference, namespace string) ([]*v1alpha1.IPAllocation, error) {
	list := &v1alpha1.IPAllocationList{}
	if err := from.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels(tenancy.ClusterLabels(cluster))); err != nil {
		return nil, fmt.Errorf("listing the IPAllocations of Cluster %s: %w", cluster.NamespacedName(), err)
	}
	var out []*v1alpha1.IPAllocation
	for i := range list.Items {
		if a := &list.Items[i]; tenancy.OwnsAllocation(cluster, a) {
			out = append(out, a)
		}
	}
	return out, nil
}
