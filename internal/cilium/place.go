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

// maxSteps bounds an assessment to some seconds, whatever a workload cluster says that it has.
const maxSteps = 1 << 24

// placing is who has which address of which pool.
type placing struct {
	pools []place
	users map[netip.Addr][]*service
	// shared are the addresses that Services with a sharing key have.
	shared map[string][]netip.Addr
	// next is where the search for an address that nobody has goes on: nobody lets go of anything here.
	next  map[netip.Addr]netip.Addr
	grows place
	// families that it grows by; grown are the addresses of each that do not exist yet and are used.
	families [2]bool
	grown    [2]int64
	steps    int
}

// place is a pool, as it is to be.
type place struct {
	ranges   []netipx.IPRange
	selector *metav1.LabelSelector
	disabled bool
	// last: it is asked after the others.
	last bool
}

// notYet are the addresses that a cluster might grow by: nobody else has any of them.
var notYet = [2]netipx.IPRange{
	elastic.IPv4: netipx.MustParseIPRange("0.0.0.1-0.255.255.255"),
	elastic.IPv6: netipx.MustParseIPRange("100::1-100::ffff:ffff"),
}

func newPlacing(pools []Pool, out balancer.Outlook) *placing {
	p := &placing{
		users: map[netip.Addr][]*service{}, shared: map[string][]netip.Addr{}, next: map[netip.Addr]netip.Addr{}, families: out.Families,
	}
	selectors := map[string]*metav1.LabelSelector{}
	for i := range pools {
		has := &pools[i]
		selectors[has.Name] = has.Spec.ServiceSelector
		if balancer.Made(has) {
			continue
		}
		is := place{selector: has.Spec.ServiceSelector, disabled: has.Spec.Disabled || has.problem() != ""}
		for _, b := range has.Spec.Blocks {
			if r, err := b.rangeOf(); err == nil {
				is.ranges = append(is.ranges, b.given(r, has.Spec.AllowFirstLastIPs))
			}
		}
		p.pools = append(p.pools, is)
	}
	for _, d := range out.Pools { // what a person restricts them to stays
		p.pools = append(p.pools, place{ranges: d.Ranges, selector: selectors[d.Name], disabled: !d.AutoAssign, last: d.Leaving})
	}
	slices.SortStableFunc(p.pools, func(a, b place) int {
		switch {
		case a.last == b.last:
			return 0
		case a.last:
			return 1
		}
		return -1
	})
	if out.Grows != "" {
		p.grows.selector = selectors[out.Grows]
	}
	return p
}

// given are the addresses of a block that are given away.
func (b Block) given(r netipx.IPRange, allowed string) netipx.IPRange {
	if first, last := r.From().Next(), r.To().Prev(); b.CIDR != "" && allowed == "No" && first.IsValid() && first.Compare(last) <= 0 {
		return netipx.IPRangeFrom(first, last)
	}
	return r
}

// occupy has a Service have addresses, whatever others have.
func (p *placing) occupy(s *service, addrs []netip.Addr) {
	for _, a := range addrs {
		if s.SharingKey != "" && !slices.Contains(p.shared[s.SharingKey], a) {
			p.shared[s.SharingKey] = append(p.shared[s.SharingKey], a)
		}
		p.users[a] = append(p.users[a], s)
	}
}

// free reports whether a Service can have an address.
func (p *placing) free(s *service, a netip.Addr) bool {
	p.steps += 1 + len(p.users[a])*(1+len(s.Ports))
	return !slices.ContainsFunc(p.users[a], func(other *service) bool { return other != s && !s.shares(other) })
}

// keeps takes what a Service has, as far as Cilium leaves it that, and reports whether it has all that it asks for.
func (p *placing) keeps(s *service) bool {
	has := p.kept(s)
	p.occupy(s, has)
	if len(s.WantsIPs) > 0 {
		return len(has) == len(s.WantsIPs)
	}
	return len(has) > 0 && len(s.wants(has)) == 0
}

// kept are the addresses of a Service that it keeps: those that it asks for, of pools that are for it.
func (p *placing) kept(s *service) (out []netip.Addr) {
	for _, a := range s.Has {
		asked := len(s.WantsIPs) == 0 && slices.Contains(s.Families, elastic.FamilyOf(a))
		if (asked || slices.Contains(s.WantsIPs, a)) && p.admitted(s, a) && p.free(s, a) {
			out = append(out, a)
		}
	}
	return out
}

// admitted reports whether an address is of a pool that is for a Service.
func (p *placing) admitted(s *service, a netip.Addr) bool {
	p.steps += len(p.pools)
	return slices.ContainsFunc(p.pools, func(is place) bool { return is.has(a) && admits(is.selector, &s.Service) })
}

func (is place) has(a netip.Addr) bool {
	return slices.ContainsFunc(is.ranges, func(r netipx.IPRange) bool { return r.Contains(a) })
}

// place finds an address of a family for a Service, and takes it; grows reports whether it is one that does not exist yet.
func (p *placing) place(s *service, f elastic.Family) (a netip.Addr, grows bool) {
	if s.SharingKey != "" {
		for _, a := range p.shared[s.SharingKey] {
			if elastic.FamilyOf(a) == f && p.free(s, a) {
				p.occupy(s, []netip.Addr{a})
				return a, notYet[f].Contains(a)
			}
		}
	}
	for _, is := range p.pools {
		p.steps++
		if is.disabled || !admits(is.selector, &s.Service) {
			continue
		}
		for _, r := range is.ranges {
			if elastic.FamilyOf(r.From()) != f {
				continue
			}
			if a = p.unused(r); a.IsValid() {
				p.occupy(s, []netip.Addr{a})
				return a, false
			}
		}
	}
	if p.families[f] && admits(p.grows.selector, &s.Service) {
		if a = p.unused(notYet[f]); a.IsValid() {
			p.grown[f]++
			p.occupy(s, []netip.Addr{a})
			return a, true
		}
	}
	return netip.Addr{}, false
}

// unused is the first address of a range that nobody has.
func (p *placing) unused(r netipx.IPRange) netip.Addr {
	a, known := p.next[r.From()]
	if !known {
		a = r.From()
	}
	for a.IsValid() && r.Contains(a) && len(p.users[a]) > 0 {
		p.steps++
		a = a.Next()
	}
	p.next[r.From()] = a
	if !r.Contains(a) {
		return netip.Addr{}
	}
	return a
}

// placeAt takes the very addresses that a Service asks for, and says why it cannot have one.
func (p *placing) placeAt(s *service, used map[netip.Addr]struct{}) string {
	for _, a := range s.WantsIPs {
		switch {
		case slices.Contains(s.Has, a) && p.admitted(s, a):
			continue
		case !slices.ContainsFunc(p.pools, func(is place) bool { return !is.disabled && is.has(a) && admits(is.selector, &s.Service) }):
			return fmt.Sprintf("it asks for %s, which is in no CiliumLoadBalancerIPPool that is for it", a)
		case !p.free(s, a):
			return fmt.Sprintf("it asks for %s, which another Service has", a)
		}
		p.occupy(s, []netip.Addr{a})
		used[a] = struct{}{}
	}
	return ""
}
