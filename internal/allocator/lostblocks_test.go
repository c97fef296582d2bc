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

// What a restore, a user, or a forced delete has left of blocks (R13).

// aTree is a manager that has site and the pool that is carved from it.
func aTree(t *testing.T, site func(*v1alpha1.NetworkPool), child ...func(*v1alpha1.NetworkPool)) (a *Allocator, parent, carved *grants.Memory) {
	t.Helper()
	a = New(Options{ID: "me", Clock: clocktesting.NewFakeClock(noon)})
	parent = aPool(t, "10.0.0.0-10.0.0.15", func(o *v1alpha1.NetworkPool) {
		o.Name, o.UID, o.Spec.AllocateReservedIPAddresses, o.Spec.Carvable = siteKey.Name, "site-uid", true, &v1alpha1.Carvable{}
		site(o)
	})
	parent.Key, carved = siteKey, aChild(t, child...)
	a.pools[siteKey], a.pools[testKey] = grants.PoolOf(parent), grants.PoolOf(carved)
	a.publish(parent.Base)
	a.publish(carved.Base)
	return a, parent, carved
}

// What a pool has left of a block that is gone is kept apart above, whatever else the pool at the top allows.
func TestALostBlockIsKeptApart(t *testing.T) {
	for name, site := range map[string]func(*v1alpha1.NetworkPool){
		"Alone":   func(*v1alpha1.NetworkPool) {},
		"Allows":  func(o *v1alpha1.NetworkPool) { o.Spec.AllowOverlap = true },
		"Network": func(o *v1alpha1.NetworkPool) { o.Spec.Network = "blue" },
	} {
		t.Run(name, func(t *testing.T) {
			a, parent, carved := aTree(t, site, isOpen("pool-1", "10.0.0.4/30"))
			o := newBlock("pool-1", firstBlock)
			a.Observe(o)
			seeAddress(carved, "a", "10.0.0.5", "uid-a")
			a.Forget(o)
			for range 2 {
				a.keepApart(t.Context(), a.pools[siteKey])
				if n := parent.Ledger.Counts().Available; n != 12 {
					t.Errorf("%d addresses can be granted of 12", n)
				}
			}
		})
	}
}

// Nobody knows the network of a pool that is carved from one which is gone: what it has counts in any.
func TestALostParentHidesNoUse(t *testing.T) {
	blue := func(o *v1alpha1.NetworkPool) { o.Spec.Network = "blue" }
	a, parent, carved := aTree(t, blue, isOpen("pool-1", "10.0.0.4/30"))
	seeAddress(carved, "a", "10.0.0.9", "uid-a")
	obj := carved.Base.DeepCopyObject().(*v1alpha1.NetworkPool)
	obj.Spec.Carve.PoolRef.Name = "gone"
	a.publish(obj)
	a.keepApart(t.Context(), a.pools[siteKey])
	if parent.Blocker(netipx.MustParseIPRange("10.0.0.9-10.0.0.9"), see(parent, "b", 1).Owner) == nil {
		t.Error("10.0.0.9 can be granted")
	}
}

// Anybody can write a record for a pool that never was. What shows an address counts.
func TestARecordForNoPool(t *testing.T) {
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
			a, parent, _ := aTree(t, func(o *v1alpha1.NetworkPool) { o.Spec.Network = "blue" })
			a.Observe(newBlock("x-1", func(o *v1alpha1.IPAllocation) {
				o.Namespace, o.Spec.PoolRef.Name, o.Spec.ChildPoolRef.Name = "tenant", "nothing", "x"
				tt.change(o)
			}))
			a.keepApart(t.Context(), a.pools[siteKey])
			if n := parent.Ledger.Counts().Available; n != tt.want {
				t.Errorf("%d of 16 addresses can be granted, want %d", n, tt.want)
			}
		})
	}
}

// A pool grants nothing from a block of which it knows already that it has it no more, and nobody adopts an IPAddress that
// is in none: a restore may have brought it, and the parent may have given the block to others since.
func TestNothingIsGrantedOfALostBlock(t *testing.T) {
	for name, tt := range map[string]struct {
		block *v1alpha1.IPAllocation
		may   bool
	}{
		"Here":    {block: newBlock("pool-1", firstBlock), may: true},
		"Gone":    {},
		"Deleted": {block: newBlock("pool-1", firstBlock, deleted)},
		"Shared":  {block: newBlock("pool-1", firstBlock, sharedBlock)},
	} {
		turn := func(p *grants.Memory) int {
			if tt.block != nil {
				shown(p, tt.block)
			}
			p.ForgetLack()
			p.StateLost(noon, time.Minute)
			n, _ := p.Plan(noon, 9, anyone)
			return n
		}
		t.Run(name, func(t *testing.T) {
			p := aChild(t, isOpen("pool-1", "10.0.0.4/30"))
			see(p, "c", 1)
			if n := turn(p); (n > 0) != tt.may {
				t.Errorf("%d are granted", n)
			}
		})
		t.Run(name+"/Adopted", func(t *testing.T) {
			p := aChild(t, isOpen("pool-1", "10.0.0.4/30"))
			seeAddress(p, "c", "10.0.0.5", "uid-before")
			c := see(p, "c", 1, remembers("10.0.0.5"))
			turn(p)
			// One that is being deleted has the address still, and nobody else does.
			if got, want := p.Need(c) == grants.NeedWrite, tt.may || name == "Deleted"; got != want {
				t.Errorf("it is adopted: %v", got)
			}
			if s := p.Orphans[p.AttachedTo(c).Key()]; p.IsInTheWay(s) {
				t.Error("the IPAddress is taken away at once")
			}
		})
	}
}

// strandedClaim is a claim that remembers the address of an IPAddress that is in no block, and whose claim was another one.
func strandedClaim(t *testing.T, owner types.UID, says string) (*grants.Memory, *grants.Claimant) {
	t.Helper()
	p := aChild(t)
	seeAddress(p, "c", "10.0.0.5", owner)
	c := see(p, "c", 1, remembers("10.0.0.5"))
	p.StateLost(noon, time.Minute)
	_, refused := p.Plan(noon, 9, anyone)
	if no := refused[c]; no == nil || !strings.Contains(no.Message, says) {
		t.Errorf("%+v", no)
	}
	return p, c
}

// The claim is told what it waits for, and adopts its IPAddress when the block is there.
func TestAStrandedClaim(t *testing.T) {
	p, c := strandedClaim(t, "uid-before", "10.0.0.5, which is in no block that NetworkPool ns/pool has; waiting until the block is there, or the IPAddress is gone")
	shown(p, newBlock("pool-1", firstBlock))
	obj := p.Base.DeepCopyObject().(*v1alpha1.NetworkPool)
	isOpen("pool-1", "10.0.0.4/30")(obj)
	obj.ResourceVersion = "11"
	p.SetBase(obj)
	if p.StateLost(noon, time.Minute); p.Need(c) != grants.NeedWrite || p.Pending.Len() > 0 {
		t.Error("it goes on waiting")
	}
}

// W29: an IPAddress without owners that is in no block goes when it is deleted, and its claim created again.
func TestAStrandedClaimIsCreatedAgain(t *testing.T) {
	p, c := strandedClaim(t, "", "or delete the IPAddress and create the claim again")
	deleted := *p.AttachedTo(c)
	deleted.Deleting, deleted.Version = true, "2"
	p.ObserveAttached(&deleted)
	due := func() int {
		jobs, _ := p.Due(noon, 9, time.Minute, anyone, anyone)
		return len(jobs.Resolve)
	}
	if n := due(); n != 0 {
		t.Errorf("%d IPAddresses of claims that remember their address go", n)
	}
	p.Forget(c.Owner.UID)
	see(p, "c", 2, func(c *ipamv1.IPAddressClaim) { c.UID = "uid-again" })
	if n := due(); n != 1 {
		t.Errorf("%d go, and one is in the way", n)
	}
}

// A block that is to have certain addresses is of the right size, whatever the pool asks for by now.
func TestAPinnedBlockIsNotOutdated(t *testing.T) {
	p := aChild(t, isOpen("pool-1", "10.0.0.4/30"), func(o *v1alpha1.NetworkPool) {
		o.Status.Blocks[0].Draining, o.Spec.Carve.Blocks.Min, o.Spec.Carve.PrefixLength = true, 0, 31
	})
	seeAddress(p, "a", "10.0.0.5", "uid-a")
	shown(p, newBlock("pool-2", pinnedTo("10.0.0.4", "10.0.0.7")))
	if p.TurnBlocks(noon, time.Minute); p.Carved.Todo.Something() {
		t.Errorf("%+v", p.Carved.Todo)
	}
}

// Anybody may make a block for a global pool in a namespace of their own. That has the manager list everything once a
// minute, not as often as somebody likes.
func TestRecordsAbroadEndOneByOne(t *testing.T) {
	key := pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: testKey.Name}
	a := New(Options{ID: "me", BlockNamespace: "home", Clock: clocktesting.NewFakeClock(noon)})
	obj := &v1alpha1.GlobalNetworkPool{}
	obj.Name, obj.UID, obj.ResourceVersion, obj.Generation = key.Name, "pool-uid", "10", 1
	m := a.locked(key)
	defer m.Unlock()
	m.SetBase(obj)
	m.Holder = true
	m.Rebuild(&grants.Listed{})
	for _, name := range []string{"pool-1", "pool-2", "pool-3"} {
		o := newBlock(name, deleted, func(o *v1alpha1.IPAllocation) {
			o.Namespace, o.Spec.ChildPoolRef.Kind, o.Annotations[v1alpha1.AddressAnnotation] = "tenant", key.Kind, "10.0.0.4/30"
		})
		b, _ := a.blockOf(o)
		m.ObserveBlock(b)
	}
	for minute := range 2 {
		now := noon.Add(time.Duration(minute) * time.Minute)
		out, wait := m.BlockRequests(now, time.Minute)
		if len(out) != 1 || wait != time.Minute {
			t.Errorf("%d requests at once, the next in %v", len(out), wait)
		}
		m.BeginBlock(out[0])
	}
}

// A pool that is gone keeps what its claims have left from others, as one that lost a block does.
func TestAGonePoolIsKeptApart(t *testing.T) {
	a, parent, carved := aTree(t, func(*v1alpha1.NetworkPool) {}, isOpen("pool-1", "10.0.0.4/30"))
	o := newBlock("pool-1", firstBlock)
	a.Observe(o)
	seeAddress(carved, "a", "10.0.0.5", "uid-a")
	carved.UnsetBase()
	a.withdrawSpec(testKey)
	a.Forget(o)
	a.keepApart(t.Context(), a.pools[siteKey])
	if n := parent.Ledger.Counts().Available; n != 15 {
		t.Errorf("%d addresses can be granted of 15", n)
	}
}

// What a restore brings waits for its addresses, whatever size the pool asks for by now; what was to take the place of a
// block that is closed since is of no use to anybody; and neither keeps the pool from growing.
func TestBlocksThatAreRefused(t *testing.T) {
	record := func(o *v1alpha1.IPAllocation) { o.Annotations[v1alpha1.AddressAnnotation] = "10.0.0.4/31" }
	one := func(o *v1alpha1.NetworkPool) { o.Spec.Carve.Blocks = v1alpha1.CarvedBlocks{Min: 0, Max: 1} }
	lost := func(o *v1alpha1.NetworkPool) {
		isOpen("pool-1", "10.0.0.4/30")(o)
		o.Status.Blocks[0].Draining = true
	}
	for name, tt := range map[string]struct {
		pool  func(*v1alpha1.NetworkPool)
		block *v1alpha1.IPAllocation
		here  func(*grants.Memory)
		want  carve.Decision
	}{
		"Restored":      {block: newBlock("pool-1", record, refusedBlock)},
		"RestoredGrows": {block: newBlock("pool-1", record, refusedBlock), here: func(p *grants.Memory) { see(p, "b", 1) }, want: carve.Decision{Ask: 1}},
		"TooLate":       {block: newBlock("pool-2", pinnedTo("10.0.0.4", "10.0.0.7"), refusedBlock), want: carve.Decision{Delete: []string{"pool-2"}}},
		"InTime": {pool: lost, block: newBlock("pool-2", pinnedTo("10.0.0.4", "10.0.0.7"), refusedBlock), here: func(p *grants.Memory) {
			seeAddress(p, "a", "10.0.0.5", "uid-a")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := aChild(t, one, func(o *v1alpha1.NetworkPool) {
				if tt.pool != nil {
					tt.pool(o)
				}
			})
			shown(p, tt.block)
			if tt.here != nil {
				tt.here(p)
			}
			p.ForgetLack()
			p.Plan(noon, 9, anyone)
			p.TurnBlocks(noon, time.Hour)
			got := p.Carved.Todo
			if got.Next = 0; !cmp.Equal(got, tt.want) {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

// What clusterctl took away is not asked for by a pool that is being deleted either.
func TestADeletedPoolAsksForNothingMoved(t *testing.T) {
	d := carve.Decide(carve.Pool{Deleting: true, Moved: true, Max: 1, Limit: 128}, []carve.Block{{Name: "pool-1", Open: true, Draining: true, Used: 1}}, noon)
	if d.Something() {
		t.Errorf("%+v", d)
	}
}

// A block that was refused, and has its record by now, is about to be the pool's: its status is of before that.
func TestARecordEndsARefusal(t *testing.T) {
	p := aChild(t)
	shown(p, newBlock("pool-1", refusedBlock))
	turn := func() carve.Decision {
		p.ForgetLack()
		p.Plan(noon, 9, anyone)
		p.TurnBlocks(noon, time.Hour)
		p.Carved.Todo.Next = 0
		return p.Carved.Todo
	}
	if d := turn(); d.Something() {
		t.Errorf("refused: %+v", d)
	}
	shown(p, newBlock("pool-1", refusedBlock, func(o *v1alpha1.IPAllocation) {
		o.ResourceVersion, o.Annotations[v1alpha1.AddressAnnotation] = "6", "10.0.0.4/30"
	}))
	if d := turn(); d.Something() {
		t.Errorf("with its record: %+v", d)
	}
	see(p, "b", 1)
	if d := turn(); d.Something() {
		t.Errorf("while a claim waits: %+v", d)
	}
}
