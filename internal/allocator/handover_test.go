package allocator_test

import (
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// TestHandover checks the one order of events that no single disturbance brings about: a manager takes the pool over
// after another has granted an address and before it has recorded it; it sees the IPAddress, and that it was forced
// away, while it has not seen the record yet. An older claim that may be served only now must not get the address.
func TestHandover(t *testing.T) {
	tenants := action{"add claim b for Cluster tenant", func(w *world) bool {
		c := claim("b")
		c.Spec.ClusterName = "tenant"
		return w.api.Create(c) == nil
	}}
	s := scenario{
		name: "handover", spec: Pool("10.0.0.1-10.0.0.4"), capacity: 2, want: map[string]string{"c": "10.0.0.1"},
		before: []action{forceDelete(faults.Clusters, "tenant"), tenants}, claims: []string{"c"},
	}
	s.run(t, func(w *world) {
		w.order = orders["eager"]
		record := ref(faults.Claims, "c")
		var first, second *faults.Request
		w.disturb = func(w *world, r *faults.Request) bool {
			switch {
			case first == nil && r.Verb == "patch" && r.Ref == record:
				first = r
				w.manager("a").mute[faults.Pools] = true // otherwise it would see the takeover, and leave the claim
				w.start()
				return true
			case second == nil && r.Client == "b" && r.Verb == "patch" && r.Ref == record:
				second = r
				w.manager("b").mute[faults.Claims] = true
				_ = answered(w, first)
				return true
			case r.Client == "a" && r.Verb == "create":
				_ = answered(w, r)
				w.manager("a").asleep = true
				w.DelayStep(0, pause, func() {
					w.script = []action{forceDelete(faults.Addresses, "c"), makeCluster}
					w.act()
					w.act()
					w.DelayStep(0, 2*pause, func() {
						w.manager("b").mute[faults.Claims] = false
						_ = answered(w, second)
						w.manager("a").asleep, w.manager("a").mute[faults.Pools] = false, false
					})
				})
				return true
			}
			return false
		}
	})
}
