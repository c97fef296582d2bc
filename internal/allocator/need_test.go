package allocator

import (
	"testing"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// What a claimant needs, of either kind, by what is known of it.
func TestNeed(t *testing.T) {
	owned := func(p *memory, change ...func(*ipamv1.IPAddressClaim)) *claimant {
		c := see(p, "a", 0, change...)
		seeAddress(p, "a", "10.0.0.1", "uid-a")
		p.attached[nameOf(c.owner)].own.(*addressFacts).poolUID = "pool-uid"
		return c
	}
	inFlight := func(p *memory, c *claimant) *claimant {
		p.plan(noon, 9, anyone)
		return c
	}
	paused := func(c *ipamv1.IPAddressClaim) { c.Annotations[clusterv1.PausedAnnotation] = "" }
	gone := func(o *v1alpha1.IPAllocation) { o.DeletionTimestamp = &o.CreationTimestamp }
	for name, tc := range map[string]struct {
		reason string
		as     func(p *memory) *claimant
		want   need
	}{
		"New":              {as: func(p *memory) *claimant { return see(p, "a", 0) }, want: needGrant},
		"Granted":          {as: func(p *memory) *claimant { return inFlight(p, see(p, "a", 0)) }, want: needWrite},
		"Recorded":         {reason: "its IPAddress was forced away", as: func(p *memory) *claimant { return see(p, "a", 0, remembers("10.0.0.1")) }, want: needGrant},
		"NotTold":          {reason: "its status says nothing", as: func(p *memory) *claimant { return owned(p, remembers("10.0.0.1")) }, want: needWrite},
		"Served":           {as: func(p *memory) *claimant { return owned(p, remembers("10.0.0.1"), bothReady) }},
		"ServedAndPaused":  {reason: "it is to say so", as: func(p *memory) *claimant { return owned(p, remembers("10.0.0.1"), bothReady, paused) }, want: needWrite},
		"WithoutFinalizer": {as: func(p *memory) *claimant { return owned(p, remembers("10.0.0.1"), bothReady, noFinalizer) }, want: needWrite},
		"OfADeadClaim": {reason: "an IPAddress that the claim remembers is adopted (R2)", as: func(p *memory) *claimant {
			seeAddress(p, "a", "10.0.0.1", "dead")
			return see(p, "a", 0, remembers("10.0.0.1"))
		}, want: needWrite},
		"OfAnother": {reason: "it waits for the end of the other one's", as: func(p *memory) *claimant {
			seeAddress(p, "a", "10.0.0.1", "dead")
			return see(p, "a", 0)
		}, want: needGrant},
		"Deleted":              {as: func(p *memory) *claimant { return owned(p, remembers("10.0.0.1"), ends) }, want: needRelease},
		"DeletedWithAnAddress": {reason: "somebody took the finalizer off", as: func(p *memory) *claimant { return owned(p, ends, noFinalizer) }, want: needRelease},
		"DeletedWithNothing":   {as: func(p *memory) *claimant { return see(p, "a", 0, ends) }},
		"Moved":                {reason: "clusterctl deletes it, and what it has is held (R9)", as: func(p *memory) *claimant { return owned(p, remembers("10.0.0.1"), ends, isMoved) }},
		"BlockNew":             {as: func(p *memory) *claimant { return seeBlock(p, "x", 4) }, want: needGrant},
		"BlockGranted":         {as: func(p *memory) *claimant { return inFlight(p, seeBlock(p, "x", 4)) }, want: needWrite},
		"BlockRecorded":        {reason: "a record that no status shows is planned for again (R8)", as: func(p *memory) *claimant { return seeBlock(p, "x", 4, has("10.0.0.4/30")) }, want: needGrant},
		"BlockServed":          {as: func(p *memory) *claimant { return seeBlock(p, "x", 4, has("10.0.0.4/30"), written(t, unlooked)) }},
		"BlockOfAnUnseenCluster": {reason: "its status is to say so", as: func(p *memory) *claimant {
			c := seeBlock(p, "x", 4, has("10.0.0.4/30"), written(t, unlooked))
			c.found = unseen
			return c
		}, want: needWrite},
		"BlockOfAStatus": {reason: "taken on trust only while the pool is adopted (R10)", as: func(p *memory) *claimant { return seeBlock(p, "x", 4, shows("10.0.0.4", "10.0.0.7")) }, want: needGrant},
		"BlockAdopted": {as: func(p *memory) *claimant {
			p.adopting = true
			return seeBlock(p, "x", 4, shows("10.0.0.4", "10.0.0.7"))
		}, want: needWrite},
		"BlockShared": {reason: "its status is to say who has some of it too", as: func(p *memory) *claimant {
			seeAddress(p, "a", "10.0.0.4", "dead")
			return seeBlock(p, "x", 4, has("10.0.0.4/30"), written(t, unlooked))
		}, want: needWrite},
		"BlockDeleted":            {as: func(p *memory) *claimant { return seeBlock(p, "x", 4, has("10.0.0.4/30"), gone) }, want: needRelease},
		"BlockDeletedWithNothing": {as: func(p *memory) *claimant { return seeBlock(p, "x", 4, gone) }},
	} {
		t.Run(name, func(t *testing.T) {
			p := aPool(t, "10.0.0.1-10.0.0.9")
			c := tc.as(p)
			if got := p.need(c); got != tc.want {
				t.Errorf("it needs %d, want %d: %s", got, tc.want, tc.reason)
			}
		})
	}
}

func isMoved(c *ipamv1.IPAddressClaim) { c.Annotations[v1alpha1.DeleteForMoveAnnotation] = "" }
