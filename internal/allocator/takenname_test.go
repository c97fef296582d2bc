package allocator_test

import (
	"strings"
	"testing"

	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// A user creates an IPAddress of a claim's name while the claim is granted another address, which no watch has shown by then: the claim
// says why it waits and what helps, and that helps.
func TestANameThatIsTakenMeanwhile(t *testing.T) {
	const advice = "IPAddress ns/a has the name of this claim: it was created by hand; delete it if nobody uses it"
	byHand := &ipamv1.IPAddress{}
	byHand.Namespace, byHand.Name = namespace, "a"
	byHand.Spec = ipamv1.IPAddressSpec{ClaimRef: ipamv1.IPAddressClaimReference{Name: "a"}, PoolRef: claim("a").Spec.PoolRef, Address: "10.0.0.3"}
	s := scenario{
		name: "name taken", spec: Pool("10.0.0.1-10.0.0.4"), capacity: 4, claims: []string{"a"}, want: map[string]string{"a": "10.0.0.1"},
		script: []action{{"follow what the claim says", func(w *world) bool {
			claim := w.objects().Claims[0]
			if ready := conditions.Get(&claim, ipamv1.IPAddressClaimReadyCondition); ready == nil || !strings.HasPrefix(ready.Message, advice) {
				w.Wrongf("the claim says %+v, want %q", ready, advice)
			}
			w.obstructed = false
			return forceDelete(faults.Addresses, "a").do(w)
		}}},
	}
	s.run(t, func(w *world) {
		w.disturb = func(w *world, r *faults.Request) bool {
			if r.Verb == "create" && r.Ref.Kind == faults.Addresses {
				w.disturb, w.obstructed = nil, true
				w.create(byHand.DeepCopy())
			}
			return false
		}
	})
}
