package allocator

import (
	"testing"
	"time"

	"go4.org/netipx"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// Tests of what a restore, a user, or a forced delete leaves of blocks (R13).

// newPoolTree returns an allocator that has site and the pool that is carved from it.
func newPoolTree(t *testing.T, site func(*v1alpha1.NetworkPool), child ...func(*v1alpha1.NetworkPool)) (a *Allocator, parent, carved *grants.PoolState) {
	t.Helper()
	a = New(Options{ManagerID: "me", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
	parent = grantstest.NewPool(t, "10.0.0.0-10.0.0.15", func(o *v1alpha1.NetworkPool) {
		o.Name, o.UID, o.Spec.AllocateReservedIPAddresses, o.Spec.Carvable = grantstest.SiteKey.Name, "site-uid", true, &v1alpha1.Carvable{}
		site(o)
	})
	parent.Base.Key, carved = grantstest.SiteKey, grantstest.NewChildPool(t, child...)
	a.pools.byKey[grantstest.SiteKey], a.pools.byKey[grantstest.PoolKey] = grants.NewPool(parent), grants.NewPool(carved)
	a.relations.publishDeclaration(parent.Base.Pool)
	a.relations.publishDeclaration(carved.Base.Pool)
	return a, parent, carved
}

// TestLostBlockIsExcluded checks that addresses of a block that is gone, and that a pool still has in use, are
// excluded in the pools above, whatever the root pool allows.
func TestLostBlockIsExcluded(t *testing.T) {
	for name, site := range map[string]func(*v1alpha1.NetworkPool){
		"Alone":   func(*v1alpha1.NetworkPool) {},
		"Allows":  func(o *v1alpha1.NetworkPool) { o.Spec.AllowOverlap = true },
		"Network": func(o *v1alpha1.NetworkPool) { o.Spec.Network = "blue" },
	} {
		t.Run(name, func(t *testing.T) {
			a, parent, carved := newPoolTree(t, site, grantstest.WithOpenBlock("pool-1", "10.0.0.4/30"))
			o := grantstest.NewBlock("pool-1", grantstest.FirstBlock)
			a.ObserveObject(o)
			grantstest.ObserveAddress(carved, "a", "10.0.0.5", "uid-a")
			a.ForgetObject(o)
			for range 2 {
				a.exclusions.excludeSharedRanges(t.Context(), a.pools.byKey[grantstest.SiteKey])
				if n := parent.Space.Ledger.Counts().Available; n != 12 {
					t.Errorf("%d addresses can be granted of 12", n)
				}
			}
		})
	}
}

// TestLostParentHidesNoUse checks that the network of a pool whose parent is gone is unknown: its addresses count in
// any network.
func TestLostParentHidesNoUse(t *testing.T) {
	blue := func(o *v1alpha1.NetworkPool) { o.Spec.Network = "blue" }
	a, parent, carved := newPoolTree(t, blue, grantstest.WithOpenBlock("pool-1", "10.0.0.4/30"))
	grantstest.ObserveAddress(carved, "a", "10.0.0.9", "uid-a")
	obj := carved.Base.Pool.DeepCopyObject().(*v1alpha1.NetworkPool)
	obj.Spec.Carve.PoolRef.Name = "gone"
	a.relations.publishDeclaration(obj)
	a.exclusions.excludeSharedRanges(t.Context(), a.pools.byKey[grantstest.SiteKey])
	if parent.Inventory.FindBlockingFact(netipx.MustParseIPRange("10.0.0.9-10.0.0.9"), grantstest.ObserveClaim(parent, "b", 1).Owner) == nil {
		t.Error("10.0.0.9 can be granted")
	}
}

// TestRecordForMissingPoolDoesNotCount checks that a record for a pool that never existed, which any user can write,
// does not count, while an address in a status does.
func TestRecordForMissingPoolDoesNotCount(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*v1alpha1.IPAllocation)
		want   int64
	}{
		"Record": {change: func(o *v1alpha1.IPAllocation) {
			o.Annotations[v1alpha1.AddressAnnotation] = "10.0.0.0/8"
			o.Finalizers = append(o.Finalizers, v1alpha1.IPAllocationFinalizer)
		}, want: 16},
		"Status": {change: grantstest.FirstBlock, want: 12},
	} {
		t.Run(name, func(t *testing.T) {
			a, parent, _ := newPoolTree(t, func(o *v1alpha1.NetworkPool) { o.Spec.Network = "blue" })
			a.ObserveObject(grantstest.NewBlock("x-1", func(o *v1alpha1.IPAllocation) {
				o.Namespace, o.Spec.PoolRef.Name, o.Spec.ChildPoolRef.Name = "tenant", "nothing", "x"
				tt.change(o)
			}))
			a.exclusions.excludeSharedRanges(t.Context(), a.pools.byKey[grantstest.SiteKey])
			if n := parent.Space.Ledger.Counts().Available; n != tt.want {
				t.Errorf("%d of 16 addresses can be granted, want %d", n, tt.want)
			}
		})
	}
}

// TestRecordsInOtherNamespaceEndOneByOne checks that blocks for a global pool in a namespace of their own, which any
// user may create, make the manager list everything once a minute only, and not as often as a user likes.
func TestRecordsInOtherNamespaceEndOneByOne(t *testing.T) {
	key := pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: grantstest.PoolKey.Name}
	a := New(Options{ManagerID: "me", BlockNamespace: "home", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
	obj := &v1alpha1.GlobalNetworkPool{}
	obj.Name, obj.UID, obj.ResourceVersion, obj.Generation = key.Name, "pool-uid", "10", 1
	m := a.pools.lockPool(key)
	defer m.Unlock()
	m.SetBasePool(obj)
	m.Term.Holder = true
	m.RebuildLedger(&grants.ListedObjects{})
	for _, name := range []string{"pool-1", "pool-2", "pool-3"} {
		o := grantstest.NewBlock(name, grantstest.Deleted, func(o *v1alpha1.IPAllocation) {
			o.Namespace, o.Spec.ChildPoolRef.Kind, o.Annotations[v1alpha1.AddressAnnotation] = "tenant", key.Kind, "10.0.0.4/30"
		})
		b, _ := a.scope.blockFromObject(o)
		m.ObserveBlock(b)
	}
	for minute := range 2 {
		now := grantstest.Noon.Add(time.Duration(minute) * time.Minute)
		out, wait := m.Growth.DueBlockRequests(now, time.Minute)
		if len(out) != 1 || wait != time.Minute {
			t.Errorf("%d requests at once, the next in %v", len(out), wait)
		}
		m.Carved.BeginBlockRequest(out[0])
	}
}

// TestRangesOfGonePoolAreExcluded checks that addresses that the claims of a pool that is gone still have are excluded
// from other pools, as for a pool that lost a block.
func TestRangesOfGonePoolAreExcluded(t *testing.T) {
	a, parent, carved := newPoolTree(t, func(*v1alpha1.NetworkPool) {}, grantstest.WithOpenBlock("pool-1", "10.0.0.4/30"))
	o := grantstest.NewBlock("pool-1", grantstest.FirstBlock)
	a.ObserveObject(o)
	grantstest.ObserveAddress(carved, "a", "10.0.0.5", "uid-a")
	carved.ClearBasePool()
	a.relations.withdrawDeclaration(grantstest.PoolKey)
	a.ForgetObject(o)
	a.exclusions.excludeSharedRanges(t.Context(), a.pools.byKey[grantstest.SiteKey])
	if n := parent.Space.Ledger.Counts().Available; n != 15 {
		t.Errorf("%d addresses can be granted of 15", n)
	}
}
