package controllers

import (
	"context"
	"fmt"
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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/shard"
)

// tenantWorkers bounds the Clusters that are worked on together, at a start above all.
const tenantWorkers = 10

// probeFailure is for how long a workload cluster does not answer before that is looked at: twice as long as
// clustercache takes between two probes.
const probeFailure = 20 * time.Second

// ConnectTenants sets up the connections to the workload clusters that have blocks, or are to have some.
func ConnectTenants(ctx context.Context, mgr ctrl.Manager, blocks *Blocks, watchFilter string, part shard.Shard) (clustercache.ClusterCache, error) {
	return clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
		SecretClient:     kubeconfigs{mgr.GetAPIReader()}, // a Secret is read once for each connection, and kept nowhere
		WatchFilterValue: watchFilter,
		ClusterFilter: func(c *clusterv1.Cluster) bool {
			return part.Has(clusterKind, c.Namespace, c.Name) &&
				(c.Labels[v1alpha1.ProviderConfigLabel] != "" || blocks.held(client.ObjectKeyFromObject(c)))
		},
		Cache: clustercache.CacheOptions{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				// Only kinds that every cluster has: see metalLBs.
				&corev1.Service{}: {Field: fields.OneTermEqualSelector("spec.type", string(corev1.ServiceTypeLoadBalancer))},
			},
		},
		Client: clustercache.ClientOptions{UserAgent: "butler-ipam-manager"},
	}, controller.Options{MaxConcurrentReconciles: tenantWorkers})
}

// SetupWithManager registers the watches of the management cluster. Those of a workload cluster begin when it
// is connected.
func (r *TenantReconciler) SetupWithManager(mgr ctrl.Manager) error {
	c, err := ctrl.NewControllerManagedBy(mgr).
		Named("tenant").
		For(&clusterv1.Cluster{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: tenantWorkers}).
		WatchesRawSource(r.Blocks.source()).
		WatchesRawSource(outliving{r.Clusters.GetClusterSource("tenant", func(_ context.Context, o client.Object) []reconcile.Request {
			return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(o)}}
		}, clustercache.WatchForProbeFailure(probeFailure))}).
		Watches(&v1alpha1.NetworkPool{}, handler.EnqueueRequestsFromMapFunc(r.waitingFor), builder.WithPredicates(moreRoom)).
		Watches(&v1alpha1.GlobalNetworkPool{}, handler.EnqueueRequestsFromMapFunc(r.waitingFor), builder.WithPredicates(moreRoom)).
		Watches(&v1alpha1.ProviderConfig{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return clustersNaming(ctx, r.Client, o.GetName(), func(*clusterv1.Cluster) bool { return true })
		}), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Build(ofShard(r.Shard, clusterKind, r))
	r.controller = c
	return err
}

// waitingFor returns the Clusters that lack addresses and whose ProviderConfig names a pool.
func (r *TenantReconciler) waitingFor(ctx context.Context, obj client.Object) []reconcile.Request {
	return clustersWaitingFor(ctx, r.Client, obj, func(c *clusterv1.Cluster) bool {
		return c.Annotations[v1alpha1.TriedGrowthPoolsAnnotation] != ""
	})
}

// connect returns cached readers of the workload cluster, whose Services are watched, and of its MetalLB.
func (t *tenant) connect(ctx context.Context) (client.Reader, *metalLB, error) {
	cached, err := t.Clusters.GetClient(ctx, t.key)
	if err != nil {
		return nil, nil, err
	}
	if t.live, err = t.Clusters.GetUncachedClient(ctx, t.key); err != nil {
		return nil, nil, err
	}
	m, err := t.metalLB(ctx)
	if err != nil {
		return nil, nil, err
	}
	return cached, m, t.watch(ctx, &corev1.Service{})
}

// observe reads a workload cluster. A cache that is not filled yet is waited for, not for ever.
func (t *tenant) observe(ctx context.Context, cached client.Reader, m *metalLB) (*metallb.Observed, error) {
	ctx, cancel := context.WithTimeout(ctx, metalLBTimeout)
	defer cancel()
	return metallb.Observe(ctx, cached, m, t.live)
}

// watch has changes of a kind in the workload cluster bring us back.
func (t *tenant) watch(ctx context.Context, kind client.Object) error {
	request := []reconcile.Request{{NamespacedName: t.key}}
	err := t.Clusters.Watch(ctx, t.key, clustercache.NewWatcher(clustercache.WatcherOptions{
		Name: fmt.Sprintf("tenant-%T", kind), Watcher: t.controller, Kind: kind,
		EventHandler: handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return request }),
	}))
	if err != nil {
		return fmt.Errorf("watching %T in Cluster %s: %w", kind, t.key, err)
	}
	return nil
}
