package invariants

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

func TestCheckAtRest(t *testing.T) {
	claims := []ipamv1.IPAddressClaim{claim("a"), claim("b")}
	granted := []ipamv1.IPAddress{address("a", "10.0.0.1"), address("b", "10.0.0.2")}
	remembering := []ipamv1.IPAddressClaim{claims[0], claims[1], claim("c")}
	for i, address := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.9"} {
		remembering[i].Spec.PoolRef = granted[0].Spec.PoolRef
		remembering[i].Annotations = map[string]string{v1alpha1.AddressAnnotation: address}
	}
	tests := map[string]struct {
		reason      string
		pools       []v1alpha1.Pool
		claims      []ipamv1.IPAddressClaim
		addresses   []ipamv1.IPAddress
		allocations []v1alpha1.IPAllocation
		leases      []v1alpha1.IPLease
		want        []string
	}{
		"Clean": {
			reason: "the pool counts what there is",
			pools:  []v1alpha1.Pool{counting(2, 0)}, claims: claims, addresses: granted,
		},
		"OutOfRange": {
			reason: "what the spec no longer covers is counted apart",
			pools:  []v1alpha1.Pool{counting(1, 1)}, claims: claims, addresses: granted,
		},
		"NeverServed": {
			reason: "a pool without an allocator has granted nothing",
			pools:  []v1alpha1.Pool{&v1alpha1.NetworkPool{}, global(0)},
		},
		"Global": {
			reason: "a global pool counts the addresses of all namespaces",
			pools:  []v1alpha1.Pool{counting(0, 0), global(2)}, claims: claims,
			addresses: []ipamv1.IPAddress{address("a", "10.0.0.1", ofGlobal), address("b", "10.0.0.2", ofGlobal, inNamespace("other"))},
		},
		"Moment": {
			reason: "what must not be at any moment must not be at rest",
			pools:  []v1alpha1.Pool{counting(2, 0)}, claims: claims,
			addresses: []ipamv1.IPAddress{address("a", "10.0.0.1"), address("b", "10.0.0.1")},
			want:      []string{"I1: 10.0.0.1 of NetworkPool ns/p is held by ns/a and ns/b"},
		},
		"Orphan": {
			reason: "an IPAddress that outlives its claim keeps its address for ever",
			pools:  []v1alpha1.Pool{counting(2, 0)}, claims: claims[:1], addresses: granted,
			want: []string{"I2: IPAddress ns/b has no claim"},
		},
		"Remembered": {
			reason: "what a claim remembers is kept for it, also where it is refused",
			pools:  []v1alpha1.Pool{counting(3, 0)}, claims: remembering, addresses: granted,
		},
		"Unowned": {
			reason: "one made by hand names no claim; it is counted",
			pools:  []v1alpha1.Pool{counting(2, 0)}, claims: claims[:1],
			addresses: []ipamv1.IPAddress{granted[0], address("x", "10.0.0.2", withoutOwners)},
		},
		"Foreign": {
			reason: "addresses of another group are neither counted nor orphans",
			pools:  []v1alpha1.Pool{counting(0, 0)}, addresses: []ipamv1.IPAddress{address("x", "10.0.0.2", ofPool("ipam.metal3.io", v1alpha1.NetworkPoolKind, "p"))},
		},
		"Unsettled": {
			reason: "a grant in flight is never settled",
			pools:  []v1alpha1.Pool{counting(2, 0, v1alpha1.Grant{}, v1alpha1.Grant{})}, claims: claims, addresses: granted,
			want: []string{"I2: grants of NetworkPool ns/p still in flight: 2"},
		},
		"CountsMore": {
			reason: "an address is taken without a user: it leaked",
			pools:  []v1alpha1.Pool{counting(2, 1)}, claims: claims, addresses: granted,
			want: []string{"I2: NetworkPool ns/p counts 3 addresses in use, there are 2"},
		},
		"CountsLess": {
			reason: "an address that is in use could be granted again",
			pools:  []v1alpha1.Pool{counting(1, 0)}, claims: claims, addresses: granted,
			want: []string{"I2: NetworkPool ns/p counts 1 addresses in use, there are 2"},
		},
		"CountsAnothers": {
			reason: "pools of one name are counted apart",
			pools:  []v1alpha1.Pool{counting(1, 0), global(1)}, claims: claims, addresses: granted,
			want: []string{
				"I2: NetworkPool ns/p counts 1 addresses in use, there are 2",
				"I2: GlobalNetworkPool p counts 1 addresses in use, there are 0",
			},
		},
		"AllocationOfAnother": {
			reason: "a deleted allocation that the finalizer of another keeps has what its status shows",
			pools:  []v1alpha1.Pool{counting(4, 0)}, allocations: []v1alpha1.IPAllocation{keptAllocation("x", "10.0.0.0/30")},
		},
		"AllocationOfAnotherIsNotCounted": {
			reason: "its range could be granted again",
			pools:  []v1alpha1.Pool{counting(0, 0)}, allocations: []v1alpha1.IPAllocation{keptAllocation("x", "10.0.0.0/30")},
			want: []string{"I2: NetworkPool ns/p counts 0 addresses in use, there are 4"},
		},
		"LeaseOfAnother": {
			reason: "a deleted lease that the finalizer of another keeps has what its status shows",
			pools:  []v1alpha1.Pool{counting(1, 0)}, leases: []v1alpha1.IPLease{keptLease("l", "10.0.0.1")},
		},
		"GivenOn": {
			reason: "what such a lease has is another's too",
			pools:  []v1alpha1.Pool{counting(5, 0)}, leases: []v1alpha1.IPLease{keptLease("l", "10.0.0.1")},
			allocations: []v1alpha1.IPAllocation{keptAllocation("x", "10.0.0.0/30")},
			want:        []string{"I1: 10.0.0.1 of NetworkPool ns/p is held by ns/x and ns/l"},
		},
		"PoolOfAnother": {
			reason: "the status of a deleted pool that the finalizer of another keeps is written no more",
			pools:  []v1alpha1.Pool{ending(counting(2, 0), "example.com/kept")},
		},
		"PoolIsEnding": {
			reason: "a deleted pool counts as long as our finalizer is on it",
			pools:  []v1alpha1.Pool{ending(counting(2, 0), v1alpha1.PoolFinalizer)},
			want:   []string{"I2: NetworkPool ns/p counts 2 addresses in use, there are 0"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := &History{}
			got := h.CheckAtRest(pools.Objects{Pools: tc.pools, Claims: tc.claims, Addresses: tc.addresses, Allocations: tc.allocations, Leases: tc.leases})
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}
