package elastic

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"go4.org/netipx"
	"pgregory.net/rapid"
)

// spare are addresses that a pool of a test can be given.
func spare(f Family, n int64) netipx.IPRange {
	from := [2]string{"10.1.0.1", "2001:db8:1::1"}[f]
	to := netip.MustParseAddr(from)
	for range n - 1 {
		to = to.Next()
	}
	return netipx.IPRangeFrom(netip.MustParseAddr(from), to)
}

// settled is who has how many addresses when MetalLB has come to rest, was given more, and has come to rest again.
func settled(services []Service, pools []Pool, more [2]int64, shuffle func(int, func(i, j int))) []int {
	m := &metal{pools: slices.Clone(pools), shuffle: shuffle}
	for i := range services {
		s := services[i]
		s.Has = slices.Clone(s.Has)
		m.services = append(m.services, &s)
	}
	m.rest()
	own := &m.pools[len(pools)-1]
	own.Ranges = slices.Clone(own.Ranges)
	for f, n := range more {
		if n > 0 {
			own.Ranges = append(own.Ranges, spare(Family(f), n))
		}
	}
	m.rest()
	out := make([]int, len(services))
	for i, s := range m.services {
		out[i] = len(s.Has)
	}
	return out
}

// drawCluster draws pools, ours last, and Services of which some have addresses.
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
	var m metal
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
	for i := range services { // Some go, so that there are holes.
		if len(services[i].Has) > 0 && rapid.IntRange(0, 3).Draw(t, "goes") == 0 {
			services[i].Has = nil
		}
	}
	return services, pools
}

// What is lacking is what MetalLB needs: with as much everybody is served who can be, with less somebody is not.
func TestLackingIsExact(t *testing.T) {
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

// Whatever is changed of Services and pools, MetalLB and the package agree on who keeps what it has.
func TestWhoKeepsWhatItHas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := wishes{six: true, odd: true}
		services, pools := drawCluster(t, w)
		for i := range services {
			if old := &services[i]; rapid.IntRange(0, 2).Draw(t, "changed") == 0 { // not with whom it shares
				s := drawService(t, i, w)
				s.Has, s.SharingKey, s.BackendKey, s.Ports = old.Has, old.SharingKey, old.BackendKey, old.Ports
				*old = s
			}
		}
		others, own := drawPools(t, pools[len(pools)-1])
		m := &metal{pools: append(others, own)}
		for i := range services {
			m.services = append(m.services, &services[i])
		}
		for _, v := range Assess(Inventory{Services: services, Pools: m.pools}).Verdicts {
			s := v.Service
			want := s.Class == "" && len(s.Has) > 0 && len(s.Families) > 0 && (s.Stack != RequireDualStack || len(s.Families) > 1) && m.stays(s)
			if (v.State == Placed) != want {
				t.Fatalf("%s is %s, MetalLB says %v\n%s", s.Name, states[v.State], want, show(services, m.pools))
			}
		}
	})
}

func checkExact(t *rapid.T, services []Service, pools []Pool, shuffle func(int, func(i, j int))) {
	got := Assess(Inventory{Services: services, Pools: pools, Grows: [2]bool{true, true}})
	verdicts := make([]State, len(services))
	for _, v := range got.Verdicts {
		i := slices.IndexFunc(services, func(s Service) bool { return s.Name == v.Service.Name })
		verdicts[i] = v.State
	}
	before, enough := settled(services, pools, [2]int64{}, shuffle), settled(services, pools, got.Lacking, shuffle)
	for i, state := range verdicts {
		ok := true
		switch state {
		case Placed, Fits:
			ok = before[i] > 0 && enough[i] > 0
		case Lacks:
			ok = before[i] == 0 && enough[i] > 0
		case Stuck:
			ok = before[i] == 0 && enough[i] == 0
		case Foreign:
		}
		if !ok {
			t.Fatalf("%s is %s; it has %d addresses, and %d with %v more\n%s", services[i].Name, states[state], before[i], enough[i], got.Lacking, show(services, pools))
		}
	}
	for f := range got.Lacking {
		if got.Lacking[f] == 0 {
			continue
		}
		less := got.Lacking
		less[f]--
		if slices.Equal(settled(services, pools, less, shuffle), enough) {
			t.Fatalf("lacking %v, and %v does as well\n%s", got.Lacking, less, show(services, pools))
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
