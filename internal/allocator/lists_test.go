package allocator

import (
	"context"
	"reflect"
	"slices"
	"strconv"
	"testing"

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
)

// existing is what the API server lists.
type existing struct {
	claims []*ipamv1.IPAddressClaim
	addrs  []*ipamv1.IPAddress
	blocks []*v1alpha1.IPAllocation
}

func (e *existing) List(_ context.Context, of client.Object, _ string, visit func(client.Object)) (string, error) {
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

// hasBlock adds an IPAllocation that has a block.
func (e *existing) hasBlock(pool pools.Key, name, record string) {
	e.blocks = append(e.blocks, &v1alpha1.IPAllocation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pool.Namespace, Name: name, UID: types.UID("uid-" + name), ResourceVersion: "5",
			Finalizers: []string{v1alpha1.IPAllocationFinalizer}, Annotations: map[string]string{v1alpha1.AddressAnnotation: record},
		},
		Spec: v1alpha1.IPAllocationSpec{PoolRef: v1alpha1.PoolReference{Kind: pool.Kind, Name: pool.Name}},
	})
}

// has adds a claim of a pool and its IPAddress.
func (e *existing) has(pool pools.Key, name, ip string) {
	meta := metav1.ObjectMeta{Namespace: pool.Namespace, Name: name, UID: types.UID("uid-" + name), ResourceVersion: "5"}
	e.claims = append(e.claims, &ipamv1.IPAddressClaim{ObjectMeta: meta, Spec: ipamv1.IPAddressClaimSpec{PoolRef: pool.Ref()}})
	meta.UID = types.UID("address-" + name)
	meta.OwnerReferences = []metav1.OwnerReference{{Kind: claims.Name, Name: name, UID: types.UID("uid-" + name)}}
	e.addrs = append(e.addrs, &ipamv1.IPAddress{ObjectMeta: meta, Spec: ipamv1.IPAddressSpec{
		ClaimRef: ipamv1.IPAddressClaimReference{Name: name}, PoolRef: pool.Ref(), Address: ip,
	}})
}

// A takeover of a small pool must not copy the whole fleet.
func TestListKeepsThePoolAlone(t *testing.T) {
	other, e := testKey, &existing{}
	other.Name = "other"
	e.has(testKey, "a", "10.0.0.1")
	e.has(other, "b", "10.0.0.1")
	e.hasBlock(testKey, "a", "10.0.0.8/29")
	e.hasBlock(other, "b", "10.0.0.8/29")
	l := lister{lists: e, blockOf: (&Allocator{}).blockOf}
	for key, want := range map[pools.Key]string{testKey: "a", other: "b"} {
		found, err := l.list(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if len(found.Claimants) != 2 || len(found.Attached) != 1 || found.Attached[0].Name != want ||
			found.Claimants[0].Owner.Name != want || found.Claimants[1].Owner.Name != want || found.Claimants[0].Kind == found.Claimants[1].Kind {
			t.Errorf("%s: %d claimants and %d IPAddresses, want those of %s", key, len(found.Claimants), len(found.Attached), want)
		}
	}
}

// The lists of a takeover run beside each other, and what each of them finds is there in the end: one that is missing
// has an address that would be given again.
func TestListsOfKindsRunBesideEachOther(t *testing.T) {
	const n = 20_000
	e := &existing{}
	for i := range n {
		name := strconv.Itoa(i)
		e.has(testKey, name, "10.0.0.1")
		e.hasBlock(testKey, name, "10.0.0.8/29")
	}
	l := lister{lists: e, blockOf: (&Allocator{}).blockOf}
	found, err := l.list(t.Context(), testKey)
	if err != nil {
		t.Fatal(err)
	}
	if len(found.Claimants) != 2*n || len(found.Attached) != n {
		t.Errorf("%d claimants and %d IPAddresses were found, not %d and %d", len(found.Claimants), len(found.Attached), 2*n, n)
	}
}

// audience notes about whom events are recorded.
type audience struct{ told []string }

func (r *audience) Eventf(regarding, _ runtime.Object, _, _, _, _ string, _ ...any) {
	r.told = append(r.told, reflect.TypeOf(regarding).Elem().Name()+" "+regarding.(client.Object).GetName())
}

func TestAudit(t *testing.T) {
	tests := map[string]struct {
		reason string
		// change is done to a pool with two claims, a and b, that have an address each and are known.
		change func(*existing, *Allocator)
		// first and second are duplicates, orphans and drift as two audits in a row report them.
		first, second [3]float64
		// told are those that an audit tells of a duplicate, kind and name, as often as it does.
		told []string
	}{
		"AllIsWell": {reason: "two claims with an address each"},
		"Duplicate": {
			reason: "a duplicate counts at once",
			change: func(e *existing, _ *Allocator) { e.addrs[1].Spec.Address = e.addrs[0].Spec.Address },
			first:  [3]float64{1, 0, 0}, second: [3]float64{1, 0, 0},
			told: []string{"IPAddressClaim a", "IPAddressClaim b"},
		},
		"ByHand": {
			reason: "an address that somebody made by hand beside that of a claim",
			change: func(e *existing, a *Allocator) {
				e.has(testKey, "c", "10.0.0.1")
				e.claims, e.addrs[2].OwnerReferences = e.claims[:2], nil
				a.Observe(e.addrs[2])
			},
			first: [3]float64{1, 0, 0}, second: [3]float64{1, 0, 0},
			told: []string{"IPAddress c", "IPAddressClaim a"},
		},
		"OtherPool": {
			reason: "the same address in another pool is another address",
			change: func(e *existing, a *Allocator) {
				other := testKey
				other.Name = "other"
				e.has(other, "c", "10.0.0.1")
				a.Observe(e.addrs[2])
			},
		},
		"Orphan": {
			reason: "an address without a claim may be one that is on its way, unless it is found again",
			change: func(e *existing, _ *Allocator) { e.claims = slices.Delete(e.claims, 0, 1) },
			second: [3]float64{0, 1, 0},
		},
		"Drift": {
			reason: "an address that the memory has missed",
			change: func(e *existing, _ *Allocator) { e.has(testKey, "c", "10.0.0.3") },
			second: [3]float64{0, 0, 1},
		},
		"BlockOverAddress": {
			reason: "a block that has the address of a claim",
			change: func(e *existing, a *Allocator) {
				e.hasBlock(testKey, "x", "10.0.0.0/30")
				a.Observe(e.blocks[0])
			},
			first: [3]float64{2, 0, 0}, second: [3]float64{2, 0, 0},
			told: []string{"IPAddressClaim a", "IPAddressClaim b", "IPAllocation x", "IPAllocation x"},
		},
		"BlockBesideAddress": {
			reason: "a block with addresses of its own",
			change: func(e *existing, a *Allocator) {
				e.hasBlock(testKey, "x", "10.0.0.4/30")
				a.Observe(e.blocks[0])
			},
		},
		"BlocksOverlap": {
			reason: "two blocks, a long one and one in it, and one beside both",
			change: func(e *existing, a *Allocator) {
				for name, r := range map[string]string{"x": "10.0.0.16-10.0.0.40", "y": "10.0.0.20/30", "z": "10.0.0.24/30", "w": "10.0.0.41/32"} {
					e.hasBlock(testKey, name, r)
					a.Observe(e.blocks[len(e.blocks)-1])
				}
			},
			first: [3]float64{2, 0, 0}, second: [3]float64{2, 0, 0},
			told: []string{"IPAllocation x", "IPAllocation x", "IPAllocation y", "IPAllocation z"},
		},
		"UnknownBlock": {
			reason: "a block that the memory has missed",
			change: func(e *existing, _ *Allocator) { e.hasBlock(testKey, "x", "10.0.0.8/29") },
			second: [3]float64{0, 0, 1},
		},
		"Unreadable": {
			reason: "an address that is none concerns only itself",
			change: func(e *existing, a *Allocator) { e.has(testKey, "c", "nonsense"); a.Observe(e.addrs[2]) },
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			e := &existing{}
			e.has(testKey, "a", "10.0.0.1")
			e.has(testKey, "b", "10.0.0.2")
			said := &audience{}
			a := New(Options{Lists: e, Recorder: said})
			for i := range e.claims {
				a.Observe(e.claims[i])
				a.Observe(e.addrs[i])
			}
			if tc.change != nil {
				tc.change(e, a)
			}
			au := &Auditor{Allocator: a}
			for i, want := range [][3]float64{tc.first, tc.second} {
				said.told = nil
				if err := au.audit(t.Context()); err != nil {
					t.Fatal(err)
				}
				got := [3]float64{
					testutil.ToFloat64(metrics.AuditDuplicates), testutil.ToFloat64(metrics.AuditOrphans), testutil.ToFloat64(metrics.AuditDrift),
				}
				if got != want {
					t.Errorf("%s: audit %d reports %v duplicates, orphans and drift, want %v", tc.reason, i+1, got, want)
				}
				if slices.Sort(said.told); !slices.Equal(said.told, tc.told) {
					t.Errorf("%s: audit %d tells %q, want %q", tc.reason, i+1, said.told, tc.told)
				}
			}
		})
	}
}
