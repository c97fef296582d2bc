package invariants

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// TestCheckMoment checks the checker, on which every other test depends: each violation is found, and what is allowed
// passes.
func TestCheckMoment(t *testing.T) {
	claims := []ipamv1.IPAddressClaim{claim("a"), claim("b")}
	tests := map[string]struct {
		reason    string
		claims    []ipamv1.IPAddressClaim
		addresses []ipamv1.IPAddress
		want      []string
	}{
		"Nothing": {reason: "no object, no violation"},
		"Clean": {
			reason:    "each has its own",
			claims:    claims,
			addresses: []ipamv1.IPAddress{address("a", "10.0.0.1"), address("b", "10.0.0.2")},
		},
		"Twice": {
			reason:    "I1: one address, two living claims",
			claims:    claims,
			addresses: []ipamv1.IPAddress{address("a", "10.0.0.1"), address("b", "10.0.0.1")},
			want:      []string{"I1: 10.0.0.1 of NetworkPool ns/p is held by ns/a and ns/b"},
		},
		"TwiceInGlobal": {
			reason:    "I1: a global pool is one pool in all namespaces",
			claims:    claims,
			addresses: []ipamv1.IPAddress{address("a", "10.0.0.1", ofGlobal), address("b", "10.0.0.1", ofGlobal, inNamespace("other"))},
			want:      []string{"I1: 10.0.0.1 of GlobalNetworkPool p is held by ns/a and other/b"},
		},
		"ThreeTimes": {
			reason:    "I1: the third is found too",
			claims:    append(claims[:2:2], claim("c")),
			addresses: []ipamv1.IPAddress{address("a", "10.0.0.1"), address("b", "10.0.0.1"), address("c", "10.0.0.1")},
			want: []string{
				"I1: 10.0.0.1 of NetworkPool ns/p is held by ns/a and ns/b",
				"I1: 10.0.0.1 of NetworkPool ns/p is held by ns/b and ns/c",
			},
		},
		"TwoOfOneClaim": {
			reason:    "I4: a claim has one address",
			claims:    claims,
			addresses: []ipamv1.IPAddress{address("a", "10.0.0.1"), address("a", "10.0.0.2", named("a2"))},
			want:      []string{"I4: the address of claim ns/a2 changed from 10.0.0.1 to 10.0.0.2"},
		},
		"OtherPools": {
			reason: "the same address in another pool, namespace or kind of pool is another address",
			claims: append(claims[:2:2], claim("c"), claim("d")),
			addresses: []ipamv1.IPAddress{
				address("a", "10.0.0.1"), address("b", "10.0.0.1", ofPool(v1alpha1.GroupVersion.Group, v1alpha1.NetworkPoolKind, "q")),
				address("c", "10.0.0.1", inNamespace("other")), address("d", "10.0.0.1", ofGlobal),
			},
		},
		"Foreign": { // W23 (a pool of another group is not ours)
			reason: "pools of another group are another's concern",
			claims: claims,
			addresses: []ipamv1.IPAddress{
				address("a", "10.0.0.1", ofPool("ipam.metal3.io", v1alpha1.NetworkPoolKind, "p")),
				address("b", "10.0.0.1", ofPool("ipam.metal3.io", v1alpha1.NetworkPoolKind, "p")),
			},
		},
		"Void": { // R2 (an IPAddress without its claim is void)
			reason:    "an IPAddress whose claim is gone is void, in either order",
			claims:    []ipamv1.IPAddressClaim{claim("b")},
			addresses: []ipamv1.IPAddress{address("a", "10.0.0.1"), address("b", "10.0.0.1"), address("c", "10.0.0.1")},
		},
		"Unowned": {
			reason:    "so is one that names no claim as its owner",
			claims:    claims,
			addresses: []ipamv1.IPAddress{address("a", "10.0.0.1", withoutOwners), address("b", "10.0.0.1")},
		},
		"OtherClaimOfName": { // R2 (an IPAddress without its claim is void)
			reason:    "a claim that was made anew is another claim",
			claims:    []ipamv1.IPAddressClaim{{ObjectMeta: claim("a").ObjectMeta}, claim("b")},
			addresses: []ipamv1.IPAddress{address("a", "10.0.0.1", func(a *ipamv1.IPAddress) { a.OwnerReferences[1].UID = "old" }), address("b", "10.0.0.1")},
		},
		"PoolOfTheName": {
			reason:    "I1: a pool may be called as a claim is",
			claims:    claims,
			addresses: []ipamv1.IPAddress{address("a", "10.0.0.1", func(a *ipamv1.IPAddress) { a.OwnerReferences[0].Name = "a" }), address("b", "10.0.0.1")},
			want:      []string{"I1: 10.0.0.1 of NetworkPool ns/p is held by ns/a and ns/b"},
		},
		"OwnerOfOtherName": {
			reason:    "an owner that is not the claim of claimRef does not count",
			claims:    claims,
			addresses: []ipamv1.IPAddress{address("a", "10.0.0.1", func(a *ipamv1.IPAddress) { a.Spec.ClaimRef.Name = "x" }), address("b", "10.0.0.1")},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := &History{}
			if diff := cmp.Diff(tc.want, h.CheckMoment(pools.Objects{Claims: tc.claims, Addresses: tc.addresses})); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestMomentOtherText checks an IPAddress that a user created, with its address in another form than the manager
// writes (I1).
func TestMomentOtherText(t *testing.T) {
	h := &History{}
	got := h.CheckMoment(pools.Objects{
		Claims:    []ipamv1.IPAddressClaim{claim("a"), claim("b")},
		Addresses: []ipamv1.IPAddress{address("a", "fd00::1"), address("b", "fd00:0::1")},
	})
	if len(got) != 1 {
		t.Errorf("one address of two claims is one violation, got %v", got)
	}
}

// TestMomentRemembers checks that an address is remembered while no object shows it (I4).
func TestMomentRemembers(t *testing.T) {
	both := []ipamv1.IPAddressClaim{claim("a"), claim("b")}
	tests := map[string]struct {
		reason string
		then   pools.Objects
		want   []string
	}{
		"Same":    {reason: "the same address again", then: pools.Objects{Claims: both, Addresses: []ipamv1.IPAddress{address("a", "10.0.0.1")}}},
		"Other":   {reason: "another address", then: pools.Objects{Claims: both, Addresses: []ipamv1.IPAddress{address("a", "10.0.0.2")}}, want: []string{"I4: the address of claim ns/a changed from 10.0.0.1 to 10.0.0.2"}},
		"Dead":    {reason: "the claim is gone", then: pools.Objects{Claims: both[1:], Addresses: []ipamv1.IPAddress{address("a", "10.0.0.2")}}},
		"Reused":  {reason: "what a dead claim had is another's", then: pools.Objects{Claims: both[1:], Addresses: []ipamv1.IPAddress{address("b", "10.0.0.1")}}},
		"TwoDead": {reason: "and the dead claim's object may linger", then: pools.Objects{Claims: both[1:], Addresses: []ipamv1.IPAddress{address("b", "10.0.0.1"), address("a", "10.0.0.1")}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := &History{}
			h.CheckMoment(pools.Objects{Claims: both, Addresses: []ipamv1.IPAddress{address("a", "10.0.0.1")}})
			h.CheckMoment(pools.Objects{Claims: both})
			if diff := cmp.Diff(tc.want, h.CheckMoment(tc.then)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}
