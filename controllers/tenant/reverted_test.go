package tenant

import (
	"slices"
	"testing"
	"time"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// TestTenantRestsWhileItsWritesAreReverted checks another writer that reverts what a manager writes, for as long as
// both run: a second manager without leader election that does not reach the workload cluster, a controller that resets
// conditions, a GitOps tool that has the pool of the load balancer. The manager repeats its write with a growing delay,
// instead of as fast as its watch shows the other's.
func TestTenantRestsWhileItsWritesAreReverted(t *testing.T) { // B57
	script := []action{add("a"), add("b"), remove("b"), deleteBlock("ns-prod-lb-1")}
	for name, c := range map[string]struct {
		setup func(*world)
		// revert is what another writer does after a write of a manager; nil if nothing.
		revert map[faults.Kind]func(client.Object)
	}{
		"a manager that does not reach the Cluster": {setup: func(w *world) {
			w.start()
			w.Managers[0].unreachable, w.Managers[0].connectFailures = true, 5
		}},
		"a controller that resets conditions": {revert: map[faults.Kind]func(client.Object){
			faults.Allocations: func(o client.Object) {
				if a, ok := o.(*v1alpha1.IPAllocation); ok {
					meta.RemoveStatusCondition(&a.Status.Conditions, v1alpha1.DemandSatisfiedCondition)
					meta.RemoveStatusCondition(&a.Status.Conditions, v1alpha1.InUseCondition)
				}
			},
		}},
		"a tool that resets the pool of MetalLB": {revert: map[faults.Kind]func(client.Object){
			faults.MetalLBPools: func(o client.Object) {
				if p, ok := o.(*metallbv1beta1.IPAddressPool); ok {
					p.Spec.Addresses = p.Spec.Addresses[:1]
				}
			},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			writes, runs, over := map[faults.Ref]int{}, 0, false
			ends := sim.NewAction("the other writer ends", func(w *world) {
				w.DelayStep(0, refusalDuration, func() {
					over = true
					for _, p := range w.Managers {
						p.unreachable = false
						runs += p.queues[1].Runs
					}
					w.DelayStep(0, longestPause, func() {})
				})
			})
			scenario{name: name, initial: 1, increment: 1, script: append(slices.Clone(script), ends)}.run(t, func(w *world) {
				if c.setup != nil {
					c.setup(w)
				}
				w.Disturb = func(w *world, r *faults.Request) bool {
					if !r.IsWrite() || over {
						return false
					}
					writes[r.Ref]++
					if revert := c.revert[r.Ref.Kind]; revert != nil {
						w.DelayStep(0, 5*time.Millisecond, func() {
							w.Change("another writer reverts "+r.Ref.Name, func() {
								_ = r.Server.EditObject(r.Ref, revert) // it may be gone by now
							})
						})
					}
					return false
				}
			})
			for ref, n := range writes {
				if n > 2*maxWritesPerPause*len(script) {
					t.Errorf("%v was written %d times in %v", ref, n, refusalDuration)
				}
			}
			if n := 2 * int(refusalDuration/time.Second); runs > n {
				t.Errorf("%d reconciles in %v", runs, refusalDuration)
			}
			t.Logf("%d reconciles, writes: %v", runs, writes)
		})
	}
}
