package elastic

import (
	"fmt"
	"net/netip"
	"testing"

	"go4.org/netipx"
)

// TestAnyNumberOfServices checks that an assessment ends, whatever number of Services and pools a workload cluster
// reports. This one takes seconds, and took an hour when each Service was compared with each other one.
func TestAnyNumberOfServices(t *testing.T) {
	const n = 50_000
	small := netipx.MustParseIPRange("10.0.0.1-10.0.0.8")
	for name, c := range map[string]struct {
		reason    string
		service   func(i int) Service
		pools     int
		shortfall int64
	}{
		"plain":          {"they are counted, whatever the quota makes of it", func(int) Service { return Service{} }, 0, n - 8},
		"that share one": {"one address for each port", func(i int) Service { return Service{SharingKey: "k", Ports: []Port{{"TCP", int32(i % 50)}}} }, 0, n/50 - 8},
		"that share with no other": {"each is compared with all, as long as that takes no time", func(i int) Service {
			return Service{SharingKey: fmt.Sprint(i)}
		}, 0, -1},
		"with one port in common": {"the same", func(i int) Service {
			return Service{SharingKey: "k", Ports: []Port{{"TCP", 80}, {"UDP", int32(i)}}}
		}, 0, -1},
		"with one address":  {"one may keep it", func(int) Service { return Service{Addresses: []netip.Addr{small.From()}} }, 0, n - 8},
		"of many pools":     {"the pools are checked as long as that takes no time", func(int) Service { return Service{} }, 20_000, -1},
		"that ask for much": {"what they have is looked up in all pools", func(int) Service { return Service{Addresses: make([]netip.Addr, 1000)} }, 1000, -1},
	} {
		t.Run(name, func(t *testing.T) {
			in := Inventory{GrowableFamilies: [2]bool{IPv4: true}, Pools: []Pool{{Name: "default-pool", AutoAssign: true, ReceivesGrowth: true, Ranges: []netipx.IPRange{small}}}}
			for i := range c.pools {
				in.Pools = append(in.Pools, Pool{Name: fmt.Sprint("p", i), AutoAssign: true})
			}
			for i := range n {
				s := c.service(i)
				s.Name, s.Families = fmt.Sprint(i), []Family{IPv4}
				in.Services = append(in.Services, s)
			}
			got := AssessServices(in)
			if len(got.ServiceAssessments) != n {
				t.Errorf("%d verdicts", len(got.ServiceAssessments))
			}
			if c.shortfall >= 0 && got.Shortfall[IPv4] != c.shortfall {
				t.Errorf("%d are lacking, want %d: %s", got.Shortfall[IPv4], c.shortfall, c.reason)
			}
			if c.shortfall < 0 && got.ServiceAssessments[n-1].Message != tooManyObjectsMessage {
				t.Errorf("the message of the last one is %q: %s", got.ServiceAssessments[n-1].Message, c.reason)
			}
		})
	}
}
