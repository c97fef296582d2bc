package poolspec

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// compilePins reads the preAllocations. A pin may be reserved or outside tenantAllocation: that is how exactly one
// claim gets such an address.
func (c *compiler) compilePins() {
	for _, name := range slices.Sorted(maps.Keys(c.spec.PreAllocations)) {
		path, text := c.path.Child("preAllocations").Key(name), c.spec.PreAllocations[name]
		a, ok := c.parseAddress(path, text)
		if !ok {
			continue
		}
		if other, taken := c.layout.pinOwners[a]; taken {
			c.addInvalidf(path, text, "is kept for %q too; give each claim an address of its own", other)
			continue
		}
		if c.isCarved() && !c.layout.declared.Contains(a) {
			continue // a later block of the pool may have it
		}
		switch problem := c.unusablePinReason(a); {
		case problem == "":
			c.layout.pins[name], c.layout.pinOwners[a] = a, name
		case c.isCarved(): // the block conflicts with it, and the pool serves others from that
			c.layout.unusablePins[name] = text + " " + problem
		default:
			c.addInvalidf(path, text, "%s", problem)
		}
	}
}

// unusablePinReason returns why no claim can get the unit that starts at a; "" if one can.
func (c *compiler) unusablePinReason(a netip.Addr) string {
	unit := netip.PrefixFrom(a, c.layout.unitBits)
	if unit != unit.Masked() {
		return fmt.Sprintf("is not the first address of a prefix of length %d; write %s", unit.Bits(), unit.Masked().Addr())
	}
	if !c.layout.declared.ContainsRange(netipx.RangeOfPrefix(unit)) {
		return "is outside the pool; add it to addresses, or choose one that is inside"
	}
	if i := slices.IndexFunc(c.layout.Gateways(), unit.Contains); i >= 0 {
		return fmt.Sprintf("is, or contains, the gateway %s; choose another", c.layout.Gateways()[i])
	}
	net := c.layout.subnetForAddress(a).prefix
	if unit.IsSingleIP() && !c.spec.AllocateReservedIPAddresses && !poolutil.Usable(net).Contains(a) {
		return fmt.Sprintf("is the first or last address of %s, which hosts do not use; choose another, or set allocateReservedIPAddresses", net)
	}
	return ""
}
