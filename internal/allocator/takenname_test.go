package allocator_test

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// TestNameTakenDuringGrant checks IPAddresses with the claims' names that appear while the claims are granted
// other addresses, before a watch has shown them. Each claim shows why it waits and what helps, managers do little
// while the IPAddresses stay, and the suggested step helps.
func TestNameTakenDuringGrant(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*ipamv1.IPAddress)
		advice string
	}{
		"created by hand": {
			change: func(*ipamv1.IPAddress) {},
			advice: "IPAddress ns/%[1]s has the name of this claim: it was created by hand; delete it if it is not in use",
		},
		"of an earlier claim, kept by another": {
			change: func(a *ipamv1.IPAddress) {
				a.Finalizers = []string{"example.com/keeps"}
				a.OwnerReferences = []metav1.OwnerReference{{APIVersion: ipamv1.GroupVersion.String(), Kind: "IPAddressClaim", Name: a.Name, UID: "uid-before"}}
			},
			advice: "IPAddress ns/%[1]s still belongs to an earlier claim of this name; waiting until it is gone",
		},
	} {
		for _, n := range []int{1, 40} {
			t.Run(fmt.Sprintf("%s, %d", name, n), func(t *testing.T) {
				s := scenario{name: "names taken", spec: Pool("10.0.0.1-10.0.0.100"), before: []action{addMany(n)}, capacity: 100, ordered: true}
				s.run(t, func(w *world) {
					names := map[string]bool{}
					w.Disturb = func(w *world, r *faults.Request) bool {
						if r.Verb == "create" && isOf(r, faults.Addresses) && !names[r.Ref.Name] {
							names[r.Ref.Name] = true
							w.startObstacle(obstacle{Obstacle: sim.Obstacle{Name: "names-taken"}}, obstacleDuration)
							w.takeClaimName(r.Ref.Name, fmt.Sprint("10.0.0.", 60+len(names)), c.change)
						}
						return w.MeetObstacle(r)
					}
					w.DelayStep(0, obstacleDuration, func() {
						w.Disturb = nil
						w.checkAdviceOnAll(c.advice)
						for name := range names {
							w.PerformAction(forceDelete(faults.Addresses, name))
						}
						if len(names) != n {
							w.Failf("the names of %d claims were taken, want %d", len(names), n)
						}
					})
				})
			})
		}
	}
}

// takeClaimName creates an IPAddress with a claim's name.
func (w *world) takeClaimName(name, address string, change func(*ipamv1.IPAddress)) {
	taken := &ipamv1.IPAddress{}
	taken.Namespace, taken.Name = namespace, name
	taken.Spec = ipamv1.IPAddressSpec{ClaimRef: ipamv1.IPAddressClaimReference{Name: name}, PoolRef: claim(name).Spec.PoolRef, Address: address}
	change(taken)
	w.ChangeAsUser("creates IPAddress "+name, func() { w.create(taken) })
}

// checkAdviceOnAll checks the Ready message of all claims: %[1]s is their name.
func (w *world) checkAdviceOnAll(advice string) {
	for _, claim := range w.objects().Claims {
		want := fmt.Sprintf(advice, claim.Name)
		if ready := conditions.Get(&claim, ipamv1.IPAddressClaimReadyCondition); ready == nil || !strings.HasPrefix(ready.Message, want) {
			w.Failf("claim %s says %+v, want %q", claim.Name, ready, want)
		}
	}
}
