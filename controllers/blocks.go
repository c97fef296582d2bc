package controllers

import (
	"context"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Blocks are the IPAllocations of each Cluster, as the allocator's watch shows them: without their lists of
// addresses, and without a second watch that would keep them twice. Controllers of Clusters are woken by them.
type Blocks struct {
	mu        sync.Mutex
	byCluster map[types.NamespacedName]map[types.NamespacedName]*v1alpha1.IPAllocation
	clusters  map[types.NamespacedName]types.NamespacedName
	queues    []clusterQueue
}

type clusterQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// source has a controller look at the Cluster of each IPAllocation that changes.
func (b *Blocks) source() source.Source {
	return source.Func(func(_ context.Context, q clusterQueue) error {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.queues = append(b.queues, q)
		return nil
	})
}

func (b *Blocks) wake(cluster types.NamespacedName) {
	for _, q := range b.queues {
		q.Add(reconcile.Request{NamespacedName: cluster})
	}
}

// Observe remembers an IPAllocation, unless what is known is newer.
func (b *Blocks) Observe(a *v1alpha1.IPAllocation) {
	cluster, key := a.Spec.TenantClusterRef.NamespacedName(), client.ObjectKeyFromObject(a)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.byCluster == nil {
		b.byCluster = map[types.NamespacedName]map[types.NamespacedName]*v1alpha1.IPAllocation{}
		b.clusters = map[types.NamespacedName]types.NamespacedName{}
	}
	of := b.byCluster[cluster]
	if of == nil {
		of = map[types.NamespacedName]*v1alpha1.IPAllocation{}
		b.byCluster[cluster] = of
	}
	if old := of[key]; old != nil && old.UID == a.UID {
		if c, err := resourceversion.CompareResourceVersion(a.ResourceVersion, old.ResourceVersion); err == nil && c <= 0 {
			return
		}
	}
	of[key], b.clusters[key] = lean(a), cluster
	b.wake(cluster)
}

// Forget notes that an IPAllocation is gone: of what it says, its name and its UID count.
func (b *Blocks) Forget(a *v1alpha1.IPAllocation) {
	key := client.ObjectKeyFromObject(a)
	b.mu.Lock()
	defer b.mu.Unlock()
	cluster, known := b.clusters[key]
	if !known || b.byCluster[cluster][key].UID != a.UID {
		return
	}
	delete(b.clusters, key)
	delete(b.byCluster[cluster], key)
	if len(b.byCluster[cluster]) == 0 {
		delete(b.byCluster, cluster)
	}
	b.wake(cluster)
}

// of returns copies of the load-balancer blocks of a Cluster: oldest first, the first one it began with.
func (b *Blocks) of(cluster types.NamespacedName) []*v1alpha1.IPAllocation {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []*v1alpha1.IPAllocation
	for _, a := range b.byCluster[cluster] {
		if a.Spec.Type == v1alpha1.LoadBalancerAllocation {
			out = append(out, a.DeepCopy())
		}
	}
	slices.SortFunc(out, func(a, b *v1alpha1.IPAllocation) int {
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return out
}

// any tells whether a Cluster has such a block.
func (b *Blocks) any(cluster types.NamespacedName, is func(*v1alpha1.IPAllocation) bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range b.byCluster[cluster] {
		if is(a) {
			return true
		}
	}
	return false
}

// lean keeps what decides, and what a patch needs.
func lean(a *v1alpha1.IPAllocation) *v1alpha1.IPAllocation {
	out := &v1alpha1.IPAllocation{TypeMeta: a.TypeMeta, ObjectMeta: a.ObjectMeta, Spec: a.Spec, Status: a.Status}
	out.ManagedFields, out.Status.Addresses = nil, nil
	return out
}
