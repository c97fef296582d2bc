// Package index keeps the IPAllocations of each Cluster, for the controllers of Clusters.
package index

import (
	"context"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/lru"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/feed"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// Blocks has the IPAllocations of each Cluster, as the allocator's watch shows them: without their lists of
// addresses, and without a second watch that would keep them twice. Controllers of Clusters are woken by them.
type Blocks struct {
	mu        sync.Mutex
	byCluster map[types.NamespacedName]*clusterBlocks
	clusters  map[types.NamespacedName]types.NamespacedName
	queues    []Queue
	// ended are UIDs whose end was seen: an answer to a write of ours that is older must not revive them.
	ended *lru.Cache
}

// endsRemembered is how many ends are remembered: many more than there are writes under way.
const endsRemembered = 4096

// clusterBlocks are the blocks of one Cluster, by name, and how many of them are projected, and speak.
type clusterBlocks struct {
	all               map[types.NamespacedName]*v1alpha1.IPAllocation
	projected, speaks int
}

// count counts a block, or that it is not there any more.
func (c *clusterBlocks) count(a *v1alpha1.IPAllocation, n int) {
	if tenancy.Projected(a) {
		c.projected += n
	}
	if tenancy.Speaks(a) {
		c.speaks += n
	}
}

// set puts a block in the place of another; nil: there is none.
func (c *clusterBlocks) set(key types.NamespacedName, a *v1alpha1.IPAllocation) {
	if old := c.all[key]; old != nil {
		c.count(old, -1)
	}
	delete(c.all, key)
	if a == nil {
		return
	}
	c.all[key] = a
	c.count(a, 1)
}

// Queue is that of a controller of Clusters.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Source has a controller look at the Cluster of each IPAllocation that changes.
func (x *Blocks) Source() source.Source {
	return source.Func(func(_ context.Context, q Queue) error {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.queues = append(x.queues, q)
		return nil
	})
}

// init makes what the zero value lacks.
func (x *Blocks) init() {
	if x.ended == nil {
		x.byCluster, x.clusters = map[types.NamespacedName]*clusterBlocks{}, map[types.NamespacedName]types.NamespacedName{}
		x.ended = lru.New(endsRemembered)
	}
}

func (x *Blocks) wake(cluster types.NamespacedName) {
	for _, q := range x.queues {
		q.Add(reconcile.Request{NamespacedName: cluster})
	}
}

// Observe remembers an IPAllocation, unless what is known is newer.
func (x *Blocks) Observe(a *v1alpha1.IPAllocation) {
	if _, is := pools.ChildOf(a); is {
		return // it is for a pool
	}
	cluster, key := a.Spec.TenantClusterRef.NamespacedName(), client.ObjectKeyFromObject(a)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.init()
	if _, gone := x.ended.Get(a.UID); gone {
		return
	}
	of := x.byCluster[cluster]
	if of == nil {
		of = &clusterBlocks{all: map[types.NamespacedName]*v1alpha1.IPAllocation{}}
		x.byCluster[cluster] = of
	}
	if old := of.all[key]; old != nil && old.UID == a.UID && !term.Newer(a.ResourceVersion, old.ResourceVersion) {
		return
	}
	of.set(key, lean(a))
	x.clusters[key] = cluster
	x.wake(cluster)
}

// Forget notes that an IPAllocation is gone: of what it says, its name and its UID count.
func (x *Blocks) Forget(a *v1alpha1.IPAllocation) {
	key := client.ObjectKeyFromObject(a)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.init()
	x.ended.Add(a.UID, nil)
	cluster, known := x.clusters[key]
	of := x.byCluster[cluster]
	if !known || of.all[key].UID != a.UID {
		return
	}
	delete(x.clusters, key)
	of.set(key, nil)
	if len(of.all) == 0 {
		delete(x.byCluster, cluster)
	}
	x.wake(cluster)
}

// Of returns copies of the load-balancer blocks of a Cluster: oldest first, the first one it began with.
func (x *Blocks) Of(cluster types.NamespacedName) []*v1alpha1.IPAllocation {
	return x.ofType(cluster, v1alpha1.LoadBalancerAllocation)
}

// Pods returns copies of the blocks that the Nodes of a Cluster get their pod CIDRs from, oldest first.
func (x *Blocks) Pods(cluster types.NamespacedName) []*v1alpha1.IPAllocation {
	return x.ofType(cluster, v1alpha1.PodsAllocation)
}

func (x *Blocks) ofType(cluster types.NamespacedName, kind v1alpha1.AllocationType) []*v1alpha1.IPAllocation {
	x.mu.Lock()
	defer x.mu.Unlock()
	var out []*v1alpha1.IPAllocation
	of := x.byCluster[cluster]
	if of == nil {
		return nil
	}
	for _, a := range of.all {
		if a.Spec.Type == kind {
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

// Projects reports whether a Cluster has a block that it was shown. It costs O(1).
func (x *Blocks) Projects(cluster types.NamespacedName) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	of := x.byCluster[cluster]
	return of != nil && of.projected > 0
}

// Speaks reports whether a block of a Cluster says whether its Services have what they ask for. It costs O(1).
func (x *Blocks) Speaks(cluster types.NamespacedName) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	of := x.byCluster[cluster]
	return of != nil && of.speaks > 0
}

// Unlabelled returns copies of the allocations of a Cluster that have no role, or not Cluster API's label of what is a
// Cluster's, those that end left out.
func (x *Blocks) Unlabelled(cluster types.NamespacedName) []*v1alpha1.IPAllocation {
	x.mu.Lock()
	defer x.mu.Unlock()
	of := x.byCluster[cluster]
	if of == nil {
		return nil
	}
	var out []*v1alpha1.IPAllocation
	for _, a := range of.all {
		lacks := a.Labels[v1alpha1.AllocationRoleLabel] == "" || a.Labels[clusterv1.ClusterNameLabel] == ""
		if lacks && a.DeletionTimestamp.IsZero() {
			out = append(out, a.DeepCopy())
		}
	}
	return out
}

// Beside has the index see the IPAllocations that a memory is fed with.
func (x *Blocks) Beside(memory feed.Memory[pools.Key]) feed.Memory[pools.Key] {
	return beside{memory, x}
}

type beside struct {
	feed.Memory[pools.Key]
	blocks *Blocks
}

// Observe implements feed.Memory. The memory is first: whoever is woken by the index asks it.
func (b beside) Observe(o client.Object) (pools.Key, bool) {
	key, wake := b.Memory.Observe(o)
	if a, is := o.(*v1alpha1.IPAllocation); is {
		b.blocks.Observe(a)
	}
	return key, wake
}

// Forget implements feed.Memory.
func (b beside) Forget(o client.Object) (pools.Key, bool) {
	key, wake := b.Memory.Forget(o)
	if a, is := o.(*v1alpha1.IPAllocation); is {
		b.blocks.Forget(a)
	}
	return key, wake
}

// lean keeps what decides, and what a patch needs.
func lean(a *v1alpha1.IPAllocation) *v1alpha1.IPAllocation {
	out := &v1alpha1.IPAllocation{TypeMeta: a.TypeMeta, ObjectMeta: a.ObjectMeta, Spec: a.Spec, Status: a.Status}
	out.ManagedFields, out.Status.Addresses = nil, nil
	return out
}
