package grants

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// Claimants are the known claimants of the pool. ByUID has all of them, ByName those whose kind has address objects,
// byOwner those that are deleted with their owner, and counts is the size of ByUID by kind. The tombstones are of all
// objects that are proven to be gone (R7): claimants, IPAddresses and blocks.
type Claimants struct {
	// kinds are the kinds of claimants.
	kinds []ClaimantKind
	ByUID map[types.UID]*Claimant
	// counts is the number of claimants of each kind. byNamespace is how much the claimants of a kind in a
	// namespace have of what counts towards the quota of a namespace.
	counts map[ClaimantKind]int
	ByName map[types.NamespacedName]*Claimant
	// byOwner are the claimants that end with their owner, by owner: a Cluster, or the namespace of a carved
	// pool.
	byOwner map[types.NamespacedName]map[types.UID]*Claimant
	Gone    term.Tombstones
}

// ChildPoolFor returns the carved pool that a claimant is a block of. It is nil if the claimant is not a block, or is
// not known.
func (cs *Claimants) ChildPoolFor(uid types.UID) *pools.Key {
	if c := cs.ByUID[uid]; c != nil {
		return c.ChildPool
	}
	return nil
}

// FindUnknownKind returns the kind of a grant that no kind of claimants has; empty means that all are known. A grant
// without a kind is one of the first kind.
func (cs *Claimants) FindUnknownKind(inFlight []v1alpha1.Grant) string {
	for _, g := range inFlight {
		if g.Kind != "" && cs.kindByName(g.Kind).Traits().Name != g.Kind {
			return g.Kind
		}
	}
	return ""
}

// kindByName returns the kind of a name, or the first kind if none has that name.
func (cs *Claimants) kindByName(name string) ClaimantKind {
	for _, k := range cs.kinds {
		if k.Traits().Name == name {
			return k
		}
	}
	return cs.kinds[0]
}

// HasClaimantWith reports whether there is a claimant whose kind has a trait.
func (cs *Claimants) HasClaimantWith(matches func(*KindTraits) bool) bool {
	for k, n := range cs.counts {
		if n > 0 && matches(k.Traits()) {
			return true
		}
	}
	return false
}

// indexByOwner adds a claimant to byOwner, or removes it if indexed is false.
func (cs *Claimants) indexByOwner(c *Claimant, indexed bool) {
	if !c.Kind.Traits().DeletedWithOwner {
		return
	}
	key := c.ownerKey()
	of := cs.byOwner[key]
	switch {
	case indexed && of == nil:
		cs.byOwner[key] = map[types.UID]*Claimant{c.Owner.UID: c}
	case indexed:
		of[c.Owner.UID] = c
	default:
		if delete(of, c.Owner.UID); len(of) == 0 {
			delete(cs.byOwner, key)
		}
	}
}
