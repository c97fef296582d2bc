package elastic

import (
	"net/netip"
	"slices"
)

// metal is MetalLB in as few words as possible, of metallb.md and not of the package: what Services have is all
// that it knows, and each question is answered by looking at all of them.
type metal struct {
	pools    []Pool // those that exist in the cluster
	services []*Service
	// shuffle leaves to chance what MetalLB leaves to chance; nil: nothing.
	shuffle func(n int, swap func(i, j int))
}

func (m *metal) chance(n int, swap func(i, j int)) {
	if m.shuffle != nil {
		m.shuffle(n, swap)
	}
}

// pass looks at every Service once: those that have most first, those that wait as they are listed, or by chance.
// It reports whether any has changed.
func (m *metal) pass() bool {
	services := slices.Clone(m.services)
	m.chance(len(services), func(i, j int) { services[i], services[j] = services[j], services[i] })
	slices.SortStableFunc(services, func(a, b *Service) int { return len(b.Has) - len(a.Has) })
	changed := false
	for _, s := range services {
		before := slices.Clone(s.Has)
		m.converge(s)
		changed = changed || !slices.Equal(before, s.Has)
	}
	return changed
}

// rest looks at all Services until nothing changes any more.
func (m *metal) rest() {
	for m.pass() {
	}
}

func (m *metal) converge(s *Service) {
	if s.Class != "" {
		return
	}
	if len(s.Families) == 0 || (s.Stack == RequireDualStack && len(s.Families) < 2) {
		s.Has = nil
		return
	}
	if len(s.Has) > 0 && !m.stays(s) {
		s.Has = nil
	}
	if s.WantsError != "" {
		return
	}
	if len(s.Has) == 0 {
		s.Has = m.find(s)
		return
	}
	if s.Stack == PreferDualStack && len(s.Has) == 1 {
		p := m.owner(s.Has)
		if more := m.first(s, p, !s.Has[0].Is4()); more.IsValid() {
			s.Has = append(s.Has, more)
		}
	}
}

func (m *metal) stays(s *Service) bool {
	p := m.owner(s.Has)
	if p == nil || !serves(p, s) || (s.WantsPool != "" && s.WantsPool != p.Name) || !m.mayHave(s, s.Has...) {
		return false
	}
	want, got := stack(s.Families), stackOf(s.Has)
	if want != got && (want != "46" || s.Stack != PreferDualStack || len(s.Has) > 1) {
		return false
	}
	return s.WantsError != "" || len(s.WantsIPs) == 0 || equal(s.WantsIPs, s.Has)
}

func (m *metal) find(s *Service) []netip.Addr {
	if len(s.WantsIPs) > 0 {
		p := m.owner(s.WantsIPs)
		if stack(s.Families) != stackOf(s.WantsIPs) || p == nil || !serves(p, s) || !m.mayHave(s, s.WantsIPs...) ||
			(s.WantsPool != "" && s.WantsPool != p.Name) {
			return nil
		}
		return s.WantsIPs
	}
	var asked, pinned, open []*Pool
	for i := range m.pools {
		p := &m.pools[i]
		switch r := p.Restriction; {
		case p.Name == s.WantsPool && serves(p, s):
			asked = append(asked, p)
		case !p.AutoAssign:
		case r == nil:
			open = append(open, p)
		case len(r.Namespaces)+len(r.Selectors) > 0 && serves(p, s):
			pinned = append(pinned, p)
		}
	}
	if s.WantsPool != "" {
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

// best is what the first pool gives that gives most: all that is asked for, or, to a Service that prefers two
// addresses, one of its first family, or one of the other.
func (m *metal) best(s *Service, pools []*Pool) (best []netip.Addr) {
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
		if len(got) < len(s.Families) && s.Stack != PreferDualStack {
			continue
		}
		if worth > most {
			best, most = got, worth
		}
	}
	return best
}

// first is the first address of a pool that a Service may have.
func (m *metal) first(s *Service, p *Pool, four bool) netip.Addr {
	for _, r := range p.Ranges {
		for a := r.From(); a.Is4() == four && a.Compare(r.To()) <= 0; a = a.Next() {
			if usable(p, a) && m.mayHave(s, a) {
				return a
			}
		}
	}
	return netip.Addr{}
}

// owner is the pool that has all of some addresses.
func (m *metal) owner(addrs []netip.Addr) *Pool {
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

// mayHave reports whether nobody who has one of some addresses minds.
func (m *metal) mayHave(s *Service, addrs ...netip.Addr) bool {
	for _, o := range m.services {
		for _, a := range addrs {
			if o == s || o.Class != "" || !slices.Contains(o.Has, a) || m.owner(o.Has) == nil {
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

// stack spells families: 4, 6, 46, and ? for what cannot be.
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
