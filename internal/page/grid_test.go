package page

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/fleet"
)

// runsText formats a map as "first+n use", with the unit numbers of the map.
func runsText(g addressMap) string {
	var out []string
	next := uint64(0)
	for i := 0; i+2 < len(g.Runs); i += 3 {
		first := next + g.Runs[i]
		next = first + g.Runs[i+1]
		out = append(out, fmt.Sprintf("%d+%d %s", first, g.Runs[i+1], g.Uses[g.Runs[i+2]]))
	}
	return strings.Join(out, ", ")
}

func TestAddressMap(t *testing.T) {
	spec := func(cidr string) v1alpha1.NetworkPoolSpec { return v1alpha1.NetworkPoolSpec{CIDR: cidr} }
	length := int32(64)
	claim := fleet.ClaimEntry("ns", "c")
	lb := grants.TakenRange{Use: grants.UseLoadBalancer, Name: "lb"}
	tests := map[string]struct {
		pool    *fleet.Pool
		extents string
		want    string
	}{
		"nothing taken": {
			pool:    fleet.MakePool("ns", "p", v1alpha1.NetworkPoolSpec{Addresses: []string{"10.0.0.4-10.0.0.6"}}),
			extents: "[[10.0.0.4 10.0.0.6]]",
		},
		"neighbours of one use are one run": {
			pool:    fleet.MakePool("ns", "p", spec("10.0.0.0/28")).AddEntry("10.0.0.1", claim).AddEntry("10.0.0.2", claim).AddEntry("10.0.0.4/30", lb).AddEntry("10.0.0.9", claim),
			extents: "[[10.0.0.0 10.0.0.15]]",
			want:    "0+1 reserved, 1+2 claim, 4+4 loadbalancer, 9+1 claim, 15+1 reserved",
		},
		"gateway, reserved, and what is taken of both": {
			pool: fleet.MakePool("ns", "p", v1alpha1.NetworkPoolSpec{
				CIDR: "10.0.0.0/28", Gateway: "10.0.0.3", Reserved: []v1alpha1.ReservedRange{{Addresses: "10.0.0.2-10.0.0.8"}},
			}).AddEntry("10.0.0.5", claim),
			extents: "[[10.0.0.0 10.0.0.15]]",
			want:    "0+1 reserved, 2+1 reserved, 3+1 gateway, 4+1 reserved, 5+1 claim, 6+3 reserved, 15+1 reserved",
		},
		"several parts are in a row": {
			pool: fleet.MakePool("ns", "p", v1alpha1.NetworkPoolSpec{Addresses: []string{"10.0.0.10-10.0.0.19", "10.0.9.10-10.0.9.19"}}).
				AddEntry("10.0.0.19", claim).AddEntry("10.0.9.10", claim),
			extents: "[[10.0.0.10 10.0.0.19] [10.0.9.10 10.0.9.19]]",
			want:    "9+1 claim, 10+1 claim",
		},
		"outside the spec": {
			pool:    fleet.MakePool("ns", "p", v1alpha1.NetworkPoolSpec{Addresses: []string{"10.0.0.10-10.0.0.19"}}).AddEntry("10.0.0.8-10.0.0.11", lb).AddEntry("10.7.7.7", claim),
			extents: "[[10.0.0.8 10.0.0.19] [10.7.7.7 10.7.7.7]]",
			want:    "0+4 loadbalancer, 12+1 claim",
		},
		"prefixes count as one": {
			pool: fleet.MakePool("ns", "p", v1alpha1.NetworkPoolSpec{
				CIDR: "fd00::/60", AllocationPrefixLength: &length, Reserved: []v1alpha1.ReservedRange{{Addresses: "fd00:0:0:2::1"}, {Addresses: "fd00:0:0:2::9"}},
			}).AddEntry("fd00:0:0:1::/64", claim),
			extents: "[[fd00:: fd00::f:ffff:ffff:ffff:ffff]]",
			want:    "1+1 claim, 2+1 reserved",
		},
		"the ends of the families": {
			pool: fleet.MakePool("ns", "p", v1alpha1.NetworkPoolSpec{Addresses: []string{"255.255.255.250-255.255.255.255"}}).
				AddEntry("255.255.255.255", claim),
			extents: "[[255.255.255.250 255.255.255.255]]",
			want:    "5+1 claim",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := getJSON[addressMap](t, serve(fleet.Pools{tt.pool}), "map", poolQuery(tt.pool))
			if g.Runs == nil || g.Ranges != nil {
				t.Errorf("there is no map: %+v", g)
			}
			if d := cmp.Diff(tt.extents, fmt.Sprint(g.Extents)); d != "" {
				t.Errorf("extents, -want +got:\n%s", d)
			}
			if d := cmp.Diff(tt.want, runsText(g)); d != "" {
				t.Errorf("runs, -want +got:\n%s", d)
			}
		})
	}
}

// TestTooLarge checks that a pool that is too large for a map is listed.
func TestTooLarge(t *testing.T) {
	p := fleet.MakePool("ns", "p", v1alpha1.NetworkPoolSpec{CIDR: "fd00::/64"})
	p.AddEntry("fd00::1", fleet.ClaimEntry("ns", "a")).AddEntry("fd00::2", fleet.ClaimEntry("ns", "b"))
	for i := range maxListedRanges {
		p.AddEntry(fmt.Sprintf("fd00::1:%x", 2*i), fleet.ClaimEntry("ns", "n"))
	}
	g := getJSON[addressMap](t, serve(fleet.Pools{p}), "map", poolQuery(p))
	if g.Runs != nil || len(g.Ranges) != maxListedRanges || !g.More {
		t.Fatalf("%d runs, %d ranges, more: %t", len(g.Runs), len(g.Ranges), g.More)
	}
	if d := cmp.Diff(listedRange{Range: "fd00::1-fd00::2", Count: 2, Use: grants.UseClaim}, g.Ranges[0]); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// TestNoSpec checks that a pool whose spec could never be served has no addresses to show.
func TestNoSpec(t *testing.T) {
	p := &fleet.Pool{}
	p.Key = pools.Key{Kind: "NetworkPool", Namespace: "ns", Name: "p"}
	if g := getJSON[addressMap](t, serve(fleet.Pools{p}), "map", poolQuery(p)); g.Runs != nil || len(g.Extents) != 0 {
		t.Errorf("%+v", g)
	}
}

// BenchmarkMap measures a map of 100,000 claims, without the walk through the memory of the allocator, which
// BenchmarkWalk measures.
func BenchmarkMap(b *testing.B) {
	made := fleet.BusyFleet()
	p := &Page{Pools: made, History: made}
	r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, APIPath+"map?"+poolQuery(made[1]).Encode(), http.NoBody)
	size := 0
	for b.Loop() {
		g, err := p.handleMap(r)
		if err != nil {
			b.Fatal(err)
		}
		text, err := json.Marshal(g)
		if err != nil {
			b.Fatal(err)
		}
		size = len(text)
	}
	b.ReportMetric(float64(size), "bytes")
}

// BenchmarkSearch measures a search through 100,000 claims that finds nothing.
func BenchmarkSearch(b *testing.B) {
	h := serve(fleet.BusyFleet())
	for b.Loop() {
		resp := getResponse(b, h, APIPath+"search?q=no+object+has+this")
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			b.Fatal(err)
		}
		resp.Body.Close()
	}
}
