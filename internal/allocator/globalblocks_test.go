package allocator

import (
	"context"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// Blocks of GlobalNetworkPools, which are in one namespace.

// Anybody may make an IPAllocation that says it is for a global pool: only in one namespace that counts. What is on record
// as open counts wherever it is, so that the manager may move to another namespace.
func TestBlocksOfAGlobalPool(t *testing.T) {
	key := pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: testKey.Name}
	in := func(namespace string) func(*v1alpha1.IPAllocation) {
		return func(o *v1alpha1.IPAllocation) {
			o.Namespace, o.UID = namespace, types.UID("uid-"+namespace)
			o.Spec.ChildPoolRef.Kind, o.Spec.PoolRef.Kind = key.Kind, key.Kind
		}
	}
	tests := map[string]struct {
		open  string // the namespace of what is open
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
			a := New(Options{ID: "me", BlockNamespace: "home", Clock: clocktesting.NewFakeClock(noon)})
			obj := &v1alpha1.GlobalNetworkPool{ObjectMeta: metav1.ObjectMeta{Name: key.Name, UID: "pool-uid", ResourceVersion: "10", Generation: 1}}
			obj.Spec.Carve = &v1alpha1.Carve{PoolRef: v1alpha1.PoolReference{Kind: key.Kind, Name: siteKey.Name}, PrefixLength: 30}
			if tt.open != "" {
				obj.Status.Blocks = []v1alpha1.CarvedBlock{{Range: "10.0.0.4/30", Allocation: "pool-1", UID: "uid-" + tt.open}}
			}
			set := func() {
				m := a.locked(key)
				m.SetBase(obj)
				m.Unlock()
			}
			if !tt.first {
				set()
			}
			for _, namespace := range tt.seen {
				a.observeBlock(newBlock("pool-1", in(namespace)))
			}
			set()
			m := a.locked(key)
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

// A block in a namespace where no blocks of global pools are made any more ends, where it is the pool's own and nothing uses
// it: it was asked for before the manager moved, and not opened by then.
func TestABlockAbroadEnds(t *testing.T) {
	key := pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: testKey.Name}
	for name, tt := range map[string]struct {
		block string
		del   bool
		used  bool
		bare  bool
		want  grants.BlockVerb
	}{
		"Ours":       {block: "pool-1", want: grants.DeleteBlock},
		"Deleted":    {block: "pool-1", del: true, want: grants.ReleaseBlock},
		"ByHand":     {block: "vips"},
		"HandEnded":  {block: "vips", del: true, want: grants.ReleaseBlock},
		"InUse":      {block: "pool-1", del: true, used: true},
		"NotOurs":    {block: "pool-1", bare: true},
		"NoProtect":  {block: "pool-1", del: true, bare: true},
		"UsedAndOur": {block: "pool-1", used: true},
	} {
		t.Run(name, func(t *testing.T) {
			a := New(Options{ID: "me", BlockNamespace: "home", Clock: clocktesting.NewFakeClock(noon)})
			obj := &v1alpha1.GlobalNetworkPool{ObjectMeta: metav1.ObjectMeta{Name: key.Name, UID: "pool-uid", ResourceVersion: "10", Generation: 1}}
			obj.Spec.Carve = &v1alpha1.Carve{PoolRef: v1alpha1.PoolReference{Kind: key.Kind, Name: siteKey.Name}, PrefixLength: 30}
			obj.Status.Allocator = &v1alpha1.AllocatorStatus{Holder: "me", Term: 1}
			m := a.locked(key)
			m.SetBase(obj)
			m.Holder, m.Term = true, 1
			m.Rebuild(&grants.Listed{})
			if tt.used {
				seeAddress(m, "a", "10.0.0.5", "uid-a")
			}
			m.Unlock()
			a.observeBlock(newBlock(tt.block, firstBlock, func(o *v1alpha1.IPAllocation) {
				o.Namespace, o.Spec.ChildPoolRef.Kind, o.Spec.PoolRef.Kind = "old", key.Kind, key.Kind
				if tt.bare {
					o.Finalizers = nil
				}
				if tt.del {
					deleted(o)
				}
			}))
			m = a.locked(key)
			defer m.Unlock()
			m.TurnBlocks(noon, time.Minute)
			var got []grants.BlockVerb
			out, _ := m.BlockRequests(noon, time.Minute)
			for _, r := range out {
				if r.Name == tt.block {
					got = append(got, r.Verb)
					if r.Block.IsOpenIn(&v1alpha1.NetworkPoolStatus{Blocks: []v1alpha1.CarvedBlock{{Allocation: r.Name, UID: "another"}}}) {
						t.Error("it waits for the block of its name at home to close")
					}
				}
			}
			if want := slices.DeleteFunc([]grants.BlockVerb{tt.want}, func(v grants.BlockVerb) bool { return v == "" }); !slices.Equal(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
		})
	}
}

// Whoever may make an IPAllocation in some namespace keeps no GlobalNetworkPool from being deleted.
func TestATenantHoldsNoGlobalPool(t *testing.T) {
	key := pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: testKey.Name}
	o := newBlock("x", func(o *v1alpha1.IPAllocation) {
		o.Namespace, o.Spec.ChildPoolRef.Kind, o.Spec.PoolRef.Kind = "tenant", key.Kind, key.Kind
	})
	for name, spec := range map[string]v1alpha1.NetworkPoolSpec{
		"Plain":  {CIDR: "10.0.0.0/24"},
		"Carved": {Carve: &v1alpha1.Carve{PoolRef: v1alpha1.PoolReference{Kind: key.Kind, Name: siteKey.Name}, PrefixLength: 30}},
	} {
		t.Run(name, func(t *testing.T) {
			api := &patches{}
			a := New(Options{ID: "me", Client: api, Lists: listed{o}, BlockNamespace: "home", Clock: clocktesting.NewFakeClock(noon)})
			obj := &v1alpha1.GlobalNetworkPool{ObjectMeta: metav1.ObjectMeta{
				Name: key.Name, UID: "pool-uid", ResourceVersion: "10", Generation: 1, DeletionTimestamp: ptr.To(metav1.NewTime(noon)), Finalizers: []string{v1alpha1.PoolFinalizer},
			}}
			obj.Spec.NetworkPoolSpec = spec
			m := a.locked(key)
			m.SetBase(obj)
			m.Holder = true
			m.Rebuild(&grants.Listed{})
			m.Unlock()
			if gone, err := a.finalize(t.Context(), a.pool(key)); !gone || err != nil || api.n == 0 {
				t.Errorf("gone %v, %v, after %d patches", gone, err, api.n)
			}
		})
	}
}

// A plain pool that took the name of a carved one waits for no block of that.
func TestAPlainPoolWaitsForNoBlock(t *testing.T) {
	o, api := newBlock("pool-1", firstBlock), &patches{}
	a := New(Options{ID: "me", Client: api, Lists: listed{o}, Clock: clocktesting.NewFakeClock(noon)})
	obj := aChild(t, plain).Base.(*v1alpha1.NetworkPool)
	obj.DeletionTimestamp, obj.Finalizers = ptr.To(metav1.NewTime(noon)), []string{v1alpha1.PoolFinalizer}
	m := a.locked(testKey)
	m.SetBase(obj)
	m.Holder = true
	m.Rebuild(&grants.Listed{})
	shown(m, o)
	m.Unlock()
	if gone, err := a.finalize(t.Context(), a.pool(testKey)); !gone || err != nil || api.n == 0 {
		t.Errorf("gone %v, %v, after %d patches", gone, err, api.n)
	}
}

// listed are the IPAllocations of an API server.
type listed []*v1alpha1.IPAllocation

func (l listed) List(_ context.Context, of client.Object, _ string, visit func(client.Object)) (string, error) {
	if _, is := of.(*v1alpha1.IPAllocation); is {
		for _, o := range l {
			visit(o.DeepCopy())
		}
	}
	return "100", nil
}

// patches is an API server that counts patches.
type patches struct {
	client.Client
	n int
}

func (c *patches) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	c.n++
	return nil
}

// A block of a pool that does not exist ends later, wherever it is: until then the pool is not forgotten.
func TestAPoolWithBlocksIsNotForgotten(t *testing.T) {
	for _, namespace := range []string{"home", "tenant"} {
		t.Run(namespace, func(t *testing.T) {
			a := New(Options{ID: "me", BlockNamespace: "home", Clock: clocktesting.NewFakeClock(noon)})
			o := newBlock("pool-1", deleted)
			o.Namespace, o.Spec.ChildPoolRef.Kind = namespace, v1alpha1.GlobalNetworkPoolKind
			a.observeBlock(o)
			p := a.pool(pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: testKey.Name})
			if a.drop(p); !slices.Contains(a.all(), p) {
				t.Error("nobody will take the finalizer off")
			}
			a.forgetBlock(p.Key, o.UID, o.Name)
			if a.drop(p); slices.Contains(a.all(), p) {
				t.Error("it is remembered for ever")
			}
		})
	}
}
