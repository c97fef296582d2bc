package grants

import (
	"fmt"
	"net/netip"

	"go4.org/netipx"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
)

// PreAllocatedRange returns the range that spec.preAllocations keep for the name of a claimant, or the refusal if the
// claimant cannot have it. ok reports whether the spec has a preAllocation for that name.
func (m *PoolState) PreAllocatedRange(c *Claimant) (r netipx.IPRange, refusal *Refusal, ok bool) {
	if pin, ok := m.Layout.PinForClaim(c.Owner.Name); ok {
		r, refusal = m.ExactAddressFor(c, pin, "preAllocated", fmt.Sprintf("or change spec.preAllocations[%s] of %s", c.Owner.Name, m.Key))
		return r, refusal, true
	}
	if problem := m.Layout.UnusablePinReason(c.Owner.Name); problem != "" {
		return r, AllocationFailed("the preAllocated address cannot be given to anybody: spec.preAllocations[%s] of %s: %s", c.Owner.Name, m.Key, problem), true
	}
	return r, nil, false
}

// ExactAddressFor returns the unit of one address for a claimant, or the refusal if another fact blocks it. It never
// falls back to another address. The refusal uses origin to describe why the claimant needs this address ("requested",
// for example), and instead to describe what a user can do besides waiting.
func (m *PoolState) ExactAddressFor(c *Claimant, ip netip.Addr, origin, instead string) (netipx.IPRange, *Refusal) {
	r := m.Ledger.UnitRange(ip)
	if h := m.FindBlockingFact(r, c.Owner); h != nil {
		return netipx.IPRange{}, AllocationFailed("the %s address %s is held by %s; wait until it is released, %s", origin, ip, m.DescribeFact(h), instead)
	}
	return r, nil
}

// CoolingUnitFor returns a unit that cools down for the name of a claimant, because an earlier claimant of that name
// released it. The range is not valid if there is none.
func (m *PoolState) CoolingUnitFor(c *Claimant) netipx.IPRange {
	zones := m.zonesForClaimant(c)
	return m.FindCoolingRange(c.Owner, func(r netipx.IPRange) bool { return m.Ledger.UnitRange(r.From()) == r && m.Ledger.IsInZones(r, zones) })
}

// NoFreeAddressRefusal returns the refusal that reports that no address is free. Its message has no numbers that
// change all the time: thousands of claims may wait, and the status of each would be written again whenever one
// address starts to cool down.
func (m *PoolState) NoFreeAddressRefusal() *Refusal {
	text := fmt.Sprintf("%s has no free address: its spec leaves none; %s", m.Key, m.addAddressesAdvice())
	if m.Ledger.Counts().Total > 0 {
		text = fmt.Sprintf("%s has no free address: all are allocated, reserved or resting%s; add addresses to %s, or delete machines or claims%s", m.Key, m.sharedPoolNote(), m.EditablePoolName(), m.reuseGraceNote())
	}
	return &Refusal{Reason: ipamv1.IPAddressClaimReadyPoolExhaustedReason, Message: text}
}

// addAddressesAdvice returns the advice for a pool whose spec leaves no address. For a mirror the advice names the
// mirrored pool, because the spec comes from there.
func (m *PoolState) addAddressesAdvice() string {
	if source := m.mirroredPoolName(); source != "" {
		return fmt.Sprintf("add addresses to %s, or exclude fewer", source)
	}
	return poolspec.AdviceAddAddresses
}

// sharedPoolNote returns a note that names another pool of the network that has some of the addresses: the first one
// by name if there are several. It is empty if there is none.
func (m *PoolState) sharedPoolNote() string {
	first := ""
	for _, key := range m.excluded {
		if text := key.String(); first == "" || text < first {
			first = text
		}
	}
	if first == "" {
		return ""
	}
	return ", or " + first + " has them too"
}

// reuseGraceNote returns a note that released addresses are not free at once. It is empty if the pool has no reuse
// grace period.
func (m *PoolState) reuseGraceNote() string {
	if m.reuseGracePeriod() == 0 {
		return ""
	}
	return fmt.Sprintf(": what is released becomes free by itself after addressReuseGracePeriodSeconds (%d)", int(m.reuseGracePeriod().Seconds()))
}
