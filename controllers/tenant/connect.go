package tenant

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/workloads"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
)

// workload is the connection to a workload cluster.
type workload struct {
	// cached reads its Services, objects what its load balancer has.
	cached  client.Reader
	objects *objects
	// live writes, and reads what is there now.
	live client.Client
}

// connect returns the connection to the workload cluster, whose Services are watched.
func (l *look) connect(ctx context.Context) (w workload, err error) {
	if w.cached, err = l.Clusters.GetClient(ctx, l.key); err != nil {
		return workload{}, err
	}
	if w.live, err = l.Clusters.GetUncachedClient(ctx, l.key); err != nil {
		return workload{}, err
	}
	if w.objects, err = l.objectsOf(ctx, l.key, w.live, l.balancer()); err != nil {
		return workload{}, err
	}
	w.live = l.Writes.Client(w.live)
	return w, l.watch(ctx, &corev1.Service{})
}

// observe reads a workload cluster. A cache that is not filled yet is waited for, not for ever; one that never will be, not at all.
func (l *look) observe(ctx context.Context, w workload) (balancer.Observed, error) {
	ctx, cancel := context.WithTimeout(ctx, objectsTimeout)
	defer cancel()
	if !w.objects.readable {
		err := l.mayRead(ctx, w.live)
		if workloads.IsRefusal(err) {
			return nil, err
		}
		w.objects.readable = err == nil
	}
	observed, err := l.balancer().Observe(ctx, namespaceReader{w.cached, w}, w.objects, w.live)
	if err != nil {
		w.objects.readable, w.objects.namespaces = false, false // the right may have been withdrawn
	}
	return observed, err
}

// namespaceReader reads by a cache, and asks whether Namespaces may be listed before it reads them for the first time. Who gives
// the manager few rights, and has no pool that selects Namespaces, need not give this one.
type namespaceReader struct {
	client.Reader
	workload
}

// List implements client.Reader.
func (r namespaceReader) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	if into.GetObjectKind().GroupVersionKind().Kind == "NamespaceList" && !r.objects.namespaces {
		err := workloads.MayList(ctx, r.live, "", &corev1.NamespaceList{})
		if workloads.IsRefusal(err) {
			return err
		}
		r.objects.namespaces = err == nil
	}
	return r.Reader.List(ctx, into, opts...)
}

// mayRead asks whether the manager may list what it reads of a workload cluster by caches.
func (l *look) mayRead(ctx context.Context, live client.Reader) error {
	if err := workloads.MayList(ctx, live, "", &corev1.ServiceList{}); err != nil {
		return err
	}
	_, namespace := l.balancer().Watched()
	return workloads.MayList(ctx, live, namespace, l.balancer().Lists()...)
}

// watch has changes of a kind in the workload cluster bring us back.
func (l *look) watch(ctx context.Context, kind client.Object) error {
	request := []reconcile.Request{{NamespacedName: l.key}}
	err := l.Clusters.Watch(ctx, l.key, clustercache.NewWatcher(clustercache.WatcherOptions{
		Name: fmt.Sprintf("tenant-%T", kind), Watcher: l.controller, Kind: kind,
		EventHandler: handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return request }),
	}))
	if err != nil {
		return fmt.Errorf("watching %T in Cluster %s: %w", kind, l.key, err)
	}
	return nil
}
