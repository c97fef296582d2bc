package allocator

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// costCases are the states of a pool, by name, in which one reconcile under its lock could cost more than in proportion
// to its claims. Each fills a pool with n of them.
var costCases = map[string]struct {
	pool   func(*v1alpha1.NetworkPool)
	filled func(m *grants.PoolState, n int)
}{
	"all have an address": {filled: func(m *grants.PoolState, n int) { addServedClaims(m, n) }},
	"as many wait": {filled: func(m *grants.PoolState, n int) {
		addServedClaims(m, n)
		addWaitingClaims(m, n)
	}},
	"as many wait for a pool that is paused": {
		pool: func(o *v1alpha1.NetworkPool) { o.Annotations = map[string]string{clusterv1.PausedAnnotation: ""} },
		filled: func(m *grants.PoolState, n int) {
			addServedClaims(m, n)
			addWaitingClaims(m, n)
		},
	},
	"as many wait for a pool that is closed after a move": {
		pool: func(o *v1alpha1.NetworkPool) {
			o.Status.Held = []v1alpha1.HeldRange{{First: "10.200.0.1", Last: "10.200.0.1", Reason: v1alpha1.MovedReason, ID: "x"}}
		},
		filled: func(m *grants.PoolState, n int) {
			addServedClaims(m, n)
			addWaitingClaims(m, n)
		},
	},
	"all are being moved, and as many wait": {filled: func(m *grants.PoolState, n int) {
		addServedClaims(m, n, grantstest.WithDeletionTimestamp, grantstest.MarkedAsMoved)
		addWaitingClaims(m, n)
	}},
	"all are held after a move": {
		pool: func(o *v1alpha1.NetworkPool) {
			for i := range 1024 {
				o.Status.Held = append(o.Status.Held, v1alpha1.HeldRange{First: nthAddress(2 * i).String(), Last: nthAddress(2 * i).String(), Reason: v1alpha1.MovedReason, ID: fmt.Sprint(i)})
			}
		},
		filled: func(m *grants.PoolState, n int) {
			addServedClaims(m, n, grantstest.WithDeletionTimestamp, grantstest.MarkedAsMoved)
		},
	},
	"all are held after a move, each in a range of its own": {filled: addHeldRanges},
	"as many wait for a pool that is being deleted": {
		pool: func(o *v1alpha1.NetworkPool) { o.DeletionTimestamp = &metav1.Time{Time: grantstest.Noon} },
		filled: func(m *grants.PoolState, n int) {
			addServedClaims(m, n)
			addWaitingClaims(m, n)
		},
	},
	"all are being deleted": {filled: func(m *grants.PoolState, n int) { addServedClaims(m, n, grantstest.WithDeletionTimestamp) }},
	"all are being deleted, and rest": {
		pool:   func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](60) },
		filled: func(m *grants.PoolState, n int) { addServedClaims(m, n, grantstest.WithDeletionTimestamp) },
	},
	"as many IPAllocations want a range that is in use": {filled: func(m *grants.PoolState, n int) {
		addServedClaims(m, n)
		for i := range n {
			grantstest.ObserveAllocation(m, fmt.Sprint("pinned-", i), int32(n), grantstest.WithPinnedRange("10.0.0.0", nthAddress(n-1).String()))
		}
	}},
	"all remember one address": {filled: func(m *grants.PoolState, n int) {
		for i := range n {
			grantstest.ObserveClaim(m, fmt.Sprint("copy-", i), i, grantstest.WithRecordedAddress("10.0.0.1"))
		}
	}},
	"as many IPAddresses have no claim": {filled: func(m *grants.PoolState, n int) {
		addServedClaims(m, n)
		for i := range n {
			grantstest.ObserveAddress(m, fmt.Sprint("lost-", i), nthAddress(n+i).String(), "gone")
		}
	}},
}

// TestReconcileCostIsNotQuadratic checks that in no state of a pool a reconcile costs the number of its claims times
// the number of those that wait: four times as many cost about four times as much. It counts allocated bytes, and how
// often a Cluster is read.
func TestReconcileCostIsNotQuadratic(t *testing.T) {
	const few, times, most = 256, 4, 7
	for name, tc := range costCases {
		t.Run(name, func(t *testing.T) {
			reads := &clusterReads{}
			turn := func(n int) (bytes uint64, reading int) {
				cost := ^uint64(0)
				for range 3 { // others allocate too: the smallest is the true cost
					a := New(Options{Client: reads})
					m := newLargePool(tc.pool)
					tc.filled(m, n)
					reads.n = 0
					cost = min(cost, allocatedBy(func() { planUnderLock(t.Context(), a, m) }))
				}
				return cost, reads.n
			}
			small, readFew := turn(few)
			large, readMany := turn(times * few)
			if large > most*small {
				t.Errorf("with %d claims a turn allocates %d bytes, with %d it allocates %d: %.1f times as much", few, small, times*few, large, float64(large)/float64(small))
			}
			if readFew != readMany || readMany > 4 {
				t.Errorf("with %d claims of one Cluster that is read %d times, with %d it is read %d times", few, readFew, times*few, readMany)
			}
		})
	}
}

// releasableCounter counts the calls of ReleasableRange.
type releasableCounter struct {
	grants.ClaimantKind

	asked *int
}

func (f releasableCounter) ReleasableRange(m *grants.Inventory, c *grants.Claimant) netipx.IPRange {
	*f.asked++
	return f.ClaimantKind.ReleasableRange(m, c)
}

// TestReleasesAreSortedWithOneLookupEach checks that the first reconcile with released claims whose addresses must rest
// looks up once what each has, and not at each comparison. Later reconciles look it up only for the claims whose rest
// they record: no more than can be dispatched.
func TestReleasesAreSortedWithOneLookupEach(t *testing.T) {
	const n = 16 * grants.MaxJobs
	asked := 0
	a, m := New(Options{Client: &clusterReads{}}), newLargePool(costCases["all are being deleted, and rest"].pool)
	addServedClaims(m, n, grantstest.WithDeletionTimestamp)
	for _, c := range m.Claimants.ByUID {
		c.Kind = releasableCounter{c.Kind, &asked}
	}
	if planUnderLock(t.Context(), a, m); asked < n || asked > 6*n {
		t.Errorf("of %d claims it is asked %d times what they make free", n, asked)
	}
	for _, c := range m.Queues.ToWrite { // those that were dispatched end
		grantstest.EndClaim(m, c)
	}
	asked = 0
	if planUnderLock(t.Context(), a, m); asked < grants.MaxJobs || asked > 6*grants.MaxJobs {
		t.Errorf("it is asked %d times what claims make free, to note the rest of %d", asked, grants.MaxJobs)
	}
}

// BenchmarkReconcile measures a reconcile under the lock of a pool, by its state and its number of claims: the first
// one, and those after it.
func BenchmarkReconcile(b *testing.B) {
	for name, tc := range costCases {
		for _, n := range []int{1000, 4000, 50_000} {
			b.Run(fmt.Sprint(name, "/", n), func(b *testing.B) {
				a := New(Options{Client: &clusterReads{}})
				m := newLargePool(tc.pool)
				tc.filled(m, n)
				begin := time.Now()
				planUnderLock(b.Context(), a, m)
				first := time.Since(begin)
				for b.Loop() {
					planUnderLock(b.Context(), a, m)
				}
				b.ReportMetric(float64(first.Nanoseconds()), "first-ns")
			})
		}
	}
}

// planUnderLock does what a reconcile does under the lock of a pool, and commits nothing.
func planUnderLock(ctx context.Context, a *Allocator, m *grants.PoolState) {
	admission := a.admission.newAdmissionFunc(ctx, m, grantstest.Noon)
	clear(m.Conditions.Unpublished)
	a.planBatch(m, grantstest.Noon, admission)
	m.Grants.EndBlockedGrants(admission)
	m.Releases.CoolReleases(grantstest.Noon, a.admission.newReleaseAdmissionFunc(ctx, m))
	m.PrepareCommit(grantstest.Noon)
	m.ListDueWrites(grantstest.Noon, grants.MaxJobs-m.Queues.ActiveJobs, a.OrphanGrace, admission, a.admission.newReleaseAdmissionFunc(ctx, m))
	m.Moves.UnfinishedMoves(grantstest.Noon, grants.MaxJobs-m.Queues.ActiveJobs)
	m.NextWakeDelay(grantstest.Noon, 0)
}

// allocatedBy returns how many bytes are allocated while f runs.
func allocatedBy(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// newLargePool returns the state of a pool of 2^24 addresses.
func newLargePool(change func(*v1alpha1.NetworkPool)) *grants.PoolState {
	o := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pool", UID: "pool-uid", ResourceVersion: "10", Generation: 1}}
	o.Spec = v1alpha1.NetworkPoolSpec{CIDR: "10.0.0.0/8", AllocateReservedIPAddresses: true}
	o.Status.Allocator = &v1alpha1.AllocatorStatus{Holder: "me", Term: 3}
	if change != nil {
		change(o)
	}
	m := grants.NewPoolState(grantstest.PoolKey, claimantKinds, grants.NewQuota(func(pools.Key) {}))
	m.Term.Holder, m.Term.TakeoverChecked, m.Term.Number = true, true, 3
	m.SetBasePool(o)
	m.LoadCoolingAndHeld(o.PoolStatus())
	return m
}

// nthAddress returns the address with index i of the pool of newLargePool.
func nthAddress(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

// addServedClaims adds n claims of a Cluster that have an IPAddress each, the first ones of the pool.
func addServedClaims(m *grants.PoolState, n int, change ...func(*ipamv1.IPAddressClaim)) {
	for i := range n {
		c := grantstest.NewClaim(fmt.Sprint("has-", i), 0, append([]func(*ipamv1.IPAddressClaim){grantstest.OfCluster("c"), grantstest.WithRecordedAddress(nthAddress(i).String())}, change...)...)
		m.ObserveClaimant(claims.NewClaimant(c))
		grantstest.ObserveAddress(m, c.Name, nthAddress(i).String(), c.UID)
	}
}

// addHeldRanges adds n claims that are being moved, and as many held ranges: each claim has one of them.
func addHeldRanges(m *grants.PoolState, n int) {
	o := m.Base.Pool.DeepCopyObject().(*v1alpha1.NetworkPool)
	for i := range n {
		at := nthAddress(2 * i)
		c := grantstest.NewClaim(fmt.Sprint("has-", i), 0, grantstest.OfCluster("c"), grantstest.WithRecordedAddress(at.String()), grantstest.WithDeletionTimestamp, grantstest.MarkedAsMoved)
		m.ObserveClaimant(claims.NewClaimant(c))
		grantstest.ObserveAddress(m, c.Name, at.String(), c.UID)
		o.Status.Held = append(o.Status.Held, v1alpha1.HeldRange{First: at.String(), Last: at.String(), Reason: v1alpha1.MovedReason, ID: fmt.Sprint(i)})
	}
	m.SetBasePool(o)
	m.LoadCoolingAndHeld(o.PoolStatus())
}

// addWaitingClaims adds n claims that wait for an address.
func addWaitingClaims(m *grants.PoolState, n int) {
	for i := range n {
		grantstest.ObserveClaim(m, fmt.Sprint("waits-", i), 1, grantstest.OfCluster("c"))
	}
}

// clusterReads is an API server that has a Cluster of every name, and counts the reads of Clusters.
type clusterReads struct {
	client.Client

	n int
}

func (r *clusterReads) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	r.n++
	o.SetNamespace(key.Namespace)
	o.SetName(key.Name)
	o.SetUID(types.UID("uid-" + key.Name))
	return nil
}
