package tenant

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// moveBlock makes clusterctl take away a block whose addresses its pool holds.
func moveBlock(name string) action {
	return action{text: "clusterctl moves IPAllocation " + name, do: func(w *world) {
		for _, a := range w.allocations() {
			if a.Name != name {
				continue
			}
			held := v1alpha1.HeldRange{First: a.Status.StartAddress, Last: a.Status.EndAddress, Reason: v1alpha1.MovedReason, Namespace: a.Namespace, Name: a.Name}
			_ = w.mgmt.EditStatus(faults.Ref{Kind: faults.Pools, Namespace: namespace, Name: "pool"}, func(o client.Object) {
				if p, ok := o.(*v1alpha1.NetworkPool); ok {
					p.Status.Held = append(p.Status.Held, held)
				}
			})
			_ = w.mgmt.Delete(faults.RefForObject(a), true)
		}
	}}
}

// pauseCluster pauses the Cluster, as clusterctl does first, or unpauses it, as a user has to before the move can be
// resumed.
func pauseCluster(paused bool) action {
	return action{text: fmt.Sprintf("the Cluster is paused: %v", paused), do: func(w *world) {
		_ = w.mgmt.EditObject(faults.Ref{Kind: faults.Clusters, Namespace: namespace, Name: clusterKey.Name}, func(o client.Object) {
			if c, ok := o.(*clusterv1.Cluster); ok {
				c.Spec.Paused = ptr.To(paused)
			}
		})
	}}
}

// moveRest makes clusterctl take away what is left: the workload cluster belongs to the other management cluster then.
var moveRest = action{text: "clusterctl moves the rest", do: func(w *world) {
	w.ended = true
	for _, o := range slices.Concat(w.mgmt.List(faults.Allocations), w.mgmt.List(faults.Clusters)) {
		_ = w.mgmt.Delete(faults.RefForObject(o), true)
	}
}}

// TestAClusterThatIsHalfMovedIsLeftAlone checks a move that was interrupted and leaves a Cluster behind without some of
// its blocks. Its Services keep their addresses: what is shown to them stays, and no other block is requested.
func TestAClusterThatIsHalfMovedIsLeftAlone(t *testing.T) { // C53
	for name, blocks := range map[string][]string{"its first block": {"ns-prod-lb"}, "one that was added": {"ns-prod-lb-1"}, "all": {"ns-prod-lb", "ns-prod-lb-1"}} {
		t.Run(name, func(t *testing.T) {
			for order := range orders {
				var showing [][]string
				addresses := map[string]string{}
				script := []action{add("a"), add("b"), {text: "look at what is shown", do: func(w *world) {
					showing = w.shownRanges()
					for _, s := range w.services() {
						addresses[s.Name] = addressOf(s).String()
					}
				}}, pauseCluster(true)}
				for _, b := range blocks {
					script = append(script, moveBlock(b))
				}
				script = append(script, pauseCluster(false), add("c"), later(5*time.Minute, action{text: "look again", do: func(w *world) {
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
				}}), moveRest)
				scenario{name: name, initial: 1, increment: 1, script: script}.run(t, func(w *world) { w.order = orders[order] })
			}
		})
	}
}
