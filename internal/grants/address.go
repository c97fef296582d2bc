package grants

import (
	"fmt"
	"net/netip"

	"go4.org/netipx"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
)

// PreAllocatedRange returns the range that spec.preAllocations keep for the name of a claimant, or the refusal if the
// claimant cannot have it. ok reports whether the spec has a preAllocation for that name.
func (inv *Inventory) PreAllocatedRange(c *Claimant) (r netipx.IPRange, refusal *Refusal, ok bool) {
	if pin, ok := inv.Space.Layout.PinForClaim(c.Owner.Name); ok {
		r, refusal = inv.ExactAddressFor(c, pin, "preAllocated", fmt.Sprintf("or change spec.preAllocations[%s] of %s", c.Owner.Name, inv.Base.Key))
		return r, refusal, true
	}
	if problem := inv.Space.Layout.UnusablePinReason(c.Owner.Name); problem != "" {
		return r, AllocationFailed("the preAllocated address cannot be given to anybody: spec.preAllocations[%s] of %s: %s", c.Owner.Name, inv.Base.Key, problem), true
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
	if inv.Space.Ledger.Counts().Total > 0 {
		text = fmt.Sprintf("%s has no free address: all are allocated, reserved or resting%s; add addresses to %s, or delete machines or claims%s", inv.Base.Key, inv.Excluded.sharedPoolNote(), inv.Base.EditablePoolName(), inv.Base.reuseGraceNote())
	}
	return &Refusal{Reason: ipamv1.IPAddressClaimReadyPoolExhaustedReason, Message: text}
}
