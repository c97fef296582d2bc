package grants_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/blocks"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// withRecordOnly sets the record of an allocation, as it comes back without our finalizer.
func withRecordOnly(block string) func(*v1alpha1.IPAllocation) {
	return func(o *v1alpha1.IPAllocation) { o.Annotations[v1alpha1.AddressAnnotation] = block }
}

func TestChooseBlock(t *testing.T) {
	withSizes := func(nodes, loadBalancers int32) func(*v1alpha1.NetworkPool) {
		return func(o *v1alpha1.NetworkPool) {
			o.Spec.TenantAllocation = &v1alpha1.TenantAllocation{Start: "10.0.0.1", End: "10.0.0.60",
				Defaults: &v1alpha1.AllocationDefaults{NodesPerTenant: nodes, LBPoolPerTenant: loadBalancers}}
		}
	}
	defaults := withSizes(3, 6)
	tests := map[string]struct {
		pool  []func(*v1alpha1.NetworkPool)
		there func(*grants.PoolState)
		count int32
		ask   []func(*v1alpha1.IPAllocation)
		want  string // the block, or a part of the refusal
	}{
		"from the start":            {count: 4, want: "10.0.0.1-10.0.0.4"},
		"eight for load balancers":  {want: "10.0.0.1-10.0.0.8"},
		"five for nodes":            {ask: []func(*v1alpha1.IPAllocation){grantstest.ForNodes}, want: "10.0.0.1-10.0.0.5"},
		"the pool's default":        {pool: []func(*v1alpha1.NetworkPool){defaults}, want: "10.0.0.1-10.0.0.6"},
		"the pool's other default":  {pool: []func(*v1alpha1.NetworkPool){defaults}, ask: []func(*v1alpha1.IPAllocation){grantstest.ForNodes}, want: "10.0.0.1-10.0.0.3"},
		"half of the defaults":      {pool: []func(*v1alpha1.NetworkPool){withSizes(3, 0)}, want: "10.0.0.1-10.0.0.8"}, // B5
		"the other half":            {pool: []func(*v1alpha1.NetworkPool){withSizes(0, 6)}, ask: []func(*v1alpha1.IPAllocation){grantstest.ForNodes}, want: "10.0.0.1-10.0.0.5"},
		"the count before defaults": {pool: []func(*v1alpha1.NetworkPool){defaults}, count: 2, want: "10.0.0.1/32-10.0.0.2"},
		"best fit": {
			there: func(p *grants.PoolState) {
				grantstest.ObserveAllocation(p, "y", 1, grantstest.WithBlock("10.0.0.5/32"))
				grantstest.ObserveAllocation(p, "z", 1, grantstest.WithBlock("10.0.0.10/32"))
			},
			count: 4, want: "10.0.0.1-10.0.0.4", // not among the 50 at the end
		},
		"best fit, the next hole": {
			there: func(p *grants.PoolState) {
				grantstest.ObserveAllocation(p, "y", 1, grantstest.WithBlock("10.0.0.4/32"))
				grantstest.ObserveAllocation(p, "z", 1, grantstest.WithBlock("10.0.0.10/32"))
			},
			count: 4, want: "10.0.0.5-10.0.0.8",
		},
		"too large": {count: 61, want: "no contiguous block available"},
		"fragmented": {
			there: func(p *grants.PoolState) { grantstest.ObserveAddress(p, "c", "10.0.0.30", "uid-c") },
			count: 31, want: "no contiguous block available",
		},
		"pinned": {ask: []func(*v1alpha1.IPAllocation){grantstest.WithPinnedRange("10.0.0.20", "10.0.0.29")}, count: 3, want: "10.0.0.20-10.0.0.29"},
		// The schema compares IPv4 addresses only.
		"pinned backwards": {ask: []func(*v1alpha1.IPAllocation){grantstest.WithPinnedRange("fd00::9", "fd00::1")}, count: 3, want: "end fd00::1 is before start fd00::9"},
		"pinned outside": {
			ask: []func(*v1alpha1.IPAllocation){grantstest.WithPinnedRange("10.0.0.55", "10.0.0.61")}, want: "contains addresses that",
		},
		"pinned over a claim's": {
			there: func(p *grants.PoolState) { grantstest.ObserveAddress(p, "c", "10.0.0.25", "uid-c") },
			ask:   []func(*v1alpha1.IPAllocation){grantstest.WithPinnedRange("10.0.0.20", "10.0.0.29")}, want: "overlaps 10.0.0.25, which is held by IPAddress ns/c (without a claim)",
		},
		"pinned over a block": {
			there: func(p *grants.PoolState) {
				grantstest.ObserveAllocation(p, "y", 4, grantstest.WithBlock("10.0.0.28/30"))
			},
			ask: []func(*v1alpha1.IPAllocation){grantstest.WithPinnedRange("10.0.0.20", "10.0.0.29")}, want: "overlaps 10.0.0.28/30, which is held by IPAllocation ns/y",
		},
		"pinned over a preAllocation of its name": {
			pool: []func(*v1alpha1.NetworkPool){grantstest.WithPreAllocation("x", "10.0.0.25")},
			ask:  []func(*v1alpha1.IPAllocation){grantstest.WithPinnedRange("10.0.0.20", "10.0.0.29")}, want: "a preAllocation for claims named x",
		},
		"what rests for its name": {
			pool: []func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) {
				o.Status.Cooling = []v1alpha1.CoolingGroup{{Until: metav1.NewTime(grantstest.Noon.Add(time.Hour)), Addresses: "10.0.0.9-10.0.0.12 ns/x"}}
			}},
			count: 4, want: "10.0.0.9-10.0.0.12",
		},
		"what rests for its name, of another size": {
			pool: []func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) {
				o.Status.Cooling = []v1alpha1.CoolingGroup{{Until: metav1.NewTime(grantstest.Noon.Add(time.Hour)), Addresses: "10.0.0.9-10.0.0.12 ns/x"}}
			}},
			count: 3, want: "10.0.0.1-10.0.0.3",
		},
		"what it remembers": {ask: []func(*v1alpha1.IPAllocation){grantstest.WithBlock("10.0.0.40/30")}, count: 4, want: "10.0.0.40-10.0.0.43"},
		"an annotation that a user wrote": {
			ask:   []func(*v1alpha1.IPAllocation){withRecordOnly("10.0.0.0/8")},
			count: 4, want: "10.0.0.1-10.0.0.4",
		},
		"a record that a restore took the finalizer off": {ask: []func(*v1alpha1.IPAllocation){withRecordOnly("10.0.0.40/30")}, count: 4, want: "10.0.0.40-10.0.0.43"},
		"one of more than it asks for":                   {ask: []func(*v1alpha1.IPAllocation){withRecordOnly("10.0.0.32/28")}, count: 4, want: "10.0.0.1-10.0.0.4"},
		"one of what is not handed out":                  {ask: []func(*v1alpha1.IPAllocation){withRecordOnly("10.0.0.60/30")}, count: 4, want: "10.0.0.1-10.0.0.4"},
		"one of what another has": {
			there: func(p *grants.PoolState) {
				grantstest.ObserveAllocation(p, "y", 1, grantstest.WithBlock("10.0.0.41/32"))
			},
			ask: []func(*v1alpha1.IPAllocation){withRecordOnly("10.0.0.40/30")}, count: 4, want: "10.0.0.42-10.0.0.45",
		},
		"one of what is kept for a name": {
			pool: []func(*v1alpha1.NetworkPool){grantstest.WithPreAllocation("vip", "10.0.0.41")}, ask: []func(*v1alpha1.IPAllocation){withRecordOnly("10.0.0.40/30")}, count: 4, want: "10.0.0.42-10.0.0.45",
		},
		"its pinned range before that": {
			ask: []func(*v1alpha1.IPAllocation){withRecordOnly("10.0.0.40/30"), grantstest.WithPinnedRange("10.0.0.20", "10.0.0.23")}, count: 4, want: "10.0.0.20-10.0.0.23",
		},
		"what its status says": {ask: []func(*v1alpha1.IPAllocation){grantstest.WithAllocatedStatus("10.0.0.40", "10.0.0.44")}, count: 4, want: "10.0.0.40-10.0.0.44"},
		"what its status says, and another has": {
			there: func(p *grants.PoolState) {
				grantstest.ObserveAllocation(p, "y", 4, grantstest.WithBlock("10.0.0.44/30"))
			},
			ask: []func(*v1alpha1.IPAllocation){grantstest.WithAllocatedStatus("10.0.0.40", "10.0.0.44")}, want: "the status shows 10.0.0.40-10.0.0.44, but 10.0.0.44/30 of it is held by IPAllocation ns/y",
		},
		"a pool of prefixes": {
			pool: []func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) {
				o.Spec.Addresses, o.Spec.AllocationPrefixLength = []string{"10.0.0.0/24"}, new(int32(28))
			}},
			count: 4, want: "hands out prefixes of /28",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.60", tt.pool...)
			if tt.there != nil {
				tt.there(p)
			}
			c := grantstest.ObserveAllocation(p, "x", tt.count, tt.ask...)
			_, full, _ := p.Planner.FindAvailable(c)
			r, refusal := p.Planner.ChooseRange(c)
			var got string
			if refusal != nil {
				got = refusal.Message
			} else {
				got = r.From().String() + "-" + r.To().String()
			}
			if !strings.Contains(got, strings.ReplaceAll(tt.want, "/32-", "-")) {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if (full == nil) != (refusal == nil) {
				t.Errorf("before that it says %v", full)
			}
		})
	}
}

// TestOverlappingAdoption checks that two allocations that overlapped before this manager both keep their blocks and
// report that, and delay no other claimant.
func TestOverlappingAdoption(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.60")
	p.Quarantine.Adopting = true
	x := grantstest.ObserveAllocation(p, "x", 4, grantstest.WithAllocatedStatus("10.0.0.1", "10.0.0.4"))
	y := grantstest.ObserveAllocation(p, "y", 4, grantstest.WithAllocatedStatus("10.0.0.4", "10.0.0.7"))
	z := grantstest.ObserveAllocation(p, "z", 4)
	for _, c := range []*grants.Claimant{x, y} {
		if p.Queues.ToWrite[c.Owner.UID] == nil || p.Inventory.OverlapMessageFor(c) == "" {
			t.Errorf("%s: among those with something to do: %v, overlap %q", c.Owner.Name, p.Queues.ToWrite[c.Owner.UID] != nil, p.Inventory.OverlapMessageFor(c))
		}
	}
	if n := p.Space.Ledger.Counts(); n.Allocated != 7 || n.Owners != 2 {
		t.Errorf("%+v", n)
	}
	if p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll); p.Grants.ByClaimant[z.Owner.UID] == nil || p.Grants.ByClaimant[x.Owner.UID] != nil {
		t.Errorf("granted: %v", p.Grants.ByClaimant)
	}
	// The end of one is the end of the overlap of the other.
	y = grantstest.ObserveAllocation(p, "y", 4, grantstest.WithAllocatedStatus("10.0.0.4", "10.0.0.7"), grantstest.WithBlock("10.0.0.4/30"), func(o *v1alpha1.IPAllocation) { o.ResourceVersion = "2" })
	p.ForgetClaimant(x.Owner.UID)
	if text := p.Inventory.OverlapMessageFor(y); text != "" || !p.Space.Ledger.IsInSpace(y.CurrentRange()) {
		t.Errorf("still: %s", text)
	}
	if r, _ := p.Space.Ledger.TakeBlock(3); r.From() != netip.MustParseAddr("10.0.0.1") {
		t.Errorf("the addresses that only x had are not free: %s", r)
	}
}

// TestListedAddressesFitIntoAnObject checks the size of the listed addresses: etcd takes no object of more than 1.5
// MiB.
func TestListedAddressesFitIntoAnObject(t *testing.T) {
	for in, want := range map[string]int{
		"10.0.0.0/29": 8, "10.0.0.0/16": 65536, "10.0.0.0/8": 65536, "255.255.0.0/16": 65536,
		"2001:db8::/120": 256, "2001:db8::/64": 65536, "2001:db8:1111:2222:3333:4444:5555::/112": 35472,
	} {
		r, err := poolutil.ParseRange(in)
		if err != nil {
			t.Fatal(err)
		}
		if got := blocks.ListedAddressCount(r); got != want {
			t.Errorf("%s: %d addresses, want %d", in, got, want)
		}
		text := 0
		for _, a := range poolutil.Enumerate(r)[:blocks.ListedAddressCount(r)] {
			text += len(a) + 3
		}
		if text > blocks.MaxAddressListBytes {
			t.Errorf("%s: %d bytes", in, text)
		}
	}
}

// TestEditedStatusIsNoEvidence checks that a status that a user has changed is no evidence against the record of the
// allocation (R8).
func TestEditedStatusIsNoEvidence(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.60")
	c := grantstest.ObserveAllocation(p, "x", 4, grantstest.WithBlock("10.0.0.8/30"), grantstest.WithAllocatedStatus("10.0.0.1", "10.0.0.4"))
	if got := c.CurrentRange(); got != (netipx.RangeOfPrefix(netip.MustParsePrefix("10.0.0.8/30"))) {
		t.Errorf("it has %s", got)
	}
	if _, known := p.Space.Ledger.FindFact(ledger.Key{Source: ledger.SourceObject, UID: c.Owner.UID}); known {
		t.Error("what the status says counts as taken")
	}
	if r, refusal := p.Planner.ChooseRange(c); refusal != nil || r != c.RecordedRange {
		t.Errorf("it is given %s, %v", r, refusal)
	}
}
