package cilium

import (
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// maxPlacementSteps bounds an assessment to some seconds, whatever number of objects a workload cluster reports.
const maxPlacementSteps = 1 << 24

// placement records which Services have which addresses of which pools.
type placement struct {
	pools          []plannedPool
	usersByAddress map[netip.Addr][]*service
	// addressesBySharingKey are the addresses of Services with a sharing key.
	addressesBySharingKey map[string][]netip.Addr
	// searchStarts is where the search for an unused address of a range continues: no Service releases an address
	// here.
	searchStarts map[netip.Addr]netip.Addr
	growthPool   plannedPool
	// growableFamilies reports the families that the cluster can grow by. grownCounts is the number of used addresses
	// of each family that the cluster would grow by.
	growableFamilies [2]bool
	grownCounts      [2]int64
	stepCount        int
}

// plannedPool is the desired state of a pool.
type plannedPool struct {
	ranges   []netipx.IPRange
	selector *metav1.LabelSelector
	disabled bool
	// draining reports whether the pool is being withdrawn; it is searched after the others.
	draining bool
}

// growthRanges are the addresses that a cluster might grow by. No real object has any of them.
var growthRanges = [2]netipx.IPRange{
	elastic.IPv4: netipx.MustParseIPRange("0.0.0.1-0.255.255.255"),
	elastic.IPv6: netipx.MustParseIPRange("100::1-100::ffff:ffff"),
}

func newPlacement(pools []Pool, out balancer.DesiredState) *placement {
	p := &placement{
		usersByAddress: map[netip.Addr][]*service{}, addressesBySharingKey: map[string][]netip.Addr{}, searchStarts: map[netip.Addr]netip.Addr{}, growableFamilies: out.GrowableFamilies,
	}
	selectors := map[string]*metav1.LabelSelector{}
	for i := range pools {
		pool := &pools[i]
		selectors[pool.Name] = pool.Spec.ServiceSelector
		if balancer.IsManaged(pool) {
			continue
		}
		planned := plannedPool{selector: pool.Spec.ServiceSelector, disabled: pool.Spec.Disabled || pool.conflictMessage() != ""}
		for _, b := range pool.Spec.Blocks {
			if r, err := b.parseRange(); err == nil {
				planned.ranges = append(planned.ranges, b.usableRange(r, pool.Spec.AllowFirstLastIPs))
			}
		}
		p.pools = append(p.pools, planned)
	}
	for _, d := range out.Pools { // restrictions that a user has set stay
		p.pools = append(p.pools, plannedPool{ranges: d.Ranges, selector: selectors[d.Name], disabled: !d.AutoAssign, draining: d.Draining})
	}
	slices.SortStableFunc(p.pools, func(a, b plannedPool) int {
		switch {
		case a.draining == b.draining:
			return 0
		case a.draining:
			return 1
		}
		return -1
	})
	if out.GrowthPool != "" {
		p.growthPool.selector = selectors[out.GrowthPool]
	}
	return p
}

// usableRange returns the addresses of a block that Cilium assigns.
func (b Block) usableRange(r netipx.IPRange, allowed string) netipx.IPRange {
	if first, last := r.From().Next(), r.To().Prev(); b.CIDR != "" && allowed == "No" && first.IsValid() && first.Compare(last) <= 0 {
		return netipx.IPRangeFrom(first, last)
	}
	return r
}

// assignAddresses assigns addresses to a Service, whichever other Services have them.
func (p *placement) assignAddresses(s *service, addrs []netip.Addr) {
	for _, a := range addrs {
		if s.SharingKey != "" && !slices.Contains(p.addressesBySharingKey[s.SharingKey], a) {
			p.addressesBySharingKey[s.SharingKey] = append(p.addressesBySharingKey[s.SharingKey], a)
		}
		p.usersByAddress[a] = append(p.usersByAddress[a], s)
	}
}

// isAvailable reports whether a Service can have an address.
func (p *placement) isAvailable(s *service, a netip.Addr) bool {
	p.stepCount += 1 + len(p.usersByAddress[a])*(1+len(s.Ports))
	return !slices.ContainsFunc(p.usersByAddress[a], func(other *service) bool { return other != s && !s.canShareWith(other) })
}

// keepAddresses assigns the addresses that Cilium lets a Service keep, and reports whether these are all that it
// requests.
func (p *placement) keepAddresses(s *service) bool {
	addresses := p.keptAddresses(s)
	p.assignAddresses(s, addresses)
	if len(s.RequestedIPs) > 0 {
		return len(addresses) == len(s.RequestedIPs)
	}
	return len(addresses) > 0 && len(s.missingFamilies(addresses)) == 0
}

// keptAddresses returns the addresses that a Service keeps: those that it requests, from pools that select it.
func (p *placement) keptAddresses(s *service) (out []netip.Addr) {
	for _, a := range s.Addresses {
		asked := len(s.RequestedIPs) == 0 && slices.Contains(s.Families, elastic.AddressFamily(a))
		if (asked || slices.Contains(s.RequestedIPs, a)) && p.isInSelectedPool(s, a) && p.isAvailable(s, a) {
			out = append(out, a)
		}
	}
	return out
}

// isInSelectedPool reports whether an address belongs to a pool that selects a Service.
func (p *placement) isInSelectedPool(s *service, a netip.Addr) bool {
	p.stepCount += len(p.pools)
	return slices.ContainsFunc(p.pools, func(pool plannedPool) bool {
		return pool.containsAddress(a) && selectsService(pool.selector, &s.Service)
	})
}

func (p plannedPool) containsAddress(a netip.Addr) bool {
	return slices.ContainsFunc(p.ranges, func(r netipx.IPRange) bool { return r.Contains(a) })
}

// placeInFamily finds an address of a family for a Service, and assigns it. grows reports whether the cluster would
// have to grow by it.
func (p *placement) placeInFamily(s *service, f elastic.Family) (a netip.Addr, grows bool) {
	if s.SharingKey != "" {
		for _, a := range p.addressesBySharingKey[s.SharingKey] {
			if elastic.AddressFamily(a) == f && p.isAvailable(s, a) {
				p.assignAddresses(s, []netip.Addr{a})
				return a, growthRanges[f].Contains(a)
			}
		}
	}
	for _, pool := range p.pools {
		p.stepCount++
		if pool.disabled || !selectsService(pool.selector, &s.Service) {
			continue
		}
		for _, r := range pool.ranges {
			if elastic.AddressFamily(r.From()) != f {
				continue
			}
			if a = p.firstUnused(r); a.IsValid() {
				p.assignAddresses(s, []netip.Addr{a})
				return a, false
			}
		}
	}
	if p.growableFamilies[f] && selectsService(p.growthPool.selector, &s.Service) {
		if a = p.firstUnused(growthRanges[f]); a.IsValid() {
			p.grownCounts[f]++
			p.assignAddresses(s, []netip.Addr{a})
			return a, true
		}
	}
	return netip.Addr{}, false
}

// firstUnused returns the first address of a range that no Service has, the zero Addr if there is none.
func (p *placement) firstUnused(r netipx.IPRange) netip.Addr {
	a, known := p.searchStarts[r.From()]
	if !known {
		a = r.From()
	}
	for a.IsValid() && r.Contains(a) && len(p.usersByAddress[a]) > 0 {
		p.stepCount++
		a = a.Next()
	}
	p.searchStarts[r.From()] = a
	if !r.Contains(a) {
		return netip.Addr{}
	}
	return a
}

// placeAtRequestedIPs assigns exactly the addresses that a Service requests, and returns why it cannot have one of
// them.
func (p *placement) placeAtRequestedIPs(s *service, used map[netip.Addr]struct{}) string {
	for _, a := range s.RequestedIPs {
		switch {
		case slices.Contains(s.Addresses, a) && p.isInSelectedPool(s, a):
			continue
		case !slices.ContainsFunc(p.pools, func(pool plannedPool) bool {
			return !pool.disabled && pool.containsAddress(a) && selectsService(pool.selector, &s.Service)
		}):
			return fmt.Sprintf("it asks for %s, which is in no CiliumLoadBalancerIPPool that is for it", a)
		case !p.isAvailable(s, a):
			return fmt.Sprintf("it asks for %s, which another Service has", a)
		}
		p.assignAddresses(s, []netip.Addr{a})
		used[a] = struct{}{}
	}
	return ""
}
