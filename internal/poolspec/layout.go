// Package poolspec compiles the spec of a pool to sets of addresses, and finds its errors. Webhooks and reconcilers use
// the same functions: a pool is as safe without webhooks, and its errors are as clear.
package poolspec

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// Layout is the compiled spec of a pool.
type Layout struct {
	is6               bool
	unitBits          int
	declared          *netipx.IPSet
	allocatable       *netipx.IPSet
	allocatableRanges []netipx.IPRange // of allocatable
	grantable         *netipx.IPSet    // allocatable and the units of pins
	grantableRanges   []netipx.IPRange // of grantable
	onlyPins          bool             // whether grantable are the units of pins alone
	subnets           []subnet
	zones             []subnetZone
	cidr              netip.Prefix   // spec.cidr; the zero prefix if there is none
	addressCIDRs      []netip.Prefix // the CIDRs of spec.addresses
	blocks            []carvedBlock  // the open blocks of a carved pool
	prefixLength      *int32
	gateway           netip.Addr
	pins              map[string]netip.Addr
	pinOwners         map[netip.Addr]string
	unusablePins      map[string]string // preAllocations of a carved pool that no claim can have, and why
}

// subnet is a network of addresses. The gateway is invalid where there is none.
type subnet struct {
	prefix  netip.Prefix
	gateway netip.Addr
}

// Is6 reports whether the pool's family is IPv6.
func (l *Layout) Is6() bool { return l.is6 }

// UnitBits returns the prefix length of the unit that each claim gets: 32 or 128 for single addresses.
func (l *Layout) UnitBits() int { return l.unitBits }

// Allocatable returns the addresses that may be handed out to any claim: the declared addresses inside
// tenantAllocation, without reserved ones, gateways, and the first and last address of each subnet. Where whole
// prefixes are handed out, it has the whole prefixes among them.
func (l *Layout) Allocatable() *netipx.IPSet { return l.allocatable }

// Grantable returns all addresses that the pool may grant: the allocatable ones, and the units of the preAllocations,
// which may be reserved or outside tenantAllocation. Use it to keep pools from granting the same address.
func (l *Layout) Grantable() *netipx.IPSet { return l.grantable }

// GrantableRanges returns the ranges of Grantable, ascending. The slice is shared and must not be changed.
func (l *Layout) GrantableRanges() []netipx.IPRange { return l.grantableRanges }

// MayGrant reports whether a range is grantable as a whole.
func (l *Layout) MayGrant(r netipx.IPRange) bool { return containsRange(l.grantableRanges, r) }

// addPinsToGrantable computes the grantable addresses from the pins and the allocatable ones.
func (l *Layout) addPinsToGrantable() {
	l.allocatableRanges = l.allocatable.Ranges()
	l.grantable, l.grantableRanges, l.onlyPins = l.allocatable, l.allocatableRanges, false
	if len(l.pins) == 0 {
		return
	}
	var b, rest netipx.IPSetBuilder
	b.AddSet(l.allocatable)
	rest.AddSet(l.allocatable)
	for _, pin := range l.pins {
		unit := netip.PrefixFrom(pin, min(l.unitBits, pin.BitLen())).Masked()
		b.AddPrefix(unit)
		rest.RemovePrefix(unit)
	}
	l.grantable, _ = b.IPSet() // cannot fail: the addresses are valid
	l.grantableRanges = l.grantable.Ranges()
	left, _ := rest.IPSet()
	l.onlyPins = len(left.Ranges()) == 0
}

// Declared returns the addresses that the spec names in cidr and addresses.
func (l *Layout) Declared() *netipx.IPSet { return l.declared }

// Contains reports whether a range is allocatable as a whole.
func (l *Layout) Contains(r netipx.IPRange) bool {
	return containsRange(l.allocatableRanges, r)
}

// containsRange reports whether one of the ranges, which are ascending, contains r.
func containsRange(ranges []netipx.IPRange, r netipx.IPRange) bool {
	i, _ := slices.BinarySearchFunc(ranges, r.From(), func(other netipx.IPRange, a netip.Addr) int { return other.To().Compare(a) })
	return r.IsValid() && i < len(ranges) && ranges[i].Contains(r.From()) && ranges[i].Contains(r.To())
}

// NetworkForAddress returns the prefix length and the gateway of an IPAddress. The gateway is empty where there is
// none. A pool of prefixes returns their length.
func (l *Layout) NetworkForAddress(a netip.Addr) (prefix int32, gateway string) {
	if l.unitBits < a.BitLen() {
		return int32(l.unitBits), ""
	}
	n := l.subnetForAddress(a)
	if n.gateway.IsValid() {
		gateway = n.gateway.String()
	}
	return int32(n.prefix.Bits()), gateway
}

// Gateways returns the gateways that the spec names, including duplicates.
func (l *Layout) Gateways() []netip.Addr {
	var out []netip.Addr
	if l.gateway.IsValid() {
		out = append(out, l.gateway)
	}
	for _, s := range l.subnets {
		if s.gateway.IsValid() {
			out = append(out, s.gateway)
		}
	}
	for _, b := range l.blocks {
		if b.gateway.IsValid() {
			out = append(out, b.gateway)
		}
	}
	return out
}

// specNetworks returns the networks outside spec.subnets for a spec without spec.prefix: spec.cidr and the CIDRs of
// spec.addresses.
func (l *Layout) specNetworks() []netip.Prefix {
	if !l.cidr.IsValid() {
		return l.addressCIDRs
	}
	return append([]netip.Prefix{l.cidr}, l.addressCIDRs...)
}

// subnetForAddress returns the network of an address: in a carved pool that of its block, else the smallest of
// spec.subnets that contains it, else the one of length spec.prefix, else spec.cidr, else the smallest CIDR of
// spec.addresses, else the address alone. Outside spec.subnets the gateway is spec.gateway.
func (l *Layout) subnetForAddress(a netip.Addr) subnet {
	if i := slices.IndexFunc(l.blocks, func(b carvedBlock) bool { return b.prefix.Contains(a) }); i >= 0 {
		return l.blocks[i].subnetForAddress(a)
	}
	best := subnet{}
	for _, s := range l.subnets {
		if s.prefix.Contains(a) && (!best.prefix.IsValid() || s.prefix.Bits() > best.prefix.Bits()) {
			best = s
		}
	}
	switch {
	case best.prefix.IsValid():
		return best
	case l.prefixLength != nil:
		return subnet{netip.PrefixFrom(a, int(*l.prefixLength)).Masked(), l.gateway}
	case l.cidr.Contains(a):
		return subnet{l.cidr, l.gateway}
	}
	alone := netip.PrefixFrom(a, a.BitLen())
	smallest := alone
	for _, p := range l.addressCIDRs {
		if p.Contains(a) && (smallest == alone || p.Bits() > smallest.Bits()) {
			smallest = p
		}
	}
	return subnet{smallest, l.gateway}
}

// PinForClaim returns the address that is reserved for claims of a name.
func (l *Layout) PinForClaim(claimName string) (netip.Addr, bool) {
	a, ok := l.pins[claimName]
	return a, ok
}

// UnusablePinReason returns why no claim can get the address that is reserved for claims of a name: the block of a
// carved pool that contains it came later than the pin. It returns "" if claims can get it.
func (l *Layout) UnusablePinReason(claimName string) string { return l.unusablePins[claimName] }

// PinOwner returns the claim name for which an address is reserved.
func (l *Layout) PinOwner(a netip.Addr) (claimName string, ok bool) {
	claimName, ok = l.pinOwners[a]
	return claimName, ok
}

// Pins yields the preAllocations, ordered by claim name.
func (l *Layout) Pins() iter.Seq2[string, netip.Addr] {
	return func(yield func(string, netip.Addr) bool) {
		for _, name := range slices.Sorted(maps.Keys(l.pins)) {
			if !yield(name, l.pins[name]) {
				return
			}
		}
	}
}

// HasOnlyPins reports whether the pool hands out addresses, and preAllocations keep all of them.
func (l *Layout) HasOnlyPins() bool { return l.onlyPins }

// OverlappingRanges returns the ranges that two pools both declare.
func OverlappingRanges(a, b *Layout) []netipx.IPRange {
	if !a.declared.Overlaps(b.declared) {
		return nil // most pools; this check is cheap
	}
	var both netipx.IPSetBuilder
	both.AddSet(a.declared)
	both.Intersect(b.declared)
	shared, err := both.IPSet()
	if err != nil {
		return nil
	}
	return shared.Ranges()
}

func (b carvedBlock) subnetForAddress(a netip.Addr) subnet {
	return subnet{netip.PrefixFrom(a, b.networkBits).Masked(), b.gateway}
}
