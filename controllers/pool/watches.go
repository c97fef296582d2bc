package pool

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lookup"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/allocator"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/feed"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

type poolQueue = workqueue.TypedRateLimitingInterface[pools.Key]

// SetupWithManager registers the watches: each feeds the allocator's memory, and enqueues the pool if that gave it
// something to do.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, options controller.TypedOptions[pools.Key]) error {
	c := mgr.GetCache()
	a := r.Allocator
	watches := builder.TypedControllerManagedBy[pools.Key](mgr).
		Named("networkpool").
		WithOptions(withPoolOptions(options)).
		WatchesRawSource(source.TypedFunc[pools.Key](func(ctx context.Context, q poolQueue) error {
			a.Start(ctx, q.Add)
			return nil
		})).
		WatchesRawSource(source.TypedKind(c, &v1alpha1.NetworkPool{}, newPoolHandler[*v1alpha1.NetworkPool](a))).
		WatchesRawSource(source.TypedKind(c, &v1alpha1.GlobalNetworkPool{}, newPoolHandler[*v1alpha1.GlobalNetworkPool](a))).
		WatchesRawSource(source.TypedKind(c, &clusterv1.Cluster{}, newClusterHandler(a))).
		WatchesRawSource(source.TypedKind(c, &v1alpha1.ProviderConfig{}, r.newQuotaHandler())).
		WatchesRawSource(source.TypedKind(c, lookup.NamespaceMetadata(), newNamespaceHandler(a)))
	for _, of := range allocator.WatchedObjects() {
		f := feed.New(of, a.Namespace, fencedSource{r.Source, r}, r.Live, r.Blocks.WithIndexing(a))
		r.feeds = append(r.feeds, f)
		watches.WatchesRawSource(f)
	}
	return watches.Complete(r)
}

// withPoolOptions adds to the options of the controller what pools need. A panic ends the process: it means that the
// ledger is in an impossible state, maybe with a pool's lock held, and the next manager starts again from the API
// server. After an outage no pool waits for longer than resyncPeriod.
func withPoolOptions(o controller.TypedOptions[pools.Key]) controller.TypedOptions[pools.Key] {
	o.RecoverPanic = ptr.To(false)
	o.RateLimiter = guard.NewRateLimiter[pools.Key]()
	return o
}

// newPoolHandler enqueues a pool when another writer than us has changed it.
func newPoolHandler[P v1alpha1.Pool](a *allocator.Allocator) handler.TypedEventHandler[P, pools.Key] {
	observe := func(p v1alpha1.Pool, q poolQueue) {
		if key, changed := a.ObservePool(p); changed {
			q.Add(key)
		}
	}
	return handler.TypedFuncs[P, pools.Key]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[P], q poolQueue) { observe(e.Object, q) },
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[P], q poolQueue) { observe(e.ObjectNew, q) },
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[P], q poolQueue) { q.Add(pools.KeyForPool(e.Object)) },
	}
}

// newClusterHandler enqueues the pools in which a claim waits for a Cluster to appear or to be unpaused, or for room in
// its quota, as the Cluster may name another ProviderConfig; and those whose blocks must show that the Cluster was
// seen, or is paused. If no watch has shown the deletion of a Cluster, its last state is unknown.
func newClusterHandler(a *allocator.Allocator) handler.TypedEventHandler[*clusterv1.Cluster, pools.Key] {
	wake := func(c *clusterv1.Cluster, q poolQueue) {
		for _, key := range a.PoolsWaitingForCluster(client.ObjectKeyFromObject(c)) {
			q.Add(key)
		}
		a.HandleQuotaChange(client.ObjectKeyFromObject(c))
	}
	observe := func(c *clusterv1.Cluster, ended bool, q poolQueue) {
		for _, key := range a.ObserveCluster(c, ended) {
			q.Add(key)
		}
		wake(c, q)
	}
	return handler.TypedFuncs[*clusterv1.Cluster, pools.Key]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*clusterv1.Cluster], q poolQueue) {
			observe(e.Object, false, q)
		},
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*clusterv1.Cluster], q poolQueue) {
			observe(e.ObjectNew, false, q)
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*clusterv1.Cluster], q poolQueue) {
			if e.DeleteStateUnknown {
				wake(e.Object, q)
				return
			}
			observe(e.Object, true, q)
		},
	}
}

// newQuotaHandler enqueues the pools in which claims wait for room in the quota of a Cluster, when its ProviderConfig
// has changed.
func (r *Reconciler) newQuotaHandler() handler.TypedEventHandler[*v1alpha1.ProviderConfig, pools.Key] {
	naming := lookup.ClustersNamingConfig(r.Client)
	changed := func(ctx context.Context, config *v1alpha1.ProviderConfig) {
		for _, cluster := range naming(ctx, config) {
			r.Allocator.HandleQuotaChange(cluster.NamespacedName)
		}
	}
	return handler.TypedFuncs[*v1alpha1.ProviderConfig, pools.Key]{
		CreateFunc: func(ctx context.Context, e event.TypedCreateEvent[*v1alpha1.ProviderConfig], _ poolQueue) {
			changed(ctx, e.Object)
		},
		UpdateFunc: func(ctx context.Context, e event.TypedUpdateEvent[*v1alpha1.ProviderConfig], _ poolQueue) {
			if e.ObjectOld.Generation != e.ObjectNew.Generation { // its status changes with every address
				changed(ctx, e.ObjectNew)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.TypedDeleteEvent[*v1alpha1.ProviderConfig], _ poolQueue) {
			changed(ctx, e.Object)
		},
	}
}

// newNamespaceHandler enqueues the global pools when labels of a namespace may have changed.
func newNamespaceHandler(a *allocator.Allocator) handler.TypedEventHandler[*metav1.PartialObjectMetadata, pools.Key] {
	wake := func(q poolQueue) {
		for _, key := range a.GlobalPools() {
			q.Add(key)
		}
	}
	return handler.TypedFuncs[*metav1.PartialObjectMetadata, pools.Key]{
		CreateFunc: func(_ context.Context, _ event.TypedCreateEvent[*metav1.PartialObjectMetadata], q poolQueue) { wake(q) },
		UpdateFunc: func(_ context.Context, _ event.TypedUpdateEvent[*metav1.PartialObjectMetadata], q poolQueue) { wake(q) },
	}
}
