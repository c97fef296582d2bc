package grants

import (
	"k8s.io/apimachinery/pkg/types"

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
	// counts is the number of claimants of each kind.
	counts map[ClaimantKind]int
	ByName map[types.NamespacedName]*Claimant
	// byOwner are the claimants that end with their owner, by owner: a Cluster, or the namespace of a carved
	// pool.
	byOwner map[types.NamespacedName]map[types.UID]*Claimant
	term.Tombstones
}

// ClaimantUIDFor returns the UID of the claimant that an address object belongs to, or "" if there is none. The
// object names its claimant, unless the garbage collector has removed that owner reference: it does so when the
// claimant is deleted in the foreground and the pool owns the object as well. The object then still belongs to the
// claimant of its name, if that is being deleted and has the same address on record.
func (cs *Claimants) ClaimantUIDFor(a *Address) types.UID {
	if a.ClaimantUID != "" || a.CreatedManually {
		return a.ClaimantUID
	}
	if c := cs.ByName[a.Key()]; c != nil && c.Deleting && c.HasRecord() && a.IP.IsValid() && c.RecordedRange.From() == a.IP {
		return c.Owner.UID
	}
	return ""
}

// ChildPoolFor returns the carved pool that a claimant is a block of. It is nil if the claimant is not a block, or is
// not known.
func (cs *Claimants) ChildPoolFor(uid types.UID) *pools.Key {
	if c := cs.ByUID[uid]; c != nil {
		return c.ChildPool
	}
	return nil
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

// KeepsManualAddress reports whether an address object without owners is left alone. One that a user deletes is
// released, unless the claimant of its name has its address on record.
func (cs *Claimants) KeepsManualAddress(s *Orphan) bool {
	if !s.CreatedManually || !s.Deleting {
		return s.CreatedManually
	}
	c := cs.ByName[s.Key()]
	return c != nil && c.RecordedRange.IsValid() && c.RecordedRange.From() == s.IP
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
