package poolspec

import (
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// Withheld says what keeps an address from being handed out, to follow "it is": the entry of the spec that does, or where
// the address is. It is for an address that the layout of the spec does not hand out.
func Withheld(spec *v1alpha1.NetworkPoolSpec, layout *Layout, a netip.Addr) string {
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
	if gateway := Gateway(layout, a); gateway != "" {
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
	end, network := "first", layout.networkOf(a).prefix
	if a != network.Addr() {
		end = "last"
	}
	return fmt.Sprintf("the %s address of the network %s, which hosts do not use", end, network)
}

// Gateway says whose gateway an address is, whether or not the layout declares it; empty where it is none.
func Gateway(layout *Layout, a netip.Addr) string {
	if layout.gateway == a {
		return "the gateway (spec.gateway)"
	}
	for i, s := range layout.subnets {
		if s.gateway == a {
			return fmt.Sprintf("the gateway of spec.subnets[%d] (%s)", i, s.prefix)
		}
	}
	if i := slices.IndexFunc(layout.blocks, func(b block) bool { return b.gateway == a }); i >= 0 {
		return fmt.Sprintf("the gateway of the block %s", layout.blocks[i].prefix)
	}
	return ""
}

// FirstWithheld returns the first address of a range that is not handed out; false: all of them are.
func FirstWithheld(layout *Layout, r netipx.IPRange) (netip.Addr, bool) {
	var rest netipx.IPSetBuilder
	rest.AddRange(r)
	rest.RemoveSet(layout.Allocatable())
	set, err := rest.IPSet()
	if err != nil || len(set.Ranges()) == 0 {
		return netip.Addr{}, false
	}
	return set.Ranges()[0].From(), true
}

// AddOrReserve is what to do where a spec leaves nothing.
const AddOrReserve = "add addresses, or reserve fewer"

// NothingLeft says that a spec leaves nothing to be handed out, empty where it leaves something. do is what to do.
func NothingLeft(layout *Layout, do string) string {
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

// NoNetwork says that addresses of a layout are in no network that the spec names, empty: none is. What is given of these has the
// prefix length of one address, and a machine with it reaches none of its neighbours. Whole prefixes have no network.
func NoNetwork(l *Layout) string {
	for _, r := range l.GrantableRanges() {
		for _, a := range []netip.Addr{r.From(), r.To()} {
			if l.unitBits == a.BitLen() && !l.namesNetworkOf(a) {
				return fmt.Sprintf("claims get %s with the prefix length %d and %s, because spec.addresses does not say which network it is in; "+
					"set spec.prefix to the length of that network, and spec.gateway if it has one, unless the addresses are for load balancers",
					a, a.BitLen(), gatewayOf(l, a))
			}
		}
	}
	return ""
}

// namesNetworkOf reports whether the spec says which network an address is in.
func (l *Layout) namesNetworkOf(a netip.Addr) bool {
	has := func(p netip.Prefix) bool { return p.Contains(a) }
	return l.prefix != nil || slices.ContainsFunc(l.networks(), has) ||
		slices.ContainsFunc(l.subnets, func(s subnet) bool { return has(s.prefix) }) ||
		slices.ContainsFunc(l.blocks, func(b block) bool { return has(b.prefix) })
}

// gatewayOf says which gateway an address comes with.
func gatewayOf(l *Layout, a netip.Addr) string {
	if _, gateway := l.Network(a); gateway != "" {
		return "the gateway " + gateway
	}
	return "no gateway"
}
