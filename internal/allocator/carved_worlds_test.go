package allocator_test

import (
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// Scenarios of pools that are carved from the first pool.

const child = "child"

// carvable allows pools to be carved from a pool.
func carvable(s *v1alpha1.NetworkPoolSpec) { s.Carvable = &v1alpha1.Carvable{} }

// allowsOverlap lets a pool share its addresses with others of its network.
func allowsOverlap(s *v1alpha1.NetworkPoolSpec) { s.AllowOverlap = true }

// makeChild adds a pool that is carved from another one in blocks of /31.
func makeChild(name, parent string, least, most int32, change ...func(*v1alpha1.NetworkPoolSpec)) action {
	return sim.NewAttempt(fmt.Sprintf("add pool %s, carved from %s", name, parent), func(w *world) bool {
		spec := v1alpha1.NetworkPoolSpec{AllocateReservedIPAddresses: true, Carve: &v1alpha1.Carve{
			PoolRef: v1alpha1.PoolReference{Name: parent}, PrefixLength: 31, Blocks: v1alpha1.CarvedBlocks{Min: least, Max: most},
		}}
		for _, f := range change {
			f(&spec)
		}
		return w.api.Create(&v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: spec}) == nil
	})
}

// makePlain adds a pool that has addresses of its own.
func makePlain(name, addresses string, change ...func(*v1alpha1.NetworkPoolSpec)) action {
	return sim.NewAttempt(fmt.Sprintf("add pool %s of %s", name, addresses), func(w *world) bool {
		return w.api.Create(&v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: Pool(addresses, change...)}) == nil
	})
}

// until waits until a condition is true.
func until(text string, condition func(*world) bool) action {
	return sim.NewAttempt("wait until "+text, condition)
}

// blocksOpen waits until a pool has n open blocks.
func blocksOpen(pool string, n int) action {
	return until(fmt.Sprintf("%s has %d blocks", pool, n), func(w *world) bool {
		for _, p := range faults.ListObjects[*v1alpha1.NetworkPool](w.api) {
			if p.Name == pool {
				return len(p.Status.Blocks) == n
			}
		}
		return false
	})
}

func dropOf(pool string) action {
	return sim.NewAttempt("delete pool "+pool, func(w *world) bool { return w.api.Delete(ref(faults.Pools, pool), false) == nil })
}

// carvedPoolServedBefore leaves the carved pool as a move brings it: with our finalizer, and without a status.
var carvedPoolServedBefore = sim.NewAttempt("the carved pool was served", func(w *world) bool {
	return w.api.EditObject(ref(faults.Pools, child), func(o client.Object) { controllerutil.AddFinalizer(o, v1alpha1.PoolFinalizer) }) == nil
})

// inheritBlock creates a block as a move leaves it: with its record and its finalizers, and without a status.
func inheritBlock(name, first, last string) action {
	return sim.NewAttempt("restore block "+name, func(w *world) bool {
		r := netipx.IPRangeFrom(netip.MustParseAddr(first), netip.MustParseAddr(last))
		w.create(&v1alpha1.IPAllocation{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: name, Finalizers: []string{v1alpha1.CarvedPoolFinalizer, v1alpha1.IPAllocationFinalizer},
				Annotations: map[string]string{v1alpha1.AddressAnnotation: poolutil.FormatRange(r)},
			},
			Spec: v1alpha1.IPAllocationSpec{
				PoolRef: v1alpha1.PoolReference{Name: poolName}, Type: v1alpha1.PoolAllocation, PrefixLength: ptr.To[int32](31),
				ChildPoolRef: &v1alpha1.PoolReference{Name: child},
			},
		})
		return true
	})
}

// inheritFrom creates a claim of a carved pool as a move leaves it: its IPAddress comes with it.
func inheritFrom(pool, name, address string) action {
	made := inherit(name, address)
	return sim.NewAttempt(made.Text+" of "+pool, func(w *world) bool {
		w.inheritingPool = pool
		defer func() { w.inheritingPool = "" }()
		return made.Do(w)
	})
}

func threeOf(pool string) []action {
	return []action{addTo(pool, "a"), addTo(pool, "b"), addTo(pool, "c")}
}

var carved = []scenario{
	{
		name: "carved", spec: Pool("10.0.0.0-10.0.0.15", reserve, carvable), capacity: 3, ordered: true,
		before: append([]action{makeChild(child, poolName, 1, 2)}, threeOf(child)...),
	},
	{
		// It grows while claims wait, and releases blocks that are not used.
		name: "carved grows and shrinks", spec: Pool("10.0.0.0-10.0.0.15", reserve, carvable), capacity: 3, ordered: true, prompt: true,
		before: []action{makeChild(child, poolName, 0, 3)},
		script: slices.Concat(threeOf(child), []action{remove("b"), remove("c"), blocksOpen(child, 1), addTo(child, "d"), addTo(child, "e")}),
	},
	{
		name: "carved deleted", spec: Pool("10.0.0.0-10.0.0.15", reserve, carvable), capacity: 1, ordered: true,
		before: []action{makeChild(child, poolName, 2, 2), addTo(child, "a")},
		script: []action{dropOf(child), remove("a"), add("b")},
	},
	{
		// A user deletes a block that is in use: it drains.
		name: "block deleted", spec: Pool("10.0.0.0-10.0.0.15", reserve, carvable), capacity: 3, ordered: true,
		before: append([]action{makeChild(child, poolName, 1, 3)}, threeOf(child)...),
		script: []action{deallocate(child + "-1"), remove("a"), remove("b"), remove("c"), addTo(child, "d"), addTo(child, "e"), addTo(child, "f")},
	},
	{
		// The parent is full, and has room again.
		name: "parent full", spec: Pool("10.0.0.0-10.0.0.3", reserve, carvable), capacity: 4, ordered: true,
		before: append([]action{makeChild(child, poolName, 1, 3), add("x")}, threeOf(child)...),
		script: []action{remove("x")},
	},
	{
		// A block in use is gone: the pool gets the same addresses again.
		name: "block forced", spec: Pool("10.0.0.0-10.0.0.15", reserve, carvable), capacity: 3, ordered: true, forced: true,
		before: append([]action{makeChild(child, poolName, 1, 3)}, threeOf(child)...),
		script: []action{forceDelete(faults.Allocations, child+"-1"), remove("a"), addTo(child, "d"), remove("c"), addTo(child, "e")},
	},
	{
		// A block is gone by force, and claims wait for its addresses: they are not granted while the child has them in
		// use.
		name: "block forced, parent full", spec: Pool("10.0.0.0-10.0.0.3", reserve, carvable), capacity: 4, ordered: true, forced: true,
		before: []action{makeChild(child, poolName, 1, 1), addTo(child, "a"), addTo(child, "b")},
		script: []action{add("c"), add("d"), add("e"), add("f"), forceDelete(faults.Allocations, child+"-1"), remove("c"), remove("d"), remove("e")},
	},
	{
		// A block is gone by force, and an allocation for a Cluster has its name: it comes back under another name.
		name: "block forced, name taken", spec: Pool("10.0.0.0-10.0.0.15", reserve, carvable), capacity: 3, ordered: true, forced: true,
		before: append([]action{makeChild(child, poolName, 1, 3)}, threeOf(child)...),
		script: []action{
			sim.NewAttempt("block "+child+"-1 is gone, and its name is taken", func(w *world) bool {
				return forceDelete(faults.Allocations, child+"-1").Do(w) && allocate(child+"-1", 1).Do(w)
			}),
			remove("b"), addTo(child, "d"),
		},
	},
	{
		// The same for a pool that is being deleted: the block is requested once, and goes with the last claim.
		name: "block forced, name taken, pool deleted", spec: Pool("10.0.0.0-10.0.0.15", reserve, carvable), capacity: 0, ordered: true, forced: true,
		before: append([]action{makeChild(child, poolName, 1, 3)}, threeOf(child)...),
		script: []action{
			dropOf(child), sim.NewAttempt("block "+child+"-1 is gone, and its name is taken", func(w *world) bool {
				return forceDelete(faults.Allocations, child+"-1").Do(w) && allocate(child+"-1", 1).Do(w)
			}),
			remove("b"), remove("a"), remove("c"),
		},
	},
	{
		// The same where the parent shares its addresses with other pools: its children are not among these.
		name: "block forced, parent allows overlap", spec: Pool("10.0.0.0-10.0.0.3", reserve, carvable, allowsOverlap), capacity: 4, ordered: true, forced: true,
		before: []action{makeChild(child, poolName, 1, 1), addTo(child, "a"), addTo(child, "b")},
		script: []action{add("c"), add("d"), add("e"), add("f"), forceDelete(faults.Allocations, child+"-1"), remove("c"), remove("d"), remove("e")},
	},
	{
		// A restore brings a claim and its IPAddress, but not the block, which was granted to others since.
		name: "claim restored, block given on", spec: Pool("10.0.0.0-10.0.0.3", reserve, carvable), capacity: 4, ordered: true,
		before: []action{makeChild(child, poolName, 0, 1), add("c"), add("d"), add("e"), add("f")},
		script: []action{
			until("f has its address", func(w *world) bool { return len(w.api.List(faults.Addresses)) == 4 }),
			restore(child, "a", "10.0.0.1"),
			until("the IPAddress that was restored is gone", func(w *world) bool { return len(w.api.List(faults.Addresses)) == 4 }),
			remove("a"),
		},
	},
	{
		// The same in the pool itself, which knows which claim has the address.
		name: "claim restored, address given on", spec: Pool("10.0.0.0-10.0.0.3", reserve, carvable), capacity: 4, ordered: true,
		before: []action{add("c"), add("d"), add("e"), add("f")},
		script: []action{
			until("f has its address", func(w *world) bool { return len(w.api.List(faults.Addresses)) == 4 }),
			restore(poolName, "a", "10.0.0.1"),
		},
	},
	{
		// The pool is gone by force, and so is its block: its claims keep what they still have.
		name: "child and block forced", spec: Pool("10.0.0.0-10.0.0.1", reserve, carvable), capacity: 1, ordered: true, forced: true,
		before: []action{makeChild(child, poolName, 1, 1), addTo(child, "a"), addTo(child, "b")},
		script: []action{forceDelete(faults.Pools, child), forceDelete(faults.Allocations, child+"-1"), add("c"), remove("a"), remove("b")},
	},
	{
		// The pool is gone by force: its blocks are orphans, which go when its claims have gone.
		name: "child forced", spec: Pool("10.0.0.0-10.0.0.3", reserve, carvable), capacity: 1, ordered: true, forced: true,
		before: []action{makeChild(child, poolName, 1, 2), addTo(child, "a")},
		script: []action{forceDelete(faults.Pools, child), remove("a"), allocate("x", 4), until("x has its block", func(w *world) bool { return w.hasBlock("x") }), add("b"), deallocate("x")},
	},
	{
		// A pool of the same name that is carved from nothing takes its place: the block goes when the claim has gone.
		name: "child made plain", spec: Pool("10.0.0.0-10.0.0.3", reserve, carvable), capacity: 2, ordered: true, forced: true,
		before: []action{makeChild(child, poolName, 1, 2), addTo(child, "a")},
		script: []action{
			forceDelete(faults.Pools, child), makePlain(child, "10.0.1.1-10.0.1.2"), addTo(child, "b"), remove("a"),
			allocate("x", 4), until("x has its block", func(w *world) bool { return w.hasBlock("x") }), addTo(child, "c"),
		},
	},
	{
		// A pool of the same name that is carved from another one takes its place.
		name: "child made of another", spec: Pool("10.0.0.0-10.0.0.3", reserve, carvable), capacity: 1, ordered: true, forced: true,
		before: []action{makePlain("other", "10.0.1.0-10.0.1.3", reserve, carvable), makeChild(child, poolName, 1, 2), addTo(child, "a")},
		script: []action{
			forceDelete(faults.Pools, child), makeChild(child, "other", 1, 2), addTo(child, "b"), remove("a"),
			allocate("x", 4), until("x has its block", func(w *world) bool { return w.hasBlock("x") }),
		},
	},
	{
		// Two pools want more than there is.
		name: "two children", spec: Pool("10.0.0.0-10.0.0.5", reserve, carvable), capacity: 3, ordered: true,
		before: slices.Concat([]action{makeChild(child, poolName, 1, 2), makeChild("sibling", poolName, 1, 2)}, threeOf(child)),
		script: []action{
			addTo("sibling", "v"), addTo("sibling", "w"), addTo("sibling", "x"),
			remove("a"), remove("b"), remove("c"), blocksOpen("sibling", 2),
		},
	},
	{
		// A move brings the pool before its block, and the block before its claims.
		name: "child moved here", spec: Pool("10.0.0.0-10.0.0.15", reserve, carvable), capacity: 2, ordered: true,
		before: []action{
			makeChild(child, poolName, 1, 2), poolServedBefore, carvedPoolServedBefore, inheritBlock(child+"-1", "10.0.0.8", "10.0.0.9"),
			inheritFrom(child, "a", "10.0.0.9"),
		},
		script: []action{addTo(child, "b")},
		want:   map[string]string{"a": "10.0.0.9"},
	},
	{
		// As above, and a user deletes the block before the claims are here.
		name: "child moved here, block deleted", spec: Pool("10.0.0.0-10.0.0.15", reserve, carvable), capacity: 2, ordered: true,
		before: []action{
			makeChild(child, poolName, 1, 2), poolServedBefore, carvedPoolServedBefore, inheritBlock(child+"-1", "10.0.0.8", "10.0.0.9"),
			deallocate(child + "-1"), inheritFrom(child, "a", "10.0.0.9"),
		},
		script: []action{addTo(child, "b"), remove("a"), addTo(child, "c")},
	},
	{
		name: "carved twice", spec: Pool("10.0.0.0-10.0.0.15", reserve, carvable), capacity: 2, ordered: true,
		before: []action{
			makeChild(child, poolName, 0, 2, carvable), addTo(child, "a"),
			makeChild("grandchild", child, 0, 2, func(s *v1alpha1.NetworkPoolSpec) { s.Carve.PrefixLength = 32 }), addTo("grandchild", "b"),
		},
		script: []action{remove("b"), dropOf("grandchild"), addTo(child, "c")},
	},
}

func init() { scenarios = slices.Concat(scenarios, carved) } //nolint:gochecknoinits // one list, in several files

// restore brings a claim and its IPAddress back object by object: the IPAddress names the claim by its former UID.
func restore(pool, name, address string) action {
	return sim.NewAttempt("restore "+name, func(w *world) bool {
		c := claim(name)
		c.Spec.PoolRef.Name = pool
		c.Finalizers = []string{v1alpha1.ClaimFinalizer}
		c.Annotations = map[string]string{v1alpha1.AddressAnnotation: address}
		w.create(c)
		w.create(&ipamv1.IPAddress{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: name, Finalizers: []string{v1alpha1.AddressFinalizer},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: ipamv1.GroupVersion.String(), Kind: string(faults.Claims), Name: name, UID: "the-uid-before"}},
			},
			Spec: ipamv1.IPAddressSpec{ClaimRef: ipamv1.IPAddressClaimReference{Name: name}, PoolRef: c.Spec.PoolRef, Address: address},
		})
		return true
	})
}
