package controllers

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// SetupWithManager registers the watches.
func (r *ClusterReconciler) SetupWithManager(mgr ctrl.Manager) error {
	pools := handler.EnqueueRequestsFromMapFunc(r.waitingFor)
	return ctrl.NewControllerManagedBy(mgr).
		Named("cluster").
		For(&clusterv1.Cluster{}).
		WatchesRawSource(r.Blocks.source()).
		Watches(&v1alpha1.NetworkPool{}, pools, builder.WithPredicates(moreRoom)).
		Watches(&v1alpha1.GlobalNetworkPool{}, pools, builder.WithPredicates(moreRoom)).
		Watches(&v1alpha1.ProviderConfig{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return clustersNaming(ctx, r.Client, o.GetName(), func(*clusterv1.Cluster) bool { return true })
		}), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(r)
}

// moreRoom passes what may have room that was not there before: Clusters wait for that.
var moreRoom = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		was, ok := e.ObjectOld.(v1alpha1.Pool)
		is, also := e.ObjectNew.(v1alpha1.Pool)
		return ok && also && (is.PoolStatus().LargestFreeBlock > was.PoolStatus().LargestFreeBlock ||
			!equality.Semantic.DeepEqual(readyOf(was), readyOf(is)))
	},
}

// readyOf is whether a pool grants anything, and why not.
func readyOf(p v1alpha1.Pool) [2]string {
	c := meta.FindStatusCondition(p.GetConditions(), v1alpha1.ReadyCondition)
	if c == nil {
		return [2]string{}
	}
	return [2]string{string(c.Status), c.Reason}
}

// waitingFor returns the Clusters that wait for a block and whose ProviderConfig names a pool.
func (r *ClusterReconciler) waitingFor(ctx context.Context, obj client.Object) []reconcile.Request {
	return clustersWaitingFor(ctx, r.Client, obj, func(c *clusterv1.Cluster) bool {
		is := conditionOf(c)
		return is == nil || is.Status != metav1.ConditionTrue
	})
}

// clustersWaitingFor returns those Clusters that wait whose ProviderConfig names a pool.
func clustersWaitingFor(ctx context.Context, from client.Reader, obj client.Object, waits func(*clusterv1.Cluster) bool) []reconcile.Request {
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
