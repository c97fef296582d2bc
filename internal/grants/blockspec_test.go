package grants_test

import (
	"testing"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/blocks"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestPreAllocatedGatewayIsNotGranted checks that a pre-allocated address that turns out to be the gateway of a block
// is granted to no claim, and that the pool grants all other addresses.
func TestPreAllocatedGatewayIsNotGranted(t *testing.T) {
	p := grantstest.NewChildPool(t, func(o *v1alpha1.NetworkPool) {
		o.Spec.Carve.PrefixLength, o.Spec.Carve.Network, o.Spec.AllocateReservedIPAddresses = 28, v1alpha1.RoutedNetwork, false
		o.Spec.PreAllocations = map[string]string{"vip": "10.0.0.17", "last": "10.0.0.31", "fits": "10.0.0.20"}
		o.Status.Blocks = []v1alpha1.CarvedBlock{{Range: "10.0.0.16/28", Allocation: "pool-1", UID: "uid-pool-1", Prefix: 28, Gateway: "10.0.0.17"}}
	})
	if reason, message := p.Status.ClosedReason(grantstest.Noon); reason != "" {
		t.Fatal(reason, message)
	}
	vip, last, fits, other := grantstest.ObserveClaim(p, "vip", 1), grantstest.ObserveClaim(p, "last", 1), grantstest.ObserveClaim(p, "fits", 1), grantstest.ObserveClaim(p, "other", 1)
	_, refused := p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
	for c, want := range map[*grants.Claimant]string{
		vip:  "the preAllocated address cannot be granted: spec.preAllocations[vip] of NetworkPool ns/pool: 10.0.0.17 is, or contains, the gateway 10.0.0.17; choose another",
		last: "the preAllocated address cannot be granted: spec.preAllocations[last] of NetworkPool ns/pool: 10.0.0.31 is the first or last address of 10.0.0.16/28, which hosts do not use; choose another, or set allocateReservedIPAddresses",
	} {
		if refusal := refused[c]; refusal == nil || refusal.Message != want {
			t.Errorf("the refusal of %s is %+v", c.Owner.Name, refusal)
		}
	}
	if g := p.Grants.ByClaimant[fits.Owner.UID]; g == nil || g.Range.From().String() != "10.0.0.20" {
		t.Errorf("fits has %+v", g)
	}
	if p.Grants.ByClaimant[other.Owner.UID] == nil {
		t.Error("other has nothing")
	}
}

// TestClaimantsThatNeedNewBlock checks that a claimant that would not take an address of a new block does not make the
// pool grow.
func TestClaimantsThatNeedNewBlock(t *testing.T) {
	routed := func(o *v1alpha1.NetworkPool) {
		o.Spec.Carve.PrefixLength, o.Spec.Carve.Network = 29, v1alpha1.RoutedNetwork
		o.Spec.Carvable, o.Spec.AllocateReservedIPAddresses, o.Spec.Carve.Blocks = &v1alpha1.Carvable{}, false, v1alpha1.CarvedBlocks{Min: 0, Max: 3}
	}
	asks := func(bits int32) func(*grants.PoolState) {
		return func(p *grants.PoolState) {
			p.ObserveClaimant(blocks.NewClaimant(grantstest.NewBlock("g-1", func(o *v1alpha1.IPAllocation) {
				o.Spec.PoolRef.Name, o.Spec.ChildPoolRef.Name, o.Spec.PrefixLength = grantstest.PoolKey.Name, "g", ptr.To(bits)
			})))
		}
	}
	inARow := func(n int32) func(*grants.PoolState) {
		return func(p *grants.PoolState) { grantstest.ObserveAllocation(p, "lb", n) }
	}
	overQuota := func(p *grants.PoolState) {
		c := grantstest.ObserveClaim(p, "b", 1)
		c.Cluster = types.NamespacedName{Namespace: "ns", Name: "tenant"}
		p.Queues.QueueClaimant(c)
		p.Quotas.Limit = func(types.NamespacedName) (int64, bool) { return 0, true }
	}
	for name, tt := range map[string]struct {
		claimants func(*grants.PoolState)
		want      int
		reason    string
	}{
		"Claim":     {claimants: func(p *grants.PoolState) { grantstest.ObserveClaim(p, "a", 1) }, want: 1},
		"Prefix31":  {claimants: asks(31), want: 1},
		"Prefix30":  {claimants: asks(30), reason: "each of the two has the gateway or the last address"},
		"FiveOfSix": {claimants: inARow(5), want: 1, reason: "the gateway is the first of six"},
		"Six":       {claimants: inARow(6)},
		"OverQuota": {claimants: overQuota, reason: "it would get nothing, and the block would go back and come again"},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewChildPool(t, routed)
			tt.claimants(p)
			p.Carved.ResetShortfall()
			p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
			if p.Growth.PlanBlocks(grantstest.Noon, time.Minute); p.Carved.Decision.NewBlocks != tt.want {
				t.Errorf("%s: %+v", tt.reason, p.Carved.Decision)
			}
		})
	}
}

// TestUnprovenRecordsOpenNothing checks that a record that a user may have written, or a restore may have brought,
// opens nothing (R1, R13).
func TestUnprovenRecordsOpenNothing(t *testing.T) {
	excluded := map[netipx.IPRange]pools.Key{netipx.MustParseIPRange("10.0.0.5-10.0.0.5"): {Kind: "NetworkPool", Namespace: "x", Name: "other"}}
	had := func(c *ipamv1.IPAddressClaim) { c.Status.AddressRef.Name = "c" }
	block := func(change ...func(*v1alpha1.IPAllocation)) func(*grants.PoolState) {
		return func(p *grants.PoolState) {
			p.Base.Key = grantstest.SiteKey
			p.ObserveClaimant(blocks.NewClaimant(grantstest.NewBlock("pool-1", append([]func(*v1alpha1.IPAllocation){func(o *v1alpha1.IPAllocation) {
				o.Annotations[v1alpha1.AddressAnnotation] = "10.0.0.4/30"
				o.Finalizers = append(o.Finalizers, v1alpha1.IPAllocationFinalizer)
			}}, change...)...)))
		}
	}
	site := func(o *v1alpha1.NetworkPool) {
		o.Spec.AllocateReservedIPAddresses, o.Spec.Carvable, o.Name = true, &v1alpha1.Carvable{}, grantstest.SiteKey.Name
	}
	claim := func(change ...func(*ipamv1.IPAddressClaim)) func(*grants.PoolState) {
		return func(p *grants.PoolState) { grantstest.ObserveClaim(p, "c", 1, change...) }
	}
	here := grantstest.NewChildPool(t, grantstest.WithOpenBlock("pool-1", "10.0.0.4/30"))
	grantstest.ObserveBlock(here, grantstest.NewBlock("pool-1", grantstest.FirstBlock))
	for name, tt := range map[string]struct {
		p         *grants.PoolState
		claimants func(*grants.PoolState)
		excluded  map[netipx.IPRange]pools.Key
		want      int
	}{
		"Closed":       {p: grantstest.NewChildPool(t, grantstest.WithOpenBlock("pool-1", "10.0.0.4/30")), claimants: claim(grantstest.WithRecordedAddress("10.0.0.9"))},
		"ClosedHad":    {p: grantstest.NewChildPool(t, grantstest.WithOpenBlock("pool-1", "10.0.0.4/30")), claimants: claim(grantstest.WithRecordedAddress("10.0.0.9"), had)},
		"Open":         {p: here, claimants: claim(grantstest.WithRecordedAddress("10.0.0.6"), had), want: 1},
		"Lost":         {p: grantstest.NewChildPool(t, grantstest.WithOpenBlock("pool-1", "10.0.0.4/30")), claimants: claim(grantstest.WithRecordedAddress("10.0.0.6"), had)},
		"NarrowedHad":  {p: grantstest.NewPool(t, "10.0.0.0-10.0.0.3"), claimants: claim(grantstest.WithRecordedAddress("10.0.0.9"), had), want: 1},
		"Shared":       {p: grantstest.NewPool(t, "10.0.0.0-10.0.0.15"), claimants: claim(grantstest.WithRecordedAddress("10.0.0.5")), excluded: excluded},
		"SharedHad":    {p: grantstest.NewPool(t, "10.0.0.0-10.0.0.15"), claimants: claim(grantstest.WithRecordedAddress("10.0.0.5"), had), excluded: excluded, want: 1},
		"SharedOfOne":  {p: grantstest.NewPool(t, "10.0.0.0-10.0.0.15", site), claimants: block(), excluded: excluded},
		"SharedOfHad":  {p: grantstest.NewPool(t, "10.0.0.0-10.0.0.15", site), claimants: block(grantstest.WithAllocatedStatus("10.0.0.4", "10.0.0.7")), excluded: excluded},
		"BlockOfFree":  {p: grantstest.NewPool(t, "10.0.0.0-10.0.0.15", site), claimants: block(), want: 1},
		"BlockOutside": {p: grantstest.NewPool(t, "10.0.1.0-10.0.1.15", site), claimants: block()},
	} {
		t.Run(name, func(t *testing.T) {
			tt.p.Excluded.SetExcluded(tt.excluded)
			tt.claimants(tt.p)
			if n, _ := tt.p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll); n != tt.want {
				t.Errorf("%d are granted", n)
			}
		})
	}
}
