package elastic

import (
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// replay is MetalLB's allocator: who has which address of which pool.
type replay struct {
	pools []*Pool
	users map[netip.Addr][]*Service
	// grown counts the addresses of each family that do not exist yet and are used, if grows allows any.
	grown [2]int64
	grows [2]bool
	// begin is where a search of a range begins: what lies before is taken, as nobody lets go of anything here.
	begin map[search]netip.Addr
	// steps is how much was compared, and look what it costs to look at all pools once.
	steps, look int
}

// search is what decides which addresses of the range that begins with first a Service can have.
type search struct {
	first netip.Addr
	avoid bool
	// who is empty for Services that share with nobody.
	who string
}

// maxSteps bounds a replay to some seconds, whatever a workload cluster says that it has. A thousand Services need some
// ten thousand.
const maxSteps = 1 << 24

// tooMuch is said of the Services that the replay does not come to.
const tooMuch = "the cluster has too many Services and IPAddressPools to work out which address it would get"

func (r *replay) exhausted() bool { return r.steps > maxSteps }

// notYet are the addresses that a cluster might grow by: nobody else has any of them.
var notYet = [2]netipx.IPRange{
	IPv4: netipx.MustParseIPRange("0.0.0.1-0.255.255.255"),
	IPv6: netipx.MustParseIPRange("100::1-100::ffff:ffff"),
}

func newReplay(pools []Pool) *replay {
	r := &replay{users: map[netip.Addr][]*Service{}, begin: map[search]netip.Addr{}}
	for i := range pools {
		p := &pools[i]
		r.pools = append(r.pools, p)
		r.look += 1 + len(p.Ranges)
		if p.Restriction != nil {
			r.look += len(p.Restriction.Namespaces) + len(p.Restriction.Selectors)
		}
	}
	return r
}

func (r *replay) pool(name string) *Pool {
	i := slices.IndexFunc(r.pools, func(p *Pool) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return r.pools[i]
}

// holding returns the pool that has all of some addresses, nil if none does.
func (r *replay) holding(addrs []netip.Addr) *Pool {
	i := slices.IndexFunc(r.pools, func(p *Pool) bool {
		return !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !p.contains(a) })
	})
	if i < 0 || len(addrs) == 0 {
		return nil
	}
	return r.pools[i]
}

// keeps takes what a Service has already. It reports whether MetalLB leaves it that.
func (r *replay) keeps(s *Service) bool {
	r.steps += r.look * len(s.Has)
	p := r.holding(s.Has)
	if p == nil || !p.admits(s) || (s.WantsPool != "" && s.WantsPool != p.Name) || r.taken(s, s.Has) != "" {
		return false
	}
	if one := s.dual() && s.Stack == PreferDualStack && len(s.Has) == 1; !one && !fits(s, s.Has) {
		return false
	}
	if len(s.WantsIPs) > 0 && !sameSet(s.WantsIPs, s.Has) {
		return false
	}
	r.use(s, s.Has)
	return true
}

// holder is a Service with the addresses that it has, or is about to be given.
type holder struct {
	service *Service
	addrs   []netip.Addr
}

// complete takes what MetalLB adds to a Service that prefers two addresses and has one: an address of the other
// family, of the same pool. One whose wish cannot be read is left as it is.
func (r *replay) complete(h *holder) []netip.Addr {
	s := h.service
	if s.Stack != PreferDualStack || len(h.addrs) != 1 || s.WantsError != "" {
		return nil
	}
	a := r.free(s, r.holding(h.addrs), 1-FamilyOf(h.addrs[0]))
	if !a.IsValid() {
		return nil
	}
	r.use(s, []netip.Addr{a})
	h.addrs = []netip.Addr{h.addrs[0], a}
	return h.addrs
}

func (r *replay) use(s *Service, addrs []netip.Addr) {
	for _, a := range addrs {
		if f := FamilyOf(a); notYet[f].Contains(a) && len(r.users[a]) == 0 {
			r.grown[f]++
		}
		r.users[a] = append(r.users[a], s)
	}
}

// taken says why a Service cannot have some addresses, empty if it can.
func (r *replay) taken(s *Service, addrs []netip.Addr) string {
	for _, a := range addrs {
		if other := r.against(s, a); other != nil {
			return fmt.Sprintf("%s, which Service %s has%s", a, other.Key(), s.clashWith(other))
		}
	}
	return ""
}

// against returns who keeps a Service from having an address, nil if nobody does.
func (r *replay) against(s *Service, a netip.Addr) *Service {
	r.steps++
	for _, other := range r.users[a] {
		c := s.clashWith(other)
		if c.kind != otherKey && c.kind != otherBackend {
			r.steps += 1 + len(s.Ports)*len(other.Ports)
		}
		if c.kind != noClash {
			return other
		}
	}
	return nil
}

// clash is why two Services cannot share an address.
type clash struct {
	kind clashKind
	port Port // of samePort
}

type clashKind int

const (
	noClash clashKind = iota
	otherKey
	otherBackend
	samePort
)

// clashWith finds what keeps two Services from sharing an address.
func (s *Service) clashWith(other *Service) clash {
	switch {
	case s.SharingKey == "" || s.SharingKey != other.SharingKey:
		return clash{kind: otherKey}
	case s.BackendKey != other.BackendKey:
		return clash{kind: otherBackend}
	}
	if at := slices.IndexFunc(s.Ports, func(p Port) bool { return slices.Contains(other.Ports, p) }); at >= 0 {
		return clash{kind: samePort, port: s.Ports[at]}
	}
	return clash{}
}

// String goes on after the name of the Service that has the address.
func (c clash) String() string {
	switch c.kind {
	case otherKey:
		return " and does not share with this one (metallb.io/allow-shared-ip)"
	case otherBackend:
		return ", with another external traffic policy or selector"
	case samePort:
		return fmt.Sprintf(", and both use port %s/%d", c.port.Protocol, c.port.Number)
	case noClash:
	}
	return ""
}

// place finds addresses for a Service as MetalLB does, and takes them. It says why there are none.
func (r *replay) place(s *Service) (addrs []netip.Addr, why string) {
	if r.steps += r.look; r.exhausted() {
		return nil, tooMuch
	}
	if len(s.WantsIPs) > 0 {
		return r.placeAt(s)
	}
	if s.WantsPool != "" {
		p := r.pool(s.WantsPool)
		if p == nil {
			return nil, fmt.Sprintf("it asks for IPAddressPool %q, which does not exist", s.WantsPool)
		}
		if !p.admits(s) {
			return nil, fmt.Sprintf("IPAddressPool %q does not serve it (spec.serviceAllocation)", p.Name)
		}
		found, ok := r.choose(s, []*Pool{p})
		if !ok {
			return nil, fmt.Sprintf("IPAddressPool %q has no address for it", p.Name)
		}
		r.use(s, found)
		return found, ""
	}
	var preferred, open []*Pool
	for _, p := range r.pools {
		if p.prefers(s) {
			preferred = append(preferred, p)
		}
		if p.open() {
			open = append(open, p)
		}
	}
	for _, pools := range [][]*Pool{preferred, open} {
		if found, ok := r.choose(s, inOrder(pools)); ok {
			r.use(s, found)
			return found, ""
		}
	}
	if len(preferred)+len(open) == 0 {
		return nil, "no IPAddressPool serves it: check autoAssign and spec.serviceAllocation of the pools that exist"
	}
	return nil, "no IPAddressPool that serves it has a free address"
}

// placeAt takes the very addresses that a Service asks for.
func (r *replay) placeAt(s *Service) ([]netip.Addr, string) {
	p := r.holding(s.WantsIPs)
	switch {
	case !fits(s, s.WantsIPs):
		return nil, "the addresses it asks for are not of its IP families"
	case p == nil:
		return nil, fmt.Sprintf("it asks for %s, which is in no IPAddressPool", join(s.WantsIPs))
	case !p.admits(s):
		return nil, fmt.Sprintf("it asks for %s of IPAddressPool %q, which does not serve it", join(s.WantsIPs), p.Name)
	case s.WantsPool != "" && s.WantsPool != p.Name:
		return nil, fmt.Sprintf("it asks for %s, but also for IPAddressPool %q, which does not have it", join(s.WantsIPs), s.WantsPool)
	}
	if why := r.taken(s, s.WantsIPs); why != "" {
		return nil, "it asks for " + why
	}
	r.use(s, s.WantsIPs)
	return s.WantsIPs, ""
}

// choose finds addresses in the first pool that has all that a Service asks for. One that prefers two addresses
// takes one of them where no pool has both.
func (r *replay) choose(s *Service, pools []*Pool) ([]netip.Addr, bool) {
	var fallback []netip.Addr
	for _, p := range pools {
		var found []netip.Addr
		for _, f := range s.Families {
			if a := r.free(s, p, f); a.IsValid() {
				found = append(found, a)
			}
		}
		if len(found) == len(s.Families) {
			return found, true
		}
		if s.dual() && s.Stack == PreferDualStack && len(found) > 0 && (fallback == nil || betterFor(s, found, fallback)) {
			fallback = found
		}
	}
	return fallback, len(fallback) > 0
}

// betterFor reports whether a single address is of the family that a Service names first, and the other not.
func betterFor(s *Service, a, than []netip.Addr) bool {
	return FamilyOf(a[0]) == s.Families[0] && FamilyOf(than[0]) != s.Families[0]
}

// free returns the first address of a pool that a Service can have.
func (r *replay) free(s *Service, p *Pool, f Family) netip.Addr {
	for _, rng := range p.Ranges {
		if FamilyOf(rng.From()) != f {
			continue
		}
		if a := r.freeOf(s, rng, p.AvoidBuggyIPs); a.IsValid() {
			return a
		}
	}
	if p.Grows && r.grows[f] && (!p.Apart || f == r.onlyFamily(s)) {
		return r.freeOf(s, notYet[f], false)
	}
	return netip.Addr{}
}

// freeOf returns the first address of a range that a Service can have.
func (r *replay) freeOf(s *Service, rng netipx.IPRange, avoid bool) netip.Addr {
	key := search{rng.From(), avoid, s.sharer()}
	a, known := r.begin[key]
	if !known {
		a = rng.From()
	}
	for a.IsValid() && rng.Contains(a) && (r.against(s, a) != nil || (avoid && Buggy(a))) && !r.exhausted() {
		a = a.Next()
	}
	r.begin[key] = a
	if !rng.Contains(a) || r.exhausted() {
		return netip.Addr{}
	}
	return a
}

// sharer tells apart those Services that can share addresses with different others.
func (s *Service) sharer() string {
	if s.SharingKey == "" {
		return ""
	}
	return fmt.Sprintf("%q %q %v", s.SharingKey, s.BackendKey, s.Ports)
}

// onlyFamily is the family that a Service is given where growth gives one: the first of its own that there is more
// of.
func (r *replay) onlyFamily(s *Service) Family {
	for _, f := range s.Families {
		if r.grows[f] {
			return f
		}
	}
	return s.Families[0]
}

// fits reports whether addresses are of the families of a Service.
func fits(s *Service, addrs []netip.Addr) bool {
	families := make([]Family, 0, len(addrs))
	for _, a := range addrs {
		families = append(families, FamilyOf(a))
	}
	return sameSet(families, s.Families)
}

// sameSet reports whether two lists hold the same. Nothing is in the second one twice.
func sameSet[T comparable](a, b []T) bool {
	return len(a) == len(b) && !slices.ContainsFunc(b, func(x T) bool { return !slices.Contains(a, x) })
}

func join(addrs []netip.Addr) string {
	text := ""
	for i, a := range addrs {
		if i > 0 {
			text += ", "
		}
		text += a.String()
	}
	return text
}
