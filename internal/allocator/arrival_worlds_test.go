package allocator_test

import (
	"fmt"
	"slices"
	"time"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// Scenarios of pools that a move or a restore brings, and of the objects that they granted to, which come one by one:
// some of them long after the pool, while others request addresses.

// home is the management cluster of the world.
const home = "here"

// movePoolIn leaves a pool as a move from a management cluster, or a restore, brings it: it names that management
// cluster, and its Cluster.
func movePoolIn(pool, from string) action {
	return sim.NewAttempt(pool+" arrives from "+from, func(w *world) bool {
		return w.api.EditObject(ref(faults.Pools, pool), func(o client.Object) {
			controllerutil.AddFinalizer(o, v1alpha1.PoolFinalizer)
			marks := map[string]string{v1alpha1.ManagementClusterAnnotation: from, v1alpha1.ClustersAnnotation: "gone,tenant"}
			o.SetAnnotations(marks)
		}) == nil
	})
}

// movePoolInBare leaves a pool as a restore that strips finalizers brings it.
func movePoolInBare(pool, from string) action {
	arrived := movePoolIn(pool, from)
	return sim.NewAttempt(arrived.Text+" without finalizers", func(w *world) bool {
		return arrived.Do(w) && w.api.EditObject(ref(faults.Pools, pool), func(o client.Object) { o.SetFinalizers(nil) }) == nil
	})
}

// withoutFinalizers strips the finalizers off a restored claim and its IPAddress.
func withoutFinalizers(restore action, name string) action {
	return sim.NewAttempt(restore.Text+" without finalizers", func(w *world) bool {
		done := restore.Do(w)
		for _, kind := range []faults.Kind{faults.Claims, faults.Addresses} {
			done = w.api.EditObject(ref(kind, name), func(o client.Object) { o.SetFinalizers(nil) }) == nil && done
		}
		return done
	})
}

// waitElapsed waits until so much time has passed since the beginning.
func waitElapsed(d time.Duration) action {
	return until(fmt.Sprintf("%v have passed", d), func(*world) bool { return time.Since(sim.Epoch) > d })
}

// inheritAllocation creates an allocation as a move leaves it: with its record and its finalizer, and without a status.
func inheritAllocation(name string, count int32, record string) action {
	return allocate(name, count, func(o *v1alpha1.IPAllocation) {
		controllerutil.AddFinalizer(o, v1alpha1.IPAllocationFinalizer)
		o.Annotations = map[string]string{v1alpha1.AddressAnnotation: record}
	})
}

// moveAway deletes an object on the source of a move as clusterctl does.
func moveAway(kind faults.Kind, name string) action {
	return sim.NewAttempt(fmt.Sprintf("clusterctl deletes %s %s", kind, name), func(w *world) bool {
		marked := w.api.EditObject(ref(kind, name), func(o client.Object) {
			o.SetAnnotations(map[string]string{v1alpha1.DeleteForMoveAnnotation: ""})
		})
		return marked == nil && forceDelete(kind, name).Do(w)
	})
}

// beginToMoveAway deletes a Cluster on the source of a move as clusterctl does, but does not remove the finalizers.
var beginToMoveAway = sim.NewAttempt("clusterctl begins to delete the Cluster", func(w *world) bool {
	marked := w.api.EditObject(ref(faults.Clusters, "tenant"), func(o client.Object) {
		o.SetFinalizers([]string{clusterv1.ClusterFinalizer})
		o.SetAnnotations(map[string]string{v1alpha1.DeleteForMoveAnnotation: ""})
	})
	return marked == nil && w.api.Delete(ref(faults.Clusters, "tenant"), false) == nil
})

// removeOriginAnnotation removes the annotation of a pool that names where it came from.
func removeOriginAnnotation(pool string) action {
	return sim.NewAttempt("open "+pool+" by hand", func(w *world) bool {
		return w.api.EditObject(ref(faults.Pools, pool), func(o client.Object) {
			marks := o.GetAnnotations()
			delete(marks, v1alpha1.ManagementClusterAnnotation)
			o.SetAnnotations(marks)
		}) == nil
	})
}

// failList makes the next list of claims fail.
var failList = sim.NewAttempt("the next list of claims fails", func(w *world) bool {
	w.listsFail++
	return true
})

// slowRestore brings claims, an allocation and a lease in three portions, minutes apart, while others request
// addresses.
var slowRestore = []action{
	add("new"), waitElapsed(4 * time.Minute), inherit("a", "10.0.0.1"), add("newer"), waitElapsed(8 * time.Minute), another,
	inherit("b", "10.0.0.2"), inheritAllocation("x", 2, "10.0.0.3-10.0.0.4"), waitElapsed(12 * time.Minute), inheritLease("l", "10.0.0.5"),
}

var wantAddresses = map[string]string{"a": "10.0.0.1", "b": "10.0.0.2", "x": "10.0.0.3-10.0.0.4", "l": "10.0.0.5"}

var arriving = []scenario{
	{
		name: "moved slowly", spec: Pool("10.0.0.1-10.0.0.8", givesLeases), capacity: 4, ordered: true,
		before: []action{setClusterPaused(true), movePoolIn(poolName, "there")}, script: append(slices.Clone(slowRestore), setClusterPaused(false)), want: wantAddresses,
	},
	{
		// The Cluster comes last: clusterctl may be killed before it is there.
		name: "moved before its Cluster", spec: Pool("10.0.0.1-10.0.0.8", givesLeases), capacity: 4, ordered: true,
		before: []action{forceDelete(faults.Clusters, "tenant"), movePoolIn(poolName, "there")}, script: append(slices.Clone(slowRestore), makeCluster), want: wantAddresses,
	},
	{
		name: "restored slowly", spec: Pool("10.0.0.1-10.0.0.8", givesLeases), capacity: 4, ordered: true,
		before: []action{setClusterPaused(true), movePoolIn(poolName, home)}, script: append(slices.Clone(slowRestore), setClusterPaused(false)), want: wantAddresses,
	},
	{
		// By a tool that strips finalizers: the manager's annotation on the pool shows that it was served.
		name: "restored slowly without finalizers", spec: Pool("10.0.0.1-10.0.0.8"), capacity: 4, ordered: true,
		before: []action{setClusterPaused(true), movePoolInBare(poolName, home)},
		script: []action{
			add("new"), waitElapsed(4 * time.Minute), withoutFinalizers(inherit("a", "10.0.0.1"), "a"), add("newer"), waitElapsed(8 * time.Minute), another,
			withoutFinalizers(inherit("b", "10.0.0.2"), "b"), waitElapsed(12 * time.Minute), setClusterPaused(false),
		},
		want: map[string]string{"a": "10.0.0.1", "b": "10.0.0.2"},
	},
	{
		// clusterctl deletes the Cluster first, and is killed (C45).
		name: "moved away after its Cluster", spec: Pool("10.0.0.1-10.0.0.3"), capacity: 1, ordered: true,
		before: []action{allocate("x", 2)},
		script: []action{setClusterPaused(true), moveAway(faults.Clusters, "tenant"), waitElapsed(5 * time.Minute), add("a"), add("b"), waitElapsed(10 * time.Minute)},
		want:   map[string]string{"x": "10.0.0.1-10.0.0.2"},
	},
	{
		// It was not moved, and a user deletes what it has left behind.
		name: "gone while it was paused", spec: Pool("10.0.0.1-10.0.0.3"), capacity: 2, ordered: true,
		before: []action{allocate("x", 2)},
		script: []action{setClusterPaused(true), forceDelete(faults.Clusters, "tenant"), waitElapsed(5 * time.Minute), add("a"), add("b"), deallocate("x")},
	},
	{
		// Like "moved away after its Cluster", for the block of a carved pool: two addresses are its own. The Cluster
		// is unpaused, as it has to be before the move is resumed.
		name: "moved away after its pool", spec: Pool("10.0.0.0-10.0.0.3", reserve, carvable), capacity: 2, ordered: true,
		before: []action{makeChild(child, poolName, 1, 1)},
		script: []action{
			setClusterPaused(true), moveAway(faults.Pools, child), setClusterPaused(false), waitElapsed(5 * time.Minute), add("a"), add("b"), add("c"), waitElapsed(10 * time.Minute),
		},
	},
	{
		// The Cluster is being deleted when it is unpaused to move on, and the move removes it.
		name: "moved away after its Cluster was unpaused", spec: Pool("10.0.0.1-10.0.0.3"), capacity: 1, ordered: true,
		before: []action{allocate("x", 2)},
		script: []action{
			setClusterPaused(true), waitElapsed(3 * time.Minute), beginToMoveAway, waitElapsed(5 * time.Minute), setClusterPaused(false), waitElapsed(6 * time.Minute),
			forceDelete(faults.Clusters, "tenant"), waitElapsed(10 * time.Minute), add("a"), add("b"), waitElapsed(15 * time.Minute),
		},
		want: map[string]string{"x": "10.0.0.1-10.0.0.2"},
	},
	{
		// Nothing in the namespace is paused any more when the pool is moved.
		name: "moved away after its pool and the Cluster", spec: Pool("10.0.0.0-10.0.0.3", reserve, carvable), capacity: 2, ordered: true,
		before: []action{makeChild(child, poolName, 1, 1)},
		script: []action{
			waitElapsed(2 * time.Minute), setClusterPaused(true), moveAway(faults.Clusters, "tenant"), waitElapsed(5 * time.Minute), moveAway(faults.Pools, child),
			waitElapsed(10 * time.Minute), add("a"), add("b"), add("c"), waitElapsed(15 * time.Minute),
		},
	},
	{
		// The block is granted while the Cluster is paused.
		name: "moved away as soon as it is carved", spec: Pool("10.0.0.0-10.0.0.3", reserve, carvable), capacity: 2, ordered: true,
		before: []action{setClusterPaused(true)},
		script: []action{
			makeChild(child, poolName, 1, 1), moveAway(faults.Pools, child), waitElapsed(5 * time.Minute), add("a"), add("b"), add("c"), waitElapsed(15 * time.Minute),
		},
		want: map[string]string{child + "-1": "10.0.0.0/31"},
	},
	{
		// A pool with the name of the moved one is carved from another pool.
		name: "moved away, and carved elsewhere", spec: Pool("10.0.0.0-10.0.0.3", reserve, carvable), capacity: 2, ordered: true,
		before: []action{makeChild(child, poolName, 1, 1), makePlain("other", "10.0.1.0-10.0.1.3", reserve, carvable)},
		script: []action{
			waitElapsed(2 * time.Minute), setClusterPaused(true), moveAway(faults.Pools, child), waitElapsed(4 * time.Minute), makeChild(child, "other", 0, 1), waitElapsed(10 * time.Minute),
			add("a"), add("b"), add("c"), waitElapsed(15 * time.Minute),
		},
	},
	{
		// Of an earlier release: it has no annotations that name its origin.
		name: "moved without a mark", spec: Pool("10.0.0.1-10.0.0.8", givesLeases), capacity: 4, ordered: true,
		before: []action{setClusterPaused(true), poolServedBefore}, script: append(slices.Clone(slowRestore), setClusterPaused(false)), want: wantAddresses,
	},
	{
		name: "opened by hand", spec: Pool("10.0.0.1-10.0.0.8", givesLeases), capacity: 4, ordered: true,
		before: []action{setClusterPaused(true), movePoolIn(poolName, "there")}, script: append(slices.Clone(slowRestore), removeOriginAnnotation(poolName), setClusterPaused(false)), want: wantAddresses,
	},
	{
		// An interrupted move is resumed after the Cluster was unpaused by hand: clusterctl overwrites what is there.
		name: "moved again", spec: Pool("10.0.0.1-10.0.0.8", givesLeases), capacity: 4, ordered: true,
		before: []action{setClusterPaused(true), movePoolIn(poolName, "there"), inherit("a", "10.0.0.1")},
		script: []action{
			add("new"), setClusterPaused(false), until("the pool is open", func(w *world) bool { return w.hasReadyReason(poolName, v1alpha1.ReadyReason) }),
			setClusterPaused(true), movePoolIn(poolName, "there"), add("newer"), waitElapsed(8 * time.Minute), inherit("b", "10.0.0.7"), setClusterPaused(false),
		},
		want: map[string]string{"a": "10.0.0.1", "b": "10.0.0.7"},
	},
	{
		// The watches are behind, and the list that begins when everything has arrived fails at first: nothing has
		// shown what is in use.
		name: "moved unseen", spec: Pool("10.0.0.1-10.0.0.4"), capacity: 2, ordered: true,
		before: []action{setClusterPaused(true), movePoolIn(poolName, "there")},
		script: []action{
			add("new"), stallWatches(faults.Claims, faults.Addresses), inherit("a", "10.0.0.1"), failList, waitElapsed(4 * time.Minute), setClusterPaused(false),
			until("the pool is open", func(w *world) bool { return w.hasReadyReason(poolName, v1alpha1.ReadyReason) }), resumeWatches,
		},
		want: map[string]string{"a": "10.0.0.1"},
	},
	{
		// No block is requested that may be on its way under the same name.
		name: "carved moved slowly", spec: Pool("10.0.0.0-10.0.0.7", reserve, carvable), capacity: 3, ordered: true,
		before: []action{makeChild(child, poolName, 1, 2), setClusterPaused(true), movePoolIn(poolName, "there"), movePoolIn(child, "there")},
		script: []action{
			addTo(child, "new"), waitElapsed(4 * time.Minute), inheritBlock(child+"-1", "10.0.0.2", "10.0.0.3"), waitElapsed(8 * time.Minute), another,
			inheritFrom(child, "a", "10.0.0.3"), waitElapsed(12 * time.Minute), inheritFrom(child, "b", "10.0.0.2"), setClusterPaused(false),
		},
		want: map[string]string{"a": "10.0.0.3", "b": "10.0.0.2"},
	},
}

// hasReadyReason reports whether the condition Ready of a pool has a reason.
func (w *world) hasReadyReason(pool, reason string) bool {
	for _, p := range faults.ListObjects[*v1alpha1.NetworkPool](w.api) {
		if p.Name == pool {
			for _, c := range p.Status.Conditions {
				if c.Type == v1alpha1.ReadyCondition {
					return c.Reason == reason
				}
			}
		}
	}
	return false
}

func init() { scenarios = slices.Concat(scenarios, arriving) } //nolint:gochecknoinits // one list, in several files
