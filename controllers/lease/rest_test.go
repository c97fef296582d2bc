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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
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

// obstacle is an obstacle, or a foreign finalizer that keeps the deleted objects of some kinds.
type obstacle struct {
	sim.Obstacle
	keptKinds []faults.Kind
}

func newRefusal(err error, matches func(*faults.Request) bool) sim.Obstacle {
	return sim.Obstacle{Matches: matches, Err: sim.ErrAlways(err)}
}

func (w *world) startObstacle(o obstacle) {
	o.IsChange = true
	w.keptKinds = o.keptKinds
	w.StartObstacle(o.Obstacle)
}

// addForeignFinalizers adds the foreign finalizer to all objects that it is to keep.
func (w *world) addForeignFinalizers() {
	for _, kind := range w.keptKinds {
		for _, o := range w.api.List(kind) {
			if o.GetDeletionTimestamp().IsZero() && !controllerutil.ContainsFinalizer(o, guarding) {
				_ = w.api.EditObject(faults.RefForObject(o), func(o client.Object) { controllerutil.AddFinalizer(o, guarding) })
			}
		}
	}
}

// deleteKept deletes the first object of each kind that the foreign finalizer keeps.
func (w *world) deleteKept() {
	for _, kind := range w.keptKinds {
		if all := w.api.List(kind); len(all) > 0 {
			w.Change("another deletes "+all[0].GetName(), func() { _ = w.api.Delete(faults.RefForObject(all[0]), false) })
		}
	}
}

// endObstacle ends the obstacle, and fails the world for what was too much. It returns how many objects were deleted,
// and still existed.
func (w *world) endObstacle() (kept int) {
	w.CheckObstacleCosts(int(refusalLasts/time.Second), mostEach)
	w.EndObstacle()
	w.LastChange = time.Now()
	for _, kind := range w.keptKinds {
		for _, o := range w.api.List(kind) {
			if !o.GetDeletionTimestamp().IsZero() {
				kept++
			}
			_ = w.api.EditObject(faults.RefForObject(o), func(o client.Object) { controllerutil.RemoveFinalizer(o, guarding) })
		}
	}
	w.keptKinds = nil
	return kept
}

func writesOfKinds(kinds ...faults.Kind) func(*faults.Request) bool {
	return func(r *faults.Request) bool { return r.IsWrite() && slices.Contains(kinds, r.Ref.Kind) }
}

// TestRestWhileARefusalLasts runs stories while something is refused for good, or kept by a foreign finalizer. There is
// at most one reconcile a second for a namespace, and the writes of each object are bounded; when the refusal ends, all
// are served.
func TestRestWhileARefusalLasts(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "x", errors.New("a policy refuses it"))
	webhookFailed := apierrors.NewInternalError(errors.New("failed calling webhook"))
	statusOfLeases := func(r *faults.Request) bool { return writesOfKinds(faults.Leases)(r) && r.Status }
	obstacles := map[string]obstacle{
		"all writes":                 {Obstacle: newRefusal(forbidden, (*faults.Request).IsWrite)},
		"IPLeases":                   {Obstacle: newRefusal(forbidden, writesOfKinds(faults.Leases))},
		"status of IPLeases":         {Obstacle: newRefusal(forbidden, statusOfLeases)},
		"Services":                   {Obstacle: newRefusal(forbidden, writesOfKinds(faults.Services))},
		"IPAddressPools":             {Obstacle: newRefusal(forbidden, writesOfKinds(faults.MetalLBPools))},
		"locks of addresses":         {Obstacle: newRefusal(forbidden, writesOfKinds(faults.HostLeases))},
		"a webhook that answers 500": {Obstacle: newRefusal(webhookFailed, writesOfKinds(faults.Leases, faults.Services))},

		"the finalizer of another keeps IPLeases":       {keptKinds: []faults.Kind{faults.Leases}},
		"the finalizer of another keeps Services":       {keptKinds: []faults.Kind{faults.Services}},
		"the finalizer of another keeps pools":          {keptKinds: []faults.Kind{faults.Pools}},
		"the finalizer of another keeps IPAddressPools": {keptKinds: []faults.Kind{faults.MetalLBPools, faults.L2Advertisements}},
		"the finalizer of another keeps locks":          {keptKinds: []faults.Kind{faults.HostLeases}},

		"a controller that resets conditions": {Obstacle: sim.Obstacle{Matches: writesOfKinds(faults.Leases, faults.Services), Revert: func(o client.Object) {
			switch o := o.(type) {
			case *v1alpha1.IPLease:
				o.Status.Conditions = slices.DeleteFunc(o.Status.Conditions, func(c metav1.Condition) bool { return c.Type != clusterv1.ReadyCondition })
			case *corev1.Service:
				o.Status.Conditions = nil
			}
		}}},
		"a tool that resets the pools of MetalLB": {Obstacle: sim.Obstacle{Matches: writesOfKinds(faults.MetalLBPools), Revert: func(o client.Object) {
			if p, ok := o.(*metallbv1beta1.IPAddressPool); ok {
				p.Spec.Addresses = p.Spec.Addresses[:1]
			}
		}}},
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
					o := obstacles[name]
					o.Name, w.remainingFaults = name, 0
					w.startObstacle(o)
					ran++
					w.DelayStep(0, refusalLasts/4, w.deleteKept)
					w.DelayStep(0, refusalLasts, func() { kept += w.endObstacle() })
				})
			})
		}
		if len(obstacles[name].keptKinds) > 0 && kept == 0 && ran == seeds {
			t.Errorf("%s: none was kept", name)
		}
	}
}
