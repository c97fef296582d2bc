package tenant

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lookup"
)

// workers bounds the Clusters that are worked on together, at a start above all.
const workers = 10

// probeFailure is for how long a workload cluster does not answer before that is looked at: twice as long as
// clustercache takes between two probes.
const probeFailure = 20 * time.Second

// SetupWithManager sets up the connections to the workload clusters, and registers the watches of the management
// cluster. Those of a workload cluster begin when it is connected.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	connections, err := r.connections(ctx, mgr)
	if err != nil {
		return err
	}
	r.Clusters = connections
	r.controller, err = ctrl.NewControllerManagedBy(mgr).
		Named("tenant").
		For(&clusterv1.Cluster{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		WatchesRawSource(r.Blocks.Source()).
		WatchesRawSource(outliving{r.Clusters.GetClusterSource("tenant", func(_ context.Context, o client.Object) []reconcile.Request {
			return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(o)}}
		}, clustercache.WatchForProbeFailure(probeFailure))}).
		Watches(&v1alpha1.NetworkPool{}, handler.EnqueueRequestsFromMapFunc(r.waitingFor), builder.WithPredicates(lookup.MoreRoom)).
		Watches(&v1alpha1.GlobalNetworkPool{}, handler.EnqueueRequestsFromMapFunc(r.waitingFor), builder.WithPredicates(lookup.MoreRoom)).
		Watches(&v1alpha1.ProviderConfig{}, handler.EnqueueRequestsFromMapFunc(lookup.ClustersNaming(r.Client)), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Build(guard.OfShard(r.Shard, guard.ClusterKind, r))
	return err
}

// connections are those to the workload clusters that have blocks, or are to have some.
func (r *Reconciler) connections(ctx context.Context, mgr ctrl.Manager) (clustercache.ClusterCache, error) {
	return clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
		SecretClient:     kubeconfigs{mgr.GetAPIReader()}, // a Secret is read once for each connection, and kept nowhere
		WatchFilterValue: r.WatchFilter,
		ClusterFilter: func(c *clusterv1.Cluster) bool {
			return r.Shard.Has(guard.ClusterKind, c.Namespace, c.Name) &&
				(c.Labels[v1alpha1.ProviderConfigLabel] != "" || r.Blocks.Projects(client.ObjectKeyFromObject(c)))
		},
		Cache: clustercache.CacheOptions{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				// Only kinds that every cluster has: see metalLBs.
				&corev1.Service{}: {Field: fields.OneTermEqualSelector("spec.type", string(corev1.ServiceTypeLoadBalancer))},
			},
		},
		Client: clustercache.ClientOptions{UserAgent: "butler-ipam-manager"},
	}, controller.Options{MaxConcurrentReconciles: workers})
}

// waitingFor returns the Clusters that lack addresses and whose ProviderConfig names a pool.
func (r *Reconciler) waitingFor(ctx context.Context, obj client.Object) []reconcile.Request {
	return lookup.ClustersWaiting(ctx, r.Client, obj, func(c *clusterv1.Cluster) bool {
		return c.Annotations[v1alpha1.TriedGrowthPoolsAnnotation] != ""
	})
}
