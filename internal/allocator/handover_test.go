package allocator_test

import (
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// TestHandoverBeforeRecordIsSeen checks the one order of events that no single disturbance brings about: a manager
// takes the pool over after another has granted an address and before it has recorded it; it sees the IPAddress, and
// that it was forced away, while it has not seen the record yet. An older claim that may be served only now must not
// get the address.
func TestHandoverBeforeRecordIsSeen(t *testing.T) {
	tenants := sim.NewAttempt("add claim b for Cluster tenant", func(w *world) bool {
		c := claim("b")
		c.Spec.ClusterName = "tenant"
		return w.api.Create(c) == nil
	})
	s := scenario{
		name: "handover", spec: Pool("10.0.0.1-10.0.0.4"), capacity: 2, want: map[string]string{"c": "10.0.0.1"},
		before: []action{forceDelete(faults.Clusters, "tenant"), tenants}, claims: []string{"c"},
	}
	s.run(t, func(w *world) {
		w.Order = sim.Orders["eager"]
		record := ref(faults.Claims, "c")
		var first, second *faults.Request
		w.Disturb = func(w *world, r *faults.Request) bool {
			switch {
			case first == nil && r.Verb == "patch" && r.Ref == record:
				first = r
				w.Manager("a").MuteWatches(faults.Pools) // otherwise it would see the takeover, and leave the claim
				w.start()
				return true
			case second == nil && r.Client == "b" && r.Verb == "patch" && r.Ref == record:
				second = r
				w.Manager("b").MuteWatches(faults.Claims)
				w.ExecuteAndAnswer(first)
				return true
			case r.Client == "a" && r.Verb == "create":
				w.ExecuteAndAnswer(r)
				w.Manager("a").Asleep = true
				w.DelayStep(0, pause, func() {
					w.Script = []action{forceDelete(faults.Addresses, "c"), makeCluster}
					w.Act()
					w.Act()
					w.DelayStep(0, 2*pause, func() {
						w.Manager("b").UnmuteWatches(faults.Claims)
						w.ExecuteAndAnswer(second)
						w.Manager("a").Asleep = false
						w.Manager("a").UnmuteWatches(faults.Pools)
					})
				})
				return true
			}
			return false
		}
	})
}
