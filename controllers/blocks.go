package controllers

import (
	"context"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// Blocks are the IPAllocations of each Cluster, as the allocator's watch shows them: without their lists of
// addresses, and without a second watch that would keep them twice. Controllers of Clusters are woken by them.
type Blocks struct {
	mu        sync.Mutex
	byCluster map[types.NamespacedName]*clusterBlocks
	clusters  map[types.NamespacedName]types.NamespacedName
	queues    []clusterQueue
	// ended are UIDs whose end was seen: an answer to a write of ours that is older must not revive them.
	ended *lru.Cache
}

// endsRemembered is how many ends are remembered: many more than there are writes under way.
const endsRemembered = 4096

// clusterBlocks are the blocks of one Cluster, by name, and how many of them are held.
type clusterBlocks struct {
	all  map[types.NamespacedName]*v1alpha1.IPAllocation
	held int
}

// set puts a block in the place of another; nil: there is none.
func (c *clusterBlocks) set(key types.NamespacedName, a *v1alpha1.IPAllocation) {
	if old := c.all[key]; old != nil && held(old) {
		c.held--
	}
	delete(c.all, key)
	if a == nil {
		return
	}
	c.all[key] = a
	if held(a) {
		c.held++
	}
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

// init makes what the zero value lacks.
func (b *Blocks) init() {
	if b.ended == nil {
		b.byCluster, b.clusters = map[types.NamespacedName]*clusterBlocks{}, map[types.NamespacedName]types.NamespacedName{}
		b.ended = lru.New(endsRemembered)
	}
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
	b.init()
	if _, gone := b.ended.Get(a.UID); gone {
		return
	}
	of := b.byCluster[cluster]
	if of == nil {
		of = &clusterBlocks{all: map[types.NamespacedName]*v1alpha1.IPAllocation{}}
		b.byCluster[cluster] = of
	}
	if old := of.all[key]; old != nil && old.UID == a.UID && !grants.Newer(a.ResourceVersion, old.ResourceVersion) {
		return
	}
	of.set(key, lean(a))
	b.clusters[key] = cluster
	b.wake(cluster)
}

// Forget notes that an IPAllocation is gone: of what it says, its name and its UID count.
func (b *Blocks) Forget(a *v1alpha1.IPAllocation) {
	key := client.ObjectKeyFromObject(a)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.init()
	b.ended.Add(a.UID, nil)
	cluster, known := b.clusters[key]
	of := b.byCluster[cluster]
	if !known || of.all[key].UID != a.UID {
		return
	}
	delete(b.clusters, key)
	of.set(key, nil)
	if len(of.all) == 0 {
		delete(b.byCluster, cluster)
	}
	b.wake(cluster)
}

// of returns copies of the load-balancer blocks of a Cluster: oldest first, the first one it began with.
func (b *Blocks) of(cluster types.NamespacedName) []*v1alpha1.IPAllocation {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []*v1alpha1.IPAllocation
	of := b.byCluster[cluster]
	if of == nil {
		return nil
	}
	for _, a := range of.all {
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

// held reports whether a Cluster has a block that it was shown. It costs O(1).
func (b *Blocks) held(cluster types.NamespacedName) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	of := b.byCluster[cluster]
	return of != nil && of.held > 0
}

// lean keeps what decides, and what a patch needs.
func lean(a *v1alpha1.IPAllocation) *v1alpha1.IPAllocation {
	out := &v1alpha1.IPAllocation{TypeMeta: a.TypeMeta, ObjectMeta: a.ObjectMeta, Spec: a.Spec, Status: a.Status}
	out.ManagedFields, out.Status.Addresses = nil, nil
	return out
}
