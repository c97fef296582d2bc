package allocator_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// An IPAddress of a claim's name appears while the claim is granted another address, and no watch has shown it by then: the claim says
// why it waits and what helps, and that helps.
func TestANameThatIsTakenMeanwhile(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*ipamv1.IPAddress)
		advice string
	}{
		"created by hand": {
			change: func(*ipamv1.IPAddress) {},
			advice: "IPAddress ns/a has the name of this claim: it was created by hand; delete it if nobody uses it",
		},
		"of an earlier claim, kept by another": {
			change: func(a *ipamv1.IPAddress) {
				a.Finalizers = []string{"example.com/keeps"}
				a.OwnerReferences = []metav1.OwnerReference{{APIVersion: ipamv1.GroupVersion.String(), Kind: "IPAddressClaim", Name: "a", UID: "uid-before"}}
			},
			advice: "IPAddress ns/a still belongs to an earlier claim of this name; waiting until it is gone",
		},
	} {
		t.Run(name, func(t *testing.T) {
			taken := &ipamv1.IPAddress{}
			taken.Namespace, taken.Name = namespace, "a"
			taken.Spec = ipamv1.IPAddressSpec{ClaimRef: ipamv1.IPAddressClaimReference{Name: "a"}, PoolRef: claim("a").Spec.PoolRef, Address: "10.0.0.3"}
			c.change(taken)
			s := scenario{
				name: "name taken", spec: Pool("10.0.0.1-10.0.0.4"), capacity: 4, claims: []string{"a"}, want: map[string]string{"a": "10.0.0.1"},
				script: []action{{"follow what the claim says", func(w *world) bool {
					claim := w.objects().Claims[0]
					if ready := conditions.Get(&claim, ipamv1.IPAddressClaimReadyCondition); ready == nil || !strings.HasPrefix(ready.Message, c.advice) {
						w.Wrongf("the claim says %+v, want %q", ready, c.advice)
					}
					w.obstructed = false
					return forceDelete(faults.Addresses, "a").do(w)
				}}},
			}
			s.run(t, func(w *world) {
				w.disturb = func(w *world, r *faults.Request) bool {
					if r.Verb == "create" && r.Ref.Kind == faults.Addresses {
						w.disturb, w.obstructed = nil, true
						w.create(taken)
					}
					return false
				}
			})
		})
	}
}
