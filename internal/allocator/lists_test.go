package allocator

import (
	"context"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// listedObjects are the objects that the API server lists.
type listedObjects struct {
	claims []*ipamv1.IPAddressClaim
	addrs  []*ipamv1.IPAddress
	blocks []*v1alpha1.IPAllocation
}

func (e *listedObjects) List(_ context.Context, of client.Object, _ string, visit func(client.Object)) (string, error) {
	switch of.(type) {
	case *ipamv1.IPAddressClaim:
		each(e.claims, visit)
	case *ipamv1.IPAddress:
		each(e.addrs, visit)
	case *v1alpha1.IPAllocation:
		each(e.blocks, visit)
	}
	return "9", nil
}

func each[O client.Object](objects []O, visit func(client.Object)) {
	for _, o := range objects {
		visit(o)
	}
}

// addBlock adds an IPAllocation that has a block.
func (e *listedObjects) addBlock(pool pools.Key, name, record string) {
	e.blocks = append(e.blocks, &v1alpha1.IPAllocation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pool.Namespace, Name: name, UID: types.UID("uid-" + name), ResourceVersion: "5",
			Finalizers: []string{v1alpha1.IPAllocationFinalizer}, Annotations: map[string]string{v1alpha1.AddressAnnotation: record},
		},
		Spec: v1alpha1.IPAllocationSpec{PoolRef: v1alpha1.PoolReference{Kind: pool.Kind, Name: pool.Name}},
	})
}

// addServedClaim adds a claim of a pool and its IPAddress.
func (e *listedObjects) addServedClaim(pool pools.Key, name, ip string) {
	meta := metav1.ObjectMeta{Namespace: pool.Namespace, Name: name, UID: types.UID("uid-" + name), ResourceVersion: "5"}
	e.claims = append(e.claims, &ipamv1.IPAddressClaim{ObjectMeta: meta, Spec: ipamv1.IPAddressClaimSpec{PoolRef: pool.PoolReference()}})
	meta.UID = types.UID("address-" + name)
	meta.OwnerReferences = []metav1.OwnerReference{{Kind: claims.IPAddressClaimKind, Name: name, UID: types.UID("uid-" + name)}}
	e.addrs = append(e.addrs, &ipamv1.IPAddress{ObjectMeta: meta, Spec: ipamv1.IPAddressSpec{
		ClaimRef: ipamv1.IPAddressClaimReference{Name: name}, PoolRef: pool.PoolReference(), Address: ip,
	}})
}

// TestTakeoverListKeepsOnlyItsPool checks that a takeover of a small pool does not copy the whole fleet.
func TestTakeoverListKeepsOnlyItsPool(t *testing.T) {
	other, e := grantstest.PoolKey, &listedObjects{}
	other.Name = "other"
	e.addServedClaim(grantstest.PoolKey, "a", "10.0.0.1")
	e.addServedClaim(other, "b", "10.0.0.1")
	e.addBlock(grantstest.PoolKey, "a", "10.0.0.8/29")
	e.addBlock(other, "b", "10.0.0.8/29")
	l := sharedPoolLister{source: e, blockFromObject: (&servedScope{Options: &Options{}}).blockFromObject}
	for key, want := range map[pools.Key]string{grantstest.PoolKey: "a", other: "b"} {
		found, err := l.listPool(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if len(found.Claimants) != 2 || len(found.Addresses) != 1 || found.Addresses[0].Name != want ||
			found.Claimants[0].Owner.Name != want || found.Claimants[1].Owner.Name != want || found.Claimants[0].Kind == found.Claimants[1].Kind {
			t.Errorf("%s: %d claimants and %d IPAddresses, want those of %s", key, len(found.Claimants), len(found.Addresses), want)
		}
	}
}

// TestListsOfKindsRunConcurrently checks that the lists of a takeover run concurrently, and that no object of any of
// them is missing in the end: the address of a missing one would be granted again.
func TestListsOfKindsRunConcurrently(t *testing.T) {
	const n = 20_000
	e := &listedObjects{}
	for i := range n {
		name := strconv.Itoa(i)
		e.addServedClaim(grantstest.PoolKey, name, "10.0.0.1")
		e.addBlock(grantstest.PoolKey, name, "10.0.0.8/29")
	}
	l := sharedPoolLister{source: e, blockFromObject: (&servedScope{Options: &Options{}}).blockFromObject}
	found, err := l.listPool(t.Context(), grantstest.PoolKey)
	if err != nil {
		t.Fatal(err)
	}
	if len(found.Claimants) != 2*n || len(found.Addresses) != n {
		t.Errorf("%d claimants and %d IPAddresses were found, not %d and %d", len(found.Claimants), len(found.Addresses), 2*n, n)
	}
}

// stuckLister never answers its first list of claims, whose request a proxy keeps open.
type stuckLister struct {
	listedObjects

	lists int
}

func (l *stuckLister) List(ctx context.Context, of client.Object, namespace string, visit func(client.Object)) (string, error) {
	if _, isClaim := of.(*ipamv1.IPAddressClaim); isClaim {
		if l.lists++; l.lists == 1 {
			<-ctx.Done()
			return "", ctx.Err()
		}
	}
	return l.listedObjects.List(ctx, of, namespace, visit)
}

// TestStuckListEnds checks that a list that is never answered ends, and delays the next list of its namespace no longer
// than documented: that one waits for it, also where the caller of the first has gone.
func TestStuckListEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &stuckLister{}
		e.addServedClaim(grantstest.PoolKey, "a", "10.0.0.1")
		l := sharedPoolLister{source: e, blockFromObject: (&servedScope{Options: &Options{}}).blockFromObject}
		gone, leave := context.WithCancel(t.Context())
		go func() { _, _ = l.listPool(gone, grantstest.PoolKey) }()
		synctest.Wait()
		leave()
		begun := time.Now()
		found, err := l.listPool(t.Context(), grantstest.PoolKey)
		if err != nil || len(found.Claimants) != 1 {
			t.Fatalf("the next list finds %+v: %v", found, err)
		}
		if waited := time.Since(begun); waited != listTimeout {
			t.Errorf("the next list waits for %v, not %v", waited, listTimeout)
		}
	})
}

// eventAudience records the objects for which events are recorded.
type eventAudience struct{ recorded []string }

func (r *eventAudience) Eventf(regarding, _ runtime.Object, _, _, _, _ string, _ ...any) {
	r.recorded = append(r.recorded, reflect.TypeOf(regarding).Elem().Name()+" "+regarding.(client.Object).GetName())
}

func TestRunAudit(t *testing.T) {
	tests := map[string]struct {
		reason string
		// change is made to a pool with two known claims, a and b, that have an address each.
		change func(*listedObjects, *Allocator)
		// first and second are duplicates, orphans and drift as two audits in a row report them.
		first, second [3]float64
		// wantEvents are the kind and name of the objects with an event of a duplicate, once for each event.
		wantEvents []string
	}{
		"AllIsWell": {reason: "two claims with an address each"},
		"Duplicate": {
			reason: "a duplicate counts at once",
			change: func(e *listedObjects, _ *Allocator) { e.addrs[1].Spec.Address = e.addrs[0].Spec.Address },
			first:  [3]float64{1, 0, 0}, second: [3]float64{1, 0, 0},
			wantEvents: []string{"IPAddressClaim a", "IPAddressClaim b"},
		},
		"ByHand": {
			reason: "an address that a user created beside that of a claim",
			change: func(e *listedObjects, a *Allocator) {
				e.addServedClaim(grantstest.PoolKey, "c", "10.0.0.1")
				e.claims, e.addrs[2].OwnerReferences = e.claims[:2], nil
				a.ObserveObject(e.addrs[2])
			},
			first: [3]float64{1, 0, 0}, second: [3]float64{1, 0, 0},
			wantEvents: []string{"IPAddress c", "IPAddressClaim a"},
		},
		"OtherPool": {
			reason: "the same address in another pool is another address",
			change: func(e *listedObjects, a *Allocator) {
				other := grantstest.PoolKey
				other.Name = "other"
				e.addServedClaim(other, "c", "10.0.0.1")
				a.ObserveObject(e.addrs[2])
			},
		},
		"Orphan": {
			reason: "an address without a claim may be one that is on its way, unless it is found again",
			change: func(e *listedObjects, _ *Allocator) { e.claims = slices.Delete(e.claims, 0, 1) },
			second: [3]float64{0, 1, 0},
		},
		"Drift": {
			reason: "an address that the memory has missed",
			change: func(e *listedObjects, _ *Allocator) { e.addServedClaim(grantstest.PoolKey, "c", "10.0.0.3") },
			second: [3]float64{0, 0, 1},
		},
		"BlockOverAddress": {
			reason: "a block that has the address of a claim",
			change: func(e *listedObjects, a *Allocator) {
				e.addBlock(grantstest.PoolKey, "x", "10.0.0.0/30")
				a.ObserveObject(e.blocks[0])
			},
			first: [3]float64{2, 0, 0}, second: [3]float64{2, 0, 0},
			wantEvents: []string{"IPAddressClaim a", "IPAddressClaim b", "IPAllocation x", "IPAllocation x"},
		},
		"BlockBesideAddress": {
			reason: "a block with addresses of its own",
			change: func(e *listedObjects, a *Allocator) {
				e.addBlock(grantstest.PoolKey, "x", "10.0.0.4/30")
				a.ObserveObject(e.blocks[0])
			},
		},
		"BlocksOverlap": {
			reason: "two blocks, a long one and one in it, and one beside both",
			change: func(e *listedObjects, a *Allocator) {
				for name, r := range map[string]string{"x": "10.0.0.16-10.0.0.40", "y": "10.0.0.20/30", "z": "10.0.0.24/30", "w": "10.0.0.41/32"} {
					e.addBlock(grantstest.PoolKey, name, r)
					a.ObserveObject(e.blocks[len(e.blocks)-1])
				}
			},
			first: [3]float64{2, 0, 0}, second: [3]float64{2, 0, 0},
			wantEvents: []string{"IPAllocation x", "IPAllocation x", "IPAllocation y", "IPAllocation z"},
		},
		"UnknownBlock": {
			reason: "a block that the memory has missed",
			change: func(e *listedObjects, _ *Allocator) { e.addBlock(grantstest.PoolKey, "x", "10.0.0.8/29") },
			second: [3]float64{0, 0, 1},
		},
		"Unreadable": {
			reason: "an address that is none concerns only itself",
			change: func(e *listedObjects, a *Allocator) {
				e.addServedClaim(grantstest.PoolKey, "c", "nonsense")
				a.ObserveObject(e.addrs[2])
			},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			e := &listedObjects{}
			e.addServedClaim(grantstest.PoolKey, "a", "10.0.0.1")
			e.addServedClaim(grantstest.PoolKey, "b", "10.0.0.2")
			recorder := &eventAudience{}
			a := New(Options{Lister: e, Recorder: recorder})
			for i := range e.claims {
				a.ObserveObject(e.claims[i])
				a.ObserveObject(e.addrs[i])
			}
			if tc.change != nil {
				tc.change(e, a)
			}
			au := &Auditor{Allocator: a}
			for i, want := range [][3]float64{tc.first, tc.second} {
				recorder.recorded = nil
				if err := au.runAudit(t.Context()); err != nil {
					t.Fatal(err)
				}
				got := [3]float64{
					testutil.ToFloat64(metrics.AuditDuplicates), testutil.ToFloat64(metrics.AuditOrphans), testutil.ToFloat64(metrics.AuditDrift),
				}
				if got != want {
					t.Errorf("%s: audit %d reports %v duplicates, orphans and drift, want %v", tc.reason, i+1, got, want)
				}
				if slices.Sort(recorder.recorded); !slices.Equal(recorder.recorded, tc.wantEvents) {
					t.Errorf("%s: audit %d reports %q, want %q", tc.reason, i+1, recorder.recorded, tc.wantEvents)
				}
			}
		})
	}
}
