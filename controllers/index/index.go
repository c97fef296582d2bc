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

// BlockIndex has the IPAllocations of each Cluster, as the allocator's watch shows them: without their lists of
// addresses, and without a second watch that would keep them twice. Their changes enqueue Clusters in the controllers
// of Clusters.
type BlockIndex struct {
	mu             sync.Mutex
	byCluster      map[types.NamespacedName]*clusterBlocks
	clusterByBlock map[types.NamespacedName]types.NamespacedName
	queues         []Queue
	// deletedUIDs are UIDs whose deletion was seen: an older answer to a write of ours must not revive them.
	deletedUIDs *lru.Cache
}

// maxDeletedUIDs is how many deletions are remembered: many more than there are writes in flight.
const maxDeletedUIDs = 4096

// clusterBlocks are the blocks of one Cluster, by name, and how many of them are projected, and have the condition
// DemandSatisfied.
type clusterBlocks struct {
	blocks                               map[types.NamespacedName]*v1alpha1.IPAllocation
	projectedCount, demandConditionCount int
}

// adjustCounts adds n to the counts that include a block: 1 for a new block, -1 for one that is gone.
func (c *clusterBlocks) adjustCounts(a *v1alpha1.IPAllocation, n int) {
	if tenancy.IsProjected(a) {
		c.projectedCount += n
	}
	if tenancy.HasDemandCondition(a) {
		c.demandConditionCount += n
	}
}

// setBlock replaces the block of a key; nil removes it.
func (c *clusterBlocks) setBlock(key types.NamespacedName, a *v1alpha1.IPAllocation) {
	if old := c.blocks[key]; old != nil {
		c.adjustCounts(old, -1)
	}
	delete(c.blocks, key)
	if a == nil {
		return
	}
	c.blocks[key] = a
	c.adjustCounts(a, 1)
}

// Queue is the queue of a controller of Clusters.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// NewSource returns a source that enqueues the Cluster of each IPAllocation that changes.
func (bi *BlockIndex) NewSource() source.Source {
	return source.Func(func(_ context.Context, q Queue) error {
		bi.mu.Lock()
		defer bi.mu.Unlock()
		bi.queues = append(bi.queues, q)
		return nil
	})
}

// ensureMaps creates the maps that the zero value does not have.
func (bi *BlockIndex) ensureMaps() {
	if bi.deletedUIDs == nil {
		bi.byCluster, bi.clusterByBlock = map[types.NamespacedName]*clusterBlocks{}, map[types.NamespacedName]types.NamespacedName{}
		bi.deletedUIDs = lru.New(maxDeletedUIDs)
	}
}

func (bi *BlockIndex) enqueueCluster(cluster types.NamespacedName) {
	for _, q := range bi.queues {
		q.Add(reconcile.Request{NamespacedName: cluster})
	}
}

// ObserveBlock records an IPAllocation, unless the known version is newer.
func (bi *BlockIndex) ObserveBlock(a *v1alpha1.IPAllocation) {
	if _, ok := pools.ChildPoolKey(a); ok {
		return // it is for a pool
	}
	cluster, key := a.Spec.TenantClusterRef.NamespacedName(), client.ObjectKeyFromObject(a)
	bi.mu.Lock()
	defer bi.mu.Unlock()
	bi.ensureMaps()
	if _, gone := bi.deletedUIDs.Get(a.UID); gone {
		return
	}
	of := bi.byCluster[cluster]
	if of == nil {
		of = &clusterBlocks{blocks: map[types.NamespacedName]*v1alpha1.IPAllocation{}}
		bi.byCluster[cluster] = of
	}
	if old := of.blocks[key]; old != nil && old.UID == a.UID && !term.IsNewerVersion(a.ResourceVersion, old.ResourceVersion) {
		return
	}
	of.setBlock(key, trimBlock(a))
	bi.clusterByBlock[key] = cluster
	bi.enqueueCluster(cluster)
}

// ForgetBlock records that an IPAllocation is gone: only its name and its UID are read.
func (bi *BlockIndex) ForgetBlock(a *v1alpha1.IPAllocation) {
	key := client.ObjectKeyFromObject(a)
	bi.mu.Lock()
	defer bi.mu.Unlock()
	bi.ensureMaps()
	bi.deletedUIDs.Add(a.UID, nil)
	cluster, known := bi.clusterByBlock[key]
	of := bi.byCluster[cluster]
	if !known || of.blocks[key].UID != a.UID {
		return
	}
	delete(bi.clusterByBlock, key)
	of.setBlock(key, nil)
	if len(of.blocks) == 0 {
		delete(bi.byCluster, cluster)
	}
	bi.enqueueCluster(cluster)
}

// LoadBalancerBlocks returns copies of the load-balancer blocks of a Cluster: oldest first, so the first is the one it
// began with.
func (bi *BlockIndex) LoadBalancerBlocks(cluster types.NamespacedName) []*v1alpha1.IPAllocation {
	return bi.blocksOfType(cluster, v1alpha1.LoadBalancerAllocation)
}

// PodBlocks returns copies of the blocks that the Nodes of a Cluster get their pod CIDRs from, oldest first.
func (bi *BlockIndex) PodBlocks(cluster types.NamespacedName) []*v1alpha1.IPAllocation {
	return bi.blocksOfType(cluster, v1alpha1.PodsAllocation)
}

func (bi *BlockIndex) blocksOfType(cluster types.NamespacedName, kind v1alpha1.AllocationType) []*v1alpha1.IPAllocation {
	bi.mu.Lock()
	defer bi.mu.Unlock()
	var out []*v1alpha1.IPAllocation
	of := bi.byCluster[cluster]
	if of == nil {
		return nil
	}
	for _, a := range of.blocks {
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

// HasProjectedBlock reports whether a Cluster has a block that it was shown. It costs O(1).
func (bi *BlockIndex) HasProjectedBlock(cluster types.NamespacedName) bool {
	bi.mu.Lock()
	defer bi.mu.Unlock()
	of := bi.byCluster[cluster]
	return of != nil && of.projectedCount > 0
}

// HasDemandCondition reports whether a block of a Cluster has the condition whether its Services have what they
// request. It costs O(1).
func (bi *BlockIndex) HasDemandCondition(cluster types.NamespacedName) bool {
	bi.mu.Lock()
	defer bi.mu.Unlock()
	of := bi.byCluster[cluster]
	return of != nil && of.demandConditionCount > 0
}

// UnlabelledBlocks returns copies of the allocations of a Cluster that have no role, or not Cluster API's label with
// the name of the Cluster, except those that are being deleted.
func (bi *BlockIndex) UnlabelledBlocks(cluster types.NamespacedName) []*v1alpha1.IPAllocation {
	bi.mu.Lock()
	defer bi.mu.Unlock()
	of := bi.byCluster[cluster]
	if of == nil {
		return nil
	}
	var out []*v1alpha1.IPAllocation
	for _, a := range of.blocks {
		unlabelled := a.Labels[v1alpha1.AllocationRoleLabel] == "" || a.Labels[clusterv1.ClusterNameLabel] == ""
		if unlabelled && a.DeletionTimestamp.IsZero() {
			out = append(out, a.DeepCopy())
		}
	}
	return out
}

// WithIndexing returns a store that also passes to the index the IPAllocations that a memory receives.
func (bi *BlockIndex) WithIndexing(memory feed.Store[pools.Key]) feed.Store[pools.Key] {
	return indexingMemory{memory, bi}
}

type indexingMemory struct {
	feed.Store[pools.Key]
	blocks *BlockIndex
}

// ObserveObject implements feed.Store. The memory comes first: a reconcile that the index enqueues reads it.
func (im indexingMemory) ObserveObject(o client.Object) (pools.Key, bool) {
	key, wake := im.Store.ObserveObject(o)
	if a, ok := o.(*v1alpha1.IPAllocation); ok {
		im.blocks.ObserveBlock(a)
	}
	return key, wake
}

// ForgetObject implements feed.Store.
func (im indexingMemory) ForgetObject(o client.Object) (pools.Key, bool) {
	key, wake := im.Store.ForgetObject(o)
	if a, ok := o.(*v1alpha1.IPAllocation); ok {
		im.blocks.ForgetBlock(a)
	}
	return key, wake
}

// trimBlock keeps the fields that decisions and patches need.
func trimBlock(a *v1alpha1.IPAllocation) *v1alpha1.IPAllocation {
	out := &v1alpha1.IPAllocation{TypeMeta: a.TypeMeta, ObjectMeta: a.ObjectMeta, Spec: a.Spec, Status: a.Status}
	out.ManagedFields, out.Status.Addresses = nil, nil
	return out
}
