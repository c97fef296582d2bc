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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults/schedule"
)

// Pools that a move or a restore brings, and what they have given, which comes one by one: some of it long after the pool,
// while others ask for addresses.

// home is the management cluster of the world.
const home = "here"

// arrives leaves a pool as a move from a management cluster, or a restore, brings it: it names that, and its Cluster.
func arrives(pool, from string) action {
	return action{pool + " arrives from " + from, func(w *world) bool {
		return w.api.Edit(ref(faults.Pools, pool), func(o client.Object) {
			controllerutil.AddFinalizer(o, v1alpha1.PoolFinalizer)
			marks := map[string]string{v1alpha1.ManagementClusterAnnotation: from, v1alpha1.ClustersAnnotation: "gone,tenant"}
			o.SetAnnotations(marks)
		}) == nil
	}}
}

// arrivesBare leaves a pool as a restore brings it that strips finalizers.
func arrivesBare(pool, from string) action {
	arrived := arrives(pool, from)
	return action{arrived.text + " without finalizers", func(w *world) bool {
		return arrived.do(w) && w.api.Edit(ref(faults.Pools, pool), func(o client.Object) { o.SetFinalizers(nil) }) == nil
	}}
}

// bareOf has a restore of a claim leave no finalizers, on it and its IPAddress.
func bareOf(restore action, name string) action {
	return action{restore.text + " without finalizers", func(w *world) bool {
		done := restore.do(w)
		for _, kind := range []faults.Kind{faults.Claims, faults.Addresses} {
			done = w.api.Edit(ref(kind, name), func(o client.Object) { o.SetFinalizers(nil) }) == nil && done
		}
		return done
	}}
}

// elapsed waits until so much time has passed since the beginning.
func elapsed(d time.Duration) action {
	return until(fmt.Sprintf("%v have passed", d), func(*world) bool { return time.Since(schedule.Epoch) > d })
}

// inheritAllocation makes an allocation as a move leaves it: with its record and its finalizer, and without a status.
func inheritAllocation(name string, count int32, record string) action {
	return allocate(name, count, func(o *v1alpha1.IPAllocation) {
		controllerutil.AddFinalizer(o, v1alpha1.IPAllocationFinalizer)
		o.Annotations = map[string]string{v1alpha1.AddressAnnotation: record}
	})
}

// moveAway deletes an object on the source of a move as clusterctl does.
func moveAway(kind faults.Kind, name string) action {
	return action{fmt.Sprintf("clusterctl deletes %s %s", kind, name), func(w *world) bool {
		marked := w.api.Edit(ref(kind, name), func(o client.Object) {
			o.SetAnnotations(map[string]string{v1alpha1.DeleteForMoveAnnotation: ""})
		})
		return marked == nil && forceDelete(kind, name).do(w)
	}}
}

// beginToMoveAway deletes a Cluster on the source of a move as clusterctl does, and does not take the finalizers off.
var beginToMoveAway = action{"clusterctl begins to delete the Cluster", func(w *world) bool {
	marked := w.api.Edit(ref(faults.Clusters, "tenant"), func(o client.Object) {
		o.SetFinalizers([]string{clusterv1.ClusterFinalizer})
		o.SetAnnotations(map[string]string{v1alpha1.DeleteForMoveAnnotation: ""})
	})
	return marked == nil && w.api.Delete(ref(faults.Clusters, "tenant"), false) == nil
}}

// openByHand takes the annotation off a pool that names where it came from.
func openByHand(pool string) action {
	return action{"open " + pool + " by hand", func(w *world) bool {
		return w.api.Edit(ref(faults.Pools, pool), func(o client.Object) {
			marks := o.GetAnnotations()
			delete(marks, v1alpha1.ManagementClusterAnnotation)
			o.SetAnnotations(marks)
		}) == nil
	}}
}

// failList has the next list of claims fail.
var failList = action{"the next list of claims fails", func(w *world) bool {
	w.listsFail++
	return true
}}

// slowly brings claims, an allocation and a lease in three portions, minutes apart, while others ask for addresses.
var slowly = []action{
	add("new"), elapsed(4 * time.Minute), inherit("a", "10.0.0.1"), add("newer"), elapsed(8 * time.Minute), another,
	inherit("b", "10.0.0.2"), inheritAllocation("x", 2, "10.0.0.3-10.0.0.4"), elapsed(12 * time.Minute), inheritLease("l", "10.0.0.5"),
}

var has = map[string]string{"a": "10.0.0.1", "b": "10.0.0.2", "x": "10.0.0.3-10.0.0.4", "l": "10.0.0.5"}

var arriving = []scenario{
	{
		name: "moved slowly", spec: Pool("10.0.0.1-10.0.0.8", givesLeases), capacity: 4, ordered: true,
		before: []action{holdCluster(true), arrives(poolName, "there")}, script: append(slices.Clone(slowly), holdCluster(false)), want: has,
	},
	{
		// The Cluster comes last: clusterctl may be killed before it is there.
		name: "moved before its Cluster", spec: Pool("10.0.0.1-10.0.0.8", givesLeases), capacity: 4, ordered: true,
		before: []action{forceDelete(faults.Clusters, "tenant"), arrives(poolName, "there")}, script: append(slices.Clone(slowly), makeCluster), want: has,
	},
	{
		name: "restored slowly", spec: Pool("10.0.0.1-10.0.0.8", givesLeases), capacity: 4, ordered: true,
		before: []action{holdCluster(true), arrives(poolName, home)}, script: append(slices.Clone(slowly), holdCluster(false)), want: has,
	},
	{
		// By a tool that strips finalizers: what the manager has noted on the pool says that it was served.
		name: "restored slowly without finalizers", spec: Pool("10.0.0.1-10.0.0.8"), capacity: 4, ordered: true,
		before: []action{holdCluster(true), arrivesBare(poolName, home)},
		script: []action{
			add("new"), elapsed(4 * time.Minute), bareOf(inherit("a", "10.0.0.1"), "a"), add("newer"), elapsed(8 * time.Minute), another,
			bareOf(inherit("b", "10.0.0.2"), "b"), elapsed(12 * time.Minute), holdCluster(false),
		},
		want: map[string]string{"a": "10.0.0.1", "b": "10.0.0.2"},
	},
	{
		// clusterctl deletes the Cluster first, and is killed (C45).
		name: "moved away after its Cluster", spec: Pool("10.0.0.1-10.0.0.3"), capacity: 1, ordered: true,
		before: []action{allocate("x", 2)},
		script: []action{holdCluster(true), moveAway(faults.Clusters, "tenant"), elapsed(5 * time.Minute), add("a"), add("b"), elapsed(10 * time.Minute)},
		want:   map[string]string{"x": "10.0.0.1-10.0.0.2"},
	},
	{
		// It was not moved, and a user deletes what it has left.
		name: "gone while it was paused", spec: Pool("10.0.0.1-10.0.0.3"), capacity: 2, ordered: true,
		before: []action{allocate("x", 2)},
		script: []action{holdCluster(true), forceDelete(faults.Clusters, "tenant"), elapsed(5 * time.Minute), add("a"), add("b"), deallocate("x")},
	},
	{
		// As the first of these, of the block of a carved pool: two addresses are its own. The Cluster is unpaused, as it has to be before the move is resumed.
		name: "moved away after its pool", spec: Pool("10.0.0.0-10.0.0.3", reserve, carvable), capacity: 2, ordered: true,
		before: []action{makeChild(child, poolName, 1, 1)},
		script: []action{
			holdCluster(true), moveAway(faults.Pools, child), holdCluster(false), elapsed(5 * time.Minute), add("a"), add("b"), add("c"), elapsed(10 * time.Minute),
		},
	},
	{
		// The Cluster is half gone when it is unpaused to move on, and the move takes it away.
		name: "moved away after its Cluster was unpaused", spec: Pool("10.0.0.1-10.0.0.3"), capacity: 1, ordered: true,
		before: []action{allocate("x", 2)},
		script: []action{
			holdCluster(true), elapsed(3 * time.Minute), beginToMoveAway, elapsed(5 * time.Minute), holdCluster(false), elapsed(6 * time.Minute),
			forceDelete(faults.Clusters, "tenant"), elapsed(10 * time.Minute), add("a"), add("b"), elapsed(15 * time.Minute),
		},
		want: map[string]string{"x": "10.0.0.1-10.0.0.2"},
	},
	{
		// Nothing in the namespace is paused any more when the pool goes.
		name: "moved away after its pool and the Cluster", spec: Pool("10.0.0.0-10.0.0.3", reserve, carvable), capacity: 2, ordered: true,
		before: []action{makeChild(child, poolName, 1, 1)},
		script: []action{
			elapsed(2 * time.Minute), holdCluster(true), moveAway(faults.Clusters, "tenant"), elapsed(5 * time.Minute), moveAway(faults.Pools, child),
			elapsed(10 * time.Minute), add("a"), add("b"), add("c"), elapsed(15 * time.Minute),
		},
	},
	{
		// The block is given while the Cluster is paused.
		name: "moved away as soon as it is carved", spec: Pool("10.0.0.0-10.0.0.3", reserve, carvable), capacity: 2, ordered: true,
		before: []action{holdCluster(true)},
		script: []action{
			makeChild(child, poolName, 1, 1), moveAway(faults.Pools, child), elapsed(5 * time.Minute), add("a"), add("b"), add("c"), elapsed(15 * time.Minute),
		},
		want: map[string]string{child + "-1": "10.0.0.0/31"},
	},
	{
		// A pool of the name of the one that was moved is carved from another pool.
		name: "moved away, and carved elsewhere", spec: Pool("10.0.0.0-10.0.0.3", reserve, carvable), capacity: 2, ordered: true,
		before: []action{makeChild(child, poolName, 1, 1), makePlain("other", "10.0.1.0-10.0.1.3", reserve, carvable)},
		script: []action{
			elapsed(2 * time.Minute), holdCluster(true), moveAway(faults.Pools, child), elapsed(4 * time.Minute), makeChild(child, "other", 0, 1), elapsed(10 * time.Minute),
			add("a"), add("b"), add("c"), elapsed(15 * time.Minute),
		},
	},
	{
		// Of an earlier release: it names nothing.
		name: "moved without a mark", spec: Pool("10.0.0.1-10.0.0.8", givesLeases), capacity: 4, ordered: true,
		before: []action{holdCluster(true), servedElsewhere}, script: append(slices.Clone(slowly), holdCluster(false)), want: has,
	},
	{
		name: "opened by hand", spec: Pool("10.0.0.1-10.0.0.8", givesLeases), capacity: 4, ordered: true,
		before: []action{holdCluster(true), arrives(poolName, "there")}, script: append(slices.Clone(slowly), openByHand(poolName), holdCluster(false)), want: has,
	},
	{
		// A move that was interrupted is resumed when the Cluster had been unpaused by hand: clusterctl writes over what is there.
		name: "moved again", spec: Pool("10.0.0.1-10.0.0.8", givesLeases), capacity: 4, ordered: true,
		before: []action{holdCluster(true), arrives(poolName, "there"), inherit("a", "10.0.0.1")},
		script: []action{
			add("new"), holdCluster(false), until("the pool is open", func(w *world) bool { return w.readyIs(poolName, v1alpha1.ReadyReason) }),
			holdCluster(true), arrives(poolName, "there"), add("newer"), elapsed(8 * time.Minute), inherit("b", "10.0.0.7"), holdCluster(false),
		},
		want: map[string]string{"a": "10.0.0.1", "b": "10.0.0.7"},
	},
	{
		// The watches are behind, and the list that begins when all has arrived fails at first: nothing has shown what is in use.
		name: "moved unseen", spec: Pool("10.0.0.1-10.0.0.4"), capacity: 2, ordered: true,
		before: []action{holdCluster(true), arrives(poolName, "there")},
		script: []action{
			add("new"), blind(faults.Claims, faults.Addresses), inherit("a", "10.0.0.1"), failList, elapsed(4 * time.Minute), holdCluster(false),
			until("the pool is open", func(w *world) bool { return w.readyIs(poolName, v1alpha1.ReadyReason) }), see,
		},
		want: map[string]string{"a": "10.0.0.1"},
	},
	{
		// No block is asked for that may be on its way under the same name.
		name: "carved moved slowly", spec: Pool("10.0.0.0-10.0.0.7", reserve, carvable), capacity: 3, ordered: true,
		before: []action{makeChild(child, poolName, 1, 2), holdCluster(true), arrives(poolName, "there"), arrives(child, "there")},
		script: []action{
			addTo(child, "new"), elapsed(4 * time.Minute), inheritBlock(child+"-1", "10.0.0.2", "10.0.0.3"), elapsed(8 * time.Minute), another,
			inheritFrom(child, "a", "10.0.0.3"), elapsed(12 * time.Minute), inheritFrom(child, "b", "10.0.0.2"), holdCluster(false),
		},
		want: map[string]string{"a": "10.0.0.3", "b": "10.0.0.2"},
	},
}

// readyIs reports whether Ready of a pool has a reason.
func (w *world) readyIs(pool, reason string) bool {
	for _, o := range w.api.List(faults.Pools) {
		if p, is := o.(*v1alpha1.NetworkPool); is && p.Name == pool {
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
