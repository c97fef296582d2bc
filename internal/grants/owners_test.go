package grants_test

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestNextOwnerSeen checks what the status of an IPAllocation shows after each observation of its owner.
func TestNextOwnerSeen(t *testing.T) {
	const unknown, never, alive, paused, left = grants.OwnerUnknown, grants.OwnerNeverSeen, grants.OwnerSeenAlive, grants.OwnerSeenPaused, grants.OwnerLeftPaused
	for name, tc := range map[string]struct {
		published, observed  grants.OwnerSeen
		child                bool
		want                 grants.OwnerSeen
		update, pausedUpdate bool
	}{
		"nothing known":             {unknown, unknown, false, unknown, false, false},
		"missing":                   {unknown, never, false, never, true, false},
		"appears":                   {never, alive, false, alive, true, false},
		"gone, was seen":            {alive, never, false, alive, false, false},
		"not checked":               {alive, unknown, false, alive, false, false},
		"paused":                    {alive, paused, false, paused, false, true},
		"paused, shown":             {paused, paused, false, paused, false, false},
		"paused, never seen before": {never, paused, false, never, false, false},
		"child paused at once":      {unknown, paused, true, paused, false, true},
		"resumed":                   {paused, alive, false, alive, true, false},
		"left paused":               {paused, left, false, paused, false, false},
		"left paused, never shown":  {unknown, left, false, never, true, false},
	} {
		c := &grants.Claimant{PublishedOwnerSeen: tc.published, ObservedOwnerSeen: tc.observed}
		if tc.child {
			c.ChildPool = &pools.Key{Name: "child"}
		}
		if got := c.NextOwnerSeen(tc.observed); got != tc.want {
			t.Errorf("%s: %d, not %d", name, got, tc.want)
		}
		if update, pause := c.NeedsOwnerSeenUpdate(), c.NeedsOwnerPausedUpdate(); update != tc.update || pause != tc.pausedUpdate {
			t.Errorf("%s: update %v, of a pause %v", name, update, pause)
		}
	}
}

// TestAwaitedClusterMakesSweepDue checks that a Cluster that was never seen is awaited until it appears, once.
func TestAwaitedClusterMakesSweepDue(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
	c := grantstest.ObserveAllocation(p, "block", 2)
	c.Cluster = types.NamespacedName{Namespace: "team", Name: "prod"}
	p.Owners.BeginSweep(grantstest.Noon.Add(time.Hour))
	p.Owners.RecordOwnerSeen(c, grants.OwnerNeverSeen)
	if p.Owners.TakeAwaitedCluster(types.NamespacedName{Namespace: "team", Name: "other"}) || p.Owners.NextSweep.IsZero() {
		t.Error("another Cluster makes the sweep due")
	}
	if !p.Owners.TakeAwaitedCluster(c.Cluster) || !p.Owners.NextSweep.IsZero() {
		t.Error("the Cluster appears, and the sweep is not due")
	}
	if p.Owners.TakeAwaitedCluster(c.Cluster) {
		t.Error("the Cluster is awaited twice")
	}
	p.Owners.RecordOwnerSeen(c, grants.OwnerSeenAlive)
	if len(p.Owners.UnseenClusters) != 0 {
		t.Errorf("a Cluster that was seen is awaited: %v", p.Owners.UnseenClusters)
	}
}
