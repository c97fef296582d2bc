package nodeipam_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// TestAStaleHolderEndsNothing checks that a manager that does not know yet that it lost its term does not remove the
// finalizer from a ClusterCIDR that the next holder has granted from.
func TestAStaleHolderEndsNothing(t *testing.T) {
	s := scenario{
		name: "stale holder", before: []client.Object{forSize(clusterCIDR("small", "10.0.0.0/23", 8), "small"), sized("a", "small")},
		script: []action{
			sim.NewAttempt("pause a, start b", func(w *world) bool { w.Managers[0].Asleep = true; w.start(); return true }),
			add(forSize(clusterCIDR("c", "10.1.0.0/23", 8), "big")), add(sized("x", "big")),
		}, served: -1,
	}
	s.run(t, func(w *world) {
		w.Disturb = func(w *world, r *faults.Request) bool {
			if r.Client != "b" || r.Ref.Kind != faults.Nodes || !r.IsWrite() {
				return false
			}
			w.Disturb = nil
			w.Tracef("b is paused in its patch; a goes on; the user deletes c")
			w.Managers[1].Asleep, w.Managers[0].Asleep = true, false
			w.ChangeAsUser("delete c", func() { _ = w.api.Delete(ref(faults.ClusterCIDRs, "c"), false) })
			w.DelayStep(0, 60*time.Second, func() {
				w.Managers[1].Asleep = false
				w.ExecuteAndAnswer(r)
			})
			return true
		}
	})
}

// TestNothingEndsDuringAdoption checks that, while the cluster is adopted because the ConfigMap was lost, the finalizer
// stays on a ClusterCIDR while a patch with one of its CIDRs may still land.
func TestNothingEndsDuringAdoption(t *testing.T) {
	s := scenario{name: "adopting", before: []client.Object{clusterCIDR("c", "10.0.0.0/23", 8), node("a")}, served: -1}
	s.run(t, func(w *world) {
		w.Disturb = func(w *world, r *faults.Request) bool {
			if r.Ref.Kind != faults.Nodes || !r.IsWrite() {
				return false
			}
			w.Disturb = nil
			w.CrashBefore(r)
			w.ChangeAsUser("the ConfigMap is lost, c is deleted", func() {
				_ = w.api.Delete(fenceRef, true)
				_ = w.api.Delete(ref(faults.ClusterCIDRs, "c"), false)
			})
			w.DelayStep(0, 14*time.Second, func() {
				_, _ = w.Execute(r)
				if n := w.api.List(faults.Nodes)[0].(*corev1.Node); len(n.Spec.PodCIDRs) > 0 && len(w.api.List(faults.ClusterCIDRs)) == 0 {
					w.Failf("K17: Node a has %v of c, which is gone", n.Spec.PodCIDRs)
				}
			})
			return true
		}
	})
}

// TestAReadThatFailedOnceIsNotShown checks that a read that failed once does not stay in the conditions of an idle
// cluster.
func TestAReadThatFailedOnceIsNotShown(t *testing.T) {
	s := scenario{name: "idle", before: []client.Object{clusterCIDR("c", "10.0.0.0/23", 8)}, served: 0}
	s.script = []action{sim.NewAttempt("look at the conditions", func(w *world) bool {
		found, speaks := w.Managers[0].site.BuildReport()
		for _, u := range found.UsageByRange {
			for _, c := range u.Conditions {
				if c.Type == v1alpha1.ReadyCondition && c.Status != "True" {
					w.Failf("speaks %v: Ready is %s/%s: %s", speaks, c.Status, c.Reason, c.Message)
				}
			}
		}
		return true
	})}
	s.run(t, func(w *world) {
		w.Disturb = func(w *world, r *faults.Request) bool {
			w.Disturb = nil
			w.Answer(r, nil, sim.ErrTimeout)
			return true
		}
	})
}

// TestStaleHolderKeepsOpenedBlock checks that a manager that does not know yet that it lost its term does not release a
// block that the next holder has opened and granted from: the first manager requested the block, and sees that it is
// being deleted, and that no Node has any of it.
func TestStaleHolderKeepsOpenedBlock(t *testing.T) {
	s := scenario{name: "opened by another", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a")}, served: -1}
	s.run(t, func(w *world) {
		w.Disturb = func(w *world, r *faults.Request) bool {
			switch {
			case r.Client == "a" && r.Ref.Kind == faults.Allocations && r.Verb == "create":
				w.ExecuteAndAnswer(r)
				w.Managers[0].Asleep = true
				w.start()
				w.Tracef("a is paused, b starts")
				return true
			case r.Client == "b" && r.Ref.Kind == faults.Nodes && r.IsWrite():
				w.Disturb = nil
				w.Tracef("b is paused in its patch; a goes on; the user deletes the block")
				w.Managers[1].Asleep, w.Managers[0].Asleep = true, false
				removeBlock("prod-pods-4-1").Do(w)
				w.DelayStep(0, 60*time.Second, func() {
					w.Managers[1].Asleep = false
					w.ExecuteAndAnswer(r)
				})
				return true
			}
			return false
		}
	})
}

// TestReleasedBlockIsNotOpened checks that a manager whose watch of IPAllocations shows nothing does not open a block
// that was returned to the pool meanwhile.
func TestReleasedBlockIsNotOpened(t *testing.T) {
	s := scenario{name: "gone", fleet: true, pool: threeBlocks[:1], before: []client.Object{clusterProd(), fromPool("c"), node("a")}, served: -1}
	s.script = []action{
		remove(faults.Nodes, "a"), // first, as b counts from its own start how long the block is unused
		sim.NewAttempt("start b, which is shown no more of IPAllocations", func(w *world) bool {
			w.start()
			w.relist(w.Managers[1], faults.Allocations, 10*time.Minute)
			return true
		}),
		sim.NewAttempt("the block is gone; kill a", func(w *world) bool {
			if len(w.blocks()) > 0 {
				return false
			}
			w.Managers[0].Kill()
			return true
		}),
		add(node("b")),
	}
	s.run(t, func(w *world) { w.Impatient = true })
}
