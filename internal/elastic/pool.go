package elastic

import (
	"cmp"
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// Pool is the part of an IPAddressPool of MetalLB that decisions here depend on.
type Pool struct {
	Name string
	// Ranges are in the order of spec.addresses.
	Ranges []netipx.IPRange
	// AutoAssign reports whether the pool serves Services that name no pool.
	AutoAssign bool
	// AvoidBuggyIPs reports whether the pool skips IPv4 addresses that end in 0 or 255.
	AvoidBuggyIPs bool
	// Restriction limits the Services that the pool serves (spec.serviceAllocation); nil means no restriction.
	Restriction *Restriction
	// ReceivesGrowth reports whether addresses that the cluster grows by are added to this pool. At most one pool
	// receives growth.
	ReceivesGrowth bool
	// PoolPerAllocation reports, for a pool that receives growth, whether each block becomes a pool of its own, which
	// has one IP family.
	PoolPerAllocation bool
	// Draining reports whether the pool is being withdrawn. Such pools are tried after all others of their kind.
	Draining bool
}

// Restriction is spec.serviceAllocation of an IPAddressPool.
type Restriction struct {
	// Priority orders the restricted pools that match a Service: ascending, with 0 last.
	Priority int
	// Namespaces are the namespaces that the pool serves, including those that its selectors match. Empty means all.
	Namespaces []string
	// Selectors match the labels of Services; one match is enough. Empty means any Service.
	Selectors []func(labels map[string]string) bool
}

// allowsService reports whether the pool may serve a Service that requests it, by name or by address.
func (p *Pool) allowsService(s *Service) bool {
	r := p.Restriction
	if r == nil {
		return true
	}
	if len(r.Namespaces) > 0 && !slices.Contains(r.Namespaces, s.Namespace) {
		return false
	}
	return len(r.Selectors) == 0 || slices.ContainsFunc(r.Selectors, func(match func(map[string]string) bool) bool { return match(s.Labels) })
}

// isPreferredFor reports whether the pool is restricted and serves a Service that requests no pool. A pool whose
// namespace selectors match no namespace has neither namespaces nor selectors, and serves no Service.
func (p *Pool) isPreferredFor(s *Service) bool {
	return p.AutoAssign && p.Restriction != nil && len(p.Restriction.Namespaces)+len(p.Restriction.Selectors) > 0 && p.allowsService(s)
}

// isUnrestricted reports whether the pool serves any Service that finds no address in a preferred pool.
func (p *Pool) isUnrestricted() bool { return p.AutoAssign && p.Restriction == nil }

func (p *Pool) containsAddress(a netip.Addr) bool {
	if p.AvoidBuggyIPs && IsBuggyAddress(a) {
		return false
	}
	return slices.ContainsFunc(p.Ranges, func(r netipx.IPRange) bool { return r.Contains(a) })
}

// IsBuggyAddress reports whether an IPv4 address ends in 0 or 255, which confuses the smurf protection of some home
// routers.
func IsBuggyAddress(a netip.Addr) bool {
	if !a.Is4() {
		return false
	}
	last := a.As4()[3]
	return last == 0 || last == 255
}

// sortByPreference sorts pools into the order in which MetalLB tries them. MetalLB chooses at random between
// unrestricted pools; here those that receive growth come last, so that the cluster does not grow for what other
// pools can serve.
func sortByPreference(pools []*Pool) []*Pool {
	rank := func(p *Pool) int {
		if p.Restriction == nil || p.Restriction.Priority == 0 {
			return int(^uint(0) >> 1)
		}
		return p.Restriction.Priority
	}
	last := func(p *Pool) int {
		switch {
		case p.Draining:
			return 2
		case p.ReceivesGrowth:
			return 1
		}
		return 0
	}
	slices.SortStableFunc(pools, func(a, b *Pool) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(last(a), last(b)), cmp.Compare(a.Name, b.Name))
	})
	return pools
}
