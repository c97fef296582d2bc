package demand

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// replayed decides for a Cluster with the given Services, with MetalLB replayed.
func replayed(c Cluster, s tenancy.LoadBalancerSettings, services ...elastic.Service) Decision {
	return decided(c, replay(services...), s)
}

func decided(c Cluster, w Workload, s tenancy.LoadBalancerSettings) Decision {
	return DecideBlocks(c, w, s, 10*time.Minute, epoch.Add(time.Hour))
}

func replay(services ...elastic.Service) Workload {
	return Workload{
		AssessServices: func(shown []elastic.DesiredPool, grows string, families [2]bool) elastic.Assessment {
			in := elastic.Inventory{GrowableFamilies: families, Services: services}
			for _, d := range shown {
				in.Pools = append(in.Pools, elastic.Pool{Name: d.Name, Ranges: d.Ranges, AutoAssign: true, ReceivesGrowth: d.Name == grows})
			}
			return elastic.AssessServices(in)
		},
		SharedPool: "default-pool", IsEmptied: func(types.UID) bool { return false },
	}
}

func newService(name string, f elastic.Family, addresses ...string) elastic.Service {
	s := elastic.Service{Namespace: "ns", Name: name, Families: []elastic.Family{f}, Ports: []elastic.Port{{Protocol: "TCP", Number: 80}}}
	for _, a := range addresses {
		s.Addresses = append(s.Addresses, netip.MustParseAddr(a))
	}
	return s
}

// poolInState returns a pool in the given state.
func poolInState(state tenancy.PoolAvailability, name string) tenancy.Pool {
	p := pool(name)
	p.Availability = state
	return p
}

// TestStalledRequests checks that a request to a pool that grants nothing is not on its way, so that other
// pools are asked, separately for each family.
func TestStalledRequests(t *testing.T) { // B40 (a pool that grants nothing is not asked)
	first := newAllocation(0, 1, withRange("10.0.0.2", "10.0.0.2", 1))
	served, four, six := newService("a", elastic.IPv4, "10.0.0.2"), newService("b", elastic.IPv4), newService("six", elastic.IPv6)
	grows := tenancy.LoadBalancerSettings{Elastic: true, Increment: 2, Quota: -1}
	hand := newAllocation(9, 2, func(a *v1alpha1.IPAllocation) { a.Labels = nil })
	tests := map[string]struct {
		reason   string
		pools    []tenancy.Pool
		blocks   []*v1alpha1.IPAllocation
		settings tenancy.LoadBalancerSettings
		services []elastic.Service
		want     []string
	}{
		"Closed":       {reason: "it grants nothing until a person opens it", pools: []tenancy.Pool{poolInState(tenancy.PoolClosed, "a"), pool("b")}, blocks: []*v1alpha1.IPAllocation{first, newAllocation(1, 2)}, settings: grows, services: []elastic.Service{served, four}, want: []string{"Replace b 2 over team-prod-lb-1"}},
		"Missing":      {reason: "it is gone", pools: []tenancy.Pool{poolInState(tenancy.PoolMissing, "a"), pool("b")}, blocks: []*v1alpha1.IPAllocation{first, newAllocation(1, 2)}, settings: grows, services: []elastic.Service{served, four}, want: []string{"Replace b 2 over team-prod-lb-1"}},
		"Unlisted":     {reason: "the ProviderConfig does not name it any more", pools: pools("b"), blocks: []*v1alpha1.IPAllocation{first, newAllocation(1, 2)}, settings: grows, services: []elastic.Service{served, four}, want: []string{"Replace b 2 over team-prod-lb-1"}},
		"Settling":     {reason: "it says soon whether it grants", pools: []tenancy.Pool{poolInState(tenancy.PoolSettling, "a"), pool("b")}, blocks: []*v1alpha1.IPAllocation{first, newAllocation(1, 2)}, settings: grows, services: []elastic.Service{served, four}},
		"Only":         {reason: "there is no other, and the request stays", pools: []tenancy.Pool{poolInState(tenancy.PoolClosed, "a")}, blocks: []*v1alpha1.IPAllocation{first, newAllocation(1, 2)}, settings: grows, services: []elastic.Service{served, four}, want: []string{"Exhausted over team-prod-lb-1"}},
		"Six":          {reason: "a request for IPv6 is none for IPv4", pools: []tenancy.Pool{pool("a"), poolInState(tenancy.PoolClosed, "6")}, blocks: []*v1alpha1.IPAllocation{first, newAllocation(1, 2, from("6"))}, settings: grows, services: []elastic.Service{served, four, six}, want: []string{"Try a 2", "Exhausted over team-prod-lb-1"}},
		"SixOnItsWay":  {reason: "the same while it is on its way", pools: pools("a 6"), blocks: []*v1alpha1.IPAllocation{first, newAllocation(1, 2, from("6"))}, settings: grows, services: []elastic.Service{served, four, six}, want: []string{"Try a 2"}},
		"Quota":        {reason: "what is not about to be granted takes none of it", pools: []tenancy.Pool{poolInState(tenancy.PoolClosed, "a"), pool("b")}, blocks: []*v1alpha1.IPAllocation{first, newAllocation(1, 2)}, settings: tenancy.LoadBalancerSettings{Elastic: true, Increment: 1, Quota: 2}, services: []elastic.Service{served, four}, want: []string{"Replace b 1 over team-prod-lb-1"}},
		"Static":       {reason: "it does not grow any more, and would be granted this when there is room", pools: pools("a"), blocks: []*v1alpha1.IPAllocation{first, newAllocation(1, 2, failed)}, settings: tenancy.LoadBalancerSettings{Quota: -1}, services: []elastic.Service{served}, want: []string{"Replace over team-prod-lb-1"}},
		"StaticFull":   {reason: "the same while it waits", pools: pools("a"), blocks: []*v1alpha1.IPAllocation{first, newAllocation(1, 2)}, settings: tenancy.LoadBalancerSettings{Quota: -1}, services: []elastic.Service{served, four}, want: []string{"Replace over team-prod-lb-1"}},
		"ByHand":       {reason: "a person made it, whatever its name", pools: pools("a"), blocks: []*v1alpha1.IPAllocation{first, hand}, settings: grows, services: []elastic.Service{served}},
		"ByHandStatic": {reason: "in a static Cluster too", pools: pools("a"), blocks: []*v1alpha1.IPAllocation{first, hand}, settings: tenancy.LoadBalancerSettings{Quota: -1}, services: []elastic.Service{served}},
		"Granted":      {reason: "what was granted stays", pools: pools("a"), blocks: []*v1alpha1.IPAllocation{first, newAllocation(1, 1, withRange("10.0.0.3", "10.0.0.3", 1))}, settings: tenancy.LoadBalancerSettings{Quota: -1}, services: []elastic.Service{served}},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			d := replayed(Cluster{Ref: tenant, ProviderConfig: &v1alpha1.ProviderConfig{}, Pools: c.pools, Blocks: c.blocks}, c.settings, c.services...)
			var got []string
			for _, s := range d.GrowthSteps {
				if s.Action != tenancy.ActionDone {
					got = append(got, formatStep(s))
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s%s", c.reason, diff, fmt.Sprint(d.Growths))
			}
		})
	}
}

// TestDemandCountsAtOnce checks that a Service counts as demand as soon as no address fits it, however young it is,
// and that a Service with a fitting address is left to its load balancer.
func TestDemandCountsAtOnce(t *testing.T) { // B36 (a Service counts at once)
	first := newAllocation(0, 1, withRange("10.0.0.2", "10.0.0.2", 1))
	grows := tenancy.LoadBalancerSettings{Elastic: true, Increment: 2, Quota: -1}
	young := newService("young", elastic.IPv4)
	young.Created = epoch.Add(time.Hour) // the time of the decision
	c := Cluster{Ref: tenant, ProviderConfig: &v1alpha1.ProviderConfig{}, Pools: pools("a"), Blocks: []*v1alpha1.IPAllocation{first}}
	if d := replayed(c, grows, newService("a", elastic.IPv4, "10.0.0.2"), young); len(d.GrowthSteps) != 1 || d.GrowthSteps[0].Action != tenancy.ActionCreate {
		t.Errorf("nothing fits it, and the steps are %v", d.GrowthSteps)
	}
	if d := replayed(c, grows, young); len(d.GrowthSteps) != 0 || d.CountInState(elastic.ServicePlaceable) != 1 {
		t.Errorf("there is an address for it, and the steps are %v", d.GrowthSteps)
	}
	if condition := replayed(c, grows, young).DemandCondition("MetalLB has room and gives it nothing"); condition.Reason != v1alpha1.NotPlacedReason {
		t.Errorf("it is said to be %s", condition.Reason)
	}
}

// TestUnreadablePoolStopsGrowth checks that nothing is requested while a pool of the load balancer cannot be
// parsed, even far below the quota, because Services may have addresses of it. The Cluster grows when the pool is
// corrected.
func TestUnreadablePoolStopsGrowth(t *testing.T) { // B36 (an unreadable pool stops growth)
	c := Cluster{Ref: tenant, ProviderConfig: &v1alpha1.ProviderConfig{}, Pools: pools("a b")}
	first := newAllocation(0, 1, withRange("10.0.0.2", "10.0.0.2", 1))
	tests := map[string]struct {
		reason   string
		blocks   []*v1alpha1.IPAllocation
		settings tenancy.LoadBalancerSettings
		corrects string
	}{
		"NoQuota":    {reason: "nothing bounds it", blocks: []*v1alpha1.IPAllocation{first}, settings: tenancy.LoadBalancerSettings{Elastic: true, Increment: 2, Quota: -1}, corrects: "Try a 2"},
		"BelowQuota": {reason: "the quota has room", blocks: []*v1alpha1.IPAllocation{first}, settings: tenancy.LoadBalancerSettings{Elastic: true, Increment: 2, Quota: 100}, corrects: "Try a 2"},
		"Refused":    {reason: "nor is the next pool asked", blocks: []*v1alpha1.IPAllocation{first, newAllocation(1, 2, failed)}, settings: tenancy.LoadBalancerSettings{Elastic: true, Increment: 2, Quota: 100}, corrects: "Replace b 2 over team-prod-lb-1, tried a"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c.Blocks = test.blocks
			w := replay(newService("a", elastic.IPv4, "10.0.0.2"), newService("b", elastic.IPv4))
			w.UnreadablePool = "IPAddressPool theirs has x"
			d := decided(c, w, test.settings)
			if len(d.GrowthSteps) != 0 || d.Shortfall[elastic.IPv4] != 1 {
				t.Errorf("%s: %v lack, and the steps are %v", test.reason, d.Shortfall, d.GrowthSteps)
			}
			if condition := d.DemandCondition(""); condition == nil || condition.Reason != v1alpha1.NotPlacedReason {
				t.Errorf("%s: it is said to be %v", test.reason, condition)
			}
			w.UnreadablePool = ""
			if steps := decided(c, w, test.settings).GrowthSteps; len(steps) == 0 || formatStep(steps[0]) != test.corrects {
				t.Errorf("%s: all can be read, and the steps are %v", test.reason, steps)
			}
		})
	}
}

// TestUngrantedBlockIsNotDrained checks that a block that no Service needs any more is withdrawn before it is
// granted, and is never drained.
func TestUngrantedBlockIsNotDrained(t *testing.T) { // B51 (a pending block is not drained)
	c := Cluster{
		Ref: tenant, ProviderConfig: &v1alpha1.ProviderConfig{}, Pools: pools("a"),
		Blocks: []*v1alpha1.IPAllocation{newAllocation(0, 1, withRange("10.0.0.2", "10.0.0.2", 1)), newAllocation(1, 2)},
	}
	d := replayed(c, tenancy.LoadBalancerSettings{Elastic: true, Increment: 2, Quota: -1}, newService("a", elastic.IPv4, "10.0.0.2"))
	if len(d.BlocksToDrain) != 0 || len(d.UsageChanges) != 0 || len(d.GrowthSteps) != 1 || formatStep(d.GrowthSteps[0]) != "Replace over team-prod-lb-1" {
		t.Errorf("drained %v, marked %v, steps %v", d.BlocksToDrain, d.UsageChanges, d.GrowthSteps)
	}
}
