package leaseports

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/record"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// Pool is a pool of a load balancer class, as one namespace may use it.
type Pool struct {
	Ref               v1alpha1.PoolReference
	LoadBalancerClass string
	Priority          int32
	// Family is 4 or 6.
	Family int
	// IsOpen reports whether the pool grants addresses, as long as it has any; ClosedMessage is why it does not.
	IsOpen        bool
	ClosedMessage string
	// AvailableIPs is the number of free addresses; Quota is the number of leases of the namespace that may have an
	// address, below 0 if there is no limit.
	AvailableIPs, Quota int64
	// ReleaseIdleAfter is how long a Service may be without a ready endpoint; 0 means without limit.
	ReleaseIdleAfter time.Duration
	// Generation is the generation of the pool's spec.
	Generation int64
	// HasAddress reports whether the pool has an address.
	HasAddress func(netip.Addr) bool
}

// attempt returns what is recorded when the pool has no address for a lease. The pool is tried again once the
// fingerprint has changed.
func (p *Pool) attempt() tenancy.PoolAttempt {
	return tenancy.PoolAttempt{Pool: p.Ref, Fingerprint: fmt.Sprintf("%d/%d", p.Generation, p.AvailableIPs)}
}

// LeaseRequest is a lease to create.
type LeaseRequest struct {
	Name    string
	Pool    v1alpha1.PoolReference
	Address netip.Addr
	// OnlyService is the only Service that may use the lease, empty if any Service that requests the address may.
	OnlyService string
	// TriedPools are the attempts at pools that had no address for the lease.
	TriedPools []tenancy.PoolAttempt
	// Replaces is the lease to delete first: its pool has no address for it, and it never had one.
	Replaces *Lease
}

// PlanLeases finds the leases of Services that name none: those that are created from pools of their class. It returns
// the Services with the leases that they have, or with the reason why they have none yet, and the leases to create.
//
// A lease is created from the first pool of the class, by priority, that has room; if none has, from the first one,
// where it waits. A lease that waits, and never had an address, moves to another pool of the class as soon as that has
// room. A Service without a ready endpoint for longer than its pool allows has no lease; next is how long it takes
// until there is another such Service, 0 if there is none.
func PlanLeases(services []Service, leases []Lease, pools []Pool, now time.Time) (_ []Service, made []LeaseRequest, next time.Duration) {
	m := leasePlanner{leasesByName: map[string]*Lease{}, requestedNames: map[string]bool{}, remainingLeases: map[v1alpha1.PoolReference]int64{}}
	for i := range leases {
		m.leasesByName[leases[i].Name] = &leases[i]
	}
	m.pools = slices.Clone(pools)
	slices.SortFunc(m.pools, func(a, b Pool) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Ref.Kind, b.Ref.Kind), cmp.Compare(a.Ref.Name, b.Ref.Name))
	})
	for i := range m.pools {
		m.remainingLeases[m.pools[i].Ref] = m.pools[i].remainingLeases(leases)
	}
	out := slices.Clone(services)
	var ordered []*Service
	for i := range out {
		if s := &out[i]; s.LoadBalancerClass != "" && s.RequestProblem == "" {
			ordered = append(ordered, s)
		}
	}
	slices.SortFunc(ordered, (*Service).compareByAge)
	for _, s := range ordered {
		m.planForService(s, now)
	}
	return out, m.requests, m.nextCheck
}

// remainingLeases returns how many more leases of the namespace can get an address of the pool, as the pool was read.
func (p *Pool) remainingLeases(leases []Lease) int64 {
	if !p.IsOpen {
		return 0
	}
	left := p.AvailableIPs
	if p.Quota >= 0 {
		used := int64(0)
		for i := range leases {
			if l := &leases[i]; l.Pool == p.Ref && (l.Address.IsValid() || l.Refusal.Reason == "") {
				used++
			}
		}
		left = min(left, max(0, p.Quota-used))
	}
	return left
}

type leasePlanner struct {
	leasesByName    map[string]*Lease
	pools           []Pool
	remainingLeases map[v1alpha1.PoolReference]int64
	requestedNames  map[string]bool
	requests        []LeaseRequest
	nextCheck       time.Duration
}

// planForService finds the leases of a Service, or the reason why it has none.
func (lp *leasePlanner) planForService(s *Service, now time.Time) {
	families, names := s.leaseNamesByFamily()
	if s.LeaseNames = nil; s.NotServedMessage != "" {
		for _, f := range families {
			if lp.leasesByName[names[f]] != nil {
				s.LeaseNames = append(s.LeaseNames, names[f])
			}
		}
		return
	}
	if lp.isIdleTooLong(s, names, now) {
		s.WaitReason = Reason{v1alpha1.IdleReason, "the Service had no ready endpoint for so long that its address was given up (spec.leases.releaseIdleAfterSeconds of the pool); it gets one when it has an endpoint"}
		return
	}
	var none Reason
	var made []LeaseRequest
	for _, f := range families {
		one, refusal := lp.planLease(s, names[f], f)
		switch {
		case refusal != Reason{}:
			none = refusal
			continue
		case one != nil:
			made = append(made, *one)
		}
		s.LeaseNames = append(s.LeaseNames, names[f])
	}
	if len(s.LeaseNames) == 0 || (s.RequiresDualStack && none != Reason{}) {
		s.LeaseNames, s.WaitReason = nil, none
		return
	}
	for _, one := range made {
		lp.remainingLeases[one.Pool]--
		lp.requestedNames[one.Name] = true
	}
	lp.requests = append(lp.requests, made...)
}

// leaseNamesByFamily returns the names of the leases that are created for a Service, by IP family.
func (s *Service) leaseNamesByFamily() (families []int, names map[int]string) {
	if s.RequestedAddress.IsValid() {
		f := addressFamily(s.RequestedAddress)
		return []int{f}, map[int]string{f: record.NameForAddress(s.RequestedAddress)}
	}
	names = map[int]string{}
	for _, f := range s.Families {
		names[f] = fmt.Sprintf("%s-ipv%d", s.Name, f)
	}
	return s.Families, names
}

// NamesLease reports whether a Service requests a lease, also one that is created for it.
func (s *Service) NamesLease(lease string) bool {
	if s.LoadBalancerClass == "" || s.RequestProblem != "" {
		return slices.Contains(s.LeaseNames, lease)
	}
	_, names := s.leaseNamesByFamily()
	return slices.Contains(slices.Collect(maps.Values(names)), lease)
}

// isIdleTooLong reports whether a Service was without a ready endpoint for so long that it must not have a lease.
func (lp *leasePlanner) isIdleTooLong(s *Service, names map[int]string, now time.Time) bool {
	if s.HasReadyEndpoint {
		return false
	}
	if s.ReportedIdle {
		return slices.ContainsFunc(lp.pools, func(p Pool) bool { return p.LoadBalancerClass == s.LoadBalancerClass && p.ReleaseIdleAfter > 0 })
	}
	for _, name := range names {
		l := lp.leasesByName[name]
		if l == nil || !l.MadeForServices || l.IdleSince.IsZero() {
			continue
		}
		at := slices.IndexFunc(lp.pools, func(p Pool) bool { return p.Ref == l.Pool })
		if at < 0 || lp.pools[at].ReleaseIdleAfter == 0 {
			continue
		}
		left := lp.pools[at].ReleaseIdleAfter - now.Sub(l.IdleSince)
		if left <= 0 {
			return true
		}
		if lp.nextCheck == 0 || left < lp.nextCheck {
			lp.nextCheck = left
		}
	}
	return false
}

// planLease returns the lease to create, or to create again from another pool; nil if there is none to create; or the
// reason why there can be none.
func (lp *leasePlanner) planLease(s *Service, name string, family int) (*LeaseRequest, Reason) {
	l := lp.leasesByName[name]
	if lp.requestedNames[name] || s.Deleting || (l != nil && (!l.MadeForServices || l.Deleting || l.HasAddressRecord || l.Address.IsValid() || l.Refusal.Reason == "")) {
		return nil, Reason{}
	}
	out := LeaseRequest{Name: name, Address: s.RequestedAddress, Replaces: l}
	if !s.RequestedAddress.IsValid() {
		out.OnlyService = s.Name
	}
	if l != nil {
		out.TriedPools = l.TriedPools
	}
	var first, best *Pool
	why := ""
	for i := range lp.pools {
		p := &lp.pools[i]
		switch {
		case p.LoadBalancerClass != s.LoadBalancerClass || p.Family != family || (s.RequestedAddress.IsValid() && !p.HasAddress(s.RequestedAddress)):
			continue
		case l != nil && p.Ref == l.Pool:
			out.TriedPools = tenancy.WithAttempt(out.TriedPools, p.attempt())
			continue
		case !p.IsOpen:
			why = "; " + p.ClosedMessage
			continue
		}
		if first == nil {
			first = p
		}
		if best == nil && lp.remainingLeases[p.Ref] > 0 && !slices.Contains(out.TriedPools, p.attempt()) {
			best = p
		}
	}
	switch {
	case best != nil:
	case l != nil:
		return nil, Reason{} // it keeps waiting for its pool
	case first != nil:
		best = first
	case s.RequestedAddress.IsValid():
		return nil, Reason{v1alpha1.NoPoolReason, fmt.Sprintf("no pool of class %s that serves this namespace has the address %s%s", s.LoadBalancerClass, s.RequestedAddress, why)}
	default:
		return nil, Reason{v1alpha1.NoPoolReason, fmt.Sprintf("no pool of class %s gives IPv%d addresses to this namespace%s", s.LoadBalancerClass, family, why)}
	}
	out.Pool = best.Ref
	return &out, Reason{}
}

// FindUnusedLeases returns the leases that were created for Services and that are unused: no Service has a port of
// them, and no Service requests them any more (P5).
func FindUnusedLeases(leases []Lease, services []Service) []*Lease {
	var out []*Lease
	for i := range leases {
		l := &leases[i]
		asked := slices.ContainsFunc(services, func(s Service) bool { return slices.Contains(s.LeaseNames, l.Name) && l.AllowsService(&s) })
		if l.MadeForServices && !l.Deleting && len(l.PortTable) == 0 && !asked {
			out = append(out, l)
		}
	}
	return out
}
