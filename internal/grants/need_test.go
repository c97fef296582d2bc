package grants_test

import (
	"testing"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestNeedFor checks what a claimant of either kind needs, by what is known of it.
func TestNeedFor(t *testing.T) {
	owned := func(p *grants.PoolState, change ...func(*ipamv1.IPAddressClaim)) *grants.Claimant {
		c := grantstest.ObserveClaim(p, "a", 0, change...)
		grantstest.ObserveAddress(p, "a", "10.0.0.1", "uid-a")
		p.Addresses.ByName[grants.NamespacedNameFromOwner(c.Owner)].KindData.(*claims.AddressData).PoolUID = "pool-uid"
		return c
	}
	inFlight := func(p *grants.PoolState, c *grants.Claimant) *grants.Claimant {
		p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
		return c
	}
	paused := func(c *ipamv1.IPAddressClaim) { c.Annotations[clusterv1.PausedAnnotation] = "" }
	gone := func(o *v1alpha1.IPAllocation) { o.DeletionTimestamp = &o.CreationTimestamp }
	for name, tc := range map[string]struct {
		reason string
		as     func(p *grants.PoolState) *grants.Claimant
		want   grants.Need
	}{
		"New":     {as: func(p *grants.PoolState) *grants.Claimant { return grantstest.ObserveClaim(p, "a", 0) }, want: grants.NeedGrant},
		"Granted": {as: func(p *grants.PoolState) *grants.Claimant { return inFlight(p, grantstest.ObserveClaim(p, "a", 0)) }, want: grants.NeedWrite},
		"Recorded": {reason: "its IPAddress was forced away", as: func(p *grants.PoolState) *grants.Claimant {
			return grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress("10.0.0.1"))
		}, want: grants.NeedGrant},
		"NotTold": {reason: "its status says nothing", as: func(p *grants.PoolState) *grants.Claimant {
			return owned(p, grantstest.WithRecordedAddress("10.0.0.1"))
		}, want: grants.NeedWrite},
		"Served": {as: func(p *grants.PoolState) *grants.Claimant {
			return owned(p, grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithReadyStatus)
		}},
		"ServedAndPaused": {reason: "it is to say so", as: func(p *grants.PoolState) *grants.Claimant {
			return owned(p, grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithReadyStatus, paused)
		}, want: grants.NeedWrite},
		"WithoutFinalizer": {as: func(p *grants.PoolState) *grants.Claimant {
			return owned(p, grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithReadyStatus, noFinalizer)
		}, want: grants.NeedWrite},
		"ServedByAnAddressThatEnds": {reason: "it is deleted, another's finalizer keeps it: its owners stay what they are", as: func(p *grants.PoolState) *grants.Claimant {
			c := owned(p, grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithReadyStatus)
			a := *p.Addresses.ByName[grants.NamespacedNameFromOwner(c.Owner)]
			a.KindData, a.Deleting = &claims.AddressData{PoolUID: "elsewhere"}, true
			p.Addresses.ByName[grants.NamespacedNameFromOwner(c.Owner)] = &a
			return c
		}},
		"OfADeadClaim": {reason: "an IPAddress that the claim remembers is adopted (R2)", as: func(p *grants.PoolState) *grants.Claimant {
			grantstest.ObserveAddress(p, "a", "10.0.0.1", "dead")
			return grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress("10.0.0.1"))
		}, want: grants.NeedWrite},
		"OfAnother": {reason: "it waits for the end of the other one's", as: func(p *grants.PoolState) *grants.Claimant {
			grantstest.ObserveAddress(p, "a", "10.0.0.1", "dead")
			return grantstest.ObserveClaim(p, "a", 0)
		}, want: grants.NeedGrant},
		"Deleted": {as: func(p *grants.PoolState) *grants.Claimant {
			return owned(p, grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithDeletionTimestamp)
		}, want: grants.NeedRelease},
		"DeletedWithAnAddress": {reason: "a user removed the finalizer", as: func(p *grants.PoolState) *grants.Claimant {
			return owned(p, grantstest.WithDeletionTimestamp, noFinalizer)
		}, want: grants.NeedRelease},
		"DeletedWithNothing": {as: func(p *grants.PoolState) *grants.Claimant {
			return grantstest.ObserveClaim(p, "a", 0, grantstest.WithDeletionTimestamp)
		}},
		"Moved": {reason: "clusterctl deletes it, and what it has is held (R9)", as: func(p *grants.PoolState) *grants.Claimant {
			return owned(p, grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithDeletionTimestamp, grantstest.MarkedAsMoved)
		}},
		"BlockNew": {as: func(p *grants.PoolState) *grants.Claimant { return grantstest.ObserveAllocation(p, "x", 4) }, want: grants.NeedGrant},
		"BlockGranted": {as: func(p *grants.PoolState) *grants.Claimant {
			return inFlight(p, grantstest.ObserveAllocation(p, "x", 4))
		}, want: grants.NeedWrite},
		"BlockRecorded": {reason: "a record that no status shows is planned for again (R8)", as: func(p *grants.PoolState) *grants.Claimant {
			return grantstest.ObserveAllocation(p, "x", 4, grantstest.WithBlock("10.0.0.4/30"))
		}, want: grants.NeedGrant},
		"BlockServed": {as: func(p *grants.PoolState) *grants.Claimant {
			return grantstest.ObserveAllocation(p, "x", 4, grantstest.WithBlock("10.0.0.4/30"), grantstest.WithWrittenStatus(t, grants.OwnerUnknown))
		}},
		"BlockOfAnUnseenCluster": {reason: "its status is to say so", as: func(p *grants.PoolState) *grants.Claimant {
			c := grantstest.ObserveAllocation(p, "x", 4, grantstest.WithBlock("10.0.0.4/30"), grantstest.WithWrittenStatus(t, grants.OwnerUnknown))
			c.ObservedOwnerSeen = grants.OwnerNeverSeen
			return c
		}, want: grants.NeedWrite},
		"BlockOfAStatus": {reason: "taken on trust only while the pool is adopted (R10)", as: func(p *grants.PoolState) *grants.Claimant {
			return grantstest.ObserveAllocation(p, "x", 4, grantstest.WithAllocatedStatus("10.0.0.4", "10.0.0.7"))
		}, want: grants.NeedGrant},
		"BlockAdopted": {as: func(p *grants.PoolState) *grants.Claimant {
			p.Quarantine.Adopting = true
			return grantstest.ObserveAllocation(p, "x", 4, grantstest.WithAllocatedStatus("10.0.0.4", "10.0.0.7"))
		}, want: grants.NeedWrite},
		"BlockShared": {reason: "its status is to say who has some of it too", as: func(p *grants.PoolState) *grants.Claimant {
			grantstest.ObserveAddress(p, "a", "10.0.0.4", "dead")
			return grantstest.ObserveAllocation(p, "x", 4, grantstest.WithBlock("10.0.0.4/30"), grantstest.WithWrittenStatus(t, grants.OwnerUnknown))
		}, want: grants.NeedWrite},
		"BlockDeleted": {as: func(p *grants.PoolState) *grants.Claimant {
			return grantstest.ObserveAllocation(p, "x", 4, grantstest.WithBlock("10.0.0.4/30"), gone)
		}, want: grants.NeedRelease},
		"BlockDeletedWithNothing": {as: func(p *grants.PoolState) *grants.Claimant { return grantstest.ObserveAllocation(p, "x", 4, gone) }},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
			c := tc.as(p)
			if got := p.Inventory.NeedFor(c); got != tc.want {
				t.Errorf("it needs %d, want %d: %s", got, tc.want, tc.reason)
			}
			if c.Paused || tc.want == grants.NeedGrant || (c.Deleting && tc.want == grants.NeedNothing) {
				return // it is not asked for a request
			}
			// Both answers are one decision: a need without a request would be tried without end.
			step, needs := c.Kind.NextServeStep, grants.NeedWrite
			if c.Deleting {
				step, needs = c.Kind.NextReleaseStep, grants.NeedRelease
			}
			s := step(p.Inventory, c, &grants.Attempt{Now: grantstest.Noon, Grant: p.Grants.ByClaimant[c.Owner.UID]})
			if asks := s.Verb != grants.StopJob || s.Err != nil; asks != (tc.want == needs) {
				t.Errorf("it needs %d, and the next request is %v (%v)", tc.want, s.Call, s.Err)
			}
		})
	}
}
