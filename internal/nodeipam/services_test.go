package nodeipam

import (
	"fmt"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestServicesFollowTheirWatch checks K23: ServiceCIDRs are added, changed and deleted while the cluster runs. That of
// the API server comes first, as it determines which family Services get by default.
func TestServicesFollowTheirWatch(t *testing.T) {
	s := NewServiceCIDRStore(ClusterKey{Name: "prod"})
	serviceCIDR := func(name string, cidrs ...string) *networkingv1.ServiceCIDR {
		return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
	}
	check := func(step, want string) {
		t.Helper()
		if got := fmt.Sprint(s.Prefixes()); got != want {
			t.Errorf("%s: %s, not %s", step, got, want)
		}
	}
	if _, wakes := s.ObserveObject(serviceCIDR("added", "10.9.0.0/24")); !wakes {
		t.Error("one that is new wakes nothing")
	}
	s.ObserveObject(serviceCIDR("kubernetes", "fd00::/112", "10.96.0.0/16"))
	check("added", "[fd00::/112 10.96.0.0/16 10.9.0.0/24]")
	if _, wakes := s.ObserveObject(serviceCIDR("added", "10.9.0.0/24")); wakes {
		t.Error("one whose CIDRs are the same wakes the site")
	}
	s.ObserveObject(serviceCIDR("added", "10.8.0.0/24"))
	check("changed", "[fd00::/112 10.96.0.0/16 10.8.0.0/24]")
	if _, wakes := s.ForgetObject(serviceCIDR("added")); !wakes {
		t.Error("one that is gone wakes nothing")
	}
	check("deleted", "[fd00::/112 10.96.0.0/16]")
	s.ObserveObject(serviceCIDR("missed", "10.7.0.0/24"))
	s.ObjectsNotListed(nil, map[types.UID]struct{}{"kubernetes": {}})
	check("deleted while the watch was interrupted", "[fd00::/112 10.96.0.0/16]")
}
