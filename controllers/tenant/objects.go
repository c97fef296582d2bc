package tenant

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cilium"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
)

// balancers are the load balancers that blocks are shown to.
var balancers = map[v1alpha1.LoadBalancerType]balancer.Balancer{
	v1alpha1.MetalLBLoadBalancer: metallb.Balancer{},
	v1alpha1.CiliumLoadBalancer:  cilium.Balancer{},
}

// observeTimeout bounds how long a reconcile waits for the objects of a load balancer to be read for the first time.
const observeTimeout = 10 * time.Second

// balancerCaches read the objects of the load balancer of each workload cluster, in its namespace alone. They are not
// part of the connection to the cluster: clustercache makes no connection while a kind that is confined to a namespace
// does not exist there, so a cluster would not be connected before its load balancer is installed.
type balancerCaches struct {
	mu        sync.Mutex
	byCluster map[client.ObjectKey]*balancerCache
}

type balancerCache struct {
	cache.Cache
	// connection is the client that the cache was created with; balancer is the load balancer that it was created for.
	connection client.Client
	balancer   balancer.Balancer
	stop       context.CancelFunc
	isWatched  bool
	// canListObjects reports whether the kinds that are read from caches may be listed; canListNamespaces reports the
	// same for Namespaces, which are read only where a pool selects by them.
	canListObjects, canListNamespaces bool
}

// removeCluster forgets a Cluster, or that it was connected, and stops its cache.
func (m *balancerCaches) removeCluster(cluster client.ObjectKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known := m.byCluster[cluster]; known != nil {
		known.stop()
		delete(m.byCluster, cluster)
	}
}

// cacheForCluster returns the cache that reads a load balancer over the current connection.
func (r *Reconciler) cacheForCluster(ctx context.Context, cluster client.ObjectKey, live client.Client, lb balancer.Balancer) (*balancerCache, error) {
	r.balancerCaches.mu.Lock()
	known := r.balancerCaches.byCluster[cluster]
	r.balancerCaches.mu.Unlock()
	if known != nil && known.connection == live && known.balancer == lb {
		return known, nil
	}
	r.balancerCaches.removeCluster(cluster)
	config, err := r.Clusters.GetRESTConfig(ctx, cluster)
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.Timeout = 11 * time.Minute // a watch lasts ten
	options := cache.Options{Scheme: live.Scheme(), Mapper: live.RESTMapper(), DefaultTransform: balancer.ReduceManagedFields}
	if _, namespace := lb.WatchedKinds(); namespace != "" {
		options.DefaultNamespaces = map[string]cache.Config{namespace: {}}
	}
	c, err := r.NewCache(config, options)
	if err != nil {
		return nil, fmt.Errorf("reading %s in Cluster %s: %w", lb.Name(), cluster, err)
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	go func() { _ = c.Start(running) }() // it ends without an error when it is stopped
	m := &balancerCache{Cache: c, connection: live, balancer: lb, stop: stop}
	r.balancerCaches.mu.Lock()
	defer r.balancerCaches.mu.Unlock()
	if r.balancerCaches.byCluster == nil {
		r.balancerCaches.byCluster = map[client.ObjectKey]*balancerCache{}
	}
	r.balancerCaches.byCluster[cluster] = m
	return m, nil
}

// watchBalancer makes changes of the load balancer's objects enqueue the Cluster. What the load balancer reports is
// read live, while something waits for it.
func (sc *scope) watchBalancer(m *balancerCache) error {
	if m.isWatched {
		return nil
	}
	request := []reconcile.Request{{NamespacedName: sc.clusterKey}}
	wake := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return request })
	kinds, _ := m.balancer.WatchedKinds()
	for _, kind := range kinds {
		if err := sc.controller.Watch(source.Kind(m.Cache, kind, wake)); err != nil {
			return fmt.Errorf("watching %T in Cluster %s: %w", kind, sc.clusterKey, err)
		}
	}
	m.isWatched = true
	return nil
}
