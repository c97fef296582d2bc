package allocator

import (
	"testing"

	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestCoolReleases checks that an address rests before it is free, in whatever way it is released (R9).
func TestCoolReleases(t *testing.T) {
	served := func(c *ipamv1.IPAddressClaim) { c.Status.AddressRef.Name = c.Name }
	void := func(p *grants.PoolState) {
		grantstest.ObserveAddress(p, "a", "10.0.0.1", "gone")
		p.Addresses.Orphans[p.Addresses.ByName[grants.NamespacedNameFromOwner(claims.NewClaimant(grantstest.NewClaim("a", 0)).Owner)].Key()].ProvenOrphan = true
	}
	tests := map[string]struct {
		as   func(p *grants.PoolState)
		want bool
	}{
		"Released": {as: func(p *grants.PoolState) {
			grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithDeletionTimestamp)
			grantstest.ObserveAddress(p, "a", "10.0.0.1", "uid-a")
		}, want: true},
		"ForcedAway": {as: func(p *grants.PoolState) {
			grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress("10.0.0.1"), served, grantstest.WithDeletionTimestamp)
		}, want: true},
		"NeverHadIt": {as: func(p *grants.PoolState) {
			grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithDeletionTimestamp)
		}},
		"Void":         {as: void, want: true},
		"NotProvenYet": {as: func(p *grants.PoolState) { grantstest.ObserveAddress(p, "a", "10.0.0.1", "gone") }},
		"SomebodyHasItToo": {as: func(p *grants.PoolState) {
			void(p)
			grantstest.ObserveClaim(p, "b", 0, grantstest.WithRecordedAddress("10.0.0.1"))
		}},
		"NotedAlready": {as: func(p *grants.PoolState) {
			void(p)
			grantstest.WithCooling("10.0.0.1", "a")(p.Base.Pool.(*v1alpha1.NetworkPool))
			p.LoadCoolingAndHeld(p.Base.Pool.PoolStatus())
		}},
		"ThePoolIsPaused": {as: func(p *grants.PoolState) {
			grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress("10.0.0.1"), served, grantstest.WithDeletionTimestamp)
			p.Base.Pool.SetAnnotations(map[string]string{clusterv1.PausedAnnotation: ""})
		}},
		"ItsClaimLivesOn": {as: func(p *grants.PoolState) {
			grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress("10.0.0.1"), served)
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](30) })
			tc.as(p)
			if got := p.Releases.CoolReleases(grantstest.Noon, New(Options{}).admission.newReleaseAdmissionFunc(t.Context(), p)); got != tc.want {
				t.Errorf("does not rest as it should: %v, want %v", got, tc.want)
			}
		})
	}
}
