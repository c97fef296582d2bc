// Package pool connects the watches to the allocator, and makes it reconcile one pool at a time. internal/allocator
// decides.
package pool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/index"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/allocator"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/feed"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// +kubebuilder:rbac:groups=butler.butlerlabs.dev,resources=networkpools;globalnetworkpools,verbs=get;list;watch;update;patch
// +kubebuilder:rbac:groups=butler.butlerlabs.dev,resources=networkpools/status;globalnetworkpools/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=butler.butlerlabs.dev,resources=networkpools/finalizers;globalnetworkpools/finalizers,verbs=update
// +kubebuilder:rbac:groups=butler.butlerlabs.dev,resources=ipallocations,verbs=get;list;watch;create;update;patch;delete
// +kubebuilder:rbac:groups=butler.butlerlabs.dev,resources=ipallocations/status;ipallocations/finalizers,verbs=update;patch
// +kubebuilder:rbac:groups=butler.butlerlabs.dev,resources=ipleases;providerconfigs,verbs=get;list;watch
// +kubebuilder:rbac:groups=ipam.cluster.x-k8s.io,resources=ipaddressclaims,verbs=get;list;watch;update;patch
// +kubebuilder:rbac:groups=ipam.cluster.x-k8s.io,resources=ipaddressclaims/status;ipaddressclaims/finalizers,verbs=update;patch
// +kubebuilder:rbac:groups=ipam.cluster.x-k8s.io,resources=ipaddresses,verbs=get;list;watch;create;update;patch;delete
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

// resyncPeriod is the longest time between two reconciles of a pool, whatever the watches show.
const resyncPeriod = time.Minute

// Reconciler reconciles NetworkPools and GlobalNetworkPools. It is the sole allocator.
type Reconciler struct {
	Client    client.Client
	Live      client.Reader
	Source    feed.Source
	Allocator *allocator.Allocator
	// Blocks receives every IPAllocation that the watch shows.
	Blocks *index.BlockIndex

	fenceOnce sync.Once
	feeds     []*feed.Feed[pools.Key]
}

// Reconcile reconciles one pool.
func (r *Reconciler) Reconcile(ctx context.Context, key pools.Key) (reconcile.Result, error) {
	if !key.IsPoolKind() {
		return r.Allocator.Reconcile(ctx, key, nil)
	}
	pool, err := key.GetPool(ctx, r.Client)
	switch {
	case apierrors.IsNotFound(err):
		return r.Allocator.Reconcile(ctx, key, nil)
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("reading %s: %w", key, err)
	}
	result, err := r.Allocator.Reconcile(ctx, key, pool)
	if err == nil && (result.RequeueAfter == 0 || result.RequeueAfter > resyncPeriod) {
		result.RequeueAfter = resyncPeriod
	}
	return result, err
}

// HasSynced reports whether everything that exists was read once.
func (r *Reconciler) HasSynced() bool {
	for _, f := range r.feeds {
		if !f.HasSynced() {
			return false
		}
	}
	return len(r.feeds) > 0
}

// CheckReady returns nil when the caches are filled, and the ledger of every pool is.
func (r *Reconciler) CheckReady(ctx context.Context) error {
	if !r.HasSynced() {
		return errors.New("the claims and their addresses are not read yet")
	}
	all, err := pools.List(ctx, r.Client, "")
	if err != nil {
		return fmt.Errorf("the pools are not read yet: %w", err)
	}
	for _, p := range all {
		if !r.Allocator.IsPoolReady(p) {
			return fmt.Errorf("%s is not read yet", pools.KeyForPool(p))
		}
	}
	return nil
}

// fencedSource lists after the pools are fenced, so that the lists that fill the memory also serve the takeovers.
type fencedSource struct {
	feed.Source
	reconciler *Reconciler
}

// List implements feed.Source.
func (s fencedSource) List(ctx context.Context, of client.Object, namespace string, visit func(client.Object)) (string, error) {
	s.reconciler.fencePools(ctx)
	return s.Source.List(ctx, of, namespace, visit)
}

// fencePools takes every pool over, once, at the start. A pool for which that fails is taken over by its own reconcile.
func (r *Reconciler) fencePools(ctx context.Context) {
	r.fenceOnce.Do(func() {
		all, err := pools.List(ctx, r.Live, r.Allocator.Namespace)
		if err != nil {
			log.FromContext(ctx).Error(err, "Failed to list pools at startup; falling back to taking over each pool in its own reconcile")
		}
		r.Allocator.FencePools(ctx, all)
	})
}
