package allocator_test

import (
	"cmp"
	"flag"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// scenario is a pool, the claims that exist when the first manager starts, and the later actions of a user, each when
// everything is at rest.
type scenario struct {
	name     string
	spec     v1alpha1.NetworkPoolSpec
	capacity int
	// prompt reports whether each claimant that can be served is served within a pause, where nothing goes wrong.
	prompt bool
	// ordered reports whether the order of the user's actions decides which claim gets which address; then only the
	// promise of docs/design.md is checked where the user does not wait.
	ordered bool
	// starts is how many managers start where nothing goes wrong, if the result depends on what a manager had no time
	// to commit; 0 means that it does not.
	starts int
	// forced reports whether blocks are taken from pools that use them.
	forced bool
	// collects reports whether the garbage collector runs.
	collects bool
	claims   []string
	// before are the actions before the first manager starts.
	before []action
	script []action
	// want are addresses that claims must have at the end.
	want map[string]string
}

func (s scenario) pool() *v1alpha1.NetworkPool {
	return &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: poolName}, Spec: s.spec}
}

func claim(name string) *ipamv1.IPAddressClaim {
	return &ipamv1.IPAddressClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: ipamv1.IPAddressClaimSpec{
			PoolRef: ipamv1.IPPoolReference{APIGroup: v1alpha1.GroupVersion.Group, Kind: v1alpha1.NetworkPoolKind, Name: poolName},
		},
	}
}

func ref(kind faults.Kind, name string) faults.Ref {
	return faults.Ref{Kind: kind, Namespace: namespace, Name: name}
}

// Actions of users.

func add(name string) action {
	return sim.NewAttempt("add claim "+name, func(w *world) bool { return w.api.Create(claim(name)) == nil })
}

func request(name, address string) action {
	return sim.NewAttempt("add claim "+name+" for "+address, func(w *world) bool {
		c := claim(name)
		c.Annotations = map[string]string{v1alpha1.RequestedAddressAnnotation: address}
		return w.api.Create(c) == nil
	})
}

func remove(name string) action {
	return sim.NewAttempt("delete claim "+name, func(w *world) bool { return w.api.Delete(ref(faults.Claims, name), false) == nil })
}

// forceDelete deletes an object regardless of its finalizers.
func forceDelete(kind faults.Kind, name string) action {
	return sim.NewAttempt(fmt.Sprintf("force-delete %s %s", kind, name), func(w *world) bool {
		return client.IgnoreNotFound(w.api.Delete(ref(kind, name), true)) == nil
	})
}

// overtake deletes a claim as the API server may while our finalizer is added to it: it is gone at once, where its
// status does not name an address yet (https://github.com/kubernetes/kubernetes/issues/77988).
func overtake(name string) action {
	return sim.NewAttempt("delete claim "+name+" while it is served", func(w *world) bool {
		for _, c := range faults.ListObjects[*ipamv1.IPAddressClaim](w.api) {
			if c.Name == name && c.Status.AddressRef.Name == "" {
				return forceDelete(faults.Claims, name).Do(w)
			}
		}
		return remove(name).Do(w)
	})
}

// deleteAddressByHand deletes an IPAddress as a user does: its finalizer keeps it.
func deleteAddressByHand(name string) action {
	return sim.NewAttempt("delete IPAddress "+name, func(w *world) bool {
		return client.IgnoreNotFound(w.api.Delete(ref(faults.Addresses, name), false)) == nil
	})
}

// ownerless creates an IPAddress as a tool that restores no owner references does.
func ownerless(name, address string) action {
	return sim.NewAttempt("restore IPAddress "+name+" without owners", func(w *world) bool {
		w.create(&ipamv1.IPAddress{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Finalizers: []string{v1alpha1.AddressFinalizer}},
			Spec:       ipamv1.IPAddressSpec{ClaimRef: ipamv1.IPAddressClaimReference{Name: name}, PoolRef: claim(name).Spec.PoolRef, Address: address},
		})
		return true
	})
}

// record writes a record back.
func record(name, address string) action {
	return sim.NewAttempt("record "+address+" on claim "+name, func(w *world) bool {
		return w.api.EditObject(ref(faults.Claims, name), func(o client.Object) {
			annotations.AddAnnotations(o, map[string]string{v1alpha1.AddressAnnotation: address})
		}) == nil
	})
}

// inherit creates a claim and its IPAddress as a restore leaves them.
func inherit(name, address string) action {
	return sim.NewAttempt("restore "+name, func(w *world) bool {
		c := claim(name)
		c.Spec.PoolRef.Name = cmp.Or(w.inheritingPool, poolName)
		c.Finalizers = []string{v1alpha1.ClaimFinalizer}
		c.Annotations = map[string]string{v1alpha1.AddressAnnotation: address}
		w.create(c)
		var uid types.UID
		for _, o := range w.api.List(faults.Claims) {
			if o.GetName() == name {
				uid = o.GetUID()
			}
		}
		w.create(&ipamv1.IPAddress{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: name, Finalizers: []string{v1alpha1.AddressFinalizer},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: ipamv1.GroupVersion.String(), Kind: string(faults.Claims), Name: name, UID: uid}},
			},
			Spec: ipamv1.IPAddressSpec{ClaimRef: ipamv1.IPAddressClaimReference{Name: name}, PoolRef: c.Spec.PoolRef, Address: address},
		})
		return true
	})
}

// inheritLate is a restore that brings some of the objects while the manager still waits for what exists, and nothing
// after that (R10).
func inheritLate(name, address string) action {
	restore := inherit(name, address)
	return sim.NewAttempt(restore.Text+" late", func(w *world) bool { return time.Since(sim.Epoch) > time.Minute || restore.Do(w) })
}

// poolServedBefore leaves the pool as a move brings it: with our finalizer, and without a status.
var poolServedBefore = sim.NewAttempt("the pool was served", func(w *world) bool {
	return w.api.EditObject(ref(faults.Pools, poolName), func(o client.Object) { controllerutil.AddFinalizer(o, v1alpha1.PoolFinalizer) }) == nil
})

// allocate requests a block; change adapts it.
func allocate(name string, count int32, change ...func(*v1alpha1.IPAllocation)) action {
	return sim.NewAttempt(fmt.Sprintf("add allocation %s of %d", name, count), func(w *world) bool {
		o := &v1alpha1.IPAllocation{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: v1alpha1.IPAllocationSpec{
				PoolRef: v1alpha1.PoolReference{Name: poolName}, Count: &count, Type: v1alpha1.LoadBalancerAllocation,
				TenantClusterRef: v1alpha1.ClusterReference{Namespace: namespace, Name: "tenant"},
			},
		}
		for _, f := range change {
			f(o)
		}
		return w.api.Create(o) == nil
	})
}

func pinned(first, last string) func(*v1alpha1.IPAllocation) {
	return func(o *v1alpha1.IPAllocation) {
		o.Spec.PinnedRange = &v1alpha1.PinnedRange{StartAddress: first, EndAddress: last}
	}
}

func deallocate(name string) action {
	return sim.NewAttempt("delete allocation "+name, func(w *world) bool { return w.api.Delete(ref(faults.Allocations, name), false) == nil })
}

// allocated sets a range in the status of an allocation, as Butler wrote it, or a person does.
func allocated(name, first, last string) action {
	return sim.NewAttempt(fmt.Sprintf("the status of %s says %s-%s", name, first, last), func(w *world) bool {
		return faults.EditStatus(w.api, ref(faults.Allocations, name), func(o *v1alpha1.IPAllocation) {
			s := &o.Status
			s.Phase, s.StartAddress, s.EndAddress = v1alpha1.AllocationAllocated, first, last
		}) == nil
	})
}

func resize(addresses string) action {
	return sim.NewAttempt("the pool has "+addresses, func(w *world) bool {
		return faults.EditObject(w.api, ref(faults.Pools, poolName), func(o *v1alpha1.NetworkPool) {
			o.Spec.Addresses = []string{addresses}
		}) == nil
	})
}

// setClaimPaused pauses a claim, or ends its pause.
func setClaimPaused(name string, paused bool) action {
	return sim.NewAttempt(fmt.Sprintf("claim %s is paused: %v", name, paused), func(w *world) bool {
		return client.IgnoreNotFound(w.api.EditObject(ref(faults.Claims, name), setPaused(paused))) == nil
	})
}

// setPaused adds the annotation that pauses an object, or removes it.
func setPaused(paused bool) func(client.Object) {
	return func(o client.Object) {
		if delete(o.GetAnnotations(), clusterv1.PausedAnnotation); paused {
			annotations.AddAnnotations(o, map[string]string{clusterv1.PausedAnnotation: ""})
		}
	}
}

// setForeignFinalizer adds another controller's finalizer to an object, or removes it.
func setForeignFinalizer(kind faults.Kind, name string, kept bool) action {
	const finalizer = "example.com/guard"
	return sim.NewAttempt(fmt.Sprintf("%s %s is guarded: %v", kind, name, kept), func(w *world) bool {
		err := w.api.EditObject(ref(kind, name), func(o client.Object) {
			controllerutil.RemoveFinalizer(o, finalizer)
			if kept {
				controllerutil.AddFinalizer(o, finalizer)
			}
		})
		return err == nil || (!kept && apierrors.IsNotFound(err))
	})
}

// pin reserves an address for the claim of a name.
func pin(name, address string) action {
	return sim.NewAttempt(fmt.Sprintf("the pool keeps %s for %s", address, name), func(w *world) bool {
		return faults.EditObject(w.api, ref(faults.Pools, poolName), func(o *v1alpha1.NetworkPool) {
			o.Spec.PreAllocations = map[string]string{name: address}
		}) == nil
	})
}

var another = sim.NewAttempt("another manager starts", func(w *world) bool {
	w.start()
	return true
})

var (
	dropPool = sim.NewAttempt("delete the pool", func(w *world) bool { return w.api.Delete(ref(faults.Pools, poolName), false) == nil })
	makePool = sim.NewAttempt("create the pool again", func(w *world) bool {
		return w.api.Create(scenario{spec: Pool("10.0.0.1-10.0.0.2")}.pool()) == nil
	})
)

var makeCluster = sim.NewAttempt("create the Cluster", func(w *world) bool {
	return w.api.Create(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "tenant"}}) == nil
})

// addFor adds a claim for the Cluster.
func addFor(name string) action {
	return sim.NewAttempt("add claim "+name+" for the Cluster", func(w *world) bool {
		c := claim(name)
		c.Spec.ClusterName = "tenant"
		return w.api.Create(c) == nil
	})
}

// setClusterPaused pauses the Cluster, or ends its pause.
func setClusterPaused(paused bool) action {
	return sim.NewAttempt(fmt.Sprintf("the Cluster is paused: %v", paused), func(w *world) bool {
		return w.api.EditObject(ref(faults.Clusters, "tenant"), setPaused(paused)) == nil
	})
}

// stallWatches makes watches of the first manager show nothing until resumeWatches.
func stallWatches(kinds ...faults.Kind) action {
	return sim.NewAttempt("watches stop", func(w *world) bool {
		w.Managers[0].MuteWatches(kinds...)
		for _, kind := range kinds {
			w.Managers[0].client.HideKind(kind)
		}
		w.blinded = time.Now()
		return true
	})
}

// killOtherManagers kills all managers but the first that lives, and none takes their place.
var killOtherManagers = sim.NewAttempt("all managers but one die", func(w *world) bool {
	alive := false
	for _, m := range w.Managers {
		if alive && !m.Dead {
			w.Kill(m)
		}
		alive = alive || !m.Dead
	}
	return true
})

// resumeWatchOf resumes the watch on a kind of the first manager before the others.
func resumeWatchOf(kind faults.Kind) action {
	return sim.NewAttempt(fmt.Sprintf("the watch of %s goes on", kind), func(w *world) bool {
		w.Managers[0].UnmuteWatches(kind)
		return true
	})
}

var (
	resumeAddressWatch = resumeWatchOf(faults.Addresses)
	resumePoolWatch    = resumeWatchOf(faults.Pools)
)

var resumeWatches = sim.NewAttempt("watches go on", func(w *world) bool {
	w.Managers[0].UnmuteWatches(faults.AllocatorKinds...)
	w.Managers[0].client.HideKind("")
	return true
})

// resumeWatchesLate is resumeWatches at a time when what looks like an orphan has long looked like one.
var resumeWatchesLate = sim.NewAttempt(resumeWatches.Text+" late", func(w *world) bool { return time.Since(w.blinded) > 4*time.Minute && resumeWatches.Do(w) })

func Pool(addresses string, more ...func(*v1alpha1.NetworkPoolSpec)) v1alpha1.NetworkPoolSpec {
	bits := int32(24)
	s := v1alpha1.NetworkPoolSpec{Addresses: []string{addresses}, Prefix: &bits}
	for _, change := range more {
		change(&s)
	}
	return s
}

// reserve lets a pool also grant the first and last address of the subnet.
func reserve(s *v1alpha1.NetworkPoolSpec) { s.AllocateReservedIPAddresses = true }

func grace(seconds int64) func(*v1alpha1.NetworkPoolSpec) {
	return func(s *v1alpha1.NetworkPoolSpec) { s.AddressReuseGracePeriodSeconds = &seconds }
}

var scenarios = []scenario{
	{
		name: "blocks", spec: Pool("10.0.0.1-10.0.0.16"), prompt: true, capacity: 16, claims: []string{"a", "b"},
		before: []action{allocate("w", 3, pinned("10.0.0.14", "10.0.0.16"))},
		script: []action{
			allocate("x", 4), allocate("y", 6), add("c"), allocate("z", 5), deallocate("x"), remove("a"), deallocate("y"),
		},
		want: map[string]string{"w": "10.0.0.14-10.0.0.16"},
	},
	{
		name: "blocks again", spec: Pool("10.0.0.0-10.0.0.3", reserve), prompt: true, capacity: 0,
		script: slices.Repeat([]action{allocate("x", 4), deallocate("x")}, 4),
	},
	{
		name: "forced blocks", spec: Pool("10.0.0.1-10.0.0.8"), capacity: 2, claims: []string{"a"},
		script: []action{
			allocate("x", 4), forceDelete(faults.Allocations, "x"), allocate("x", 6), allocated("x", "10.0.0.1", "10.0.0.2"), add("b"), deallocate("x"),
		},
	},
	{
		name: "block cooling", spec: Pool("10.0.0.0-10.0.0.3", reserve, grace(30)), capacity: 0,
		script: []action{allocate("x", 4), deallocate("x"), allocate("y", 4), deallocate("y"), allocate("y", 4)},
	},
	{
		// An allocation whose Cluster is gone is collected; one whose Cluster is there again was never an orphan.
		name: "orphaned blocks", spec: Pool("10.0.0.1-10.0.0.8"), capacity: 2, claims: []string{"a"},
		script: []action{allocate("x", 4), forceDelete(faults.Clusters, "tenant"), add("b"), makeCluster, allocate("y", 4), forceDelete(faults.Clusters, "tenant")},
	},
	{
		// An object that a cache does not show may exist all the same.
		name: "unseen Cluster", spec: Pool("10.0.0.1-10.0.0.8"), capacity: 1,
		script: []action{allocate("x", 4, pinned("10.0.0.5", "10.0.0.8")), stallWatches(faults.Clusters), add("a"), resumeWatchesLate},
		want:   map[string]string{"x": "10.0.0.5-10.0.0.8"},
	},
	{
		name: "unseen claim", spec: Pool("10.0.0.1-10.0.0.8"), capacity: 2, claims: []string{"a"},
		script: []action{stallWatches(faults.Claims), inherit("b", "10.0.0.2"), allocate("x", 4), resumeWatchesLate}, want: map[string]string{"b": "10.0.0.2"},
	},
	{
		name: "adopted blocks", spec: Pool("10.0.0.1-10.0.0.12"), capacity: 2,
		before: []action{
			allocate("x", 4), allocated("x", "10.0.0.2", "10.0.0.5"), allocate("y", 2), allocated("y", "10.0.0.7", "10.0.0.8"),
		},
		claims: []string{"a"}, script: []action{allocate("z", 4), add("b"), deallocate("y")},
		want: map[string]string{"x": "10.0.0.2-10.0.0.5"},
	},
	{
		name: "burst", spec: Pool("10.0.0.1-10.0.0.8"), prompt: true, capacity: 8,
		claims: []string{"a", "b", "c", "d"},
	},
	{
		name: "arrivals", spec: Pool("10.0.0.1-10.0.0.8"), prompt: true, capacity: 8,
		script: []action{add("a"), add("b"), add("c")},
	},
	{
		name: "release", spec: Pool("10.0.0.1-10.0.0.8"), prompt: true, capacity: 8,
		claims: []string{"a", "b", "c"}, script: []action{remove("a"), remove("c")},
	},
	{
		name: "full", spec: Pool("10.0.0.1-10.0.0.2"), prompt: true, capacity: 2,
		claims: []string{"a", "b", "c", "d"}, script: []action{remove("a"), remove("d"), remove("b"), add("e")},
	},
	{
		name: "pinned", spec: Pool("10.0.0.1-10.0.0.3", func(s *v1alpha1.NetworkPoolSpec) {
			s.PreAllocations = map[string]string{"vip": "10.0.0.1"}
		}), prompt: true, capacity: 3,
		script: []action{request("x", "10.0.0.3"), add("a"), add("vip"), remove("vip"), add("vip")},
		want:   map[string]string{"vip": "10.0.0.1", "x": "10.0.0.3", "a": "10.0.0.2"},
	},
	{
		// An address that a claim has is kept for a name from the moment on at which it is released.
		name: "pinned late", spec: Pool("10.0.0.1-10.0.0.3"), capacity: 3,
		claims: []string{"a"}, script: []action{pin("vip", "10.0.0.1"), add("vip"), forceDelete(faults.Addresses, "a"), add("b"), remove("a")},
		want: map[string]string{"vip": "10.0.0.1"},
	},
	{
		name: "cooling", spec: Pool("10.0.0.1-10.0.0.2", grace(30)), capacity: 2,
		claims: []string{"a", "b"}, script: []action{remove("a"), add("c"), remove("b"), add("b")},
	},
	{
		// An IPAddress that was forced away rests when its claim ends, and the address of a claim that was forced away
		// rests when its IPAddress is removed.
		name: "forced cooling", spec: Pool("10.0.0.1-10.0.0.3", grace(30)), capacity: 3,
		claims: []string{"a", "b"}, script: []action{
			forceDelete(faults.Addresses, "a"), remove("a"), add("c"), forceDelete(faults.Claims, "b"), add("b"), setClaimPaused("c", true), forceDelete(faults.Addresses, "c"), remove("c"), setClaimPaused("c", false), add("d"),
		},
	},
	{
		name: "prefixes", spec: v1alpha1.NetworkPoolSpec{CIDR: "10.0.0.0/26", AllocationPrefixLength: new(int32(28))}, prompt: true, capacity: 4,
		claims: []string{"a", "b", "c"}, script: []action{remove("b"), add("d")},
	},
	{
		name: "forced", spec: Pool("10.0.0.1-10.0.0.3"), prompt: true, capacity: 3,
		claims: []string{"a", "b"}, script: []action{forceDelete(faults.Addresses, "a"), add("c"), deleteAddressByHand("b"), forceDelete(faults.Addresses, "b"), remove("a")},
	},
	{
		// An IPAddress that is deleted by hand stays with its claim, and goes with it.
		name: "deleted by hand", spec: Pool("10.0.0.1-10.0.0.1"), capacity: 1,
		claims: []string{"a"}, script: []action{deleteAddressByHand("a"), add("b"), remove("a")}, want: map[string]string{"b": "10.0.0.1"},
	},
	{
		// A restore that keeps neither owners nor records: a user writes a record back, or deletes the IPAddress.
		name: "restored without owners", spec: Pool("10.0.0.1-10.0.0.2"), capacity: 2,
		before: []action{ownerless("a", "10.0.0.1"), ownerless("b", "10.0.0.2")}, claims: []string{"a", "b"},
		script: []action{record("a", "10.0.0.1"), deleteAddressByHand("b"), add("c")}, want: map[string]string{"a": "10.0.0.1", "b": "10.0.0.2"},
	},
	{
		name: "guarded", spec: Pool("10.0.0.1-10.0.0.1"), capacity: 1,
		claims: []string{"a"}, script: []action{setForeignFinalizer(faults.Addresses, "a", true), remove("a"), add("b"), setForeignFinalizer(faults.Addresses, "a", false)},
		want: map[string]string{"b": "10.0.0.1"},
	},
	{
		// No manager may create its IPAddress again now, and no other claim may get the address.
		name: "forced while paused", spec: Pool("10.0.0.1-10.0.0.2"), capacity: 2,
		claims: []string{"a"}, script: []action{setClaimPaused("a", true), forceDelete(faults.Addresses, "a"), add("b"), setClaimPaused("a", false)},
	},
	{
		// An address that was granted before the pause is kept for its claim, and no other claim waits.
		name: "Cluster pauses", spec: Pool("10.0.0.1-10.0.0.3"), capacity: 3, before: []action{addFor("a"), addFor("b")},
		script: []action{setClusterPaused(true), add("c"), remove("a"), addFor("d"), setClusterPaused(false)},
	},
	{
		name: "again", spec: Pool("10.0.0.1-10.0.0.2"), prompt: true, capacity: 2,
		claims: []string{"a", "b", "c"}, script: []action{remove("a"), add("a"), remove("a"), add("a")},
	},
	{
		name: "remade", spec: Pool("10.0.0.1-10.0.0.1"), prompt: true, capacity: 1,
		claims: []string{"a"}, script: slices.Repeat([]action{remove("a"), add("a")}, 6),
	},
	{
		// The IPAddress of an ended claim is kept by another controller's finalizer, and the next claim of the name
		// needs it.
		name: "kept by another", spec: Pool("10.0.0.1-10.0.0.2"), capacity: 2,
		claims: []string{"a"}, script: []action{setForeignFinalizer(faults.Addresses, "a", true), forceDelete(faults.Claims, "a"), add("a"), waitElapsed(5 * time.Minute), setForeignFinalizer(faults.Addresses, "a", false)},
	},
	{
		name: "ripped", spec: Pool("10.0.0.1-10.0.0.2"), capacity: 2,
		claims: []string{"a", "b", "c"}, script: []action{forceDelete(faults.Claims, "a"), add("a"), forceDelete(faults.Claims, "b")},
	},
	{
		// The next claim of the name needs the IPAddress of the one that was forced away.
		name: "replaced", spec: Pool("10.0.0.1-10.0.0.1"), prompt: true, capacity: 1,
		claims: []string{"a"}, script: slices.Repeat([]action{forceDelete(faults.Claims, "a"), add("a")}, 4),
	},
	{
		// A claim of another name needs the address of one that ended before its status named it.
		name: "overtaken", spec: Pool("10.0.0.1-10.0.0.1"), prompt: true, capacity: 1,
		claims: []string{"a"}, script: []action{overtake("a"), add("b"), overtake("b"), add("c"), overtake("c"), add("d")},
	},
	{
		name: "takeover", spec: Pool("10.0.0.1-10.0.0.3"), prompt: true, capacity: 3,
		claims: []string{"a", "b"}, script: []action{another, remove("a"), add("c"), add("d"), add("e")},
	},
	{
		name: "resized", spec: Pool("10.0.0.1-10.0.0.4"), capacity: 2,
		claims: []string{"a", "b"}, script: []action{resize("10.0.0.2-10.0.0.3"), remove("a"), add("c")},
	},
	{
		name: "renewed", spec: Pool("10.0.0.1-10.0.0.2"), capacity: 2,
		claims: []string{"a", "b"}, script: []action{dropPool, add("c"), remove("a"), remove("b"), makePool, add("d")},
	},
	{
		name: "stale", spec: Pool("10.0.0.1-10.0.0.2"), capacity: 2, claims: []string{"a"},
		script: []action{another, remove("a"), dropPool, stallWatches(faults.Pools, faults.Addresses), makePool, add("c"), resumeWatches},
	},
	{
		// Changes that the manager that takes over again has missed are in its list.
		name: "behind", spec: Pool("10.0.0.1-10.0.0.8"), capacity: 2, claims: []string{"a"},
		script: []action{another, stallWatches(faults.Claims, faults.Addresses), add("b"), killOtherManagers, allocate("x", 2), resumeWatches},
	},
	{
		// A manager that knows neither that its term is over, nor that the claim is another one, sees the new
		// IPAddress.
		name: "usurped", spec: Pool("10.0.0.1-10.0.0.1"), capacity: 1, claims: []string{"a"},
		script: []action{stallWatches(faults.Pools, faults.Claims, faults.Addresses), another, remove("a"), add("a"), resumeAddressWatch, resumeWatches},
	},
	{
		name: "poolless", spec: Pool("10.0.0.1-10.0.0.2"), capacity: 2, before: []action{inherit("a", "10.0.0.2"), dropPool},
		script: []action{makePool, add("b"), dropPool, remove("b"), remove("a"), makePool},
	},
	{
		name: "adopted", spec: Pool("10.0.0.1-10.0.0.3"), capacity: 3, before: []action{inherit("a", "10.0.0.2")},
		claims: []string{"b"}, script: []action{add("c"), remove("b")}, want: map[string]string{"a": "10.0.0.2"},
	},
	{
		name: "restored", spec: Pool("10.0.0.1-10.0.0.3"), capacity: 3, before: []action{inherit("a", "10.0.0.2")},
		claims: []string{"b"}, script: []action{inheritLate("c", "10.0.0.1")}, want: map[string]string{"a": "10.0.0.2"},
	},
	{
		// A move brings the pool first.
		name: "moved here", spec: Pool("10.0.0.1-10.0.0.3"), capacity: 2, before: []action{poolServedBefore},
		claims: []string{"b"}, script: []action{inheritLate("a", "10.0.0.1")},
	},
}

// Possible outcomes of a call.

// storms is the number of random runs of a scenario with one manager, and with two.
var storms = flag.Int("storms", 40, "random runs of each scenario; a third of them with -short")

// seeds returns the number of random runs.
func seeds() int {
	if testing.Short() {
		return *storms / 3
	}
	return *storms
}

// crc returns a seed that is derived from a name.
func crc(name string, n int) uint64 { return uint64(crc32.ChecksumIEEE([]byte(name))) + uint64(n) }

// disturbance is an outcome of a write; do returns false where the write then happens as usual.
type disturbance struct {
	name string
	do   func(w *world, r *faults.Request) bool
}

// late makes a write time out, and happen after so many more writes.
func late(writes int, wait time.Duration) func(*world, *faults.Request) bool {
	return func(w *world, r *faults.Request) bool { return w.DelayCall(r, writes, wait) }
}

// sleep pauses the manager that writes before the write is sent, and starts another one in its place.
func sleep(writes int, wait time.Duration) func(*world, *faults.Request) bool {
	return func(w *world, r *faults.Request) bool { return w.PauseBefore(r, writes, wait) }
}

// mute makes watches of the manager that writes show nothing for a while. Changes meanwhile are shown later, or lost
// where the watch breaks: a new list makes up for them.
func mute(lose bool, kinds ...faults.Kind) func(*world, *faults.Request) bool {
	return func(w *world, r *faults.Request) bool {
		m := w.Manager(r.Client)
		m.MuteWatches(kinds...)
		w.DelayStep(0, 20*time.Second, func() {
			for _, kind := range kinds {
				if m.UnmuteWatches(kind); lose {
					w.relist(m, kind, 0)
				}
			}
		})
		return false
	}
}

func relisted(delay time.Duration) func(*world, *faults.Request) bool {
	return func(w *world, r *faults.Request) bool {
		for _, kind := range faults.AllocatorKinds {
			w.relist(w.Manager(r.Client), kind, delay)
		}
		return false
	}
}

var disturbances = []disturbance{
	{"crash-before", (*world).CrashBefore},
	{"crash-after", (*world).CrashAfter},
	{"crash-late", func(w *world, r *faults.Request) bool { return w.CrashLate(r, 3, pause) }},
	{"answer-lost", (*world).LoseAnswer},
	{"no-answer", func(w *world, r *faults.Request) bool {
		_, _ = w.Execute(r)
		return true
	}},
	{"refused", func(w *world, r *faults.Request) bool {
		return w.Answer(r, nil, apierrors.NewInternalError(fmt.Errorf("etcd has no leader")))
	}},
	{"conflict", func(w *world, r *faults.Request) bool {
		w.Change("another hand touches "+r.Ref.Name, func() {
			_ = w.api.EditObject(r.Ref, func(o client.Object) { o.SetLabels(map[string]string{"touched": "yes"}) })
		})
		return false
	}},
	{"sent-twice", func(w *world, r *faults.Request) bool {
		_, _ = w.Execute(r)
		return false
	}},
	{"late-1", late(1, pause)},
	{"late-3", late(3, pause)},
	{"late-rest", late(0, 100*time.Second)},
	{"late-untold", func(w *world, r *faults.Request) bool { return w.ExecuteLate(r, 0, 20*time.Second) }},
	{"paused-2", sleep(2, pause)},
	{"paused-5", sleep(5, pause)},
	{"paused-rest", sleep(0, 40*time.Second)},
	{"paused-answer", func(w *world, r *faults.Request) bool { return w.PauseAfter(r, 0, 10*time.Second) }},
	{"claims-late", mute(false, faults.Claims)},
	{"claims-lost", mute(true, faults.Claims)},
	{"addresses-late", mute(false, faults.Addresses)},
	{"addresses-lost", mute(true, faults.Addresses)},
	{"pools-late", mute(false, faults.Pools)},
	{"watches-late", mute(false, faults.AllocatorKinds...)},
	{"watches-lost", mute(true, faults.AllocatorKinds...)},
	{"relist", relisted(0)},
	{"relist-slow", relisted(pause)},
}

// full runs every schedule; otherwise a sixth of them runs, and a sixth of that with -short. To run a single one, set
// it too:
//
//	go test ./internal/allocator -run 'TestFaultsAtEveryWrite/full/lazy/late-3/17' -args -full
var full = flag.Bool("full", false, "run every schedule, not a sixth of them")

// isSelected reports whether the n-th schedule is among those that are run.
func isSelected(n int) bool {
	switch {
	case *full:
		return true
	case testing.Short():
		return n%36 == 0
	}
	return n%6 == 0
}

// each runs a scenario in all orders, once undisturbed and then for every one of its writes.
func each(t *testing.T, run func(t *testing.T, s scenario, o sim.Order, ordinal, writes int)) {
	t.Helper()
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			for ordinal, name := range names(sim.Orders) {
				t.Run(name, func(t *testing.T) {
					writes := s.run(t, func(w *world) { w.Order = sim.Orders[name] })
					run(t, s, sim.Orders[name], ordinal, writes)
				})
			}
		})
	}
}

// TestFaultsAtEveryWrite runs every scenario with every disturbance at every write.
func TestFaultsAtEveryWrite(t *testing.T) {
	runs := 0
	each(t, func(t *testing.T, s scenario, o sim.Order, ordinal, writes int) {
		t.Helper()
		for j, d := range disturbances {
			t.Run(d.name, func(t *testing.T) {
				for i := 1; i <= writes; i++ {
					if !isSelected(i + j + ordinal) {
						continue
					}
					runs++
					t.Run(fmt.Sprint(i), func(t *testing.T) {
						s.run(t, func(w *world) {
							w.Order = o
							w.Disturb = func(w *world, r *faults.Request) bool { return r.IsWrite() && w.Writes == i && d.do(w, r) }
						})
					})
				}
			})
		}
	})
	t.Logf("%d runs", runs)
}

// TestScenariosWithImpatientUsers runs every scenario with a user who does not wait: the first action happens right
// before a write, the others right before those that follow.
func TestScenariosWithImpatientUsers(t *testing.T) {
	runs := 0
	each(t, func(t *testing.T, s scenario, o sim.Order, ordinal, writes int) {
		t.Helper()
		for i := 1; i <= writes; i++ {
			if testing.Short() && (i+ordinal)%6 != 0 {
				continue
			}
			runs++
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				s.run(t, func(w *world) { w.Order, w.Hurry = o, i })
			})
		}
	})
	t.Logf("%d runs", runs)
}

// TestScenariosInRandomOrder runs every scenario in a random order of steps, with a user who does not wait, while
// nothing goes wrong.
func TestScenariosInRandomOrder(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			for seed := range seeds() {
				t.Run(fmt.Sprint(seed), func(t *testing.T) {
					s.run(t, func(w *world) {
						w.Order, w.Anytime = sim.RandomOrder(rand.New(rand.NewPCG(uint64(seed), crc(s.name, 0)))), true
					})
				})
			}
		})
	}
}

// TestRandomFaultsInRandomOrder runs every scenario with random disturbances in a random order of steps: with one
// manager that was elected, and with two that were not.
func TestRandomFaultsInRandomOrder(t *testing.T) {
	runs := 0
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			for managers := 1; managers <= 2; managers++ {
				for seed := range seeds() {
					runs++
					t.Run(fmt.Sprintf("%d-%d", managers, seed), func(t *testing.T) {
						s.run(t, func(w *world) {
							r := rand.New(rand.NewPCG(uint64(seed), crc(s.name, managers)))
							w.Order, w.Anytime, w.elected = sim.RandomOrder(r), seed%2 == 0, managers == 1
							if managers > 1 {
								w.start()
							}
							w.Disturb = randomDisturbance(r, 3)
						})
					})
				}
			}
		})
	}
	t.Logf("%d runs", runs)
}

// randomDisturbance disturbs at most left calls, at random: a read fails, a write meets any disturbance.
func randomDisturbance(r *rand.Rand, left int) func(*world, *faults.Request) bool {
	return func(w *world, call *faults.Request) bool {
		if left == 0 || r.IntN(8) > 0 {
			return false
		}
		left--
		if !call.IsWrite() {
			w.Answer(call, nil, sim.ErrTimeout)
			return true
		}
		d := disturbances[r.IntN(len(disturbances))]
		w.Tracef("    disturbed: %s", d.name)
		return d.do(w, call)
	}
}
