package allocator

import (
	"testing"

	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
)

func withDeletionTimestamp(c *ipamv1.IPAddressClaim) { c.DeletionTimestamp = &c.CreationTimestamp }

// TestCoolReleases checks that an address rests before it is free, in whatever way it is released (R9).
func TestCoolReleases(t *testing.T) {
	served := func(c *ipamv1.IPAddressClaim) { c.Status.AddressRef.Name = c.Name }
	void := func(p *grants.PoolState) {
		observeAddress(p, "a", "10.0.0.1", "gone")
		p.Addresses.Orphans[p.Addresses.ByName[grants.NamespacedNameFromOwner(claims.NewClaimant(newClaim("a", 0)).Owner)].Key()].ProvenOrphan = true
	}
	tests := map[string]struct {
		as   func(p *grants.PoolState)
		want bool
	}{
		"Released": {as: func(p *grants.PoolState) {
			observeClaim(p, "a", 0, withRecordedAddress("10.0.0.1"), withDeletionTimestamp)
			observeAddress(p, "a", "10.0.0.1", "uid-a")
		}, want: true},
		"ForcedAway": {as: func(p *grants.PoolState) {
			observeClaim(p, "a", 0, withRecordedAddress("10.0.0.1"), served, withDeletionTimestamp)
		}, want: true},
		"NeverHadIt": {as: func(p *grants.PoolState) {
			observeClaim(p, "a", 0, withRecordedAddress("10.0.0.1"), withDeletionTimestamp)
		}},
		"Void":             {as: void, want: true},
		"NotProvenYet":     {as: func(p *grants.PoolState) { observeAddress(p, "a", "10.0.0.1", "gone") }},
		"SomebodyHasItToo": {as: func(p *grants.PoolState) { void(p); observeClaim(p, "b", 0, withRecordedAddress("10.0.0.1")) }},
		"NotedAlready": {as: func(p *grants.PoolState) {
			void(p)
			withCooling("10.0.0.1", "a")(p.Base.Pool.(*v1alpha1.NetworkPool))
			p.LoadCoolingAndHeld(p.Base.Pool.PoolStatus())
		}},
		"ThePoolIsPaused": {as: func(p *grants.PoolState) {
			observeClaim(p, "a", 0, withRecordedAddress("10.0.0.1"), served, withDeletionTimestamp)
			p.Base.Pool.SetAnnotations(map[string]string{clusterv1.PausedAnnotation: ""})
		}},
		"ItsClaimLivesOn": {as: func(p *grants.PoolState) { observeClaim(p, "a", 0, withRecordedAddress("10.0.0.1"), served) }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := newTestPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](30) })
			tc.as(p)
			if got := p.Releases.CoolReleases(noon, New(Options{}).admission.newReleaseAdmissionFunc(t.Context(), p)); got != tc.want {
				t.Errorf("does not rest as it should: %v, want %v", got, tc.want)
			}
		})
	}
}
