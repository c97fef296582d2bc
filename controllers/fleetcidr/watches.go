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
		// A site whose books are in a state that cannot be must not go on: the next process begins anew.
		WithOptions(controller.Options{MaxConcurrentReconciles: workloads.Workers, RateLimiter: guard.Backoff[reconcile.Request](), RecoverPanic: ptr.To(false)}).
		WatchesRawSource(source.Func(func(_ context.Context, q queue) error {
			r.wake = func(key nodeipam.Key) { q.Add(reconcile.Request{NamespacedName: key}) }
			return nil
		})).
		WatchesRawSource(workloads.Source(r.Clusters, "fleetcidr")).
		WatchesRawSource(r.Blocks.Source()).
		Watches(&v1alpha1.ClusterCIDR{}, handler.EnqueueRequestsFromMapFunc(r.clustersOf), builder.WithPredicates(news)).
		Build(guard.OfShard(r.Shard, guard.ClusterKind, r))
	if err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("fleetcidr-ranges").
		For(&v1alpha1.ClusterCIDR{}, builder.WithPredicates(predicate.Or(news, said))).
		WithOptions(controller.Options{RateLimiter: guard.Backoff[reconcile.Request]()}).
		WatchesRawSource(source.Func(func(_ context.Context, q queue) error {
			r.ranges.start(q)
			return nil
		})).
		Complete(reconcile.Func(r.reconcileRange))
}

// news are events of ClusterCIDRs of Clusters that say more than our own numbers do.
var news = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		a, isA := e.ObjectOld.(*v1alpha1.ClusterCIDR)
		b, isB := e.ObjectNew.(*v1alpha1.ClusterCIDR)
		return isA && isB && differ(a, b)
	},
}

// said are events of ClusterCIDRs whose conditions another manager may have written, which knows less of some Clusters.
var said = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false }, DeleteFunc: func(event.DeleteEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		a, isA := e.ObjectOld.(*v1alpha1.ClusterCIDR)
		b, isB := e.ObjectNew.(*v1alpha1.ClusterCIDR)
		return isA && isB && !slices.EqualFunc(a.Status.Conditions, b.Status.Conditions, func(x, y metav1.Condition) bool {
			return x.Type == y.Type && x.Status == y.Status && x.Reason == y.Reason
		})
	},
}

// differ reports whether a ClusterCIDR was changed by more than numbers: its spec never is.
func differ(a, b *v1alpha1.ClusterCIDR) bool {
	return a.UID != b.UID || a.DeletionTimestamp.IsZero() != b.DeletionTimestamp.IsZero() || !slices.Equal(a.Finalizers, b.Finalizers) ||
		!slices.EqualFunc(a.Status.Clusters, b.Status.Clusters, func(x, y v1alpha1.ClusterUse) bool {
			return x.Namespace == y.Namespace && x.Name == y.Name && x.Mark == y.Mark
		})
}

// clustersOf are the Clusters that a ClusterCIDR is for, or that use it.
func (r *Reconciler) clustersOf(ctx context.Context, o client.Object) []reconcile.Request {
	c, is := o.(*v1alpha1.ClusterCIDR)
	if !is || nodeipam.IsLocal(c) {
		return nil
	}
	var all clusterv1.ClusterList
	if err := r.Client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "Clusters of a ClusterCIDR are looked at later", "clusterCIDR", c.Name)
		return nil
	}
	var out []reconcile.Request
	for i := range all.Items {
		cluster := &all.Items[i]
		key := client.ObjectKeyFromObject(cluster)
		if enrolled(cluster) || nodeipam.EntryOf(c, key) != nil {
			out = append(out, reconcile.Request{NamespacedName: key})
		}
	}
	return out
}
