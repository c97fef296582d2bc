package allocator

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// Tests of blocks of GlobalNetworkPools, which are in one namespace.

// TestBlocksOfAGlobalPool checks that an IPAllocation for a global pool, which any user may create, counts in one
// namespace only. A block that is on record as open counts wherever it is, so that the manager may move to another
// namespace.
func TestBlocksOfAGlobalPool(t *testing.T) {
	key := pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: grantstest.PoolKey.Name}
	in := func(namespace string) func(*v1alpha1.IPAllocation) {
		return func(o *v1alpha1.IPAllocation) {
			o.Namespace, o.UID = namespace, types.UID("uid-"+namespace)
			o.Spec.ChildPoolRef.Kind, o.Spec.PoolRef.Kind = key.Kind, key.Kind
		}
	}
	tests := map[string]struct {
		open  string // the namespace of the open block
		seen  []string
		first bool // before the pool
		want  string
	}{
		"Home":          {seen: []string{"home"}, want: "home"},
		"Tenant":        {seen: []string{"tenant"}},
		"TenantFirst":   {seen: []string{"tenant", "home"}, want: "home"},
		"TenantLater":   {seen: []string{"home", "tenant"}, want: "home"},
		"Before":        {open: "old", seen: []string{"old"}, want: "old"},
		"BeforeUnseen":  {open: "old", seen: []string{"old"}, first: true, want: "old"},
		"BeforeTenants": {open: "old", seen: []string{"tenant", "old"}, first: true, want: "old"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := New(Options{ManagerID: "me", BlockNamespace: "home", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
			obj := &v1alpha1.GlobalNetworkPool{ObjectMeta: metav1.ObjectMeta{Name: key.Name, UID: "pool-uid", ResourceVersion: "10", Generation: 1}}
			obj.Spec.Carve = &v1alpha1.Carve{PoolRef: v1alpha1.PoolReference{Kind: key.Kind, Name: grantstest.SiteKey.Name}, PrefixLength: 30}
			if tt.open != "" {
				obj.Status.Blocks = []v1alpha1.CarvedBlock{{Range: "10.0.0.4/30", Allocation: "pool-1", UID: "uid-" + tt.open}}
			}
			set := func() {
				m := a.pools.lockPool(key)
				m.SetBasePool(obj)
				m.Unlock()
			}
			if !tt.first {
				set()
			}
			for _, namespace := range tt.seen {
				a.feed.observeBlock(grantstest.NewBlock("pool-1", in(namespace)))
			}
			set()
			m := a.pools.lockPool(key)
			defer m.Unlock()
			got := ""
			if b := m.Carved.Blocks["pool-1"]; b != nil {
				got = b.Namespace
			}
			if got != tt.want {
				t.Errorf("it takes the one of %q", got)
			}
		})
	}
}

// newGlobalChildAllocator returns an allocator that holds a global pool, which is carved from another.
func newGlobalChildAllocator(key pools.Key) *Allocator {
	a := New(Options{ManagerID: "me", BlockNamespace: "home", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
	obj := &v1alpha1.GlobalNetworkPool{ObjectMeta: metav1.ObjectMeta{Name: key.Name, UID: "pool-uid", ResourceVersion: "10", Generation: 1}}
	obj.Spec.Carve = &v1alpha1.Carve{PoolRef: v1alpha1.PoolReference{Kind: key.Kind, Name: grantstest.SiteKey.Name}, PrefixLength: 30}
	obj.Status.Allocator = &v1alpha1.AllocatorStatus{Holder: "me", Term: 1}
	m := a.pools.lockPool(key)
	defer m.Unlock()
	m.SetBasePool(obj)
	m.Term.Holder, m.Term.Number = true, 1
	m.RebuildLedger(&grants.ListedObjects{})
	return a
}

// TestBlockInOtherNamespaceEnds checks that a block in a namespace where no blocks of global pools are created any more
// ends, where it is the pool's own and nothing uses it: it was requested before the manager moved, and not opened by
// then.
func TestBlockInOtherNamespaceEnds(t *testing.T) {
	key := pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: grantstest.PoolKey.Name}
	for name, tt := range map[string]struct {
		block string
		del   bool
		used  bool
		bare  bool
		want  carve.Verb
	}{
		"Ours":       {block: "pool-1", want: carve.DeleteBlock},
		"Deleted":    {block: "pool-1", del: true, want: carve.RemoveBlockFinalizer},
		"ByHand":     {block: "vips"},
		"HandEnded":  {block: "vips", del: true, want: carve.RemoveBlockFinalizer},
		"InUse":      {block: "pool-1", del: true, used: true},
		"NotOurs":    {block: "pool-1", bare: true},
		"NoProtect":  {block: "pool-1", del: true, bare: true},
		"UsedAndOur": {block: "pool-1", used: true},
	} {
		t.Run(name, func(t *testing.T) {
			a := newGlobalChildAllocator(key)
			m := a.pools.lockPool(key)
			if tt.used {
				grantstest.ObserveAddress(m, "a", "10.0.0.5", "uid-a")
			}
			m.Unlock()
			a.feed.observeBlock(grantstest.NewBlock(tt.block, grantstest.FirstBlock, func(o *v1alpha1.IPAllocation) {
				o.Namespace, o.Spec.ChildPoolRef.Kind, o.Spec.PoolRef.Kind = "old", key.Kind, key.Kind
				if tt.bare {
					o.Finalizers = nil
				}
				if tt.del {
					grantstest.Deleted(o)
				}
			}))
			m = a.pools.lockPool(key)
			defer m.Unlock()
			m.Growth.PlanBlocks(grantstest.Noon, time.Minute)
			var got []carve.Verb
			out, _ := m.Growth.DueBlockRequests(grantstest.Noon, time.Minute)
			for _, r := range out {
				if r.Name == tt.block {
					got = append(got, r.Verb)
					if r.Block.IsOpenInStatus(&v1alpha1.NetworkPoolStatus{Blocks: []v1alpha1.CarvedBlock{{Allocation: r.Name, UID: "another"}}}) {
						t.Error("it waits for the block of its name at home to close")
					}
				}
			}
			if want := slices.DeleteFunc([]carve.Verb{tt.want}, func(v carve.Verb) bool { return v == "" }); !slices.Equal(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
		})
	}
}

// TestTenantCannotBlockGlobalPoolDeletion checks that a user who may create an IPAllocation in some namespace cannot
// block the deletion of a GlobalNetworkPool.
func TestTenantCannotBlockGlobalPoolDeletion(t *testing.T) {
	key := pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: grantstest.PoolKey.Name}
	o := grantstest.NewBlock("x", func(o *v1alpha1.IPAllocation) {
		o.Namespace, o.Spec.ChildPoolRef.Kind, o.Spec.PoolRef.Kind = "tenant", key.Kind, key.Kind
	})
	for name, spec := range map[string]v1alpha1.NetworkPoolSpec{
		"Plain":  {CIDR: "10.0.0.0/24"},
		"Carved": {Carve: &v1alpha1.Carve{PoolRef: v1alpha1.PoolReference{Kind: key.Kind, Name: grantstest.SiteKey.Name}, PrefixLength: 30}},
	} {
		t.Run(name, func(t *testing.T) {
			api := &patchCounter{}
			a := New(Options{ManagerID: "me", Client: api, Lister: listedAllocations{o}, BlockNamespace: "home", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
			obj := &v1alpha1.GlobalNetworkPool{ObjectMeta: metav1.ObjectMeta{
				Name: key.Name, UID: "pool-uid", ResourceVersion: "10", Generation: 1, DeletionTimestamp: ptr.To(metav1.NewTime(grantstest.Noon)), Finalizers: []string{v1alpha1.PoolFinalizer},
			}}
			obj.Spec.NetworkPoolSpec = spec
			m := a.pools.lockPool(key)
			m.SetBasePool(obj)
			m.Term.Holder = true
			m.RebuildLedger(&grants.ListedObjects{})
			m.Unlock()
			if gone, err := a.metadata.reconcilePoolMetadata(t.Context(), a.pools.getOrCreatePool(key)); !gone || err != nil || api.n == 0 {
				t.Errorf("gone %v, %v, after %d patches", gone, err, api.n)
			}
		})
	}
}

// TestPlainPoolWaitsForNoBlock checks that a plain pool with the name of an earlier carved pool waits for no block of
// that pool.
func TestPlainPoolWaitsForNoBlock(t *testing.T) {
	o, api := grantstest.NewBlock("pool-1", grantstest.FirstBlock), &patchCounter{}
	a := New(Options{ManagerID: "me", Client: api, Lister: listedAllocations{o}, Clock: clocktesting.NewFakeClock(grantstest.Noon)})
	obj := grantstest.NewChildPool(t, plain).Base.Pool.(*v1alpha1.NetworkPool)
	obj.DeletionTimestamp, obj.Finalizers = ptr.To(metav1.NewTime(grantstest.Noon)), []string{v1alpha1.PoolFinalizer}
	m := a.pools.lockPool(grantstest.PoolKey)
	m.SetBasePool(obj)
	m.Term.Holder = true
	m.RebuildLedger(&grants.ListedObjects{})
	grantstest.ObserveBlock(m, o)
	m.Unlock()
	if gone, err := a.metadata.reconcilePoolMetadata(t.Context(), a.pools.getOrCreatePool(grantstest.PoolKey)); !gone || err != nil || api.n == 0 {
		t.Errorf("gone %v, %v, after %d patches", gone, err, api.n)
	}
}

// listedAllocations are the IPAllocations of an API server.
type listedAllocations []*v1alpha1.IPAllocation

func (l listedAllocations) List(_ context.Context, of client.Object, _ string, visit func(client.Object)) (string, error) {
	if _, ok := of.(*v1alpha1.IPAllocation); ok {
		for _, o := range l {
			visit(o.DeepCopy())
		}
	}
	return "100", nil
}

// patchCounter is an API server that counts patches.
type patchCounter struct {
	client.Client
	n int
}

func (c *patchCounter) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	c.n++
	return nil
}

// TestPoolWithBlocksIsNotForgotten checks that a pool that does not exist is not forgotten while it has a block,
// wherever the block is: the block ends later.
func TestPoolWithBlocksIsNotForgotten(t *testing.T) {
	for _, namespace := range []string{"home", "tenant"} {
		t.Run(namespace, func(t *testing.T) {
			a := New(Options{ManagerID: "me", BlockNamespace: "home", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
			o := grantstest.NewBlock("pool-1", grantstest.Deleted)
			o.Namespace, o.Spec.ChildPoolRef.Kind = namespace, v1alpha1.GlobalNetworkPoolKind
			a.feed.observeBlock(o)
			p := a.pools.getOrCreatePool(pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: grantstest.PoolKey.Name})
			if a.pools.dropUnusedPool(p); !slices.Contains(a.pools.allPools(), p) {
				t.Error("no manager will remove the finalizer")
			}
			a.feed.forgetBlock(p.Key, o.UID, o.Name)
			if a.pools.dropUnusedPool(p); slices.Contains(a.pools.allPools(), p) {
				t.Error("it is remembered for ever")
			}
		})
	}
}

// TestRefusedRequestInOtherNamespaceWaits checks that a request for a block in another namespace that the API server
// refuses waits before it is repeated, also where the block has changed since.
func TestRefusedRequestInOtherNamespaceWaits(t *testing.T) {
	key := pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: grantstest.PoolKey.Name}
	a := newGlobalChildAllocator(key)
	observe := func(version string) {
		a.feed.observeBlock(grantstest.NewBlock("pool-1", grantstest.FirstBlock, func(o *v1alpha1.IPAllocation) {
			o.Namespace, o.Spec.ChildPoolRef.Kind, o.Spec.PoolRef.Kind, o.ResourceVersion = "old", key.Kind, key.Kind, version
		}))
	}
	observe("100")
	m := a.pools.lockPool(key)
	due := func() []grants.BlockRequest {
		out, _ := m.Growth.DueBlockRequests(grantstest.Noon, time.Minute)
		return slices.DeleteFunc(out, func(r grants.BlockRequest) bool { return r.Verb == carve.CreateBlock })
	}
	requests := due()
	if len(requests) != 1 {
		t.Fatalf("%v", requests)
	}
	m.Carved.BeginBlockRequest(requests[0])
	m.Carved.EndBlockRequest(requests[0], errors.New("a policy refuses it"), grantstest.Noon)
	m.Unlock()
	observe("101")
	m = a.pools.lockPool(key)
	defer m.Unlock()
	if again := due(); len(again) > 0 {
		t.Errorf("%v is repeated at once", again)
	}
}
