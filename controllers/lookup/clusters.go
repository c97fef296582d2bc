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

// ClustersNaming returns the Clusters that name a ProviderConfig.
func ClustersNaming(from client.Reader) func(context.Context, client.Object) []reconcile.Request {
	return func(ctx context.Context, config client.Object) []reconcile.Request {
		return clustersNaming(ctx, from, config.GetName(), func(*clusterv1.Cluster) bool { return true })
	}
}

// ClustersWaiting returns those Clusters that wait and whose ProviderConfig names a pool.
func ClustersWaiting(ctx context.Context, from client.Reader, obj client.Object, waits func(*clusterv1.Cluster) bool) []reconcile.Request {
	pool, ok := obj.(v1alpha1.Pool)
	if !ok {
		return nil
	}
	configs, err := naming(ctx, from, pool)
	if err != nil {
		log.FromContext(ctx).Error(err, "Clusters that wait for a pool are looked at later", "pool", pool.GetName())
	}
	var out []reconcile.Request
	for i := range configs {
		out = append(out, clustersNaming(ctx, from, configs[i].Name, waits)...)
	}
	return out
}

// clustersNaming returns the Clusters that name a ProviderConfig and are wanted.
func clustersNaming(ctx context.Context, from client.Reader, config string, wanted func(*clusterv1.Cluster) bool) []reconcile.Request {
	list := &clusterv1.ClusterList{}
	err := from.List(ctx, list, client.MatchingLabels{v1alpha1.ProviderConfigLabel: config}, client.UnsafeDisableDeepCopy)
	if err != nil {
		log.FromContext(ctx).Error(err, "Clusters of a ProviderConfig are looked at later", "providerConfig", config)
	}
	var out []reconcile.Request
	for i := range list.Items {
		if c := &list.Items[i]; wanted(c) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(c)})
		}
	}
	return out
}

// BlocksOf reads the IPAllocations of a Cluster in a namespace; none: in all.
func BlocksOf(ctx context.Context, from client.Reader, cluster v1alpha1.ClusterReference, namespace string) ([]*v1alpha1.IPAllocation, error) {
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
