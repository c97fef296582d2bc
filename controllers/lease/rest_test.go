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

// refusalLasts is how long a refusal lasts, and mostEach how often one object is written meanwhile: what fails is tried again
// after pauses that double, a dozen times in 10 s, for which a watch is behind in some stories. The pauses begin anew where
// something else of the namespace succeeds, which it does a few times.
const (
	refusalLasts = 4 * time.Minute
	mostEach     = 60
)

// guarding is the finalizer of another.
const guarding = "example.com/guard"

// revertedAfter is how long after a write another writer reverts it.
const revertedAfter = 20 * time.Millisecond

// obstacle is what the API server refuses for a while: rights that are missing, a policy, a quota, a webhook that fails; or what
// another writer reverts. How much managers do is counted while it lasts.
type obstacle struct {
	of  func(*faults.Request) bool
	err error
	// revert is what another writer does after each such write, which succeeds; nil: it is refused.
	revert func(client.Object)
	// keeps are the kinds of which the finalizer of another keeps each object that is deleted.
	keeps []faults.Kind

	over  bool
	kept  int // objects that were deleted, and were there at the end
	kicks map[string]int
	calls map[string]int
}

func (f *obstacle) lasts() bool { return f != nil && !f.over }

// meets reports whether a call is refused, and counts writes.
func (f *obstacle) meets(w *world, r *faults.Request) bool {
	if !f.lasts() {
		return false
	}
	w.vainly = 0 // how much is done in vain, the refusal counts
	if r.Write() {
		f.calls[r.String()]++
	}
	if f.of == nil || !f.of(r) {
		return false
	}
	w.lastNews = time.Now()
	if f.revert != nil {
		w.After(0, revertedAfter, func() {
			if f.lasts() {
				_ = w.api.Edit(r.Ref, f.revert) // it may be gone by now
			}
		})
	}
	return f.revert == nil
}

// guard puts the finalizer of another on all objects that it keeps, or takes it off.
func (f *obstacle) guard(w *world, change func(client.Object, string) bool) {
	for _, kind := range f.keeps {
		for _, o := range w.api.List(kind) {
			if has := controllerutil.ContainsFinalizer(o, guarding); (has && f.over) || (!has && o.GetDeletionTimestamp().IsZero()) {
				_ = w.api.Edit(faults.RefOf(o), func(o client.Object) { change(o, guarding) })
			}
		}
	}
}

// deleteKept deletes the first object of each kind that the finalizer of another keeps.
func (f *obstacle) deleteKept(w *world) {
	for _, kind := range f.keeps {
		if all := w.api.List(kind); len(all) > 0 {
			w.change("another deletes "+all[0].GetName(), func() { _ = w.api.Delete(faults.RefOf(all[0]), false) })
		}
	}
}

func (f *obstacle) kicked(queue string) {
	if f.lasts() {
		f.kicks[queue]++
	}
}

// end says what was too much.
func (f *obstacle) end(w *world) {
	w.Notef("nothing is refused any more")
	f.over, w.lastNews = true, time.Now()
	for _, kind := range f.keeps {
		for _, o := range w.api.List(kind) {
			if !o.GetDeletionTimestamp().IsZero() {
				f.kept++
			}
		}
	}
	f.guard(w, controllerutil.RemoveFinalizer)
	for _, queue := range slices.Sorted(maps.Keys(f.kicks)) {
		if n := f.kicks[queue]; n > int(refusalLasts/time.Second) {
			w.Wrongf("rest: %d reconciles of %s while a refusal lasts %v", n, queue, refusalLasts)
		}
	}
	for _, what := range slices.Sorted(maps.Keys(f.calls)) {
		if n := f.calls[what]; n > mostEach {
			w.Wrongf("rest: %d times %s while a refusal lasts %v", n, what, refusalLasts)
		}
	}
}

func isOf(kinds ...faults.Kind) func(*faults.Request) bool {
	return func(r *faults.Request) bool { return r.Write() && slices.Contains(kinds, r.Ref.Kind) }
}

// TestRestWhileARefusalLasts has stories run while something is refused for good, or kept by another. There is at most one reconcile a
// second for a namespace, and the writes of each object are bounded; when the refusal ends, all are served.
func TestRestWhileARefusalLasts(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "x", errors.New("a policy refuses it"))
	obstacles := map[string]obstacle{
		"all writes":                 {of: func(r *faults.Request) bool { return r.Write() }, err: forbidden},
		"IPLeases":                   {of: isOf(faults.Leases), err: forbidden},
		"status of IPLeases":         {of: func(r *faults.Request) bool { return isOf(faults.Leases)(r) && r.Status }, err: forbidden},
		"Services":                   {of: isOf(faults.Services), err: forbidden},
		"IPAddressPools":             {of: isOf(faults.MetalLBPools), err: forbidden},
		"locks of addresses":         {of: isOf(faults.HostLeases), err: forbidden},
		"a webhook that answers 500": {of: isOf(faults.Leases, faults.Services), err: apierrors.NewInternalError(errors.New("failed calling webhook"))},

		"the finalizer of another keeps IPLeases":       {keeps: []faults.Kind{faults.Leases}},
		"the finalizer of another keeps Services":       {keeps: []faults.Kind{faults.Services}},
		"the finalizer of another keeps pools":          {keeps: []faults.Kind{faults.Pools}},
		"the finalizer of another keeps IPAddressPools": {keeps: []faults.Kind{faults.MetalLBPools, faults.Advertisements}},
		"the finalizer of another keeps locks":          {keeps: []faults.Kind{faults.HostLeases}},

		"a controller that resets conditions": {of: isOf(faults.Leases, faults.Services), revert: func(o client.Object) {
			switch o := o.(type) {
			case *v1alpha1.IPLease:
				o.Status.Conditions = slices.DeleteFunc(o.Status.Conditions, func(c metav1.Condition) bool { return c.Type != clusterv1.ReadyCondition })
			case *corev1.Service:
				o.Status.Conditions = nil
			}
		}},
		"a tool that resets the pools of MetalLB": {of: isOf(faults.MetalLBPools), revert: func(o client.Object) {
			if p, is := o.(*metallbv1beta1.IPAddressPool); is {
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
					f.kicks, f.calls = map[string]int{}, map[string]int{}
					w.obstacle, w.trouble = &f, 0
					w.After(0, refusalLasts/4, func() { f.deleteKept(w) })
					w.After(0, refusalLasts, func() { f.end(w) })
				})
			})
		}
		if len(obstacles[name].keeps) > 0 && kept == 0 && ran == seeds {
			t.Errorf("%s: none was kept", name)
		}
	}
}
