package allocator_test

import (
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/faults"
)

// TestSlowList: the holder before was paused, and goes on while the new one reads what exists, of which its
// watches show nothing. Whatever the old one still grants must not be missed.
func TestSlowList(t *testing.T) {
	sleeps := action{"the second manager is paused", func(w *world) bool {
		w.managers[1].asleep = true
		return true
	}}
	s := scenario{
		spec: pool("10.0.0.1-10.0.0.8"), capacity: 2, claims: []string{"a"},
		script: []action{another, blind(faults.Claims, faults.Addresses), sleeps, add("b"), allocate("x", 2), allocate("y", 1), see},
	}
	for _, name := range names(orders) {
		t.Run(name, func(t *testing.T) {
			slow := 0
			s.run(t, func(w *world) {
				w.order = orders[name]
				w.disturb = func(w *world, r *faults.Request) bool {
					if r.Verb != "list" || r.Client != "a" || len(w.managers) < 2 {
						return false
					}
					slow++
					w.managers[1].asleep = false
					value, err := w.do(r)
					w.after(0, 2*pause, func() { w.answer(r, value, err) })
					return true
				}
			})
			if slow == 0 {
				t.Error("nothing was listed")
			}
		})
	}
}
