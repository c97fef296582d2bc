package grants_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// withLeaseRecord sets the record of a lease, as it comes back without our finalizer.
func withLeaseRecord(address string) func(*v1alpha1.IPLease) {
	return func(o *v1alpha1.IPLease) { o.Annotations = map[string]string{v1alpha1.AddressAnnotation: address} }
}

func inNamespace(ns string) func(*v1alpha1.IPLease) {
	return func(o *v1alpha1.IPLease) { o.Namespace = ns }
}

func TestChooseLease(t *testing.T) { // A7, H24
	quota := func(n int32) func(*v1alpha1.NetworkPool) {
		return func(o *v1alpha1.NetworkPool) { o.Spec.Leases = &v1alpha1.Leases{QuotaPerNamespace: ptr.To(n)} }
	}
	ranges := func(all ...string) func(*v1alpha1.NetworkPool) {
		return func(o *v1alpha1.NetworkPool) { o.Spec.Addresses = all }
	}
	withLeases := func(o *v1alpha1.NetworkPool) { o.Spec.Leases = &v1alpha1.Leases{} }
	none := func(o *v1alpha1.NetworkPool) { o.Spec.Leases = nil }
	for name, c := range map[string]struct {
		pool  []func(*v1alpha1.NetworkPool)
		there func(*grants.PoolState)
		ask   []func(*v1alpha1.IPLease)
		want  string // the address, or a part of the refusal
	}{
		"the first":      {want: "10.0.0.1"},
		"a pool of none": {pool: []func(*v1alpha1.NetworkPool){none}, want: "gives no leases: its spec.leases is not set"},
		"of which it has one": {
			pool: []func(*v1alpha1.NetworkPool){none}, ask: []func(*v1alpha1.IPLease){grantstest.WithLeasedAddress("10.0.0.7")}, want: "10.0.0.7",
		},
		"a full quota": {
			pool: []func(*v1alpha1.NetworkPool){quota(1)}, there: func(p *grants.PoolState) { grantstest.ObserveLease(p, "y", grantstest.WithLeasedAddress("10.0.0.1")) },
			want: "the leases of namespace ns have as many addresses of NetworkPool ns/pool as its spec.leases.quotaPerNamespace allows: 1;",
		},
		"another namespace's quota": {
			pool: []func(*v1alpha1.NetworkPool){quota(1)}, there: func(p *grants.PoolState) {
				grantstest.ObserveLease(p, "y", grantstest.WithLeasedAddress("10.0.0.1"), inNamespace("other"))
			}, want: "10.0.0.2",
		},
		"claims and blocks are no leases": {
			pool: []func(*v1alpha1.NetworkPool){quota(1)}, there: func(p *grants.PoolState) {
				grantstest.ObserveAllocation(p, "b", 1, grantstest.WithBlock("10.0.0.1/32"))
				grantstest.ObserveClaim(p, "c", 0, grantstest.WithRecordedAddress("10.0.0.2"))
			}, want: "10.0.0.3",
		},
		"a quota of none": {pool: []func(*v1alpha1.NetworkPool){quota(0)}, want: "quotaPerNamespace allows: 0"},
		"what it has over the quota": {
			pool: []func(*v1alpha1.NetworkPool){quota(0)}, ask: []func(*v1alpha1.IPLease){grantstest.WithLeasedAddress("10.0.0.7"), grantstest.WithShownAddress("")}, want: "10.0.0.7",
		},
		"the next range": {
			pool: []func(*v1alpha1.NetworkPool){ranges("10.0.0.1", "10.0.1.1-10.0.1.2")}, there: func(p *grants.PoolState) { grantstest.ObserveLease(p, "y", grantstest.WithLeasedAddress("10.0.0.1")) }, want: "10.0.1.1",
		},
		"a range before it, that is free again": {
			pool: []func(*v1alpha1.NetworkPool){ranges("10.0.0.1", "10.0.1.1-10.0.1.2")}, there: func(p *grants.PoolState) { grantstest.ObserveLease(p, "y", grantstest.WithLeasedAddress("10.0.1.1")) }, want: "10.0.0.1",
		},
		"all ranges are full": {
			pool: []func(*v1alpha1.NetworkPool){ranges("10.0.0.1", "10.0.1.1")}, there: func(p *grants.PoolState) {
				grantstest.ObserveLease(p, "y", grantstest.WithLeasedAddress("10.0.0.1"))
				grantstest.ObserveLease(p, "z", grantstest.WithLeasedAddress("10.0.1.1"))
			}, want: "has no free address",
		},
		"the address it asks for": {ask: []func(*v1alpha1.IPLease){grantstest.WithLeaseAddress("10.0.0.9")}, want: "10.0.0.9"},
		"before its name's": {
			pool: []func(*v1alpha1.NetworkPool){grantstest.WithPreAllocation("x", "10.0.0.25")}, ask: []func(*v1alpha1.IPLease){grantstest.WithLeaseAddress("10.0.0.9")}, want: "10.0.0.9",
		},
		"its name's": {pool: []func(*v1alpha1.NetworkPool){grantstest.WithPreAllocation("x", "10.0.0.25")}, want: "10.0.0.25"},
		"another name's": {
			pool: []func(*v1alpha1.NetworkPool){grantstest.WithPreAllocation("vip", "10.0.0.25")}, ask: []func(*v1alpha1.IPLease){grantstest.WithLeaseAddress("10.0.0.25")},
			want: "the requested address 10.0.0.25 is held by a preAllocation for claims named vip; wait until it is released, or create the lease again with another spec.address",
		},
		"no address":      {ask: []func(*v1alpha1.IPLease){grantstest.WithLeaseAddress("10.0.0.300")}, want: `spec.address "10.0.0.300" is not an IP address`},
		"one elsewhere":   {ask: []func(*v1alpha1.IPLease){grantstest.WithLeaseAddress("10.0.0.77")}, want: "NetworkPool ns/pool does not hand out spec.address 10.0.0.77: it is outside the pool; spec.address is immutable"},
		"one of a family": {ask: []func(*v1alpha1.IPLease){grantstest.WithLeaseAddress("fd00::1")}, want: "NetworkPool ns/pool does not hand out spec.address fd00::1: it is of another address family than the pool"},
		"another's":       {there: func(p *grants.PoolState) { grantstest.ObserveLease(p, "y", grantstest.WithLeasedAddress("10.0.0.9")) }, ask: []func(*v1alpha1.IPLease){grantstest.WithLeaseAddress("10.0.0.9")}, want: "is held by IPLease ns/y"},
		"a claim's":       {there: func(p *grants.PoolState) { grantstest.ObserveAddress(p, "c", "10.0.0.9", "uid-c") }, ask: []func(*v1alpha1.IPLease){grantstest.WithLeaseAddress("10.0.0.9")}, want: "is held by IPAddress ns/c"},
		"a record that a restore took the finalizer off": {ask: []func(*v1alpha1.IPLease){withLeaseRecord("10.0.0.40")}, want: "10.0.0.40"},
		"such a record beyond the quota": {
			pool: []func(*v1alpha1.NetworkPool){quota(0)}, ask: []func(*v1alpha1.IPLease){withLeaseRecord("10.0.0.40")}, want: "quotaPerNamespace allows: 0",
		},
		"one of what another has": {
			there: func(p *grants.PoolState) { grantstest.ObserveLease(p, "y", grantstest.WithLeasedAddress("10.0.0.40")) }, ask: []func(*v1alpha1.IPLease){withLeaseRecord("10.0.0.40")}, want: "10.0.0.41",
		},
		"one of many addresses":      {ask: []func(*v1alpha1.IPLease){withLeaseRecord("10.0.0.40/30")}, want: "10.0.0.1"},
		"its spec.address before it": {ask: []func(*v1alpha1.IPLease){withLeaseRecord("10.0.0.40"), grantstest.WithLeaseAddress("10.0.0.9")}, want: "10.0.0.9"},
		"what its status says":       {ask: []func(*v1alpha1.IPLease){grantstest.WithShownAddress("10.0.0.40")}, want: "10.0.0.40"},
		"what its status says, and another has": {
			there: func(p *grants.PoolState) {
				grantstest.ObserveAllocation(p, "b", 4, grantstest.WithBlock("10.0.0.40/30"))
			}, ask: []func(*v1alpha1.IPLease){grantstest.WithShownAddress("10.0.0.40")},
			want: "the status shows 10.0.0.40, which is held by IPAllocation ns/b",
		},
		"what rests for its name": {
			pool: []func(*v1alpha1.NetworkPool){grantstest.WithCooling("10.0.0.9", "x")}, want: "10.0.0.9",
		},
		"a pool of prefixes": {
			pool: []func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) { o.Spec.AllocationPrefixLength = ptr.To[int32](28) }},
			ask:  []func(*v1alpha1.IPLease){grantstest.WithLeasedAddress("10.0.0.17"), grantstest.WithShownAddress("")}, want: "hands out prefixes of /28, not single addresses",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.60", append([]func(*v1alpha1.NetworkPool){withLeases}, c.pool...)...)
			if c.there != nil {
				c.there(p)
			}
			r, refusal := p.Planner.ChooseRange(grantstest.ObserveLease(p, "x", c.ask...))
			var got string
			if refusal != nil {
				got = refusal.Message
			} else {
				got = r.From().String()
			}
			if got != c.want && (refusal == nil || !strings.Contains(got, c.want)) {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestLeasesOutliveTheManager checks that a manager that takes a pool over has the existing leases, each with its
// address: by its record, or where a move left the record behind, by its status. They count for the quota of their
// namespace, and no other lease gets their address.
func TestLeasesOutliveTheManager(t *testing.T) { // A16, A7
	moved := func(o *v1alpha1.IPLease) { o.Annotations, o.Finalizers, o.Status.Address = nil, nil, "10.0.0.2" }
	listed := grantstest.NewPool(t, "10.0.0.1-10.0.0.4") // it decodes
	list := &grants.ListedObjects{Claimants: []*grants.Claimant{
		grantstest.ObserveLease(listed, "a", grantstest.WithLeasedAddress("10.0.0.1")), grantstest.ObserveLease(listed, "b", moved), grantstest.ObserveLease(listed, "c", grantstest.WithLeasedAddress("10.0.0.3"), inNamespace("other"), func(o *v1alpha1.IPLease) { o.UID = "uid-other" }),
	}}
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.4", func(o *v1alpha1.NetworkPool) { o.Spec.Leases = &v1alpha1.Leases{QuotaPerNamespace: ptr.To[int32](2)} })
	p.RebuildLedger(list)
	for uid, want := range map[types.UID]string{"uid-a": "10.0.0.1", "uid-b": "10.0.0.2", "uid-other": "10.0.0.3"} {
		if r, refusal := p.Planner.ChooseRange(p.Claimants.ByUID[uid]); refusal != nil || r.From().String() != want {
			t.Errorf("lease %s gets %v, %v, and had %s", uid, r, refusal, want)
		}
	}
	if r, refusal := p.Planner.ChooseRange(grantstest.ObserveLease(p, "more", inNamespace("other"))); refusal != nil || r.From().String() != "10.0.0.4" {
		t.Errorf("a new one gets %v, %v", r, refusal)
	}
}
