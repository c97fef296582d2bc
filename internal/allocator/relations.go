package allocator

import (
	"context"
	"slices"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
)

// poolRelations records which pools overlap and which pools are carved from which, and enqueues the pools that a change
// is about. It alone changes the index of overlaps. The state of a pool has what is in flight before the index has its
// spec (R11).
type poolRelations struct {
	*Options
	overlaps *overlapIndex

	queue *workQueue
	pools *poolSet
}

// publishDeclaration records what an observed pool declares, whichever manager serves it, and enqueues the pools that
// it overlaps with. It records what is in flight before the spec: a manager that reads that another pool leaves
// addresses alone must know what that pool had granted of them by then. A spec that cannot be served leaves the
// declared addresses as they were: their claimants keep them.
func (pr *poolRelations) publishDeclaration(obj v1alpha1.Pool) {
	key, uid, generation := pools.KeyForPool(obj), obj.GetUID(), obj.GetGeneration()
	m := pr.pools.lockPool(key)
	m.ObservePool(obj)
	m.Unlock()
	old := pr.overlaps.declarationFor(key)
	if old.uid == uid && old.generation >= generation {
		return
	}
	spec := obj.PoolSpec()
	next := poolDeclaration{
		key: key, network: spec.Network, createdAt: obj.GetCreationTimestamp().Time, uid: uid, generation: generation, allowsOverlap: spec.AllowOverlap, mirroredPool: grants.MirroredPoolName(obj),
	}
	if parent, carved := pools.ParentPoolKey(obj); carved {
		next.parent, next.layoutVersion = parent, grants.SpecVersionForPool(obj)
	} else if layout, errs := poolspec.Compile(spec); len(errs) == 0 {
		next.layout, next.layoutVersion = layout, grants.SpecVersionForPool(obj)
	} else if old.uid == uid {
		next.layout, next.layoutVersion = old.layout, old.layoutVersion
	}
	changed := pr.overlaps.setDeclaration(key, next)
	pr.enqueueWithDescendants(append(changed, pr.overlaps.children(key)...))
	if old.uid != uid && next.parent != (pools.Key{}) {
		pr.queue.enqueuePool(next.parent) // blocks may wait for this pool
	}
}

// withdrawDeclaration records that a pool is gone.
func (pr *poolRelations) withdrawDeclaration(key pools.Key) {
	if pr.overlaps.declarationFor(key) != (poolDeclaration{}) {
		pr.enqueueWithDescendants(append(pr.overlaps.setDeclaration(key, poolDeclaration{}), pr.overlaps.children(key)...))
	}
}

// enqueueWithDescendants enqueues pools, and the pools that are carved from them.
func (pr *poolRelations) enqueueWithDescendants(keys []pools.Key) {
	for _, key := range pr.overlaps.withDescendants(keys) {
		pr.queue.enqueuePool(key)
	}
}

// updateOverlap records which other pool of the same network has addresses of this one.
func (pr *poolRelations) updateOverlap(m *grants.PoolState) {
	if m.Base.Pool.PoolSpec().Carve != nil {
		m.Overlap.SetMessage(pr.overlaps.rootOverlapMessage(m.Base.Key, m.Base.OpenBlockRanges()), false, false)
		return
	}
	text, younger := pr.overlaps.describeOverlap(m.Base.Key)
	own, neighbours := pr.overlaps.overlappingPools(m.Base.Key)
	yieldPending := false
	for i, n := range slices.DeleteFunc(neighbours, func(n overlappingPool) bool { return !n.isOlder || own.allowsOverlap }) {
		yieldPending = yieldPending || (i < maxYields && !slices.Contains(m.Base.Pool.PoolStatus().Yields, newYieldedPool(n.key, n.declaration.uid, n.declaration.generation)))
	}
	m.Overlap.SetMessage(text, younger, yieldPending)
}

// parentForPool returns what a carved pool needs of its parent.
func (pr *poolRelations) parentForPool(obj v1alpha1.Pool) grants.ParentPool {
	if obj.PoolSpec().Carve == nil {
		return grants.ParentPool{}
	}
	ancestors, problem := pr.overlaps.ancestors(pools.KeyForPool(obj))
	out := grants.ParentPool{Problem: problem}
	if len(ancestors) == 0 {
		return out
	}
	if p := pr.pools.findPool(ancestors[0]); p != nil {
		m := p.Lock()
		layout := m.Space.Layout
		m.Unlock()
		if layout != nil && len(layout.Declared().Ranges()) > 0 {
			out.AddressBits, out.NetworkFor = 32, layout.NetworkForAddress
			if layout.Is6() {
				out.AddressBits = 128
			}
		}
	}
	return out
}

// enqueueChildren enqueues the pools that are carved from a pool when its addresses or their networks have changed.
func (pr *poolRelations) enqueueChildren(m *grants.PoolState) {
	if !m.Carved.TakeLayoutChange() {
		return
	}
	for _, child := range pr.overlaps.children(m.Base.Key) {
		pr.queue.enqueuePool(child)
	}
}

// enqueueParent enqueues the parent of a pool that has closed a block: if the block was lost, the parent no longer
// excludes its addresses.
func (pr *poolRelations) enqueueParent(before, after v1alpha1.Pool) {
	if parent, carved := pools.ParentPoolKey(after); carved && len(after.PoolStatus().Blocks) < len(before.PoolStatus().Blocks) {
		pr.queue.enqueuePool(parent)
	}
}

// childPoolSeen returns, from what the watch has shown, whether the pool that an IPAllocation is for exists, and is
// carved from the pool that the allocation names.
func (pr *poolRelations) childPoolSeen(parent, child pools.Key) grants.OwnerSeen {
	switch {
	case pr.Namespace != "" && child.Namespace != pr.Namespace:
		return grants.OwnerUnknown // out of view
	case pr.overlaps.declarationFor(child).parent != parent:
		return grants.OwnerNeverSeen
	}
	return grants.OwnerSeenAlive
}

// missingPoolRefusal returns the refusal for a claim whose pool does not exist. For a mirror, which no user should
// create, it names what keeps the mirror from existing.
func (pr *poolRelations) missingPoolRefusal(ctx context.Context, key pools.Key) *grants.Refusal {
	if pr.MissingMirrorReason != nil {
		if why := pr.MissingMirrorReason(ctx, key); why != "" {
			return grants.PoolNotReady("%s does not exist: %s", key, why)
		}
	}
	return grants.PoolNotReady("%s does not exist; create it, or create this object again with the right poolRef%s", key, pr.overlaps.suggestPoolName(key))
}
