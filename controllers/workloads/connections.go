// Package workloads has the connections to the workload clusters, for the controllers that look into them.
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

// Workers bounds the Clusters that are worked on together, at a start above all.
const Workers = 10

// probeFailure is for how long a workload cluster does not answer before that is looked at: twice as long as
// clustercache takes between two probes.
const probeFailure = 20 * time.Second

// Connect connects to the workload clusters of those Clusters that are wanted. That is asked again when a Cluster
// changes, and at no other time.
func Connect(ctx context.Context, mgr manager.Manager, watchFilter string, wanted func(*clusterv1.Cluster) bool) (clustercache.ClusterCache, error) {
	return clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
		SecretClient:     kubeconfig.Reader{Reader: mgr.GetAPIReader()}, // a Secret is read once for each connection, and kept nowhere
		WatchFilterValue: watchFilter,
		ClusterFilter:    wanted,
		Cache: clustercache.CacheOptions{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				// Only kinds that every cluster has: no informer of another one would ever be filled.
				&corev1.Service{}: {Field: fields.OneTermEqualSelector("spec.type", string(corev1.ServiceTypeLoadBalancer))},
			},
		},
		Client: clustercache.ClientOptions{UserAgent: "butler-ipam-manager"},
	}, controller.Options{MaxConcurrentReconciles: Workers})
}

// Source wakes a controller of Clusters when one of them is connected, is so no longer, or does not answer.
func Source(connections clustercache.ClusterCache, of string) source.Source {
	return outliving{connections.GetClusterSource(of, func(_ context.Context, o client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(o)}}
	}, clustercache.WatchForProbeFailure(probeFailure))}
}
