package poolspec

import (
	"net/netip"
	"slices"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// subnetZone is a subnet that serves failure domains, with its addresses that are in no smaller subnet.
type subnetZone struct {
	subnet         netip.Prefix
	failureDomains []string
	ranges         []netipx.IPRange
}

// compileZone reads the failure domains of a subnet.
func (c *compiler) compileZone(path *field.Path, p netip.Prefix, domains []string) {
	if len(domains) == 0 {
		return
	}
	if p.Bits() > c.layout.unitBits {
		c.addInvalidf(path.Child("failureDomains"), domains, "the subnet is smaller than the prefix that each claim gets (allocationPrefixLength %d); remove the failure domains, or use a larger subnet", c.layout.unitBits)
		return
	}
	c.layout.zones = append(c.layout.zones, subnetZone{subnet: p, failureDomains: domains})
}

// computeZoneRanges computes the addresses of each zone: of nested subnets, the smallest counts. A subnet that is
// smaller than the unit of a claim is ignored.
func (l *Layout) computeZoneRanges() {
	for i := range l.zones {
		z := &l.zones[i]
		var set netipx.IPSetBuilder
		set.AddPrefix(z.subnet)
		for _, s := range l.subnets {
			if s.prefix.Bits() > z.subnet.Bits() && s.prefix.Bits() <= l.unitBits {
				set.RemovePrefix(s.prefix)
			}
		}
		if all, err := set.IPSet(); err == nil { // cannot fail: the prefixes are of one family
			z.ranges = all.Ranges()
		}
	}
}

// HasZones reports whether subnets serve failure domains, so that the failure domain of a claim's Machine matters.
func (l *Layout) HasZones() bool { return len(l.zones) > 0 }

// ZoneRanges returns the addresses of each subnet that serves failure domains, in the order of the spec.
func (l *Layout) ZoneRanges() [][]netipx.IPRange {
	var out [][]netipx.IPRange
	for _, z := range l.zones {
		out = append(out, z.ranges)
	}
	return out
}

// ZonesForFailureDomain returns the numbers of the zones that serve a failure domain, from 1 on, and their subnets.
// Without a failure domain it returns zone 0: the addresses that are in no zone.
func (l *Layout) ZonesForFailureDomain(domain string) (zones []int, subnets []netip.Prefix) {
	if domain == "" {
		return []int{0}, nil
	}
	for i, z := range l.zones {
		if slices.Contains(z.failureDomains, domain) {
			zones, subnets = append(zones, i+1), append(subnets, z.subnet)
		}
	}
	return zones, subnets
}

// FailureDomains returns the failure domains that subnets serve, in alphabetical order.
func (l *Layout) FailureDomains() []string {
	var out []string
	for _, z := range l.zones {
		out = append(out, z.failureDomains...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
