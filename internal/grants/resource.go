package grants

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// ResourceKind is a kind of objects that name a pool: claimants, or their address objects.
type ResourceKind interface {
	// NewObject returns an empty object of the kind.
	NewObject() Object
	// PoolKeyFor returns the pool that an object names. The key has no kind if the object names a kind of pool that
	// is not ours. It reports false if the object is of another kind.
	PoolKeyFor(o Object) (pools.Key, bool)
	// SetPoolRef makes an object name a pool.
	SetPoolRef(o Object, pool pools.Key)
	// UsesMirroredPool reports whether an object names a pool of the in-cluster provider, and so is served by its
	// mirror.
	UsesMirroredPool(o Object) bool
}

// ObserveObject records an object of a kind. It reports whether the pool has something to do.
func (m *PoolState) ObserveObject(r ResourceKind, o Object) bool {
	switch k := r.(type) {
	case ClaimantKind:
		return m.ObserveClaimant(k.NewClaimant(o))
	case AddressKind:
		return m.ObserveAddress(k.NewAddress(o))
	}
	return false
}

// ForgetObject records the proof that an object of a kind is gone.
func (m *PoolState) ForgetObject(r ResourceKind, o Object) {
	switch r.(type) {
	case ClaimantKind:
		m.ForgetClaimant(o.GetUID())
	case AddressKind:
		m.ForgetAddress(o.GetUID(), types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()})
	}
}

// UnlistedObjects returns the known objects of a kind that are not among the listed UIDs, as objects that have a
// name, a UID and their pool only. It costs no memory for the listed ones.
func (m *PoolState) UnlistedObjects(r ResourceKind, listed map[types.UID]struct{}) (out []Object) {
	add := func(namespace, name string, uid types.UID) {
		if _, ok := listed[uid]; !ok {
			o := WithName(r.NewObject(), namespace, name)
			o.SetUID(uid)
			r.SetPoolRef(o, m.Base.Key)
			out = append(out, o)
		}
	}
	for _, c := range m.Claimants.ByUID {
		if c.Kind == r {
			add(c.Owner.Namespace, c.Owner.Name, c.Owner.UID)
		}
	}
	for _, a := range m.Addresses.ByName {
		if a.Kind.Traits().AddressKind == r {
			add(a.Namespace, a.Name, a.UID)
		}
	}
	if carver, ok := r.(BlockKind); ok {
		out = append(out, m.Carved.unlistedBlocks(carver, listed)...)
	}
	return out
}

// ListedObjects are the objects of one pool in a consistent list. The lists of several kinds add to it concurrently.
type ListedObjects struct {
	mu        sync.Mutex
	Claimants []*Claimant
	Addresses []*Address
	Blocks    []*Block
}

// AddBlock adds a block of the pool.
func (l *ListedObjects) AddBlock(b *Block) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Blocks = append(l.Blocks, b)
}

// AddObject adds an object of a kind.
func (l *ListedObjects) AddObject(r ResourceKind, o Object) {
	switch k := r.(type) {
	case ClaimantKind:
		c := k.NewClaimant(o)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.Claimants = append(l.Claimants, c)
	case AddressKind:
		a := k.NewAddress(o)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.Addresses = append(l.Addresses, a)
	}
}

// ObserveListed records the objects of a list.
func (m *PoolState) ObserveListed(found *ListedObjects) {
	for _, c := range found.Claimants {
		m.ObserveClaimant(c)
	}
	for _, a := range found.Addresses {
		m.ObserveAddress(a)
	}
	for _, b := range found.Blocks {
		m.Held.ObserveBlock(b)
	}
}
