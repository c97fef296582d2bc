package allocator

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// TestPoolsThatDoNotExistAreForgotten checks that the state of a pool that does not exist goes with the claim that
// names it: a claim can name any pool.
func TestPoolsThatDoNotExistAreForgotten(t *testing.T) {
	a := New(Options{})
	claim := &ipamv1.IPAddressClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "u", ResourceVersion: "1"},
		Spec: ipamv1.IPAddressClaimSpec{PoolRef: ipamv1.IPPoolReference{
			APIGroup: v1alpha1.GroupVersion.Group, Kind: v1alpha1.NetworkPoolKind, Name: "nowhere",
		}},
	}
	key, wake := a.ObserveObject(claim)
	if !wake || len(a.pools.allPools()) != 1 {
		t.Fatalf("a claim of a pool that does not exist: wake %v, %d pools remembered", wake, len(a.pools.allPools()))
	}
	before := stateOfPool(a.pools.getOrCreatePool(key))
	a.ForgetObject(claim)
	if _, err := a.Reconcile(t.Context(), key, nil); err != nil {
		t.Fatal(err)
	}
	if n := len(a.pools.allPools()); n != 0 {
		t.Errorf("%d pools are remembered", n)
	}
	// A caller that had the dropped state at that moment must not feed it any more.
	if p := a.pools.lockPool(key); p == before {
		t.Error("the memory that was dropped is used again")
	} else {
		p.Unlock()
	}
}
