package grants

import (
	"fmt"
	"net/netip"

	"go4.org/netipx"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
)

// PreAllocated finds what preAllocations keep for the name of a claimant; false: nothing.
func (m *Memory) PreAllocated(c *Claimant) (r netipx.IPRange, no *Refusal, is bool) {
	if pin, ok := m.Layout.Pin(c.Owner.Name); ok {
		r, no = m.ThisAddress(c, pin, "preAllocated", fmt.Sprintf("or change spec.preAllocations[%s] of %s", c.Owner.Name, m.Key))
		return r, no, true
	}
	if problem := m.Layout.Unfit(c.Owner.Name); problem != "" {
		return r, Failed("the preAllocated address cannot be given to anybody: spec.preAllocations[%s] of %s: %s", c.Owner.Name, m.Key, problem), true
	}
	return r, nil, false
}

// ThisAddress gives a claimant one address, that and no other; what says why it is that, instead what can be done but wait.
func (m *Memory) ThisAddress(c *Claimant, ip netip.Addr, what, instead string) (netipx.IPRange, *Refusal) {
	r := m.Ledger.Unit(ip)
	if h := m.Blocker(r, c.Owner); h != nil {
		return netipx.IPRange{}, Failed("the %s address %s is held by %s; wait until it is released, %s", what, ip, m.DescribeFact(h), instead)
	}
	return r, nil
}

// RestingUnit finds what a claimant of the name had before, and rests for it.
func (m *Memory) RestingUnit(c *Claimant) netipx.IPRange {
	zones := m.zonesOf(c)
	return m.CoolingFor(c.Owner, func(r netipx.IPRange) bool { return m.Ledger.Unit(r.From()) == r && m.Ledger.InZones(r, zones) })
}

// NoAddress says that nothing is free. It says no numbers that change all the time: thousands may wait, and each would be
// told anew whenever one address comes to rest.
func (m *Memory) NoAddress() *Refusal {
	text := fmt.Sprintf("%s has no free address: its spec leaves none; %s", m.Key, m.addOrReserve())
	if m.Ledger.Counts().Total > 0 {
		text = fmt.Sprintf("%s has no free address: all are allocated, reserved or resting%s; add addresses to %s, or delete machines or claims%s", m.Key, m.sharedNote(), m.ThePool(), m.restNote())
	}
	return &Refusal{Reason: ipamv1.IPAddressClaimReadyPoolExhaustedReason, Message: text}
}

// addOrReserve is what to do where the spec leaves nothing: a mirror has that of its pool.
func (m *Memory) addOrReserve() string {
	if source := m.mirroredPool(); source != "" {
		return fmt.Sprintf("add addresses to %s, or exclude fewer", source)
	}
	return poolspec.AddOrReserve
}

// sharedNote says which pool has some of the addresses too, the first of several.
func (m *Memory) sharedNote() string {
	first := ""
	for _, key := range m.apart {
		if text := key.String(); first == "" || text < first {
			first = text
		}
	}
	if first == "" {
		return ""
	}
	return ", or " + first + " has them too"
}

// restNote says that what is released is not free at once.
func (m *Memory) restNote() string {
	if m.reuseGrace() == 0 {
		return ""
	}
	return fmt.Sprintf(": what is released becomes free by itself after addressReuseGracePeriodSeconds (%d)", int(m.reuseGrace().Seconds()))
}
