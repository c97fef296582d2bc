package allocator_test

import (
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// TestWhatAnotherKeepsCostsNothing checks that a deleted object that another controller's finalizer keeps for minutes
// costs almost nothing meanwhile, whatever its kind: schedules count the cost while nothing changes.
func TestWhatAnotherKeepsCostsNothing(t *testing.T) {
	const lasts = 5 * time.Minute
	kept := func(kind faults.Kind, name string, then ...action) []action {
		return append(append([]action{setForeignFinalizer(kind, name, true)}, then...), waitElapsed(lasts), setForeignFinalizer(kind, name, false))
	}
	endCluster := sim.NewAttempt("delete the Cluster", func(w *world) bool { return w.api.Delete(ref(faults.Clusters, "tenant"), false) == nil })
	block := child + "-1"
	endChild := sim.NewAttempt("delete the carved pool, and take our finalizer off by force", func(w *world) bool {
		pool := ref(faults.Pools, child)
		if err := w.api.Delete(pool, false); err != nil {
			return false
		}
		return w.api.EditObject(pool, func(o client.Object) { controllerutil.RemoveFinalizer(o, v1alpha1.PoolFinalizer) }) == nil
	})
	for name, s := range map[string]scenario{
		"IPAddress of a claim that was deleted": {
			spec: Pool("10.0.0.1-10.0.0.1"), capacity: 1, claims: []string{"a"}, script: kept(faults.Addresses, "a", remove("a"), add("b")),
		},
		"IPAddress of a claim that was forced away": {
			spec: Pool("10.0.0.1-10.0.0.1"), capacity: 1, claims: []string{"a"}, script: kept(faults.Addresses, "a", forceDelete(faults.Claims, "a"), add("b")),
		},
		"IPAddress that rests": {
			spec: Pool("10.0.0.1-10.0.0.1", grace(30)), capacity: 1, claims: []string{"a"}, script: kept(faults.Addresses, "a", forceDelete(faults.Claims, "a"), add("b")),
		},
		"claim": {
			spec: Pool("10.0.0.1-10.0.0.1"), capacity: 1, claims: []string{"a"}, script: kept(faults.Claims, "a", remove("a"), add("b")),
		},
		"claim that rests": {
			spec: Pool("10.0.0.1-10.0.0.1", grace(30)), capacity: 1, claims: []string{"a"}, script: kept(faults.Claims, "a", remove("a"), add("b")),
		},
		"lease": {
			spec: Pool("10.0.0.1-10.0.0.1", givesLeases), script: append([]action{addLease("l")}, kept(faults.Leases, "l", deleteLease("l"), addLease("m"))...),
		},
		"block of a carved pool": {
			spec: Pool("10.0.0.0-10.0.0.3", reserve, carvable), capacity: 2, ordered: true,
			before: []action{makeChild(child, poolName, 1, 2), addTo(child, "a"), addTo(child, "b")},
			script: kept(faults.Allocations, block, deallocate(block), remove("a"), addTo(child, "c")),
		},
		"IPAllocation": {
			spec: Pool("10.0.0.1-10.0.0.4"), script: append([]action{allocate("x", 4)}, kept(faults.Allocations, "x", deallocate("x"), allocate("y", 4))...),
		},
		"block of a carved pool that was forced away": {
			spec: Pool("10.0.0.0-10.0.0.7", reserve, carvable), capacity: 1, ordered: true,
			before: []action{makeChild(child, poolName, 1, 1), addTo(child, "a")},
			script: kept(faults.Allocations, block, deallocate(block), forceDelete(faults.Pools, child)),
		},
		"carved pool that was forced away": {
			spec: Pool("10.0.0.0-10.0.0.7", reserve, carvable), ordered: true,
			before: []action{makeChild(child, poolName, 1, 1), addTo(child, "a")},
			script: kept(faults.Pools, child, endChild, deallocate(block), remove("a"), until("the block is released", func(w *world) bool {
				return len(w.api.List(faults.Allocations)) == 0
			})),
		},
		"carved pool that was forced away while it is used": {
			spec: Pool("10.0.0.0-10.0.0.7", reserve, carvable), capacity: 1, ordered: true,
			before: []action{makeChild(child, poolName, 1, 1), addTo(child, "a")},
			script: kept(faults.Pools, child, endChild, deallocate(block)),
		},
		"pool": {
			spec: Pool("10.0.0.1-10.0.0.1"), claims: []string{"a"}, script: kept(faults.Pools, poolName, dropPool, remove("a"), add("b")),
		},
		"Cluster": {
			spec: Pool("10.0.0.1-10.0.0.4"), capacity: 2, before: []action{addFor("a"), allocate("x", 2)},
			script: kept(faults.Clusters, "tenant", endCluster, add("b")),
		},
	} {
		s.name = name
		t.Run(name, func(t *testing.T) {
			for order, of := range sim.Orders {
				t.Run(order, func(t *testing.T) { s.run(t, func(w *world) { w.Order = of }) })
			}
		})
	}
}
