package cilium

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNewService checks what Cilium reads of a Service (U72).
func TestNewService(t *testing.T) {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", Generation: 2, Annotations: map[string]string{
			"io.cilium/lb-ipam-ips": "10.0.0.2, nonsense,10.0.0.1", "lbipam.cilium.io/sharing-key": "k", "lbipam.cilium.io/sharing-cross-namespace": "a,b",
		}},
		Spec: corev1.ServiceSpec{LoadBalancerIP: "10.0.0.1", ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, Selector: map[string]string{"app": "web"}},
	}
	s.Status.Conditions = []metav1.Condition{{Type: satisfiedCondition, Status: metav1.ConditionFalse, Reason: "out_of_ips", ObservedGeneration: 2}}
	parsed := newService(s)
	for name, got := range map[string][2]any{
		"addresses":  {parsed.RequestedIPs, []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}},
		"key":        {parsed.SharingKey, "k"},
		"namespaces": {parsed.sharedNamespaces, []string{"a", "b"}},
		"backends":   {parsed.BackendKey, "app=web"},
		"policy":     {parsed.isTrafficPolicyLocal, true},
		"said":       {parsed.unsatisfied.Reason, "out_of_ips"},
	} {
		if diff := cmp.Diff(got[1], got[0], cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
	s.Generation = 3
	if newService(s).unsatisfied != nil {
		t.Error("what was said of an older Service counts")
	}
}
