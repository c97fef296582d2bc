package allocator

import (
	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// Resources are empty objects of the kinds that the allocator is fed with.
func Resources() []client.Object {
	var out []client.Object
	for _, r := range resources {
		out = append(out, r.Object())
	}
	return out
}

// Observe feeds an object that was seen, and returns the pool to reconcile for it.
func (a *Allocator) Observe(o client.Object) (pools.Key, bool) {
	r, key := a.resourceOf(o)
	if key == (pools.Key{}) {
		return key, false
	}
	a.observeBlock(o)
	m := a.locked(key)
	defer m.Unlock()
	return key, m.ObserveObject(r, o)
}

// Forget feeds the proof that an object is gone.
func (a *Allocator) Forget(o client.Object) (pools.Key, bool) {
	r, key := a.resourceOf(o)
	if key == (pools.Key{}) {
		return key, false
	}
	b, child := a.blockOf(o)
	var lost []netipx.IPRange
	if b != nil { // first: what it still has of the block is kept from others
		if b.Moved {
			a.observeBlock(o) // who moved it, nobody may have been told before
		}
		lost = a.forgetBlock(child, o.GetUID(), o.GetName())
	}
	m := a.locked(key)
	defer m.Unlock()
	a.keepLost(m, lost, child)
	m.ForgetObject(r, o)
	return key, true
}

// Beyond returns what is remembered of the kind of an empty object, and not among those listed: objects that have a
// name, a UID and their pool.
func (a *Allocator) Beyond(of client.Object, listed map[types.UID]struct{}) []client.Object {
	var out []client.Object
	r, _ := a.resourceOf(of)
	for _, p := range a.all() {
		m := p.Lock()
		for _, o := range m.Beyond(r, listed) {
			out = append(out, o)
		}
		m.Unlock()
	}
	return out
}
