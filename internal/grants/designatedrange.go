package grants

import (
	"fmt"
	"net/netip"

	"go4.org/netipx"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// PreAllocatedRange returns the range that spec.preAllocations keep for the name of a claimant, or the refusal if the
// claimant cannot have it. ok reports whether the spec has a preAllocation for that name.
func (inv *Inventory) PreAllocatedRange(c *Claimant) (r netipx.IPRange, refusal *Refusal, ok bool) {
	if pin, ok := inv.Space.Layout.PinForClaim(c.Owner.Name); ok {
		r, refusal = inv.ExactAddressFor(c, pin, "preAllocated", fmt.Sprintf("or change spec.preAllocations[%s] of %s", c.Owner.Name, inv.Base.Key))
		return r, refusal, true
	}
	if problem := inv.Space.Layout.UnusablePinReason(c.Owner.Name); problem != "" {
		return r, AllocationFailed("the preAllocated address cannot be granted: spec.preAllocations[%s] of %s: %s", c.Owner.Name, inv.Base.Key, problem), true
	}
	return r, nil, false
}

// ExactAddressFor returns the unit of one address for a claimant, or the refusal if another fact blocks it. It never
// falls back to another address. The refusal uses origin to describe why the claimant needs this address ("requested",
// for example), and instead to describe what a user can do besides waiting.
func (inv *Inventory) ExactAddressFor(c *Claimant, ip netip.Addr, origin, instead string) (netipx.IPRange, *Refusal) {
	r := inv.Space.Ledger.UnitRange(ip)
	if h := inv.FindBlockingFact(r, c.Owner); h != nil {
		return netipx.IPRange{}, AllocationFailed("the %s address %s is held by %s; wait until it is released, %s", origin, ip, inv.DescribeFact(h), instead)
	}
	return r, nil
}

// CoolingUnitFor returns a unit that cools down for the name of a claimant, because an earlier claimant of that name
// released it. The range is not valid if there is none.
func (inv *Inventory) CoolingUnitFor(c *Claimant) netipx.IPRange {
	zones := inv.Space.zonesForClaimant(c)
	return inv.FindCoolingRange(c.Owner, func(r netipx.IPRange) bool {
		return inv.Space.Ledger.UnitRange(r.From()) == r && inv.Space.Ledger.IsInZones(r, zones)
	})
}

// NoFreeAddressRefusal returns the refusal that reports that no address is free. Its message has no numbers that
// change all the time: thousands of claims may wait, and the status of each would be written again whenever one
// address starts to cool down.
func (inv *Inventory) NoFreeAddressRefusal() *Refusal {
	text := fmt.Sprintf("%s has no free address: its spec leaves none; %s", inv.Base.Key, inv.Base.addAddressesAdvice())
	switch {
	case inv.Space.Ledger.Counts().Total == 0:
	case inv.Space.Layout.HasOnlyPins():
		text = fmt.Sprintf("%s has no free address: spec.preAllocations keep all that it hands out for claims of other names; add addresses to %s, or remove entries of its spec.preAllocations", inv.Base.Key, inv.Base.EditablePoolName())
	default:
		text = fmt.Sprintf("%s has no free address: all are allocated, reserved or resting%s; add addresses to %s, or delete machines or claims%s", inv.Base.Key, inv.Excluded.sharedPoolNote(), inv.Base.EditablePoolName(), inv.Cooling.reuseGraceNote())
	}
	return &Refusal{Reason: ipamv1.IPAddressClaimReadyPoolExhaustedReason, Message: text}
}

// FindCoolingRange returns a range that cools down for the name of an owner, fits, and is not blocked by another
// fact. It is not valid if there is none.
func (inv *Inventory) FindCoolingRange(o ledger.Owner, fits func(netipx.IPRange) bool) netipx.IPRange {
	for _, r := range inv.Cooling.Periods.RangesForClaim(NamespacedNameFromOwner(o)) {
		if fits(r) && inv.Space.Ledger.IsInSpace(r) && inv.FindBlockingFact(r, o) == nil {
			return r
		}
	}
	return netipx.IPRange{}
}

// RequestedByRecord returns the range that a claimant requests by a record without our finalizer, which a restore
// leaves that strips finalizers. It is not valid if the range does not fit, or if another owner has some of it. Users
// can write that annotation as well: it only selects one of the ranges that the claimant may have by all other rules
// (ADR 50).
func (inv *Inventory) RequestedByRecord(c *Claimant, fits func(netipx.IPRange) bool) netipx.IPRange {
	r := c.RecordedRange
	if c.HasFinalizer || !r.IsValid() || !fits(r) || !inv.Space.Ledger.IsInSpace(r) || inv.FindBlockingFact(r, c.Owner) != nil {
		return netipx.IPRange{}
	}
	return r
}

// StatusNeedFor returns what has to be done for a claimant that is not being deleted. complete reports whether its
// record and its status have everything that they should have for the range on record.
func (inv *Inventory) StatusNeedFor(c *Claimant, complete func() bool) Need {
	shows := c.HasRecord() && c.PublishedRange == c.RecordedRange
	switch {
	case shows && !c.Paused && complete(): // a paused one still has to show the pause
		return NeedNothing
	case shows, inv.Quarantine.ShouldAdopt(c), inv.Grants.ByClaimant[c.Owner.UID] != nil:
		return NeedWrite
	}
	return NeedGrant
}

// EntitledRange returns the range that a claimant in service should have: the one on record stays valid, and a status
// that differs is corrected. If the range is not valid, the returned step is the one to take instead.
func (inv *Inventory) EntitledRange(c *Claimant, t *Attempt) (netipx.IPRange, Step) {
	var r netipx.IPRange
	switch {
	case inv.Quarantine.ShouldAdopt(c):
		r = c.PublishedRange
	case c.HasRecord():
		r = c.RecordedRange
	}
	if g := inv.Grants.ByClaimant[c.Owner.UID]; g != nil && !g.Confirmed {
		if t.Grant == nil {
			return netipx.IPRange{}, StopStep() // the job has waited too long
		}
		r = g.Range
		if err := inv.CheckGrantConflict(c, g); err != nil {
			return netipx.IPRange{}, ErrorStep(err)
		}
	}
	// Another range was recorded.
	if c.HasRecord() && r.IsValid() && c.RecordedRange != r && t.TermVerifiedVersion != c.ResourceVersion {
		return netipx.IPRange{}, NewStep(VerifyTerm)
	}
	return r, StopStep()
}

// RecordedRangeFor returns the range r that a claimant has on record, or the refusal if it cannot have that. Users
// can write the annotation as well: a range that the claimant never had must be one that the pool allocates, and no
// other owner may have any of it (R1).
func (inv *Inventory) RecordedRangeFor(c *Claimant, r netipx.IPRange) (netipx.IPRange, *Refusal) {
	if inv.Base.isCarved() && !inv.Carved.isWithinOpenBlocks(r) {
		return netipx.IPRange{}, AllocationFailed("the annotation %s requests %s, which is in no block of %s; it is granted again with that block, or create the claim again for another address",
			v1alpha1.AddressAnnotation, c.RecordAnnotation, inv.Base.Key)
	}
	if r != c.RecordedRange || (!c.StatusHasAddress && !inv.Space.Ledger.IsInSpace(r)) {
		return netipx.IPRange{}, AllocationFailed("the annotation %s requests %s, which %s does not grant; create this object again without the annotation",
			v1alpha1.AddressAnnotation, c.RecordAnnotation, inv.Base.Key)
	}
	h := inv.Space.Ledger.FindOverlappingFact(r, func(h *ledger.Fact) bool {
		before := (h.Source == ledger.SourcePin && c.StatusHasAddress) || inv.isNewerThanRecord(h, c) // it had the address before
		return !before && inv.isBlocking(h, c.Owner) && !inv.overridesRecord(c, h)
	})
	switch {
	case h == nil:
		return r, nil
	case h.Source == ledger.SourceObject && c.MayChangeAddress():
		return netipx.IPRange{}, nil // any other range will do
	}
	return netipx.IPRange{}, AllocationFailed("the address %s, which the annotation %s records for this object, is held by %s; "+
		"find out which of the two uses it, and delete the other", poolutil.ShowRange(r), v1alpha1.AddressAnnotation, inv.DescribeFact(h))
}
