package tenant

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// moveBlock makes clusterctl take away a block whose addresses its pool holds.
func moveBlock(name string) action {
	return sim.NewAction("clusterctl moves IPAllocation "+name, func(w *world) {
		for _, a := range w.allocations() {
			if a.Name != name {
				continue
			}
			held := v1alpha1.HeldRange{First: a.Status.StartAddress, Last: a.Status.EndAddress, Reason: v1alpha1.MovedReason, Namespace: a.Namespace, Name: a.Name}
			_ = faults.EditStatus(w.mgmt, faults.Ref{Kind: faults.Pools, Namespace: namespace, Name: "pool"}, func(p *v1alpha1.NetworkPool) {
				p.Status.Held = append(p.Status.Held, held)
			})
			_ = w.mgmt.Delete(faults.RefForObject(a), true)
		}
	})
}

// pauseCluster pauses the Cluster, as clusterctl does first, or unpauses it, as a user has to before the move can be
// resumed.
func pauseCluster(paused bool) action {
	return sim.NewAction(fmt.Sprintf("the Cluster is paused: %v", paused), func(w *world) {
		_ = faults.EditObject(w.mgmt, faults.Ref{Kind: faults.Clusters, Namespace: namespace, Name: clusterKey.Name}, func(c *clusterv1.Cluster) {
			c.Spec.Paused = ptr.To(paused)
		})
	})
}

// moveRest makes clusterctl take away what is left: the workload cluster belongs to the other management cluster then.
var moveRest = sim.NewAction("clusterctl moves the rest", func(w *world) {
	w.ended = true
	for _, o := range slices.Concat(w.mgmt.List(faults.Allocations), w.mgmt.List(faults.Clusters)) {
		_ = w.mgmt.Delete(faults.RefForObject(o), true)
	}
})

// TestAClusterThatIsHalfMovedIsLeftAlone checks a move that was interrupted and leaves a Cluster behind without some of
// its blocks. Its Services keep their addresses: what is shown to them stays, and no other block is requested.
func TestAClusterThatIsHalfMovedIsLeftAlone(t *testing.T) { // C53
	for name, blocks := range map[string][]string{"its first block": {"ns-prod-lb"}, "one that was added": {"ns-prod-lb-1"}, "all": {"ns-prod-lb", "ns-prod-lb-1"}} {
		t.Run(name, func(t *testing.T) {
			for order := range orders {
				var showing [][]string
				addresses := map[string]string{}
				script := []action{add("a"), add("b"), sim.NewAction("look at what is shown", func(w *world) {
					showing = w.shownRanges()
					for _, s := range w.services() {
						addresses[s.Name] = addressOf(s).String()
					}
				}), pauseCluster(true)}
				for _, b := range blocks {
					script = append(script, moveBlock(b))
				}
				script = append(script, pauseCluster(false), add("c"), later(5*time.Minute, sim.NewAction("look again", func(w *world) {
					if current := w.shownRanges(); !slices.EqualFunc(current, showing, slices.Equal) {
						w.Failf("%v is shown, and not %v", current, showing)
					}
					for _, s := range w.services() {
						if was, current := addresses[s.Name], addressOf(s); was != "" && was != current.String() {
							w.Failf("Service %s has %v, and not %s", s.Name, current, was)
						}
					}
					if n := len(w.allocations()); n != 2-len(blocks) {
						w.Failf("%d blocks are there", n)
					}
				})), moveRest)
				scenario{name: name, initial: 1, increment: 1, script: script}.run(t, func(w *world) { w.Order = orders[order] })
			}
		})
	}
}
