package grants_test

import (
	"net/netip"
	"slices"
	"testing"

	"go4.org/netipx"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

func TestBuildView(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) {
		o.Spec.Leases = &v1alpha1.Leases{QuotaPerNamespace: ptr.To[int32](2)}
	})
	grantstest.ObserveAddress(p, "served", "10.0.0.1", "uid-served")
	grantstest.ObserveClaim(p, "served", 0, grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithReadyStatus)
	grantstest.ObserveClaim(p, "waits", 1)
	grantstest.ObserveLease(p, "lease", grantstest.WithLeasedAddress("10.0.0.2"))
	v, exists := p.BuildView()
	if !exists || v.Key != grantstest.PoolKey || v.Counts.Allocated != 2 || v.WaitingCount != 1 || !v.Holder || v.UnitBits != 32 {
		t.Errorf("the view is %+v", v)
	}
	if v.LeaseCount != 1 || !v.LeasesEnabled || *v.LeaseQuota != 2 || v.ParentKey != (pools.Key{}) || !v.Declared.Contains(netip.MustParseAddr("10.0.0.9")) {
		t.Errorf("the view is %+v", v)
	}
	if v, _ := grantstest.NewChildPool(t).BuildView(); v.ParentKey != grantstest.SiteKey {
		t.Errorf("a carved pool has the parent %v", v.ParentKey)
	}
	p.ClearBasePool()
	if v, exists := p.BuildView(); exists {
		t.Errorf("a pool that does not exist has the view %+v", v)
	}
}

func TestLeaseUsageFor(t *testing.T) {
	enabled := func(o *v1alpha1.NetworkPool) { o.Spec.Leases = &v1alpha1.Leases{QuotaPerNamespace: ptr.To[int32](2)} }
	for name, tc := range map[string]struct {
		pool          []func(*v1alpha1.NetworkPool)
		leases        []string
		shown         bool
		used, cooling int64
		waiting       int
		quota         *int32
	}{
		"without leases":    {},
		"leases of before":  {leases: []string{"10.0.0.1"}, shown: true, used: 1},
		"enabled, none yet": {pool: []func(*v1alpha1.NetworkPool){enabled}, shown: true, quota: ptr.To[int32](2)},
		"in use": {
			pool:   []func(*v1alpha1.NetworkPool){enabled, grantstest.WithCooling("10.0.0.9", "gone")},
			leases: []string{"10.0.0.1", "10.0.0.2", ""}, shown: true, used: 2, cooling: 1, waiting: 1, quota: ptr.To[int32](2),
		},
	} {
		p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9", tc.pool...)
		grantstest.ObserveClaim(p, "waits", 0)
		for i, a := range tc.leases {
			var change []func(*v1alpha1.IPLease)
			if a != "" {
				change = append(change, grantstest.WithLeasedAddress(a))
			}
			grantstest.ObserveLease(p, string(rune('a'+i)), change...)
		}
		got, shown := p.LeaseUsageFor("ns")
		if shown != tc.shown || got.NamespaceUsed != tc.used || got.CoolingAddresses != tc.cooling || got.WaitingLeases != tc.waiting || ptr.Deref(got.NamespaceQuota, 0) != ptr.Deref(tc.quota, 0) {
			t.Errorf("%s: %v, %+v", name, shown, got)
		}
		if other, _ := p.LeaseUsageFor("other"); other.NamespaceUsed != 0 {
			t.Errorf("%s: another namespace has %d", name, other.NamespaceUsed)
		}
	}
}

// TestAppendTakenRanges checks that the ranges of a pool are read from an address on, each with the strongest reason
// why it is not free.
func TestAppendTakenRanges(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.0/24", grantstest.WithPreAllocation("boss", "10.0.0.5"), grantstest.WithCooling("10.0.0.9", "gone"))
	grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress("10.0.0.1"))
	grantstest.ObserveClaim(p, "b", 0, grantstest.WithRecordedAddress("10.0.0.2"))
	grantstest.ObserveClaim(p, "twin", 0, grantstest.WithRecordedAddress("10.0.0.2"))
	grantstest.ObserveAllocation(p, "lb", 4, grantstest.WithBlock("10.0.0.16/30"))
	p.Excluded.ExcludeRange(netipx.MustParseIPRange("10.0.0.40-10.0.0.40"), pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: "ns", Name: "beside"})
	for from, want := range map[string][]grants.RangeUse{
		"0.0.0.0":   {grants.UseClaim, grants.UseConflict, grants.UsePreAllocated, grants.UseCooling, grants.UseLoadBalancer, grants.UseOtherPool},
		"10.0.0.18": {grants.UseLoadBalancer, grants.UseOtherPool},
		"10.0.0.41": nil,
	} {
		var got []grants.RangeUse
		for _, r := range p.AppendTakenRanges(netip.MustParseAddr(from), nil) {
			got = append(got, r.Use)
		}
		if !slices.Equal(got, want) {
			t.Errorf("from %s: %v, not %v", from, got, want)
		}
	}
}

// TestAppendWaiting checks that the claimants that wait are read in the order in which they are served, from the one
// that was read last.
func TestAppendWaiting(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
	for i, name := range []string{"first", "second", "third"} {
		grantstest.ObserveClaim(p, name, i)
	}
	after := p.Claimants.ByUID["uid-first"]
	for name, tc := range map[string]struct {
		after *grants.Claimant
		want  []string
	}{
		"all":      {want: []string{"first", "second", "third"}},
		"the rest": {after: after, want: []string{"second", "third"}},
		"the end":  {after: p.Claimants.ByUID["uid-third"]},
	} {
		got, last := p.AppendWaiting(tc.after, nil)
		var names []string
		for _, w := range got {
			names = append(names, w.Name)
		}
		if !slices.Equal(names, tc.want) || last.Owner.Name != "third" {
			t.Errorf("%s: %v until %s", name, names, last.Owner.Name)
		}
	}
}
