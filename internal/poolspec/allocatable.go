package poolspec

import (
	"net/netip"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// allocatable takes out of the declared addresses all that must not be handed out.
func (c *compiler) allocatable() {
	var set netipx.IPSetBuilder
	set.AddSet(c.out.declared)
	if t := c.spec.TenantAllocation; t != nil {
		if r, ok := c.tenantRange(t.Start, t.End); ok {
			var within netipx.IPSetBuilder
			within.AddRange(r)
			set.Intersect(c.build(&within))
		}
	}
	for i := range c.spec.Reserved {
		text, field := c.spec.Reserved[i].Range()
		path := c.path.Child("reserved").Index(i).Child(field)
		r, ok := c.parse(path, text)
		if !ok {
			continue
		}
		if !c.carved() && !c.out.declared.ContainsRange(r) {
			c.invalidf(path, text, "is not inside the pool; correct or remove the entry: only addresses of the pool can be reserved")
		}
		set.RemoveRange(r)
	}
	for _, gateway := range c.out.Gateways() {
		set.Remove(gateway)
	}
	// A pool of whole prefixes delegates networks: their own first addresses belong to whoever gets them.
	if !c.spec.AllocateReservedIPAddresses && c.out.unitBits == c.bits {
		c.excludeNetworkAddresses(&set)
	}
	c.out.allocatable = c.build(&set)
	if c.out.unitBits < c.bits {
		trimmed, err := poolutil.TrimToPrefixes(c.out.allocatable, c.out.unitBits)
		if err != nil {
			c.invalidf(c.path.Child("allocationPrefixLength"), c.out.unitBits, "%v", err)
			return
		}
		c.out.allocatable = trimmed
	}
}

func (c *compiler) tenantRange(start, end string) (netipx.IPRange, bool) {
	path := c.path.Child("tenantAllocation")
	from, ok1 := c.address(path.Child("start"), start)
	to, ok2 := c.address(path.Child("end"), end)
	if !ok1 || !ok2 {
		return netipx.IPRange{}, false
	}
	if to.Less(from) {
		c.invalidf(path.Child("end"), end, "end %s is before start %s; write the lower address as start", to, from)
		return netipx.IPRange{}, false
	}
	for _, edge := range []struct {
		name, text string
		addr       netip.Addr
	}{{"start", start, from}, {"end", end, to}} {
		if !c.carved() && !c.out.declared.Contains(edge.addr) {
			c.invalidf(path.Child(edge.name), edge.text, "is outside the pool; choose an address of the pool")
			return netipx.IPRange{}, false
		}
	}
	return netipx.IPRangeFrom(from, to), true
}
