package allocator

import (
	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// objectFeed feeds objects, and the proof that an object is gone, to the pools. What happens to a block is fed to the
// pool that it is for before the pool that it was carved from: addresses that are in use there stay excluded.
type objectFeed struct {
	scope *servedScope
	queue *workQueue
	pools *poolSet
}

// observeObject feeds an object to the pool that it names, and before that to the pool that it is a block for. The bool
// reports whether the first needs a reconcile.
func (fd *objectFeed) observeObject(o client.Object) (pools.Key, bool) {
	r, key := fd.scope.resourceKindForObject(o)
	if key == (pools.Key{}) {
		return key, false
	}
	fd.observeBlock(o)
	m := fd.pools.lockPool(key)
	defer m.Unlock()
	return key, m.ObserveObject(r, o)
}

// forgetObject feeds to the same pools the proof that an object is gone.
func (fd *objectFeed) forgetObject(o client.Object) (pools.Key, bool) {
	r, key := fd.scope.resourceKindForObject(o)
	if key == (pools.Key{}) {
		return key, false
	}
	b, child := fd.scope.blockFromObject(o)
	var lost []netipx.IPRange
	if b != nil { // first: addresses of the block that the child pool still has in use are excluded
		if b.Moved {
			fd.observeBlock(o) // its move may not have been observed before
		}
		lost = fd.forgetBlock(child, o.GetUID(), o.GetName())
	}
	m := fd.pools.lockPool(key)
	defer m.Unlock()
	excludeLostRanges(m, lost, child)
	m.ForgetObject(r, o)
	return key, true
}

// unlistedObjects returns the remembered objects of a kind that are not among those listed.
func (fd *objectFeed) unlistedObjects(of client.Object, listed map[types.UID]struct{}) []client.Object {
	var out []client.Object
	r, _ := fd.scope.resourceKindForObject(of)
	for _, p := range fd.pools.allPools() {
		m := p.Lock()
		for _, o := range m.UnlistedObjects(r, listed) {
			out = append(out, o)
		}
		m.Unlock()
	}
	return out
}

// forgetClaimant feeds the proof that a claimant is gone, first to the pool that it is a block for: addresses of the
// block that are in use there are excluded from other grants.
func (fd *objectFeed) forgetClaimant(p *grants.Pool, c grants.Claimant) {
	var lost []netipx.IPRange
	if c.ChildPool != nil {
		lost = fd.forgetBlock(*c.ChildPool, c.Owner.UID, c.Owner.Name)
	}
	m := p.Lock()
	defer m.Unlock()
	if c.ChildPool != nil {
		excludeLostRanges(m, lost, *c.ChildPool)
	}
	m.ForgetClaimant(c.Owner.UID)
}

// observeBlock feeds an object to the pool that it is a block for.
func (fd *objectFeed) observeBlock(o client.Object) {
	b, child := fd.scope.blockFromObject(o)
	if b == nil {
		return
	}
	m := fd.pools.lockPool(child)
	wake := m.ObserveBlock(b)
	m.Unlock()
	if wake {
		fd.queue.enqueuePool(child)
	}
}

// forgetBlock feeds the proof that a block is gone. It returns the ranges that the pool has open of blocks that are
// gone.
func (fd *objectFeed) forgetBlock(child pools.Key, uid types.UID, name string) []netipx.IPRange {
	m := fd.pools.lockPool(child)
	m.Carved.ForgetBlock(uid, name)
	lost := m.Observed.LostBlockRanges()
	m.Unlock()
	fd.queue.enqueuePool(child)
	return lost
}

// excludeLostRanges excludes from a pool what another pool, which blocks of it were carved for, has open of blocks that
// are gone. The caller holds the lock under which the end of such a block is recorded.
func excludeLostRanges(m *grants.PoolState, lost []netipx.IPRange, child pools.Key) {
	for _, r := range lost {
		m.Excluded.ExcludeRange(r, child)
	}
}
