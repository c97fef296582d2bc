package fleetcidr

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/workloads"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
)

// SetupWithManager registers the watches of the management cluster. Those of a workload cluster begin when it is
// connected.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) (err error) {
	r.ctx = ctx
	r.controller, err = ctrl.NewControllerManagedBy(mgr).
		Named("fleetcidr").
		For(&clusterv1.Cluster{}).
		// After a panic the allocations of an allocator may be inconsistent and must not be used: the next process
		// starts from scratch.
		WithOptions(controller.Options{MaxConcurrentReconciles: workloads.MaxConcurrentClusters, RateLimiter: guard.NewRateLimiter[reconcile.Request](), RecoverPanic: ptr.To(false)}).
		WatchesRawSource(source.Func(func(_ context.Context, q queue) error {
			r.enqueueCluster = func(key nodeipam.ClusterKey) { q.Add(reconcile.Request{NamespacedName: key}) }
			return nil
		})).
		WatchesRawSource(workloads.NewClusterSource(r.Clusters, "fleetcidr")).
		WatchesRawSource(r.Blocks.NewSource()).
		Watches(&v1alpha1.ClusterCIDR{}, handler.EnqueueRequestsFromMapFunc(r.clustersForClusterCIDR), builder.WithPredicates(clusterCIDRChanged)).
		Build(guard.NewShardReconciler(r.Shard, guard.ClusterKind, r))
	if err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("fleetcidr-ranges").
		For(&v1alpha1.ClusterCIDR{}, builder.WithPredicates(predicate.Or(clusterCIDRChanged, conditionsChanged))).
		WithOptions(controller.Options{RateLimiter: guard.NewRateLimiter[reconcile.Request]()}).
		WatchesRawSource(source.Func(func(_ context.Context, q queue) error {
			r.rangeUsages.setQueue(q)
			return nil
		})).
		Complete(reconcile.Func(r.reconcileRange))
}

// clusterCIDRChanged selects the events of ClusterCIDRs that show more than a change of our own numbers.
var clusterCIDRChanged = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		a, isA := e.ObjectOld.(*v1alpha1.ClusterCIDR)
		b, isB := e.ObjectNew.(*v1alpha1.ClusterCIDR)
		return isA && isB && hasRelevantChange(a, b)
	},
}

// conditionsChanged selects the events of ClusterCIDRs whose conditions another manager may have written, which knows
// less of some Clusters.
var conditionsChanged = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false }, DeleteFunc: func(event.DeleteEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		a, isA := e.ObjectOld.(*v1alpha1.ClusterCIDR)
		b, isB := e.ObjectNew.(*v1alpha1.ClusterCIDR)
		return isA && isB && !slices.EqualFunc(a.Status.Conditions, b.Status.Conditions, func(x, y metav1.Condition) bool {
			return x.Type == y.Type && x.Status == y.Status && x.Reason == y.Reason
		})
	},
}

// hasRelevantChange reports whether more than numbers was changed in a ClusterCIDR; its spec never changes.
func hasRelevantChange(a, b *v1alpha1.ClusterCIDR) bool {
	return a.UID != b.UID || a.DeletionTimestamp.IsZero() != b.DeletionTimestamp.IsZero() || !slices.Equal(a.Finalizers, b.Finalizers) ||
		!slices.EqualFunc(a.Status.Clusters, b.Status.Clusters, func(x, y v1alpha1.ClusterUse) bool {
			return x.Namespace == y.Namespace && x.Name == y.Name && x.Mark == y.Mark
		})
}

// clustersForClusterCIDR returns the Clusters that a ClusterCIDR may be for, or that use it.
func (r *Reconciler) clustersForClusterCIDR(ctx context.Context, o client.Object) []reconcile.Request {
	c, ok := o.(*v1alpha1.ClusterCIDR)
	if !ok || nodeipam.IsLocal(c) {
		return nil
	}
	var all clusterv1.ClusterList
	if err := r.Client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "Failed to list the Clusters of a ClusterCIDR; reconciling them later", "clusterCIDR", c.Name)
		return nil
	}
	var out []reconcile.Request
	for i := range all.Items {
		cluster := &all.Items[i]
		key := client.ObjectKeyFromObject(cluster)
		if isEnrolled(cluster) || nodeipam.EntryForCluster(c, key) != nil {
			out = append(out, reconcile.Request{NamespacedName: key})
		}
	}
	return out
}
