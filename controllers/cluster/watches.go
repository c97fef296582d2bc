package cluster

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lookup"
)

// SetupWithManager registers the watches.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	pools := handler.EnqueueRequestsFromMapFunc(r.ClustersWaitingForPool)
	return ctrl.NewControllerManagedBy(mgr).
		Named("cluster").
		For(&clusterv1.Cluster{}).
		WithOptions(controller.Options{RateLimiter: guard.NewRateLimiter[reconcile.Request]()}).
		WatchesRawSource(r.Blocks.NewSource()).
		Watches(&v1alpha1.NetworkPool{}, pools, builder.WithPredicates(lookup.MoreRoomPredicate)).
		Watches(&v1alpha1.GlobalNetworkPool{}, pools, builder.WithPredicates(lookup.MoreRoomPredicate)).
		Watches(&v1alpha1.ProviderConfig{}, handler.EnqueueRequestsFromMapFunc(lookup.ClustersNamingConfig(r.Client)), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(r)
}

// ClustersWaitingForPool returns requests for the Clusters that wait for a block and whose ProviderConfig names a pool.
func (r *Reconciler) ClustersWaitingForPool(ctx context.Context, obj client.Object) []reconcile.Request {
	return lookup.ClustersWaitingForPool(ctx, r.Client, obj, func(c *clusterv1.Cluster) bool {
		condition := currentCondition(c)
		return condition == nil || condition.Status != metav1.ConditionTrue
	})
}
