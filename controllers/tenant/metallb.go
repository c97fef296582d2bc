package tenant

import (
	"context"
	"fmt"
	"sync"
	"time"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
)

// metalLBTimeout bounds how long a look waits for what MetalLB has to be read for the first time.
const metalLBTimeout = 10 * time.Second

// metalLBs read what MetalLB has in each workload cluster, in MetalLB's namespace alone. They are not part of the
// connection to the cluster: none is made while a kind that is confined to a namespace does not exist there,
// so a cluster would not be connected before MetalLB is installed.
type metalLBs struct {
	mu sync.Mutex
	of map[client.ObjectKey]*metalLB
}

type metalLB struct {
	cache.Cache
	// connection that it was made with.
	connection client.Client
	stop       context.CancelFunc
	watched    bool
}

// end forgets a Cluster, or that it was connected.
func (m *metalLBs) end(cluster client.ObjectKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known := m.of[cluster]; known != nil {
		known.stop()
		delete(m.of, cluster)
	}
}

// metalLBOf returns what reads MetalLB over the connection that there is now.
func (r *Reconciler) metalLBOf(ctx context.Context, cluster client.ObjectKey, live client.Client) (*metalLB, error) {
	r.metalLBs.mu.Lock()
	known := r.metalLBs.of[cluster]
	r.metalLBs.mu.Unlock()
	if known != nil && known.connection == live {
		return known, nil
	}
	r.metalLBs.end(cluster)
	config, err := r.Clusters.GetRESTConfig(ctx, cluster)
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.Timeout = 11 * time.Minute // a watch lasts ten
	c, err := r.NewCache(config, cache.Options{
		Scheme: live.Scheme(), Mapper: live.RESTMapper(), DefaultTransform: metallb.KeepManagers,
		DefaultNamespaces: map[string]cache.Config{metallb.Namespace: {}},
	})
	if err != nil {
		return nil, fmt.Errorf("reading MetalLB in Cluster %s: %w", cluster, err)
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	go func() { _ = c.Start(running) }() // it ends when it is stopped, without an error
	m := &metalLB{Cache: c, connection: live, stop: stop}
	r.metalLBs.mu.Lock()
	defer r.metalLBs.mu.Unlock()
	if r.metalLBs.of == nil {
		r.metalLBs.of = map[client.ObjectKey]*metalLB{}
	}
	r.metalLBs.of[cluster] = m
	return m, nil
}

// watchMetalLB has changes of what MetalLB has bring us back. What it says is read live, while something waits
// for it.
func (l *look) watchMetalLB(m *metalLB) error {
	if m.watched {
		return nil
	}
	request := []reconcile.Request{{NamespacedName: l.key}}
	wake := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return request })
	for _, kind := range []client.Object{&metallbv1beta1.IPAddressPool{}, &metallbv1beta1.L2Advertisement{}} {
		if err := l.controller.Watch(source.Kind(m.Cache, kind, wake)); err != nil {
			return fmt.Errorf("watching %T in Cluster %s: %w", kind, l.key, err)
		}
	}
	m.watched = true
	return nil
}
