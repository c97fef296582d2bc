package grants

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// Resource is a kind of objects that name a pool: claimants, or what is attached to them.
type Resource interface {
	// Object is an empty object of the kind.
	Object() Object
	// PoolOf returns the pool that an object names: one without a kind, if that is none of ours. False: the object is
	// of another kind.
	PoolOf(o Object) (pools.Key, bool)
	// SetPool has an object name a pool.
	SetPool(o Object, pool pools.Key)
	// Mirrors reports whether an object names a pool of the in-cluster provider, and means the one that mirrors it.
	Mirrors(o Object) bool
}

// ObserveObject feeds an object of a kind, and reports whether the pool has something to do.
func (m *Memory) ObserveObject(r Resource, o Object) bool {
	switch k := r.(type) {
	case Kind:
		return m.Observe(k.Of(o))
	case Attacher:
		return m.ObserveAttached(k.Of(o))
	}
	return false
}

// ForgetObject feeds the proof that an object of a kind is gone.
func (m *Memory) ForgetObject(r Resource, o Object) {
	switch r.(type) {
	case Kind:
		m.Forget(o.GetUID())
	case Attacher:
		m.ForgetAttached(o.GetUID(), types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()})
	}
}

// Beyond is what is remembered of a kind and not among those listed: objects with a name, a UID and their pool. It costs
// nothing for those that were listed.
func (m *Memory) Beyond(r Resource, listed map[types.UID]struct{}) (out []Object) {
	add := func(namespace, name string, uid types.UID) {
		if _, is := listed[uid]; !is {
			o := Named(r.Object(), namespace, name)
			o.SetUID(uid)
			r.SetPool(o, m.Key)
			out = append(out, o)
		}
	}
	for _, c := range m.Claimants {
		if c.Kind == r {
			add(c.Owner.Namespace, c.Owner.Name, c.Owner.UID)
		}
	}
	for _, a := range m.Attached {
		if a.Kind.Traits().Attaches == r {
			add(a.Namespace, a.Name, a.UID)
		}
	}
	if carver, is := r.(Carver); is {
		out = append(out, m.blocksBeyond(carver, listed)...)
	}
	return out
}

// blocksBeyond is what is remembered of blocks and not among those listed.
func (m *Memory) blocksBeyond(r Carver, listed map[types.UID]struct{}) (out []Object) {
	for _, b := range m.Carved.all() {
		if _, is := listed[b.UID]; !is {
			o := Named(r.Object(), b.Namespace, b.Name)
			o.SetUID(b.UID)
			r.SetPool(o, b.Parent)
			r.SetChild(o, m.Key)
			out = append(out, o)
		}
	}
	return out
}

// Listed is what a consistent list found of one pool. The lists of several kinds add to it at once.
type Listed struct {
	mu        sync.Mutex
	Claimants []*Claimant
	Attached  []*Attached
	Blocks    []*Block
}

// AddBlock adds a block of the pool.
func (l *Listed) AddBlock(b *Block) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Blocks = append(l.Blocks, b)
}

// Add adds an object of a kind.
func (l *Listed) Add(r Resource, o Object) {
	switch k := r.(type) {
	case Kind:
		c := k.Of(o)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.Claimants = append(l.Claimants, c)
	case Attacher:
		a := k.Of(o)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.Attached = append(l.Attached, a)
	}
}

// ObserveAll feeds what a list has found.
func (m *Memory) ObserveAll(found *Listed) {
	for _, c := range found.Claimants {
		m.Observe(c)
	}
	for _, a := range found.Attached {
		m.ObserveAttached(a)
	}
	for _, b := range found.Blocks {
		m.ObserveBlock(b)
	}
}
