package poolspec

import (
	"net/netip"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// compileAllocatable removes from the declared addresses those that must not be handed out.
func (c *compiler) compileAllocatable() {
	var set netipx.IPSetBuilder
	set.AddSet(c.layout.declared)
	if t := c.spec.TenantAllocation; t != nil {
		if r, ok := c.parseTenantRange(t.Start, t.End); ok {
			var within netipx.IPSetBuilder
			within.AddRange(r)
			set.Intersect(c.buildSet(&within))
		}
	}
	for i := range c.spec.Reserved {
		text, field := c.spec.Reserved[i].Range()
		path := c.path.Child("reserved").Index(i).Child(field)
		r, ok := c.parseRange(path, text)
		if !ok {
			continue
		}
		if !c.isCarved() && !c.layout.declared.ContainsRange(r) {
			c.addInvalidf(path, text, "is not inside the pool; correct or remove the entry: only addresses of the pool can be reserved")
		}
		set.RemoveRange(r)
	}
	for _, gateway := range c.layout.Gateways() {
		set.Remove(gateway)
	}
	// A pool of whole prefixes delegates networks: the first addresses of each belong to its claimant.
	if !c.spec.AllocateReservedIPAddresses && c.layout.unitBits == c.addressBits {
		c.excludeNetworkAddresses(&set)
	}
	c.layout.allocatable = c.buildSet(&set)
	if c.layout.unitBits < c.addressBits {
		trimmed, err := poolutil.TrimToPrefixes(c.layout.allocatable, c.layout.unitBits)
		if err != nil {
			c.addInvalidf(c.path.Child("allocationPrefixLength"), c.layout.unitBits, "%v", err)
			return
		}
		c.layout.allocatable = trimmed
	}
}

func (c *compiler) parseTenantRange(start, end string) (netipx.IPRange, bool) {
	path := c.path.Child("tenantAllocation")
	from, ok1 := c.parseAddress(path.Child("start"), start)
	to, ok2 := c.parseAddress(path.Child("end"), end)
	if !ok1 || !ok2 {
		return netipx.IPRange{}, false
	}
	if to.Less(from) {
		c.addInvalidf(path.Child("end"), end, "end %s is before start %s; write the lower address as start", to, from)
		return netipx.IPRange{}, false
	}
	for _, edge := range []struct {
		name, text string
		addr       netip.Addr
	}{{"start", start, from}, {"end", end, to}} {
		if !c.isCarved() && !c.layout.declared.Contains(edge.addr) {
			c.addInvalidf(path.Child(edge.name), edge.text, "is outside the pool; choose an address of the pool")
			return netipx.IPRange{}, false
		}
	}
	return netipx.IPRangeFrom(from, to), true
}
