package tenant

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// prompt is longer than all the calls of a growth take, and far shorter than the shortest backstop involved.
const prompt = time.Second

// TestTenantGrowthIsDrivenByEvents checks B44: a Service that finds no address has one as soon as every component
// involved has done its part: each is enqueued by the one before, and none by a backstop. Time here is that of the
// calls alone.
func TestTenantGrowthIsDrivenByEvents(t *testing.T) {
	if prompt >= min(missingBalancerBackstop, guard.WaitingResyncPeriod, guard.ServedResyncPeriod) {
		t.Fatal("a backstop would pass")
	}
	for name, o := range orders {
		for _, separatePools := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/apart=%t", name, separatePools), func(t *testing.T) {
				var asked time.Time
				ask := func(names string) action {
					a := add(names)
					return sim.NewAction(a.Text, func(w *world) { asked = time.Now(); a.Do(w) })
				}
				served := func(w *world) bool {
					return !slices.ContainsFunc(w.services(), func(s *corev1.Service) bool { return !addressOf(s).IsValid() })
				}
				soon := at(served, sim.NewAction("see how long that took", func(w *world) {
					if took := time.Since(asked); took > prompt {
						w.Failf("the Services waited for %v", took)
					}
				}))
				scenario{
					name: "events", initial: 1, increment: 1, separatePools: separatePools, script: []action{ask("a"), soon, ask("b"), soon, ask("c d e"), soon},
				}.run(t, func(w *world) { w.Order = o })
			})
		}
	}
}
