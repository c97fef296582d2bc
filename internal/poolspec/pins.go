package poolspec

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// pin reads the preAllocations. A pin may be reserved or outside tenantAllocation: that is how one
// claim, and no other, is given such an address.
func (c *compiler) pin() {
	for _, name := range slices.Sorted(maps.Keys(c.spec.PreAllocations)) {
		path, text := c.path.Child("preAllocations").Key(name), c.spec.PreAllocations[name]
		a, ok := c.address(path, text)
		if !ok {
			continue
		}
		if other, taken := c.out.owners[a]; taken {
			c.invalidf(path, text, "is kept for %q too; give each claim an address of its own", other)
			continue
		}
		if c.carved() && !c.out.declared.Contains(a) {
			continue // a block that the pool has later may have it
		}
		switch problem := c.unfit(a); {
		case problem == "":
			c.out.pins[name], c.out.owners[a] = a, name
		case c.carved(): // it is the block that is in the way, and the pool serves others from it
			c.out.unfit[name] = text + " " + problem
		default:
			c.invalidf(path, text, "%s", problem)
		}
	}
}

// unfit says why a claim could not be given the unit that starts at a; empty: it could.
func (c *compiler) unfit(a netip.Addr) string {
	unit := netip.PrefixFrom(a, c.out.unitBits)
	if unit != unit.Masked() {
		return fmt.Sprintf("is not the first address of a prefix of length %d; write %s", unit.Bits(), unit.Masked().Addr())
	}
	if !c.out.declared.ContainsRange(netipx.RangeOfPrefix(unit)) {
		return "is outside the pool; add it to addresses, or choose one that is inside"
	}
	if i := slices.IndexFunc(c.out.Gateways(), unit.Contains); i >= 0 {
		return fmt.Sprintf("is, or contains, the gateway %s; choose another", c.out.Gateways()[i])
	}
	net := c.out.networkOf(a).prefix
	if unit.IsSingleIP() && !c.spec.AllocateReservedIPAddresses && !poolutil.Usable(net).Contains(a) {
		return fmt.Sprintf("is the first or last address of %s, which hosts do not use; choose another, or set allocateReservedIPAddresses", net)
	}
	return ""
}
