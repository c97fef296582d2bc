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

type queue = workqueue.TypedRateLimitingInterface[pools.Key]

// SetupWithManager registers the watches: each feeds the allocator's memory, and wakes the pool
// where that gave it something to do.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, options controller.TypedOptions[pools.Key]) error {
	c := mgr.GetCache()
	a := r.Allocator
	watches := builder.TypedControllerManagedBy[pools.Key](mgr).
		Named("networkpool").
		WithOptions(poolOptions(options)).
		WatchesRawSource(source.TypedFunc[pools.Key](func(ctx context.Context, q queue) error {
			a.Start(ctx, q.Add)
			return nil
		})).
		WatchesRawSource(source.TypedKind(c, &v1alpha1.NetworkPool{}, poolHandler[*v1alpha1.NetworkPool](a))).
		WatchesRawSource(source.TypedKind(c, &v1alpha1.GlobalNetworkPool{}, poolHandler[*v1alpha1.GlobalNetworkPool](a))).
		WatchesRawSource(source.TypedKind(c, &clusterv1.Cluster{}, clusterHandler(a))).
		WatchesRawSource(source.TypedKind(c, &v1alpha1.ProviderConfig{}, r.quotaHandler())).
		WatchesRawSource(source.TypedKind(c, lookup.NamespaceMetadata(), namespaceHandler(a)))
	for _, of := range allocator.Resources() {
		f := feed.New(of, a.Namespace, afterFence{r.Source, r}, r.Live, r.Blocks.Beside(a))
		r.feeds = append(r.feeds, f)
		watches.WatchesRawSource(f)
	}
	return watches.Complete(r)
}

// poolOptions adds to the options of the controller what pools need. A panic ends the process: it says that the ledger
// is in a state that cannot be, maybe with a pool's lock held, and the next manager begins anew from the API server.
// After an outage no pool sleeps for longer than the backstop.
func poolOptions(o controller.TypedOptions[pools.Key]) controller.TypedOptions[pools.Key] {
	o.RecoverPanic = ptr.To(false)
	o.RateLimiter = guard.Backoff[pools.Key]()
	return o
}

// poolHandler wakes a pool when it was changed by another hand than ours.
func poolHandler[P v1alpha1.Pool](a *allocator.Allocator) handler.TypedEventHandler[P, pools.Key] {
	observe := func(p v1alpha1.Pool, q queue) {
		if key, news := a.ObservePool(p); news {
			q.Add(key)
		}
	}
	return handler.TypedFuncs[P, pools.Key]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[P], q queue) { observe(e.Object, q) },
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[P], q queue) { observe(e.ObjectNew, q) },
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[P], q queue) { q.Add(pools.KeyOf(e.Object)) },
	}
}

// clusterHandler wakes the pools in which a claim waits for a Cluster to appear or to be unpaused, or for room in its
// quota: it may name another ProviderConfig; and those whose blocks are to say that it was seen, or is paused. Of an end that no
// watch has shown the last state is not known.
func clusterHandler(a *allocator.Allocator) handler.TypedEventHandler[*clusterv1.Cluster, pools.Key] {
	wake := func(c *clusterv1.Cluster, q queue) {
		for _, key := range a.PoolsWaitingFor(client.ObjectKeyFromObject(c)) {
			q.Add(key)
		}
		a.QuotaChanged(client.ObjectKeyFromObject(c))
	}
	observe := func(c *clusterv1.Cluster, ended bool, q queue) {
		for _, key := range a.ObserveCluster(c, ended) {
			q.Add(key)
		}
		wake(c, q)
	}
	return handler.TypedFuncs[*clusterv1.Cluster, pools.Key]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*clusterv1.Cluster], q queue) {
			observe(e.Object, false, q)
		},
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*clusterv1.Cluster], q queue) {
			observe(e.ObjectNew, false, q)
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*clusterv1.Cluster], q queue) {
			if e.DeleteStateUnknown {
				wake(e.Object, q)
				return
			}
			observe(e.Object, true, q)
		},
	}
}

// quotaHandler wakes the pools in which claims wait for room in the quota of a Cluster, when its ProviderConfig has changed.
func (r *Reconciler) quotaHandler() handler.TypedEventHandler[*v1alpha1.ProviderConfig, pools.Key] {
	naming := lookup.ClustersNaming(r.Client)
	changed := func(ctx context.Context, config *v1alpha1.ProviderConfig) {
		for _, cluster := range naming(ctx, config) {
			r.Allocator.QuotaChanged(cluster.NamespacedName)
		}
	}
	return handler.TypedFuncs[*v1alpha1.ProviderConfig, pools.Key]{
		CreateFunc: func(ctx context.Context, e event.TypedCreateEvent[*v1alpha1.ProviderConfig], _ queue) {
			changed(ctx, e.Object)
		},
		UpdateFunc: func(ctx context.Context, e event.TypedUpdateEvent[*v1alpha1.ProviderConfig], _ queue) {
			if e.ObjectOld.Generation != e.ObjectNew.Generation { // its status changes with every address
				changed(ctx, e.ObjectNew)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.TypedDeleteEvent[*v1alpha1.ProviderConfig], _ queue) {
			changed(ctx, e.Object)
		},
	}
}

// namespaceHandler wakes the global pools when labels of a namespace may have changed.
func namespaceHandler(a *allocator.Allocator) handler.TypedEventHandler[*metav1.PartialObjectMetadata, pools.Key] {
	wake := func(q queue) {
		for _, key := range a.GlobalPools() {
			q.Add(key)
		}
	}
	return handler.TypedFuncs[*metav1.PartialObjectMetadata, pools.Key]{
		CreateFunc: func(_ context.Context, _ event.TypedCreateEvent[*metav1.PartialObjectMetadata], q queue) { wake(q) },
		UpdateFunc: func(_ context.Context, _ event.TypedUpdateEvent[*metav1.PartialObjectMetadata], q queue) { wake(q) },
	}
}
