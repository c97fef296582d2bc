package grants

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
)

// Addresses are the known IPAddresses of the pool, by name. Those without a known claim, which are not being moved,
// are the orphans. An Address does not change: a newer version replaces it.
type Addresses struct {
	ByName map[types.NamespacedName]*Address
	// Orphans are the IPAddresses without a known claim.
	Orphans map[types.NamespacedName]*Orphan
	// NextOrphanSweep is when the next check for claimants without their owner is due.
	NextOrphanSweep time.Time

	claimants *Claimants
	space     *Space
}

// assignClaimant assigns an observed address object to the claimant of its name, if the deletion of the claimant was
// observed after the object. It returns the Address that the pool has from then on.
func (as *Addresses) assignClaimant(a *Address) *Address {
	uid := as.claimants.ClaimantUIDFor(a)
	if uid == a.ClaimantUID {
		return a
	}
	assigned := *a // jobs read the old one without the lock
	assigned.ClaimantUID = uid
	as.addAddress(&assigned)
	return &assigned
}

// addAddress stores an address object, and adds the fact about its address to the ledger.
func (as *Addresses) addAddress(a *Address) {
	as.ByName[a.Key()] = a
	if a.IP.IsValid() {
		as.space.Ledger.AddFact(ledger.Fact{Key: ledger.Key{Source: ledger.SourceObject, UID: a.UID}, Owner: a.ledgerOwner(), Range: as.space.Ledger.UnitRange(a.IP)})
	}
}

// IsFinalizerHeld reports whether only finalizers of other controllers keep the IPAddress of a deleted claim. There
// is nothing left for this manager to do then, and the watch shows when the IPAddress is gone.
func (as *Addresses) IsFinalizerHeld(c *Claimant) bool {
	addr := as.AddressFor(c)
	return addr != nil && addr.ClaimantUID == c.Owner.UID && addr.Deleting && !addr.HasFinalizer && len(addr.OtherFinalizers) > 0
}

// AddressFor returns the address object of the name of a claimant, or nil if there is none or the kind of the
// claimant has none.
func (as *Addresses) AddressFor(c *Claimant) *Address {
	if c.Kind.Traits().AddressKind == nil {
		return nil
	}
	return as.ByName[NamespacedNameFromOwner(c.Owner)]
}

// MarkNeverPublished marks the address object of a claimant that has ended as never published, if the status of the
// claimant never named it.
func (as *Addresses) MarkNeverPublished(c *Claimant, a *Address) {
	if s := as.Orphans[a.Key()]; s != nil && s.UID == a.UID && a.ClaimantUID == c.Owner.UID && !c.StatusHasAddress {
		s.NeverPublished = true
	}
}
