package grants_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestAddressFoundInUseCoolsAgain checks that a rest that keeps the address for the name of its lease does not count
// once the address is found to be in use.
func TestAddressFoundInUseCoolsAgain(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.2", func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](7200) })
	l := grantstest.ObserveLease(p, "x", grantstest.WithLeasedAddress("10.0.0.1"), grantstest.WithLeaseDeletion)
	p.Releases.StartCooling(p.Inventory.ReleaseFor(l), grantstest.Noon)
	if p.Cooling.NeedsCooling(p.Inventory.ReleaseFor(l), grantstest.Noon) {
		t.Fatal("it is to rest again")
	}
	l = grantstest.ObserveLease(p, "x", grantstest.WithLeasedAddress("10.0.0.1"), grantstest.WithAnnounced(metav1.ConditionFalse, v1alpha1.AddressInUseReason), grantstest.WithLeaseDeletion, func(o *v1alpha1.IPLease) { o.ResourceVersion = "2" })
	if !p.Cooling.NeedsCooling(p.Inventory.ReleaseFor(l), grantstest.Noon) {
		t.Fatal("it rests for its name")
	}
	p.Releases.StartCooling(p.Inventory.ReleaseFor(l), grantstest.Noon)
	if rests := p.Cooling.Periods.All(); len(rests) != 1 || rests[0].Claim.Name != "" {
		t.Errorf("%v rest", rests)
	}
}
