package leaseports

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/record"
)

// Pool is a pool of a load balancer class, as a namespace sees it.
type Pool struct {
	Ref      v1alpha1.PoolReference
	Class    string
	Priority int32
	// Family is 4 or 6.
	Family int
	// Open: it gives addresses, as far as there are any; Why says why not.
	Open bool
	Why  string
	// Available is how many it has left, Quota how many leases of the namespace may have one, below 0: any number.
	Available, Quota int64
	// IdleAfter is how long a Service may be without a ready endpoint; 0: for ever.
	IdleAfter time.Duration
	// Generation is that of its spec.
	Generation int64
	// Has reports whether it has an address.
	Has func(netip.Addr) bool
}

// was is how a pool was when it had nothing for a lease. It is tried again when it is another way.
func (p *Pool) was() string { return fmt.Sprintf("%d/%d", p.Generation, p.Available) }

// Made is a lease that is to be made.
type Made struct {
	Name    string
	Pool    v1alpha1.PoolReference
	Address netip.Addr
	// For is the only Service that may use it, empty: any that asks for the address.
	For string
	// Tried are the pools that had nothing for it.
	Tried map[v1alpha1.PoolReference]string
	// Instead is the lease that is deleted first: its pool has nothing for it, and it never had an address.
	Instead *Lease
}

// TriedText is how it is written which pools a lease was tried with; empty: none.
func TriedText(all map[v1alpha1.PoolReference]string) string {
	if len(all) == 0 {
		return ""
	}
	var out []tried
	for ref, was := range all {
		out = append(out, tried{ref, was})
	}
	slices.SortFunc(out, func(a, b tried) int { return compareRefs(a.PoolReference, b.PoolReference) })
	text, err := json.Marshal(out)
	if err != nil {
		panic(err) // it is strings
	}
	return string(text)
}

func compareRefs(a, b v1alpha1.PoolReference) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
}

// Make finds the leases of Services that name none: those that are made of pools of their class. It returns the Services
// with the leases that they have, or why they have none yet, and the leases that are to be made.
//
// A lease is made of the first pool of the class, by priority, that has room; without any, of the first one, where it
// waits. One that waits, and never had an address, goes to another pool of the class as soon as that has room. A Service
// without a ready endpoint for longer than its pool allows has no lease; next is how long it is until there is another
// one, 0: there is none.
func Make(services []Service, leases []Lease, pools []Pool, now time.Time) (_ []Service, made []Made, next time.Duration) {
	m := maker{byName: map[string]*Lease{}, made: map[string]bool{}, left: map[v1alpha1.PoolReference]int64{}}
	for i := range leases {
		m.byName[leases[i].Name] = &leases[i]
	}
	m.pools = slices.Clone(pools)
	slices.SortFunc(m.pools, func(a, b Pool) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), compareRefs(a.Ref, b.Ref))
	})
	for i := range m.pools {
		m.left[m.pools[i].Ref] = m.pools[i].room(leases)
	}
	out := slices.Clone(services)
	var ordered []*Service
	for i := range out {
		if s := &out[i]; s.Class != "" && s.Problem == "" {
			ordered = append(ordered, s)
		}
	}
	slices.SortFunc(ordered, (*Service).compare)
	for _, s := range ordered {
		m.serve(s, now)
	}
	return out, m.out, m.next
}

// room is how many leases of the namespace more get an address of the pool, as it was read.
func (p *Pool) room(leases []Lease) int64 {
	if !p.Open {
		return 0
	}
	left := p.Available
	if p.Quota >= 0 {
		used := int64(0)
		for i := range leases {
			if l := &leases[i]; l.Pool == p.Ref && (l.Address.IsValid() || l.Refused.Reason == "") {
				used++
			}
		}
		left = min(left, max(0, p.Quota-used))
	}
	return left
}

type maker struct {
	byName map[string]*Lease
	pools  []Pool
	left   map[v1alpha1.PoolReference]int64
	made   map[string]bool
	out    []Made
	next   time.Duration
}

// serve finds the leases of a Service.
func (m *maker) serve(s *Service, now time.Time) {
	families, names := s.made()
	if s.Leases = nil; s.Off != "" {
		for _, f := range families {
			if m.byName[names[f]] != nil {
				s.Leases = append(s.Leases, names[f])
			}
		}
		return
	}
	if m.idle(s, names, now) {
		s.Waits = Verdict{v1alpha1.IdleReason, "the Service had no ready endpoint for so long that its address was given up (spec.leases.releaseIdleAfterSeconds of the pool); it gets one when it has an endpoint"}
		return
	}
	var none Verdict
	var made []Made
	for _, f := range families {
		one, no := m.lease(s, names[f], f)
		switch {
		case no != Verdict{}:
			none = no
			continue
		case one != nil:
			made = append(made, *one)
		}
		s.Leases = append(s.Leases, names[f])
	}
	if len(s.Leases) == 0 || (s.RequireBoth && none != Verdict{}) {
		s.Leases, s.Waits = nil, none
		return
	}
	for _, one := range made {
		m.left[one.Pool]--
		m.made[one.Name] = true
	}
	m.out = append(m.out, made...)
}

// made are the names of the leases that are made for a Service, by family.
func (s *Service) made() (families []int, names map[int]string) {
	if s.Address.IsValid() {
		f := familyOf(s.Address)
		return []int{f}, map[int]string{f: record.NameOf(s.Address)}
	}
	names = map[int]string{}
	for _, f := range s.Families {
		names[f] = fmt.Sprintf("%s-ipv%d", s.Name, f)
	}
	return s.Families, names
}

// Names reports whether a Service asks for a lease, which may be made for it.
func (s *Service) Names(lease string) bool {
	if s.Class == "" || s.Problem != "" {
		return slices.Contains(s.Leases, lease)
	}
	_, names := s.made()
	return slices.Contains(slices.Collect(maps.Values(names)), lease)
}

// idle reports whether a Service was without a ready endpoint for so long that it is to have no lease.
func (m *maker) idle(s *Service, names map[int]string, now time.Time) bool {
	if s.Ready {
		return false
	}
	if s.ToldIdle {
		return slices.ContainsFunc(m.pools, func(p Pool) bool { return p.Class == s.Class && p.IdleAfter > 0 })
	}
	for _, name := range names {
		l := m.byName[name]
		if l == nil || !l.Made || l.IdleSince.IsZero() {
			continue
		}
		at := slices.IndexFunc(m.pools, func(p Pool) bool { return p.Ref == l.Pool })
		if at < 0 || m.pools[at].IdleAfter == 0 {
			continue
		}
		left := m.pools[at].IdleAfter - now.Sub(l.IdleSince)
		if left <= 0 {
			return true
		}
		if m.next == 0 || left < m.next {
			m.next = left
		}
	}
	return false
}

// lease returns the lease that is to be made, or made anew of another pool, nil: none is; or why there can be none.
func (m *maker) lease(s *Service, name string, family int) (*Made, Verdict) {
	l := m.byName[name]
	if m.made[name] || s.Deleting || (l != nil && (!l.Made || l.Deleting || l.Recorded || l.Address.IsValid() || l.Refused.Reason == "")) {
		return nil, Verdict{}
	}
	out := Made{Name: name, Address: s.Address, Instead: l}
	if !s.Address.IsValid() {
		out.For = s.Name
	}
	if l != nil {
		out.Tried = maps.Clone(l.Tried)
		if out.Tried == nil {
			out.Tried = map[v1alpha1.PoolReference]string{}
		}
	}
	var first, best *Pool
	why := ""
	for i := range m.pools {
		p := &m.pools[i]
		switch {
		case p.Class != s.Class || p.Family != family || (s.Address.IsValid() && !p.Has(s.Address)):
			continue
		case l != nil && p.Ref == l.Pool:
			out.Tried[p.Ref] = p.was()
			continue
		case !p.Open:
			why = "; " + p.Why
			continue
		}
		if first == nil {
			first = p
		}
		if best == nil && m.left[p.Ref] > 0 && out.Tried[p.Ref] != p.was() {
			best = p
		}
	}
	switch {
	case best != nil:
	case l != nil:
		return nil, Verdict{} // it waits where it is
	case first != nil:
		best = first
	case s.Address.IsValid():
		return nil, Verdict{v1alpha1.NoPoolReason, fmt.Sprintf("no pool of class %s that serves this namespace has the address %s%s", s.Class, s.Address, why)}
	default:
		return nil, Verdict{v1alpha1.NoPoolReason, fmt.Sprintf("no pool of class %s gives IPv%d addresses to this namespace%s", s.Class, family, why)}
	}
	out.Pool = best.Ref
	return &out, Verdict{}
}

// Unused are the leases that were made for Services, of which none has a port and none asks any more (P5).
func Unused(leases []Lease, services []Service) []*Lease {
	var out []*Lease
	for i := range leases {
		l := &leases[i]
		asked := slices.ContainsFunc(services, func(s Service) bool { return slices.Contains(s.Leases, l.Name) && l.Allows(&s) })
		if l.Made && !l.Deleting && len(l.Table) == 0 && !asked {
			out = append(out, l)
		}
	}
	return out
}
