// Package poolspec turns the spec of a pool into addresses and finds what is wrong with it. The
// webhook and the reconciler use the same functions, so a pool is as safe without webhooks as it is
// clear with them.
package poolspec

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// Layout is a pool's spec as addresses.
type Layout struct {
	is6         bool
	unitBits    int
	declared    *netipx.IPSet
	allocatable *netipx.IPSet
	ranges      []netipx.IPRange // those of allocatable
	grantable   *netipx.IPSet    // allocatable and the units of pins
	granted     []netipx.IPRange // those of grantable
	subnets     []subnet
	zones       []zone
	cidr        netip.Prefix   // spec.cidr, the zero prefix if there is none
	cidrs       []netip.Prefix // the CIDRs of spec.addresses
	blocks      []block        // those of a carved pool
	prefix      *int32
	gateway     netip.Addr
	pins        map[string]netip.Addr
	owners      map[netip.Addr]string
	unfit       map[string]string // preAllocations of a carved pool that no claim can have, and why
}

// subnet is a network that addresses live in. The gateway may be invalid: there is none.
type subnet struct {
	prefix  netip.Prefix
	gateway netip.Addr
}

// Is6 reports whether the pool's family is IPv6.
func (l *Layout) Is6() bool { return l.is6 }

// UnitBits is the prefix length of what each claim gets: 32 or 128 for single addresses.
func (l *Layout) UnitBits() int { return l.unitBits }

// Allocatable is what may be handed out: the declared addresses inside tenantAllocation, without
// what is reserved, the gateways, and the first and last address of each subnet; where whole
// prefixes are handed out, the whole prefixes among them.
func (l *Layout) Allocatable() *netipx.IPSet { return l.allocatable }

// Grantable is what the pool may ever grant: what may be handed out to any claim, and the units of the preAllocations, which
// the spec may reserve or leave out of tenantAllocation. Code that keeps pools apart asks for this.
func (l *Layout) Grantable() *netipx.IPSet { return l.grantable }

// GrantableRanges are those of Grantable, ascending. They are shared: they must not be changed.
func (l *Layout) GrantableRanges() []netipx.IPRange { return l.granted }

// MayGrant reports whether a range is Grantable as a whole.
func (l *Layout) MayGrant(r netipx.IPRange) bool { return contains(l.granted, r) }

// addPins completes what may be granted, once the pins and what is allocatable are known.
func (l *Layout) addPins() {
	l.ranges = l.allocatable.Ranges()
	l.grantable, l.granted = l.allocatable, l.ranges
	if len(l.pins) == 0 {
		return
	}
	var b netipx.IPSetBuilder
	b.AddSet(l.allocatable)
	for _, pin := range l.pins {
		b.AddPrefix(netip.PrefixFrom(pin, min(l.unitBits, pin.BitLen())).Masked())
	}
	l.grantable, _ = b.IPSet() // of parsed addresses, there is a set
	l.granted = l.grantable.Ranges()
}

// Declared are the addresses the spec names: cidr and addresses.
func (l *Layout) Declared() *netipx.IPSet { return l.declared }

// Contains reports whether a range may be handed out as a whole.
func (l *Layout) Contains(r netipx.IPRange) bool {
	return contains(l.ranges, r)
}

// contains reports whether one of some ranges, ascending, contains another one.
func contains(ranges []netipx.IPRange, r netipx.IPRange) bool {
	i, _ := slices.BinarySearchFunc(ranges, r.From(), func(has netipx.IPRange, a netip.Addr) int { return has.To().Compare(a) })
	return r.IsValid() && i < len(ranges) && ranges[i].Contains(r.From()) && ranges[i].Contains(r.To())
}

// Network is the prefix length and the gateway that an IPAddress gets. The gateway is empty where
// there is none. A pool that hands out prefixes gives their length.
func (l *Layout) Network(a netip.Addr) (prefix int32, gateway string) {
	if l.unitBits < a.BitLen() {
		return int32(l.unitBits), ""
	}
	n := l.networkOf(a)
	if n.gateway.IsValid() {
		gateway = n.gateway.String()
	}
	return int32(n.prefix.Bits()), gateway
}

// Gateways are the gateways that the spec names, as often as it does.
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

// networks are those outside spec.subnets where spec.prefix does not say which: spec.cidr and the CIDRs of
// spec.addresses.
func (l *Layout) networks() []netip.Prefix {
	if !l.cidr.IsValid() {
		return l.cidrs
	}
	return append([]netip.Prefix{l.cidr}, l.cidrs...)
}

// networkOf is the network an address lives in: in a carved pool that of its block, else the smallest of spec.subnets that contains it, else
// what spec.prefix makes of the address, else spec.cidr, else the smallest CIDR of spec.addresses,
// else the address alone. Outside spec.subnets the gateway is spec.gateway.
func (l *Layout) networkOf(a netip.Addr) subnet {
	if i := slices.IndexFunc(l.blocks, func(b block) bool { return b.prefix.Contains(a) }); i >= 0 {
		return l.blocks[i].networkOf(a)
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
	case l.prefix != nil:
		return subnet{netip.PrefixFrom(a, int(*l.prefix)).Masked(), l.gateway}
	case l.cidr.Contains(a):
		return subnet{l.cidr, l.gateway}
	}
	alone := netip.PrefixFrom(a, a.BitLen())
	smallest := alone
	for _, p := range l.cidrs {
		if p.Contains(a) && (smallest == alone || p.Bits() > smallest.Bits()) {
			smallest = p
		}
	}
	return subnet{smallest, l.gateway}
}

// Pin is the address kept for claims of a name.
func (l *Layout) Pin(claimName string) (netip.Addr, bool) {
	a, ok := l.pins[claimName]
	return a, ok
}

// Unfit says why the address that is kept for claims of a name is none that a claim can have: the block of a carved pool
// that has it came later. Empty: it can.
func (l *Layout) Unfit(claimName string) string { return l.unfit[claimName] }

// PinOwner is the claim name that an address is kept for.
func (l *Layout) PinOwner(a netip.Addr) (claimName string, ok bool) {
	claimName, ok = l.owners[a]
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

// Overlap lists the declared ranges that two pools share.
func Overlap(a, b *Layout) []netipx.IPRange {
	if !a.declared.Overlaps(b.declared) {
		return nil // most pools; it costs nothing
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
