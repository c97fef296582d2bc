package elastic

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"go4.org/netipx"
	"pgregory.net/rapid"
)

// spareRange returns addresses that can be added to a pool of a test.
func spareRange(f Family, n int64) netipx.IPRange {
	from := [2]string{"10.1.0.1", "2001:db8:1::1"}[f]
	to := netip.MustParseAddr(from)
	for range n - 1 {
		to = to.Next()
	}
	return netipx.IPRangeFrom(netip.MustParseAddr(from), to)
}

// settledCounts returns how many addresses each Service has when MetalLB has come to rest, was given more, and has
// come to rest again.
func settledCounts(services []Service, pools []Pool, more [2]int64, shuffle func(int, func(i, j int))) []int {
	m := &fakeMetalLB{pools: slices.Clone(pools), shuffle: shuffle}
	for i := range services {
		s := services[i]
		s.Addresses = slices.Clone(s.Addresses)
		m.services = append(m.services, &s)
	}
	m.rest()
	own := &m.pools[len(pools)-1]
	own.Ranges = slices.Clone(own.Ranges)
	for f, n := range more {
		if n > 0 {
			own.Ranges = append(own.Ranges, spareRange(Family(f), n))
		}
	}
	m.rest()
	out := make([]int, len(services))
	for i, s := range m.services {
		out[i] = len(s.Addresses)
	}
	return out
}

// drawCluster draws pools, ours last, and Services, some of them with addresses.
func drawCluster(t *rapid.T, w wishes) ([]Service, []Pool) {
	var services []Service
	room := ours()
	if n := rapid.Int64Range(0, 6).Draw(t, "room"); n > 0 {
		room.Ranges = append(room.Ranges, netipx.IPRangeFrom(netip.MustParseAddr("10.0.0.1"), netip.AddrFrom4([4]byte{10, 0, 0, byte(n)})))
	}
	if n := rapid.Int64Range(0, 4).Draw(t, "room6"); w.six && n > 0 {
		room.Ranges = append(room.Ranges, netipx.MustParseIPRange(fmt.Sprintf("2001:db8::1-2001:db8::%d", n)))
	}
	pools, own := drawPools(t, room)
	pools = append(pools, own)
	var m fakeMetalLB
	m.pools = pools
	m.shuffle = func(n int, swap func(i, j int)) {
		for i := n - 1; i > 0; i-- {
			swap(i, rapid.IntRange(0, i).Draw(t, "swap"))
		}
	}
	for i := range rapid.IntRange(0, 10).Draw(t, "services") {
		services = append(services, drawService(t, i, w))
	}
	before := rapid.IntRange(0, len(services)).Draw(t, "before")
	for i := range services[:before] {
		m.services = append(m.services, &services[i])
	}
	m.rest()
	for i := range services { // Some Services are deleted, so that there are holes.
		if len(services[i].Addresses) > 0 && rapid.IntRange(0, 3).Draw(t, "goes") == 0 {
			services[i].Addresses = nil
		}
	}
	return services, pools
}

// TestShortfallIsExact checks that the shortfall is what MetalLB needs: with as many addresses every Service that can
// be served is served, with fewer one is not.
func TestShortfallIsExact(t *testing.T) {
	for name, w := range map[string]wishes{
		"Single": {odd: true}, "Dual": {six: true, odd: true},
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				services, pools := drawCluster(t, w)
				checkExact(t, services, pools, nil)
			})
		})
	}
}

// TestServicesKeepTheirAddresses checks that, whatever changes in Services and pools, MetalLB and the package agree on
// which Services keep their addresses.
func TestServicesKeepTheirAddresses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := wishes{six: true, odd: true}
		services, pools := drawCluster(t, w)
		for i := range services {
			if old := &services[i]; rapid.IntRange(0, 2).Draw(t, "changed") == 0 { // sharing does not change
				s := drawService(t, i, w)
				s.Addresses, s.SharingKey, s.BackendKey, s.Ports = old.Addresses, old.SharingKey, old.BackendKey, old.Ports
				*old = s
			}
		}
		others, own := drawPools(t, pools[len(pools)-1])
		m := &fakeMetalLB{pools: append(others, own)}
		for i := range services {
			m.services = append(m.services, &services[i])
		}
		for _, v := range AssessServices(Inventory{Services: services, Pools: m.pools}).ServiceAssessments {
			s := v.Service
			want := s.LoadBalancerClass == "" && len(s.Addresses) > 0 && len(s.Families) > 0 && (s.FamilyPolicy != RequireDualStack || len(s.Families) > 1) && m.stays(s)
			if (v.State == ServicePlaced) != want {
				t.Fatalf("%s is %s, MetalLB says %v\n%s", s.Name, states[v.State], want, show(services, m.pools))
			}
		}
	})
}

func checkExact(t *rapid.T, services []Service, pools []Pool, shuffle func(int, func(i, j int))) {
	got := AssessServices(Inventory{Services: services, Pools: pools, GrowableFamilies: [2]bool{true, true}})
	gotStates := make([]ServiceState, len(services))
	for _, v := range got.ServiceAssessments {
		i := slices.IndexFunc(services, func(s Service) bool { return s.Name == v.Service.Name })
		gotStates[i] = v.State
	}
	before, enough := settledCounts(services, pools, [2]int64{}, shuffle), settledCounts(services, pools, got.Shortfall, shuffle)
	for i, state := range gotStates {
		ok := true
		switch state {
		case ServicePlaced, ServicePlaceable:
			ok = before[i] > 0 && enough[i] > 0
		case ServiceNeedsGrowth:
			ok = before[i] == 0 && enough[i] > 0
		case ServiceStuck:
			ok = before[i] == 0 && enough[i] == 0
		case ServiceOtherClass:
		}
		if !ok {
			t.Fatalf("%s is %s; it has %d addresses, and %d with %v more\n%s", services[i].Name, states[state], before[i], enough[i], got.Shortfall, show(services, pools))
		}
	}
	for f := range got.Shortfall {
		if got.Shortfall[f] == 0 {
			continue
		}
		less := got.Shortfall
		less[f]--
		if slices.Equal(settledCounts(services, pools, less, shuffle), enough) {
			t.Fatalf("lacking %v, and %v does as well\n%s", got.Shortfall, less, show(services, pools))
		}
	}
}

func show(services []Service, pools []Pool) string {
	text := ""
	for i := range services {
		text += fmt.Sprintf("%+v\n", services[i])
	}
	return fmt.Sprintf("%s%+v", text, pools)
}
