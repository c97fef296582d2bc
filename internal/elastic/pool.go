package elastic

import (
	"cmp"
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// Pool is what matters here of an IPAddressPool of MetalLB.
type Pool struct {
	Name string
	// Ranges in the order of spec.addresses.
	Ranges []netipx.IPRange
	// AutoAssign pools serve Services that name no pool.
	AutoAssign bool
	// AvoidBuggyIPs passes over IPv4 addresses that end in 0 or 255.
	AvoidBuggyIPs bool
	// Restriction of the Services it serves, nil if it has none (spec.serviceAllocation).
	Restriction *Restriction
	// Grows reports whether what a cluster grows by is added to this pool: at most one is such.
	Grows bool
	// Apart tells of a pool that grows that each block becomes a pool of its own, which has one IP family.
	Apart bool
	// Leaving pools are about to be taken away: they are tried after all others of their kind.
	Leaving bool
}

// Restriction is spec.serviceAllocation of an IPAddressPool.
type Restriction struct {
	// Priority among the restricted pools that fit a Service: the lowest first, 0 last.
	Priority int
	// Namespaces it serves, with the selectors resolved. Empty: any.
	Namespaces []string
	// Selectors of labels of which one must match. Empty: any Service.
	Selectors []func(labels map[string]string) bool
}

// admits reports whether a pool may serve a Service that asks for it, by name or by an address.
func (p *Pool) admits(s *Service) bool {
	r := p.Restriction
	if r == nil {
		return true
	}
	if len(r.Namespaces) > 0 && !slices.Contains(r.Namespaces, s.Namespace) {
		return false
	}
	return len(r.Selectors) == 0 || slices.ContainsFunc(r.Selectors, func(match func(map[string]string) bool) bool { return match(s.Labels) })
}

// prefers reports whether a restricted pool serves a Service that asks for none. One whose namespace selectors
// select nothing has neither names nor selectors, and serves nobody.
func (p *Pool) prefers(s *Service) bool {
	return p.AutoAssign && p.Restriction != nil && len(p.Restriction.Namespaces)+len(p.Restriction.Selectors) > 0 && p.admits(s)
}

// open reports whether a pool serves whoever finds nothing elsewhere.
func (p *Pool) open() bool { return p.AutoAssign && p.Restriction == nil }

func (p *Pool) contains(a netip.Addr) bool {
	if p.AvoidBuggyIPs && Buggy(a) {
		return false
	}
	return slices.ContainsFunc(p.Ranges, func(r netipx.IPRange) bool { return r.Contains(a) })
}

// Buggy addresses confuse the smurf protection of some home routers.
func Buggy(a netip.Addr) bool {
	if !a.Is4() {
		return false
	}
	last := a.As4()[3]
	return last == 0 || last == 255
}

// inOrder returns those pools that MetalLB tries one after the other. Between open pools it chooses at random;
// here those that grow come last, so that what others can serve is not grown for.
func inOrder(pools []*Pool) []*Pool {
	rank := func(p *Pool) int {
		if p.Restriction == nil || p.Restriction.Priority == 0 {
			return int(^uint(0) >> 1)
		}
		return p.Restriction.Priority
	}
	last := func(p *Pool) int {
		switch {
		case p.Leaving:
			return 2
		case p.Grows:
			return 1
		}
		return 0
	}
	slices.SortStableFunc(pools, func(a, b *Pool) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(last(a), last(b)), cmp.Compare(a.Name, b.Name))
	})
	return pools
}
