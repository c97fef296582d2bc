package allocator_test

import (
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// TestSlowList checks a former holder that was paused, and goes on when the new holder has read what exists and does
// not know it yet. Requests that a user makes then must not be granted by the former holder, as the watches of the new
// one show nothing.
func TestSlowList(t *testing.T) {
	sleeps := action{"the second manager is paused", func(w *world) bool {
		w.managers[1].asleep = true
		return true
	}}
	s := scenario{
		spec: Pool("10.0.0.1-10.0.0.8"), capacity: 2, claims: []string{"a"},
		script: []action{another, stallWatches(faults.Claims, faults.Addresses), sleeps, allocate("x", 2), allocate("y", 1), resumeWatches},
	}
	for _, name := range names(orders) {
		t.Run(name, func(t *testing.T) {
			lists := 0 // of claims, allocations and IPAddresses
			s.run(t, func(w *world) {
				w.order = orders[name]
				w.disturb = func(w *world, r *faults.Request) bool {
					if r.Verb != "list" || r.Ref.Kind == faults.Pools || r.Ref.Kind == faults.GlobalPools || lists == 3 {
						return false
					}
					value, err := w.do(r)
					w.DelayStep(0, 2*pause, func() { w.answer(r, value, err) })
					if lists++; lists == 3 {
						add("b").do(w)
						w.managers[1].asleep = false
					}
					return true
				}
			})
			if lists != 3 {
				t.Errorf("%d lists were read", lists)
			}
		})
	}
}
