package allocator

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// stateOfPool returns the state of a pool that no other goroutine uses.
func stateOfPool(p *grants.Pool) *grants.PoolState {
	m := p.Lock()
	m.Unlock()
	return m
}

// newAllocatorWith returns an allocator that has a pool.
func newAllocatorWith(p *grants.PoolState) *Allocator {
	a := New(Options{})
	a.pools.byKey[p.Base.Key] = grants.NewPool(p)
	return a
}

func walkedEntries(a *Allocator, from string) []string {
	var out []string
	a.WalkEntries(grantstest.PoolKey, netip.MustParseAddr(from), func(h grants.TakenRange) bool {
		text := fmt.Sprintf("%s use=%d %s %s", h.Range, h.Use, h.Kind, h.Name)
		if h.Cluster != "" {
			text += " of " + h.Cluster
		}
		if !h.Until.IsZero() {
			text += h.Until.UTC().Format(" until 15:04")
		}
		if len(h.OtherOwners) > 0 {
			text += fmt.Sprint(" others ", h.OtherOwners)
		}
		out = append(out, text)
		return true
	})
	return out
}

func TestWalkEntries(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.0/24", grantstest.WithPreAllocation("boss", "10.0.0.5"), grantstest.WithCooling("10.0.0.9", "gone"), func(o *v1alpha1.NetworkPool) {
		o.Status.Held = []v1alpha1.HeldRange{{First: "10.0.0.30", Last: "10.0.0.31", Reason: v1alpha1.MovedReason, Namespace: "ns", Name: "moved"}}
	})
	grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress("10.0.0.1"), func(c *ipamv1.IPAddressClaim) { c.Spec.ClusterName = "prod" })
	grantstest.ObserveAddress(p, "a", "10.0.0.1", "uid-a") // the same owner, twice on record
	grantstest.ObserveClaim(p, "b", 0, grantstest.WithRecordedAddress("10.0.0.2"))
	grantstest.ObserveClaim(p, "twin", 0, grantstest.WithRecordedAddress("10.0.0.2"))
	grantstest.ObserveAddress(p, "lost", "10.0.0.3", "uid-of-none")
	grantstest.ObserveAllocation(p, "lb", 4, grantstest.WithBlock("10.0.0.16/30"), func(o *v1alpha1.IPAllocation) { o.Spec.TenantClusterRef.Name = "edge" })
	grantstest.ObserveAllocation(p, "vms", 4, grantstest.WithBlock("10.0.0.20/30"), grantstest.ForNodes)
	grantstest.ObserveAddress(p, "far", "10.9.9.9", "uid-far")
	grantstest.ObserveClaim(p, "far", 0)
	p.Excluded.ExcludeRange(netipx.MustParseIPRange("10.0.0.40-10.0.0.40"), pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: "ns", Name: "beside"})
	want := []string{
		"10.0.0.1-10.0.0.1 use=0 IPAddressClaim a of prod",
		"10.0.0.2-10.0.0.2 use=7 IPAddressClaim b others [IPAddressClaim ns/twin]",
		"10.0.0.3-10.0.0.3 use=6 IPAddress lost",
		"10.0.0.5-10.0.0.5 use=8  boss",
		"10.0.0.9-10.0.0.9 use=9  gone until 13:00",
		"10.0.0.16-10.0.0.19 use=1 IPAllocation lb of edge",
		"10.0.0.20-10.0.0.23 use=2 IPAllocation vms",
		"10.0.0.30-10.0.0.31 use=10  moved",
		"10.0.0.40-10.0.0.40 use=12  NetworkPool ns/beside",
		"10.9.9.9-10.9.9.9 use=0 IPAddressClaim far",
	}
	a := newAllocatorWith(p)
	if d := cmp.Diff(want, walkedEntries(a, "0.0.0.0")); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if d := cmp.Diff(want[5:], walkedEntries(a, "10.0.0.18")); d != "" {
		t.Errorf("from the middle of a block, -want +got:\n%s", d)
	}
	if got := walkedEntries(newAllocatorWith(grants.NewPoolState(pools.Key{Name: "other"}, claimantKinds, grants.NewQuota(func(pools.Key) {}))), "0.0.0.0"); got != nil {
		t.Errorf("of a pool that is not there: %v", got)
	}
	v := a.PoolViews()
	if len(v) != 1 || v[0].Counts.Allocated != 11 || !v[0].Holder || v[0].UnitBits != 32 {
		t.Errorf("views: %+v", v)
	}
}

// TestWalkLeases checks that the view of a lease shows which Services have its ports, which host announces its address,
// and that it is being deleted, and that the view of the pool shows how many leases name it and what it gives.
func TestWalkLeases(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.0/24", func(o *v1alpha1.NetworkPool) { o.Spec.Leases = &v1alpha1.Leases{QuotaPerNamespace: ptr.To(int32(2))} })
	web := func(o *v1alpha1.IPLease) {
		o.Status.Ports = []v1alpha1.LeasedPort{{Protocol: "TCP", Port: 80, Service: "web"}}
		meta.SetStatusCondition(&o.Status.Conditions, metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.AllocatedReason})
	}
	grantstest.ObserveLease(p, "shown", grantstest.WithLeasedAddress("10.0.0.1"), web, grantstest.WithAnnounced(metav1.ConditionTrue, v1alpha1.AnnouncedReason))
	grantstest.ObserveLease(p, "down", grantstest.WithLeasedAddress("10.0.0.2"), web, grantstest.WithAnnounced(metav1.ConditionFalse, v1alpha1.NoHostReason), grantstest.WithLeaseDeletion)
	grantstest.ObserveLease(p, "idle", grantstest.WithLeasedAddress("10.0.0.3"))
	grantstest.ObserveLease(p, "waits")
	grantstest.ObserveClaim(p, "machine", 0, grantstest.WithRecordedAddress("10.0.0.4"))
	var got []string
	a := newAllocatorWith(p)
	a.WalkEntries(grantstest.PoolKey, netip.IPv4Unspecified(), func(h grants.TakenRange) bool {
		c := metav1.Condition{}
		if h.AnnouncedCondition != nil {
			c = *h.AnnouncedCondition
		}
		got = append(got, fmt.Sprint(h.Name, " ", h.Ports, " ", c.Status, " ", c.Reason, " ", h.Deleting))
		return true
	})
	want := []string{"shown [TCP/80 web] True Announced false", "down [TCP/80 web] False NoHost true", "idle []   false", "machine []   false"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if v := a.PoolViews()[0]; v.LeaseCount != 4 || !v.LeasesEnabled || ptr.Deref(v.LeaseQuota, 0) != 2 {
		t.Errorf("%d leases, gives them: %t, quota %v", v.LeaseCount, v.LeasesEnabled, v.LeaseQuota)
	}
}

// TestWalkInChunks checks that ranges that do not fit into one period under the lock are all seen, once and in order.
func TestWalkInChunks(t *testing.T) {
	const n = 3*grants.ViewChunkSize + 1
	a := newAllocatorWith(grantstest.NewPoolWithClaims(t, n))
	next := netip.MustParseAddr("10.0.0.1")
	a.WalkEntries(grantstest.PoolKey, netip.IPv4Unspecified(), func(h grants.TakenRange) bool {
		if h.Range.From() != next {
			t.Fatalf("%s comes where %s is due", h.Range, next)
		}
		next = next.Next()
		return true
	})
	if want := netip.MustParseAddr("10.0.1.130"); next != want {
		t.Errorf("it ended before %s instead of %s", next, want)
	}
	seen := 0
	a.WalkEntries(grantstest.PoolKey, netip.IPv4Unspecified(), func(grants.TakenRange) bool { seen++; return seen < 200 })
	if seen != 200 {
		t.Errorf("%d were visited after it was stopped at 200", seen)
	}
}

func TestWalkWaiters(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.0/30")
	const n = 2*grants.ViewChunkSize + 3
	for i := range n {
		grantstest.ObserveClaim(p, fmt.Sprintf("w%04d", i), 0, func(c *ipamv1.IPAddressClaim) {
			if i == 1 {
				c.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse, Reason: "PoolExhausted", Message: "full"}}
			}
		})
	}
	i := 0
	newAllocatorWith(p).WalkWaiters(grantstest.PoolKey, func(w grants.WaitingClaimant) bool {
		want := grants.WaitingClaimant{Kind: "IPAddressClaim", Namespace: "ns", Name: fmt.Sprintf("w%04d", i), Since: grantstest.Noon}
		if i == 1 {
			want.Reason, want.Message = "PoolExhausted", "full"
		}
		if d := cmp.Diff(want, w); d != "" {
			t.Fatalf("the one in place %d, -want +got:\n%s", i, d)
		}
		i++
		return true
	})
	if i != n {
		t.Errorf("%d of %d were seen", i, n)
	}
}

// BenchmarkWalk measures the walk of a pool with 100,000 claims that have an address, and how long at most a grant
// waits for it: locked is how long the pool is locked at once, the median, since other work runs on this machine too.
func BenchmarkWalk(b *testing.B) {
	const n = 100_000
	p := grantstest.NewPoolWithClaims(b, n)
	a := newAllocatorWith(p)
	for b.Loop() {
		seen := 0
		a.WalkEntries(grantstest.PoolKey, netip.IPv4Unspecified(), func(grants.TakenRange) bool { seen++; return true })
		if seen != n {
			b.Fatalf("%d ranges", seen)
		}
	}
	b.StopTimer()
	var took []time.Duration
	buffer := make([]grants.TakenRange, 0, grants.ViewChunkSize)
	for from := netip.IPv4Unspecified(); from.IsValid(); {
		start := time.Now()
		buffer = p.AppendTakenRanges(from, buffer[:0])
		took = append(took, time.Since(start))
		from = netip.Addr{}
		if len(buffer) == grants.ViewChunkSize {
			from = buffer[grants.ViewChunkSize-1].Range.To().Next()
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs-locked")
}

func BenchmarkViews(b *testing.B) {
	a := newAllocatorWith(grantstest.NewPoolWithClaims(b, 100_000))
	for b.Loop() {
		if a.PoolViews()[0].Counts.Allocated != 100_000 {
			b.Fatal("miscounted")
		}
	}
}
