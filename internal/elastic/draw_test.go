package elastic

import (
	"fmt"
	"net/netip"
	"time"

	"pgregory.net/rapid"
)

// wishes selects the kinds of Services that are drawn.
type wishes struct {
	six bool // of two families
	odd bool // with requests that growth cannot help
}

// drawService draws a Service without addresses.
func drawService(t *rapid.T, n int, w wishes) Service {
	chance := func(label string, percent int) bool { return rapid.IntRange(0, 99).Draw(t, label) < percent }
	s := svc(fmt.Sprintf("s%d", n))
	s.Created = epoch.Add(time.Duration(n) * time.Second)
	if w.six {
		s.Families = rapid.SampledFrom([][]Family{{IPv4}, {IPv4}, {IPv6}, {IPv4, IPv6}, {IPv6, IPv4}}).Draw(t, "families")
		if len(s.Families) == 2 {
			s.FamilyPolicy = rapid.SampledFrom([]IPFamilyPolicy{PreferDualStack, RequireDualStack}).Draw(t, "stack")
		}
	}
	if chance("shares", 60) {
		s.SharingKey = rapid.SampledFrom([]string{"k", "l"}).Draw(t, "key")
		s.BackendKey = rapid.SampledFrom([]string{"", "", "", "app=x"}).Draw(t, "backend")
		s.Ports = nil
		for _, p := range rapid.SliceOfNDistinct(rapid.Int32Range(1, 4), 1, 3, rapid.ID[int32]).Draw(t, "ports") {
			s.Ports = append(s.Ports, Port{"TCP", p})
		}
	}
	if chance("labelled", 30) {
		s.Labels = map[string]string{"app": "blue"}
	}
	if chance("elsewhere", 30) {
		s.Namespace = "other"
	}
	if chance("named", 10) {
		s.RequestedPool = "default-pool"
	}
	if w.odd && chance("odd", 30) {
		drawOddity(t, &s)
	}
	return s
}

// drawPools draws the pools of other owners, and the settings of ours.
func drawPools(t *rapid.T, own Pool) (others []Pool, ours Pool) {
	restrict := func(p *Pool, percent int) {
		if rapid.IntRange(0, 99).Draw(t, "restricted") < percent {
			p.Restriction = rapid.SampledFrom([]*Restriction{
				{Namespaces: []string{"team"}}, {Namespaces: []string{"other"}, Priority: 7}, {Selectors: selectors{app("blue")}, Priority: 3},
				{Namespaces: []string{"team"}, Selectors: selectors{app("navy"), app("blue")}}, {Priority: 1},
			}).Draw(t, "restriction")
		}
		p.AvoidBuggyIPs = rapid.IntRange(0, 9).Draw(t, "careful") < 2
	}
	all := []Pool{pool("aside", "10.8.0.0", "2001:db8:8::1"), pool("theirs", "2001:db8:9::1", "10.9.0.255-10.9.1.1")}
	for i := range all {
		if rapid.IntRange(0, 9).Draw(t, "another") < 2 {
			restrict(&all[i], 50)
			all[i].AutoAssign = rapid.Bool().Draw(t, "open")
			others = append(others, all[i])
		}
	}
	restrict(&own, 15)
	return others, own
}

// drawOddity gives a Service a request of its own, which may be invalid.
func drawOddity(t *rapid.T, s *Service) {
	switch rapid.IntRange(0, 6).Draw(t, "oddity") {
	case 0:
		s.LoadBalancerClass = "other"
	case 1:
		s.RequestProblem = "it cannot be read"
	case 2:
		s.RequestedPool = rapid.SampledFrom([]string{"nope", "theirs"}).Draw(t, "pool")
	case 3:
		s.RequestedIPs = ips("192.0.2.1")
	case 4:
		s.RequestedIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, rapid.Byte().Draw(t, "byte") % 12})}
	case 5:
		s.Families = nil
	case 6:
		s.Families, s.FamilyPolicy = []Family{IPv4}, RequireDualStack
	}
}
