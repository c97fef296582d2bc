package allocator_test

import (
	"fmt"
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// TestManyReleasesRest checks that, when more claims are deleted at once than a batch records rests for, and one event
// happens meanwhile, each claim ends and its address rests.
func TestManyReleasesRest(t *testing.T) {
	const n = grants.MaxJobs + 44
	removeAll := sim.NewAttempt("delete all claims", func(w *world) bool {
		for _, c := range w.api.List(faults.Claims) {
			_ = w.api.Delete(faults.RefForObject(c), false)
		}
		return true
	})
	byUser := func(name string, a action) disturbance {
		return disturbance{name, func(w *world, _ *faults.Request) bool {
			w.PerformAction(a)
			return false
		}}
	}
	noGrace := sim.NewAttempt("the pool has no grace period", func(w *world) bool {
		w.grace = false
		return faults.EditObject(w.api, ref(faults.Pools, poolName), func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = nil }) == nil
	})
	runs := 0
	for i, d := range append([]disturbance{byUser("no-grace", noGrace), byUser("pool-deleted", dropPool), byUser("two-managers", another)}, disturbances...) {
		for j, at := range []int{2, 150, n + 2, 2*n - 4} {
			if !*full && (i+j)%16 != 0 {
				continue
			}
			runs++
			t.Run(fmt.Sprint(d.name, "-", at), func(t *testing.T) {
				s := scenario{
					name: "many releases", spec: Pool("10.0.0.1-10.0.2.0", grace(30)), before: []action{addMany(n)}, capacity: n + 1, ordered: true,
					script: []action{removeAll, add("last")},
				}
				if d.name == "pool-deleted" {
					s.capacity = 0
				}
				s.run(t, func(w *world) {
					left := at
					w.Disturb = func(w *world, r *faults.Request) bool {
						if len(w.Script) == len(s.script) || !r.IsWrite() {
							return false
						}
						if left--; left > 0 {
							return false
						}
						w.Disturb = nil
						return d.do(w, r)
					}
				})
			})
		}
	}
	t.Logf("%d runs", runs)
}
