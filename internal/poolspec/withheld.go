package poolspec

import (
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// WithheldReason returns why a pool does not hand out an address, to complete "it is ...": the entry of the spec, or
// the place of the address. The layout must not hand out the address.
func WithheldReason(spec *v1alpha1.NetworkPoolSpec, layout *Layout, a netip.Addr) string {
	if !layout.Declared().Contains(a) {
		if all := layout.Declared().Ranges(); len(all) > 0 && all[0].From().BitLen() != a.BitLen() {
			return "of another address family than the pool"
		}
		return "outside the pool"
	}
	for i := range spec.Reserved {
		r := &spec.Reserved[i]
		text, _ := r.Range()
		if rng, err := poolutil.ParseRange(text); err == nil && rng.Contains(a) {
			entry := fmt.Sprintf("reserved by spec.reserved[%d] (%s", i, text)
			if r.Description != "" {
				entry += ": " + r.Description
			}
			return entry + ")"
		}
	}
	if gateway := GatewayDescription(layout, a); gateway != "" {
		return gateway
	}
	if t := spec.TenantAllocation; t != nil {
		if r, err := poolutil.ParseRange(t.Start + "-" + t.End); err == nil && !r.Contains(a) {
			return fmt.Sprintf("outside spec.tenantAllocation (%s-%s)", t.Start, t.End)
		}
	}
	if layout.UnitBits() < a.BitLen() {
		return fmt.Sprintf("not in a whole prefix of /%d, as the pool hands out", layout.UnitBits())
	}
	end, network := "first", layout.subnetForAddress(a).prefix
	if a != network.Addr() {
		end = "last"
	}
	return fmt.Sprintf("the %s address of the network %s, which hosts do not use", end, network)
}

// GatewayDescription returns which gateway an address is, whether or not the layout declares the address; "" where it
// is none.
func GatewayDescription(layout *Layout, a netip.Addr) string {
	if layout.gateway == a {
		return "the gateway (spec.gateway)"
	}
	for i, s := range layout.subnets {
		if s.gateway == a {
			return fmt.Sprintf("the gateway of spec.subnets[%d] (%s)", i, s.prefix)
		}
	}
	if i := slices.IndexFunc(layout.blocks, func(b carvedBlock) bool { return b.gateway == a }); i >= 0 {
		return fmt.Sprintf("the gateway of the block %s", layout.blocks[i].prefix)
	}
	return ""
}

// FirstWithheldAddress returns the first address of a range that is not handed out; false if all of them are.
func FirstWithheldAddress(layout *Layout, r netipx.IPRange) (netip.Addr, bool) {
	var rest netipx.IPSetBuilder
	rest.AddRange(r)
	rest.RemoveSet(layout.Allocatable())
	set, err := rest.IPSet()
	if err != nil || len(set.Ranges()) == 0 {
		return netip.Addr{}, false
	}
	return set.Ranges()[0].From(), true
}

// AdviceAddAddresses is the advice for a spec that leaves nothing to hand out.
const AdviceAddAddresses = "add addresses, or reserve fewer"

// NothingAllocatableMessage returns a message if a spec leaves nothing to hand out, else "". do is the advice at its
// end.
func NothingAllocatableMessage(layout *Layout, do string) string {
	if len(layout.GrantableRanges()) > 0 || len(layout.Declared().Ranges()) == 0 {
		return ""
	}
	n := poolutil.Count{}
	for _, r := range layout.Declared().Ranges() {
		n = n.Plus(poolutil.CountPrefixes(r, r.From().BitLen()))
	}
	if n.Int64() == 1 {
		return "the spec leaves nothing to hand out: its one address is reserved, a gateway, or the first or last of a subnet; " + do
	}
	return fmt.Sprintf("the spec leaves nothing to hand out: all of its %d addresses are reserved, gateways, or the first or last of a subnet; %s", n.Int64(), do)
}

// UnknownNetworkMessage returns a message if the spec names no network for some grantable address, else "". IPAddresses
// then get the prefix length of a single address, with which a machine reaches none of its neighbours. Whole prefixes
// need no network.
func UnknownNetworkMessage(l *Layout) string {
	for _, r := range l.GrantableRanges() {
		for _, a := range []netip.Addr{r.From(), r.To()} {
			if l.unitBits == a.BitLen() && !l.hasNetworkFor(a) {
				return fmt.Sprintf("claims get %s with the prefix length %d and %s, because spec.addresses does not say which network it is in; "+
					"set spec.prefix to the length of that network, and spec.gateway if it has one, unless the addresses are for load balancers",
					a, a.BitLen(), gatewayText(l, a))
			}
		}
	}
	return ""
}

// hasNetworkFor reports whether the spec names a network for an address.
func (l *Layout) hasNetworkFor(a netip.Addr) bool {
	containsAddress := func(p netip.Prefix) bool { return p.Contains(a) }
	return l.prefixLength != nil || slices.ContainsFunc(l.specNetworks(), containsAddress) ||
		slices.ContainsFunc(l.subnets, func(s subnet) bool { return containsAddress(s.prefix) }) ||
		slices.ContainsFunc(l.blocks, func(b carvedBlock) bool { return containsAddress(b.prefix) })
}

// gatewayText describes the gateway of an address.
func gatewayText(l *Layout, a netip.Addr) string {
	if _, gateway := l.NetworkForAddress(a); gateway != "" {
		return "the gateway " + gateway
	}
	return "no gateway"
}
