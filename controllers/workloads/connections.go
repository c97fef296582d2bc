// Package workloads has the connections to the workload clusters, for the controllers that read them.
package workloads

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kubeconfig"
)

// +kubebuilder:rbac:groups="",resources=secrets,verbs=get

// MaxConcurrentClusters bounds the Clusters that are reconciled at once, at a start above all.
const MaxConcurrentClusters = 10

// probeFailureTimeout is how long a workload cluster may not answer before its Cluster is reconciled: twice as long as
// clustercache takes between two probes.
const probeFailureTimeout = 20 * time.Second

// SetupClusterCache connects to the workload clusters of the Clusters for which wanted returns true. wanted is called
// again when a Cluster changes, and at no other time.
func SetupClusterCache(ctx context.Context, mgr manager.Manager, watchFilter string, wanted func(*clusterv1.Cluster) bool) (clustercache.ClusterCache, error) {
	return clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
		SecretClient:     kubeconfig.Reader{Reader: mgr.GetAPIReader()}, // a Secret is read once for each connection, and not kept
		WatchFilterValue: watchFilter,
		ClusterFilter:    wanted,
		Cache: clustercache.CacheOptions{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				// Only kinds that every cluster has: an informer of another kind would never be filled.
				&corev1.Service{}: {Field: fields.OneTermEqualSelector("spec.type", string(corev1.ServiceTypeLoadBalancer))},
			},
		},
		Client: clustercache.ClientOptions{UserAgent: "butler-ipam-manager"},
	}, controller.Options{MaxConcurrentReconciles: MaxConcurrentClusters})
}

// NewClusterSource enqueues a Cluster when it is connected, is not connected any more, or does not answer.
func NewClusterSource(connections clustercache.ClusterCache, of string) source.Source {
	return detachedSource{connections.GetClusterSource(of, func(_ context.Context, o client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(o)}}
	}, clustercache.WatchForProbeFailure(probeFailureTimeout))}
}
