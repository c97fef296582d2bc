// Package slim keeps the manager's caches small: it drops what is not read before it is stored.
package slim

import (
	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// CacheByObject returns cache settings for kinds with many objects.
func CacheByObject() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&clusterv1.Cluster{}: {Transform: TrimCluster},
	}
}

// TrimCluster keeps what pauses a Cluster, and what its blocks and the pod CIDRs of its Nodes depend on.
func TrimCluster(obj any) (any, error) {
	c, ok := obj.(*clusterv1.Cluster)
	if !ok {
		return obj, nil
	}
	out := &clusterv1.Cluster{Spec: clusterv1.ClusterSpec{Paused: c.Spec.Paused}}
	out.TypeMeta = c.TypeMeta
	out.Name, out.Namespace, out.UID, out.ResourceVersion = c.Name, c.Namespace, c.UID, c.ResourceVersion
	out.Finalizers, out.DeletionTimestamp = c.Finalizers, c.DeletionTimestamp
	out.Labels = selectKeys(c.Labels, v1alpha1.ProviderConfigLabel, clusterv1.WatchLabel)
	out.Annotations = selectKeys(c.Annotations, clusterv1.PausedAnnotation, v1alpha1.DeleteForMoveAnnotation,
		v1alpha1.LBPoolSizeAnnotation, v1alpha1.TriedPoolsAnnotation, v1alpha1.TriedGrowthPoolsAnnotation)
	// cluster-api does not connect to a workload cluster without it.
	out.Status.Initialization.InfrastructureProvisioned = c.Status.Initialization.InfrastructureProvisioned
	for _, kind := range []string{v1alpha1.NetworkReadyCondition, v1alpha1.PodCIDRsReadyCondition} {
		if condition := meta.FindStatusCondition(c.Status.Conditions, kind); condition != nil {
			out.Status.Conditions = append(out.Status.Conditions, *condition)
		}
	}
	if _, hasLabel := c.Labels[v1alpha1.NodeCIDRsLabel]; hasLabel {
		out.Labels = c.Labels // a ClusterCIDR may select it by any of them
		out.Spec.ClusterNetwork.Services = c.Spec.ClusterNetwork.Services
	}
	return out, nil
}

// selectKeys returns the entries of a map with the given keys, nil if there are none.
func selectKeys(all map[string]string, keys ...string) map[string]string {
	var out map[string]string
	for _, k := range keys {
		if v, ok := all[k]; ok {
			if out == nil {
				out = map[string]string{}
			}
			out[k] = v
		}
	}
	return out
}
