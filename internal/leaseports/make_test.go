package leaseports

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

const class = "butler.butlerlabs.dev/metallb"

func refOf(name string) v1alpha1.PoolReference {
	return v1alpha1.PoolReference{Kind: v1alpha1.NetworkPoolKind, Name: name}
}

// poolOf returns a pool of 10.0.0.0/8 or of fd00::/8.
func poolOf(name string, priority int32, available int64, change ...func(*Pool)) Pool {
	p := Pool{Ref: refOf(name), LoadBalancerClass: class, Priority: priority, Family: 4, IsOpen: true, AvailableIPs: available, Quota: -1}
	p.HasAddress = func(a netip.Addr) bool { return netip.MustParsePrefix("10.0.0.0/8").Contains(a) }
	for _, f := range change {
		f(&p)
	}
	return p
}

func TestPlanLeases(t *testing.T) { // H8, H23, H24, H25
	six := func(p *Pool) { p.Family = 6 }
	closed := func(p *Pool) { p.IsOpen, p.ClosedMessage = false, "NetworkPool x is paused" }
	quota := func(n int64) func(*Pool) { return func(p *Pool) { p.Quota = n } }
	idles := func(p *Pool) { p.ReleaseIdleAfter = time.Minute }
	of := func(name string, change ...func(*Service)) Service {
		s := serviceOf(name, 0, nil, tcp(80))
		s.LoadBalancerClass = class
		for _, f := range change {
			f(&s)
		}
		return s
	}
	dual := func(s *Service) { s.Families = []int{4, 6} }
	requires := func(s *Service) { s.Families, s.RequiresDualStack = []int{4, 6}, true }
	asks := func(s *Service) {
		s.RequestedAddress, s.LeaseNames = netip.MustParseAddr("10.0.0.7"), []string{"ip-10-0-0-7"}
	}
	made := func(name, pool, address, refused string, change ...func(*Lease)) Lease {
		l := leaseOf(name, address)
		l.MadeForServices, l.Pool, l.Refusal.Reason = true, refOf(pool), refused
		for _, f := range change {
			f(&l)
		}
		return l
	}
	byHand := func(l *Lease) { l.MadeForServices = false }
	idle := func(since time.Duration) func(*Lease) { return func(l *Lease) { l.IdleSince = noon.Add(-since) } }
	tried := func(was ...string) func(*Lease) {
		return func(l *Lease) {
			for i := 0; i < len(was); i += 2 {
				l.TriedPools = append(l.TriedPools, tenancy.PoolAttempt{Pool: refOf(was[i]), Fingerprint: was[i+1]})
			}
		}
	}
	for name, c := range map[string]struct {
		services []Service
		leases   []Lease
		pools    []Pool
		// make are the leases to create: name, pool, and what each replaces; want are the leases that the first Service
		// has, or why it has none.
		make, want string
		next       time.Duration
	}{
		"one":                             {services: []Service{of("web")}, pools: []Pool{poolOf("a", 0, 9)}, make: "web-ipv4 of a for web", want: "web-ipv4"},
		"the first by priority":           {services: []Service{of("web")}, pools: []Pool{poolOf("a", 2, 9), poolOf("b", 1, 9)}, make: "web-ipv4 of b for web", want: "web-ipv4"},
		"the first that has room":         {services: []Service{of("web")}, pools: []Pool{poolOf("a", 1, 0), poolOf("b", 2, 9)}, make: "web-ipv4 of b for web", want: "web-ipv4"},
		"none has room":                   {services: []Service{of("web")}, pools: []Pool{poolOf("a", 1, 0), poolOf("b", 2, 0)}, make: "web-ipv4 of a for web", want: "web-ipv4"},
		"as many as there is room":        {services: []Service{of("web"), of("zoo")}, pools: []Pool{poolOf("a", 1, 1), poolOf("b", 2, 9)}, make: "web-ipv4 of a for web, zoo-ipv4 of b for zoo", want: "web-ipv4"},
		"as many as the quota says":       {services: []Service{of("web")}, leases: []Lease{made("x-ipv4", "a", "10.0.0.1", "")}, pools: []Pool{poolOf("a", 1, 9, quota(1)), poolOf("b", 2, 9)}, make: "web-ipv4 of b for web", want: "web-ipv4"},
		"one that is closed":              {services: []Service{of("web")}, pools: []Pool{poolOf("x", 0, 9, closed)}, want: "NoPool: no pool of class butler.butlerlabs.dev/metallb gives IPv4 addresses to this namespace; NetworkPool x is paused"},
		"none":                            {services: []Service{of("web")}, want: "NoPool: no pool of class butler.butlerlabs.dev/metallb gives IPv4 addresses to this namespace"},
		"of another class":                {services: []Service{of("web")}, pools: []Pool{poolOf("a", 0, 9, func(p *Pool) { p.LoadBalancerClass = "other" })}, want: "NoPool"},
		"it is there":                     {services: []Service{of("web")}, leases: []Lease{made("web-ipv4", "a", "10.0.0.1", "")}, pools: []Pool{poolOf("a", 0, 0), poolOf("b", 1, 9)}, want: "web-ipv4"},
		"it is about to be served":        {services: []Service{of("web")}, leases: []Lease{made("web-ipv4", "a", "", "")}, pools: []Pool{poolOf("a", 0, 0), poolOf("b", 1, 9)}, want: "web-ipv4"},
		"its address is on record":        {services: []Service{of("web")}, leases: []Lease{made("web-ipv4", "a", "", "PoolExhausted", func(l *Lease) { l.HasAddressRecord = true })}, pools: []Pool{poolOf("a", 0, 0), poolOf("b", 1, 9)}, want: "web-ipv4"},
		"it is being deleted":             {services: []Service{of("web", func(s *Service) { s.Deleting = true })}, pools: []Pool{poolOf("a", 0, 9)}, want: "web-ipv4"},
		"it waits, another has room":      {services: []Service{of("web")}, leases: []Lease{made("web-ipv4", "a", "", "PoolExhausted")}, pools: []Pool{poolOf("a", 0, 0), poolOf("b", 1, 9)}, make: "web-ipv4 of b for web instead, tried a 0/0", want: "web-ipv4"},
		"it waits, none has room":         {services: []Service{of("web")}, leases: []Lease{made("web-ipv4", "a", "", "PoolExhausted")}, pools: []Pool{poolOf("a", 0, 0), poolOf("b", 1, 0)}, want: "web-ipv4"},
		"the other one was tried":         {services: []Service{of("web")}, leases: []Lease{made("web-ipv4", "a", "", "QuotaExceeded", tried("b", "0/9"))}, pools: []Pool{poolOf("a", 0, 5), poolOf("b", 1, 9)}, want: "web-ipv4"},
		"it is another way now":           {services: []Service{of("web")}, leases: []Lease{made("web-ipv4", "a", "", "QuotaExceeded", tried("b", "0/9"))}, pools: []Pool{poolOf("a", 0, 5), poolOf("b", 1, 8)}, make: "web-ipv4 of b for web instead, tried b 0/9 a 0/5", want: "web-ipv4"},
		"one that a person made":          {services: []Service{of("web")}, leases: []Lease{made("web-ipv4", "a", "", "PoolExhausted", byHand)}, pools: []Pool{poolOf("a", 0, 0), poolOf("b", 1, 9)}, want: "web-ipv4"},
		"two families":                    {services: []Service{of("web", requires)}, pools: []Pool{poolOf("a", 0, 9), poolOf("b", 0, 9, six)}, make: "web-ipv4 of a for web, web-ipv6 of b for web", want: "web-ipv4 web-ipv6"},
		"one of two, as preferred":        {services: []Service{of("web", dual)}, pools: []Pool{poolOf("b", 0, 9, six)}, make: "web-ipv6 of b for web", want: "web-ipv6"},
		"one of two, as required":         {services: []Service{of("web", requires)}, pools: []Pool{poolOf("b", 0, 9, six)}, want: "NoPool: no pool of class butler.butlerlabs.dev/metallb gives IPv4"},
		"an address":                      {services: []Service{of("web", asks), of("tls", asks)}, pools: []Pool{poolOf("b", 0, 9, six), poolOf("a", 1, 0)}, make: "ip-10-0-0-7 of a 10.0.0.7", want: "ip-10-0-0-7"},
		"an address of no pool":           {services: []Service{of("web", asks)}, pools: []Pool{poolOf("b", 0, 9, func(p *Pool) { p.HasAddress = func(netip.Addr) bool { return false } })}, want: "NoPool: no pool of class butler.butlerlabs.dev/metallb that serves this namespace has the address 10.0.0.7"},
		"idle":                            {services: []Service{of("web")}, leases: []Lease{made("web-ipv4", "a", "10.0.0.1", "", idle(time.Minute))}, pools: []Pool{poolOf("a", 0, 9, idles)}, want: "Idle: the Service had no ready endpoint"},
		"idle, not for long":              {services: []Service{of("web")}, leases: []Lease{made("web-ipv4", "a", "10.0.0.1", "", idle(time.Second))}, pools: []Pool{poolOf("a", 0, 9, idles)}, want: "web-ipv4", next: 59 * time.Second},
		"idle, and the pool does not ask": {services: []Service{of("web")}, leases: []Lease{made("web-ipv4", "a", "10.0.0.1", "", idle(time.Hour))}, pools: []Pool{poolOf("a", 0, 9)}, want: "web-ipv4"},
		"idle, of a person":               {services: []Service{of("web")}, leases: []Lease{made("web-ipv4", "a", "10.0.0.1", "", idle(time.Hour), byHand)}, pools: []Pool{poolOf("a", 0, 9, idles)}, want: "web-ipv4"},
		"idle, and reported as such":      {services: []Service{of("web", func(s *Service) { s.ReportedIdle = true })}, pools: []Pool{poolOf("a", 0, 9, idles)}, want: "Idle"},
		"with an endpoint again":          {services: []Service{of("web", func(s *Service) { s.ReportedIdle, s.HasReadyEndpoint = true, true })}, pools: []Pool{poolOf("a", 0, 9, idles)}, make: "web-ipv4 of a for web", want: "web-ipv4"},
		"with a name":                     {services: []Service{serviceOf("web", 0, []string{"shop"}, tcp(80))}, pools: []Pool{poolOf("a", 0, 9)}, want: "shop"},
	} {
		t.Run(name, func(t *testing.T) {
			services, all, next := PlanLeases(c.services, c.leases, c.pools, noon)
			var texts []string
			for _, m := range all {
				text := m.Name + " of " + m.Pool.Name
				if m.OnlyService != "" {
					text += " for " + m.OnlyService
				}
				if m.Address.IsValid() {
					text += " " + m.Address.String()
				}
				if m.Replaces != nil {
					text += " instead, tried"
					for _, a := range m.TriedPools {
						text += " " + a.Pool.Name + " " + a.Fingerprint
					}
				}
				texts = append(texts, text)
			}
			if diff := cmp.Diff(c.make, strings.Join(texts, ", ")); diff != "" {
				t.Errorf("made: %s", diff)
			}
			got := strings.Join(services[0].LeaseNames, " ")
			if services[0].WaitReason != (Reason{}) {
				got = services[0].WaitReason.Reason + ": " + services[0].WaitReason.Message
			}
			if !strings.HasPrefix(got, c.want) || (c.want == "" && got != "") || next != c.next {
				t.Errorf("has %q, want %q; next %s", got, c.want, next)
			}
		})
	}
}

// TestTriedPoolsOfEarlierRelease checks that a pool that an earlier release has tried for a lease is not tried again
// before it changes.
func TestTriedPoolsOfEarlierRelease(t *testing.T) {
	o := &v1alpha1.IPLease{}
	o.Annotations = map[string]string{v1alpha1.TriedPoolsAnnotation: `[{"kind":"NetworkPool","name":"a","was":"2/5"}]`}
	p := poolOf("a", 0, 5)
	for generation, want := range map[int64]bool{2: true, 3: false} {
		if p.Generation = generation; slices.Contains(NewLease(o).TriedPools, p.attempt()) != want {
			t.Errorf("generation %d of the pool was tried: %v", generation, !want)
		}
	}
}

// TestNamesLease checks that a Service with an invalid request does not request a lease that was created for it before.
func TestNamesLease(t *testing.T) {
	s := serviceOf("web", 0, nil, tcp(80))
	s.LoadBalancerClass = class
	if !s.NamesLease("web-ipv4") || s.NamesLease("web-ipv6") || s.NamesLease("other-ipv4") {
		t.Error("of its class")
	}
	if s.RequestProblem = "its spec.loadBalancerIP is none"; s.NamesLease("web-ipv4") {
		t.Error("with a problem")
	}
}

// TestFindUnusedLeases checks P5: a lease that was created for Services is deleted when no Service has a port of it, or
// requests it.
func TestFindUnusedLeases(t *testing.T) {
	made := func(name string, change ...func(*Lease)) Lease {
		l := leaseOf(name, "10.0.0.1")
		l.MadeForServices = true
		for _, f := range change {
			f(&l)
		}
		return l
	}
	leases := []Lease{
		made("unused", func(l *Lease) { l.OnlyService = "gone" }), made("asked"), leaseOf("by-hand", "10.0.0.2"), made("leaving", func(l *Lease) { l.Deleting = true }),
		made("has-a-port", func(l *Lease) { l.PortTable = []Holder{heldPort(tcp(80), "gone")} }),
	}
	var got []string
	for _, l := range FindUnusedLeases(leases, []Service{
		serviceOf("web", 0, []string{"asked"}, tcp(80)),
		serviceOf("thief", 0, []string{"unused"}, tcp(80)), // it may not use it
	}) {
		got = append(got, l.Name)
	}
	if diff := cmp.Diff([]string{"unused"}, got); diff != "" {
		t.Error(diff)
	}
}
