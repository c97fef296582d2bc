package tenant

import (
	"context"

	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/index"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lookup"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/workloads"
)

// SetupWithManager registers the watches of the management cluster. Those of a workload cluster begin when it is
// connected.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) (err error) {
	r.controller, err = ctrl.NewControllerManagedBy(mgr).
		Named("tenant").
		For(&clusterv1.Cluster{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: workloads.MaxConcurrentClusters, RateLimiter: guard.NewRateLimiter[reconcile.Request]()}).
		WatchesRawSource(source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			r.enqueueCluster = func(key client.ObjectKey) { q.Add(reconcile.Request{NamespacedName: key}) }
			return nil
		})).
		WatchesRawSource(r.Blocks.NewSource()).
		WatchesRawSource(workloads.NewClusterSource(r.Clusters, "tenant")).
		Watches(&v1alpha1.NetworkPool{}, handler.EnqueueRequestsFromMapFunc(r.clustersWaitingForPool), builder.WithPredicates(lookup.MoreRoomPredicate)).
		Watches(&v1alpha1.GlobalNetworkPool{}, handler.EnqueueRequestsFromMapFunc(r.clustersWaitingForPool), builder.WithPredicates(lookup.MoreRoomPredicate)).
		Watches(&v1alpha1.ProviderConfig{}, handler.EnqueueRequestsFromMapFunc(lookup.ClustersNamingConfig(r.Client)), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Build(guard.NewShardReconciler(r.Shard, guard.ClusterKind, r))
	return err
}

// NeedsWorkloadAccess reports whether a Cluster has blocks, or should get some: then its workload cluster is read.
func NeedsWorkloadAccess(blocks *index.BlockIndex, c *clusterv1.Cluster) bool {
	return c.Labels[v1alpha1.ProviderConfigLabel] != "" || blocks.HasProjectedBlock(client.ObjectKeyFromObject(c))
}

// clustersWaitingForPool returns requests for the Clusters that wait for addresses and whose ProviderConfig names a
// pool.
func (r *Reconciler) clustersWaitingForPool(ctx context.Context, obj client.Object) []reconcile.Request {
	return lookup.ClustersWaitingForPool(ctx, r.Client, obj, func(c *clusterv1.Cluster) bool {
		return c.Annotations[v1alpha1.TriedGrowthPoolsAnnotation] != ""
	})
}
