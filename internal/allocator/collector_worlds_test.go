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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// Scenarios with the garbage collector, which works as long as it has something to do. For an object that is deleted in
// the foreground it removes the owner reference from the objects that also have another owner, deletes those that have
// none, and then removes its finalizer from the owner.

// mostCollected is how often the collector may change one IPAddress: each owner ends once.
const mostCollected = 4

// inForeground deletes an object in the foreground.
func inForeground(kind faults.Kind, name string) action {
	return sim.NewAttempt(fmt.Sprintf("delete %s %s in the foreground", kind, name), func(w *world) bool {
		wait := func(o client.Object) { controllerutil.AddFinalizer(o, metav1.FinalizerDeleteDependents) }
		return w.api.EditObject(ref(kind, name), wait) == nil && w.api.Delete(ref(kind, name), false) == nil
	})
}

// setConsumerFinalizer adds a consumer's finalizer to a claim, or removes it.
func setConsumerFinalizer(name string, used bool) action {
	const finalizer = "example.com/uses"
	return sim.NewAttempt(fmt.Sprintf("claim %s is used: %v", name, used), func(w *world) bool {
		return w.api.EditObject(ref(faults.Claims, name), func(o client.Object) {
			controllerutil.RemoveFinalizer(o, finalizer)
			if used {
				controllerutil.AddFinalizer(o, finalizer)
			}
		}) == nil
	})
}

// collectorSteps returns the next steps of the garbage collector, if it runs.
func (w *world) collectorSteps() []sim.Step {
	var steps []sim.Step
	if !w.collects {
		return nil
	}
	for _, kind := range []faults.Kind{faults.Clusters, faults.Pools, faults.Claims} {
		for _, o := range w.api.List(kind) {
			if !controllerutil.ContainsFinalizer(o, metav1.FinalizerDeleteDependents) {
				continue
			}
			if do := w.nextCollection(kind, o); do != nil {
				steps = append(steps, sim.Step{Class: sim.User, Text: fmt.Sprintf("the garbage collector, for %s %s", kind, o.GetName()), Run: do})
			}
		}
	}
	return steps
}

// nextCollection returns the next step of the collector for an object that is deleted in the foreground; nil if it
// waits.
func (w *world) nextCollection(kind faults.Kind, owner client.Object) func() {
	by := fmt.Sprintf("the garbage collector, for %s %s", kind, owner.GetName())
	edit := func(target faults.Ref, change func() error) func() {
		return func() {
			w.ChangeAsUser(by, func() {
				if err := client.IgnoreNotFound(change()); err != nil {
					w.Failf("the collector fails on %v: %v", target, err)
				}
			})
		}
	}
	waits := false
	for _, dependents := range []faults.Kind{faults.Claims, faults.Addresses} {
		for _, o := range w.api.List(dependents) {
			refs, target := o.GetOwnerReferences(), ref(dependents, o.GetName())
			if !slices.ContainsFunc(refs, func(r metav1.OwnerReference) bool { return r.UID == owner.GetUID() }) {
				continue
			}
			others := slices.DeleteFunc(slices.Clone(refs), func(r metav1.OwnerReference) bool { return w.waitsForDependents(r.UID) })
			switch {
			case len(others) > 0:
				return edit(target, func() error {
					w.countCollected(o)
					return w.api.EditObject(target, func(o client.Object) { o.SetOwnerReferences(others) })
				})
			case o.GetDeletionTimestamp() == nil:
				// A claim, which may own an IPAddress, is deleted in the foreground, too.
				return edit(target, func() error {
					w.countCollected(o)
					if dependents == faults.Claims {
						_ = w.api.EditObject(target, func(o client.Object) { controllerutil.AddFinalizer(o, metav1.FinalizerDeleteDependents) })
					}
					return w.api.Delete(target, false)
				})
			}
			waits = true
		}
	}
	if waits {
		return nil
	}
	target := ref(kind, owner.GetName())
	return edit(target, func() error {
		return w.api.EditObject(target, func(o client.Object) { controllerutil.RemoveFinalizer(o, metav1.FinalizerDeleteDependents) })
	})
}

// waitsForDependents reports whether an owner waits for its dependents to end.
func (w *world) waitsForDependents(uid types.UID) bool {
	for _, kind := range []faults.Kind{faults.Clusters, faults.Pools, faults.Claims} {
		for _, o := range w.api.List(kind) {
			if o.GetUID() == uid {
				return controllerutil.ContainsFinalizer(o, metav1.FinalizerDeleteDependents)
			}
		}
	}
	return false
}

// countCollected counts the changes of the collector to an object: they never end if another writer reverts them.
func (w *world) countCollected(o client.Object) {
	if w.collected == nil {
		w.collected = map[types.UID]int{}
	}
	if w.collected[o.GetUID()]++; w.collected[o.GetUID()] > mostCollected {
		w.Failf("rest: the garbage collector takes owners off %s again and again", o.GetName())
	}
}

// ownedByCluster makes a claim one that the collector waits for on behalf of the Cluster.
func ownedByCluster(name string) action {
	made := addOwned(name)
	return sim.NewAttempt(made.Text, func(w *world) bool {
		return made.Do(w) && w.api.EditObject(ref(faults.Claims, name), func(o client.Object) {
			refs := o.GetOwnerReferences()
			refs[0].BlockOwnerDeletion = new(true)
			o.SetOwnerReferences(refs)
		}) == nil
	})
}

// setClusterFinalizer sets the finalizer of Cluster API on the Cluster as long as it has machines.
func setClusterFinalizer(held bool) action {
	return sim.NewAttempt(fmt.Sprintf("the Cluster has machines: %v", held), func(w *world) bool {
		return w.api.EditObject(ref(faults.Clusters, "tenant"), func(o client.Object) {
			controllerutil.RemoveFinalizer(o, clusterv1.ClusterFinalizer)
			if held {
				controllerutil.AddFinalizer(o, clusterv1.ClusterFinalizer)
			}
		}) == nil
	})
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
		// The address of a machine stays its own: the claim that is being deleted has the address once, and no other
		// claim gets it.
		name: "a claim in use in the foreground", collects: true, spec: Pool("10.0.0.1-10.0.0.2"), ordered: true, capacity: 2, claims: []string{"a"},
		script: []action{setConsumerFinalizer("a", true), inForeground(faults.Claims, "a"), add("b"), another, setConsumerFinalizer("a", false), add("c")},
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
		// The Cluster has the address as long as it has machines, and no longer: the collector waits for the claim.
		name: "a Cluster in the foreground", collects: true, spec: Pool("10.0.0.1"), ordered: true, capacity: 1, before: []action{ownedByCluster("cp"), setClusterFinalizer(true)},
		script: []action{inForeground(faults.Clusters, "tenant"), add("a"), setClusterFinalizer(false)},
		want:   map[string]string{"a": "10.0.0.1"},
	},
}

func init() { scenarios = slices.Concat(scenarios, collected) } //nolint:gochecknoinits // one list, in several files
