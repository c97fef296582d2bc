package invariants

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

func TestLeftBehind(t *testing.T) {
	granted := []ipamv1.IPAddress{address("a", "10.0.0.1"), address("m", "10.0.0.7", ofPool(incluster.GroupVersion.Group, incluster.IPPool, "theirs"))}
	remembers := func(name, address string) ipamv1.IPAddressClaim {
		c := claim(name)
		c.Spec.PoolRef = granted[0].Spec.PoolRef
		c.Annotations = map[string]string{v1alpha1.AddressAnnotation: address}
		return c
	}
	pool := []v1alpha1.Pool{counting(1, 0)}
	tests := map[string]struct {
		reason string
		pools  []v1alpha1.Pool
		claims []ipamv1.IPAddressClaim
		want   []string
	}{
		"Clean": {reason: "a claim remembers its own address", pools: pool, claims: []ipamv1.IPAddressClaim{remembers("a", "10.0.0.1")}},
		"Waits": {reason: "nobody else has what it remembers", pools: pool, claims: []ipamv1.IPAddressClaim{claim("a"), remembers("c", "10.0.0.9")}},
		"Twice": {
			reason: "it was left behind by a move, or copied: only one of the two can have it",
			pools:  pool, claims: []ipamv1.IPAddressClaim{claim("a"), remembers("c", "10.0.0.1")},
			want: []string{"claim ns/c remembers 10.0.0.1 of NetworkPool ns/p, which ns/a has: find out which of the two uses it, and delete the other"},
		},
		"Mirrored": {
			reason: "the in-cluster provider serves its own pools, where there is no mirror",
			pools:  pool, claims: []ipamv1.IPAddressClaim{claim("m")},
		},
		"Orphan": {reason: "an address without a claim is collected", pools: pool, claims: []ipamv1.IPAddressClaim{remembers("c", "10.0.0.1")}},
		"NoPool": {
			reason: "nobody counts it, and the next pool of these addresses gives it again",
			claims: []ipamv1.IPAddressClaim{claim("a")},
			want:   []string{"claim ns/a has 10.0.0.1 of NetworkPool ns/p, which does not exist, so that another pool may give it: create the pool again, or delete the claim"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := LeftBehind(pools.Objects{Pools: tc.pools, Claims: tc.claims, Addresses: granted})
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}
