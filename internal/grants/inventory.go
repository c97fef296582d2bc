package grants

import (
	"fmt"
	"time"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// Inventory is who has which address of the pool, and which one a claimant may have. It is all that the kinds of
// claimants get, and they only read it. It has no state of its own.
type Inventory struct {
	Base       *BasePool
	Space      *Space
	Claimants  *Claimants
	Addresses  *Addresses
	Cooling    *Cooling
	Grants     *Grants
	Carved     *CarvedPool
	Quarantine *Quarantine
	Excluded   *ExcludedRanges
	Quotas     *Quotas
}

// ReleaseFor returns the release of a claimant.
func (inv *Inventory) ReleaseFor(c *Claimant) Release {
	return Release{inv.ReleasableRange(c), c.Owner, inv.Cooling.coolingPeriodFor(c), c.UsedByOthers}
}

// ReleasableRange returns the range that becomes free with the end of a claimant.
func (inv *Inventory) ReleasableRange(c *Claimant) netipx.IPRange {
	return c.Kind.ReleasableRange(inv, c)
}

// HasUnpublishedGrant reports whether a claimant has a grant that was never published, neither in its status nor in
// an IPAddress. A consumer's finalizer does not keep such a grant in flight. A record that was written stays.
func (inv *Inventory) HasUnpublishedGrant(c *Claimant) bool {
	return inv.Grants.ByClaimant[c.Owner.UID] != nil && !c.StatusHasAddress && inv.Addresses.AddressFor(c) == nil
}

// NeedFor returns what has to be done for a claimant.
func (inv *Inventory) NeedFor(c *Claimant) Need {
	a := inv.Addresses.AddressFor(c)
	switch {
	case c.Moved:
		return NeedNothing
	case !c.Deleting:
		return c.Kind.NeedFor(inv, c)
	case c.HasFinalizer, a != nil && a.ClaimantUID == c.Owner.UID, inv.Grants.ByClaimant[c.Owner.UID] != nil:
		return NeedRelease
	}
	return NeedNothing
}

// takenRanges returns the ranges that are taken because of a claimant, apart from its grant. A range that is not
// valid overlaps with nothing.
func (inv *Inventory) takenRanges(c *Claimant) [2]netipx.IPRange {
	record, shown := c.Kind.TakenRanges(inv, c)
	return [2]netipx.IPRange{record, shown}
}

// OverlapMessageFor returns a message that names another owner of some addresses of a claimant. It is empty if there
// is none. The manager cannot resolve such an overlap: a user has to decide which of the two owners to delete.
func (inv *Inventory) OverlapMessageFor(c *Claimant) string {
	for _, r := range inv.takenRanges(c) {
		h := inv.Space.Ledger.FindOverlappingFact(r, func(h *ledger.Fact) bool {
			if other := inv.Claimants.ByUID[h.Owner.UID]; c.StatusHasAddress && h.Source == ledger.SourceRecord && other != nil && !other.StatusHasAddress {
				return false // any user can write a record
			}
			return h.Source.IsInUse() && h.Owner.UID != c.Owner.UID
		})
		if h != nil {
			return fmt.Sprintf("%s has %s too; find out which of the two uses it, and delete the other", inv.DescribeFact(h), poolutil.ShowRange(h.Range))
		}
	}
	return ""
}

// IsAdoptable reports whether a claimant may adopt the address object of its name: the claimant has the address on
// record (R2: a move or a restore gives claims new UIDs) or CanAdoptManual allows it, and no other claimant was
// granted the address since. The claimant adopts it once a live read shows that this claimant has the name, because
// the former one is gone then. An object that is being deleted cannot be adopted: it is void, and the record brings
// the address back.
func (inv *Inventory) IsAdoptable(c *Claimant, a *Address) bool {
	remembered := c.RecordedRange.IsValid() && a.IP.IsValid() && c.RecordedRange.From() == a.IP && inv.Claimants.ByUID[a.ClaimantUID] == nil
	if a.Deleting || inv.Carved.IsOutsideBlocks(a) || (!remembered && !a.Kind.Traits().AddressKind.CanAdoptManual(inv, c, a)) {
		return false
	}
	return inv.FindAdoptionBlocker(c, a) == nil
}

// FindAdoptionBlocker returns the fact that prevents a claimant from adopting an address object: another owner has
// the address. It returns nil if there is none.
func (inv *Inventory) FindAdoptionBlocker(c *Claimant, a *Address) *ledger.Fact {
	return inv.Space.Ledger.FindOverlappingFact(inv.Space.Ledger.UnitRange(a.IP), func(h *ledger.Fact) bool {
		former := h.UID == a.UID || (a.ClaimantUID != "" && h.Owner.UID == a.ClaimantUID)
		return h.Source.IsInUse() && !former && h.Owner.UID != c.Owner.UID && !inv.overridesRecord(c, h)
	})
}

// NextOrphanCheck returns when the next check of an orphan is due: when its grace period is over, or earlier if it
// was never checked or if it conflicts with another object.
func (inv *Inventory) NextOrphanCheck(s *Orphan, grace time.Duration) time.Time {
	if end := s.OrphanedSince.Add(grace); !s.OrphanedSince.IsZero() && end.After(s.RetryAt) && !inv.IsOrphanConflicting(s) {
		return end
	}
	return s.RetryAt
}

// IsOrphanConflicting reports whether an orphan should be removed without a grace period: a claim needs its name,
// another owner needs its address, or nothing is lost without it. A claim that has the address on record does not
// conflict, because it adopts the IPAddress; nor does a claim of a carved pool whose address is in no open block.
func (inv *Inventory) IsOrphanConflicting(s *Orphan) bool {
	if c := inv.Claimants.ByName[s.Key()]; c != nil {
		return !inv.IsAdoptable(c, s.Address) && !inv.Carved.IsOutsideBlocks(s.Address)
	}
	return s.Conflicts || s.NeverPublished || (s.IP.IsValid() && inv.FindBlockingFact(inv.Space.Ledger.UnitRange(s.IP), s.ledgerOwner()) != nil)
}

// isNewerThanRecord reports whether a fact that blocks addresses for all claimants began after a claimant had its
// addresses, so that it does not count against that claimant. This is so for addresses that are excluded, or that
// drain, and for addresses that are held, either together with the ranges around them or for the name of the
// claimant, which has come back. It is not so for excluded addresses of a block of a carved pool: the addresses that
// the carved pool has granted are not known, so what another pool has of the block is not its own.
func (inv *Inventory) isNewerThanRecord(h *ledger.Fact, c *Claimant) bool {
	if h.Source == ledger.SourceExcluded {
		return c.StatusHasAddress && c.ChildPool == nil
	}
	own := h.Owner.Name == "" || (h.Owner.Namespace == c.Owner.Namespace && h.Owner.Name == c.Owner.Name)
	return c.HasRecord() && (h.Source == ledger.SourceDraining || (h.Source == ledger.SourceHeld && own))
}

// overridesRecord reports whether a fact is the record of a claimant over which c has priority.
func (inv *Inventory) overridesRecord(c *Claimant, h *ledger.Fact) bool {
	other := inv.Claimants.ByUID[h.Owner.UID]
	return h.Source == ledger.SourceRecord && other != nil && c.hasRecordPriority(other)
}

// FindBlockingFact returns the first fact that keeps a range from an owner, or nil if there is none.
func (inv *Inventory) FindBlockingFact(r netipx.IPRange, o ledger.Owner) *ledger.Fact {
	return inv.Space.Ledger.FindOverlappingFact(r, func(h *ledger.Fact) bool { return inv.isBlocking(h, o) })
}

// isBlocking reports whether a fact keeps its range from an owner.
func (inv *Inventory) isBlocking(h *ledger.Fact, o ledger.Owner) bool {
	switch h.Source {
	case ledger.SourcePin:
		return h.Owner.Name != o.Name || !inv.Claimants.kindByName(o.Kind).Traits().AllowsPreAllocation
	case ledger.SourceCooling:
		return h.Owner.Namespace != o.Namespace || h.Owner.Name != o.Name
	case ledger.SourceExcluded:
		// Addresses that a carved pool uses outside its blocks do not keep the pool from getting that block back.
		c := inv.Claimants.ByUID[o.UID]
		return c == nil || c.ChildPool == nil || c.ChildPool.String() != h.Owner.Name
	case ledger.SourceRecord:
		// Any user can write a record. It does not keep a pre-allocated address from the name that the address is
		// for.
		c := inv.Claimants.ByUID[h.UID]
		return (h.Owner.UID != o.UID || o.UID == "") && (c == nil || c.HasFinalizer || c.StatusHasAddress || !inv.isPinnedFor(h.Range, o))
	default:
		return h.Owner.UID != o.UID || o.UID == ""
	}
}

// isPinnedFor reports whether a range is pre-allocated to the name of an owner.
func (inv *Inventory) isPinnedFor(r netipx.IPRange, o ledger.Owner) bool {
	if inv.Space.Layout == nil || !inv.Claimants.kindByName(o.Kind).Traits().AllowsPreAllocation {
		return false
	}
	pin, ok := inv.Space.Layout.PinForClaim(o.Name)
	return ok && r.Contains(pin)
}

// DescribeFact returns a description of the owner of a fact for messages.
func (inv *Inventory) DescribeFact(h *ledger.Fact) string {
	owner := h.Owner.Name
	if h.Owner.Namespace != "" {
		owner = h.Owner.Namespace + "/" + h.Owner.Name
	}
	switch h.Source {
	case ledger.SourceObject, ledger.SourceRecord, ledger.SourceGrant:
		if a := inv.Claimants.kindByName(h.Owner.Kind).Traits().AddressKind; a != nil && h.Source == ledger.SourceObject && inv.Claimants.ByUID[h.Owner.UID] == nil {
			return a.KindName() + " " + owner + " (without a claim)"
		}
		return h.Owner.Kind + " " + owner
	case ledger.SourcePin:
		return "a preAllocation for claims named " + owner
	case ledger.SourceCooling:
		if owner == "" {
			return "its cooling, until the time in status.cooling of the pool"
		}
		return "its reuse grace period (released by " + owner + ")"
	case ledger.SourceHeld:
		if owner == "" {
			return "an entry of status.held"
		}
		return "an entry of status.held (last used by " + owner + ")"
	case ledger.SourceExcluded:
		return owner + ", which has it too"
	case ledger.SourceDraining:
		return "block " + owner + ", which is being released"
	}
	return owner
}

// CheckGrantConflict returns an error that names the object that has the granted range of a claimant, or nil if none
// has. A restore can bring back a pool with grants whose addresses were granted to others since (R10).
func (inv *Inventory) CheckGrantConflict(c *Claimant, g *Grant) error {
	if h := inv.Space.Ledger.FindOverlappingFact(g.Range, func(h *ledger.Fact) bool { return h.Source == ledger.SourceObject && inv.isBlocking(h, c.Owner) }); h != nil {
		return fmt.Errorf("%s was granted to this %s, but %s has it; find out which of the two uses it, and delete the other", poolutil.ShowRange(g.Range), c.Owner.Kind, inv.DescribeFact(h))
	}
	return nil
}

// DescribeFirstWithheld returns the end of a sentence that names the first address of a range that the pool does not
// allocate, and why. It is empty if there is none.
func (inv *Inventory) DescribeFirstWithheld(r netipx.IPRange) string {
	if inv.Space.Layout == nil {
		return ""
	}
	a, withheld := poolspec.FirstWithheldAddress(inv.Space.Layout, r)
	if !withheld {
		return ""
	}
	return fmt.Sprintf(", such as %s, which is %s", a, poolspec.WithheldReason(inv.Base.Pool.PoolSpec(), inv.Space.Layout, a))
}

// hasOtherAddress reports whether an IPAddress of another owner has some of a range.
func (inv *Inventory) hasOtherAddress(r netipx.IPRange, o ledger.Owner) bool {
	return inv.Space.Ledger.FindOverlappingFact(r, func(h *ledger.Fact) bool {
		return h.Source == ledger.SourceObject && inv.isBlocking(h, o)
	}) != nil
}
