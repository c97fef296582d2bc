package allocator

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// Tests of what a restore, a user, or a forced delete leaves of blocks (R13).

// newPoolTree returns an allocator that has site and the pool that is carved from it.
func newPoolTree(t *testing.T, site func(*v1alpha1.NetworkPool), child ...func(*v1alpha1.NetworkPool)) (a *Allocator, parent, carved *grants.PoolState) {
	t.Helper()
	a = New(Options{ManagerID: "me", Clock: clocktesting.NewFakeClock(noon)})
	parent = newTestPool(t, "10.0.0.0-10.0.0.15", func(o *v1alpha1.NetworkPool) {
		o.Name, o.UID, o.Spec.AllocateReservedIPAddresses, o.Spec.Carvable = siteKey.Name, "site-uid", true, &v1alpha1.Carvable{}
		site(o)
	})
	parent.Base.Key, carved = siteKey, newChildPool(t, child...)
	a.pools.byKey[siteKey], a.pools.byKey[testKey] = grants.NewPool(parent), grants.NewPool(carved)
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
			a, parent, carved := newPoolTree(t, site, isOpen("pool-1", "10.0.0.4/30"))
			o := newBlock("pool-1", firstBlock)
			a.ObserveObject(o)
			observeAddress(carved, "a", "10.0.0.5", "uid-a")
			a.ForgetObject(o)
			for range 2 {
				a.exclusions.excludeSharedRanges(t.Context(), a.pools.byKey[siteKey])
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
	a, parent, carved := newPoolTree(t, blue, isOpen("pool-1", "10.0.0.4/30"))
	observeAddress(carved, "a", "10.0.0.9", "uid-a")
	obj := carved.Base.Pool.DeepCopyObject().(*v1alpha1.NetworkPool)
	obj.Spec.Carve.PoolRef.Name = "gone"
	a.relations.publishDeclaration(obj)
	a.exclusions.excludeSharedRanges(t.Context(), a.pools.byKey[siteKey])
	if parent.Inventory.FindBlockingFact(netipx.MustParseIPRange("10.0.0.9-10.0.0.9"), observeClaim(parent, "b", 1).Owner) == nil {
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
		"Status": {change: firstBlock, want: 12},
	} {
		t.Run(name, func(t *testing.T) {
			a, parent, _ := newPoolTree(t, func(o *v1alpha1.NetworkPool) { o.Spec.Network = "blue" })
			a.ObserveObject(newBlock("x-1", func(o *v1alpha1.IPAllocation) {
				o.Namespace, o.Spec.PoolRef.Name, o.Spec.ChildPoolRef.Name = "tenant", "nothing", "x"
				tt.change(o)
			}))
			a.exclusions.excludeSharedRanges(t.Context(), a.pools.byKey[siteKey])
			if n := parent.Space.Ledger.Counts().Available; n != tt.want {
				t.Errorf("%d of 16 addresses can be granted, want %d", n, tt.want)
			}
		})
	}
}

// TestLostBlockGrantsNothing checks that a pool grants nothing from a block that it knows to be lost, and that no
// claim adopts an IPAddress that is in no block: a restore may have brought it, and the parent may have granted the
// block to others since.
func TestLostBlockGrantsNothing(t *testing.T) {
	for name, tt := range map[string]struct {
		block *v1alpha1.IPAllocation
		may   bool
	}{
		"Here":    {block: newBlock("pool-1", firstBlock), may: true},
		"Gone":    {},
		"Deleted": {block: newBlock("pool-1", firstBlock, deleted)},
		"Shared":  {block: newBlock("pool-1", firstBlock, sharedBlock)},
	} {
		turn := func(p *grants.PoolState) int {
			if tt.block != nil {
				observeBlock(p, tt.block)
			}
			p.Carved.ResetShortfall()
			p.Growth.DrainLostBlocks(noon, time.Minute)
			n, _ := p.Planner.PlanGrants(noon, 9, admitAll)
			return n
		}
		t.Run(name, func(t *testing.T) {
			p := newChildPool(t, isOpen("pool-1", "10.0.0.4/30"))
			observeClaim(p, "c", 1)
			if n := turn(p); (n > 0) != tt.may {
				t.Errorf("%d are granted", n)
			}
		})
		t.Run(name+"/Adopted", func(t *testing.T) {
			p := newChildPool(t, isOpen("pool-1", "10.0.0.4/30"))
			observeAddress(p, "c", "10.0.0.5", "uid-before")
			c := observeClaim(p, "c", 1, withRecordedAddress("10.0.0.5"))
			turn(p)
			// One that is being deleted still has the address, and no other claim does.
			if got, want := p.Inventory.NeedFor(c) == grants.NeedWrite, tt.may || name == "Deleted"; got != want {
				t.Errorf("it is adopted: %v", got)
			}
			if s := p.Addresses.Orphans[p.Addresses.AddressFor(c).Key()]; p.Inventory.IsOrphanConflicting(s) {
				t.Error("the IPAddress is taken away at once")
			}
		})
	}
}

// strandedClaim returns a claim that has on record the address of an IPAddress that is in no block, and whose claim was
// another one.
func strandedClaim(t *testing.T, owner types.UID, wantMessage string) (*grants.PoolState, *grants.Claimant) {
	t.Helper()
	p := newChildPool(t)
	observeAddress(p, "c", "10.0.0.5", owner)
	c := observeClaim(p, "c", 1, withRecordedAddress("10.0.0.5"))
	p.Growth.DrainLostBlocks(noon, time.Minute)
	_, refused := p.Planner.PlanGrants(noon, 9, admitAll)
	if refusal := refused[c]; refusal == nil || !strings.Contains(refusal.Message, wantMessage) {
		t.Errorf("%+v", refusal)
	}
	return p, c
}

// TestStrandedClaimAdoptsItsAddress checks that the claim gets a message with what it waits for, and adopts its
// IPAddress when the block exists.
func TestStrandedClaimAdoptsItsAddress(t *testing.T) {
	p, c := strandedClaim(t, "uid-before", "10.0.0.5, which is in no block of NetworkPool ns/pool; waiting until the block is there, or the IPAddress is gone")
	observeBlock(p, newBlock("pool-1", firstBlock))
	obj := p.Base.Pool.DeepCopyObject().(*v1alpha1.NetworkPool)
	isOpen("pool-1", "10.0.0.4/30")(obj)
	obj.ResourceVersion = "11"
	p.SetBasePool(obj)
	if p.Growth.DrainLostBlocks(noon, time.Minute); p.Inventory.NeedFor(c) != grants.NeedWrite || p.Queues.Waiting.Len() > 0 {
		t.Error("it goes on waiting")
	}
}

// TestStrandedAddressAdviceHelps checks that an IPAddress without owners that is in no block goes when it is deleted
// and its claim is created again (W29).
func TestStrandedAddressAdviceHelps(t *testing.T) {
	p, c := strandedClaim(t, "", "or delete the IPAddress and create the claim again")
	deleted := *p.Addresses.AddressFor(c)
	deleted.Deleting, deleted.ResourceVersion = true, "2"
	p.ObserveAddress(&deleted)
	due := func() int {
		jobs, _ := p.ListDueWrites(noon, 9, time.Minute, admitAll, admitAll)
		return len(jobs.ResolveOrphans)
	}
	if n := due(); n != 0 {
		t.Errorf("%d IPAddresses of claims that remember their address go", n)
	}
	p.ForgetClaimant(c.Owner.UID)
	observeClaim(p, "c", 2, func(c *ipamv1.IPAddressClaim) { c.UID = "uid-again" })
	if n := due(); n != 1 {
		t.Errorf("%d go, and one is in the way", n)
	}
}

// TestPinnedBlockIsNotOutdated checks that a block with pinned addresses has the right size, whatever size the pool
// requests by now.
func TestPinnedBlockIsNotOutdated(t *testing.T) {
	p := newChildPool(t, isOpen("pool-1", "10.0.0.4/30"), func(o *v1alpha1.NetworkPool) {
		o.Status.Blocks[0].Draining, o.Spec.Carve.Blocks.Min, o.Spec.Carve.PrefixLength = true, 0, 31
	})
	observeAddress(p, "a", "10.0.0.5", "uid-a")
	observeBlock(p, newBlock("pool-2", pinnedTo("10.0.0.4", "10.0.0.7")))
	if p.Growth.PlanBlocks(noon, time.Minute); p.Carved.Decision.HasWork() {
		t.Errorf("%+v", p.Carved.Decision)
	}
}

// TestRecordsInOtherNamespaceEndOneByOne checks that blocks for a global pool in a namespace of their own, which any
// user may create, make the manager list everything once a minute only, and not as often as a user likes.
func TestRecordsInOtherNamespaceEndOneByOne(t *testing.T) {
	key := pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: testKey.Name}
	a := New(Options{ManagerID: "me", BlockNamespace: "home", Clock: clocktesting.NewFakeClock(noon)})
	obj := &v1alpha1.GlobalNetworkPool{}
	obj.Name, obj.UID, obj.ResourceVersion, obj.Generation = key.Name, "pool-uid", "10", 1
	m := a.pools.lockPool(key)
	defer m.Unlock()
	m.SetBasePool(obj)
	m.Term.Holder = true
	m.RebuildLedger(&grants.ListedObjects{})
	for _, name := range []string{"pool-1", "pool-2", "pool-3"} {
		o := newBlock(name, deleted, func(o *v1alpha1.IPAllocation) {
			o.Namespace, o.Spec.ChildPoolRef.Kind, o.Annotations[v1alpha1.AddressAnnotation] = "tenant", key.Kind, "10.0.0.4/30"
		})
		b, _ := a.scope.blockFromObject(o)
		m.ObserveBlock(b)
	}
	for minute := range 2 {
		now := noon.Add(time.Duration(minute) * time.Minute)
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
	a, parent, carved := newPoolTree(t, func(*v1alpha1.NetworkPool) {}, isOpen("pool-1", "10.0.0.4/30"))
	o := newBlock("pool-1", firstBlock)
	a.ObserveObject(o)
	observeAddress(carved, "a", "10.0.0.5", "uid-a")
	carved.ClearBasePool()
	a.relations.withdrawDeclaration(testKey)
	a.ForgetObject(o)
	a.exclusions.excludeSharedRanges(t.Context(), a.pools.byKey[siteKey])
	if n := parent.Space.Ledger.Counts().Available; n != 15 {
		t.Errorf("%d addresses can be granted of 15", n)
	}
}

// TestRefusedBlocksDoNotStopGrowth checks that a block that a restore brings waits for its addresses, whatever size the
// pool requests by now; that the replacement of a block that is closed since is of no use; and that neither keeps the
// pool from growing.
func TestRefusedBlocksDoNotStopGrowth(t *testing.T) {
	record := func(o *v1alpha1.IPAllocation) { o.Annotations[v1alpha1.AddressAnnotation] = "10.0.0.4/31" }
	one := func(o *v1alpha1.NetworkPool) { o.Spec.Carve.Blocks = v1alpha1.CarvedBlocks{Min: 0, Max: 1} }
	lost := func(o *v1alpha1.NetworkPool) {
		isOpen("pool-1", "10.0.0.4/30")(o)
		o.Status.Blocks[0].Draining = true
	}
	for name, tt := range map[string]struct {
		pool  func(*v1alpha1.NetworkPool)
		block *v1alpha1.IPAllocation
		here  func(*grants.PoolState)
		want  carve.Decision
	}{
		"Restored":      {block: newBlock("pool-1", record, refusedBlock)},
		"RestoredGrows": {block: newBlock("pool-1", record, refusedBlock), here: func(p *grants.PoolState) { observeClaim(p, "b", 1) }, want: carve.Decision{NewBlocks: 1}},
		"TooLate":       {block: newBlock("pool-2", pinnedTo("10.0.0.4", "10.0.0.7"), refusedBlock), want: carve.Decision{Delete: []string{"pool-2"}}},
		"InTime": {pool: lost, block: newBlock("pool-2", pinnedTo("10.0.0.4", "10.0.0.7"), refusedBlock), here: func(p *grants.PoolState) {
			observeAddress(p, "a", "10.0.0.5", "uid-a")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newChildPool(t, one, func(o *v1alpha1.NetworkPool) {
				if tt.pool != nil {
					tt.pool(o)
				}
			})
			observeBlock(p, tt.block)
			if tt.here != nil {
				tt.here(p)
			}
			p.Carved.ResetShortfall()
			p.Planner.PlanGrants(noon, 9, admitAll)
			p.Growth.PlanBlocks(noon, time.Hour)
			got := p.Carved.Decision
			if got.NextWait = 0; !cmp.Equal(got, tt.want) {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

// TestDeletedPoolRequestsNoMovedBlock checks that a block that clusterctl moved away is not requested by a pool that is
// being deleted either.
func TestDeletedPoolRequestsNoMovedBlock(t *testing.T) {
	d := carve.DecideBlocks(carve.Pool{Deleting: true, Moved: true, MaxBlocks: 1, MaxOpen: 128}, []carve.Block{{Name: "pool-1", Open: true, Draining: true, Used: 1}}, noon)
	if d.HasWork() {
		t.Errorf("%+v", d)
	}
}

// TestRecordEndsRefusal checks that a block that was refused, and has its record by now, is about to be the pool's:
// its status is from before the record.
func TestRecordEndsRefusal(t *testing.T) {
	p := newChildPool(t)
	observeBlock(p, newBlock("pool-1", refusedBlock))
	turn := func() carve.Decision {
		p.Carved.ResetShortfall()
		p.Planner.PlanGrants(noon, 9, admitAll)
		p.Growth.PlanBlocks(noon, time.Hour)
		p.Carved.Decision.NextWait = 0
		return p.Carved.Decision
	}
	if d := turn(); d.HasWork() {
		t.Errorf("refused: %+v", d)
	}
	observeBlock(p, newBlock("pool-1", refusedBlock, func(o *v1alpha1.IPAllocation) {
		o.ResourceVersion, o.Annotations[v1alpha1.AddressAnnotation] = "6", "10.0.0.4/30"
	}))
	if d := turn(); d.HasWork() {
		t.Errorf("with its record: %+v", d)
	}
	observeClaim(p, "b", 1)
	if d := turn(); d.HasWork() {
		t.Errorf("while a claim waits: %+v", d)
	}
}
