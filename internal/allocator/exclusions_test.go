package allocator

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go4.org/netipx"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// newNeighbour returns a pool of the default network that was created so long before noon.
func newNeighbour(name, addresses string, age time.Duration, change ...func(*v1alpha1.NetworkPool)) *v1alpha1.NetworkPool {
	bits := int32(24)
	o := &v1alpha1.NetworkPool{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "10", Generation: 1, Finalizers: []string{v1alpha1.PoolFinalizer},
			CreationTimestamp: metav1.NewTime(grantstest.Noon.Add(-age)),
		},
		Spec: v1alpha1.NetworkPoolSpec{Addresses: []string{addresses}, Prefix: &bits},
	}
	o.Status.Allocator = &v1alpha1.AllocatorStatus{Holder: "me", Term: 1}
	for _, f := range change {
		f(o)
	}
	return o
}

// singlePoolAPI is an API server that has one pool, or none.
type singlePoolAPI struct {
	client.Client
	pool *v1alpha1.NetworkPool
}

func (o *singlePoolAPI) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	if o.pool == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "networkpools"}, key.Name)
	}
	o.pool.DeepCopyInto(obj.(*v1alpha1.NetworkPool))
	return nil
}

// withYieldStatus sets in the status of a pool that it yields to another pool.
func withYieldStatus(other *v1alpha1.NetworkPool, generation int64) func(*v1alpha1.NetworkPool) {
	return func(o *v1alpha1.NetworkPool) {
		o.Status.Yields = append(o.Status.Yields, newYieldedPool(pools.KeyForPool(other), other.UID, generation))
	}
}

// withGrantInFlight adds a grant of an address to the status of a pool.
func withGrantInFlight(name, address string) func(*v1alpha1.NetworkPool) {
	return func(o *v1alpha1.NetworkPool) {
		g := v1alpha1.Grant{Kind: claims.IPAddressClaimKind, Namespace: "ns", Name: name, UID: "uid-" + name, First: address, Last: address}
		o.Status.Allocator.InFlight = append(o.Status.Allocator.InFlight, g)
	}
}

// TestExcludeSharedRanges checks what an older pool may grant of the addresses that it shares with a younger one (R11),
// and what the younger one writes.
func TestExcludeSharedRanges(t *testing.T) {
	older := func(change ...func(*v1alpha1.NetworkPool)) *v1alpha1.NetworkPool {
		return newNeighbour("elder", "10.0.0.1-10.0.0.4", time.Hour, change...)
	}
	widened := func(o *v1alpha1.NetworkPool) { o.Generation = 2 }
	allows := func(o *v1alpha1.NetworkPool) { o.Spec.AllowOverlap = true }
	younger := func(change ...func(*v1alpha1.NetworkPool)) *v1alpha1.NetworkPool {
		return newNeighbour("younger", "10.0.0.3-10.0.0.6", time.Minute, change...)
	}
	has3 := func(l *listedObjects, key pools.Key) { l.addServedClaim(key, "y", "10.0.0.3") }
	tests := map[string]struct {
		reason         string
		older, younger *v1alpha1.NetworkPool
		// listed adds what a list of the younger pool finds.
		listed func(*listedObjects, pools.Key)
		// free are the addresses that the older pool may grant.
		free   []string
		waits  bool
		yields int
	}{
		"NotYet": {
			reason: "nothing says that the younger pool grants no more",
			older:  older(), younger: younger(), free: []string{"10.0.0.1", "10.0.0.2"}, waits: true, yields: 1,
		},
		"ToAnOlderSpec": {
			reason: "what was yielded to an older spec may have been taken back when that spec was changed",
			older:  older(widened), younger: younger(withYieldStatus(older(), 1)), free: []string{"10.0.0.1", "10.0.0.2"}, waits: true, yields: 1,
		},
		"Yielded": {
			reason: "what the younger pool has stays its own; the watch need not have shown it",
			older:  older(), younger: younger(withYieldStatus(older(), 1)), listed: has3, free: []string{"10.0.0.1", "10.0.0.2", "10.0.0.4"}, yields: 1,
		},
		"InFlight": {
			reason: "what was granted before it yielded may become an IPAddress yet",
			older:  older(), younger: younger(withYieldStatus(older(), 1), withGrantInFlight("y", "10.0.0.4")), listed: has3, free: []string{"10.0.0.1", "10.0.0.2"}, yields: 1,
		},
		"InFlightBeyond": {
			reason: "what was granted before the other pool was narrowed may become an IPAddress yet",
			older:  older(), younger: newNeighbour("younger", "10.0.0.9", time.Minute, withGrantInFlight("y", "10.0.0.4")), free: []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"},
		},
		"Allowed": {
			reason: "its owner says that both may give the same",
			older:  older(), younger: younger(allows), free: []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"},
		},
		"AllowedHere": {
			reason: "as above; the younger one still yields",
			older:  older(allows), younger: younger(), free: []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"}, yields: 1,
		},
		"Deleting": {
			reason: "an older pool that is being deleted is known at a start, too",
			older:  older(func(o *v1alpha1.NetworkPool) { o.DeletionTimestamp = &o.CreationTimestamp }), younger: younger(),
			free: []string{"10.0.0.1", "10.0.0.2"}, waits: true, yields: 1,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			lists := &listedObjects{}
			if tc.listed != nil {
				tc.listed(lists, pools.KeyForPool(tc.younger))
			}
			api := &singleWriteAPI{}
			a := New(Options{Client: api, Live: api, Lister: lists, ManagerID: "me", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
			a.FencePools(t.Context(), []v1alpha1.Pool{tc.older.DeepCopy(), tc.younger.DeepCopy()})
			for _, o := range []*v1alpha1.NetworkPool{tc.older, tc.younger} {
				stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(o))).SetBasePool(o.DeepCopy())
			}
			p, q := stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(tc.older))), stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(tc.younger)))
			a.relations.updateOverlap(q)
			a.exclusions.excludeSharedRanges(t.Context(), grants.NewPool(p))
			a.exclusions.excludeSharedRanges(t.Context(), grants.NewPool(q))
			if free := grantableAddresses(p); !slices.Equal(free, tc.free) {
				t.Errorf("%s: free are %v, not %v", tc.reason, free, tc.free)
			}
			if (p.Overlap.WaitMessage != "") != tc.waits {
				t.Errorf("%s: it waits: %q", tc.reason, p.Overlap.WaitMessage)
			}
			if len(q.Overlap.Yields) != tc.yields {
				t.Errorf("%s: the younger one yields to %v", tc.reason, q.Overlap.Yields)
			}
			if !tc.waits {
				return
			}
			// W29: a manager serves the younger pool, and sets what it yields in its status.
			served := tc.younger.DeepCopy()
			served.ResourceVersion, served.Status.Yields = "11", q.Overlap.Yields
			a.relations.publishDeclaration(served)
			q.SetBasePool(served)
			a.exclusions.excludeSharedRanges(t.Context(), grants.NewPool(p))
			if free := grantableAddresses(p); p.Overlap.WaitMessage != "" || len(free) != 4 {
				t.Errorf("%s: it waits when that is served: %q; free are %v", tc.reason, p.Overlap.WaitMessage, free)
			}
		})
	}
}

// TestYieldedRangesAreGrantedAgain checks that a pool grants again when it has seen that it may, and when no address
// that it has listed then blocks it (R11).
func TestYieldedRangesAreGrantedAgain(t *testing.T) {
	older := newNeighbour("elder", "10.0.0.1-10.0.0.4", time.Hour)
	moved := newNeighbour("elder", "10.0.1.1-10.0.1.4", time.Hour, func(o *v1alpha1.NetworkPool) { o.Generation, o.ResourceVersion = 2, "20" })
	narrowed := func(o *v1alpha1.NetworkPool) { o.Status.ObservedGeneration = 1 }
	tests := map[string]struct {
		reason string
		// known is the older pool as it was seen, nil if it was not; exists is what a live read shows.
		known, exists *v1alpha1.NetworkPool
		// yielded is the generation that the pool yielded to; listed adds what a list of the older pool finds.
		yielded int64
		listed  func(*listedObjects, pools.Key)
		closed  bool
		yields  int
		free    []string
	}{
		"Unseen":     {reason: "the watch may be behind", yielded: 1, exists: older, closed: true, yields: 1, free: []string{"10.0.0.3", "10.0.0.4"}},
		"Gone":       {reason: "no manager grants from it", yielded: 1, free: []string{"10.0.0.3", "10.0.0.4"}},
		"ALaterSpec": {reason: "it leaves the addresses alone", yielded: 1, known: moved, exists: moved, free: []string{"10.0.0.3", "10.0.0.4"}},
		"AnEarlier":  {reason: "another manager has seen more", yielded: 3, known: moved, exists: moved, closed: true, yields: 1, free: []string{"10.0.0.3", "10.0.0.4"}},
		"AnotherOfIts": {
			reason: "it was made anew under its name", yielded: 1, exists: newNeighbour("elder", "10.0.1.1", 0, func(o *v1alpha1.NetworkPool) { o.UID = "another" }),
			free: []string{"10.0.0.3", "10.0.0.4"},
		},
		"ItsClaimsStay": {
			reason: "what it has is its own, though no watch has shown it; a manager that takes over must list it, too", yielded: 1, known: moved, exists: moved,
			listed: func(l *listedObjects, key pools.Key) { l.addServedClaim(key, "e", "10.0.0.3") }, yields: 1, free: []string{"10.0.0.4"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			api, lists := &singlePoolAPI{pool: tc.exists}, &listedObjects{}
			if tc.listed != nil {
				tc.listed(lists, pools.KeyForPool(older))
			}
			a := New(Options{Client: api, Live: api, Lister: lists, ManagerID: "me", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
			o := newNeighbour("younger", "10.0.0.3-10.0.0.4", time.Minute, withYieldStatus(older, tc.yielded), narrowed)
			a.relations.publishDeclaration(o)
			p := stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(o)))
			p.SetBasePool(o)
			if tc.known != nil {
				a.relations.publishDeclaration(tc.known)
				stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(tc.known))).SetBasePool(tc.known)
			}
			for range 2 { // the second run changes nothing
				a.exclusions.excludeSharedRanges(t.Context(), grants.NewPool(p))
				reason, _ := p.Status.ClosedReason(grantstest.Noon)
				if free := grantableAddresses(p); len(p.Overlap.Yields) != tc.yields || (reason == v1alpha1.OverlapReason) != tc.closed || !slices.Equal(free, tc.free) {
					t.Errorf("%s: it yields to %v, is closed: %q, and has %v free", tc.reason, p.Overlap.Yields, reason, free)
				}
			}
		})
	}
}

// TestYieldIsNotLowered checks that a yield is not written for an earlier generation than before: a
// manager may have seen an older version than another manager.
func TestYieldIsNotLowered(t *testing.T) {
	older := newNeighbour("elder", "10.0.0.1-10.0.0.4", time.Hour)
	api := &singleWriteAPI{}
	a := New(Options{Client: api, Live: api, Lister: &listedObjects{}, ManagerID: "me", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
	o := newNeighbour("younger", "10.0.0.3-10.0.0.6", time.Minute, withYieldStatus(older, 3))
	for _, obj := range []*v1alpha1.NetworkPool{older, o} {
		a.relations.publishDeclaration(obj)
		stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(obj))).SetBasePool(obj)
	}
	p := stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(o)))
	a.exclusions.excludeSharedRanges(t.Context(), grants.NewPool(p))
	if len(p.Overlap.Yields) != 1 || p.Overlap.Yields[0].Generation != 3 {
		t.Errorf("it yields to %v", p.Overlap.Yields)
	}
}

// grantableAddresses returns the addresses that a pool may grant.
func grantableAddresses(p *grants.PoolState) (out []string) {
	for r := range p.Space.Ledger.FreeRanges() {
		for ip := r.From(); r.Contains(ip); ip = ip.Next() {
			out = append(out, ip.String())
		}
	}
	return out
}

// TestAddressesOfNarrowedPoolAreNotGranted checks that the addresses that the claims of a narrowed pool keep are not
// granted by another pool of the network.
func TestAddressesOfNarrowedPoolAreNotGranted(t *testing.T) {
	api := &singleWriteAPI{}
	a := New(Options{Client: api, Live: api, Lister: &listedObjects{}, ManagerID: "me", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
	o, narrowed := newNeighbour("pool", "10.0.0.1-10.0.0.2", time.Hour), newNeighbour("narrowed", "10.0.0.9", time.Minute)
	for _, obj := range []*v1alpha1.NetworkPool{o, narrowed} {
		a.relations.publishDeclaration(obj)
		stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(obj))).SetBasePool(obj)
	}
	grantstest.ObserveAddress(stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(narrowed))), "kept", "10.0.0.1", "uid-kept")
	p := stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(o)))
	a.exclusions.excludeSharedRanges(t.Context(), grants.NewPool(p))
	r, free := p.Space.Ledger.TakeUnit()
	if !free || grantstest.AddressText(r) != "10.0.0.2" {
		t.Errorf("it would give %s", grantstest.AddressText(r))
	}
	p.Space.Ledger.UndoTake(r)
	seesEnd := stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(narrowed)))
	seesEnd.ForgetAddress("address-kept", types.NamespacedName{Namespace: "ns", Name: "kept"})
	a.exclusions.excludeSharedRanges(t.Context(), grants.NewPool(p))
	if n := p.Space.Ledger.Counts().Available; n != 2 {
		t.Errorf("%d are available when that is released", n)
	}
}

// TestPinsAreExcluded checks that an address that a pool may grant to one name only, though its spec reserves it or
// leaves it out of tenantAllocation, is excluded from other pools like every address that it may grant.
func TestPinsAreExcluded(t *testing.T) { // W33
	pinned := func(o *v1alpha1.NetworkPool) { o.Spec.PreAllocations = v1alpha1.PreAllocations{"vip": "10.0.0.1"} }
	kinds := map[string]func(*v1alpha1.NetworkPool){
		"Pinned": func(*v1alpha1.NetworkPool) {},
		"Reserved": func(o *v1alpha1.NetworkPool) {
			o.Spec.Reserved = []v1alpha1.ReservedRange{{Addresses: "10.0.0.1"}}
		},
		"OutsideTenantAllocation": func(o *v1alpha1.NetworkPool) {
			o.Spec.TenantAllocation = &v1alpha1.TenantAllocation{Start: "10.0.0.2", End: "10.0.0.2"}
		},
	}
	narrowed := newNeighbour("narrowed", "10.0.0.9", time.Hour, func(o *v1alpha1.NetworkPool) { o.Generation = 2 })
	statuses := map[string]func(*v1alpha1.NetworkPool){
		"MadeSince":      func(*v1alpha1.NetworkPool) {},
		"YieldedToItWas": withYieldStatus(narrowed, 1),
	}
	for kind, change := range kinds {
		for name, withStatus := range statuses {
			t.Run(kind+name, func(t *testing.T) {
				api := &singleWriteAPI{}
				a := New(Options{Client: api, Live: api, Lister: &listedObjects{}, ManagerID: "me", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
				o := newNeighbour("pool", "10.0.0.1-10.0.0.2", time.Minute, pinned, change, withStatus)
				for _, obj := range []*v1alpha1.NetworkPool{narrowed.DeepCopy(), o} {
					a.relations.publishDeclaration(obj)
					stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(obj))).SetBasePool(obj)
				}
				grantstest.ObserveAddress(stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(narrowed))), "kept", "10.0.0.1", "uid-kept")
				p := stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(o)))
				a.exclusions.excludeSharedRanges(t.Context(), grants.NewPool(p))
				vip := claims.NewClaimant(grantstest.NewClaim("vip", 0))
				p.ObserveClaimant(vip)
				if message := p.Inventory.NoFreeAddressRefusal().Message; !strings.Contains(message, "or NetworkPool ns/narrowed has them too") {
					t.Errorf("where nothing is free, claims get the refusal %s", message)
				}
				_, refusal := p.Planner.ChooseRange(p.Claimants.ByUID[vip.Owner.UID])
				if refusal == nil || !strings.Contains(refusal.Message, "NetworkPool ns/narrowed") {
					t.Errorf("the refusal of the claim is %v", refusal)
				}
			})
		}
	}
}

// TestRangesOfUnreconciledPoolsAreExcluded checks that the grants that another pool had in flight when its spec was
// seen are excluded from then on, whichever version of the pool was reconciled by then.
func TestRangesOfUnreconciledPoolsAreExcluded(t *testing.T) { // W34
	was := func(change ...func(*v1alpha1.NetworkPool)) *v1alpha1.NetworkPool {
		return newNeighbour("elder", "10.0.0.1-10.0.0.4", time.Hour, change...)
	}
	narrowed := func(change ...func(*v1alpha1.NetworkPool)) *v1alpha1.NetworkPool {
		return newNeighbour("elder", "10.0.0.9", time.Hour, append(change, func(o *v1alpha1.NetworkPool) { o.Generation, o.ResourceVersion = 2, "20" })...)
	}
	deleted := func(o *v1alpha1.NetworkPool) { o.DeletionTimestamp = &o.CreationTimestamp }
	tests := map[string]struct {
		reason string
		// fenced is what a list shows at the start, watched what the watch shows, reconciled the version that the pool
		// was reconciled with.
		fenced, watched, reconciled *v1alpha1.NetworkPool
		want                        []string
	}{
		"Watched": {
			reason: "the first list of pools failed", watched: narrowed(withGrantInFlight("x", "10.0.0.1")), want: []string{"10.0.0.2"},
		},
		"DeletedAtTheStart": {
			reason: "it is not taken over, and known all the same", fenced: narrowed(deleted, withGrantInFlight("x", "10.0.0.1")), want: []string{"10.0.0.2"},
		},
		"ReconciledBefore": {
			reason: "another manager granted it before the spec was changed", reconciled: was(), watched: narrowed(withGrantInFlight("x", "10.0.0.1")), want: []string{"10.0.0.2"},
		},
		"WatchBehind": {
			reason: "our own write is newer than what the watch shows", reconciled: narrowed(func(o *v1alpha1.NetworkPool) { o.ResourceVersion = "30" }),
			watched: narrowed(withGrantInFlight("x", "10.0.0.1")), want: []string{"10.0.0.1", "10.0.0.2"},
		},
		"InvalidSpec": {
			reason: "it is unknown what such a pool may grant", watched: narrowed(withGrantInFlight("x", "10.0.0.1"), func(o *v1alpha1.NetworkPool) { o.Spec.Gateway = "192.0.2.1" }),
			want: []string{"10.0.0.2"},
		},
		"LostBlock": {
			reason: "a carved pool has it open, and its IPAllocation is gone",
			watched: narrowed(func(o *v1alpha1.NetworkPool) {
				o.Spec = v1alpha1.NetworkPoolSpec{Carve: &v1alpha1.Carve{PoolRef: v1alpha1.PoolReference{Kind: v1alpha1.NetworkPoolKind, Name: "parent"}, PrefixLength: 32}}
				o.Status.Blocks = []v1alpha1.CarvedBlock{{Range: "10.0.0.1/32", Allocation: "elder-1", UID: "u"}}
			}),
			want: []string{"10.0.0.2"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			api := &singleWriteAPI{}
			a := New(Options{Client: api, Live: api, Lister: &listedObjects{}, ManagerID: "me", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
			if tc.fenced != nil {
				a.FencePools(t.Context(), []v1alpha1.Pool{tc.fenced})
			}
			if tc.reconciled != nil {
				stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(tc.reconciled))).SetBasePool(tc.reconciled)
			}
			if tc.watched != nil {
				a.ObservePool(tc.watched)
			}
			o := newNeighbour("pool", "10.0.0.1-10.0.0.2", time.Minute, withYieldStatus(was(), 1))
			a.relations.publishDeclaration(o)
			p := stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(o)))
			p.SetBasePool(o)
			a.exclusions.excludeSharedRanges(t.Context(), grants.NewPool(p))
			if free := grantableAddresses(p); !slices.Equal(free, tc.want) {
				t.Errorf("%s: free are %v, not %v", tc.reason, free, tc.want)
			}
		})
	}
}

// TestRangesKeptByEditedPoolAreExcluded checks that a pool that was edited, but not reconciled since, keeps the
// addresses that it has in use and in flight: other pools use its new spec at once, and are enqueued before it. The
// older pool is one that it had yielded to.
func TestRangesKeptByEditedPoolAreExcluded(t *testing.T) {
	older := newNeighbour("elder", "10.0.0.1-10.0.0.2", time.Hour)
	was := func(change ...func(*v1alpha1.NetworkPool)) *v1alpha1.NetworkPool {
		return newNeighbour("younger", "10.0.0.1-10.0.0.4", time.Minute, append([]func(*v1alpha1.NetworkPool){withYieldStatus(older, 1)}, change...)...)
	}
	now := func(version string, generation int64, addresses string, change ...func(*v1alpha1.NetworkPool)) *v1alpha1.NetworkPool {
		return was(append(change, func(o *v1alpha1.NetworkPool) {
			o.ResourceVersion, o.Generation, o.Spec.Addresses = version, generation, []string{addresses}
		})...)
	}
	invalid := func(o *v1alpha1.NetworkPool) { o.Spec.Gateway = "192.0.2.1" }
	allows := func(o *v1alpha1.NetworkPool) { o.Spec.AllowOverlap = true }
	again := func(o *v1alpha1.NetworkPool) { o.UID, o.Status = "uid-another", v1alpha1.NetworkPoolStatus{} }
	carved := func(version string, blocks ...string) *v1alpha1.NetworkPool {
		o := was()
		o.Spec = v1alpha1.NetworkPoolSpec{Carve: &v1alpha1.Carve{PoolRef: v1alpha1.PoolReference{Kind: v1alpha1.NetworkPoolKind, Name: "parent"}, PrefixLength: 32}}
		o.ResourceVersion, o.Status.Yields = version, nil
		for i, block := range blocks {
			o.Status.Blocks = append(o.Status.Blocks, v1alpha1.CarvedBlock{Range: block, Prefix: 24, Allocation: fmt.Sprint("b-", i), UID: "u"})
		}
		return o
	}
	kept := []string{"10.0.0.2"}
	for name, tc := range map[string]struct {
		reason string
		was    *v1alpha1.NetworkPool
		// seen are the versions that the watch shows; reconciled is the one that the pool is reconciled with, nil if
		// with none.
		seen       []*v1alpha1.NetworkPool
		reconciled *v1alpha1.NetworkPool
		inFlight   bool
		before     []string
		want       []string
	}{
		"InUse":     {reason: "its claim keeps it", was: was(), seen: []*v1alpha1.NetworkPool{now("20", 2, "10.0.0.9")}, before: kept, want: kept},
		"InFlight":  {reason: "it may become an IPAddress yet", was: was(withGrantInFlight("x", "10.0.0.1")), seen: []*v1alpha1.NetworkPool{now("20", 2, "10.0.0.9", withGrantInFlight("x", "10.0.0.1"))}, inFlight: true, before: kept, want: kept},
		"MadeAgain": {reason: "the claims of the one before keep it", was: was(), seen: []*v1alpha1.NetworkPool{now("20", 1, "10.0.0.9", again)}, before: kept, want: kept},
		"Invalid": {
			reason: "others go by the spec between, with which it was never reconciled", was: was(),
			seen: []*v1alpha1.NetworkPool{now("20", 2, "10.0.0.9"), now("30", 3, "10.0.0.9", invalid)}, reconciled: now("30", 3, "10.0.0.9", invalid), before: kept, want: kept,
		},
		"ClosedBlock": {
			reason: "a block that was lost is open no more, and its claims keep what they have", was: carved("10", "10.0.0.1/32"),
			seen: []*v1alpha1.NetworkPool{carved("20")}, before: kept, want: kept,
		},
		"Allowed": {
			reason: "its owner says that both may give the same, and has edited something else", was: was(allows), seen: []*v1alpha1.NetworkPool{now("20", 2, "10.0.0.1-10.0.0.5", allows)},
			before: []string{"10.0.0.1", "10.0.0.2"}, want: []string{"10.0.0.1", "10.0.0.2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			api := &singleWriteAPI{}
			a := New(Options{Client: api, Live: api, Lister: &listedObjects{}, ManagerID: "me", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
			for _, o := range []*v1alpha1.NetworkPool{older.DeepCopy(), tc.was} {
				a.relations.publishDeclaration(o)
				stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(o))).SetBasePool(o.DeepCopyObject().(v1alpha1.Pool))
			}
			p, y := stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(older))), stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(tc.was)))
			if !tc.inFlight {
				y.Term.Holder = true
				grantstest.ObserveAddress(y, "kept", "10.0.0.1", "uid-kept")
			}
			check := func(when string, want []string) {
				t.Helper()
				a.exclusions.excludeSharedRanges(t.Context(), grants.NewPool(p))
				if free := grantableAddresses(p); !slices.Equal(free, want) {
					t.Errorf("%s, %s: free are %v, not %v", tc.reason, when, free, want)
				}
			}
			check("before", tc.before)
			for _, o := range tc.seen {
				a.ObservePool(o)
				check("edited, not reconciled", tc.want)
			}
			if tc.reconciled != nil {
				y.SetBasePool(tc.reconciled)
				check("reconciled", tc.want)
			}
		})
	}
}

// TestExclusionUsesOneSpecThroughout checks that, when a pool is widened again while another pool computes what it has
// outside of its narrow spec, the narrow spec is used throughout: by the wider one the pool would be a neighbour.
func TestExclusionUsesOneSpecThroughout(t *testing.T) {
	api := &singleWriteAPI{}
	a := New(Options{Client: api, Live: api, Lister: &listedObjects{}, ManagerID: "me", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
	older := newNeighbour("elder", "10.0.0.1-10.0.0.2", time.Hour)
	younger := func(generation int64, addresses string) *v1alpha1.NetworkPool {
		return newNeighbour("younger", addresses, time.Minute, func(o *v1alpha1.NetworkPool) {
			o.Generation, o.ResourceVersion = generation, fmt.Sprint(10*generation)
		})
	}
	see := func(o *v1alpha1.NetworkPool) *grants.PoolState {
		a.relations.publishDeclaration(o)
		m := stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(o)))
		m.Term.Holder = true
		m.SetBasePool(o)
		return m
	}
	p, y := see(older), see(younger(2, "10.0.0.9"))
	grantstest.ObserveAddress(y, "kept", "10.0.0.1", "uid-kept")
	specs, neighbours := a.relations.overlaps.snapshotFor(p.Base.Key)
	if len(neighbours) != 0 {
		t.Fatalf("neighbours are %v", neighbours)
	}
	see(younger(3, "10.0.0.1-10.0.0.9"))
	excluded := map[netipx.IPRange]pools.Key{}
	a.exclusions.excludeRangesUsedOutsideSpec(t.Context(), grants.NewPool(p), specs, excluded)
	if len(excluded) != 1 {
		t.Errorf("kept apart is %v", excluded)
	}
	a.relations.publishDeclaration(younger(2, "10.0.0.9")) // the reconcile of a version that a watch has overtaken
	if _, neighbours := a.relations.overlaps.snapshotFor(p.Base.Key); len(neighbours) != 1 {
		t.Errorf("neighbours are %v when an older version is published", neighbours)
	}
}

// TestVanishedGrantsAreExcluded checks that a grant of another manager that vanished from the status of its pool
// before a watch showed its outcome counts as in use until a list has shown that outcome.
func TestVanishedGrantsAreExcluded(t *testing.T) {
	for name, listed := range map[string]bool{"Listed": true, "NotListed": false} {
		t.Run(name, func(t *testing.T) {
			lists := &listedObjects{}
			api := &singleWriteAPI{}
			options := Options{Client: api, Live: api, Lister: lists, ManagerID: "me", Clock: clocktesting.NewFakeClock(grantstest.Noon)}
			if !listed {
				options.Lister = failingListAPI{}
			}
			a := New(options)
			a.ObservePool(newNeighbour("narrowed", "10.0.0.9", time.Hour, withGrantInFlight("x", "10.0.0.1"), withGrantInFlight("y", "10.0.0.2")))
			later := newNeighbour("narrowed", "10.0.0.9", time.Hour, func(o *v1alpha1.NetworkPool) { o.ResourceVersion = "20" })
			a.ObservePool(later)
			lists.addServedClaim(pools.KeyForPool(later), "y", "10.0.0.2")
			o := newNeighbour("pool", "10.0.0.1-10.0.0.3", time.Minute)
			a.relations.publishDeclaration(o)
			p := stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(o)))
			p.SetBasePool(o)
			a.exclusions.excludeSharedRanges(t.Context(), grants.NewPool(p))
			want := []string{"10.0.0.3"}
			if listed {
				want = []string{"10.0.0.1", "10.0.0.3"}
			}
			if free := grantableAddresses(p); !slices.Equal(free, want) {
				t.Errorf("free are %v, not %v", free, want)
			}
		})
	}
}

// TestEditedPoolsAreListedOnce checks that a pool that was edited is listed once more before a neighbour grants what it
// may have outside of its spec: the first lists of a manager may show the pool in a newer version than its claims.
func TestEditedPoolsAreListedOnce(t *testing.T) {
	edited := func(o *v1alpha1.NetworkPool) { o.Generation = 2 }
	elsewhere := func(o *v1alpha1.NetworkPool) { o.Spec.Network = "other" }
	for name, tc := range map[string]struct {
		reason string
		lists  Lister
		pool   *v1alpha1.NetworkPool
		lost   bool
		want   []string
	}{
		"Edited":       {reason: "it has what no watch has shown yet", lists: &listedObjects{}, pool: newNeighbour("beside", "10.0.0.9", time.Hour, edited), want: []string{"10.0.0.2"}},
		"NoAnswer":     {reason: "nothing is known", lists: failingListAPI{}, pool: newNeighbour("beside", "10.0.0.9", time.Hour, edited), lost: true, want: []string{"10.0.0.1", "10.0.0.2"}},
		"NeverEdited":  {reason: "it has nothing beyond its spec", lists: failingListAPI{}, pool: newNeighbour("beside", "10.0.0.9", time.Hour), want: []string{"10.0.0.1", "10.0.0.2"}},
		"OtherNetwork": {reason: "it may have what it likes", lists: failingListAPI{}, pool: newNeighbour("beside", "10.0.0.9", time.Hour, edited, elsewhere), want: []string{"10.0.0.1", "10.0.0.2"}},
	} {
		t.Run(name, func(t *testing.T) {
			if l, ok := tc.lists.(*listedObjects); ok {
				l.addServedClaim(pools.KeyForPool(tc.pool), "x", "10.0.0.1")
			}
			api := &singleWriteAPI{}
			a := New(Options{Client: api, Live: api, Lister: tc.lists, ManagerID: "me", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
			a.ObservePool(tc.pool)
			o := newNeighbour("pool", "10.0.0.1-10.0.0.2", time.Minute)
			a.relations.publishDeclaration(o)
			p := stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(o)))
			p.SetBasePool(o)
			a.exclusions.excludeSharedRanges(t.Context(), grants.NewPool(p))
			if free := grantableAddresses(p); !slices.Equal(free, tc.want) {
				t.Errorf("%s: free are %v, not %v", tc.reason, free, tc.want)
			}
			if lost := p.Overlap.OutstandingYieldMessage != ""; lost != tc.lost {
				t.Errorf("%s: it waits: %t: %s", tc.reason, lost, p.Overlap.OutstandingYieldMessage)
			}
		})
	}
}

// TestRecreatedPoolIsListedAgain checks that a pool that was created again under its name is another pool: a
// list of the earlier one does not count for it.
func TestRecreatedPoolIsListedAgain(t *testing.T) {
	lists, api := &listedObjects{}, &singleWriteAPI{}
	a := New(Options{Client: api, Live: api, Lister: lists, ManagerID: "me", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
	o := newNeighbour("pool", "10.0.0.1-10.0.0.2", time.Minute)
	a.relations.publishDeclaration(o)
	p := stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(o)))
	p.SetBasePool(o)
	freeAfterReconcile := func(uid types.UID, version string) []string {
		a.ObservePool(newNeighbour("beside", "10.0.0.9", time.Hour, func(o *v1alpha1.NetworkPool) { o.Generation, o.UID, o.ResourceVersion = 2, uid, version }))
		a.exclusions.excludeSharedRanges(t.Context(), grants.NewPool(p))
		return grantableAddresses(p)
	}
	if free := freeAfterReconcile("first", "20"); !slices.Equal(free, []string{"10.0.0.1", "10.0.0.2"}) {
		t.Fatalf("free are %v", free)
	}
	lists.addServedClaim(pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: o.Namespace, Name: "beside"}, "x", "10.0.0.1")
	if free := freeAfterReconcile("second", "30"); !slices.Equal(free, []string{"10.0.0.2"}) {
		t.Errorf("free are %v, and another one of the name has 10.0.0.1", free)
	}
}

// failingListAPI is an API server whose lists always fail.
type failingListAPI struct{}

func (failingListAPI) List(context.Context, client.Object, string, func(client.Object)) (string, error) {
	return "", apierrors.NewTimeoutError("the server is busy", 1)
}

// newPoolBesideOthers returns a pool beside n others, each changed.
func newPoolBesideOthers(spec v1alpha1.NetworkPoolSpec, n int, change func(int, *v1alpha1.NetworkPool)) (*Allocator, *grants.Pool) {
	a := New(Options{Clock: clocktesting.NewFakeClock(grantstest.Noon)})
	see := func(o *v1alpha1.NetworkPool) *grants.Pool {
		a.relations.publishDeclaration(o)
		m := stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(o)))
		m.SetBasePool(o)
		return grants.NewPool(m)
	}
	for i := range n {
		o := newNeighbour(fmt.Sprint("pool-", i), fmt.Sprintf("10.%d.%d.0/24", i/256, i%256), time.Hour)
		change(i, o)
		see(o)
	}
	o := newNeighbour("mine", "", time.Minute)
	o.Spec = spec
	return a, see(o)
}

// withGrantsInFlight adds n grants in flight to a pool.
func withGrantsInFlight(n int) func(int, *v1alpha1.NetworkPool) {
	return func(i int, o *v1alpha1.NetworkPool) {
		for j := range n {
			withGrantInFlight(fmt.Sprint("c-", j), fmt.Sprintf("10.%d.%d.%d", i/256, i%256, j+1))(o)
		}
	}
}

func specWithPrefix(bits int) v1alpha1.NetworkPoolSpec {
	return v1alpha1.NetworkPoolSpec{CIDR: "11.0.0.0/8", Prefix: ptr.To(int32(bits))}
}

// TestExclusionMemoryDoesNotGrow checks that the memory that a reconcile allocates to exclude ranges does not grow with
// what other pools have in flight, nor with the networks that the pool has.
func TestExclusionMemoryDoesNotGrow(t *testing.T) {
	bytesOf := func(spec v1alpha1.NetworkPoolSpec, change func(int, *v1alpha1.NetworkPool)) float64 {
		const runs = 20
		a, p := newPoolBesideOthers(spec, 50, change)
		a.exclusions.excludeSharedRanges(t.Context(), p) // what is read once
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range runs {
			a.exclusions.excludeSharedRanges(t.Context(), p)
		}
		runtime.ReadMemStats(&after)
		return float64(after.TotalAlloc-before.TotalAlloc) / runs
	}
	few := bytesOf(specWithPrefix(8), withGrantsInFlight(1))
	for name, many := range map[string]float64{
		"100 grants in flight in each of 50 pools": bytesOf(specWithPrefix(24), withGrantsInFlight(100)),
		"a pool of 65536 networks":                 bytesOf(specWithPrefix(24), withGrantsInFlight(1)),
	} {
		if many > 2*few {
			t.Errorf("%s: %.0f bytes a look, not about %.0f", name, many, few)
		}
	}
}

// BenchmarkExcludeSharedRanges measures what excluding ranges costs each reconcile of any pool.
func BenchmarkExcludeSharedRanges(b *testing.B) {
	plain := v1alpha1.NetworkPoolSpec{CIDR: "11.0.0.0/24"}
	for _, bc := range []struct {
		name   string
		spec   v1alpha1.NetworkPoolSpec
		n      int
		change func(int, *v1alpha1.NetworkPool)
	}{
		{"1000 pools", plain, 1000, withGrantsInFlight(0)},
		{"1000 pools with 100 in flight each", plain, 1000, withGrantsInFlight(100)},
		{"65536 networks beside 10 pools", specWithPrefix(24), 10, withGrantsInFlight(1)},
	} {
		b.Run(bc.name, func(b *testing.B) {
			a, p := newPoolBesideOthers(bc.spec, bc.n, bc.change)
			b.ReportAllocs()
			for b.Loop() {
				a.exclusions.excludeSharedRanges(b.Context(), p)
			}
		})
	}
}

// TestYieldToUnwatchedPool checks a pool that yielded to a pool of another namespace and is served now by a manager
// that watches its own namespace only: it grants when the other pool shares nothing any more, except what that still
// has, and it does not read that at each reconcile.
func TestYieldToUnwatchedPool(t *testing.T) {
	older := func(addresses string, change ...func(*v1alpha1.NetworkPool)) *v1alpha1.NetworkPool {
		return newNeighbour("elder", addresses, time.Hour, append(change, func(o *v1alpha1.NetworkPool) { o.Namespace, o.Generation = "other", 2 })...)
	}
	moved := older("10.9.0.1")
	for name, tc := range map[string]struct {
		exists *v1alpha1.NetworkPool
		listed func(*listedObjects)
		fails  bool
		closed string // a part of its message
		free   int
	}{
		"Moved":    {exists: moved, free: 4},
		"Gone":     {free: 4},
		"InFlight": {exists: older("10.9.0.1", withGrantInFlight("x", "10.0.0.1")), free: 3},
		"InUse":    {exists: moved, listed: func(l *listedObjects) { l.addServedClaim(pools.KeyForPool(moved), "x", "10.0.0.1") }, free: 3},
		"Shares":   {exists: older("10.0.0.4-10.0.0.9"), closed: "use different addresses", free: 4},
		"Unlisted": {exists: moved, fails: true, closed: "run a manager without --namespace", free: 4},
	} {
		t.Run(name, func(t *testing.T) {
			api, lists := &singlePoolAPI{pool: tc.exists}, &listedObjects{}
			if tc.listed != nil {
				tc.listed(lists)
			}
			clock := clocktesting.NewFakeClock(grantstest.Noon)
			options := Options{Client: api, Live: api, Lister: lists, ManagerID: "me", Namespace: "ns", Clock: clock}
			if tc.fails {
				options.Lister = failingListAPI{}
			}
			a := New(options)
			o := newNeighbour("pool", "10.0.0.1-10.0.0.4", time.Minute, withYieldStatus(moved, 1))
			a.relations.publishDeclaration(o)
			p := stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(o)))
			p.SetBasePool(o)
			reconcile := func() {
				a.exclusions.excludeSharedRanges(t.Context(), grants.NewPool(p))
				reason, message := p.Status.ClosedReason(grantstest.Noon)
				if (reason != "") != (tc.closed != "") || !strings.Contains(message, tc.closed) || len(grantableAddresses(p)) != tc.free {
					t.Errorf("it is closed: %q: %s; free are %v", reason, message, grantableAddresses(p))
				}
			}
			reconcile()
			api.pool, a.exclusions.lister.source = nil, failingListAPI{}
			reconcile()
			if tc.fails { // W29: it has the right to list
				clock.Step(time.Minute)
				a.exclusions.lister.source, api.pool = lists, tc.exists
				a.exclusions.excludeSharedRanges(t.Context(), grants.NewPool(p))
				if reason, message := p.Status.ClosedReason(grantstest.Noon); reason != "" {
					t.Errorf("it is closed where it can read: %q: %s", reason, message)
				}
			}
			if clock.Step(time.Minute); tc.exists != nil {
				a.exclusions.excludeSharedRanges(t.Context(), grants.NewPool(p))
				if reason, _ := p.Status.ClosedReason(grantstest.Noon); reason != "" || len(grantableAddresses(p)) != 4 {
					t.Errorf("it is closed when the other one is gone: %q; free are %v", reason, grantableAddresses(p))
				}
			}
		})
	}
}
