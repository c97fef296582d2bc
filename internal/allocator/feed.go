package allocator

import (
	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// WatchedObjects returns empty objects of the kinds that are fed to the allocator.
func WatchedObjects() []client.Object {
	var out []client.Object
	for _, r := range resourceKinds {
		out = append(out, r.NewObject())
	}
	return out
}

// ObserveObject feeds an object that was seen, and returns its pool. The bool reports whether that pool needs a
// reconcile.
func (a *Allocator) ObserveObject(o client.Object) (pools.Key, bool) {
	return a.observeObject(o)
}

// observeObject is ObserveObject of the allocator.
func (a *Allocator) observeObject(o client.Object) (pools.Key, bool) {
	r, key := a.resourceKindForObject(o)
	if key == (pools.Key{}) {
		return key, false
	}
	a.observeBlock(o)
	m := a.lockPool(key)
	defer m.Unlock()
	return key, m.ObserveObject(r, o)
}

// ForgetObject feeds the proof that an object is gone, and returns its pool. The bool reports whether that pool needs a
// reconcile.
func (a *Allocator) ForgetObject(o client.Object) (pools.Key, bool) {
	return a.forgetObject(o)
}

// forgetObject is ForgetObject of the allocator.
func (a *Allocator) forgetObject(o client.Object) (pools.Key, bool) {
	r, key := a.resourceKindForObject(o)
	if key == (pools.Key{}) {
		return key, false
	}
	b, child := a.blockFromObject(o)
	var lost []netipx.IPRange
	if b != nil { // first: addresses of the block that the child pool still has in use are excluded
		if b.Moved {
			a.observeBlock(o) // its move may not have been observed before
		}
		lost = a.forgetBlock(child, o.GetUID(), o.GetName())
	}
	m := a.lockPool(key)
	defer m.Unlock()
	excludeLostRanges(m, lost, child)
	m.ForgetObject(r, o)
	return key, true
}

// ObjectsNotListed returns the remembered objects of the kind of an empty object that are not among those listed. The
// returned objects have a name, a UID and their pool.
func (a *Allocator) ObjectsNotListed(of client.Object, listed map[types.UID]struct{}) []client.Object {
	return a.unlistedObjects(of, listed)
}

// unlistedObjects is ObjectsNotListed of the allocator.
func (a *Allocator) unlistedObjects(of client.Object, listed map[types.UID]struct{}) []client.Object {
	var out []client.Object
	r, _ := a.resourceKindForObject(of)
	for _, p := range a.allPools() {
		m := p.Lock()
		for _, o := range m.UnlistedObjects(r, listed) {
			out = append(out, o)
		}
		m.Unlock()
	}
	return out
}
