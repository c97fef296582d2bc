package poolspec

import (
	"fmt"
	"net/netip"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// Withheld says what keeps an address from being handed out: the field that does, or that the pool has no such address.
// It is for an address that the layout of the spec does not hand out.
func Withheld(spec *v1alpha1.NetworkPoolSpec, layout *Layout, a netip.Addr) string {
	if !layout.Declared().Contains(a) {
		return "the pool has no such address"
	}
	for i := range spec.Reserved {
		text, _ := spec.Reserved[i].Range()
		if r, err := poolutil.ParseRange(text); err == nil && r.Contains(a) {
			if why := spec.Reserved[i].Description; why != "" {
				return fmt.Sprintf("spec.reserved %s: %s", text, why)
			}
			return "spec.reserved " + text
		}
	}
	if spec.Gateway == a.String() {
		return "spec.gateway"
	}
	for _, s := range spec.Subnets {
		if s.Gateway == a.String() {
			return "gateway of subnet " + s.CIDR
		}
	}
	if t := spec.TenantAllocation; t != nil {
		if r, err := poolutil.ParseRange(t.Start + "-" + t.End); err == nil && !r.Contains(a) {
			return fmt.Sprintf("outside spec.tenantAllocation %s-%s", t.Start, t.End)
		}
	}
	if layout.UnitBits() < a.BitLen() {
		return "not part of any prefix that the pool hands out"
	}
	return "first or last address of its subnet, which hosts do not use"
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

// NothingLeft says that a spec leaves nothing to be handed out, empty where it leaves something.
func NothingLeft(layout *Layout) string {
	if len(layout.Allocatable().Ranges()) > 0 || len(layout.pins) > 0 || len(layout.Declared().Ranges()) == 0 {
		return ""
	}
	n := poolutil.Count{}
	for _, r := range layout.Declared().Ranges() {
		n = n.Plus(poolutil.CountPrefixes(r, r.From().BitLen()))
	}
	if n.Int64() == 1 {
		return "the spec leaves nothing to hand out: its one address is reserved, a gateway, or the first or last of a subnet; add addresses, or reserve fewer"
	}
	return fmt.Sprintf("the spec leaves nothing to hand out: all of its %d addresses are reserved, gateways, or the first or last of a subnet; add addresses, or reserve fewer", n.Int64())
}
