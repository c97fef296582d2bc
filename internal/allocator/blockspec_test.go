package allocator

import (
	"testing"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/blocks"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// Tests of what the spec of a carved pool means for the blocks that it has, and for those that it requests.

// TestClosedBlockIsNotGrantedUnderInvalidSpec checks R13: where the spec cannot be served any more, addresses of a
// block that was closed since are not granted either, not even to a claim that has one on record.
func TestClosedBlockIsNotGrantedUnderInvalidSpec(t *testing.T) {
	p := newChildPool(t, isOpen("pool-1", "10.0.0.4/30"), isOpen("pool-2", "10.0.0.8/30"), func(o *v1alpha1.NetworkPool) {
		o.Spec.PreAllocations = map[string]string{"x": "10.0.0.5"}
	})
	obj := p.Base.Pool.DeepCopyObject().(*v1alpha1.NetworkPool)
	obj.Generation, obj.ResourceVersion = 2, "11"
	obj.Spec.PreAllocations["y"] = "10.0.0.5" // no rule of the schema rejects that
	p.SetBasePool(obj)
	if p.Space.SpecErr == "" || p.Space.Ledger.Counts().Total != 8 {
		t.Fatalf("%q, %+v", p.Space.SpecErr, p.Space.Ledger.Counts())
	}
	obj = obj.DeepCopy()
	obj.ResourceVersion, obj.Status.Blocks = "12", obj.Status.Blocks[:1] // pool-2 is closed
	p.SetBasePool(obj)
	if n := p.Space.Ledger.Counts().Total; n != 4 {
		t.Errorf("it hands out %d addresses", n)
	}
	a := New(Options{ManagerID: "me", Clock: clocktesting.NewFakeClock(noon)})
	c := observeClaim(p, "c", 1, withRecordedAddress("10.0.0.9"))
	if granted, _ := p.Planner.PlanGrants(noon, 9, a.admission.admissionRules(t.Context(), p, noon)); granted > 0 {
		t.Errorf("%v is granted", p.Grants.ByClaimant[c.Owner.UID].Range)
	}
	if _, kept := p.Space.Layout.PinForClaim("x"); !kept {
		t.Error("a pre-allocated address in an open block is granted to another claim")
	}
}

// TestPreAllocatedGatewayIsNotGranted checks that a pre-allocated address that turns out to be the gateway of a block
// is granted to no claim, and that the pool grants all other addresses.
func TestPreAllocatedGatewayIsNotGranted(t *testing.T) {
	p := newChildPool(t, func(o *v1alpha1.NetworkPool) {
		o.Spec.Carve.PrefixLength, o.Spec.Carve.Network, o.Spec.AllocateReservedIPAddresses = 28, v1alpha1.RoutedNetwork, false
		o.Spec.PreAllocations = map[string]string{"vip": "10.0.0.17", "last": "10.0.0.31", "fits": "10.0.0.20"}
		o.Status.Blocks = []v1alpha1.CarvedBlock{{Range: "10.0.0.16/28", Allocation: "pool-1", UID: "uid-pool-1", Prefix: 28, Gateway: "10.0.0.17"}}
	})
	if reason, message := p.Status.ClosedReason(noon); reason != "" {
		t.Fatal(reason, message)
	}
	vip, last, fits, other := observeClaim(p, "vip", 1), observeClaim(p, "last", 1), observeClaim(p, "fits", 1), observeClaim(p, "other", 1)
	_, refused := p.Planner.PlanGrants(noon, 9, admitAll)
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
			p.ObserveClaimant(blocks.NewClaimant(newBlock("g-1", func(o *v1alpha1.IPAllocation) {
				o.Spec.PoolRef.Name, o.Spec.ChildPoolRef.Name, o.Spec.PrefixLength = testKey.Name, "g", ptr.To(bits)
			})))
		}
	}
	inARow := func(n int32) func(*grants.PoolState) {
		return func(p *grants.PoolState) { observeAllocation(p, "lb", n) }
	}
	overQuota := func(p *grants.PoolState) {
		c := observeClaim(p, "b", 1)
		c.Cluster = types.NamespacedName{Namespace: "ns", Name: "tenant"}
		p.Queues.QueueClaimant(c)
		p.Quotas.Limit = func(types.NamespacedName) (int64, bool) { return 0, true }
	}
	for name, tt := range map[string]struct {
		claimants func(*grants.PoolState)
		want      int
		reason    string
	}{
		"Claim":     {claimants: func(p *grants.PoolState) { observeClaim(p, "a", 1) }, want: 1},
		"Prefix31":  {claimants: asks(31), want: 1},
		"Prefix30":  {claimants: asks(30), reason: "each of the two has the gateway or the last address"},
		"FiveOfSix": {claimants: inARow(5), want: 1, reason: "the gateway is the first of six"},
		"Six":       {claimants: inARow(6)},
		"OverQuota": {claimants: overQuota, reason: "it would get nothing, and the block would go back and come again"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newChildPool(t, routed)
			tt.claimants(p)
			p.Carved.ResetShortfall()
			p.Planner.PlanGrants(noon, 9, admitAll)
			if p.Growth.PlanBlocks(noon, time.Minute); p.Carved.Decision.NewBlocks != tt.want {
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
			p.Base.Key = siteKey
			p.ObserveClaimant(blocks.NewClaimant(newBlock("pool-1", append([]func(*v1alpha1.IPAllocation){func(o *v1alpha1.IPAllocation) {
				o.Annotations[v1alpha1.AddressAnnotation] = "10.0.0.4/30"
				o.Finalizers = append(o.Finalizers, v1alpha1.IPAllocationFinalizer)
			}}, change...)...)))
		}
	}
	site := func(o *v1alpha1.NetworkPool) {
		o.Spec.AllocateReservedIPAddresses, o.Spec.Carvable, o.Name = true, &v1alpha1.Carvable{}, siteKey.Name
	}
	claim := func(change ...func(*ipamv1.IPAddressClaim)) func(*grants.PoolState) {
		return func(p *grants.PoolState) { observeClaim(p, "c", 1, change...) }
	}
	here := newChildPool(t, isOpen("pool-1", "10.0.0.4/30"))
	observeBlock(here, newBlock("pool-1", firstBlock))
	for name, tt := range map[string]struct {
		p         *grants.PoolState
		claimants func(*grants.PoolState)
		excluded  map[netipx.IPRange]pools.Key
		want      int
	}{
		"Closed":       {p: newChildPool(t, isOpen("pool-1", "10.0.0.4/30")), claimants: claim(withRecordedAddress("10.0.0.9"))},
		"ClosedHad":    {p: newChildPool(t, isOpen("pool-1", "10.0.0.4/30")), claimants: claim(withRecordedAddress("10.0.0.9"), had)},
		"Open":         {p: here, claimants: claim(withRecordedAddress("10.0.0.6"), had), want: 1},
		"Lost":         {p: newChildPool(t, isOpen("pool-1", "10.0.0.4/30")), claimants: claim(withRecordedAddress("10.0.0.6"), had)},
		"NarrowedHad":  {p: newTestPool(t, "10.0.0.0-10.0.0.3"), claimants: claim(withRecordedAddress("10.0.0.9"), had), want: 1},
		"Shared":       {p: newTestPool(t, "10.0.0.0-10.0.0.15"), claimants: claim(withRecordedAddress("10.0.0.5")), excluded: excluded},
		"SharedHad":    {p: newTestPool(t, "10.0.0.0-10.0.0.15"), claimants: claim(withRecordedAddress("10.0.0.5"), had), excluded: excluded, want: 1},
		"SharedOfOne":  {p: newTestPool(t, "10.0.0.0-10.0.0.15", site), claimants: block(), excluded: excluded},
		"SharedOfHad":  {p: newTestPool(t, "10.0.0.0-10.0.0.15", site), claimants: block(withAllocatedStatus("10.0.0.4", "10.0.0.7")), excluded: excluded},
		"BlockOfFree":  {p: newTestPool(t, "10.0.0.0-10.0.0.15", site), claimants: block(), want: 1},
		"BlockOutside": {p: newTestPool(t, "10.0.1.0-10.0.1.15", site), claimants: block()},
	} {
		t.Run(name, func(t *testing.T) {
			tt.p.Excluded.SetExcluded(tt.excluded)
			tt.claimants(tt.p)
			if n, _ := tt.p.Planner.PlanGrants(noon, 9, admitAll); n != tt.want {
				t.Errorf("%d are granted", n)
			}
		})
	}
}
