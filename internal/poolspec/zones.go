package poolspec

import (
	"net/netip"
	"slices"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// zone is a subnet that serves failure domains, and the addresses that are of no smaller one.
type zone struct {
	subnet  netip.Prefix
	domains []string
	ranges  []netipx.IPRange
}

// zone reads the failure domains of a subnet.
func (c *compiler) zone(path *field.Path, p netip.Prefix, domains []string) {
	if len(domains) == 0 {
		return
	}
	if p.Bits() > c.out.unitBits {
		c.invalidf(path.Child("failureDomains"), domains, "the subnet is smaller than the prefix that each claim gets (allocationPrefixLength %d); remove the failure domains, or use a larger subnet", c.out.unitBits)
		return
	}
	c.out.zones = append(c.out.zones, zone{subnet: p, domains: domains})
}

// cutZones finds out which addresses each zone has: of subnets that lie in one another, the smallest counts. One that is
// smaller than what a claim gets parts nothing.
func (l *Layout) cutZones() {
	for i := range l.zones {
		z := &l.zones[i]
		var set netipx.IPSetBuilder
		set.AddPrefix(z.subnet)
		for _, s := range l.subnets {
			if s.prefix.Bits() > z.subnet.Bits() && s.prefix.Bits() <= l.unitBits {
				set.RemovePrefix(s.prefix)
			}
		}
		if all, err := set.IPSet(); err == nil { // of prefixes of one family there is one
			z.ranges = all.Ranges()
		}
	}
}

// HasZones reports whether some subnets serve failure domains, so that it matters where the Machine of a claim is.
func (l *Layout) HasZones() bool { return len(l.zones) > 0 }

// Zones are the addresses of the subnets that serve failure domains, in the order of the spec.
func (l *Layout) Zones() [][]netipx.IPRange {
	var out [][]netipx.IPRange
	for _, z := range l.zones {
		out = append(out, z.ranges)
	}
	return out
}

// ZonesOf are the numbers of the zones that serve a failure domain, from 1 on, and their subnets. Without a failure domain it
// is zone 0: whatever is in none.
func (l *Layout) ZonesOf(domain string) (zones []int, subnets []netip.Prefix) {
	if domain == "" {
		return []int{0}, nil
	}
	for i, z := range l.zones {
		if slices.Contains(z.domains, domain) {
			zones, subnets = append(zones, i+1), append(subnets, z.subnet)
		}
	}
	return zones, subnets
}

// FailureDomains are those that subnets serve, in alphabetical order.
func (l *Layout) FailureDomains() []string {
	var out []string
	for _, z := range l.zones {
		out = append(out, z.domains...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
