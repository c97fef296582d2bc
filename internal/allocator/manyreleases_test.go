package allocator_test

import (
	"fmt"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// TestManyReleasesRest checks that, when more claims are deleted at once than a batch records rests for, and one event
// happens meanwhile, each claim ends and its address rests.
func TestManyReleasesRest(t *testing.T) {
	const n = grants.MaxJobs + 44
	removeAll := action{"delete all claims", func(w *world) bool {
		for _, c := range w.api.List(faults.Claims) {
			_ = w.api.Delete(faults.RefForObject(c), false)
		}
		return true
	}}
	byUser := func(name string, a action) disturbance {
		return disturbance{name, func(w *world, _ *faults.Request) bool {
			before := w.api.ResourceVersion()
			a.do(w)
			w.changed(before, "the user: "+a.text)
			return false
		}}
	}
	noGrace := action{"the pool has no grace period", func(w *world) bool {
		w.grace = false
		return w.api.EditObject(ref(faults.Pools, poolName), func(o client.Object) { o.(*v1alpha1.NetworkPool).Spec.AddressReuseGracePeriodSeconds = nil }) == nil
	}}
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
					w.disturb = func(w *world, r *faults.Request) bool {
						if len(w.script) == len(s.script) || !r.IsWrite() {
							return false
						}
						if left--; left > 0 {
							return false
						}
						w.disturb = nil
						return d.do(w, r)
					}
				})
			})
		}
	}
	t.Logf("%d runs", runs)
}
