package poolspec

import (
	"maps"
	"net/netip"
	"slices"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/util/validation/field"

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
		if c.canPin(path, text, a) {
			c.out.pins[name], c.out.owners[a] = a, name
		}
	}
}

// canPin reports whether a claim could be given the unit that starts at a.
func (c *compiler) canPin(path *field.Path, text string, a netip.Addr) bool {
	unit := netip.PrefixFrom(a, c.out.unitBits)
	if unit != unit.Masked() {
		c.invalidf(path, text, "is not the first address of a prefix of length %d; write %s", unit.Bits(), unit.Masked().Addr())
		return false
	}
	if !c.out.declared.ContainsRange(netipx.RangeOfPrefix(unit)) {
		c.invalidf(path, text, "is outside the pool; add it to addresses, or choose one that is inside")
		return false
	}
	if i := slices.IndexFunc(c.out.Gateways(), unit.Contains); i >= 0 {
		c.invalidf(path, text, "is, or contains, the gateway %s; choose another", c.out.Gateways()[i])
		return false
	}
	net := c.out.networkOf(a).prefix
	if unit.IsSingleIP() && !c.spec.AllocateReservedIPAddresses && !poolutil.Usable(net).Contains(a) {
		c.invalidf(path, text, "is the first or last address of %s, which hosts do not use; "+
			"choose another, or set allocateReservedIPAddresses", net)
		return false
	}
	return true
}
