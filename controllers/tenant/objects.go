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

// objectsTimeout bounds how long a look waits for what a load balancer has to be read for the first time.
const objectsTimeout = 10 * time.Second

// objectsOf read what the load balancer of each workload cluster has, in its namespace alone. They are not part of the
// connection to the cluster: none is made while a kind that is confined to a namespace does not exist there,
// so a cluster would not be connected before its load balancer is installed.
type objectsOf struct {
	mu sync.Mutex
	of map[client.ObjectKey]*objects
}

type objects struct {
	cache.Cache
	// connection that it was made with, and the load balancer that it was made for.
	connection client.Client
	balancer   balancer.Balancer
	stop       context.CancelFunc
	watched    bool
	// readable: what is read by caches may be listed; namespaces: so may Namespaces, which are read only where a pool selects by them.
	readable, namespaces bool
}

// end forgets a Cluster, or that it was connected.
func (m *objectsOf) end(cluster client.ObjectKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known := m.of[cluster]; known != nil {
		known.stop()
		delete(m.of, cluster)
	}
}

// objectsOf returns what reads a load balancer over the connection that there is now.
func (r *Reconciler) objectsOf(ctx context.Context, cluster client.ObjectKey, live client.Client, lb balancer.Balancer) (*objects, error) {
	r.objects.mu.Lock()
	known := r.objects.of[cluster]
	r.objects.mu.Unlock()
	if known != nil && known.connection == live && known.balancer == lb {
		return known, nil
	}
	r.objects.end(cluster)
	config, err := r.Clusters.GetRESTConfig(ctx, cluster)
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.Timeout = 11 * time.Minute // a watch lasts ten
	options := cache.Options{Scheme: live.Scheme(), Mapper: live.RESTMapper(), DefaultTransform: balancer.KeepManagers}
	if _, namespace := lb.Watched(); namespace != "" {
		options.DefaultNamespaces = map[string]cache.Config{namespace: {}}
	}
	c, err := r.NewCache(config, options)
	if err != nil {
		return nil, fmt.Errorf("reading %s in Cluster %s: %w", lb.Name(), cluster, err)
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	go func() { _ = c.Start(running) }() // it ends when it is stopped, without an error
	m := &objects{Cache: c, connection: live, balancer: lb, stop: stop}
	r.objects.mu.Lock()
	defer r.objects.mu.Unlock()
	if r.objects.of == nil {
		r.objects.of = map[client.ObjectKey]*objects{}
	}
	r.objects.of[cluster] = m
	return m, nil
}

// watchObjects has changes of what the load balancer has bring us back. What it says is read live, while something waits
// for it.
func (l *look) watchObjects(m *objects) error {
	if m.watched {
		return nil
	}
	request := []reconcile.Request{{NamespacedName: l.key}}
	wake := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return request })
	kinds, _ := m.balancer.Watched()
	for _, kind := range kinds {
		if err := l.controller.Watch(source.Kind(m.Cache, kind, wake)); err != nil {
			return fmt.Errorf("watching %T in Cluster %s: %w", kind, l.key, err)
		}
	}
	m.watched = true
	return nil
}
