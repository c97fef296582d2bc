package allocator_test

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// The garbage collector is at work, as long as there is something for it to do: what is deleted in the foreground it takes
// off the objects that have another owner too, it deletes those that have none, and then takes its finalizer off.

// mostCollected is how often the collector may have to do with one IPAddress: each owner ends once.
const mostCollected = 4

// inForeground deletes an object in the foreground.
func inForeground(kind faults.Kind, name string) action {
	return action{fmt.Sprintf("delete %s %s in the foreground", kind, name), func(w *world) bool {
		wait := func(o client.Object) { controllerutil.AddFinalizer(o, metav1.FinalizerDeleteDependents) }
		return w.api.Edit(ref(kind, name), wait) == nil && w.api.Delete(ref(kind, name), false) == nil
	}}
}

// uses has a consumer's finalizer on a claim, or not any more.
func uses(name string, used bool) action {
	const finalizer = "example.com/uses"
	return action{fmt.Sprintf("claim %s is used: %v", name, used), func(w *world) bool {
		return w.api.Edit(ref(faults.Claims, name), func(o client.Object) {
			controllerutil.RemoveFinalizer(o, finalizer)
			if used {
				controllerutil.AddFinalizer(o, finalizer)
			}
		}) == nil
	}}
}

// collector returns what the garbage collector can do next.
func (w *world) collector() []step {
	var steps []step
	for _, kind := range []faults.Kind{faults.Clusters, faults.Pools, faults.Claims} {
		for _, o := range w.api.List(kind) {
			if !controllerutil.ContainsFinalizer(o, metav1.FinalizerDeleteDependents) {
				continue
			}
			if do := w.collect(kind, o); do != nil {
				steps = append(steps, step{Class: user, Text: fmt.Sprintf("the garbage collector, for %s %s", kind, o.GetName()), Do: do})
			}
		}
	}
	return steps
}

// collect is what the collector does next for an object that is deleted in the foreground; nil: it waits.
func (w *world) collect(kind faults.Kind, owner client.Object) func() {
	by := fmt.Sprintf("the user: the garbage collector, for %s %s", kind, owner.GetName())
	edit := func(what faults.Ref, change func() error) func() {
		return func() {
			before := w.api.Version()
			if err := client.IgnoreNotFound(change()); err != nil {
				w.Wrongf("the collector fails on %v: %v", what, err)
			}
			w.changed(before, by)
		}
	}
	waits := false
	for _, dependents := range []faults.Kind{faults.Claims, faults.Addresses} {
		for _, o := range w.api.List(dependents) {
			refs, what := o.GetOwnerReferences(), ref(dependents, o.GetName())
			if !slices.ContainsFunc(refs, func(r metav1.OwnerReference) bool { return r.UID == owner.GetUID() }) {
				continue
			}
			others := slices.DeleteFunc(slices.Clone(refs), func(r metav1.OwnerReference) bool { return w.waitsInForeground(r.UID) })
			switch {
			case len(others) > 0:
				return edit(what, func() error {
					w.countCollected(o)
					return w.api.Edit(what, func(o client.Object) { o.SetOwnerReferences(others) })
				})
			case o.GetDeletionTimestamp() == nil:
				// What owns something itself is deleted in the foreground, too.
				return edit(what, func() error {
					w.countCollected(o)
					if dependents == faults.Claims {
						_ = w.api.Edit(what, func(o client.Object) { controllerutil.AddFinalizer(o, metav1.FinalizerDeleteDependents) })
					}
					return w.api.Delete(what, false)
				})
			}
			waits = true
		}
	}
	if waits {
		return nil
	}
	what := ref(kind, owner.GetName())
	return edit(what, func() error {
		return w.api.Edit(what, func(o client.Object) { controllerutil.RemoveFinalizer(o, metav1.FinalizerDeleteDependents) })
	})
}

// waitsInForeground reports whether an owner waits for what it owns to end.
func (w *world) waitsInForeground(uid types.UID) bool {
	for _, kind := range []faults.Kind{faults.Clusters, faults.Pools, faults.Claims} {
		for _, o := range w.api.List(kind) {
			if o.GetUID() == uid {
				return controllerutil.ContainsFinalizer(o, metav1.FinalizerDeleteDependents)
			}
		}
	}
	return false
}

// countCollected counts what the collector does to an object: without end, if another writer undoes it.
func (w *world) countCollected(o client.Object) {
	if w.collected == nil {
		w.collected = map[types.UID]int{}
	}
	if w.collected[o.GetUID()]++; w.collected[o.GetUID()] > mostCollected {
		w.Wrongf("rest: the garbage collector takes owners off %s again and again", o.GetName())
	}
}

// ownedByCluster has a claim be one of the Cluster that the collector waits for.
func ownedByCluster(name string) action {
	made := addOwned(name)
	return action{made.text, func(w *world) bool {
		return made.do(w) && w.api.Edit(ref(faults.Claims, name), func(o client.Object) {
			refs := o.GetOwnerReferences()
			refs[0].BlockOwnerDeletion = new(true)
			o.SetOwnerReferences(refs)
		}) == nil
	}}
}

// holdsCluster has the finalizer of Cluster API on the Cluster, as long as it has machines.
func holdsCluster(held bool) action {
	return action{fmt.Sprintf("the Cluster has machines: %v", held), func(w *world) bool {
		return w.api.Edit(ref(faults.Clusters, "tenant"), func(o client.Object) {
			controllerutil.RemoveFinalizer(o, clusterv1.ClusterFinalizer)
			if held {
				controllerutil.AddFinalizer(o, clusterv1.ClusterFinalizer)
			}
		}) == nil
	}}
}

var collected = []scenario{
	{
		// The claims live on, and so does the pool, until they are deleted.
		name: "a pool in use in the foreground", collects: true, spec: Pool("10.0.0.1-10.0.0.2"), ordered: true, capacity: 1, claims: []string{"a", "b"},
		script: []action{inForeground(faults.Pools, poolName), another, remove("a")},
		want:   map[string]string{"b": "10.0.0.2"},
	},
	{
		name: "a pool in use in the foreground, and the end of it", collects: true, spec: Pool("10.0.0.1-10.0.0.2"), ordered: true, capacity: 1, claims: []string{"a", "b"},
		script: []action{inForeground(faults.Pools, poolName), remove("a"), remove("b"), makePool, add("c")},
	},
	{
		// What a machine uses stays its own: the claim that is being deleted has the address once, and no other claim gets
		// it.
		name: "a claim in use in the foreground", collects: true, spec: Pool("10.0.0.1-10.0.0.2"), ordered: true, capacity: 2, claims: []string{"a"},
		script: []action{uses("a", true), inForeground(faults.Claims, "a"), add("b"), another, uses("a", false), add("c")},
		want:   map[string]string{"b": "10.0.0.2", "c": "10.0.0.1"},
	},
	{
		name: "a claim in the foreground rests", collects: true, spec: Pool("10.0.0.1", grace(60)), ordered: true, capacity: 1, claims: []string{"a"},
		script: []action{inForeground(faults.Claims, "a"), add("b")},
		want:   map[string]string{"b": "10.0.0.1"},
	},
	{
		name: "a pool and its claims in the foreground", collects: true, spec: Pool("10.0.0.1-10.0.0.2"), ordered: true, capacity: 1, claims: []string{"a", "b"},
		script: []action{inForeground(faults.Claims, "a"), inForeground(faults.Pools, poolName), inForeground(faults.Claims, "b"), makePool, add("c")},
	},
	{
		// The address is the Cluster's as long as it has machines, and no longer: the collector waits for the claim.
		name: "a Cluster in the foreground", collects: true, spec: Pool("10.0.0.1"), ordered: true, capacity: 1, before: []action{ownedByCluster("cp"), holdsCluster(true)},
		script: []action{inForeground(faults.Clusters, "tenant"), add("a"), holdsCluster(false)},
		want:   map[string]string{"a": "10.0.0.1"},
	},
}

func init() { scenarios = slices.Concat(scenarios, collected) } //nolint:gochecknoinits // one list, in several files
