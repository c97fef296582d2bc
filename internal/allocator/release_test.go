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

func ends(c *ipamv1.IPAddressClaim) { c.DeletionTimestamp = &c.CreationTimestamp }

// Whatever way an address becomes free, it rests first (R9).
func TestCoolReleases(t *testing.T) {
	served := func(c *ipamv1.IPAddressClaim) { c.Status.AddressRef.Name = c.Name }
	void := func(p *grants.Memory) {
		seeAddress(p, "a", "10.0.0.1", "gone")
		p.Orphans[p.Attached[grants.NameOf(claims.Of(newClaim("a", 0)).Owner)].Key()].ProvenOrphan = true
	}
	tests := map[string]struct {
		as   func(p *grants.Memory)
		want bool
	}{
		"Released": {as: func(p *grants.Memory) {
			see(p, "a", 0, remembers("10.0.0.1"), ends)
			seeAddress(p, "a", "10.0.0.1", "uid-a")
		}, want: true},
		"ForcedAway":       {as: func(p *grants.Memory) { see(p, "a", 0, remembers("10.0.0.1"), served, ends) }, want: true},
		"NeverHadIt":       {as: func(p *grants.Memory) { see(p, "a", 0, remembers("10.0.0.1"), ends) }},
		"Void":             {as: void, want: true},
		"NotProvenYet":     {as: func(p *grants.Memory) { seeAddress(p, "a", "10.0.0.1", "gone") }},
		"SomebodyHasItToo": {as: func(p *grants.Memory) { void(p); see(p, "b", 0, remembers("10.0.0.1")) }},
		"NotedAlready": {as: func(p *grants.Memory) {
			void(p)
			cools("10.0.0.1", "a")(p.Base.(*v1alpha1.NetworkPool))
			p.LoadCooling(p.Base.PoolStatus())
		}},
		"ThePoolIsPaused": {as: func(p *grants.Memory) {
			see(p, "a", 0, remembers("10.0.0.1"), served, ends)
			p.Base.SetAnnotations(map[string]string{clusterv1.PausedAnnotation: ""})
		}},
		"ItsClaimLivesOn": {as: func(p *grants.Memory) { see(p, "a", 0, remembers("10.0.0.1"), served) }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := aPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](30) })
			tc.as(p)
			if got := p.CoolReleases(noon, New(Options{}).releases(t.Context(), p)); got != tc.want {
				t.Errorf("does not rest as it should: %v, want %v", got, tc.want)
			}
		})
	}
}
