package elastic

import (
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// allocatorReplay replays MetalLB's allocator: which Services have which addresses of which pools.
type allocatorReplay struct {
	pools          []*Pool
	usersByAddress map[netip.Addr][]*Service
	// grownCounts is the number of used addresses of each family that the cluster would grow by. growableFamilies
	// reports which families it can grow by.
	grownCounts      [2]int64
	growableFamilies [2]bool
	// searchStarts is where the search of a range begins: all addresses before are taken, and no Service releases an
	// address during a replay.
	searchStarts map[searchKey]netip.Addr
	// stepCount is the number of comparisons so far. stepsPerScan is the cost of one scan of all pools.
	stepCount, stepsPerScan int
}

// searchKey identifies the addresses of a range that a Service can have; rangeStart is the first address of the
// range.
type searchKey struct {
	rangeStart netip.Addr
	avoidBuggy bool
	// sharingIdentity is empty for Services that share with no other.
	sharingIdentity string
}

// maxReplaySteps bounds a replay to some seconds, whatever number of objects a workload cluster reports. A thousand
// Services need some ten thousand steps.
const maxReplaySteps = 1 << 24

// tooManyObjectsMessage is the message for Services that the replay does not reach.
const tooManyObjectsMessage = "the cluster has too many Services and IPAddressPools to work out which address it would get"

func (r *allocatorReplay) isOverLimit() bool { return r.stepCount > maxReplaySteps }

// growthRanges are the addresses that a cluster might grow by. No real object has any of them.
var growthRanges = [2]netipx.IPRange{
	IPv4: netipx.MustParseIPRange("0.0.0.1-0.255.255.255"),
	IPv6: netipx.MustParseIPRange("100::1-100::ffff:ffff"),
}

func newAllocatorReplay(pools []Pool) *allocatorReplay {
	r := &allocatorReplay{usersByAddress: map[netip.Addr][]*Service{}, searchStarts: map[searchKey]netip.Addr{}}
	for i := range pools {
		p := &pools[i]
		r.pools = append(r.pools, p)
		r.stepsPerScan += 1 + len(p.Ranges)
		if p.Restriction != nil {
			r.stepsPerScan += len(p.Restriction.Namespaces) + len(p.Restriction.Selectors)
		}
	}
	return r
}

func (r *allocatorReplay) findPool(name string) *Pool {
	i := slices.IndexFunc(r.pools, func(p *Pool) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return r.pools[i]
}

// findPoolWithAddresses returns the pool that contains all of some addresses, nil if there is none.
func (r *allocatorReplay) findPoolWithAddresses(addrs []netip.Addr) *Pool {
	i := slices.IndexFunc(r.pools, func(p *Pool) bool {
		return !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !p.containsAddress(a) })
	})
	if i < 0 || len(addrs) == 0 {
		return nil
	}
	return r.pools[i]
}

// keepAddresses assigns the addresses that a Service has already, and reports whether MetalLB lets the Service keep
// them.
func (r *allocatorReplay) keepAddresses(s *Service) bool {
	r.stepCount += r.stepsPerScan * len(s.Addresses)
	p := r.findPoolWithAddresses(s.Addresses)
	if p == nil || !p.allowsService(s) || (s.RequestedPool != "" && s.RequestedPool != p.Name) || r.describeConflict(s, s.Addresses) != "" {
		return false
	}
	if one := s.isDualStack() && s.FamilyPolicy == PreferDualStack && len(s.Addresses) == 1; !one && !matchesFamilies(s, s.Addresses) {
		return false
	}
	if len(s.RequestedIPs) > 0 && !equalSets(s.RequestedIPs, s.Addresses) {
		return false
	}
	r.assignAddresses(s, s.Addresses)
	return true
}

// addressUser is a Service with the addresses that it has, or is about to get.
type addressUser struct {
	service   *Service
	addresses []netip.Addr
}

// completeDualStack assigns the address that MetalLB adds to a Service that prefers two addresses and has one: an
// address of the other family from the same pool. It leaves a Service whose request cannot be parsed unchanged.
func (r *allocatorReplay) completeDualStack(h *addressUser) []netip.Addr {
	s := h.service
	if s.FamilyPolicy != PreferDualStack || len(h.addresses) != 1 || s.RequestProblem != "" {
		return nil
	}
	a := r.findFreeInPool(s, r.findPoolWithAddresses(h.addresses), 1-AddressFamily(h.addresses[0]))
	if !a.IsValid() {
		return nil
	}
	r.assignAddresses(s, []netip.Addr{a})
	h.addresses = []netip.Addr{h.addresses[0], a}
	return h.addresses
}

func (r *allocatorReplay) assignAddresses(s *Service, addrs []netip.Addr) {
	for _, a := range addrs {
		if f := AddressFamily(a); growthRanges[f].Contains(a) && len(r.usersByAddress[a]) == 0 {
			r.grownCounts[f]++
		}
		r.usersByAddress[a] = append(r.usersByAddress[a], s)
	}
}

// describeConflict states why a Service cannot have some addresses, empty if it can.
func (r *allocatorReplay) describeConflict(s *Service, addrs []netip.Addr) string {
	for _, a := range addrs {
		if other := r.findConflictingUser(s, a); other != nil {
			return fmt.Sprintf("%s, which Service %s has%s", a, other.Key(), s.conflictWith(other))
		}
	}
	return ""
}

// findConflictingUser returns a Service that keeps another one from having an address, nil if there is none.
func (r *allocatorReplay) findConflictingUser(s *Service, a netip.Addr) *Service {
	r.stepCount++
	for _, other := range r.usersByAddress[a] {
		c := s.conflictWith(other)
		if c.kind != differentSharingKey && c.kind != differentBackend {
			r.stepCount += 1 + len(s.Ports)*len(other.Ports)
		}
		if c.kind != noConflict {
			return other
		}
	}
	return nil
}

// sharingConflict is the reason why two Services cannot share an address.
type sharingConflict struct {
	kind conflictKind
	port Port // set for samePort
}

type conflictKind int

const (
	noConflict conflictKind = iota
	differentSharingKey
	differentBackend
	samePort
)

// conflictWith returns what keeps two Services from sharing an address.
func (s *Service) conflictWith(other *Service) sharingConflict {
	switch {
	case s.SharingKey == "" || s.SharingKey != other.SharingKey:
		return sharingConflict{kind: differentSharingKey}
	case s.BackendKey != other.BackendKey:
		return sharingConflict{kind: differentBackend}
	}
	if at := slices.IndexFunc(s.Ports, func(p Port) bool { return slices.Contains(other.Ports, p) }); at >= 0 {
		return sharingConflict{kind: samePort, port: s.Ports[at]}
	}
	return sharingConflict{}
}

// String returns a suffix for the name of the Service that has the address.
func (c sharingConflict) String() string {
	switch c.kind {
	case differentSharingKey:
		return " and does not share with this one (metallb.io/allow-shared-ip)"
	case differentBackend:
		return ", with another external traffic policy or selector"
	case samePort:
		return fmt.Sprintf(", and both use port %s/%d", c.port.Protocol, c.port.Number)
	case noConflict:
	}
	return ""
}

// placeService finds addresses for a Service as MetalLB does, and assigns them. If it finds none, why states the
// reason.
func (r *allocatorReplay) placeService(s *Service) (addrs []netip.Addr, why string) {
	if r.stepCount += r.stepsPerScan; r.isOverLimit() {
		return nil, tooManyObjectsMessage
	}
	if len(s.RequestedIPs) > 0 {
		return r.placeAtRequestedIPs(s)
	}
	if s.RequestedPool != "" {
		p := r.findPool(s.RequestedPool)
		if p == nil {
			return nil, fmt.Sprintf("it asks for IPAddressPool %q, which does not exist", s.RequestedPool)
		}
		if !p.allowsService(s) {
			return nil, fmt.Sprintf("IPAddressPool %q does not serve it (spec.serviceAllocation)", p.Name)
		}
		found, ok := r.chooseAddresses(s, []*Pool{p})
		if !ok {
			return nil, fmt.Sprintf("IPAddressPool %q has no address for it", p.Name)
		}
		r.assignAddresses(s, found)
		return found, ""
	}
	var preferred, open []*Pool
	for _, p := range r.pools {
		if p.isPreferredFor(s) {
			preferred = append(preferred, p)
		}
		if p.isUnrestricted() {
			open = append(open, p)
		}
	}
	for _, pools := range [][]*Pool{preferred, open} {
		if found, ok := r.chooseAddresses(s, sortByPreference(pools)); ok {
			r.assignAddresses(s, found)
			return found, ""
		}
	}
	if len(preferred)+len(open) == 0 {
		return nil, "no IPAddressPool serves it: check autoAssign and spec.serviceAllocation of the pools that exist"
	}
	return nil, "no IPAddressPool that serves it has a free address"
}

// placeAtRequestedIPs assigns exactly the addresses that a Service requests, or returns the reason why it cannot.
func (r *allocatorReplay) placeAtRequestedIPs(s *Service) ([]netip.Addr, string) {
	p := r.findPoolWithAddresses(s.RequestedIPs)
	switch {
	case !matchesFamilies(s, s.RequestedIPs):
		return nil, "the addresses it asks for are not of its IP families"
	case p == nil:
		return nil, fmt.Sprintf("it asks for %s, which is in no IPAddressPool", joinAddresses(s.RequestedIPs))
	case !p.allowsService(s):
		return nil, fmt.Sprintf("it asks for %s of IPAddressPool %q, which does not serve it", joinAddresses(s.RequestedIPs), p.Name)
	case s.RequestedPool != "" && s.RequestedPool != p.Name:
		return nil, fmt.Sprintf("it asks for %s, but also for IPAddressPool %q, which does not have it", joinAddresses(s.RequestedIPs), s.RequestedPool)
	}
	if why := r.describeConflict(s, s.RequestedIPs); why != "" {
		return nil, "it asks for " + why
	}
	r.assignAddresses(s, s.RequestedIPs)
	return s.RequestedIPs, ""
}

// chooseAddresses returns addresses from the first pool that has all that a Service requests. A Service that prefers
// two addresses gets one of them if no pool has both.
func (r *allocatorReplay) chooseAddresses(s *Service, pools []*Pool) ([]netip.Addr, bool) {
	var fallback []netip.Addr
	for _, p := range pools {
		var found []netip.Addr
		for _, f := range s.Families {
			if a := r.findFreeInPool(s, p, f); a.IsValid() {
				found = append(found, a)
			}
		}
		if len(found) == len(s.Families) {
			return found, true
		}
		if s.isDualStack() && s.FamilyPolicy == PreferDualStack && len(found) > 0 && (fallback == nil || isBetterFallback(s, found, fallback)) {
			fallback = found
		}
	}
	return fallback, len(fallback) > 0
}

// isBetterFallback reports whether the single address a is of the first family of a Service and than is not.
func isBetterFallback(s *Service, a, than []netip.Addr) bool {
	return AddressFamily(a[0]) == s.Families[0] && AddressFamily(than[0]) != s.Families[0]
}

// findFreeInPool returns the first address of a pool that a Service can have, the zero Addr if there is none.
func (r *allocatorReplay) findFreeInPool(s *Service, p *Pool, f Family) netip.Addr {
	for _, rng := range p.Ranges {
		if AddressFamily(rng.From()) != f {
			continue
		}
		if a := r.findFreeInRange(s, rng, p.AvoidBuggyIPs); a.IsValid() {
			return a
		}
	}
	if p.ReceivesGrowth && r.growableFamilies[f] && (!p.PoolPerAllocation || f == r.growthFamily(s)) {
		return r.findFreeInRange(s, growthRanges[f], false)
	}
	return netip.Addr{}
}

// findFreeInRange returns the first address of a range that a Service can have, the zero Addr if there is none.
func (r *allocatorReplay) findFreeInRange(s *Service, rng netipx.IPRange, avoid bool) netip.Addr {
	key := searchKey{rng.From(), avoid, s.sharingIdentity()}
	a, known := r.searchStarts[key]
	if !known {
		a = rng.From()
	}
	for a.IsValid() && rng.Contains(a) && (r.findConflictingUser(s, a) != nil || (avoid && IsBuggyAddress(a))) && !r.isOverLimit() {
		a = a.Next()
	}
	r.searchStarts[key] = a
	if !rng.Contains(a) || r.isOverLimit() {
		return netip.Addr{}
	}
	return a
}

// sharingIdentity distinguishes Services that can share addresses with different other Services.
func (s *Service) sharingIdentity() string {
	if s.SharingKey == "" {
		return ""
	}
	return fmt.Sprintf("%q %q %v", s.SharingKey, s.BackendKey, s.Ports)
}

// growthFamily returns the family of the address that growth gives a Service: the first of the Service's families
// that the cluster can grow by.
func (r *allocatorReplay) growthFamily(s *Service) Family {
	for _, f := range s.Families {
		if r.growableFamilies[f] {
			return f
		}
	}
	return s.Families[0]
}

// matchesFamilies reports whether addresses are of the families of a Service.
func matchesFamilies(s *Service, addrs []netip.Addr) bool {
	families := make([]Family, 0, len(addrs))
	for _, a := range addrs {
		families = append(families, AddressFamily(a))
	}
	return equalSets(families, s.Families)
}

// equalSets reports whether two lists have the same elements. b must not contain duplicates.
func equalSets[T comparable](a, b []T) bool {
	return len(a) == len(b) && !slices.ContainsFunc(b, func(x T) bool { return !slices.Contains(a, x) })
}

func joinAddresses(addrs []netip.Addr) string {
	text := ""
	for i, a := range addrs {
		if i > 0 {
			text += ", "
		}
		text += a.String()
	}
	return text
}
