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
)

// costs are the states of a pool in which one turn under its lock could cost more than its claims, by name. Each gives
// a pool n of them.
var costs = map[string]struct {
	pool   func(*v1alpha1.NetworkPool)
	filled func(m *grants.Memory, n int)
}{
	"all have an address": {filled: func(m *grants.Memory, n int) { have(m, n) }},
	"as many wait": {filled: func(m *grants.Memory, n int) {
		have(m, n)
		wait(m, n)
	}},
	"as many wait for a pool that is paused": {
		pool: func(o *v1alpha1.NetworkPool) { o.Annotations = map[string]string{clusterv1.PausedAnnotation: ""} },
		filled: func(m *grants.Memory, n int) {
			have(m, n)
			wait(m, n)
		},
	},
	"as many wait for a pool that is closed after a move": {
		pool: func(o *v1alpha1.NetworkPool) {
			o.Status.Held = []v1alpha1.HeldRange{{First: "10.200.0.1", Last: "10.200.0.1", Reason: v1alpha1.MovedReason, ID: "x"}}
		},
		filled: func(m *grants.Memory, n int) {
			have(m, n)
			wait(m, n)
		},
	},
	"all are being moved, and as many wait": {filled: func(m *grants.Memory, n int) {
		have(m, n, ends, isMoved)
		wait(m, n)
	}},
	"all are held after a move": {
		pool: func(o *v1alpha1.NetworkPool) {
			for i := range 1024 {
				o.Status.Held = append(o.Status.Held, v1alpha1.HeldRange{First: nth(2 * i).String(), Last: nth(2 * i).String(), Reason: v1alpha1.MovedReason, ID: fmt.Sprint(i)})
			}
		},
		filled: func(m *grants.Memory, n int) { have(m, n, ends, isMoved) },
	},
	"all are held after a move, each in a range of its own": {filled: haveHeld},
	"as many wait for a pool that is being deleted": {
		pool: func(o *v1alpha1.NetworkPool) { o.DeletionTimestamp = &metav1.Time{Time: noon} },
		filled: func(m *grants.Memory, n int) {
			have(m, n)
			wait(m, n)
		},
	},
	"all are being deleted": {filled: func(m *grants.Memory, n int) { have(m, n, ends) }},
	"all are being deleted, and rest": {
		pool:   func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](60) },
		filled: func(m *grants.Memory, n int) { have(m, n, ends) },
	},
	"as many IPAllocations want a range that is in use": {filled: func(m *grants.Memory, n int) {
		have(m, n)
		for i := range n {
			seeBlock(m, fmt.Sprint("pinned-", i), int32(n), pinned("10.0.0.0", nth(n-1).String()))
		}
	}},
	"all remember one address": {filled: func(m *grants.Memory, n int) {
		for i := range n {
			see(m, fmt.Sprint("copy-", i), i, remembers("10.0.0.1"))
		}
	}},
	"as many IPAddresses have no claim": {filled: func(m *grants.Memory, n int) {
		have(m, n)
		for i := range n {
			seeAddress(m, fmt.Sprint("lost-", i), nth(n+i).String(), "gone")
		}
	}},
}

// No state of a pool makes a turn cost its claims times those that wait: with four times as many it costs about four
// times as much. Counted is what is allocated, and how often a Cluster is read.
func TestTurnCostsNoSquare(t *testing.T) {
	const few, times, most = 256, 4, 7
	for name, tc := range costs {
		t.Run(name, func(t *testing.T) {
			reads := &clusterReads{}
			turn := func(n int) (bytes uint64, reading int) {
				cost := ^uint64(0)
				for range 3 { // others allocate too: the least is what it takes
					a := New(Options{Client: reads})
					m := memoryOf(tc.pool)
					tc.filled(m, n)
					reads.n = 0
					cost = min(cost, allocatedBy(func() { takeTurn(t.Context(), a, m) }))
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

// frees counts how often it is asked what the end of a claim makes free.
type frees struct {
	grants.Kind

	asked *int
}

func (f frees) Releasable(m *grants.Memory, c *grants.Claimant) netipx.IPRange {
	*f.asked++
	return f.Kind.Releasable(m, c)
}

// Of claims whose addresses are to rest, the first turn looks up once what each has, and not for each comparison. The turns after
// it look at those alone of which they note the rest: no more than can be handed out.
func TestReleasesAreOrderedByWhatIsKnown(t *testing.T) {
	const n = 16 * grants.MaxJobs
	asked := 0
	a, m := New(Options{Client: &clusterReads{}}), memoryOf(costs["all are being deleted, and rest"].pool)
	have(m, n, ends)
	for _, c := range m.Claimants {
		c.Kind = frees{c.Kind, &asked}
	}
	if takeTurn(t.Context(), a, m); asked < n || asked > 6*n {
		t.Errorf("of %d claims it is asked %d times what they make free", n, asked)
	}
	for _, c := range m.Todo { // those that were handed out end
		release(m, c)
	}
	asked = 0
	if takeTurn(t.Context(), a, m); asked < grants.MaxJobs || asked > 6*grants.MaxJobs {
		t.Errorf("it is asked %d times what claims make free, to note the rest of %d", asked, grants.MaxJobs)
	}
}

// BenchmarkTurn is what a turn takes under the lock of a pool, by its state and its claims: the first one, and those after it.
func BenchmarkTurn(b *testing.B) {
	for name, tc := range costs {
		for _, n := range []int{1000, 4000, 50_000} {
			b.Run(fmt.Sprint(name, "/", n), func(b *testing.B) {
				a := New(Options{Client: &clusterReads{}})
				m := memoryOf(tc.pool)
				tc.filled(m, n)
				begin := time.Now()
				takeTurn(b.Context(), a, m)
				first := time.Since(begin)
				for b.Loop() {
					takeTurn(b.Context(), a, m)
				}
				b.ReportMetric(float64(first.Nanoseconds()), "first-ns")
			})
		}
	}
}

// takeTurn does what a reconcile does under the lock of a pool, and commits nothing.
func takeTurn(ctx context.Context, a *Allocator, m *grants.Memory) {
	admission := a.admission(ctx, m, noon)
	clear(m.ToTell)
	a.planBatch(m, noon, admission)
	m.GiveBack(admission)
	m.CoolReleases(noon, a.releases(ctx, m))
	m.Prepare(noon)
	m.Due(noon, grants.MaxJobs-m.Jobs, a.OrphanGrace, admission, a.releases(ctx, m))
	m.EndsOfMoves(noon, grants.MaxJobs-m.Jobs)
	m.NextWake(noon, 0)
}

// allocatedBy is how many bytes are allocated meanwhile.
func allocatedBy(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// memoryOf is the memory of a pool of 2^24 addresses.
func memoryOf(change func(*v1alpha1.NetworkPool)) *grants.Memory {
	o := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pool", UID: "pool-uid", ResourceVersion: "10", Generation: 1}}
	o.Spec = v1alpha1.NetworkPoolSpec{CIDR: "10.0.0.0/8", AllocateReservedIPAddresses: true}
	o.Status.Allocator = &v1alpha1.AllocatorStatus{Holder: "me", Term: 3}
	if change != nil {
		change(o)
	}
	m := grants.New(testKey, kinds, grants.NewQuota(func(pools.Key) {}))
	m.Holder, m.TriedOnce, m.Term = true, true, 3
	m.SetBase(o)
	m.LoadCooling(o.PoolStatus())
	return m
}

// nth is an address of such a pool.
func nth(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}) }

// have has so many claims of a Cluster have an IPAddress each, the first ones of the pool.
func have(m *grants.Memory, n int, change ...func(*ipamv1.IPAddressClaim)) {
	for i := range n {
		c := newClaim(fmt.Sprint("has-", i), 0, append([]func(*ipamv1.IPAddressClaim){ofCluster("c"), remembers(nth(i).String())}, change...)...)
		m.Observe(claims.Of(c))
		seeAddress(m, c.Name, nth(i).String(), c.UID)
	}
}

// haveHeld has so many claims, and as many ranges that are held apart, be moved: each claim has one of them.
func haveHeld(m *grants.Memory, n int) {
	o := m.Base.DeepCopyObject().(*v1alpha1.NetworkPool)
	for i := range n {
		at := nth(2 * i)
		c := newClaim(fmt.Sprint("has-", i), 0, ofCluster("c"), remembers(at.String()), ends, isMoved)
		m.Observe(claims.Of(c))
		seeAddress(m, c.Name, at.String(), c.UID)
		o.Status.Held = append(o.Status.Held, v1alpha1.HeldRange{First: at.String(), Last: at.String(), Reason: v1alpha1.MovedReason, ID: fmt.Sprint(i)})
	}
	m.SetBase(o)
	m.LoadCooling(o.PoolStatus())
}

// wait has so many claims wait for an address.
func wait(m *grants.Memory, n int) {
	for i := range n {
		see(m, fmt.Sprint("waits-", i), 1, ofCluster("c"))
	}
}

// clusterReads has a Cluster of every name, and counts how often one is read.
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
