package hostlb

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

func hostsOf(n int) []Host {
	var out []Host
	for i := range n {
		out = append(out, Host{
			Name: fmt.Sprintf("h%d", i), Node: fmt.Sprintf("n%d", i),
			Networks: []Network{{Prefix: netip.MustParsePrefix("192.0.2.0/24")}, {Prefix: netip.MustParsePrefix("fd00::/64")}},
		})
	}
	return out
}

// TestRankHosts checks that every host has its share of the addresses, and that only the addresses of a host that goes
// move.
func TestRankHosts(t *testing.T) {
	all := hostsOf(5)
	first := map[string]int{}
	for i := range 250 {
		a := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
		with := RankHosts(a, all, nil)
		if len(with) != 5 {
			t.Fatalf("%s may be on %v", a, with)
		}
		first[with[0]]++
		without := RankHosts(a, all[1:], nil)
		if left := slices.DeleteFunc(slices.Clone(with), func(name string) bool { return name == "h0" }); !slices.Equal(left, without) {
			t.Errorf("%s: %v without h0, was %v", a, without, with)
		}
	}
	for name, n := range first {
		if n < 25 || n > 75 {
			t.Errorf("%s is the first of %d of 250", name, n)
		}
	}
}

// TestRankEligibleHosts checks that a host without an address of the network has no address of it, and that a host
// without an endpoint, where one is needed, has the address only where no host has an endpoint.
func TestRankEligibleHosts(t *testing.T) {
	all := hostsOf(3)
	for name, c := range map[string]struct {
		a     string
		nodes map[string]bool
		want  int
	}{
		"any":              {"192.0.2.9", nil, 3},
		"of IPv6":          {"fd00::9", nil, 3},
		"another network":  {"198.51.100.9", nil, 0},
		"with an endpoint": {"192.0.2.9", map[string]bool{"n1": true}, 1},
		"none has one":     {"192.0.2.9", map[string]bool{}, 3},
	} {
		if got := RankHosts(netip.MustParseAddr(c.a), all, c.nodes); len(got) != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	all[2].ForwardsTraffic = true
	if got := RankHosts(netip.MustParseAddr("192.0.2.9"), all, map[string]bool{"n1": true}); len(got) != 2 {
		t.Errorf("one that forwards by itself needs no endpoint: %v", got)
	}
}
