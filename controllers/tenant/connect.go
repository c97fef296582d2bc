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

// workloadClients is the connection to a workload cluster.
type workloadClients struct {
	// cachedReader reads the Services of the cluster; balancerCache reads the objects of its load balancer.
	cachedReader  client.Reader
	balancerCache *balancerCache
	// liveClient writes, and reads from the API server.
	liveClient client.Client
}

// connectWorkload returns the connection to the workload cluster, and watches its Services.
func (sc *scope) connectWorkload(ctx context.Context) (w workloadClients, err error) {
	if w.cachedReader, err = sc.Clusters.GetClient(ctx, sc.clusterKey); err != nil {
		return workloadClients{}, err
	}
	if w.liveClient, err = sc.Clusters.GetUncachedClient(ctx, sc.clusterKey); err != nil {
		return workloadClients{}, err
	}
	if w.balancerCache, err = sc.cacheForCluster(ctx, sc.clusterKey, w.liveClient, sc.activeBalancer()); err != nil {
		return workloadClients{}, err
	}
	w.liveClient = sc.Writes.WrapClient(w.liveClient)
	return w, sc.watchWorkload(ctx, &corev1.Service{})
}

// observeWorkload reads a workload cluster. It waits for a cache that is not filled yet, but not without limit, and
// does not wait for one that never will be filled.
func (sc *scope) observeWorkload(ctx context.Context, w workloadClients) (balancer.ObservedCluster, error) {
	ctx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	if !w.balancerCache.canListObjects {
		err := sc.checkReadAccess(ctx, w.liveClient)
		if workloads.IsAccessError(err) {
			return nil, err
		}
		w.balancerCache.canListObjects = err == nil
	}
	observed, err := sc.activeBalancer().ObserveCluster(ctx, namespaceAccessReader{w.cachedReader, w}, w.balancerCache, w.liveClient)
	if err != nil {
		w.balancerCache.canListObjects, w.balancerCache.canListNamespaces = false, false // the permission may have been withdrawn
	}
	return observed, err
}

// namespaceAccessReader reads from a cache, and checks that Namespaces may be listed before it lists them for the first
// time. An administrator who gives the manager few permissions, and has no pool that selects Namespaces, need not grant
// this one.
type namespaceAccessReader struct {
	client.Reader
	workloadClients
}

// List implements client.Reader.
func (r namespaceAccessReader) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	if into.GetObjectKind().GroupVersionKind().Kind == "NamespaceList" && !r.balancerCache.canListNamespaces {
		err := workloads.CheckListAccess(ctx, r.liveClient, "", &corev1.NamespaceList{})
		if workloads.IsAccessError(err) {
			return err
		}
		r.balancerCache.canListNamespaces = err == nil
	}
	return r.Reader.List(ctx, into, opts...)
}

// checkReadAccess returns an error unless the manager may list what it reads of a workload cluster from caches.
func (sc *scope) checkReadAccess(ctx context.Context, live client.Reader) error {
	if err := workloads.CheckListAccess(ctx, live, "", &corev1.ServiceList{}); err != nil {
		return err
	}
	_, namespace := sc.activeBalancer().WatchedKinds()
	return workloads.CheckListAccess(ctx, live, namespace, sc.activeBalancer().WatchedLists()...)
}

// watchWorkload makes changes of a kind in the workload cluster enqueue the Cluster.
func (sc *scope) watchWorkload(ctx context.Context, kind client.Object) error {
	request := []reconcile.Request{{NamespacedName: sc.clusterKey}}
	err := sc.Clusters.Watch(ctx, sc.clusterKey, clustercache.NewWatcher(clustercache.WatcherOptions{
		Name: fmt.Sprintf("tenant-%T", kind), Watcher: sc.controller, Kind: kind,
		EventHandler: handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return request }),
	}))
	if err != nil {
		return fmt.Errorf("watching %T in Cluster %s: %w", kind, sc.clusterKey, err)
	}
	return nil
}
