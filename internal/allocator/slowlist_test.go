package allocator_test

import (
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// TestPausedFormerHolderGrantsNothing checks a former holder that was paused, and goes on when the new holder has read
// what exists and does not know it yet. Requests that a user makes then must not be granted by the former holder, as
// the watches of the new one show nothing.
func TestPausedFormerHolderGrantsNothing(t *testing.T) {
	sleeps := sim.NewAttempt("the second manager is paused", func(w *world) bool {
		w.Managers[1].Asleep = true
		return true
	})
	s := scenario{
		spec: Pool("10.0.0.1-10.0.0.8"), capacity: 2, claims: []string{"a"},
		script: []action{another, stallWatches(faults.Claims, faults.Addresses), sleeps, allocate("x", 2), allocate("y", 1), resumeWatches},
	}
	for _, name := range names(sim.Orders) {
		t.Run(name, func(t *testing.T) {
			lists := 0 // of claims, allocations and IPAddresses
			s.run(t, func(w *world) {
				w.Order = sim.Orders[name]
				w.Disturb = func(w *world, r *faults.Request) bool {
					if r.Verb != "list" || r.Ref.Kind == faults.Pools || r.Ref.Kind == faults.GlobalPools || lists == 3 {
						return false
					}
					value, err := w.Execute(r)
					w.DelayStep(0, 2*pause, func() { w.Answer(r, value, err) })
					if lists++; lists == 3 {
						add("b").Do(w)
						w.Managers[1].Asleep = false
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
