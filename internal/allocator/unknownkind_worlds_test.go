package allocator_test

import (
	"strings"
	"testing"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// setFlights writes to the status of the pool which grants a manager of a newer version has in flight.
func setFlights(text string, inFlight ...v1alpha1.Grant) action {
	return sim.NewAttempt(text, func(w *world) bool {
		return faults.EditStatus(w.api, ref(faults.Pools, poolName), func(o *v1alpha1.NetworkPool) {
			o.Status.Allocator = &v1alpha1.AllocatorStatus{Holder: "newer", Term: 7, InFlight: inFlight}
		}) == nil
	})
}

// TestPoolOfNewerVersion checks a downgrade: a pool has a grant in flight to an object of a kind that this version does
// not know. Managers, one or two, leave the pool as it is and rest; a waiting claim has a reason that names what helps, and
// is served once the version that made the grant has ended it.
func TestPoolOfNewerVersion(t *testing.T) {
	flight := v1alpha1.Grant{Kind: "IPSomething", Namespace: namespace, Name: "thing", UID: "uid-thing", First: "10.0.0.1", Last: "10.0.0.1"}
	for name, managers := range map[string]int{"one manager": 1, "two managers": 2} {
		t.Run(name, func(t *testing.T) {
			checked := false
			isRefused := sim.NewAttempt("check the reason", func(w *world) bool {
				checked = true
				for _, c := range w.objects().Claims {
					if messages := w.lastMessages(c.UID); c.Status.AddressRef.Name != "" || !strings.Contains(messages, "kind IPSomething") || !strings.Contains(messages, "run the version that made them") {
						t.Errorf("claim %s has %q, and the message %q", c.Name, c.Status.AddressRef.Name, messages)
					}
				}
				for _, p := range w.objects().Pools {
					if on := p.PoolStatus().Allocator; on.Holder != "newer" || len(on.InFlight) != 1 {
						t.Errorf("the pool has %+v", on)
					}
				}
				if w.Writes > managers || w.Reconciles > 30*managers {
					t.Errorf("in ten minutes there are %d writes and %d reconciles", w.Writes, w.Reconciles)
				}
				return true
			})
			ends := sim.NewAttempt("the newer version ends the grant", func(w *world) bool {
				w.Disturb = nil
				return setFlights("").Do(w)
			})
			isRefused.Wait = 10 * time.Minute
			s := scenario{
				name: "a pool of a newer version", spec: Pool("10.0.0.1-10.0.0.4"), capacity: 4, claims: []string{"a"},
				before: []action{setFlights("a newer version grants", flight)}, script: []action{isRefused, ends, add("b")},
			}
			s.run(t, func(w *world) {
				w.Disturb = func(*world, *faults.Request) bool { return false } // until then the claim cannot be served
				for range managers - 1 {
					w.start()
				}
			})
			if !checked {
				t.Error("the reason was not checked")
			}
		})
	}
}
