// Package controllers wires the watches to the allocator. What is decided lives in internal/.
package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/allocator"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/feed"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/stream"
)

// +kubebuilder:rbac:groups=butler.butlerlabs.dev,resources=networkpools;globalnetworkpools,verbs=get;list;watch;update;patch
// +kubebuilder:rbac:groups=butler.butlerlabs.dev,resources=networkpools/status;globalnetworkpools/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=butler.butlerlabs.dev,resources=networkpools/finalizers;globalnetworkpools/finalizers,verbs=update
// +kubebuilder:rbac:groups=butler.butlerlabs.dev,resources=ipallocations,verbs=get;list;watch;update;patch;delete
// +kubebuilder:rbac:groups=butler.butlerlabs.dev,resources=ipallocations/status;ipallocations/finalizers,verbs=update;patch
// +kubebuilder:rbac:groups=ipam.cluster.x-k8s.io,resources=ipaddressclaims,verbs=get;list;watch;update;patch
// +kubebuilder:rbac:groups=ipam.cluster.x-k8s.io,resources=ipaddressclaims/status;ipaddressclaims/finalizers,verbs=update;patch
// +kubebuilder:rbac:groups=ipam.cluster.x-k8s.io,resources=ipaddresses,verbs=get;list;watch;create;update;patch;delete
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

// backstop has every pool looked at now and then, whatever the watches say.
const backstop = time.Minute

// minBackoff is how long a pool waits after the first error.
const minBackoff = 5 * time.Millisecond

// NetworkPoolReconciler reconciles NetworkPools and GlobalNetworkPools. It is the sole allocator.
type NetworkPoolReconciler struct {
	Client    client.Client
	Live      client.Reader
	Stream    *stream.Client
	Allocator *allocator.Allocator
	// Blocks are told of every IPAllocation that the watch shows.
	Blocks *Blocks

	fenced sync.Once
	feeds  []interface{ HasSynced() bool }
}

// Reconcile brings one pool forward.
func (r *NetworkPoolReconciler) Reconcile(ctx context.Context, key pools.Key) (reconcile.Result, error) {
	if !key.IsPool() {
		return r.Allocator.Reconcile(ctx, key, nil)
	}
	pool, err := key.Get(ctx, r.Client)
	switch {
	case apierrors.IsNotFound(err):
		return r.Allocator.Reconcile(ctx, key, nil)
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("reading %s: %w", key, err)
	}
	result, err := r.Allocator.Reconcile(ctx, key, pool)
	if err == nil && (result.RequeueAfter == 0 || result.RequeueAfter > backstop) {
		result.RequeueAfter = backstop
	}
	return result, err
}

// Synced reports whether everything that exists was read once.
func (r *NetworkPoolReconciler) Synced() bool {
	for _, f := range r.feeds {
		if !f.HasSynced() {
			return false
		}
	}
	return len(r.feeds) > 0
}

// Ready returns nil when the caches are filled and every pool's ledger is.
func (r *NetworkPoolReconciler) Ready(ctx context.Context) error {
	if !r.Synced() {
		return errors.New("the claims and their addresses are not read yet")
	}
	all, err := pools.List(ctx, r.Client, "")
	if err != nil {
		return fmt.Errorf("the pools are not read yet: %w", err)
	}
	for _, p := range all {
		if key := pools.KeyOf(p); !r.Allocator.Ready(key) {
			return fmt.Errorf("%s is not read yet", key)
		}
	}
	return nil
}

// afterFence lists after the pools are fenced: so the lists that fill the memory are also those of the takeovers.
func afterFence[O any](r *NetworkPoolReconciler, list feed.List[O]) feed.List[O] {
	return func(ctx context.Context, namespace string, visit func(O)) (string, error) {
		r.fence(ctx)
		return list(ctx, namespace, visit)
	}
}

// passOn tells the blocks of the Clusters, too, what a watch of IPAllocations shows.
func passOn(to func(*v1alpha1.IPAllocation), memory func(*v1alpha1.IPAllocation) (pools.Key, bool)) func(*v1alpha1.IPAllocation) (pools.Key, bool) {
	return func(o *v1alpha1.IPAllocation) (pools.Key, bool) {
		defer to(o)
		return memory(o)
	}
}

// fence takes every pool over, once, at the start. A pool for which that fails is taken over by its
// own reconcile.
func (r *NetworkPoolReconciler) fence(ctx context.Context) {
	r.fenced.Do(func() {
		all, err := pools.List(ctx, r.Live, r.Allocator.Namespace)
		if err != nil {
			log.FromContext(ctx).Error(err, "The pools could not be read; each is taken over by itself")
		}
		r.Allocator.Fence(ctx, all)
	})
}

type queue = workqueue.TypedRateLimitingInterface[pools.Key]

// SetupWithManager registers the watches: each feeds the allocator's memory, and wakes the pool
// where that gave it something to do.
func (r *NetworkPoolReconciler) SetupWithManager(mgr ctrl.Manager, options controller.TypedOptions[pools.Key]) error {
	c := mgr.GetCache()
	a := r.Allocator
	addresses := feed.New(&ipamv1.IPAddress{}, &ipamv1.IPAddressList{}, a.Namespace, afterFence(r, r.Stream.Addresses), r.Stream.WatchAddresses, r.Live,
		feed.Memory[*ipamv1.IPAddress]{Observe: a.ObserveAddress, Forget: a.ForgetAddress, Beyond: a.AddressesBeyond})
	claims := feed.New(&ipamv1.IPAddressClaim{}, &ipamv1.IPAddressClaimList{}, a.Namespace, afterFence(r, r.Stream.Claims), r.Stream.WatchClaims, r.Live,
		feed.Memory[*ipamv1.IPAddressClaim]{Observe: a.ObserveClaim, Forget: a.ForgetClaim, Beyond: a.ClaimsBeyond})
	allocations := feed.New(&v1alpha1.IPAllocation{}, &v1alpha1.IPAllocationList{}, a.Namespace, afterFence(r, r.Stream.Allocations), r.Stream.WatchAllocations, r.Live,
		feed.Memory[*v1alpha1.IPAllocation]{
			Observe: passOn(r.Blocks.Observe, a.ObserveAllocation), Forget: passOn(r.Blocks.Forget, a.ForgetAllocation), Beyond: a.AllocationsBeyond,
		})
	r.feeds = []interface{ HasSynced() bool }{addresses, claims, allocations}
	return builder.TypedControllerManagedBy[pools.Key](mgr).
		Named("networkpool").
		WithOptions(poolOptions(options)).
		WatchesRawSource(source.TypedFunc[pools.Key](func(ctx context.Context, q queue) error {
			a.Start(ctx, q.Add)
			return nil
		})).
		WatchesRawSource(source.TypedKind(c, &v1alpha1.NetworkPool{}, poolHandler[*v1alpha1.NetworkPool](a))).
		WatchesRawSource(source.TypedKind(c, &v1alpha1.GlobalNetworkPool{}, poolHandler[*v1alpha1.GlobalNetworkPool](a))).
		WatchesRawSource(addresses).
		WatchesRawSource(claims).
		WatchesRawSource(allocations).
		WatchesRawSource(source.TypedKind(c, &clusterv1.Cluster{}, clusterHandler(a))).
		WatchesRawSource(source.TypedKind(c, namespaceMetadata(), namespaceHandler(a))).
		Complete(r)
}

// poolOptions adds to the options of the controller what pools need. A panic ends the process: it says that the ledger
// is in a state that cannot be, maybe with a pool's lock held, and the next manager begins anew from the API server.
// After an outage no pool sleeps for longer than the backstop.
func poolOptions(o controller.TypedOptions[pools.Key]) controller.TypedOptions[pools.Key] {
	o.RecoverPanic = ptr.To(false)
	o.RateLimiter = workqueue.NewTypedItemExponentialFailureRateLimiter[pools.Key](minBackoff, backstop)
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
