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

// replayed decides for a Cluster whose Services want what they want, with MetalLB replayed.
func replayed(c Cluster, s tenancy.Settings, services ...elastic.Service) Decision {
	return decided(c, replay(services...), s)
}

func decided(c Cluster, w Workload, s tenancy.Settings) Decision {
	return Decide(c, w, s, 10*time.Minute, epoch.Add(time.Hour))
}

func replay(services ...elastic.Service) Workload {
	return Workload{
		Assess: func(shown []elastic.Desired, grows string, families [2]bool) elastic.Assessment {
			in := elastic.Inventory{Grows: families, Services: services}
			for _, d := range shown {
				in.Pools = append(in.Pools, elastic.Pool{Name: d.Name, Ranges: d.Ranges, AutoAssign: true, Grows: d.Name == grows})
			}
			return elastic.Assess(in)
		},
		Pool: "default-pool", Emptied: func(types.UID) bool { return false },
	}
}

func wants(name string, f elastic.Family, has ...string) elastic.Service {
	s := elastic.Service{Namespace: "ns", Name: name, Families: []elastic.Family{f}, Ports: []elastic.Port{{Protocol: "TCP", Number: 80}}}
	for _, a := range has {
		s.Has = append(s.Has, netip.MustParseAddr(a))
	}
	return s
}

// in is a pool in a state.
func in(state tenancy.PoolState, name string) tenancy.Pool {
	p := pool(name)
	p.State = state
	return p
}

// What was asked of a pool that grants nothing is not on its way: other pools are asked. Each family has its own.
func TestRequestsThatAreStalled(t *testing.T) { // B40
	first := asked(0, 1, has("10.0.0.2", "10.0.0.2", 1))
	served, four, six := wants("a", elastic.IPv4, "10.0.0.2"), wants("b", elastic.IPv4), wants("six", elastic.IPv6)
	grows := tenancy.Settings{Elastic: true, Increment: 2, Quota: -1}
	hand := asked(9, 2, func(a *v1alpha1.IPAllocation) { a.Labels = nil })
	tests := map[string]struct {
		reason   string
		pools    []tenancy.Pool
		blocks   []*v1alpha1.IPAllocation
		settings tenancy.Settings
		services []elastic.Service
		want     []string
	}{
		"Closed":       {reason: "it grants nothing until a person opens it", pools: []tenancy.Pool{in(tenancy.Closed, "a"), pool("b")}, blocks: []*v1alpha1.IPAllocation{first, asked(1, 2)}, settings: grows, services: []elastic.Service{served, four}, want: []string{"Replace b 2 over team-prod-lb-1"}},
		"Missing":      {reason: "it is gone", pools: []tenancy.Pool{in(tenancy.Missing, "a"), pool("b")}, blocks: []*v1alpha1.IPAllocation{first, asked(1, 2)}, settings: grows, services: []elastic.Service{served, four}, want: []string{"Replace b 2 over team-prod-lb-1"}},
		"Unlisted":     {reason: "the ProviderConfig does not name it any more", pools: pools("b"), blocks: []*v1alpha1.IPAllocation{first, asked(1, 2)}, settings: grows, services: []elastic.Service{served, four}, want: []string{"Replace b 2 over team-prod-lb-1"}},
		"Settling":     {reason: "it says soon whether it grants", pools: []tenancy.Pool{in(tenancy.Settling, "a"), pool("b")}, blocks: []*v1alpha1.IPAllocation{first, asked(1, 2)}, settings: grows, services: []elastic.Service{served, four}},
		"Only":         {reason: "there is no other, and the request stays", pools: []tenancy.Pool{in(tenancy.Closed, "a")}, blocks: []*v1alpha1.IPAllocation{first, asked(1, 2)}, settings: grows, services: []elastic.Service{served, four}, want: []string{"Exhausted over team-prod-lb-1"}},
		"Six":          {reason: "a request for IPv6 is none for IPv4", pools: []tenancy.Pool{pool("a"), in(tenancy.Closed, "6")}, blocks: []*v1alpha1.IPAllocation{first, asked(1, 2, from("6"))}, settings: grows, services: []elastic.Service{served, four, six}, want: []string{"Try a 2", "Exhausted over team-prod-lb-1"}},
		"SixOnItsWay":  {reason: "the same while it is on its way", pools: pools("a 6"), blocks: []*v1alpha1.IPAllocation{first, asked(1, 2, from("6"))}, settings: grows, services: []elastic.Service{served, four, six}, want: []string{"Try a 2"}},
		"Quota":        {reason: "what is not about to be granted takes none of it", pools: []tenancy.Pool{in(tenancy.Closed, "a"), pool("b")}, blocks: []*v1alpha1.IPAllocation{first, asked(1, 2)}, settings: tenancy.Settings{Elastic: true, Increment: 1, Quota: 2}, services: []elastic.Service{served, four}, want: []string{"Replace b 1 over team-prod-lb-1"}},
		"Static":       {reason: "it does not grow any more, and would be granted this when there is room", pools: pools("a"), blocks: []*v1alpha1.IPAllocation{first, asked(1, 2, failed)}, settings: tenancy.Settings{Quota: -1}, services: []elastic.Service{served}, want: []string{"Replace over team-prod-lb-1"}},
		"StaticFull":   {reason: "the same while it waits", pools: pools("a"), blocks: []*v1alpha1.IPAllocation{first, asked(1, 2)}, settings: tenancy.Settings{Quota: -1}, services: []elastic.Service{served, four}, want: []string{"Replace over team-prod-lb-1"}},
		"ByHand":       {reason: "a person made it, whatever its name", pools: pools("a"), blocks: []*v1alpha1.IPAllocation{first, hand}, settings: grows, services: []elastic.Service{served}},
		"ByHandStatic": {reason: "in a static Cluster too", pools: pools("a"), blocks: []*v1alpha1.IPAllocation{first, hand}, settings: tenancy.Settings{Quota: -1}, services: []elastic.Service{served}},
		"Granted":      {reason: "what was granted stays", pools: pools("a"), blocks: []*v1alpha1.IPAllocation{first, asked(1, 1, has("10.0.0.3", "10.0.0.3", 1))}, settings: tenancy.Settings{Quota: -1}, services: []elastic.Service{served}},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			d := replayed(Cluster{Ref: tenant, Config: &v1alpha1.ProviderConfig{}, Pools: c.pools, Blocks: c.blocks}, c.settings, c.services...)
			var got []string
			for _, s := range d.Steps {
				if s.Action != tenancy.Done {
					got = append(got, spell(s))
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s%s", c.reason, diff, fmt.Sprint(d.Grow))
			}
		})
	}
}

// A Service counts as demand as soon as nothing fits it, however young it is; one that fits is left to its load balancer.
func TestDemandCountsAtOnce(t *testing.T) { // B36
	first := asked(0, 1, has("10.0.0.2", "10.0.0.2", 1))
	grows := tenancy.Settings{Elastic: true, Increment: 2, Quota: -1}
	young := wants("young", elastic.IPv4)
	young.Created = epoch.Add(time.Hour) // when it is decided
	c := Cluster{Ref: tenant, Config: &v1alpha1.ProviderConfig{}, Pools: pools("a"), Blocks: []*v1alpha1.IPAllocation{first}}
	if d := replayed(c, grows, wants("a", elastic.IPv4, "10.0.0.2"), young); len(d.Steps) != 1 || d.Steps[0].Action != tenancy.Try {
		t.Errorf("nothing fits it, and the steps are %v", d.Steps)
	}
	if d := replayed(c, grows, young); len(d.Steps) != 0 || d.Count(elastic.Fits) != 1 {
		t.Errorf("there is an address for it, and the steps are %v", d.Steps)
	}
	if is := replayed(c, grows, young).Satisfied("MetalLB has room and gives it nothing"); is.Reason != v1alpha1.NotPlacedReason {
		t.Errorf("it is said to be %s", is.Reason)
	}
}

// Services may have addresses of what cannot be read, so nothing is asked for while there is such a pool, far below the
// quota as well. The Cluster grows when the pool is corrected.
func TestWhatCannotBeReadStopsGrowth(t *testing.T) { // B36
	c := Cluster{Ref: tenant, Config: &v1alpha1.ProviderConfig{}, Pools: pools("a b")}
	first := asked(0, 1, has("10.0.0.2", "10.0.0.2", 1))
	tests := map[string]struct {
		reason   string
		blocks   []*v1alpha1.IPAllocation
		settings tenancy.Settings
		corrects string
	}{
		"NoQuota":    {reason: "nothing bounds it", blocks: []*v1alpha1.IPAllocation{first}, settings: tenancy.Settings{Elastic: true, Increment: 2, Quota: -1}, corrects: "Try a 2"},
		"BelowQuota": {reason: "the quota has room", blocks: []*v1alpha1.IPAllocation{first}, settings: tenancy.Settings{Elastic: true, Increment: 2, Quota: 100}, corrects: "Try a 2"},
		"Refused":    {reason: "nor is the next pool asked", blocks: []*v1alpha1.IPAllocation{first, asked(1, 2, failed)}, settings: tenancy.Settings{Elastic: true, Increment: 2, Quota: 100}, corrects: "Replace b 2 over team-prod-lb-1, tried a"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c.Blocks = test.blocks
			w := replay(wants("a", elastic.IPv4, "10.0.0.2"), wants("b", elastic.IPv4))
			w.Unread = "IPAddressPool theirs has x"
			d := decided(c, w, test.settings)
			if len(d.Steps) != 0 || d.Lacking[elastic.IPv4] != 1 {
				t.Errorf("%s: %v lack, and the steps are %v", test.reason, d.Lacking, d.Steps)
			}
			if is := d.Satisfied(""); is == nil || is.Reason != v1alpha1.NotPlacedReason {
				t.Errorf("%s: it is said to be %v", test.reason, is)
			}
			w.Unread = ""
			if steps := decided(c, w, test.settings).Steps; len(steps) == 0 || spell(steps[0]) != test.corrects {
				t.Errorf("%s: all can be read, and the steps are %v", test.reason, steps)
			}
		})
	}
}

// What no Service needs any more is given up before it is granted, and is never drained.
func TestUngrantedBlockIsNotDrained(t *testing.T) { // B51
	c := Cluster{
		Ref: tenant, Config: &v1alpha1.ProviderConfig{}, Pools: pools("a"),
		Blocks: []*v1alpha1.IPAllocation{asked(0, 1, has("10.0.0.2", "10.0.0.2", 1)), asked(1, 2)},
	}
	d := replayed(c, tenancy.Settings{Elastic: true, Increment: 2, Quota: -1}, wants("a", elastic.IPv4, "10.0.0.2"))
	if len(d.Drain) != 0 || len(d.Marks) != 0 || len(d.Steps) != 1 || spell(d.Steps[0]) != "Replace over team-prod-lb-1" {
		t.Errorf("drained %v, marked %v, steps %v", d.Drain, d.Marks, d.Steps)
	}
}
