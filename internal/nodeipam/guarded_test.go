package nodeipam_test

import (
	"fmt"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// guarding is a foreign finalizer.
const guarding = "example.com/guard"

// isKeptByForeign reports whether only a foreign finalizer keeps an object.
func isKeptByForeign(o client.Object, ours string) bool {
	return controllerutil.ContainsFinalizer(o, guarding) && !controllerutil.ContainsFinalizer(o, ours)
}

// setForeignFinalizer adds a foreign finalizer to an object, which is never removed.
func setForeignFinalizer(kind faults.Kind, namespace, name string) action {
	return sim.NewAttempt(fmt.Sprintf("%s %s is guarded", kind, name), func(w *world) bool {
		return w.api.EditObject(faults.Ref{Kind: kind, Namespace: namespace, Name: name}, func(o client.Object) {
			controllerutil.AddFinalizer(o, guarding)
		}) == nil
	})
}

// TestWhatAnotherKeepsCostsNothing checks that a deleted object that a foreign finalizer keeps forever costs nothing
// meanwhile, whatever its kind: the world counts the requests of managers while nothing changes.
func TestWhatAnotherKeepsCostsNothing(t *testing.T) {
	t.Parallel()
	ranges := []client.Object{clusterCIDR("c", "10.0.0.0/23", 8), node("a")}
	blocks := []client.Object{clusterProd(), fromPool("c"), node("a"), node("b"), node("d")}
	for name, s := range map[string]scenario{
		"a Node":                        {before: ranges, script: []action{setForeignFinalizer(faults.Nodes, "", "a"), remove(faults.Nodes, "a"), add(node("b"))}},
		"a ClusterCIDR":                 {before: ranges, script: []action{setForeignFinalizer(faults.ClusterCIDRs, "", "c"), remove(faults.ClusterCIDRs, "c"), gone("a"), add(node("b"))}},
		"a ClusterCIDR in use":          {before: ranges, script: []action{setForeignFinalizer(faults.ClusterCIDRs, "", "c"), remove(faults.ClusterCIDRs, "c"), add(node("b"))}},
		"a block":                       {fleet: true, before: blocks, script: []action{setForeignFinalizer(faults.Allocations, prod.Namespace, "prod-pods-4-1"), removeBlock("prod-pods-4-1"), gone("a"), gone("b"), gone("d")}},
		"a block in use":                {fleet: true, before: blocks, script: []action{setForeignFinalizer(faults.Allocations, prod.Namespace, "prod-pods-4-1"), removeBlock("prod-pods-4-1"), add(node("e"))}},
		"a ClusterCIDR with its blocks": {fleet: true, before: blocks, script: []action{setForeignFinalizer(faults.ClusterCIDRs, "", "c"), remove(faults.ClusterCIDRs, "c"), gone("a"), gone("b"), gone("d")}},
	} {
		s.name, s.served = name, -1
		if s.fleet {
			s.pool = threeBlocks
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for order, of := range sim.Orders {
				t.Run(order, func(t *testing.T) { s.run(t, func(w *world) { w.Order = of }) })
			}
		})
	}
}
