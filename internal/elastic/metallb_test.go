package elastic

import (
	"net/netip"
	"slices"
)

// fakeMetalLB is a minimal MetalLB, derived from metallb.md and not from this package: its only state is the
// addresses that Services have, and it answers each question by a scan of all of them.
type fakeMetalLB struct {
	pools    []Pool // those that exist in the cluster
	services []*Service
	// shuffle randomizes what MetalLB leaves to chance; nil means no randomness.
	shuffle func(n int, swap func(i, j int))
}

func (m *fakeMetalLB) chance(n int, swap func(i, j int)) {
	if m.shuffle != nil {
		m.shuffle(n, swap)
	}
}

// pass processes every Service once: those with most addresses first, waiting ones in the order of the list, or at
// random. It reports whether any has changed.
func (m *fakeMetalLB) pass() bool {
	services := slices.Clone(m.services)
	m.chance(len(services), func(i, j int) { services[i], services[j] = services[j], services[i] })
	slices.SortStableFunc(services, func(a, b *Service) int { return len(b.Addresses) - len(a.Addresses) })
	changed := false
	for _, s := range services {
		before := slices.Clone(s.Addresses)
		m.converge(s)
		changed = changed || !slices.Equal(before, s.Addresses)
	}
	return changed
}

// rest processes all Services until nothing changes any more.
func (m *fakeMetalLB) rest() {
	for m.pass() {
	}
}

func (m *fakeMetalLB) converge(s *Service) {
	if s.LoadBalancerClass != "" {
		return
	}
	if len(s.Families) == 0 || (s.FamilyPolicy == RequireDualStack && len(s.Families) < 2) {
		s.Addresses = nil
		return
	}
	if len(s.Addresses) > 0 && !m.stays(s) {
		s.Addresses = nil
	}
	if s.RequestProblem != "" {
		return
	}
	if len(s.Addresses) == 0 {
		s.Addresses = m.find(s)
		return
	}
	if s.FamilyPolicy == PreferDualStack && len(s.Addresses) == 1 {
		p := m.owner(s.Addresses)
		if more := m.first(s, p, !s.Addresses[0].Is4()); more.IsValid() {
			s.Addresses = append(s.Addresses, more)
		}
	}
}

func (m *fakeMetalLB) stays(s *Service) bool {
	p := m.owner(s.Addresses)
	if p == nil || !serves(p, s) || (s.RequestedPool != "" && s.RequestedPool != p.Name) || !m.mayHave(s, s.Addresses...) {
		return false
	}
	want, got := stack(s.Families), stackOf(s.Addresses)
	if want != got && (want != "46" || s.FamilyPolicy != PreferDualStack || len(s.Addresses) > 1) {
		return false
	}
	return s.RequestProblem != "" || len(s.RequestedIPs) == 0 || equal(s.RequestedIPs, s.Addresses)
}

func (m *fakeMetalLB) find(s *Service) []netip.Addr {
	if len(s.RequestedIPs) > 0 {
		p := m.owner(s.RequestedIPs)
		if stack(s.Families) != stackOf(s.RequestedIPs) || p == nil || !serves(p, s) || !m.mayHave(s, s.RequestedIPs...) ||
			(s.RequestedPool != "" && s.RequestedPool != p.Name) {
			return nil
		}
		return s.RequestedIPs
	}
	var asked, pinned, open []*Pool
	for i := range m.pools {
		p := &m.pools[i]
		switch r := p.Restriction; {
		case p.Name == s.RequestedPool && serves(p, s):
			asked = append(asked, p)
		case !p.AutoAssign:
		case r == nil:
			open = append(open, p)
		case len(r.Namespaces)+len(r.Selectors) > 0 && serves(p, s):
			pinned = append(pinned, p)
		}
	}
	if s.RequestedPool != "" {
		return m.best(s, asked)
	}
	m.chance(len(pinned), func(i, j int) { pinned[i], pinned[j] = pinned[j], pinned[i] })
	m.chance(len(open), func(i, j int) { open[i], open[j] = open[j], open[i] })
	slices.SortStableFunc(pinned, func(a, b *Pool) int {
		last := func(p *Pool) int {
			if p.Restriction.Priority == 0 {
				return 1 << 30
			}
			return p.Restriction.Priority
		}
		return last(a) - last(b)
	})
	if got := m.best(s, pinned); got != nil {
		return got
	}
	return m.best(s, open)
}

// best returns what the first pool gives that gives most: all that is requested, or, to a Service that prefers two
// addresses, one of its first family, or one of the other.
func (m *fakeMetalLB) best(s *Service, pools []*Pool) (best []netip.Addr) {
	most := 0
	for _, p := range pools {
		var got []netip.Addr
		worth := 0
		for i, f := range s.Families {
			if a := m.first(s, p, f == IPv4); a.IsValid() {
				got = append(got, a)
				worth += 2 - i
			}
		}
		if len(got) < len(s.Families) && s.FamilyPolicy != PreferDualStack {
			continue
		}
		if worth > most {
			best, most = got, worth
		}
	}
	return best
}

// first returns the first address of a pool that a Service may have.
func (m *fakeMetalLB) first(s *Service, p *Pool, four bool) netip.Addr {
	for _, r := range p.Ranges {
		for a := r.From(); a.Is4() == four && a.Compare(r.To()) <= 0; a = a.Next() {
			if usable(p, a) && m.mayHave(s, a) {
				return a
			}
		}
	}
	return netip.Addr{}
}

// owner returns the pool that contains all of some addresses.
func (m *fakeMetalLB) owner(addrs []netip.Addr) *Pool {
	for i := range m.pools {
		all := true
		for _, a := range addrs {
			in := false
			for _, r := range m.pools[i].Ranges {
				in = in || (r.From().Compare(a) <= 0 && a.Compare(r.To()) <= 0 && usable(&m.pools[i], a))
			}
			all = all && in
		}
		if all {
			return &m.pools[i]
		}
	}
	return nil
}

func usable(p *Pool, a netip.Addr) bool {
	last := a.AsSlice()[len(a.AsSlice())-1]
	return !p.AvoidBuggyIPs || !a.Is4() || (last != 0 && last != 255)
}

// mayHave reports whether no other Service keeps s from having the addresses.
func (m *fakeMetalLB) mayHave(s *Service, addrs ...netip.Addr) bool {
	for _, o := range m.services {
		for _, a := range addrs {
			if o == s || o.LoadBalancerClass != "" || !slices.Contains(o.Addresses, a) || m.owner(o.Addresses) == nil {
				continue
			}
			if s.SharingKey == "" || s.SharingKey != o.SharingKey || s.BackendKey != o.BackendKey {
				return false
			}
			for _, p := range s.Ports {
				if slices.Contains(o.Ports, p) {
					return false
				}
			}
		}
	}
	return true
}

func serves(p *Pool, s *Service) bool {
	r := p.Restriction
	if r == nil {
		return true
	}
	labels := len(r.Selectors) == 0
	for _, match := range r.Selectors {
		labels = labels || match(s.Labels)
	}
	return labels && (len(r.Namespaces) == 0 || slices.Contains(r.Namespaces, s.Namespace))
}

// stack formats families: 4, 6, 46, and ? for what cannot be.
func stack(families []Family) string {
	switch {
	case len(families) == 0:
		return ""
	case len(families) == 1 && families[0] == IPv4:
		return "4"
	case len(families) == 1:
		return "6"
	case len(families) == 2 && families[0] != families[1]:
		return "46"
	}
	return "?"
}

func stackOf(addrs []netip.Addr) string {
	families := make([]Family, len(addrs))
	for i, a := range addrs {
		families[i] = IPv6
		if a.Is4() {
			families[i] = IPv4
		}
	}
	return stack(families)
}

func equal(a, b []netip.Addr) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.SortFunc(a, netip.Addr.Compare)
	slices.SortFunc(b, netip.Addr.Compare)
	return slices.Equal(a, b)
}
