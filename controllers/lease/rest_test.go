package lease

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// refusalLasts is how long a refusal lasts; mostEach is how often one object is written meanwhile at most: what fails
// is tried again after delays that double, a dozen times in the 10 s for which a watch is behind in some stories. The
// delays start again where something else of the namespace succeeds, which happens a few times.
const (
	refusalLasts = 4 * time.Minute
	mostEach     = 60
)

// guarding is the finalizer of another controller.
const guarding = "example.com/guard"

// revertedAfter is how long after a write another writer reverts it.
const revertedAfter = 20 * time.Millisecond

// obstacle is what the API server refuses for a while, for example because of missing permissions, a policy, a quota,
// or a webhook that fails; or what another writer reverts. It counts what managers do while it lasts.
type obstacle struct {
	of  func(*faults.Request) bool
	err error
	// revert is what another writer does after each write that succeeds; nil if the write is refused.
	revert func(client.Object)
	// keptKinds are the kinds whose deleted objects are kept by a foreign finalizer.
	keptKinds []faults.Kind

	over       bool
	kept       int // objects that were deleted, and still existed at the end
	reconciles map[string]int
	calls      map[string]int
}

func (f *obstacle) isActive() bool { return f != nil && !f.over }

// refusesCall reports whether a call is refused, and counts writes.
func (f *obstacle) refusesCall(w *world, r *faults.Request) bool {
	if !f.isActive() {
		return false
	}
	w.stepsSinceChange = 0 // the counts of the refusal bound the failed calls
	if r.IsWrite() {
		f.calls[r.String()]++
	}
	if f.of == nil || !f.of(r) {
		return false
	}
	w.lastChange = time.Now()
	if f.revert != nil {
		w.DelayStep(0, revertedAfter, func() {
			if f.isActive() {
				_ = w.api.EditObject(r.Ref, f.revert) // it may be gone by now
			}
		})
	}
	return f.revert == nil
}

// setForeignFinalizer adds the foreign finalizer to all objects that it keeps, or removes it.
func (f *obstacle) setForeignFinalizer(w *world, change func(client.Object, string) bool) {
	for _, kind := range f.keptKinds {
		for _, o := range w.api.List(kind) {
			if guarded := controllerutil.ContainsFinalizer(o, guarding); (guarded && f.over) || (!guarded && o.GetDeletionTimestamp().IsZero()) {
				_ = w.api.EditObject(faults.RefForObject(o), func(o client.Object) { change(o, guarding) })
			}
		}
	}
}

// deleteKept deletes the first object of each kind that the foreign finalizer keeps.
func (f *obstacle) deleteKept(w *world) {
	for _, kind := range f.keptKinds {
		if all := w.api.List(kind); len(all) > 0 {
			w.change("another deletes "+all[0].GetName(), func() { _ = w.api.Delete(faults.RefForObject(all[0]), false) })
		}
	}
}

func (f *obstacle) countReconcile(queue string) {
	if f.isActive() {
		f.reconciles[queue]++
	}
}

// end ends the obstacle, and fails the world for what was too much.
func (f *obstacle) end(w *world) {
	w.Tracef("nothing is refused any more")
	f.over, w.lastChange = true, time.Now()
	for _, kind := range f.keptKinds {
		for _, o := range w.api.List(kind) {
			if !o.GetDeletionTimestamp().IsZero() {
				f.kept++
			}
		}
	}
	f.setForeignFinalizer(w, controllerutil.RemoveFinalizer)
	for _, queue := range slices.Sorted(maps.Keys(f.reconciles)) {
		if n := f.reconciles[queue]; n > int(refusalLasts/time.Second) {
			w.Failf("rest: %d reconciles of %s while a refusal lasts %v", n, queue, refusalLasts)
		}
	}
	for _, call := range slices.Sorted(maps.Keys(f.calls)) {
		if n := f.calls[call]; n > mostEach {
			w.Failf("rest: %d times %s while a refusal lasts %v", n, call, refusalLasts)
		}
	}
}

func writesOfKinds(kinds ...faults.Kind) func(*faults.Request) bool {
	return func(r *faults.Request) bool { return r.IsWrite() && slices.Contains(kinds, r.Ref.Kind) }
}

// TestRestWhileARefusalLasts runs stories while something is refused for good, or kept by a foreign finalizer. There is
// at most one reconcile a second for a namespace, and the writes of each object are bounded; when the refusal ends, all
// are served.
func TestRestWhileARefusalLasts(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "x", errors.New("a policy refuses it"))
	obstacles := map[string]obstacle{
		"all writes":                 {of: func(r *faults.Request) bool { return r.IsWrite() }, err: forbidden},
		"IPLeases":                   {of: writesOfKinds(faults.Leases), err: forbidden},
		"status of IPLeases":         {of: func(r *faults.Request) bool { return writesOfKinds(faults.Leases)(r) && r.Status }, err: forbidden},
		"Services":                   {of: writesOfKinds(faults.Services), err: forbidden},
		"IPAddressPools":             {of: writesOfKinds(faults.MetalLBPools), err: forbidden},
		"locks of addresses":         {of: writesOfKinds(faults.HostLeases), err: forbidden},
		"a webhook that answers 500": {of: writesOfKinds(faults.Leases, faults.Services), err: apierrors.NewInternalError(errors.New("failed calling webhook"))},

		"the finalizer of another keeps IPLeases":       {keptKinds: []faults.Kind{faults.Leases}},
		"the finalizer of another keeps Services":       {keptKinds: []faults.Kind{faults.Services}},
		"the finalizer of another keeps pools":          {keptKinds: []faults.Kind{faults.Pools}},
		"the finalizer of another keeps IPAddressPools": {keptKinds: []faults.Kind{faults.MetalLBPools, faults.L2Advertisements}},
		"the finalizer of another keeps locks":          {keptKinds: []faults.Kind{faults.HostLeases}},

		"a controller that resets conditions": {of: writesOfKinds(faults.Leases, faults.Services), revert: func(o client.Object) {
			switch o := o.(type) {
			case *v1alpha1.IPLease:
				o.Status.Conditions = slices.DeleteFunc(o.Status.Conditions, func(c metav1.Condition) bool { return c.Type != clusterv1.ReadyCondition })
			case *corev1.Service:
				o.Status.Conditions = nil
			}
		}},
		"a tool that resets the pools of MetalLB": {of: writesOfKinds(faults.MetalLBPools), revert: func(o client.Object) {
			if p, ok := o.(*metallbv1beta1.IPAddressPool); ok {
				p.Spec.Addresses = p.Spec.Addresses[:1]
			}
		}},
	}
	seeds := 30
	if testing.Short() {
		seeds = 2
	}
	for _, name := range slices.Sorted(maps.Keys(obstacles)) {
		kept, ran := 0, 0
		for seed := range seeds {
			t.Run(fmt.Sprint(name, "/", seed), func(t *testing.T) {
				runStory(t, uint64(seed), func(w *world) {
					f := obstacles[name]
					ran++
					t.Cleanup(func() { kept += f.kept })
					f.reconciles, f.calls = map[string]int{}, map[string]int{}
					w.obstacle, w.remainingFaults = &f, 0
					w.DelayStep(0, refusalLasts/4, func() { f.deleteKept(w) })
					w.DelayStep(0, refusalLasts, func() { f.end(w) })
				})
			})
		}
		if len(obstacles[name].keptKinds) > 0 && kept == 0 && ran == seeds {
			t.Errorf("%s: none was kept", name)
		}
	}
}
