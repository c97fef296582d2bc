package invariants

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

func TestFindAbandonedUse(t *testing.T) {
	granted := []ipamv1.IPAddress{address("a", "10.0.0.1"), address("m", "10.0.0.7", ofPool(incluster.GroupVersion.Group, incluster.IPPoolKind, "theirs"))}
	remembers := func(name, address string) ipamv1.IPAddressClaim {
		c := claim(name)
		c.Spec.PoolRef = granted[0].Spec.PoolRef
		c.Annotations = map[string]string{v1alpha1.AddressAnnotation: address}
		return c
	}
	pool := []v1alpha1.Pool{counting(1, 0)}
	deleted := func(name string) func(*pools.Objects) {
		return func(o *pools.Objects) {
			o.Claims = slices.DeleteFunc(slices.Clone(o.Claims), func(c ipamv1.IPAddressClaim) bool { return c.Name == name })
			o.Addresses = slices.DeleteFunc(slices.Clone(o.Addresses), func(a ipamv1.IPAddress) bool { return a.Name == name })
		}
	}
	tests := map[string]struct {
		reason string
		pools  []v1alpha1.Pool
		claims []ipamv1.IPAddressClaim
		want   []string
		// helps are the steps that the message names; after each of them alone, nothing is found (W29).
		helps []func(*pools.Objects)
	}{
		"Clean": {reason: "a claim remembers its own address", pools: pool, claims: []ipamv1.IPAddressClaim{remembers("a", "10.0.0.1")}},
		"Waits": {reason: "no other claim has what it remembers", pools: pool, claims: []ipamv1.IPAddressClaim{claim("a"), remembers("c", "10.0.0.9")}},
		"Twice": {
			reason: "it was left behind by a move, or copied: only one of the two can have it",
			pools:  pool, claims: []ipamv1.IPAddressClaim{claim("a"), remembers("c", "10.0.0.1")},
			want:  []string{"claim ns/c remembers 10.0.0.1 of NetworkPool ns/p, which ns/a has: find out which of the two uses it, and delete the other"},
			helps: []func(*pools.Objects){deleted("a"), deleted("c")},
		},
		"Mirrored": {
			reason: "the in-cluster provider serves its own pools, where there is no mirror",
			pools:  pool, claims: []ipamv1.IPAddressClaim{claim("m")},
		},
		"Orphan": {reason: "an address without a claim is collected", pools: pool, claims: []ipamv1.IPAddressClaim{remembers("c", "10.0.0.1")}},
		"NoPool": {
			reason: "no pool counts it, and the next pool of these addresses grants it again",
			claims: []ipamv1.IPAddressClaim{claim("a")},
			want:   []string{"claim ns/a has 10.0.0.1 of NetworkPool ns/p, which does not exist, so that another pool may give it: create the pool again, or delete the claim"},
			helps:  []func(*pools.Objects){func(o *pools.Objects) { o.Pools = pool }, deleted("a")},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			all := pools.Objects{Pools: tc.pools, Claims: tc.claims, Addresses: granted}
			if diff := cmp.Diff(tc.want, FindAbandonedUse(all)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
			for i, do := range tc.helps {
				done := all
				do(&done)
				if got := FindAbandonedUse(done); len(got) > 0 {
					t.Errorf("after step %d: %v", i, got)
				}
			}
		})
	}
}
